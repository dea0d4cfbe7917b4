//! Reference of `attention.linear.prefill`: the recurrence of each head, position after position, in f64.

use lz_core::KernelError;
use lz_core::tensor::Indices;

use crate::reference::delta_rule::{Position, State, l2_normalized};
use crate::{AttentionLinearPrefillCall, AttentionLinearPrefillGate, AttentionLinearPrefillOut};

/// Runs the operation.
pub fn run(
    call: &AttentionLinearPrefillCall<'_>,
    mut out: AttentionLinearPrefillOut<'_>,
) -> Result<(), KernelError> {
    let axes = &call.axes;
    for head in Indices::new(&[axes.batch, axes.heads]) {
        let [b, h] = *head else { continue };
        let key_head = h / (axes.heads / axes.key_heads);
        let mut state = State::new(axes.key_dim, axes.value_dim, |i, j| {
            call.initial_state.map_or(0.0, |state| state.at(&[b, h, i, j]))
        });
        for t in 0..axes.seq {
            let row = |tensor: &lz_core::TensorView<'_>| -> Vec<f64> {
                let row: Vec<f64> = (0..axes.key_dim).map(|i| tensor.at(&[b, t, key_head, i])).collect();
                if call.qk_l2norm { l2_normalized(&row) } else { row }
            };
            let decay = |i: i64| match call.gate {
                AttentionLinearPrefillGate::Head => call.g.at(&[b, t, h]),
                AttentionLinearPrefillGate::Channel => call.g.at(&[b, t, h, i]),
            };
            let position = Position {
                q: row(&call.q),
                k: row(&call.k),
                v: (0..axes.value_dim).map(|j| call.v.at(&[b, t, h, j])).collect(),
                decay: (0..axes.key_dim).map(|i| decay(i).exp()).collect(),
                beta: call.beta.at(&[b, t, h]),
            };
            for (j, result) in (0..).zip(state.step(&position)) {
                out.output.set(&[b, t, h, j], f64::from(call.scale) * result);
            }
        }
        if let Some(target) = &mut out.final_state {
            state.for_each(|i, j, value| target.set(&[b, h, i, j], value));
        }
    }
    Ok(())
}
