//! SentencePiece models on the thread pool, with the reference implementation of `lz_ops::tokenizer`.

use lz_core::{KernelError, Reason};
use lz_ops::tokenizer::Tokenizer;
use serde_json::Value;

use crate::coder::{Coder, Encoded, EqualityTest, encode_by_definition};
use crate::definition::{SENTENCEPIECE, other_model};

/// The reference implementation, which needs no verification.
pub struct SentencePiece;

impl Coder for SentencePiece {
    const OFFSETS: bool = true;
    const DECODES: bool = true;
    const MODEL: Option<&'static str> = Some(SENTENCEPIECE);
    const EQUALITY_TEST: EqualityTest = EqualityTest::None;

    fn build(tokenizer: &Tokenizer, _: &Value) -> Result<SentencePiece, Reason> {
        if tokenizer.is_sentencepiece() {
            Ok(SentencePiece)
        } else {
            Err(other_model(SENTENCEPIECE, "a tokenizer.json"))
        }
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
