//! Parses the structure of a `tokenizer.json`: its model kind and every part that can change a token. A part that is not fully
//! supported makes the parser return a reason; nothing is approximated.

use lz_core::{Reason, ReasonCode};
use serde_json::Value;

use crate::byte_alphabet;
use crate::nfc::Form;
use crate::normalization::{Normalization, Step};
use crate::split::{GPT2, Pattern, Rules, Splitter, Stage, Stages, Text};

/// A complete byte-level BPE definition.
pub struct ByteLevelBpe {
    /// Tokens of the model, spelled in the byte alphabet.
    pub vocabulary: Vocabulary,
    /// BPE merges in rank order.
    pub merges: Vec<(String, String)>,
    /// The mark of tokens that end a piece (`end_of_word_suffix`), such as `</w>`.
    pub end_mark: Option<String>,
    /// Whether a piece that is in the vocabulary becomes that token without merging (`ignore_merges`).
    pub ignores_merges: bool,
    /// The pretokenizer.
    pub splitter: Splitter,
    /// The normalizer.
    pub normalization: Normalization,
    /// Whether a space is prepended to texts that do not begin with one (`add_prefix_space`).
    pub prefix_space: bool,
    /// Whether offsets exclude the spaces of a token (`trim_offsets`).
    pub trim_offsets: Option<TrimOffsets>,
    /// Added tokens, which are split off before normalization.
    pub added: Vec<AddedToken>,
    /// Ids that the post-processor prepends.
    pub before: Vec<u32>,
    /// Ids that the post-processor appends.
    pub after: Vec<u32>,
}

/// How offsets are trimmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrimOffsets {
    /// Whether a single leading space of the first token stays in its range, because it may be the prefix space.
    pub keeps_first: bool,
}

/// An added token (an entry of `added_tokens`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddedToken {
    /// Token id.
    pub id: u32,
    /// Token text.
    pub content: String,
    /// Matches only as a whole word.
    pub single_word: bool,
    /// Includes the whitespace before it (`lstrip`).
    pub strips_left: bool,
    /// Includes the whitespace after it (`rstrip`).
    pub strips_right: bool,
    /// Matched in the normalized text instead of the raw text.
    pub normalized: bool,
    /// A special token: skipped by decoding with `skip_special_tokens`.
    pub special: bool,
    /// Never matched in texts: a special token of a definition with `split_special_tokens`.
    pub is_text: bool,
}

/// The reason why a definition is not supported: what is required and what was found.
pub fn declined(code: ReasonCode, required: &str, found: impl Into<String>) -> Reason {
    Reason::new(code).argument("tokenizer").required(required).found(found)
}

/// The `type` of a part; `none` if it has no type.
pub fn kind(value: &Value) -> &str {
    value.get("type").and_then(Value::as_str).unwrap_or("none")
}

/// Model kind: BPE over bytes.
pub const BYTE_BPE: &str = "a byte-level BPE model";
/// Model kind: BPE over characters, as SentencePiece trains it.
pub const CHAR_BPE: &str = "a character-level BPE model";
/// Model kind: greedy longest match.
pub const WORD_PIECE: &str = "a WordPiece model";
/// Model kind: unigram language model.
pub const UNIGRAM: &str = "a unigram model";

/// Model kind: a SentencePiece `.model` file.
pub const SENTENCEPIECE: &str = "a SentencePiece model";

/// The reason of a kernel that supports another model kind.
pub fn other_model(required: &str, found: &str) -> Reason {
    Reason::new(ReasonCode::TokenizerModelUnsupported).argument("tokenizer").required(required).found(found)
}

/// The model kind of a definition. Old files omit the type: only BPE models have merges, and only unigram models have scores.
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
        _ => "another model kind",
    }
}

/// A boolean setting.
pub fn flag(value: &Value, name: &str, default: bool) -> bool {
    value.get(name).and_then(Value::as_bool).unwrap_or(default)
}

/// A part as text for messages, shortened to 80 characters.
pub fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(80) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// Parses a definition as byte-level BPE, or returns the part that is not supported.
pub fn byte_level_bpe(definition: &Value) -> Result<ByteLevelBpe, Reason> {
    let model = &definition["model"];
    let (vocabulary, merges) = bpe_model(model)?;
    let end_mark = end_mark(model).map(str::to_owned);
    if flag(model, "byte_fallback", false) {
        let required = "`byte_fallback` false (byte-level tokens)";
        return Err(declined(ReasonCode::TokenizerModelUnsupported, required, "`byte_fallback` true"));
    }
    if end_mark.is_some() && flag(model, "ignore_merges", false) {
        let required = "not both `end_of_word_suffix` and `ignore_merges`";
        return Err(declined(ReasonCode::TokenizerModelUnsupported, required, "both"));
    }
    let (splitter, prefix_space) = pre_tokenizer(&definition["pre_tokenizer"])?;
    let mut normalization = Normalization::default();
    add_normalizer(&definition["normalizer"], &mut normalization.0)?;
    if kind(&definition["decoder"]) != "ByteLevel" {
        let found = shown(&definition["decoder"]);
        return Err(declined(ReasonCode::TokenizerModelUnsupported, "a byte-level decoder", found));
    }
    let mut post = Post::default();
    post.read(&definition["post_processor"])?;
    Ok(ByteLevelBpe {
        vocabulary,
        merges,
        end_mark,
        ignores_merges: flag(model, "ignore_merges", false),
        splitter,
        normalization,
        prefix_space,
        trim_offsets: post.trim_offsets,
        added: added_tokens(definition)?,
        before: post.before,
        after: post.after,
    })
}

/// Rejects definitions with sparse ids: candidates allocate tables up to the largest id, the definition itself does not.
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
        let required = format!("ids of at most {bound} for {count} tokens");
        return Err(declined(ReasonCode::TokenizerModelUnsupported, &required, format!("id {largest}")));
    }
    Ok(())
}

/// The largest id may be `SPARSE_FACTOR` times the number of tokens plus `SPARSE_IDS`.
const SPARSE_FACTOR: u64 = 4;
const SPARSE_IDS: u64 = 1 << 16;

/// Tokens and their ids.
pub type Vocabulary = Vec<(String, u32)>;

/// Parses a vocabulary: an object that maps tokens to ids.
pub fn vocabulary(value: &Value) -> Result<Vocabulary, Reason> {
    let wrong = |what: &str| declined(ReasonCode::TokenizerModelUnsupported, what, shown(value));
    let tokens = value.as_object().ok_or_else(|| wrong("a vocabulary that maps tokens to ids"))?;
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok()).filter(|id| *id < 1 << 30);
    let read: Option<Vocabulary> =
        tokens.iter().map(|(token, value)| Some((token.clone(), id(value)?))).collect();
    read.ok_or_else(|| wrong("ids below 2^30"))
}

type Model = (Vocabulary, Vec<(String, String)>);

/// Parses a BPE model: its vocabulary and its merges.
pub fn bpe_model(model: &Value) -> Result<Model, Reason> {
    let wrong =
        |what: &str, found: &Value| Err(declined(ReasonCode::TokenizerModelUnsupported, what, shown(found)));
    // Old files omit the type; only BPE models have merges.
    if kind(model) != "BPE" && !(model["type"].is_null() && model["merges"].is_array()) {
        return wrong("a BPE model", &model["type"]);
    }
    if model["continuing_subword_prefix"].as_str().is_some_and(|text| !text.is_empty()) {
        return wrong("no `continuing_subword_prefix`", &model["continuing_subword_prefix"]);
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
        None => Err(declined(
            ReasonCode::MergesHashMismatch,
            "`merges` as a list of token pairs",
            shown(&model["merges"]),
        )),
    }
}

/// The `end_of_word_suffix` of a BPE model, if it has one.
pub fn end_mark(model: &Value) -> Option<&str> {
    model["end_of_word_suffix"].as_str().filter(|mark| !mark.is_empty())
}

/// Adds the steps of a normalizer.
fn add_normalizer(normalizer: &Value, steps: &mut Vec<Step>) -> Result<(), Reason> {
    let (pattern, content) = (&normalizer["pattern"]["Regex"], normalizer["content"].as_str());
    match kind(normalizer) {
        "none" if normalizer.is_null() => {}
        "NFC" => steps.push(Step::Form(Form::Nfc)),
        "NFKC" => steps.push(Step::Form(Form::Nfkc)),
        "Lowercase" => steps.push(Step::Lowercase),
        "Replace" if pattern == "\\s+" && content == Some(" ") => steps.push(Step::CollapseSpaces),
        "Sequence" => {
            let parts = normalizer["normalizers"].as_array();
            let parts = parts.ok_or_else(|| unsupported_normalizer(normalizer))?;
            return parts.iter().try_for_each(|part| add_normalizer(part, steps));
        }
        _ => return Err(unsupported_normalizer(normalizer)),
    }
    Ok(())
}

fn unsupported_normalizer(found: &Value) -> Reason {
    let required = "NFC, NFKC, lowercase, runs of whitespace as one space, or no normalizer";
    declined(ReasonCode::NormalizerMismatch, required, shown(found))
}

/// Maximum number of stages of a splitter; each has tables of some hundred kilobytes.
const MAX_STAGES: usize = 8;

fn pre_tokenizer(value: &Value) -> Result<(Splitter, bool), Reason> {
    let wrong = |part: &Value| {
        let required = "byte-level, after splits by digits, punctuation or supported regular expressions";
        declined(ReasonCode::PretokenizerMismatch, required, shown(part))
    };
    let single = std::slice::from_ref(value);
    let parts = match kind(value) {
        "Sequence" => value["pretokenizers"].as_array().map(Vec::as_slice).unwrap_or_default(),
        _ => single,
    };
    let Some(position) = parts.iter().position(|part| kind(part) == "ByteLevel") else {
        return Err(wrong(value));
    };
    let (splits, bytes, later) = (&parts[..position], &parts[position], &parts[position + 1..]);
    let (splits_itself, prefix_space) =
        (flag(bytes, "use_regex", true), flag(bytes, "add_prefix_space", true));
    // A prefix space after a split would be added to every piece.
    if prefix_space && !splits.is_empty() || parts.len() > MAX_STAGES {
        return Err(wrong(value));
    }
    match (splits, splits_itself, later) {
        ([], true, []) => return Ok((Splitter::Known(Pattern::Gpt2), prefix_space)),
        ([], false, []) => return Err(wrong(value)),
        ([split], false, []) => {
            if let Some(pattern) = known_pattern(split) {
                return Ok((Splitter::Known(pattern), false));
            }
        }
        _ => {}
    }
    let own = splits_itself
        .then(|| Stage::of_expression(GPT2, true, true, Text::Characters).ok_or_else(|| wrong(bytes)));
    let before = splits.iter().map(|split| stage(split, Text::Characters).ok_or_else(|| wrong(split)));
    let has_later = !later.is_empty();
    // Splits after the byte-level one see the byte alphabet instead of characters.
    let later = later.iter().map(|split| stage(split, Text::ByteAlphabet).ok_or_else(|| wrong(split)));
    let rules = if splits_itself || has_later { None } else { ascii_rules(splits) };
    let stages = before.chain(own).chain(later).collect::<Result<Vec<Stage>, Reason>>()?;
    Ok((Splitter::Compiled(Stages::from(stages).with_ascii_rules(rules)), prefix_space))
}

/// Whether a `Split` keeps matches and the text between them, if its behavior is supported.
fn kept_parts(split: &Value) -> Option<(bool, bool)> {
    match (split["behavior"].as_str()?, flag(split, "invert", false)) {
        ("Isolated", _) => Some((true, true)),
        ("Removed", false) => Some((false, true)),
        ("Removed", true) => Some((true, false)),
        _ => None,
    }
}

/// The hand-written splitter of a `Split`. The well-known expressions leave no text between matches.
fn known_pattern(split: &Value) -> Option<Pattern> {
    let (keeps_matches, _) = kept_parts(split).filter(|_| kind(split) == "Split")?;
    split["pattern"]["Regex"].as_str().and_then(Pattern::of_expression).filter(|_| keeps_matches)
}

/// How splits by expressions split ASCII, if that is known.
fn ascii_rules(splits: &[Value]) -> Option<Rules> {
    fn expression(split: &Value) -> Option<&str> {
        kept_parts(split).filter(|kept| kind(split) == "Split" && *kept == (true, true))?;
        split["pattern"]["Regex"].as_str()
    }
    Rules::of_expressions(&splits.iter().map(expression).collect::<Option<Vec<&str>>>()?)
}

/// One stage of a splitter; `None` if it is not supported.
fn stage(split: &Value, text: Text) -> Option<Stage> {
    match kind(split) {
        "Split" => {
            let (keeps_matches, keeps_gaps) = kept_parts(split)?;
            Stage::of_expression(split["pattern"]["Regex"].as_str()?, keeps_matches, keeps_gaps, text)
        }
        "Digits" => Stage::digits(flag(split, "individual_digits", false), text),
        "Punctuation" => match split["behavior"].as_str().unwrap_or("Isolated") {
            "Isolated" => Stage::punctuation(true, text),
            "Contiguous" => Stage::punctuation(false, text),
            _ => None,
        },
        _ => None,
    }
}

/// Parses `added_tokens`.
pub fn added_tokens(definition: &Value) -> Result<Vec<AddedToken>, Reason> {
    let value = &definition["added_tokens"];
    let split_special = flag(definition, "split_special_tokens", false);
    let list = value.as_array().map(Vec::as_slice).unwrap_or_default();
    let one = |token: &Value| {
        Some(AddedToken {
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
    let read: Option<Vec<AddedToken>> = list.iter().map(one).collect();
    read.ok_or_else(|| {
        declined(ReasonCode::AddedTokensMismatch, "added tokens with `id` and `content`", shown(value))
    })
}

/// The effect of the post-processor on a single text.
#[derive(Default)]
pub struct Post {
    /// How offsets are trimmed.
    pub trim_offsets: Option<TrimOffsets>,
    /// Ids that it prepends.
    pub before: Vec<u32>,
    /// Ids that it appends.
    pub after: Vec<u32>,
}

impl Post {
    /// Adds the effect of a post-processor, or returns a reason if it does more than trim offsets and add tokens.
    pub fn read(&mut self, value: &Value) -> Result<(), Reason> {
        let wrong = || {
            let required = "a post-processor that only adds tokens before and after a text";
            declined(ReasonCode::SpecialTokensMismatch, required, shown(value))
        };
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
                // A template that repeats the sequence is not supported.
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
    /// The bytes of each id of the model, without the mark of tokens that end a piece; empty for ids without a token and for tokens
    /// outside the byte alphabet.
    pub fn token_bytes(&self) -> Vec<Vec<u8>> {
        let size = self.vocabulary.iter().map(|(_, id)| *id as usize + 1).max().unwrap_or(0);
        let mut bytes = vec![Vec::new(); size];
        for (token, id) in &self.vocabulary {
            let mark = self.end_mark.as_deref().unwrap_or_default();
            bytes[*id as usize] =
                byte_alphabet::bytes_of(token.strip_suffix(mark).unwrap_or(token)).unwrap_or_default();
        }
        bytes
    }
}
