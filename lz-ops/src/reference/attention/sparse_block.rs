//! Reference of `attention.sparse.block`: every query over the keys of the blocks listed for its own block.

use lz_core::KernelError;

use crate::reference::attention_core::{Row, dot, gather, index_tuples, kv_head, soft_capped, span};
use crate::{AttentionSparseBlockCall, AttentionSparseBlockOut};

/// Runs the operation.
pub fn run(
    call: &AttentionSparseBlockCall<'_>,
    mut out: AttentionSparseBlockOut<'_>,
) -> Result<(), KernelError> {
    let axes = &call.axes;
    for [i, h] in index_tuples([axes.m, axes.heads]) {
        let g = kv_head(h, axes.heads, axes.kv_heads);
        let listed = span(&call.indptr, i / call.block_rows.max(1), axes.nnz);
        let keys = listed.flat_map(|entry| {
            let start = call.indices.int_at(&[entry]).saturating_mul(call.block_cols).clamp(0, axes.n);
            start..start.saturating_add(call.block_cols).min(axes.n)
        });
        let query = gather(axes.head_dim, |d| call.q.at(&[i, h, d]));
        let row = Row::new(keys, |j| {
            let z = f64::from(call.sm_scale) * dot(&query, |d| call.k.at(&[j, g, d]));
            soft_capped(z, call.soft_cap)
        });
        row.write(&mut out.output, out.lse.as_mut(), &[i, h], axes.head_dim, |j, d| call.v.at(&[j, g, d]));
    }
    Ok(())
}
