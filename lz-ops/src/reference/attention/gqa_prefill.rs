//! Reference of `attention.gqa.prefill`: every query over every visible key.

use lz_core::KernelError;

use crate::reference::attention_core::{
    Modifier, Row, ScoreIndex, alibi, dot, feature_index, gather, head_index, index_tuples, is_masked_out,
    kv_head, masked, sink, soft_capped,
};
use crate::{AttentionGqaPrefillCall, AttentionGqaPrefillLayout, AttentionGqaPrefillOut};

/// Runs the operation.
pub fn run(
    call: &AttentionGqaPrefillCall<'_>,
    mut out: AttentionGqaPrefillOut<'_>,
) -> Result<(), KernelError> {
    let axes = &call.axes;
    let heads_first = call.layout == AttentionGqaPrefillLayout::Bhsd;
    let modifier = Modifier::new(call.score_mod, call.score_params)?;
    for [b, i, h] in index_tuples([axes.batch, axes.seq_q, axes.heads]) {
        let g = kv_head(h, axes.heads, axes.kv_heads);
        let t = i + call.causal_offset;
        let query = gather(axes.head_dim, |d| call.q.at(&feature_index(heads_first, b, i, h, d)));
        let row = Row::with_sink(0..axes.seq_k, sink(call.sinks, h), |j| {
            if is_masked_out(j, t, call.causal, call.window_left, call.window_right) {
                return f64::NEG_INFINITY;
            }
            let z = f64::from(call.sm_scale)
                * dot(&query, |d| call.k.at(&feature_index(heads_first, b, j, g, d)));
            let score = soft_capped(z, call.soft_cap) + alibi(call.alibi_slopes, b, h, j - t);
            let score = modifier.apply(score, ScoreIndex { batch: b, head: h, query: i, position: t }, j);
            masked(score, call.mask, &[b, h, i, j])
        });
        let index = head_index(heads_first, b, i, h);
        row.write(&mut out.output, out.lse.as_mut(), &index, axes.head_dim_v, |j, d| {
            call.v.at(&feature_index(heads_first, b, j, g, d))
        });
    }
    Ok(())
}
