//! The `bpe` crate: linear-time encoding by backtracking, with the splitters of this crate.

use bpe::byte_pair_encoding::{BytePairEncoding, find_hash_factor_for_dictionary};
use lz_core::{KernelError, Reason, ReasonCode};
use lz_ops::tokenizer::Tokenizer;
use serde_json::Value;

use super::{catching_panics, known_pattern, ranked_tokens};
use crate::byte_bpe;
use crate::coder::{Coder, Encoded, EqualityTest};
use crate::definition::{BYTE_BPE, byte_level_bpe, declined};
use crate::memory;
use crate::pipeline::Pipeline;
use crate::split::Pattern;

/// The library searches without bound for a hash factor that gives all tokens distinct 32-bit hashes. Above this many tokens there
/// hardly is one.
const MAX_TOKENS: usize = 1 << 17;

/// The `bpe` crate for one byte-level BPE tokenizer whose ids are its ranks.
pub struct GithubBpe {
    pipeline: Pipeline,
    pattern: Pattern,
    bpe: BytePairEncoding,
}

impl Coder for GithubBpe {
    const OFFSETS: bool = false;
    const DECODES: bool = false;
    const MODEL: Option<&'static str> = Some(BYTE_BPE);
    const EQUALITY_TEST: EqualityTest = EqualityTest::Texts;

    fn build(_: &Tokenizer, definition: &Value) -> Result<GithubBpe, Reason> {
        let definition = byte_level_bpe(definition)?;
        let pattern = known_pattern(&definition)?;
        let tokens = ranked_tokens(&definition)?;
        if tokens.len() > MAX_TOKENS {
            let required = format!("at most {MAX_TOKENS} tokens");
            let found = tokens.len().to_string();
            return Err(declined(ReasonCode::TokenizerModelUnsupported, &required, found));
        }
        // The library panics on unreachable tokens.
        if let Some(id) = byte_bpe::first_unreachable_token(&definition, &tokens)? {
            let found = format!("token {id}, which no merges lead to");
            return Err(declined(ReasonCode::MergesHashMismatch, "merges that lead to every token", found));
        }
        catching_panics(|| {
            let factor = find_hash_factor_for_dictionary(tokens.clone());
            let bpe = BytePairEncoding::from_dictionary(tokens, Some(factor));
            Ok(GithubBpe { pipeline: Pipeline::new(&definition)?, pattern, bpe })
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
                // One token per byte at most.
                memory::reserve(ids, part.len())?;
                self.pattern.for_each(part, |start, end| {
                    let tokens = self.bpe.encode_via_backtracking(&part.as_bytes()[start..end]);
                    ids.extend(tokens.into_iter().map(|id| id as i32));
                });
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
