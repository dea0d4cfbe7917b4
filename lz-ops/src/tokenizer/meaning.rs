//! What a definition means: the model of a `tokenizer.json` by the crate `tokenizers`, or a SentencePiece model by its own
//! algorithm. A SentencePiece model travels as JSON as well, so that one form serves workers, plugins and digests:
//! `{"model": {"type": "SentencePiece", "proto": "<base64 of the file>"}}`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

use super::definition::Definition;
use super::sentencepiece::SentencePiece;
use super::{Token, TokenizerError};

/// The type of a model that is a SentencePiece file.
pub const SENTENCEPIECE: &str = "SentencePiece";

/// The key of a definition whose special tokens are text where a text has them.
pub const SPLIT_SPECIAL_TOKENS: &str = "split_special_tokens";

/// What gives the tokens of a definition.
pub enum Meaning {
    HuggingFace(Box<Definition>),
    SentencePiece(Box<SentencePiece>),
}

impl Meaning {
    /// Of a definition, parsed and as text.
    pub fn parse(value: &Value, json: &[u8]) -> Result<Meaning, TokenizerError> {
        let model = &value["model"];
        if model["type"] != SENTENCEPIECE {
            let definition = match splitting(value)? {
                Some(plain) => Definition::parse(plain.to_string().as_bytes(), true),
                None => Definition::parse(json, false),
            };
            return definition.map(Box::new).map(Meaning::HuggingFace);
        }
        let unknown = value.as_object().into_iter().flatten().find(|(key, _)| *key != "model");
        let message = match (unknown, model["proto"].as_str().map(|proto| BASE64.decode(proto))) {
            (Some((key, _)), _) => {
                format!("`{key}` stands beside a SentencePiece model, which is complete in itself")
            }
            (None, Some(Ok(proto))) => {
                return SentencePiece::parse(&proto).map(Box::new).map(Meaning::SentencePiece);
            }
            (None, Some(Err(error))) => format!("`proto` is not base64: {error}"),
            (None, None) => "`proto` is missing".to_owned(),
        };
        Err(TokenizerError::Definition { message })
    }

    /// Tokens and the bytes they came from.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<Token>, TokenizerError> {
        match self {
            Meaning::HuggingFace(definition) => definition.encode(text, add_special_tokens),
            // The library adds nothing unless it is asked to for each call.
            Meaning::SentencePiece(model) => Ok(model.encode(text)),
        }
    }

    /// The text of some ids.
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String, TokenizerError> {
        match self {
            Meaning::HuggingFace(definition) => definition.decode(ids, skip_special_tokens),
            // Control pieces have no text in either case.
            Meaning::SentencePiece(model) => model.decode(ids),
        }
    }
}

/// The definition without its mark, if it is marked as one whose special tokens are text.
fn splitting(value: &Value) -> Result<Option<Value>, TokenizerError> {
    match value.get(SPLIT_SPECIAL_TOKENS) {
        None => Ok(None),
        Some(Value::Bool(true)) => {
            let mut plain = value.clone();
            plain.as_object_mut().map(|parts| parts.remove(SPLIT_SPECIAL_TOKENS));
            Ok(Some(plain))
        }
        Some(other) => Err(TokenizerError::Definition {
            message: format!("`{SPLIT_SPECIAL_TOKENS}` is true or absent, found {other}"),
        }),
    }
}

/// The JSON of a definition, marked as one whose special tokens are text; `None` if that changes nothing.
pub fn split_json(json: &[u8]) -> Result<Option<String>, TokenizerError> {
    let mut value: Value =
        serde_json::from_slice(json).map_err(|error| TokenizerError::Json { message: error.to_string() })?;
    let special = |token: &Value| token["special"] == true;
    let has_special = value["added_tokens"].as_array().is_some_and(|added| added.iter().any(special));
    if value[SPLIT_SPECIAL_TOKENS] == true || !has_special {
        return Ok(None);
    }
    value[SPLIT_SPECIAL_TOKENS] = true.into();
    Ok(Some(value.to_string()))
}

/// The JSON of a SentencePiece model.
pub fn sentencepiece_json(model: &[u8]) -> String {
    json!({"model": {"type": SENTENCEPIECE, "proto": BASE64.encode(model)}}).to_string()
}
