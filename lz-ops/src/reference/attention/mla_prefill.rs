//! Reference of `attention.mla.prefill`: latents are both keys and values; the rotary part is added to the
//! scores.

use lz_core::KernelError;

use crate::reference::attention_core::{Row, dot, gather, index_tuples, is_masked_out};
use crate::{AttentionMlaPrefillCall, AttentionMlaPrefillOut};

/// Runs the operation.
pub fn run(
    call: &AttentionMlaPrefillCall<'_>,
    mut out: AttentionMlaPrefillOut<'_>,
) -> Result<(), KernelError> {
    let axes = &call.axes;
    for [i, h] in index_tuples([axes.seq_q, axes.heads]) {
        let nope = gather(axes.dim_ckv, |d| call.q_nope.at(&[i, h, d]));
        let pe = gather(axes.dim_kpe, |d| call.q_pe.at(&[i, h, d]));
        let row = Row::new(0..axes.kv_len, |j| {
            if is_masked_out(j, i + call.causal_offset, call.causal, -1, -1) {
                return f64::NEG_INFINITY;
            }
            let latent = dot(&nope, |d| call.ckv.at(&[j, 0, d]));
            let rotary = dot(&pe, |d| call.kpe.at(&[j, 0, d]));
            (latent + rotary) * f64::from(call.sm_scale)
        });
        row.write(&mut out.output, out.lse.as_mut(), &[i, h], axes.dim_ckv, |j, d| call.ckv.at(&[j, 0, d]));
    }
    Ok(())
}
