//! Reference of `attention.mla.decode`: latents are both keys and values; the rotary part is added to the
//! scores.

use lz_core::KernelError;

use crate::reference::attention_core::{Row, dot, gather, index_tuples};
use crate::{AttentionMlaDecodeCall, AttentionMlaDecodeOut};

/// Runs the operation.
pub fn run(call: &AttentionMlaDecodeCall<'_>, mut out: AttentionMlaDecodeOut<'_>) -> Result<(), KernelError> {
    let axes = &call.axes;
    for [t, h] in index_tuples([axes.tokens, axes.heads]) {
        let nope = gather(axes.dim_ckv, |d| call.q_nope.at(&[t, h, d]));
        let pe = gather(axes.dim_kpe, |d| call.q_pe.at(&[t, h, d]));
        let row = Row::new(0..axes.kv_len, |j| {
            let latent = dot(&nope, |d| call.ckv.at(&[j, 0, d]));
            let rotary = dot(&pe, |d| call.kpe.at(&[j, 0, d]));
            (latent + rotary) * f64::from(call.sm_scale)
        });
        row.write(&mut out.output, out.lse.as_mut(), &[t, h], axes.dim_ckv, |j, d| call.ckv.at(&[j, 0, d]));
    }
    Ok(())
}
