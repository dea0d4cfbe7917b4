//! Reference of `attention.sparse.topk`: every query over the keys that are listed for it.

use lz_core::KernelError;

use crate::reference::attention_core::{Row, dot, gather, index_tuples, kv_head, soft_capped};
use crate::{AttentionSparseTopkCall, AttentionSparseTopkOut};

/// Runs the operation.
pub fn run(
    call: &AttentionSparseTopkCall<'_>,
    mut out: AttentionSparseTopkOut<'_>,
) -> Result<(), KernelError> {
    let axes = &call.axes;
    for [i, h] in index_tuples([axes.m, axes.heads]) {
        let g = kv_head(h, axes.heads, axes.kv_heads);
        let listed =
            (0..axes.topk).map(|t| call.indices.int_at(&[i, g, t])).filter(|j| (0..axes.n).contains(j));
        let query = gather(axes.head_dim, |d| call.q.at(&[i, h, d]));
        let row = Row::new(listed, |j| {
            let z = f64::from(call.sm_scale) * dot(&query, |d| call.k.at(&[j, g, d]));
            soft_capped(z, call.soft_cap)
        });
        row.write(&mut out.output, out.lse.as_mut(), &[i, h], axes.head_dim_v, |j, d| call.v.at(&[j, g, d]));
    }
    Ok(())
}
