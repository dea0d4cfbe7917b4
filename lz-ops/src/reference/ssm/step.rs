//! Reference of `ssm.step`: one step of the recurrence of each head, in f64.

use lz_core::KernelError;
use lz_core::tensor::Indices;

use crate::reference::time_step::TimeStep;
use crate::{SsmStepCall, SsmStepOut};

/// Runs the operation.
pub fn run(call: &SsmStepCall<'_>, mut out: SsmStepOut<'_>) -> Result<(), KernelError> {
    let axes = &call.axes;
    let time_step = TimeStep { softplus: call.dt_softplus, min: call.dt_min, max: call.dt_max };
    for index in Indices::new(call.x.shape()) {
        let [b, h, p] = *index else { continue };
        let group = h / (axes.heads / axes.groups);
        let bias = call.dt_bias.map_or(0.0, |bias| bias.at(&[h]));
        let step = time_step.of(call.dt.at(&[b, h]) + bias);
        let (decay, x) = ((step * call.a.at(&[h])).exp(), call.x.at(&index));
        let mut sum = 0.0;
        for n in 0..axes.state_dim {
            let element = [b, h, p, n];
            let value = decay * out.state.as_view().at(&element) + step * x * call.b.at(&[b, group, n]);
            out.state.set(&element, value);
            sum += value * call.c.at(&[b, group, n]);
        }
        out.output.set(&index, sum + call.d.map_or(0.0, |d| d.at(&[h]) * x));
    }
    Ok(())
}
