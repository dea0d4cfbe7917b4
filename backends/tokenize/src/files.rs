//! Files that define a tokenizer: `tokenizer.json`, SentencePiece models, tiktoken ranks, `tekken.json` and `vocab.txt`. The content
//! decides, because names differ: the `tokenizer.model` of Llama 3 has tiktoken ranks.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use lz_ops::tokenizer::{Tokenizer, TokenizerError, read_file};
use serde_json::{Map, Value, json};

use crate::encodings::{self, EncodingDefinition};
use crate::split::{CL100K, GPT2, O200K};

/// Loads a tokenizer from a file of any supported format. With `whole_texts`, truncation and padding in a `tokenizer.json` are ignored
/// instead of rejected.
pub fn from_file(path: impl AsRef<Path>, whole_texts: bool) -> Result<Tokenizer, TokenizerError> {
    let path = path.as_ref();
    read(path, &read_file(path)?, whole_texts).map_err(|error| error.in_file(path))
}

fn read(path: &Path, content: &[u8], whole_texts: bool) -> Result<Tokenizer, TokenizerError> {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    match Format::of(content, &name) {
        Format::Json => {
            let read = if whole_texts { Tokenizer::whole_texts } else { Tokenizer::from_json };
            // Other JSON files are recognized after the fact, so that a definition is parsed once.
            read(content).or_else(|error| other_json(content, &name, error))
        }
        Format::Tiktoken => built_in_ranks(content),
        Format::Vocabulary => vocabulary_with_config(content, path),
        Format::SentencePiece => Tokenizer::from_sentencepiece(content),
        Format::Other(what) => Err(wrong(what.to_owned())),
    }
}

/// The format of a file.
enum Format {
    Json,
    Tiktoken,
    Vocabulary,
    SentencePiece,
    /// No tokenizer; what it is instead.
    Other(&'static str),
}

impl Format {
    fn of(content: &[u8], name: &str) -> Format {
        let start = &content[..content.len().min(512)];
        if start.starts_with(b"version https://git-lfs") {
            return Format::Other("a Git LFS pointer, not the file itself; fetch it with `git lfs pull`");
        }
        if start.trim_ascii_start().is_empty() {
            return Format::Other("an empty file");
        }
        if start.starts_with(b"\xef\xbb\xbf") {
            return Format::Other("text with a byte-order mark; save it as UTF-8 without one");
        }
        let is_page = |tag: &&[u8]| {
            start.trim_ascii_start().get(..tag.len()).is_some_and(|found| found.eq_ignore_ascii_case(tag))
        };
        if [&b"<!doctype"[..], b"<html", b"<?xml"].iter().any(is_page) {
            return Format::Other("an HTML or XML page, such as the error page of a download");
        }
        if start.trim_ascii_start().starts_with(b"{") {
            return Format::Json;
        }
        if start.starts_with(b"#version") {
            return Format::Other(
                "a list of merges; a tokenizer also needs its vocabulary: load its `tokenizer.json`",
            );
        }
        let is_rank = start.split(|byte| *byte == b'\n').next().is_some_and(|line| rank_of(line).is_some());
        if is_rank || name.ends_with(".tiktoken") {
            return Format::Tiktoken;
        }
        if name.ends_with(".txt") {
            return Format::Vocabulary;
        }
        if name.ends_with(".json") {
            return Format::Json;
        }
        // A SentencePiece model begins with its list of pieces: field 1 of the message.
        if name.ends_with(".model") || start.starts_with(b"\x0a") {
            return Format::SentencePiece;
        }
        Format::Other(
            "a file of an unknown format; expected a tokenizer.json, a SentencePiece model, tiktoken ranks, a tekken.json or a vocab.txt",
        )
    }
}

fn wrong(message: String) -> TokenizerError {
    TokenizerError::Definition { message }
}

/// Maximum bytes of a token in a file of ranks. The longest of the known ones has 128; all splits of a token are looked up.
const MAX_RANKED_BYTES: usize = 512;
/// Maximum size of a `tekken.json`.
const MAX_TEKKEN_IDS: u32 = 1 << 21;

fn check_length(token: &[u8]) -> Result<(), TokenizerError> {
    if token.len() <= MAX_RANKED_BYTES {
        return Ok(());
    }
    let message = format!("a token has {} bytes; the maximum is {MAX_RANKED_BYTES}", token.len());
    Err(TokenizerError::Limit { part: "vocab".to_owned(), message })
}

/// The token and rank of a line of a tiktoken file.
fn rank_of(line: &[u8]) -> Option<(u32, Vec<u8>)> {
    let (token, rank) = std::str::from_utf8(line).ok()?.trim_end().split_once(' ')?;
    Some((rank.parse().ok()?, BASE64.decode(token).ok()?))
}

/// The tokens by rank of a tiktoken file.
fn ranks(content: &[u8]) -> Result<Vec<(u32, Vec<u8>)>, TokenizerError> {
    let lines = content.split(|byte| *byte == b'\n').enumerate();
    let lines = lines.filter(|(_, line)| !line.trim_ascii().is_empty());
    lines
        .map(|(number, line)| {
            let (rank, token) = rank_of(line).ok_or_else(|| {
                wrong(format!("line {} of the ranks is not a base64 token and its rank", number + 1))
            })?;
            check_length(&token)?;
            Ok((rank, token))
        })
        .collect()
}

/// The built-in encoding with these ranks: a tiktoken file has neither special tokens nor a split pattern.
fn built_in_ranks(content: &[u8]) -> Result<Tokenizer, TokenizerError> {
    let mut ranks = ranks(content)?;
    ranks.sort_unstable();
    encodings::of_ranks_alone(&ranks).unwrap_or_else(|| {
        let message = format!(
            "a file with {} tiktoken ranks that are not those of a built-in encoding; it states neither the split pattern nor the \
             special tokens: pass both to `from_tiktoken`",
            ranks.len()
        );
        Err(wrong(message))
    })
}

/// Loads a file of tiktoken ranks. `pattern` is a regular expression, or the name of an encoding whose pattern is used.
pub fn from_tiktoken(
    path: impl AsRef<Path>,
    pattern: &str,
    special: Vec<(u32, String)>,
) -> Result<Tokenizer, TokenizerError> {
    let path = path.as_ref();
    let ranks = ranks(&read_file(path)?).map_err(|error| error.in_file(path))?;
    let expression = match pattern {
        "cl100k_base" => CL100K,
        "o200k_base" | "o200k_harmony" => O200K,
        "gpt2" | "r50k_base" | "p50k_base" | "p50k_edit" => GPT2,
        other => other,
    };
    encodings::encoding_of_ranks(ranks, special, expression)
}

/// Loads JSON that is not a `tokenizer.json`, or says what it is.
fn other_json(content: &[u8], name: &str, error: TokenizerError) -> Result<Tokenizer, TokenizerError> {
    let Ok(Value::Object(parts)) = serde_json::from_slice(content) else { return Err(error) };
    if parts.contains_key("config") && (parts.contains_key("vocab") || name == "tekken.json") {
        return tekken(&parts);
    }
    let what = if parts.contains_key("model") {
        return Err(error);
    } else if parts.contains_key("tokenizer_class") || parts.contains_key("added_tokens_decoder") {
        "the configuration of a tokenizer; load the `tokenizer.json` next to it"
    } else if parts.contains_key("model_type") || parts.contains_key("architectures") {
        "the configuration of a model; load the `tokenizer.json` next to it"
    } else if parts.keys().any(|key| key.ends_with("_token")) {
        "a map of special tokens; load the `tokenizer.json` next to it"
    } else if !parts.is_empty() && parts.values().all(Value::is_u64) {
        "a vocabulary without merges; load the `tokenizer.json` next to it"
    } else {
        "a JSON object without the key `model`, which every `tokenizer.json` has"
    };
    Err(wrong(what.to_owned()))
}

/// The tokenizer of a `tekken.json` (Mistral). Ids of special tokens come first, then the ranks. Like the library of its authors, it never
/// takes special tokens from a text, and adds none.
fn tekken(parts: &Map<String, Value>) -> Result<Tokenizer, TokenizerError> {
    let missing = |what: &str| wrong(format!("a `tekken.json` without a valid {what}"));
    let config = &parts["config"];
    let number = |name: &str| {
        let found = config[name].as_u64().and_then(|number| u32::try_from(number).ok());
        found.ok_or_else(|| missing(&format!("`config.{name}`")))
    };
    let (size, reserved) = (number("default_vocab_size")?, number("default_num_special_tokens")?);
    let expression = config["pattern"].as_str().ok_or_else(|| missing("`config.pattern`"))?;
    if size > MAX_TEKKEN_IDS {
        let message = format!("`config.default_vocab_size` is {size}; the maximum is {MAX_TEKKEN_IDS}");
        return Err(TokenizerError::Limit { part: "config".to_owned(), message });
    }
    let used = size.checked_sub(reserved).ok_or_else(|| missing("`config.default_vocab_size`"))?;
    let token = |entry: &Value| {
        let rank = entry["rank"].as_u64().and_then(|rank| u32::try_from(rank).ok())?;
        Some((rank, BASE64.decode(entry["token_bytes"].as_str()?).ok()?))
    };
    let tokens: Option<Vec<(u32, Vec<u8>)>> =
        parts["vocab"].as_array().into_iter().flatten().map(token).collect();
    let tokens = tokens.ok_or_else(|| missing("`vocab`: each entry has `rank` and `token_bytes`"))?;
    tokens.iter().try_for_each(|(_, token)| check_length(token))?;
    let tokens = tokens.into_iter().filter(|(rank, _)| *rank < used);
    let tokens = tokens.map(|(rank, bytes)| (rank + reserved, bytes)).collect();
    let mut special: Vec<(u32, String)> = (0..reserved).map(|id| (id, format!("<SPECIAL_{id}>"))).collect();
    for entry in parts.get("special_tokens").and_then(Value::as_array).into_iter().flatten() {
        let id = entry["rank"].as_u64().and_then(|rank| usize::try_from(rank).ok());
        let slot = id.and_then(|id| special.get_mut(id));
        match (slot, entry["token_str"].as_str()) {
            (Some(slot), Some(text)) => text.clone_into(&mut slot.1),
            _ => {
                return Err(missing(
                    "`special_tokens`: each entry has a `rank` below their number and `token_str`",
                ));
            }
        }
    }
    let definition = EncodingDefinition { tokens, special, expression, special_is_text: true };
    definition.tokenizer()
}

/// Options of a `vocab.txt`, which contains only tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VocabularyOptions {
    /// Whether texts are converted to lowercase.
    pub lowercase: bool,
    /// Whether accents are removed; if unset, with `lowercase`.
    pub strip_accents: Option<bool>,
    /// Whether Chinese characters are separate words.
    pub chinese_characters: bool,
}

/// Loads a `vocab.txt` (WordPiece as in BERT).
pub fn from_vocabulary(
    path: impl AsRef<Path>,
    options: VocabularyOptions,
) -> Result<Tokenizer, TokenizerError> {
    let path = path.as_ref();
    word_piece(&read_file(path)?, options).map_err(|error| error.in_file(path))
}

/// Loads a `vocab.txt` with the options in the `tokenizer_config.json` next to it.
fn vocabulary_with_config(content: &[u8], path: &Path) -> Result<Tokenizer, TokenizerError> {
    let config = read_file(&path.with_file_name("tokenizer_config.json")).ok();
    let config: Option<Value> = config.and_then(|config| serde_json::from_slice(&config).ok());
    let lowercase = config.as_ref().and_then(|config| config["do_lower_case"].as_bool());
    let (Some(config), Some(lowercase)) = (config, lowercase) else {
        return Err(wrong(
            "a vocabulary does not state whether texts are converted to lowercase, and there is no `tokenizer_config.json` next to it \
             with `do_lower_case`: use `from_vocabulary`"
                .to_owned(),
        ));
    };
    let options = VocabularyOptions {
        lowercase,
        strip_accents: config["strip_accents"].as_bool(),
        chinese_characters: config["tokenize_chinese_chars"].as_bool().unwrap_or(true),
    };
    word_piece(content, options)
}

fn word_piece(content: &[u8], options: VocabularyOptions) -> Result<Tokenizer, TokenizerError> {
    let text = std::str::from_utf8(content)
        .map_err(|error| wrong(format!("the vocabulary is not UTF-8: {error}")))?;
    let vocabulary: Map<String, Value> =
        text.lines().zip(0u32..).map(|(token, id)| (token.to_owned(), id.into())).collect();
    let id = |token: &str| {
        vocabulary
            .get(token)
            .cloned()
            .ok_or_else(|| wrong(format!("the vocabulary has no token {token}; expected one per line")))
    };
    id("[UNK]")?;
    let added: Vec<Value> = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        .iter()
        .filter_map(|token| {
            let id = vocabulary.get(*token)?;
            Some(json!({"id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                        "normalized": false, "special": true}))
        })
        .collect();
    let definition = json!({
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": options.chinese_characters,
                       "strip_accents": options.strip_accents, "lowercase": options.lowercase},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", id("[SEP]")?], "cls": ["[CLS]", id("[CLS]")?]},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                  "max_input_chars_per_word": 100, "vocab": vocabulary},
    });
    Tokenizer::from_json(definition.to_string().as_bytes())
}
