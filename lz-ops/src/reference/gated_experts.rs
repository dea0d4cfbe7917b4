//! The experts of mixture-of-experts layers in f64, without intermediate rounding, for any storage of their weights.

use lz_core::tensor::{Dims, Indices, TensorMut, TensorView};

use crate::reference::index::with;

/// The experts of a layer and the tokens that chose them.
pub struct GatedExperts<'c, 'a> {
    /// Leading dimensions of `x`.
    pub rows: Dims,
    /// Chosen experts per token.
    pub top_k: i64,
    /// Inputs of a token.
    pub in_features: i64,
    /// Features between the projections.
    pub intermediate: i64,
    /// Outputs of a token.
    pub out_features: i64,
    /// The tokens.
    pub x: TensorView<'a>,
    /// The chosen experts; -1 for none.
    pub indices: TensorView<'a>,
    /// The weight of each chosen expert.
    pub weights: TensorView<'a>,
    /// A weight of the gate and up projections by expert, feature and input.
    pub gate_up: &'c dyn Fn(i64, i64, i64) -> f64,
    /// A weight of the down projection by expert, feature and input.
    pub down: &'c dyn Fn(i64, i64, i64) -> f64,
    /// Biases of the gate and up projections.
    pub gate_up_bias: Option<TensorView<'a>>,
    /// Biases of the down projection.
    pub down_bias: Option<TensorView<'a>>,
    /// Gate and up features alternate.
    pub interleaved: bool,
    /// Applied to the gate.
    pub activation: &'c dyn Fn(f64) -> f64,
    /// Bound of gate and up; 0 for none.
    pub limit: f64,
    /// Added to up.
    pub up_offset: f64,
}

impl GatedExperts<'_, '_> {
    /// Writes the weighted sum of the chosen experts of every token.
    pub fn run(&self, output: &mut TensorMut<'_>) {
        // Without outputs there may still be any number of rows to iterate over.
        if output.elements() == 0 {
            return;
        }
        for row in Indices::new(&self.rows) {
            let mut sums = vec![0.0; self.out_features as usize];
            for slot in 0..self.top_k {
                let expert = self.indices.int_at(&with(row, slot));
                if expert >= 0 {
                    self.add_expert(row, expert, self.weights.at(&with(row, slot)), &mut sums);
                }
            }
            for (o, sum) in (0..).zip(&sums) {
                output.set(&with(row, o), *sum);
            }
        }
    }

    /// Adds the weighted result of one expert for one row.
    fn add_expert(&self, row: Dims, expert: i64, weight: f64, sums: &mut [f64]) {
        let project = |feature: i64| {
            let products =
                (0..self.in_features).map(|i| self.x.at(&with(row, i)) * (self.gate_up)(expert, feature, i));
            products.sum::<f64>() + self.gate_up_bias.map_or(0.0, |bias| bias.at(&[expert, feature]))
        };
        let hidden: Vec<f64> = (0..self.intermediate)
            .map(|m| match self.interleaved {
                false => self.gated(project(m), project(self.intermediate + m)),
                true => self.gated(project(2 * m), project(2 * m + 1)),
            })
            .collect();
        for (o, sum) in (0..).zip(sums) {
            let products = (0..).zip(&hidden).map(|(m, h)| h * (self.down)(expert, o, m));
            let bias = self.down_bias.map_or(0.0, |bias| bias.at(&[expert, o]));
            *sum += weight * (products.sum::<f64>() + bias);
        }
    }

    /// `act(gate) * (up + up_offset)`, both bounded.
    fn gated(&self, gate: f64, up: f64) -> f64 {
        let limit = self.limit;
        // Comparisons instead of min and max, which drop NaN.
        let below = |z: f64| if limit > 0.0 && z > limit { limit } else { z };
        let above = |z: f64| if limit > 0.0 && z < -limit { -limit } else { z };
        (self.activation)(below(gate)) * (below(above(up)) + self.up_offset)
    }
}
