//! `tokenize.decode`, plainly: each range of ids by the tokenizer's own decoder.

use lz_core::KernelError;

use crate::tokenizer::Tokenizer;
use crate::{TokenizeDecodeCall, TokenizeDecodeOut};

/// Runs it.
pub fn run(call: &TokenizeDecodeCall<'_>, out: TokenizeDecodeOut<'_>) -> Result<(), KernelError> {
    let tokenizer = Tokenizer::from_handle(call.tokenizer)?;
    let mut texts = Vec::new();
    for b in 0..call.axes.batch {
        let (start, end) = (call.indptr.int_at(&[b]), call.indptr.int_at(&[b + 1]));
        // A negative id is no token of any tokenizer; validation refuses it.
        let ids: Vec<u32> =
            (start..end).filter_map(|t| u32::try_from(call.tokens.int_at(&[t])).ok()).collect();
        let text = tokenizer
            .decode(&ids, call.skip_special_tokens)
            .map_err(|error| KernelError::failed(error.to_string()))?;
        texts.push(text);
    }
    *out.texts = Some(texts);
    Ok(())
}
