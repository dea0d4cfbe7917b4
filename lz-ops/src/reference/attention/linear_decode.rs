//! Reference of `attention.linear.decode`: one step of the recurrence of each head, in f64.

use lz_core::KernelError;
use lz_core::tensor::Indices;

use crate::reference::delta_rule::{Position, State, l2_normalized};
use crate::{AttentionLinearDecodeCall, AttentionLinearDecodeGate, AttentionLinearDecodeOut};

/// Runs the operation.
pub fn run(
    call: &AttentionLinearDecodeCall<'_>,
    mut out: AttentionLinearDecodeOut<'_>,
) -> Result<(), KernelError> {
    let axes = &call.axes;
    for head in Indices::new(&[axes.batch, axes.heads]) {
        let [b, h] = *head else { continue };
        let key_head = h / (axes.heads / axes.key_heads);
        let row = |tensor: &lz_core::TensorView<'_>| -> Vec<f64> {
            let row: Vec<f64> = (0..axes.key_dim).map(|i| tensor.at(&[b, key_head, i])).collect();
            if call.qk_l2norm { l2_normalized(&row) } else { row }
        };
        let decay = |i: i64| match call.gate {
            AttentionLinearDecodeGate::Head => call.g.at(&[b, h]),
            AttentionLinearDecodeGate::Channel => call.g.at(&[b, h, i]),
        };
        let position = Position {
            q: row(&call.q),
            k: row(&call.k),
            v: (0..axes.value_dim).map(|j| call.v.at(&[b, h, j])).collect(),
            decay: (0..axes.key_dim).map(|i| decay(i).exp()).collect(),
            beta: call.beta.at(&[b, h]),
        };
        let before = out.state.as_view();
        let mut state = State::new(axes.key_dim, axes.value_dim, |i, j| before.at(&[b, h, i, j]));
        let results = state.step(&position);
        for (j, result) in (0..).zip(results) {
            out.output.set(&[b, h, j], f64::from(call.scale) * result);
        }
        state.for_each(|i, j, value| out.state.set(&[b, h, i, j], value));
    }
    Ok(())
}
