//! `attention.mla.decode.paged`, plainly: latents are keys and values at once, the rotary part is added to the scores.

use lz_core::KernelError;

use crate::reference::attention_core::{Pages, Row, dot, gather, places};
use crate::{AttentionMlaDecodePagedCall, AttentionMlaDecodePagedOut};

/// Runs it.
pub fn run(
    call: &AttentionMlaDecodePagedCall<'_>,
    mut out: AttentionMlaDecodePagedOut<'_>,
) -> Result<(), KernelError> {
    let axes = &call.axes;
    for [b, h] in places([axes.batch, axes.heads]) {
        let pages = Pages::of(b, &call.kv_indptr, &call.kv_indices, &call.kv_last_page_len, axes.page_size);
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
