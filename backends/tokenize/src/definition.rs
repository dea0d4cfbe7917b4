//! A `tokenizer.json` read for its structure: what kind of tokenizer it is, and every part that can change a token. A part that
//! is not understood whole is a reason to decline, never a guess.

use lz_core::{Reason, ReasonCode};
use serde_json::Value;

use crate::alphabet;
use crate::native::split::Pattern;

/// A byte-level BPE, all of it.
pub struct ByteLevelBpe {
    /// Tokens of the model by their text in the byte alphabet.
    pub vocabulary: Vocabulary,
    /// Pairs that are joined, in the order of their ranks.
    pub merges: Vec<(String, String)>,
    /// Whether a piece that is a token as a whole is that token, whatever the merges say.
    pub ignores_merges: bool,
    /// How texts are split.
    pub pattern: Pattern,
    /// Whether texts are brought into Unicode's normal form C first.
    pub nfc: bool,
    /// Whether a space is put before every text that has none.
    pub prefix_space: bool,
    /// Whether offsets leave out the spaces of a token, and whether a single first one is then kept.
    pub trim_offsets: Option<TrimOffsets>,
    /// Tokens that are cut out of texts before all else.
    pub added: Vec<Added>,
    /// Ids that the post-processor puts before a text.
    pub before: Vec<u32>,
    /// And those that it puts after.
    pub after: Vec<u32>,
}

/// How offsets are trimmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrimOffsets {
    /// A single leading space of the first token is kept, because it was put there.
    pub keeps_first: bool,
}

/// A token that is cut out of texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Added {
    /// Its id.
    pub id: u32,
    /// Its text.
    pub content: String,
    /// Only where it is a word of its own.
    pub single_word: bool,
    /// White space before it belongs to it.
    pub strips_left: bool,
    /// White space after it belongs to it.
    pub strips_right: bool,
    /// Looked for after normalisation instead of before.
    pub normalized: bool,
    /// Left out when decoding if asked for.
    pub special: bool,
    /// Never cut out: a text that has it has only its text.
    pub is_text: bool,
}

/// Why a definition is none of those that are understood.
pub fn declined(code: ReasonCode, required: &str, found: impl Into<String>) -> Reason {
    Reason::new(code).argument("tokenizer").required(required).found(found)
}

/// The type of a part; `none` without one.
pub fn kind(value: &Value) -> &str {
    value.get("type").and_then(Value::as_str).unwrap_or("none")
}

/// Merges of bytes.
pub const BYTE_BPE: &str = "byte-level BPE";
/// Merges of characters.
pub const CHAR_BPE: &str = "BPE of characters";
/// The longest tokens of words.
pub const WORD_PIECE: &str = "WordPiece";
/// The likeliest tokens of words.
pub const UNIGRAM: &str = "unigrams";

/// A SentencePiece file.
pub const SENTENCEPIECE: &str = "SentencePiece model";

/// The model is of another kind than a kernel is for.
pub fn other_model(required: &str, found: &str) -> Reason {
    Reason::new(ReasonCode::TokenizerModelUnsupported).argument("tokenizer").required(required).found(found)
}

/// What kind of model a definition has. Old files leave the type out; only BPE has merges, and only unigrams have scores.
pub fn model_kind(definition: &Value) -> &'static str {
    let model = &definition["model"];
    match kind(model) {
        "WordPiece" => WORD_PIECE,
        "Unigram" => UNIGRAM,
        "SentencePiece" => SENTENCEPIECE,
        "none" if model["vocab"].is_array() => UNIGRAM,
        "BPE" if kind(&definition["decoder"]) != "ByteLevel" => CHAR_BPE,
        "BPE" => BYTE_BPE,
        "none" if model["merges"].is_array() && kind(&definition["decoder"]) != "ByteLevel" => CHAR_BPE,
        "none" if model["merges"].is_array() => BYTE_BPE,
        _ => "another model",
    }
}

/// A setting that is true or false.
pub fn flag(value: &Value, name: &str, default: bool) -> bool {
    value.get(name).and_then(Value::as_bool).unwrap_or(default)
}

/// A part as messages show it.
pub fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(80) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// Reads a definition as byte-level BPE, or says which part is something else.
pub fn byte_level_bpe(definition: &Value) -> Result<ByteLevelBpe, Reason> {
    let model = &definition["model"];
    let (vocabulary, merges) = bpe_model(model)?;
    if flag(model, "byte_fallback", false) {
        let required = "bytes as tokens, not as a last resort";
        return Err(declined(ReasonCode::TokenizerModelUnsupported, required, "byte_fallback"));
    }
    let (pattern, prefix_space) = pre_tokenizer(&definition["pre_tokenizer"])?;
    let nfc = match &definition["normalizer"] {
        Value::Null => false,
        normalizer if kind(normalizer) == "NFC" => true,
        other => return Err(declined(ReasonCode::NormalizerMismatch, "no normaliser or NFC", shown(other))),
    };
    if kind(&definition["decoder"]) != "ByteLevel" {
        let found = shown(&definition["decoder"]);
        return Err(declined(ReasonCode::TokenizerModelUnsupported, "a byte-level decoder", found));
    }
    let mut post = Post::default();
    post.read(&definition["post_processor"])?;
    Ok(ByteLevelBpe {
        vocabulary,
        merges,
        ignores_merges: flag(model, "ignore_merges", false),
        pattern,
        nfc,
        prefix_space,
        trim_offsets: post.trim_offsets,
        added: added_tokens(definition)?,
        before: post.before,
        after: post.after,
    })
}

/// Declines definitions whose ids are far apart: candidates have tables with an entry for every id up to the largest, the definition
/// itself does not.
pub fn check_ids(definition: &Value) -> Result<(), Reason> {
    let vocabulary = definition["model"]["vocab"].as_object();
    let added = definition["added_tokens"].as_array().map(Vec::as_slice).unwrap_or_default();
    let ids = vocabulary
        .into_iter()
        .flat_map(|tokens| tokens.values())
        .chain(added.iter().map(|token| &token["id"]));
    let (mut count, mut largest) = (0, 0);
    for id in ids.filter_map(Value::as_u64) {
        count += 1;
        largest = largest.max(id);
    }
    if let Some(tokens) = definition["model"]["vocab"].as_array() {
        count += tokens.len() as u64;
    }
    let bound = SPARSE_FACTOR * count + SPARSE_IDS;
    if largest > bound {
        let required = format!("ids below {bound} for {count} tokens");
        return Err(declined(ReasonCode::TokenizerModelUnsupported, &required, largest.to_string()));
    }
    Ok(())
}

/// Ids may be this many times as large as the number of tokens, and this much more.
const SPARSE_FACTOR: u64 = 4;
const SPARSE_IDS: u64 = 1 << 16;

/// Tokens and their ids.
pub type Vocabulary = Vec<(String, u32)>;

/// Reads a vocabulary that gives tokens their ids.
pub fn vocabulary(value: &Value) -> Result<Vocabulary, Reason> {
    let wrong = |what: &str| declined(ReasonCode::TokenizerModelUnsupported, what, shown(value));
    let tokens = value.as_object().ok_or_else(|| wrong("a vocabulary"))?;
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok()).filter(|id| *id < 1 << 30);
    let read: Option<Vocabulary> =
        tokens.iter().map(|(token, value)| Some((token.clone(), id(value)?))).collect();
    read.ok_or_else(|| wrong("ids below 2^30"))
}

type Model = (Vocabulary, Vec<(String, String)>);

/// Reads a BPE model: its vocabulary and its merges.
pub fn bpe_model(model: &Value) -> Result<Model, Reason> {
    let wrong =
        |what: &str, found: &Value| Err(declined(ReasonCode::TokenizerModelUnsupported, what, shown(found)));
    // Old files leave the type out; only BPE has merges.
    if kind(model) != "BPE" && !(model["type"].is_null() && model["merges"].is_array()) {
        return wrong("a BPE model", &model["type"]);
    }
    for name in ["continuing_subword_prefix", "end_of_word_suffix"] {
        if model[name].as_str().is_some_and(|text| !text.is_empty()) {
            return wrong("no prefixes and suffixes of words", &model[name]);
        }
    }
    let tokens = vocabulary(&model["vocab"])?;
    let pair = |merge: &Value| match merge {
        Value::String(text) => {
            let (left, right) = text.split_once(' ')?;
            (!right.contains(' ')).then(|| (left.to_owned(), right.to_owned()))
        }
        Value::Array(pair) => match pair.as_slice() {
            [Value::String(left), Value::String(right)] => Some((left.clone(), right.clone())),
            _ => None,
        },
        _ => None,
    };
    let merges: Option<Vec<(String, String)>> =
        model["merges"].as_array().and_then(|merges| merges.iter().map(pair).collect());
    match merges {
        Some(merges) => Ok((tokens, merges)),
        None => Err(declined(ReasonCode::MergesHashMismatch, "pairs of tokens", "other merges")),
    }
}

fn pre_tokenizer(value: &Value) -> Result<(Pattern, bool), Reason> {
    let wrong = || {
        let required = "a splitter of GPT-2, cl100k, Llama 3, Qwen or o200k, and bytes";
        declined(ReasonCode::PretokenizerMismatch, required, shown(value))
    };
    match kind(value) {
        "ByteLevel" if flag(value, "use_regex", true) => {
            Ok((Pattern::Gpt2, flag(value, "add_prefix_space", true)))
        }
        "Sequence" => {
            let parts = value["pretokenizers"].as_array().map(Vec::as_slice).unwrap_or_default();
            let [split, bytes] = parts else { return Err(wrong()) };
            let plain = kind(split) == "Split"
                && split["behavior"] == "Isolated"
                && !flag(split, "invert", false)
                && kind(bytes) == "ByteLevel"
                && !flag(bytes, "use_regex", true)
                && !flag(bytes, "add_prefix_space", true);
            let expression = split["pattern"]["Regex"].as_str().filter(|_| plain);
            expression.and_then(Pattern::of_expression).map(|pattern| (pattern, false)).ok_or_else(wrong)
        }
        _ => Err(wrong()),
    }
}

/// Reads the tokens that are cut out of texts.
pub fn added_tokens(definition: &Value) -> Result<Vec<Added>, Reason> {
    let value = &definition["added_tokens"];
    let split_special = flag(definition, "split_special_tokens", false);
    let list = value.as_array().map(Vec::as_slice).unwrap_or_default();
    let one = |token: &Value| {
        Some(Added {
            id: token["id"].as_u64().and_then(|id| u32::try_from(id).ok())?,
            content: token["content"].as_str()?.to_owned(),
            single_word: flag(token, "single_word", false),
            strips_left: flag(token, "lstrip", false),
            strips_right: flag(token, "rstrip", false),
            normalized: flag(token, "normalized", true),
            special: flag(token, "special", false),
            is_text: split_special && flag(token, "special", false),
        })
    };
    let read: Option<Vec<Added>> = list.iter().map(one).collect();
    read.ok_or_else(|| {
        declined(ReasonCode::AddedTokensMismatch, "tokens with an id and a text", shown(value))
    })
}

/// What the post-processor does to one text.
#[derive(Default)]
pub struct Post {
    /// How offsets are trimmed.
    pub trim_offsets: Option<TrimOffsets>,
    /// Ids that it puts before the text.
    pub before: Vec<u32>,
    /// And those that it puts after.
    pub after: Vec<u32>,
}

impl Post {
    /// Adds what a post-processor does, or says that it does something else.
    pub fn read(&mut self, value: &Value) -> Result<(), Reason> {
        let wrong = || declined(ReasonCode::SpecialTokensMismatch, "tokens around a text", shown(value));
        let trims = |default| {
            flag(value, "trim_offsets", default)
                .then(|| TrimOffsets { keeps_first: flag(value, "add_prefix_space", true) })
        };
        match kind(value) {
            "none" if value.is_null() => Ok(()),
            "ByteLevel" => {
                self.trim_offsets = self.trim_offsets.or(trims(true));
                Ok(())
            }
            "Sequence" => {
                let parts = value["processors"].as_array().ok_or_else(wrong)?;
                parts.iter().try_for_each(|part| self.read(part))
            }
            "TemplateProcessing" => self.template(value).ok_or_else(wrong),
            "RobertaProcessing" | "BertProcessing" => {
                if kind(value) == "RobertaProcessing" {
                    self.trim_offsets = self.trim_offsets.or(trims(true));
                }
                let id = |name: &str| value[name][1].as_u64().and_then(|id| u32::try_from(id).ok());
                let (Some(first), Some(last)) = (id("cls"), id("sep")) else { return Err(wrong()) };
                self.before.insert(0, first);
                self.after.push(last);
                Ok(())
            }
            _ => Err(wrong()),
        }
    }

    fn template(&mut self, value: &Value) -> Option<()> {
        let (mut before, mut after, mut seen) = (Vec::new(), Vec::new(), false);
        for piece in value["single"].as_array()? {
            if piece.get("Sequence").is_some() {
                // A text that is there twice is not a text with tokens around it.
                if std::mem::replace(&mut seen, true) {
                    return None;
                }
                continue;
            }
            let name = piece["SpecialToken"]["id"].as_str()?;
            for id in value["special_tokens"][name]["ids"].as_array()? {
                let id = id.as_u64().and_then(|id| u32::try_from(id).ok())?;
                if seen { after.push(id) } else { before.push(id) }
            }
        }
        before.append(&mut self.before);
        self.before = before;
        self.after.append(&mut after);
        seen.then_some(())
    }
}

impl ByteLevelBpe {
    /// The bytes of each id of the model; nothing for ids that it does not have, or whose token is not made of bytes.
    pub fn token_bytes(&self) -> Vec<Vec<u8>> {
        let size = self.vocabulary.iter().map(|(_, id)| *id as usize + 1).max().unwrap_or(0);
        let mut bytes = vec![Vec::new(); size];
        for (token, id) in &self.vocabulary {
            bytes[*id as usize] = alphabet::bytes_of(token).unwrap_or_default();
        }
        bytes
    }
}
