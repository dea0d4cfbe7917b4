//! `attention.standard.prefill`, plainly: every query against every key that it may see.

use lz_core::KernelError;

use crate::reference::attention_core::{
    Row, alibi, capped, dot, feature_place, gather, head_place, hidden, masked, places,
};
use crate::{AttentionStandardPrefillCall, AttentionStandardPrefillLayout, AttentionStandardPrefillOut};

/// Runs it.
pub fn run(
    call: &AttentionStandardPrefillCall<'_>,
    mut out: AttentionStandardPrefillOut<'_>,
) -> Result<(), KernelError> {
    let axes = &call.axes;
    let heads_first = call.layout == AttentionStandardPrefillLayout::Bhsd;
    for [b, i, h] in places([axes.batch, axes.seq_q, axes.heads]) {
        let t = i + call.causal_offset;
        let query = gather(axes.head_dim, |d| call.q.at(&feature_place(heads_first, b, i, h, d)));
        let row = Row::new(0..axes.seq_k, |j| {
            if hidden(j, t, call.causal, call.window_left, call.window_right) {
                return f64::NEG_INFINITY;
            }
            let z = f64::from(call.sm_scale)
                * dot(&query, |d| call.k.at(&feature_place(heads_first, b, j, h, d)));
            let score = capped(z, call.soft_cap) + alibi(call.alibi_slopes, b, h, j - t);
            masked(score, call.mask, &[b, h, i, j])
        });
        let place = head_place(heads_first, b, i, h);
        row.write(&mut out.output, out.lse.as_mut(), &place, axes.head_dim_v, |j, d| {
            call.v.at(&feature_place(heads_first, b, j, h, d))
        });
    }
    Ok(())
}
