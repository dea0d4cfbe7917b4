//! Hugging Face `tokenizers` 1.0 (release candidate), a rewrite that reads the same files as 0.23.

use lz_core::fork::Mutex;
use lz_core::{KernelError, Reason};
use lz_ops::tokenizer::{Tokenizer, catch_panic};
use serde_json::Value;
use tokenizers_next::pipeline::{EncodeOptions, PipelineToken, PipelineTokenizer};
use tokenizers_next::{canonicalize_value, from_json};

use super::{catching_panics, unsupported};
use crate::coder::{Coder, Encoded, EqualityTest};

/// Buffers with a larger capacity are freed instead of pooled.
const MAX_POOLED: usize = 1 << 22;

/// `tokenizers` 1.0 for one tokenizer.
pub struct HfTokenizers1 {
    tokenizer: PipelineTokenizer,
    /// Token buffers that no thread uses at the moment; reuse avoids page faults.
    buffers: Mutex<Vec<Vec<PipelineToken>>>,
}

impl Coder for HfTokenizers1 {
    const OFFSETS: bool = false;
    const DECODES: bool = true;
    const MODEL: Option<&'static str> = None;
    const EQUALITY_TEST: EqualityTest = EqualityTest::CodePoints;

    fn build(_: &Tokenizer, definition: &Value) -> Result<HfTokenizers1, Reason> {
        catching_panics(|| {
            let mut definition = definition.clone();
            canonicalize_value(&mut definition).map_err(|error| unsupported(error.to_string()))?;
            let tokenizer =
                from_json(&definition.to_string()).map_err(|error| unsupported(error.to_string()))?;
            Ok(HfTokenizers1 { tokenizer, buffers: Mutex::default() })
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
        let buffers = || self.buffers.lock();
        let mut tokens = buffers().pop().unwrap_or_default();
        for text in texts {
            tokens.clear();
            attempt(|| self.tokenizer.encode_into(text, &options, &mut tokens))?;
            out.ids.extend(tokens.iter().map(|token| u32::from(*token) as i32));
            out.end_text();
        }
        if tokens.capacity() <= MAX_POOLED {
            buffers().push(tokens);
        }
        Ok(())
    }

    fn decode(&self, _: &Tokenizer, ids: &[u32], skip_special: bool) -> Result<String, KernelError> {
        attempt(|| self.tokenizer.decode(ids, skip_special))
    }
}

fn attempt<T>(work: impl FnOnce() -> tokenizers_next::Result<T>) -> Result<T, KernelError> {
    match catch_panic(work) {
        Ok(result) => result.map_err(|error| KernelError::failed(error.to_string())),
        Err(message) => Err(KernelError::failed(message)),
    }
}
