//! Reference of `attention.gqa.decode`: one query per batch row, at the position of its last key.

use lz_core::KernelError;

use crate::reference::attention_core::{
    Modifier, Row, ScoreIndex, alibi, dot, feature_index, gather, index_tuples, is_masked_out, kv_head,
    length, sink, soft_capped,
};
use crate::{AttentionGqaDecodeCall, AttentionGqaDecodeLayout, AttentionGqaDecodeOut};

/// Runs the operation.
pub fn run(call: &AttentionGqaDecodeCall<'_>, mut out: AttentionGqaDecodeOut<'_>) -> Result<(), KernelError> {
    let axes = &call.axes;
    let heads_first = call.layout == AttentionGqaDecodeLayout::Bhsd;
    let modifier = Modifier::new(call.score_mod, call.score_params)?;
    for [b, h] in index_tuples([axes.batch, axes.heads]) {
        let g = kv_head(h, axes.heads, axes.kv_heads);
        let key_count = length(call.kv_lens, b, axes.seq_k);
        let t = key_count - 1;
        let query = gather(axes.head_dim, |d| call.q.at(&[b, h, d]));
        let row = Row::with_sink(0..key_count, sink(call.sinks, h), |j| {
            if is_masked_out(j, t, false, call.window_left, -1) {
                return f64::NEG_INFINITY;
            }
            let z = f64::from(call.sm_scale)
                * dot(&query, |d| call.k.at(&feature_index(heads_first, b, j, g, d)));
            let score = soft_capped(z, call.soft_cap) + alibi(call.alibi_slopes, b, h, j - t);
            modifier.apply(score, ScoreIndex { batch: b, head: h, query: 0, position: t }, j)
        });
        row.write(&mut out.output, out.lse.as_mut(), &[b, h], axes.head_dim_v, |j, d| {
            call.v.at(&feature_index(heads_first, b, j, g, d))
        });
    }
    Ok(())
}
