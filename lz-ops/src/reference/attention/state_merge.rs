//! Reference of `attention.state.merge`: states are keys whose scores are their log-sum-exp.

use lz_core::KernelError;
use lz_core::tensor::Indices;

use crate::reference::attention_core::Row;
use crate::reference::index::{join, with};
use crate::{AttentionStateMergeCall, AttentionStateMergeOut};

/// Runs the operation.
pub fn run(
    call: &AttentionStateMergeCall<'_>,
    mut out: AttentionStateMergeOut<'_>,
) -> Result<(), KernelError> {
    let axes = &call.axes;
    for row in Indices::new(&axes.rows_dims) {
        for h in 0..axes.heads {
            let merged = Row::new(0..axes.states, |t| call.s.at(&join(&[&row, &[t, h]])));
            let index = with(row, h);
            merged.write(&mut out.output, Some(&mut out.lse), &index, axes.head_dim, |t, d| {
                call.v.at(&join(&[&row, &[t, h, d]]))
            });
        }
    }
    Ok(())
}
