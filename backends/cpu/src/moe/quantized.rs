//! `moe.experts.quantized`: weights are decoded to f32 a few rows at a time, for all tokens of an expert.

use std::marker::PhantomData;
use std::ops::Range;

use lz_core::tensor::TensorView;
use lz_core::{KernelError, Run};
use lz_ops::{
    MoeExpertsActivation as Activation, MoeExpertsQuantizedActivation as Named, MoeExpertsQuantizedCall,
    MoeExpertsQuantizedFormat as Format, MoeExpertsQuantizedGateUpLayout as GateUpLayout,
    MoeExpertsQuantizedGranularity as Granularity, MoeExpertsQuantizedKernel, MoeExpertsQuantizedOut,
};

use super::assign::{Assignment, words};
use super::exact::ExactRows;
use super::expert::Matrix;
use super::experts::store;
use super::gating::Gating;
use crate::gemm::dots::recompute_with_bias;
use crate::isa::require;
use crate::quant::{COLUMNS, Grouping, LEFT_ROWS, QuantizedRows, Stored, products};
use crate::rows::{Rows, RowsMut, Shape, for_each_range};
use crate::simd::{Float, Simd, with_float};

/// Features and inputs per side of a block.
const BLOCK: usize = 128;

/// Gate features of a product; it has as many up features.
const FEATURES: usize = COLUMNS / 2;

/// Dense rows, every format and granularity.
#[derive(Debug)]
pub(crate) struct QuantizedExperts<S>(pub PhantomData<S>);

#[lz_macros::kernel(
    id = "cpu.moe.experts.quantized",
    operation = "moe.experts.quantized",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16]),
    quant_formats("fp8_e4m3", "int8", "int4", "mxfp4"),
    strides = last_dense,
    deterministic,
    workspace = "(min(rows, 64) * intermediate + rows * out_features + 2 * rows * top_k + experts + 1) * 4"
)]
impl<S: Simd> MoeExpertsQuantizedKernel for QuantizedExperts<S> {
    fn run(
        &self,
        call: &MoeExpertsQuantizedCall<'_>,
        mut out: MoeExpertsQuantizedOut<'_>,
        run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let s = require::<S>()?;
        let axes = &call.axes;
        let [rows, intermediate, out_features] =
            [axes.rows, call.intermediate, axes.out_features].map(|size| size as usize);
        let hidden = rows.min(LEFT_ROWS) * intermediate;
        let words = words(rows * axes.top_k as usize, axes.experts as usize);
        let all = run.workspace(((hidden + rows * out_features + words) * size_of::<f32>()) as u64)?;
        // SAFETY: the workspace is aligned for u32 and f32, has these bytes, and any bits are valid values.
        let all = unsafe { std::slice::from_raw_parts_mut(all.as_mut_ptr().cast::<u32>(), all.len() / 4) };
        let (hidden, rest) = all.split_at_mut(hidden);
        let (sums, words) = rest.split_at_mut(rows * out_features);
        sums.fill(0);
        let hidden = Matrix { start: hidden.as_mut_ptr().cast(), width: intermediate };
        let sums = Matrix { start: sums.as_mut_ptr().cast(), width: out_features };
        let assignment = Assignment::new(&call.indices, &call.weights, axes.experts as usize, words)?;
        let gate_up = weights(call, &call.gate_up_weight, &call.gate_up_scale, 2 * intermediate)?;
        let down = weights(call, &call.down_weight, &call.down_scale, out_features)?;
        with_float!(call.dtype_t, T => {
            let output = RowsMut::<T>::new(&mut out.output)?;
            let layer = Layer::<S, T> {
                s,
                x: Rows::new(&call.x)?,
                gate_up,
                down,
                gate_up_bias: call.gate_up_bias.as_ref().map(Rows::new).transpose()?,
                down_bias: call.down_bias.as_ref().map(Rows::new).transpose()?,
                interleaved: call.gate_up_layout == GateUpLayout::Interleaved,
                intermediate,
                out_features,
                gating: Gating::new(activation(call.activation), call.alpha, call.limit, call.up_offset),
                hidden,
                sums,
            };
            for number in 0..axes.experts as usize {
                let (tokens, factors) = assignment.of(number);
                for (tokens, factors) in tokens.chunks(LEFT_ROWS).zip(factors.chunks(LEFT_ROWS)) {
                    layer.run(number, tokens, factors);
                }
            }
            store(s, sums, &output, rows);
            let project = |row: usize, expert, half, feature| {
                let weight = 2 * expert * intermediate + layer.pair(feature)[half];
                dot_f64(layer.x.row(row), &layer.gate_up, weight) + f64::from(layer.bias(expert, half, feature))
            };
            let down = |expert: usize, feature: usize, hidden: &[f64]| {
                let weight = expert * out_features + feature;
                // SAFETY: the row has `intermediate` elements (validated).
                let value = |m| unsafe { layer.down.value(weight, m) };
                let sum: f64 = hidden.iter().enumerate().map(|(m, hidden)| hidden * value(m)).sum();
                sum + f64::from(layer.down_bias.map_or(0.0, |bias| bias.row(expert)[feature].to_f32()))
            };
            ExactRows::new([&call.indices, &call.weights], intermediate, layer.gating)?
                .recompute(&output, project, down)
        })
    }
}

/// The weights of a projection with `features` features for each expert.
fn weights<'a>(
    call: &MoeExpertsQuantizedCall<'_>,
    codes: &'a TensorView<'_>,
    scales: &'a TensorView<'_>,
    features: usize,
) -> Result<QuantizedRows<'a>, KernelError> {
    let stored = match call.format {
        Format::Fp8E4m3 => Stored::E4m3,
        Format::Int8 => Stored::Int8,
        Format::Int4 => Stored::Int4,
        Format::Mxfp4 => Stored::E2m1,
    };
    let (shape, rows, elements) = match call.granularity {
        Granularity::Tensor => (Shape::Elements, features, usize::MAX),
        Granularity::Row => (Shape::Elements, 1, usize::MAX),
        Granularity::Group => (Shape::Last, 1, call.group_size as usize),
        Granularity::Block => (Shape::Last, BLOCK, BLOCK),
    };
    QuantizedRows::new(codes, stored, scales, shape, Grouping { matrix: features, rows, elements })
}

fn activation(named: Named) -> Activation {
    match named {
        Named::None => Activation::None,
        Named::Relu => Activation::Relu,
        Named::Silu => Activation::Silu,
        Named::Gelu => Activation::Gelu,
        Named::GeluTanh => Activation::GeluTanh,
    }
}

/// All experts.
struct Layer<'a, S, T> {
    s: S,
    x: Rows<'a, T>,
    gate_up: QuantizedRows<'a>,
    down: QuantizedRows<'a>,
    gate_up_bias: Option<Rows<'a, T>>,
    down_bias: Option<Rows<'a, T>>,
    /// Gate and up rows alternate.
    interleaved: bool,
    intermediate: usize,
    out_features: usize,
    gating: Gating,
    /// One row per token of the expert that runs.
    hidden: Matrix,
    /// One row per row of `x`.
    sums: Matrix,
}

impl<S: Simd, T: Float> Layer<'_, S, T> {
    /// The rows of the gate and of the up projection of a feature, within their expert.
    fn pair(&self, feature: usize) -> [usize; 2] {
        if self.interleaved { [2 * feature, 2 * feature + 1] } else { [feature, self.intermediate + feature] }
    }

    /// The bias of a gate or up feature (`half` 0 or 1).
    fn bias(&self, expert: usize, half: usize, feature: usize) -> f32 {
        self.gate_up_bias.map_or(0.0, |bias| bias.row(expert)[self.pair(feature)[half]].to_f32())
    }

    /// Runs one expert for at most [`LEFT_ROWS`] tokens.
    fn run(&self, expert: usize, tokens: &[u32], factors: &[f32]) {
        if tokens.is_empty() || self.out_features == 0 {
            return;
        }
        let mut x: [&[T]; LEFT_ROWS] = [&[]; LEFT_ROWS];
        x.iter_mut().zip(tokens).for_each(|(to, token)| *to = self.x.row(*token as usize));
        let x = &x[..tokens.len()];
        for_each_group(self.intermediate, FEATURES, self.x.width() * COLUMNS * tokens.len(), |features| {
            self.hide(expert, x, features);
        });
        let mut hidden: [&[f32]; LEFT_ROWS] = [&[]; LEFT_ROWS];
        for (row, hidden) in hidden.iter_mut().enumerate().take(tokens.len()) {
            // SAFETY: all tasks that write it finished.
            *hidden = unsafe { self.hidden.part(row, 0..self.intermediate) };
        }
        let hidden = &hidden[..tokens.len()];
        for_each_group(self.out_features, COLUMNS, self.intermediate * COLUMNS * tokens.len(), |features| {
            let mut rows = [0; COLUMNS];
            rows.iter_mut()
                .zip(features.clone())
                .for_each(|(row, feature)| *row = expert * self.out_features + feature);
            // SAFETY: hidden rows and rows of the down projection have `intermediate` elements (validated).
            let sums =
                unsafe { products(self.s, hidden, &self.down, &rows[..features.len()], self.intermediate) };
            for ((&token, &factor), sums) in tokens.iter().zip(factors).zip(&sums) {
                // SAFETY: an expert has each token once, and tasks have disjoint columns, inside the row.
                let to = unsafe { self.sums.part(token as usize, features.clone()) };
                for ((to, sum), feature) in to.iter_mut().zip(sums).zip(features.clone()) {
                    let bias = self.down_bias.map_or(0.0, |bias| bias.row(expert)[feature].to_f32());
                    *to += factor * (sum + bias);
                }
            }
        });
    }

    /// Computes some hidden features of all tokens.
    fn hide(&self, expert: usize, x: &[&[T]], features: Range<usize>) {
        let count = features.len();
        let mut rows = [0; COLUMNS];
        for (index, feature) in features.clone().enumerate() {
            let [gate, up] = self.pair(feature).map(|row| 2 * expert * self.intermediate + row);
            (rows[index], rows[count + index]) = (gate, up);
        }
        // SAFETY: rows of x and of the projections have the same width (validated).
        let mut sums = unsafe { products(self.s, x, &self.gate_up, &rows[..2 * count], self.x.width()) };
        for (token, sums) in sums.iter_mut().enumerate().take(x.len()) {
            let (gates, ups) = sums.split_at_mut(count);
            let ups = &mut ups[..count];
            for (half, sums) in [&mut *gates, &mut *ups].into_iter().enumerate() {
                let bias = |index: usize| self.bias(expert, half, features.start + index);
                let done = recompute_with_bias(self.s, sums, bias, |index| {
                    dot_f64(x[token], &self.gate_up, rows[half * count + index])
                });
                if !done && self.gate_up_bias.is_some() {
                    sums.iter_mut().enumerate().for_each(|(index, sum)| *sum += bias(index));
                }
            }
            // SAFETY: tasks have disjoint features, which are inside the row.
            let to = unsafe { self.hidden.part(token, features.clone()) };
            self.gating.apply(self.s, gates, ups, to);
        }
    }
}

/// Dot product of a row of floats with a row of codes of the same width, in f64.
#[cold]
#[inline(never)]
fn dot_f64<A: Float>(x: &[A], rows: &QuantizedRows<'_>, row: usize) -> f64 {
    let elements = x.iter().enumerate();
    // SAFETY: both rows have the same width (validated).
    elements.map(|(i, x)| f64::from(x.to_f32()) * unsafe { rows.value(row, i) }).sum()
}

/// Runs `body` for groups of features, distributed over the thread pool. A group costs about as much as reading `bytes` bytes.
fn for_each_group(count: usize, group: usize, bytes: usize, body: impl Fn(Range<usize>) + Sync) {
    for_each_range(count.div_ceil(group), bytes, &|groups| {
        for index in groups {
            body(index * group..count.min((index + 1) * group));
        }
    });
}
