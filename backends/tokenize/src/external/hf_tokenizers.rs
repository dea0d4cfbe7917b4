//! Hugging Face `tokenizers` 0.23 on the thread pool. This library is the definition itself.

use lz_core::{KernelError, Reason};
use lz_ops::tokenizer::Tokenizer;
use serde_json::Value;

use crate::coder::{Coder, Encoded, EqualityTest, encode_by_definition};
use crate::definition::{SENTENCEPIECE, other_model};

/// The definition, which needs no verification.
pub struct HfTokenizers;

impl Coder for HfTokenizers {
    const OFFSETS: bool = true;
    const DECODES: bool = true;
    const MODEL: Option<&'static str> = None;
    const EQUALITY_TEST: EqualityTest = EqualityTest::None;

    fn build(tokenizer: &Tokenizer, _: &Value) -> Result<HfTokenizers, Reason> {
        // The library does not read SentencePiece models.
        if tokenizer.is_sentencepiece() {
            return Err(other_model("a tokenizer.json", SENTENCEPIECE));
        }
        Ok(HfTokenizers)
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
