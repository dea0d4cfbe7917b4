//! The implementation behind a definition: the `tokenizers` crate for a `tokenizer.json`, or the SentencePiece algorithm. A
//! SentencePiece model is also represented as JSON, so that workers, plugins and digests handle one format:
//! `{"model": {"type": "SentencePiece", "proto": "<base64 of the file>"}}`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

use super::definition::Definition;
use super::json::Json;
use super::sentencepiece::SentencePiece;
use super::{Token, TokenizerError};

/// The `type` of a SentencePiece model.
pub const SENTENCEPIECE: &str = "SentencePiece";

/// The key of a definition that encodes special tokens in texts as plain text.
pub const SPLIT_SPECIAL_TOKENS: &str = "split_special_tokens";

/// The implementation that encodes and decodes.
pub enum Model {
    HuggingFace(Box<Definition>),
    SentencePiece(Box<SentencePiece>),
}

impl Model {
    /// From a definition, as parsed JSON and as text.
    pub fn parse(tree: &Json<'_>, json: &[u8]) -> Result<Model, TokenizerError> {
        let model = tree.get("model");
        if model.get("type").as_str() != Some(SENTENCEPIECE) {
            let splits = splits_special_tokens(tree)?;
            let definition = match Definition::build(tree, splits) {
                Some(definition) => definition,
                None if splits => Definition::parse(without_split_key(tree).to_string().as_bytes(), true)?,
                None => Definition::parse(json, false)?,
            };
            return Ok(Model::HuggingFace(Box::new(definition)));
        }
        let unknown = tree.entries().iter().find(|(key, _)| *key != "model");
        let message = match (unknown, model.get("proto").as_str().map(|proto| BASE64.decode(proto))) {
            (Some((key, _)), _) => {
                format!("unexpected key `{key}`: a SentencePiece definition has only `model`")
            }
            (None, Some(Ok(proto))) => {
                return SentencePiece::parse(&proto).map(Box::new).map(Model::SentencePiece);
            }
            (None, Some(Err(error))) => format!("`model.proto` is not base64: {error}"),
            (None, None) => "`model.proto` is missing; expected the SentencePiece file as base64".to_owned(),
        };
        Err(TokenizerError::Definition { message })
    }

    /// Tokens with their byte ranges.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<Token>, TokenizerError> {
        match self {
            Model::HuggingFace(definition) => definition.encode(text, add_special_tokens),
            // The library adds special tokens only on request per call.
            Model::SentencePiece(model) => Ok(model.encode(text)),
        }
    }

    /// The text of ids.
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String, TokenizerError> {
        match self {
            Model::HuggingFace(definition) => definition.decode(ids, skip_special_tokens),
            // Control pieces never have text.
            Model::SentencePiece(model) => model.decode(ids),
        }
    }

    /// The token of an id.
    pub fn token_of(&self, id: u32) -> Option<String> {
        match self {
            Model::HuggingFace(definition) => definition.token_of(id),
            Model::SentencePiece(model) => model.piece_of(id).map(str::to_owned),
        }
    }

    /// The id of a token.
    pub fn id_of(&self, token: &str) -> Option<u32> {
        match self {
            Model::HuggingFace(definition) => definition.id_of(token),
            Model::SentencePiece(model) => model.id_of(token),
        }
    }

    /// The number of tokens, with added ones.
    pub fn vocabulary_size(&self) -> usize {
        match self {
            Model::HuggingFace(definition) => definition.vocabulary_size(),
            Model::SentencePiece(model) => model.size(),
        }
    }
}

/// Whether the definition has the key [`SPLIT_SPECIAL_TOKENS`].
fn splits_special_tokens(tree: &Json<'_>) -> Result<bool, TokenizerError> {
    match tree.get(SPLIT_SPECIAL_TOKENS) {
        Json::Null if !tree.entries().iter().any(|(key, _)| *key == SPLIT_SPECIAL_TOKENS) => Ok(false),
        Json::Bool(true) => Ok(true),
        other => Err(TokenizerError::Definition {
            message: format!("`{SPLIT_SPECIAL_TOKENS}` must be true or absent, found {other}"),
        }),
    }
}

/// The definition without the key [`SPLIT_SPECIAL_TOKENS`].
fn without_split_key(tree: &Json<'_>) -> Value {
    let mut plain = tree.outline(usize::MAX);
    plain.as_object_mut().map(|parts| parts.remove(SPLIT_SPECIAL_TOKENS));
    plain
}

/// The JSON of a definition with [`SPLIT_SPECIAL_TOKENS`] set; `None` if that changes nothing.
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
