//! Reference of `moe.experts`: every chosen expert of every row in f64, without intermediate rounding.

use lz_core::KernelError;
use lz_core::tensor::{Dims, Indices};

use crate::reference::activation::{gelu, gelu_tanh, identity, relu, silu_with};
use crate::reference::index::with;
use crate::{MoeExpertsActivation, MoeExpertsCall, MoeExpertsGateUpLayout, MoeExpertsOut};

/// Runs the operation.
pub fn run(call: &MoeExpertsCall<'_>, mut out: MoeExpertsOut<'_>) -> Result<(), KernelError> {
    // Without outputs there may still be any number of rows to iterate over.
    if out.output.elements() == 0 {
        return Ok(());
    }
    for row in Indices::new(&call.axes.rows_dims) {
        let mut sums = vec![0.0; call.axes.out_features as usize];
        for slot in 0..call.axes.top_k {
            let expert = call.indices.int_at(&with(row, slot));
            if expert >= 0 {
                add_expert(call, row, expert, call.weights.at(&with(row, slot)), &mut sums);
            }
        }
        for (o, sum) in (0..).zip(&sums) {
            out.output.set(&with(row, o), *sum);
        }
    }
    Ok(())
}

/// Adds the weighted result of one expert for one row.
fn add_expert(call: &MoeExpertsCall<'_>, row: Dims, expert: i64, weight: f64, sums: &mut [f64]) {
    let intermediate = call.axes.intermediate;
    let project = |feature: i64| {
        let products = (0..call.axes.in_features)
            .map(|i| call.x.at(&with(row, i)) * call.gate_up_weight.at(&[expert, feature, i]));
        products.sum::<f64>() + call.gate_up_bias.map_or(0.0, |bias| bias.at(&[expert, feature]))
    };
    let hidden: Vec<f64> = (0..intermediate)
        .map(|m| match call.gate_up_layout {
            MoeExpertsGateUpLayout::Halves => gated(call, project(m), project(intermediate + m)),
            MoeExpertsGateUpLayout::Interleaved => gated(call, project(2 * m), project(2 * m + 1)),
        })
        .collect();
    for (o, sum) in (0..).zip(sums) {
        let products = (0..).zip(&hidden).map(|(m, h)| h * call.down_weight.at(&[expert, o, m]));
        let bias = call.down_bias.map_or(0.0, |bias| bias.at(&[expert, o]));
        *sum += weight * (products.sum::<f64>() + bias);
    }
}

/// `act(gate) * (up + up_offset)`, both bounded.
fn gated(call: &MoeExpertsCall<'_>, gate: f64, up: f64) -> f64 {
    let limit = f64::from(call.limit);
    // Comparisons instead of min and max, which drop NaN.
    let below = |z: f64| if limit > 0.0 && z > limit { limit } else { z };
    let above = |z: f64| if limit > 0.0 && z < -limit { -limit } else { z };
    let gate = below(gate);
    let activated = match call.activation {
        MoeExpertsActivation::None => identity(gate),
        MoeExpertsActivation::Relu => relu(gate),
        MoeExpertsActivation::Silu => silu_with(gate, f64::from(call.alpha)),
        MoeExpertsActivation::Gelu => gelu(gate),
        MoeExpertsActivation::GeluTanh => gelu_tanh(gate),
    };
    activated * (below(above(up)) + f64::from(call.up_offset))
}
