//! `attention.cross.prefill`, plainly: every query against every key of the encoder.

use lz_core::KernelError;

use crate::reference::attention_core::{
    Row, dot, feature_place, gather, head_place, key_head, length, masked, places,
};
use crate::{AttentionCrossPrefillCall, AttentionCrossPrefillLayout, AttentionCrossPrefillOut};

/// Runs it.
pub fn run(
    call: &AttentionCrossPrefillCall<'_>,
    mut out: AttentionCrossPrefillOut<'_>,
) -> Result<(), KernelError> {
    let axes = &call.axes;
    let heads_first = call.layout == AttentionCrossPrefillLayout::Bhsd;
    for [b, i, h] in places([axes.batch, axes.seq_q, axes.heads]) {
        let g = key_head(h, axes.heads, axes.kv_heads);
        let query = gather(axes.head_dim, |d| call.q.at(&feature_place(heads_first, b, i, h, d)));
        let row = Row::new(0..length(call.kv_lens, b, axes.seq_k), |j| {
            let z = f64::from(call.sm_scale)
                * dot(&query, |d| call.k.at(&feature_place(heads_first, b, j, g, d)));
            masked(z, call.mask, &[b, h, i, j])
        });
        let place = head_place(heads_first, b, i, h);
        row.write(&mut out.output, out.lse.as_mut(), &place, axes.head_dim_v, |j, d| {
            call.v.at(&feature_place(heads_first, b, j, g, d))
        });
    }
    Ok(())
}
