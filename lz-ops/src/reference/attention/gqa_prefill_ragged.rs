//! Reference of `attention.gqa.prefill.ragged`: each request separately, its last query at the position of
//! its last key.

use lz_core::KernelError;

use crate::reference::attention_core::{
    Modifier, Row, ScoreIndex, alibi, dot, gather, index_tuples, is_masked_out, kv_head, sink, soft_capped,
    span,
};
use crate::{AttentionGqaPrefillRaggedCall, AttentionGqaPrefillRaggedOut};

/// Runs the operation.
pub fn run(
    call: &AttentionGqaPrefillRaggedCall<'_>,
    mut out: AttentionGqaPrefillRaggedOut<'_>,
) -> Result<(), KernelError> {
    let axes = &call.axes;
    let modifier = Modifier::new(call.score_mod, call.score_params)?;
    for b in 0..axes.batch {
        let queries = span(&call.qo_indptr, b, axes.total_q);
        let keys = span(&call.kv_indptr, b, axes.total_k);
        let (query_count, key_count) = (queries.end - queries.start, keys.end - keys.start);
        for [i, h] in index_tuples([query_count, axes.heads]) {
            let g = kv_head(h, axes.heads, axes.kv_heads);
            let t = i + key_count - query_count;
            let query = gather(axes.head_dim, |d| call.q.at(&[queries.start + i, h, d]));
            let row = Row::with_sink(0..key_count, sink(call.sinks, h), |j| {
                if is_masked_out(j, t, call.causal, call.window_left, call.window_right) {
                    return f64::NEG_INFINITY;
                }
                let z = f64::from(call.sm_scale) * dot(&query, |d| call.k.at(&[keys.start + j, g, d]));
                let score = soft_capped(z, call.soft_cap) + alibi(call.alibi_slopes, b, h, j - t);
                modifier.apply(score, ScoreIndex { batch: b, head: h, query: i, position: t }, j)
            });
            let index = [queries.start + i, h];
            row.write(&mut out.output, out.lse.as_mut(), &index, axes.head_dim_v, |j, d| {
                call.v.at(&[keys.start + j, g, d])
            });
        }
    }
    Ok(())
}
