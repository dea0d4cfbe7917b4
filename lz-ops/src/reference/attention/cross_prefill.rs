//! Reference of `attention.cross.prefill`: every query over every key of the encoder.

use lz_core::KernelError;

use crate::reference::attention_core::{
    Row, dot, feature_index, gather, head_index, index_tuples, kv_head, length, masked,
};
use crate::{AttentionCrossPrefillCall, AttentionCrossPrefillLayout, AttentionCrossPrefillOut};

/// Runs the operation.
pub fn run(
    call: &AttentionCrossPrefillCall<'_>,
    mut out: AttentionCrossPrefillOut<'_>,
) -> Result<(), KernelError> {
    let axes = &call.axes;
    let heads_first = call.layout == AttentionCrossPrefillLayout::Bhsd;
    for [b, i, h] in index_tuples([axes.batch, axes.seq_q, axes.heads]) {
        let g = kv_head(h, axes.heads, axes.kv_heads);
        let query = gather(axes.head_dim, |d| call.q.at(&feature_index(heads_first, b, i, h, d)));
        let row = Row::new(0..length(call.kv_lens, b, axes.seq_k), |j| {
            let z = f64::from(call.sm_scale)
                * dot(&query, |d| call.k.at(&feature_index(heads_first, b, j, g, d)));
            masked(z, call.mask, &[b, h, i, j])
        });
        let index = head_index(heads_first, b, i, h);
        row.write(&mut out.output, out.lse.as_mut(), &index, axes.head_dim_v, |j, d| {
            call.v.at(&feature_index(heads_first, b, j, g, d))
        });
    }
    Ok(())
}
