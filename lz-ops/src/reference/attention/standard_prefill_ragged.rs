//! `attention.standard.prefill.ragged`, plainly: each request by itself, its last query at its last key.

use lz_core::KernelError;

use crate::reference::attention_core::{Row, alibi, capped, dot, gather, hidden, places, span};
use crate::{AttentionStandardPrefillRaggedCall, AttentionStandardPrefillRaggedOut};

/// Runs it.
pub fn run(
    call: &AttentionStandardPrefillRaggedCall<'_>,
    mut out: AttentionStandardPrefillRaggedOut<'_>,
) -> Result<(), KernelError> {
    let axes = &call.axes;
    for b in 0..axes.batch {
        let queries = span(&call.qo_indptr, b, axes.total_q);
        let keys = span(&call.kv_indptr, b, axes.total_k);
        let (query_count, key_count) = (queries.end - queries.start, keys.end - keys.start);
        for [i, h] in places([query_count, axes.heads]) {
            let t = i + key_count - query_count;
            let query = gather(axes.head_dim, |d| call.q.at(&[queries.start + i, h, d]));
            let row = Row::new(0..key_count, |j| {
                if hidden(j, t, call.causal, call.window_left, call.window_right) {
                    return f64::NEG_INFINITY;
                }
                let z = f64::from(call.sm_scale) * dot(&query, |d| call.k.at(&[keys.start + j, h, d]));
                capped(z, call.soft_cap) + alibi(call.alibi_slopes, b, h, j - t)
            });
            let place = [queries.start + i, h];
            row.write(&mut out.output, out.lse.as_mut(), &place, axes.head_dim_v, |j, d| {
                call.v.at(&[keys.start + j, h, d])
            });
        }
    }
    Ok(())
}
