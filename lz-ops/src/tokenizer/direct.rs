//! Builds a tokenizer of the `tokenizers` crate from a parsed definition.
//!
//! The crate's own deserializer copies the model three times: into a buffer, because the model is an untagged enum, into a
//! `serde_json::Value`, and from there into strings. Here the vocabulary and the merges are copied once, from the tree that the limits and
//! the digest are computed from. Everything else is small and is parsed by the crate.
//!
//! Only definitions of the common form are built here. For all others, and for invalid ones, [`build`] returns `None`: the crate then
//! parses the text, and reports errors.

use std::borrow::Cow;

use tokenizers::models::bpe::{BPE, Merges, Vocab};
use tokenizers::models::unigram::Unigram;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::{AddedToken, ModelWrapper, Tokenizer};

use super::json::Json;
use super::model::SPLIT_SPECIAL_TOKENS;

/// The parts of a model that are proportional to the number of its tokens.
const LARGE: [&str; 2] = ["vocab", "merges"];

/// The tokenizer of a definition, without its key [`SPLIT_SPECIAL_TOKENS`]; `None` if the crate must parse the text.
pub fn build(definition: &Json<'_>) -> Option<Tokenizer> {
    let model = unique(definition, "model")?;
    let added = added_tokens(definition)?;
    let rest = serde_json::to_vec(&without_large_parts(definition, model)).ok()?;
    let mut tokenizer = Tokenizer::from_bytes(rest).ok()?;
    let model = match (model.get("type").as_str()?, tokenizer.get_model()) {
        ("BPE", ModelWrapper::BPE(settings)) => ModelWrapper::BPE(bpe(settings, model)?),
        ("WordPiece", ModelWrapper::WordPiece(settings)) => {
            ModelWrapper::WordPiece(word_piece(settings, model)?)
        }
        ("Unigram", _) => ModelWrapper::Unigram(unigram(model)?),
        _ => return None,
    };
    tokenizer.with_model(model);
    // Their ids depend on the model.
    tokenizer.add_tokens(added).ok()?;
    Some(tokenizer)
}

/// The value of a key that occurs once. The crate reads every occurrence, and may reject the definition.
fn unique<'j, 'a>(object: &'j Json<'a>, key: &str) -> Option<&'j Json<'a>> {
    let mut found = object.entries().iter().filter(|(name, _)| name == key);
    let (_, value) = found.next()?;
    found.next().is_none().then_some(value)
}

/// A definition with an empty model of the same settings and without added tokens.
fn without_large_parts<'a>(definition: &Json<'a>, model: &Json<'a>) -> Json<'a> {
    let entry = |key: &'static str, value: Json<'a>| (Cow::Borrowed(key), value);
    let kind = model.get("type").as_str();
    let settings = match kind {
        // A unigram model cannot be empty.
        Some("Unigram") => vec![entry("type", Json::String(Cow::Borrowed("BPE")))],
        _ => model.entries().iter().filter(|(key, _)| !LARGE.contains(&key.as_ref())).cloned().collect(),
    };
    let empty = [entry("vocab", Json::Object(Vec::new())), entry("merges", Json::Array(Vec::new()))];
    let model = Json::Object(settings.into_iter().chain(empty).collect());
    let parts = definition.entries().iter().filter(|(key, _)| *key != SPLIT_SPECIAL_TOKENS);
    let parts = parts.map(|(key, value)| match key.as_ref() {
        "model" => (key.clone(), model.clone()),
        "added_tokens" => (key.clone(), Json::Array(Vec::new())),
        _ => (key.clone(), value.clone()),
    });
    Json::Object(parts.collect())
}

/// The added tokens of a definition; none if it does not state them.
fn added_tokens(definition: &Json<'_>) -> Option<Vec<AddedToken>> {
    if !definition.entries().iter().any(|(key, _)| key == "added_tokens") {
        return Some(Vec::new());
    }
    let Json::Array(tokens) = unique(definition, "added_tokens")? else { return None };
    tokens.iter().map(added_token).collect()
}

fn added_token(token: &Json<'_>) -> Option<AddedToken> {
    // Seven keys, and each of them once: no other key.
    if token.entries().len() != 7 {
        return None;
    }
    let flag = |key: &str| match unique(token, key) {
        Some(Json::Bool(value)) => Some(*value),
        _ => None,
    };
    id(unique(token, "id")?)?;
    Some(AddedToken {
        content: unique(token, "content")?.as_str()?.to_owned(),
        single_word: flag("single_word")?,
        lstrip: flag("lstrip")?,
        rstrip: flag("rstrip")?,
        normalized: flag("normalized")?,
        special: flag("special")?,
    })
}

fn id(value: &Json<'_>) -> Option<u32> {
    match value {
        Json::Number(number) => u32::try_from(number.as_u64()?).ok(),
        _ => None,
    }
}

/// The vocabulary of a model, if no two tokens have the same id: which of them is decoded depends on the order of the crate's hash map.
fn vocabulary(model: &Json<'_>) -> Option<Vocab> {
    let Json::Object(entries) = unique(model, "vocab")? else { return None };
    let mut vocabulary = Vocab::with_capacity(entries.len());
    // Ids beyond are rare, and a set of them would be large.
    let mut seen = vec![false; entries.len() * 4];
    for (token, value) in entries {
        let id = id(value)?;
        if std::mem::replace(seen.get_mut(id as usize)?, true) {
            return None;
        }
        // A repeated token is left to the crate, too.
        if vocabulary.insert(token.as_ref().to_owned(), id).is_some() {
            return None;
        }
    }
    Some(vocabulary)
}

fn bpe(settings: &BPE, model: &Json<'_>) -> Option<BPE> {
    let mut builder = BPE::builder()
        .vocab_and_merges(vocabulary(model)?, merges(model)?)
        .fuse_unk(settings.fuse_unk)
        .byte_fallback(settings.byte_fallback)
        .ignore_merges(settings.ignore_merges);
    if let Some(dropout) = settings.dropout {
        builder = builder.dropout(dropout);
    }
    if let Some(token) = &settings.unk_token {
        builder = builder.unk_token(token.clone());
    }
    if let Some(prefix) = &settings.continuing_subword_prefix {
        builder = builder.continuing_subword_prefix(prefix.clone());
    }
    if let Some(suffix) = &settings.end_of_word_suffix {
        builder = builder.end_of_word_suffix(suffix.clone());
    }
    builder.build().ok()
}

/// The merges of a model: pairs of tokens, or lines with both.
fn merges(model: &Json<'_>) -> Option<Merges> {
    let Json::Array(merges) = unique(model, "merges")? else { return None };
    let pair = |merge: &Json<'_>| match merge.items() {
        [Json::String(left), Json::String(right)] => {
            Some((left.as_ref().to_owned(), right.as_ref().to_owned()))
        }
        _ => None,
    };
    let line = |merge: &Json<'_>| {
        let (left, right) = merge.as_str()?.split_once(' ')?;
        // A line that states a version is no merge.
        let is_merge = !right.contains(' ') && !left.starts_with("#version");
        is_merge.then(|| (left.to_owned(), right.to_owned()))
    };
    match merges.first() {
        Some(Json::Array(_)) => merges.iter().map(pair).collect(),
        _ => merges.iter().map(line).collect(),
    }
}

fn word_piece(settings: &WordPiece, model: &Json<'_>) -> Option<WordPiece> {
    let builder = WordPiece::builder()
        .vocab(vocabulary(model)?)
        .unk_token(settings.unk_token.clone())
        .continuing_subword_prefix(settings.continuing_subword_prefix.clone())
        .max_input_chars_per_word(settings.max_input_chars_per_word);
    builder.build().ok()
}

fn unigram(model: &Json<'_>) -> Option<Unigram> {
    let is_known = |(key, _): &(Cow<'_, str>, _)| {
        ["type", "unk_id", "vocab", "byte_fallback"].contains(&key.as_ref()) && unique(model, key).is_some()
    };
    if !model.entries().iter().all(is_known) {
        return None;
    }
    let Json::Array(tokens) = model.get("vocab") else { return None };
    let token = |token: &Json<'_>| match token.items() {
        [Json::String(token), Json::Number(score)] => Some((token.as_ref().to_owned(), score.as_f64()?)),
        _ => None,
    };
    let tokens = tokens.iter().map(token).collect::<Option<Vec<_>>>()?;
    let unknown = match model.get("unk_id") {
        Json::Null => None,
        Json::Number(number) => Some(usize::try_from(number.as_u64()?).ok()?),
        _ => return None,
    };
    let byte_fallback = match unique(model, "byte_fallback") {
        None => false,
        Some(Json::Bool(value)) => *value,
        Some(_) => return None,
    };
    Unigram::from(tokens, unknown, byte_fallback).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A definition with this model and with the values of `parts`.
    fn definition(model: &Value, parts: &Value) -> String {
        let token = |id: u32, content: &str, special: bool| {
            json!({"id": id, "content": content, "single_word": false, "lstrip": true, "rstrip": false,
                   "normalized": !special, "special": special})
        };
        let mut definition = json!({"version": "1.0", "truncation": null, "padding": null,
            "added_tokens": [token(0, "a", false), token(90, "<s>", true), token(91, "</s>", true)],
            "normalizer": {"type": "Lowercase"}, "pre_tokenizer": {"type": "Whitespace"},
            "post_processor": null, "decoder": {"type": "Fuse"}, "model": model});
        for (key, value) in parts.as_object().unwrap() {
            definition[key] = value.clone();
        }
        definition.to_string()
    }

    fn built(text: &str) -> Option<Tokenizer> {
        build(&Json::parse(text.as_bytes()).unwrap())
    }

    fn bpe_model() -> Value {
        json!({"type": "BPE", "dropout": null, "unk_token": "a", "continuing_subword_prefix": null, "end_of_word_suffix": null,
               "fuse_unk": true, "byte_fallback": false, "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "abc\n": 5, "c\n": 6, "\n": 7},
               "merges": ["a b", "c \n", "ab c\n"]})
    }

    fn with(mut model: Value, key: &str, value: Value) -> Value {
        model[key] = value;
        model
    }

    #[test]
    fn a_built_tokenizer_is_equal_to_the_parsed_one() {
        let pairs = json!([["a", "b"], ["c", "\n"], ["ab", "c\n"]]);
        let models = [
            bpe_model(),
            with(bpe_model(), "merges", pairs),
            with(with(bpe_model(), "vocab", json!({})), "merges", json!([])),
            with(with(bpe_model(), "ignore_merges", json!(true)), "unk_token", json!(null)),
            with(with(bpe_model(), "dropout", json!(0.0)), "unknown key", json!([1, {}])),
            json!({"type": "BPE", "vocab": {"a": 0, "##b": 1, "ab": 2, "b</w>": 3}, "merges": ["a ##b"],
                   "continuing_subword_prefix": "##", "end_of_word_suffix": "</w>", "byte_fallback": true}),
            json!({"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                   "max_input_chars_per_word": 100, "vocab": {"[UNK]": 0, "a": 1, "##b": 4}}),
            json!({"type": "Unigram", "unk_id": 1, "vocab": [["a", -1], ["<unk>", 0.0], ["a", -2.5e-1]], "byte_fallback": true}),
            json!({"type": "Unigram", "unk_id": null, "vocab": []}),
        ];
        let lists = [json!({}), json!({"added_tokens": []}), json!({"normalizer": null, "decoder": null})];
        for (model, parts) in models.iter().flat_map(|model| lists.iter().map(move |parts| (model, parts))) {
            let text = definition(model, parts);
            let (built, parsed) = (built(&text).expect(&text), Tokenizer::from_bytes(&text).unwrap());
            assert_eq!(built.get_model(), parsed.get_model(), "{text}");
            assert_eq!(serde_json::to_string(&built).unwrap(), serde_json::to_string(&parsed).unwrap());
            assert_eq!(built.get_vocab(true), parsed.get_vocab(true));
        }
    }

    #[test]
    fn uncommon_and_invalid_definitions_are_left_to_the_crate() {
        let bpe = |key: &str, value: Value| definition(&with(bpe_model(), key, value), &json!({}));
        let part = |key: &str, value: Value| definition(&bpe_model(), &json!({key: value}));
        let plain = definition(&bpe_model(), &json!({}));
        let cases = [
            bpe("type", json!("WordLevel")),
            bpe("type", json!(null)),
            bpe("vocab", json!({"a": 0, "b": 0})),
            bpe("vocab", json!({"a": 0, "b": 4_000_000})),
            bpe("vocab", json!({"a": -1})),
            bpe("vocab", json!({"a": 1.0})),
            bpe("vocab", json!([])),
            bpe("merges", json!({})),
            bpe("merges", json!(["a b", ["c", "\n"]])),
            bpe("merges", json!([["a", "b"], "c \n"])),
            bpe("merges", json!([["a", "b", "c"]])),
            bpe("merges", json!(["a b c"])),
            bpe("merges", json!(["ab"])),
            bpe("merges", json!(["#version: 0.2", "a b"])),
            bpe("merges", json!(["a z"])),
            bpe("unk_token", json!(1)),
            bpe("dropout", json!(2)),
            part("version", json!("2.0")),
            part("normalizer", json!({"type": "Unknown"})),
            part("unknown", json!(1)),
            part("added_tokens", json!(null)),
            part("added_tokens", json!([{"id": 0, "content": "a"}])),
            definition(&json!({"type": "Unigram", "unk_id": 0, "vocab": []}), &json!({})),
            definition(&json!({"type": "Unigram", "vocab": [["a", 0, 1]]}), &json!({})),
            definition(&json!({"type": "WordPiece", "vocab": {}}), &json!({})),
            plain.replacen("\"version\"", "\"model\":{},\"version\"", 1),
            plain.replacen("\"version\"", "\"added_tokens\":[],\"version\"", 1),
            plain.replacen("\"dropout\"", "\"vocab\":{},\"dropout\"", 1),
            plain.replacen("\"a\":0", "\"a\":9,\"a\":0", 1),
            plain.replacen("\"special\":", "\"special\":true,\"other\":", 1),
            r#"{"model": 1}"#.to_owned(),
            "[]".to_owned(),
        ];
        assert!(built(&plain).is_some());
        for text in cases {
            assert!(built(&text).is_none(), "{text}");
        }
    }
}
