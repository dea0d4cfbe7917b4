//! Hugging Face `tokenizers` 0.23, which is the definition itself, on all cores.

use lz_core::{KernelError, Reason};
use lz_ops::tokenizer::Tokenizer;
use serde_json::Value;

use crate::coder::{Coder, Encoded, Trial, encode_by_definition};
use crate::definition::{SENTENCEPIECE, other_model};

/// The definition, which needs no proof.
pub struct ByDefinition;

impl Coder for ByDefinition {
    const OFFSETS: bool = true;
    const DECODES: bool = true;
    const MODEL: Option<&'static str> = None;
    const TRIAL: Trial = Trial::None;

    fn build(tokenizer: &Tokenizer, _: &Value) -> Result<ByDefinition, Reason> {
        // The library does not read SentencePiece models.
        if tokenizer.is_sentencepiece() {
            return Err(other_model("a tokenizer.json", SENTENCEPIECE));
        }
        Ok(ByDefinition)
    }

    fn encode(
        &self,
        tokenizer: &Tokenizer,
        texts: &[&str],
        special: bool,
        out: &mut Encoded,
    ) -> Result<(), KernelError> {
        texts.iter().try_for_each(|text| encode_by_definition(tokenizer, text, special, out))
    }

    fn decode(&self, tokenizer: &Tokenizer, ids: &[u32], skip_special: bool) -> Result<String, KernelError> {
        tokenizer.decode(ids, skip_special).map_err(|error| KernelError::failed(error.to_string()))
    }
}
