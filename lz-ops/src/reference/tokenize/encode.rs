//! Reference of `tokenize.encode`: each text by the tokenizer's own definition.

use lz_core::{Cause, KernelError, Tensor};

use crate::tokenizer::Tokenizer;
use crate::{TokenizeEncodeCall, TokenizeEncodeOut};

/// Runs the operation.
pub fn run(call: &TokenizeEncodeCall<'_>, mut out: TokenizeEncodeOut<'_>) -> Result<(), KernelError> {
    let tokenizer = Tokenizer::from_handle(call.tokenizer)?;
    let (mut ids, mut ranges): (Vec<i32>, Vec<i64>) = (Vec::new(), Vec::new());
    out.indptr.set_int(&[0], 0);
    for (text, end) in call.texts.iter().zip(1..) {
        for token in tokenizer
            .encode(text, call.add_special_tokens)
            .map_err(|error| cannot_encode(error.to_string()))?
        {
            let id = i32::try_from(token.id)
                .map_err(|_| cannot_encode(format!("token id {} does not fit 32 bits", token.id)))?;
            ids.push(id);
            ranges.extend([token.bytes.start as i64, token.bytes.end as i64]);
        }
        out.indptr.set_int(&[end], ids.len() as i64);
    }
    let total = ids.len() as i64;
    if let Some(offsets) = &mut out.offsets {
        **offsets = Some(Tensor::from_slice(&ranges, &[total, 2]).map_err(KernelError::because)?);
    }
    *out.tokens = Some(Tensor::from_slice(&ids, &[total]).map_err(KernelError::because)?);
    Ok(())
}

/// The tokenizer's own definition cannot encode the text, so no kernel could.
fn cannot_encode(message: String) -> KernelError {
    KernelError::failed(message).cause(Cause::Caller)
}
