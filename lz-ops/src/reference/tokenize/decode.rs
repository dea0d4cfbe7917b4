//! Reference of `tokenize.decode`: each range of ids by the tokenizer's own decoder.

use lz_core::{Cause, KernelError};

use crate::tokenizer::Tokenizer;
use crate::{TokenizeDecodeCall, TokenizeDecodeOut};

/// Runs the operation.
pub fn run(call: &TokenizeDecodeCall<'_>, out: TokenizeDecodeOut<'_>) -> Result<(), KernelError> {
    let tokenizer = Tokenizer::from_handle(call.tokenizer)?;
    let mut texts = Vec::new();
    for b in 0..call.axes.batch {
        let (start, end) = (call.indptr.int_at(&[b]), call.indptr.int_at(&[b + 1]));
        // A negative id is not a token of any tokenizer; validation rejects it.
        let ids: Vec<u32> =
            (start..end).filter_map(|t| u32::try_from(call.tokens.int_at(&[t])).ok()).collect();
        let text = tokenizer
            .decode(&ids, call.skip_special_tokens)
            // The tokenizer's own definition cannot decode the ids, so no kernel could.
            .map_err(|error| KernelError::failed(error.to_string()).cause(Cause::Caller))?;
        texts.push(text);
    }
    *out.texts = Some(texts);
    Ok(())
}
