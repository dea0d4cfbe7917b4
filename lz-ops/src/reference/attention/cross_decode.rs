//! Reference of `attention.cross.decode`: one query per batch row over every key of the encoder.

use lz_core::KernelError;

use crate::reference::attention_core::{
    Row, dot, feature_index, gather, index_tuples, kv_head, length, masked,
};
use crate::{AttentionCrossDecodeCall, AttentionCrossDecodeLayout, AttentionCrossDecodeOut};

/// Runs the operation.
pub fn run(
    call: &AttentionCrossDecodeCall<'_>,
    mut out: AttentionCrossDecodeOut<'_>,
) -> Result<(), KernelError> {
    let axes = &call.axes;
    let heads_first = call.layout == AttentionCrossDecodeLayout::Bhsd;
    for [b, h] in index_tuples([axes.batch, axes.heads]) {
        let g = kv_head(h, axes.heads, axes.kv_heads);
        let query = gather(axes.head_dim, |d| call.q.at(&[b, h, d]));
        let row = Row::new(0..length(call.kv_lens, b, axes.seq_k), |j| {
            let z = f64::from(call.sm_scale)
                * dot(&query, |d| call.k.at(&feature_index(heads_first, b, j, g, d)));
            masked(z, call.mask, &[b, h, j])
        });
        row.write(&mut out.output, out.lse.as_mut(), &[b, h], axes.head_dim_v, |j, d| {
            call.v.at(&feature_index(heads_first, b, j, g, d))
        });
    }
    Ok(())
}
