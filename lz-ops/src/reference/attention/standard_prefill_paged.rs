//! `attention.standard.prefill.paged`, plainly: each request over its own pages, its last query at its last key.

use lz_core::KernelError;

use crate::reference::attention_core::{
    Pages, Row, alibi, capped, dot, feature_place, gather, hidden, places, span,
};
use crate::{
    AttentionStandardPrefillPagedCall, AttentionStandardPrefillPagedLayout, AttentionStandardPrefillPagedOut,
};

/// Runs it.
pub fn run(
    call: &AttentionStandardPrefillPagedCall<'_>,
    mut out: AttentionStandardPrefillPagedOut<'_>,
) -> Result<(), KernelError> {
    let axes = &call.axes;
    let heads_first = call.layout == AttentionStandardPrefillPagedLayout::Hnd;
    for b in 0..axes.batch {
        let queries = span(&call.qo_indptr, b, axes.total_q);
        let query_count = queries.end - queries.start;
        let pages = Pages::of(b, &call.kv_indptr, &call.kv_indices, &call.kv_last_page_len, axes.page_size);
        for [i, h] in places([query_count, axes.heads]) {
            let t = i + pages.length - query_count;
            let query = gather(axes.head_dim, |d| call.q.at(&[queries.start + i, h, d]));
            let row = Row::new(0..pages.length, |j| {
                if hidden(j, t, call.causal, call.window_left, call.window_right) {
                    return f64::NEG_INFINITY;
                }
                let (page, slot) = pages.locate(j);
                let z = f64::from(call.sm_scale)
                    * dot(&query, |d| call.k_cache.at(&feature_place(heads_first, page, slot, h, d)));
                capped(z, call.soft_cap) + alibi(call.alibi_slopes, b, h, j - t)
            });
            let place = [queries.start + i, h];
            row.write(&mut out.output, out.lse.as_mut(), &place, axes.head_dim, |j, d| {
                let (page, slot) = pages.locate(j);
                call.v_cache.at(&feature_place(heads_first, page, slot, h, d))
            });
        }
    }
    Ok(())
}
