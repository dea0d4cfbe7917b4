//! `bpe`: encoding in linear time by backtracking, behind the splitters of this crate.

use bpe::byte_pair_encoding::{BytePairEncoding, find_hash_factor_for_dictionary};
use lz_core::{KernelError, Reason, ReasonCode};
use lz_ops::tokenizer::Tokenizer;
use serde_json::Value;

use super::{guarded, ranked_tokens};
use crate::coder::{Coder, Encoded};
use crate::definition::{BYTE_BPE, byte_level_bpe};
use crate::frame::Frame;
use crate::native::split::Pattern;

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

    fn build(_: &Tokenizer, definition: &Value) -> Result<GithubBpe, Reason> {
        let definition = byte_level_bpe(definition)?;
        let tokens = ranked_tokens(&definition)?;
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
