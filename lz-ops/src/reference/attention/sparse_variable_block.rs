//! Reference of `attention.sparse.variable_block`: every query over the keys of the blocks that the mask
//! enables for its own block.

use std::ops::Range;

use lz_core::{KernelError, TensorView};

use crate::reference::attention_core::{Row, dot, gather, index_tuples, kv_head, soft_capped};
use crate::{AttentionSparseVariableBlockCall, AttentionSparseVariableBlockOut};

/// Runs the operation.
pub fn run(
    call: &AttentionSparseVariableBlockCall<'_>,
    mut out: AttentionSparseVariableBlockOut<'_>,
) -> Result<(), KernelError> {
    let axes = &call.axes;
    for [h, i] in index_tuples([axes.heads, axes.m]) {
        let g = kv_head(h, axes.heads, axes.kv_heads);
        let query_block = blocks(call.block_row_sizes, g, axes.row_blocks, axes.m)
            .find(|(_, queries)| queries.contains(&i));
        let keys = query_block.into_iter().flat_map(|(r, _)| {
            blocks(call.block_col_sizes, g, axes.col_blocks, axes.n)
                .filter(move |&(c, _)| call.block_mask.int_at(&[g, r, c]) != 0)
                .flat_map(|(_, keys)| keys)
        });
        let query = gather(axes.head_dim, |d| call.q.at(&[h, i, d]));
        let row = Row::new(keys, |j| {
            let z = f64::from(call.sm_scale) * dot(&query, |d| call.k.at(&[g, j, d]));
            soft_capped(z, call.soft_cap)
        });
        row.write(&mut out.output, out.lse.as_mut(), &[h, i], axes.head_dim, |j, d| call.v.at(&[g, j, d]));
    }
    Ok(())
}

/// The blocks of KV head `head` with the range each covers, in order, clamped to `total`.
fn blocks(
    sizes: TensorView<'_>,
    head: i64,
    count: i64,
    total: i64,
) -> impl Iterator<Item = (i64, Range<i64>)> + use<'_> {
    let mut end = 0i64;
    (0..count).map(move |block| {
        let start = end;
        end = start.saturating_add(sizes.int_at(&[head, block]).max(0)).min(total);
        (block, start..end)
    })
}
