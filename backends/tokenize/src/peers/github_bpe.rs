//! `bpe`: encoding in linear time by backtracking, behind the splitters of this crate.

use bpe::byte_pair_encoding::{BytePairEncoding, find_hash_factor_for_dictionary};
use lz_core::{KernelError, Reason, ReasonCode};
use lz_ops::tokenizer::Tokenizer;
use serde_json::Value;

use super::{guarded, ranked_tokens};
use crate::coder::{Coder, Encoded, Trial};
use crate::definition::{BYTE_BPE, byte_level_bpe, declined};
use crate::frame::Frame;
use crate::native;
use crate::native::split::Pattern;

/// The library looks for a factor with which no two tokens have the same 32-bit hash, by trying random ones without bound. For more
/// tokens than this there is hardly one.
const MAX_TOKENS: usize = 1 << 17;

/// For byte-level BPE whose ids are its ranks.
pub struct GithubBpe {
    frame: Frame,
    pattern: Pattern,
    bpe: BytePairEncoding,
}

impl Coder for GithubBpe {
    const OFFSETS: bool = false;
    const DECODES: bool = false;
    const MODEL: Option<&'static str> = Some(BYTE_BPE);
    const TRIAL: Trial = Trial::Texts;

    fn build(_: &Tokenizer, definition: &Value) -> Result<GithubBpe, Reason> {
        let definition = byte_level_bpe(definition)?;
        let tokens = ranked_tokens(&definition)?;
        if tokens.len() > MAX_TOKENS {
            let required = format!("at most {MAX_TOKENS} tokens");
            let found = tokens.len().to_string();
            return Err(declined(ReasonCode::TokenizerModelUnsupported, &required, found));
        }
        // The library asserts it.
        if let Some(id) = native::unreachable(&definition, &tokens)? {
            let found = format!("token {id} that no merges lead to");
            return Err(declined(ReasonCode::MergesHashMismatch, "merges that lead to every token", found));
        }
        guarded(|| {
            let factor = find_hash_factor_for_dictionary(tokens.clone());
            let bpe = BytePairEncoding::from_dictionary(tokens, Some(factor));
            Ok(GithubBpe { frame: Frame::new(&definition)?, pattern: definition.pattern, bpe })
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
            self.frame.encode(text, special, &mut out.ids, |part, ids| {
                self.pattern.for_each(part, |start, end| {
                    let tokens = self.bpe.encode_via_backtracking(&part.as_bytes()[start..end]);
                    ids.extend(tokens.into_iter().map(|id| id as i32));
                });
            });
            out.end_text();
        }
        Ok(())
    }

    fn decode(&self, _: &Tokenizer, _: &[u32], _: bool) -> Result<String, KernelError> {
        Err(KernelError::because(Reason::new(ReasonCode::TokenizerModelUnsupported)))
    }
}
