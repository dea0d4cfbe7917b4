//! Reference of `attention.gqa.decode.paged.fp8`: one query per request, at the position of its last key.

use lz_core::KernelError;

use crate::reference::attention_core::{
    Modifier, PageTable, Row, ScoreIndex, alibi, dot, feature_index, gather, head_scale, index_tuples,
    is_masked_out, kv_head, sink, soft_capped,
};
use crate::{
    AttentionGqaDecodePagedFp8Call, AttentionGqaDecodePagedFp8Layout, AttentionGqaDecodePagedFp8Out,
};

/// Runs the operation.
pub fn run(
    call: &AttentionGqaDecodePagedFp8Call<'_>,
    mut out: AttentionGqaDecodePagedFp8Out<'_>,
) -> Result<(), KernelError> {
    let axes = &call.axes;
    let modifier = Modifier::new(call.score_mod, call.score_params)?;
    let heads_first = call.layout == AttentionGqaDecodePagedFp8Layout::Hnd;
    for [b, h] in index_tuples([axes.batch, axes.heads]) {
        let g = kv_head(h, axes.heads, axes.kv_heads);
        let pages =
            PageTable::of(b, &call.kv_indptr, &call.kv_indices, &call.kv_last_page_len, axes.page_size);
        let t = pages.length - 1;
        let query = gather(axes.head_dim, |d| call.q.at(&[b, h, d]));
        let row = Row::with_sink(0..pages.length, sink(call.sinks, h), |j| {
            if is_masked_out(j, t, false, call.window_left, -1) {
                return f64::NEG_INFINITY;
            }
            let (page, slot) = pages.locate(j);
            let z = f64::from(call.sm_scale)
                * head_scale(call.k_scale, g)
                * dot(&query, |d| call.k_cache.at(&feature_index(heads_first, page, slot, g, d)));
            let score = soft_capped(z, call.soft_cap) + alibi(call.alibi_slopes, b, h, j - t);
            modifier.apply(score, ScoreIndex { batch: b, head: h, query: 0, position: t }, j)
        });
        row.write(&mut out.output, out.lse.as_mut(), &[b, h], axes.head_dim, |j, d| {
            let (page, slot) = pages.locate(j);
            head_scale(call.v_scale, g) * call.v_cache.at(&feature_index(heads_first, page, slot, g, d))
        });
    }
    Ok(())
}
