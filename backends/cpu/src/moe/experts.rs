//! `moe.experts`: one expert after the other over its own tokens, added up in f32.

use std::marker::PhantomData;

use lz_core::{KernelError, Run};
use lz_ops::{MoeExpertsCall, MoeExpertsGateUpLayout, MoeExpertsKernel, MoeExpertsOut};

use super::assign::{Assignment, words};
use super::exact::ExactRows;
use super::expert::{Expert, MAX_SKINNY_BEFORE_TILES, Matrix, Weights};
use super::gating::Gating;
use crate::gemm::blocked::max_packed_bytes;
use crate::gemm::dots::dot_f64;
use crate::isa::require;
use crate::rows::{Rows, RowsMut, for_each_range};
use crate::simd::{Float, Simd, vectors, with_float};

/// Tokens of an expert that run at once: a block of rows of the GEMM.
const MAX_TOKENS: usize = crate::gemm::blocked::MAX_MC;

/// Dense rows of any float type.
#[derive(Debug)]
pub(crate) struct Experts<S>(pub PhantomData<S>);

#[lz_macros::kernel(
    id = "cpu.moe.experts",
    operation = "moe.experts",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16]),
    strides = last_dense,
    deterministic,
    workspace = "(0 if rows <= 2 else ceil_div(min(rows, 1056), 96) * 96 * ceil_div(max(in_features, intermediate), 32) * 128) + (min(rows, 1056) * intermediate + rows * out_features + 2 * rows * top_k + experts + 1) * 4"
)]
impl<S: Simd> MoeExpertsKernel for Experts<S> {
    fn run(
        &self,
        call: &MoeExpertsCall<'_>,
        mut out: MoeExpertsOut<'_>,
        run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let s = require::<S>()?;
        let axes = &call.axes;
        let [rows, intermediate, out_features] =
            [axes.rows, axes.intermediate, axes.out_features].map(|size| size as usize);
        let depth = axes.in_features.max(axes.intermediate) as usize;
        let packed = if rows <= MAX_SKINNY_BEFORE_TILES { 0 } else { max_packed_bytes(rows, depth) as usize };
        let hidden = rows.min(MAX_TOKENS) * intermediate;
        let words = words(rows * axes.top_k as usize, axes.experts as usize);
        let all =
            run.workspace((packed + (hidden + rows * out_features + words) * size_of::<f32>()) as u64)?;
        let (packed, rest) = all.split_at_mut(packed);
        // SAFETY: the workspace is aligned for u32 and f32, has these bytes, and any bits are valid values.
        let rest = unsafe { std::slice::from_raw_parts_mut(rest.as_mut_ptr().cast::<u32>(), rest.len() / 4) };
        let (hidden, rest) = rest.split_at_mut(hidden);
        let (sums, words) = rest.split_at_mut(rows * out_features);
        sums.fill(0);
        let hidden = Matrix { start: hidden.as_mut_ptr().cast(), width: intermediate };
        let sums = Matrix { start: sums.as_mut_ptr().cast(), width: out_features };
        let assignment = Assignment::new(&call.indices, &call.weights, axes.experts as usize, words)?;
        let gating = Gating::new(call.activation, call.alpha, call.limit, call.up_offset);
        with_float!(call.dtype_t, T => {
            let x = Rows::<T>::new(&call.x)?;
            let output = RowsMut::<T>::new(&mut out.output)?;
            let weights = Weights::<T> {
                gate_up: Rows::new(&call.gate_up_weight)?,
                down: Rows::new(&call.down_weight)?,
                gate_up_bias: call.gate_up_bias.as_ref().map(Rows::new).transpose()?,
                down_bias: call.down_bias.as_ref().map(Rows::new).transpose()?,
                interleaved: call.gate_up_layout == MoeExpertsGateUpLayout::Interleaved,
                intermediate,
                out_features,
            };
            for number in 0..axes.experts as usize {
                let (tokens, factors) = assignment.of(number);
                for (tokens, factors) in tokens.chunks(MAX_TOKENS).zip(factors.chunks(MAX_TOKENS)) {
                    Expert { s, number, x, tokens, factors, weights, gating, hidden, sums }.run(packed);
                }
            }
            store(s, sums, &output, rows);
            let project = |row: usize, expert, half, feature| {
                let bias = weights.bias(expert, half, feature);
                dot_f64(x.row(row), weights.gate_or_up(expert, half, feature)) + f64::from(bias)
            };
            let down = |expert: usize, feature: usize, hidden: &[f64]| {
                let products = hidden.iter().zip(weights.down_row(expert, feature));
                let sum: f64 = products.map(|(hidden, weight)| hidden * f64::from(weight.to_f32())).sum();
                sum + f64::from(weights.down_bias.map_or(0.0, |bias| bias.row(expert)[feature].to_f32()))
            };
            ExactRows::new([&call.indices, &call.weights], intermediate, gating)?
                .recompute(&output, project, down)
        })
    }
}

/// Rounds the sums to the output.
pub(super) fn store<S: Simd, T: Float>(s: S, sums: Matrix, output: &RowsMut<'_, T>, rows: usize) {
    for_each_range(rows, sums.width * 8, &|range| {
        for row in range {
            // SAFETY: all tasks that write sums finished; every output row belongs to one task.
            let (from, to) = unsafe { (sums.part(row, 0..sums.width), output.row(row)) };
            s.vectorize(|| {
                vectors!(S, to.len(), |span| {
                    // SAFETY: both rows have this many elements.
                    unsafe {
                        T::store(s, to.as_mut_ptr(), span, <f32 as Float>::load(s, from.as_ptr(), span))
                    };
                });
            });
        }
    });
}
