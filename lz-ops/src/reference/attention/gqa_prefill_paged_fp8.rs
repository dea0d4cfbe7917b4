//! Reference of `attention.gqa.prefill.paged.fp8`: each request over its own pages, its last query at the
//! position of its last key.

use lz_core::KernelError;

use crate::reference::attention_core::{
    Modifier, PageTable, Row, ScoreIndex, alibi, dot, feature_index, gather, head_scale, index_tuples,
    is_masked_out, kv_head, sink, soft_capped, span,
};
use crate::{
    AttentionGqaPrefillPagedFp8Call, AttentionGqaPrefillPagedFp8Layout, AttentionGqaPrefillPagedFp8Out,
};

/// Runs the operation.
pub fn run(
    call: &AttentionGqaPrefillPagedFp8Call<'_>,
    mut out: AttentionGqaPrefillPagedFp8Out<'_>,
) -> Result<(), KernelError> {
    let axes = &call.axes;
    let modifier = Modifier::new(call.score_mod, call.score_params)?;
    let heads_first = call.layout == AttentionGqaPrefillPagedFp8Layout::Hnd;
    for b in 0..axes.batch {
        let queries = span(&call.qo_indptr, b, axes.total_q);
        let query_count = queries.end - queries.start;
        let pages =
            PageTable::of(b, &call.kv_indptr, &call.kv_indices, &call.kv_last_page_len, axes.page_size);
        for [i, h] in index_tuples([query_count, axes.heads]) {
            let g = kv_head(h, axes.heads, axes.kv_heads);
            let t = i + pages.length - query_count;
            let query = gather(axes.head_dim, |d| call.q.at(&[queries.start + i, h, d]));
            let row = Row::with_sink(0..pages.length, sink(call.sinks, h), |j| {
                if is_masked_out(j, t, call.causal, call.window_left, call.window_right) {
                    return f64::NEG_INFINITY;
                }
                let (page, slot) = pages.locate(j);
                let z = f64::from(call.sm_scale)
                    * head_scale(call.k_scale, g)
                    * dot(&query, |d| call.k_cache.at(&feature_index(heads_first, page, slot, g, d)));
                let score = soft_capped(z, call.soft_cap) + alibi(call.alibi_slopes, b, h, j - t);
                modifier.apply(score, ScoreIndex { batch: b, head: h, query: i, position: t }, j)
            });
            let index = [queries.start + i, h];
            row.write(&mut out.output, out.lse.as_mut(), &index, axes.head_dim, |j, d| {
                let (page, slot) = pages.locate(j);
                head_scale(call.v_scale, g) * call.v_cache.at(&feature_index(heads_first, page, slot, g, d))
            });
        }
    }
    Ok(())
}
