//! Reference of `ssm.scan`: the recurrence of each head, position after position, in f64.

use lz_core::KernelError;
use lz_core::tensor::Indices;

use crate::reference::time_step::TimeStep;
use crate::{SsmScanCall, SsmScanOut};

/// Runs the operation.
pub fn run(call: &SsmScanCall<'_>, mut out: SsmScanOut<'_>) -> Result<(), KernelError> {
    let axes = &call.axes;
    let time_step = TimeStep { softplus: call.dt_softplus, min: call.dt_min, max: call.dt_max };
    for index in Indices::new(&[axes.batch, axes.heads, axes.head_dim]) {
        let [b, h, p] = *index else { continue };
        let group = h / (axes.heads / axes.groups);
        let mut state: Vec<f64> = (0..axes.state_dim)
            .map(|n| call.initial_state.map_or(0.0, |state| state.at(&[b, h, p, n])))
            .collect();
        for t in 0..axes.seq {
            let bias = call.dt_bias.map_or(0.0, |bias| bias.at(&[h]));
            let step = time_step.of(call.dt.at(&[b, t, h]) + bias);
            let (decay, x) = ((step * call.a.at(&[h])).exp(), call.x.at(&[b, t, h, p]));
            let mut sum = 0.0;
            for (n, value) in (0..).zip(&mut state) {
                *value = decay * *value + step * x * call.b.at(&[b, t, group, n]);
                sum += *value * call.c.at(&[b, t, group, n]);
            }
            out.output.set(&[b, t, h, p], sum + call.d.map_or(0.0, |d| d.at(&[h]) * x));
        }
        if let Some(target) = &mut out.final_state {
            for (n, value) in (0..).zip(&state) {
                target.set(&[b, h, p, n], *value);
            }
        }
    }
    Ok(())
}
