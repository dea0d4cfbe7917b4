//! `attention.standard.decode`, plainly: one query a batch row, at the place of its last key.

use lz_core::KernelError;

use crate::reference::attention_core::{
    Row, alibi, capped, dot, feature_place, gather, hidden, length, places,
};
use crate::{AttentionStandardDecodeCall, AttentionStandardDecodeLayout, AttentionStandardDecodeOut};

/// Runs it.
pub fn run(
    call: &AttentionStandardDecodeCall<'_>,
    mut out: AttentionStandardDecodeOut<'_>,
) -> Result<(), KernelError> {
    let axes = &call.axes;
    let heads_first = call.layout == AttentionStandardDecodeLayout::Bhsd;
    for [b, h] in places([axes.batch, axes.heads]) {
        let key_count = length(call.kv_lens, b, axes.seq_k);
        let t = key_count - 1;
        let query = gather(axes.head_dim, |d| call.q.at(&[b, h, d]));
        let row = Row::new(0..key_count, |j| {
            if hidden(j, t, false, call.window_left, -1) {
                return f64::NEG_INFINITY;
            }
            let z = f64::from(call.sm_scale)
                * dot(&query, |d| call.k.at(&feature_place(heads_first, b, j, h, d)));
            capped(z, call.soft_cap) + alibi(call.alibi_slopes, b, h, j - t)
        });
        row.write(&mut out.output, out.lse.as_mut(), &[b, h], axes.head_dim_v, |j, d| {
            call.v.at(&feature_place(heads_first, b, j, h, d))
        });
    }
    Ok(())
}
