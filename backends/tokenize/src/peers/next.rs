//! Hugging Face `tokenizers` 1.0, which was written anew: another library that reads the same files.

use std::sync::{Mutex, PoisonError};

use lz_core::{KernelError, Reason};
use lz_ops::tokenizer::{Tokenizer, contained};
use serde_json::Value;
use tokenizers_next::pipeline::{EncodeOptions, PipelineToken, PipelineTokenizer};
use tokenizers_next::{canonicalize_value, from_json};

use super::{guarded, refused};
use crate::coder::{Coder, Encoded, Trial};

/// Room for more tokens than this is given back.
const MOST_KEPT: usize = 1 << 22;

/// The release candidate.
pub struct Next {
    built: PipelineTokenizer,
    /// Room for tokens, with whoever encodes just now: the system clears new memory page by page.
    rooms: Mutex<Vec<Vec<PipelineToken>>>,
}

impl Coder for Next {
    const OFFSETS: bool = false;
    const DECODES: bool = true;
    const MODEL: Option<&'static str> = None;
    const TRIAL: Trial = Trial::CodePoints;

    fn build(_: &Tokenizer, definition: &Value) -> Result<Next, Reason> {
        guarded(|| {
            let mut definition = definition.clone();
            canonicalize_value(&mut definition).map_err(|error| refused(error.to_string()))?;
            let built = from_json(&definition.to_string()).map_err(|error| refused(error.to_string()))?;
            Ok(Next { built, rooms: Mutex::default() })
        })
    }

    fn encode(
        &self,
        _: &Tokenizer,
        texts: &[&str],
        special: bool,
        out: &mut Encoded,
    ) -> Result<(), KernelError> {
        let options = EncodeOptions { add_special_tokens: special, ..EncodeOptions::default() };
        let rooms = || self.rooms.lock().unwrap_or_else(PoisonError::into_inner);
        let mut tokens = rooms().pop().unwrap_or_default();
        for text in texts {
            tokens.clear();
            attempt(|| self.built.encode_into(text, &options, &mut tokens))?;
            out.ids.extend(tokens.iter().map(|token| u32::from(*token) as i32));
            out.end_text();
        }
        if tokens.capacity() <= MOST_KEPT {
            rooms().push(tokens);
        }
        Ok(())
    }

    fn decode(&self, _: &Tokenizer, ids: &[u32], skip_special: bool) -> Result<String, KernelError> {
        attempt(|| self.built.decode(ids, skip_special))
    }
}

fn attempt<T>(work: impl FnOnce() -> tokenizers_next::Result<T>) -> Result<T, KernelError> {
    match contained(work) {
        Ok(result) => result.map_err(|error| KernelError::failed(error.to_string())),
        Err(message) => Err(KernelError::failed(message)),
    }
}
