//! The `tiktoken-rs` crate: merges by token id, splits with a regular expression.

use lz_core::{KernelError, Reason, ReasonCode};
use lz_ops::tokenizer::Tokenizer;
use serde_json::Value;
use tiktoken_rs::CoreBPE;

use super::{catching_panics, known_pattern, ranked_tokens, unsupported};
use crate::coder::{Coder, Encoded, EqualityTest};
use crate::definition::{BYTE_BPE, byte_level_bpe};
use crate::memory;
use crate::pipeline::Pipeline;

/// `tiktoken-rs` for one byte-level BPE tokenizer whose ids are its ranks.
pub struct Tiktoken {
    pipeline: Pipeline,
    core: CoreBPE,
}

impl Coder for Tiktoken {
    const OFFSETS: bool = false;
    const DECODES: bool = false;
    const MODEL: Option<&'static str> = Some(BYTE_BPE);
    // Its regular expressions use the Unicode tables of `regex-syntax`, as the definition does.
    const EQUALITY_TEST: EqualityTest = EqualityTest::Texts;

    fn build(_: &Tokenizer, definition: &Value) -> Result<Tiktoken, Reason> {
        let definition = byte_level_bpe(definition)?;
        let pattern = known_pattern(&definition)?;
        let tokens = ranked_tokens(&definition)?;
        catching_panics(|| {
            let ranks = tokens.into_iter().zip(0..).collect();
            let core = CoreBPE::new(ranks, Default::default(), pattern.expression());
            let core = core.map_err(|error| unsupported(error.to_string()))?;
            Ok(Tiktoken { pipeline: Pipeline::new(&definition)?, core })
        })
    }

    fn encode(
        &self,
        _: &Tokenizer,
        texts: &[&str],
        special: bool,
        out: &mut Encoded,
    ) -> Result<(), KernelError> {
        for text in texts {
            self.pipeline.encode(text, special, &mut out.ids, |part, ids| {
                let tokens = self.core.encode_ordinary(part);
                memory::reserve(ids, tokens.len())?;
                ids.extend(tokens.into_iter().map(|id| id as i32));
                Ok(())
            })?;
            out.end_text();
        }
        Ok(())
    }

    fn decode(&self, _: &Tokenizer, _: &[u32], _: bool) -> Result<String, KernelError> {
        Err(KernelError::because(Reason::new(ReasonCode::TokenizerModelUnsupported)))
    }
}
