//! Reference of `sampling.penalties`: counts the occurrences of every token.

use lz_core::KernelError;
use lz_core::tensor::{Dims, Indices, TensorView};

use crate::reference::index::with;
use crate::{SamplingPenaltiesCall, SamplingPenaltiesOut};

/// Runs the operation.
pub fn run(call: &SamplingPenaltiesCall<'_>, mut out: SamplingPenaltiesOut<'_>) -> Result<(), KernelError> {
    let of_row = |tensor: Option<TensorView<'_>>, param: f32, row: &Dims| {
        tensor.map_or(f64::from(param), |tensor| tensor.at(row))
    };
    for row in Indices::new(&call.axes.rows_dims) {
        let repetition = of_row(call.repetition_tensor, call.repetition, &row);
        let frequency = of_row(call.frequency_tensor, call.frequency, &row);
        let presence = of_row(call.presence_tensor, call.presence, &row);
        for token in 0..call.axes.vocab {
            let index = with(row, token);
            let mut logit = call.logits.at(&index);
            let count = occurrences(&call.output_tokens, row, call.axes.generated, token);
            let in_prompt = call
                .prompt_tokens
                .is_some_and(|tokens| occurrences(&tokens, row, call.axes.prompt, token) > 0);
            if count > 0 || in_prompt {
                logit = if logit > 0.0 { logit / repetition } else { logit * repetition };
            }
            if count > 0 {
                logit -= frequency * count as f64 + presence;
            }
            out.output.set(&index, logit);
        }
    }
    Ok(())
}

/// How often a token occurs in a row of tokens.
fn occurrences(tokens: &TensorView<'_>, row: Dims, length: i64, token: i64) -> usize {
    (0..length).filter(|&position| tokens.int_at(&with(row, position)) == token).count()
}
