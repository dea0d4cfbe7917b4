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

/// What gives the tokens of a definition.
pub enum Meaning {
    HuggingFace(Definition),
    SentencePiece(SentencePiece),
}

impl Meaning {
    /// Of a definition, parsed and as text.
    pub fn parse(value: &Value, json: &[u8]) -> Result<Meaning, TokenizerError> {
        let model = &value["model"];
        if model["type"] != SENTENCEPIECE {
            return Definition::parse(json).map(Meaning::HuggingFace);
        }
        let unknown = value.as_object().into_iter().flatten().find(|(key, _)| *key != "model");
        let message = match (unknown, model["proto"].as_str().map(|proto| BASE64.decode(proto))) {
            (Some((key, _)), _) => format!("`{key}` stands beside a SentencePiece model, which is complete in itself"),
            (None, Some(Ok(proto))) => return SentencePiece::parse(&proto).map(Meaning::SentencePiece),
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

/// The JSON of a SentencePiece model.
pub fn sentencepiece_json(model: &[u8]) -> String {
    json!({"model": {"type": SENTENCEPIECE, "proto": BASE64.encode(model)}}).to_string()
}
