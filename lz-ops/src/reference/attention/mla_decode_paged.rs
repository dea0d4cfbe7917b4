//! Reference of `attention.mla.decode.paged`: latents are both keys and values; the rotary part is added to
//! the scores.

use lz_core::KernelError;

use crate::reference::attention_core::{PageTable, Row, dot, gather, index_tuples};
use crate::{AttentionMlaDecodePagedCall, AttentionMlaDecodePagedOut};

/// Runs the operation.
pub fn run(
    call: &AttentionMlaDecodePagedCall<'_>,
    mut out: AttentionMlaDecodePagedOut<'_>,
) -> Result<(), KernelError> {
    let axes = &call.axes;
    for [b, h] in index_tuples([axes.batch, axes.heads]) {
        let pages =
            PageTable::of(b, &call.kv_indptr, &call.kv_indices, &call.kv_last_page_len, axes.page_size);
        let nope = gather(axes.dim_ckv, |d| call.q_nope.at(&[b, h, d]));
        let pe = gather(axes.dim_kpe, |d| call.q_pe.at(&[b, h, d]));
        let row = Row::new(0..pages.length, |j| {
            let (page, slot) = pages.locate(j);
            let latent = dot(&nope, |d| call.ckv_cache.at(&[page, slot, d]));
            let rotary = dot(&pe, |d| call.kpe_cache.at(&[page, slot, d]));
            (latent + rotary) * f64::from(call.sm_scale)
        });
        row.write(&mut out.output, out.lse.as_mut(), &[b, h], axes.dim_ckv, |j, d| {
            let (page, slot) = pages.locate(j);
            call.ckv_cache.at(&[page, slot, d])
        });
    }
    Ok(())
}
