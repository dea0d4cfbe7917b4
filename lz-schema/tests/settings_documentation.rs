//! The table of settings in `docs/operating.md` matches the settings that files, variables and calls accept.

use lz_schema::policy::SETTINGS;

const BEGIN: &str = "<!-- settings:";
const END: &str = "<!-- end of settings -->";

fn table() -> String {
    let mut text = "\n| setting | default | takes | what it says |\n|---|---|---|---|\n".to_owned();
    for setting in SETTINGS {
        let default = setting.default_value().to_string().replace('|', "\\|");
        let needs = setting.needs().replace('|', "\\|");
        text.push_str(&format!("| `{}` | `{default}` | {needs} | {} |\n", setting.key, setting.doc));
    }
    text.push('\n');
    text
}

#[test]
fn every_setting_is_documented() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/operating.md");
    let text = std::fs::read_to_string(path).expect("the page is there").replace("\r\n", "\n");
    let begin = text.find(BEGIN).expect("the table has a beginning");
    let begin = begin + text[begin..].find('\n').expect("the line ends") + 1;
    let end = text.find(END).expect("the table has an end");
    if std::env::var_os("LZ_BLESS").is_some() {
        let blessed = format!("{}{}{}", &text[..begin], table(), &text[end..]);
        std::fs::write(path, blessed).expect("the page can be written");
        return;
    }
    assert!(
        text[begin..end] == table(),
        "run: LZ_BLESS=1 cargo test -p lz-schema --test settings_documentation"
    );
}
