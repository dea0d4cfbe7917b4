//! The page as one file that needs no server: styles, scripts and data are part of it.

use serde_json::{Map, Value, json};

use crate::assets;
use crate::data::{self, ExplainRequest, Source};

/// The file. It shows the state of this moment.
pub fn report(source: &Source) -> String {
    let data = Value::Object(content(source)).to_string();
    let styles: String = assets::STYLES.iter().map(|asset| asset.text).collect();
    let scripts: String = assets::SCRIPTS.iter().map(|asset| joined(asset.text)).collect();
    let page = assets::PAGE.replace(STYLE_LINK, &format!("<style>\n{styles}</style>"));
    // `<` would end the element inside a text of the data.
    let data =
        format!("<script type=\"application/json\" id=\"data\">{}</script>", data.replace('<', "\\u003c"));
    page.replace(SCRIPT_LINK, &format!("{data}\n<script type=\"module\">\n{scripts}</script>"))
}

const STYLE_LINK: &str = "<link rel=\"stylesheet\" href=\"style.css\">";
const SCRIPT_LINK: &str = "<script type=\"module\" src=\"app.js\"></script>";

/// A module as part of one script: without imports, and with all names at the top level.
fn joined(module: &str) -> String {
    let lines = module.lines().filter(|line| !line.starts_with("import "));
    lines.map(|line| format!("{}\n", line.strip_prefix("export ").unwrap_or(line))).collect()
}

/// The answers of the server, by path.
fn content(source: &Source) -> Map<String, Value> {
    let mut all = Map::new();
    all.insert("overview".to_owned(), data::overview(source));
    all.insert("metrics".to_owned(), data::metrics(source));
    all.insert("health".to_owned(), data::health(source));
    all.insert("policy".to_owned(), data::policy(source));
    all.insert(
        "lockfile".to_owned(),
        data::configured(source).unwrap_or_else(|message| json!({"compared": false, "error": message})),
    );
    let operations = data::operations(source);
    for name in
        operations["operations"].as_array().into_iter().flatten().filter_map(|one| one["name"].as_str())
    {
        let Some(mut operation) = data::operation(source, name) else { continue };
        if let Some(call) = operation["examples"][0]["call"].as_str() {
            let request =
                ExplainRequest { operation: name.to_owned(), call: call.to_owned(), device: String::new() };
            operation["explanation"] = data::explain(source, &request).unwrap_or_default();
        }
        all.insert(format!("operation/{name}"), operation);
    }
    all.insert("operations".to_owned(), operations);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_contains_the_links_that_a_report_replaces() {
        assert_eq!(assets::PAGE.matches(STYLE_LINK).count(), 1);
        assert_eq!(assets::PAGE.matches(SCRIPT_LINK).count(), 1);
    }

    #[test]
    fn modules_import_only_earlier_ones_and_fit_on_one_line() {
        let mut earlier: Vec<&str> = Vec::new();
        for asset in assets::SCRIPTS {
            for line in asset
                .text
                .lines()
                .filter(|line| line.contains("import ") && !line.trim_start().starts_with("//"))
            {
                let from = line.strip_prefix("import ").and_then(|line| line.split_once(" from \"./"));
                let from =
                    from.and_then(|(_, from)| from.strip_suffix("\";")).unwrap_or_else(|| panic!("{line}"));
                assert!(earlier.contains(&from), "{}: {line}", asset.name);
            }
            earlier.push(asset.name);
        }
    }

    #[test]
    fn top_level_names_are_unique_across_modules() {
        let mut names: Vec<&str> = Vec::new();
        for line in assets::SCRIPTS.iter().flat_map(|asset| asset.text.lines()) {
            let line = line.strip_prefix("export ").unwrap_or(line);
            let line = line.strip_prefix("async ").unwrap_or(line);
            let kinds = ["function ", "const ", "let ", "class "];
            let Some(rest) = kinds.iter().find_map(|kind| line.strip_prefix(kind)) else { continue };
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            names.push(&rest[..end]);
        }
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert!(count > 20 && names.len() == count, "{names:?}");
    }
}
