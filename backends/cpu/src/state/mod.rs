//! `attention.state.merge`: merges partial attention states by their log-sum-exp. Computes the weights of a
//! row's states with heads in lanes, then each head's weighted sum.

use std::marker::PhantomData;

use lz_core::{KernelError, Run};
use lz_ops::{AttentionStateMergeCall, AttentionStateMergeKernel, AttentionStateMergeOut};

use crate::isa::require;
use crate::rows::{AnyRows, AnyRowsMut, Rows, RowsMut, Shape, for_each_range};
use crate::simd::{Float, FloatKind, Simd, Span, exp, vectors};

/// Marks the weight of a state without keys, whose values are ignored.
const ABSENT: f32 = -1.0;

/// Dense heads.
#[derive(Debug)]
pub(crate) struct MergeRows<S>(pub PhantomData<S>);

#[lz_macros::kernel(
    id = "cpu.attention.state.merge",
    operation = "attention.state.merge",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16]),
    strides = last_dense,
    workspace = "4 * rows * states * heads",
    deterministic,
    tp_invariant = true,
    batch_invariant = true
)]
impl<S: Simd> AttentionStateMergeKernel for MergeRows<S> {
    fn run(
        &self,
        call: &AttentionStateMergeCall<'_>,
        mut out: AttentionStateMergeOut<'_>,
        run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        merge(require::<S>()?, call, &mut out, run)
    }
}

/// The weights of all rows; each task writes those of its own rows.
#[derive(Debug, Clone, Copy)]
struct Weights(*mut f32);

// SAFETY: tasks write and read the weights of different rows.
unsafe impl Sync for Weights {}

impl Weights {
    /// # Safety
    /// `index` is inside the workspace.
    #[inline(always)]
    unsafe fn at(&self, index: usize) -> *mut f32 {
        // SAFETY: the caller guarantees the index.
        unsafe { self.0.add(index) }
    }
}

fn merge<S: Simd>(
    simd: S,
    call: &AttentionStateMergeCall<'_>,
    out: &mut AttentionStateMergeOut<'_>,
    run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let axes = &call.axes;
    let (rows, states, heads) = (axes.rows as usize, axes.states as usize, axes.heads as usize);
    let workspace = run.workspace((4 * rows * states * heads) as u64)?;
    let weights = Weights(workspace.as_mut_ptr().cast());
    let (v, s) = (AnyRows::new(&call.v, Shape::Last)?, Rows::<f32>::new(&call.s)?);
    let (output, lse) = (AnyRowsMut::new(&mut out.output, Shape::Last)?, RowsMut::<f32>::new(&mut out.lse)?);
    let kind = v.kind()?;
    for_each_range(rows, (states + 1) * heads * v.width() * kind.size(), &|range| {
        simd.vectorize(|| {
            for row in range {
                // SAFETY: the workspace has `states * heads` weights per row, and ranges are disjoint.
                let (weights, lse) = unsafe { (weights.at(row * states * heads), lse.row(row)) };
                // SAFETY: as above.
                unsafe { compute_weights(simd, &s, row * states, states, weights, lse) };
                for head in 0..heads {
                    let (first, to) = (row * states * heads + head, output.start(row * heads + head));
                    // SAFETY: the weights of the row were just written, and ranges are disjoint, so no other
                    // task writes this row.
                    unsafe { weighted_sum(simd, kind, &v, first, states, heads, weights.add(head), to) };
                }
            }
        });
    });
    Ok(())
}

/// Writes the weights of all states of a row, and its lse.
///
/// # Safety
/// `weights` has space for `states` times as many elements as a row of `s`.
#[inline(always)]
unsafe fn compute_weights<S: Simd>(
    simd: S,
    s: &Rows<'_, f32>,
    first: usize,
    states: usize,
    weights: *mut f32,
    lse: &mut [f32],
) {
    let heads = s.width();
    let lowest = simd.splat(f32::NEG_INFINITY);
    vectors!(S, heads, |span| {
        // SAFETY: spans stay inside rows of `heads` elements, which `s`, `lse` and each state's weights have.
        unsafe {
            let mut largest = lowest;
            for state in 0..states {
                largest = simd.max(f32::load(simd, s.row(first + state).as_ptr(), span), largest);
            }
            let mut total = simd.splat(0.0);
            for state in 0..states {
                let score = f32::load(simd, s.row(first + state).as_ptr(), span);
                let weight = exp(simd, simd.sub(score, largest));
                // A state without keys (-∞) is ignored. NaN never compares as less, so it is handled
                // separately.
                let present = simd.lt(lowest, score);
                let weight =
                    simd.select(present, weight, simd.select(simd.is_nan(score), score, simd.splat(ABSENT)));
                total =
                    simd.add(total, simd.select(simd.lt(weight, simd.splat(0.0)), simd.splat(0.0), weight));
                f32::store(simd, weights.add(state * heads), span, weight);
            }
            // Weights are normalized to a sum of 1; if all states are empty, the output is 0.
            let scale = simd.div(simd.splat(1.0), total);
            for state in 0..states {
                let weight = f32::load(simd, weights.add(state * heads), span);
                // In exact arithmetic no weight is zero: one that underflows f32 must still propagate an
                // infinity of its value.
                let scaled = simd.max(simd.splat(f32::from_bits(1)), simd.mul(weight, scale));
                let scaled = simd.select(simd.lt(weight, simd.splat(0.0)), weight, scaled);
                f32::store(simd, weights.add(state * heads), span, scaled);
            }
            f32::store(simd, lse.as_mut_ptr(), span, total);
            let mut maxima = [0.0; 16];
            simd.store(maxima.as_mut_ptr(), largest);
            for (lane, &largest) in maxima.iter().enumerate().take(span.part().unwrap_or(S::LANES)) {
                let element = lse.as_mut_ptr().add(span.at() + lane);
                *element = (f64::from(largest) + f64::from(*element).ln()) as f32;
            }
        }
    });
}

/// One head's weighted sum over its states.
///
/// # Safety
/// `weights` points to the head's first weight; those of the other states follow with stride `heads`. `to` is
/// a row of the output.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "four of them locate the states of a head")]
unsafe fn weighted_sum<S: Simd>(
    simd: S,
    kind: FloatKind,
    v: &AnyRows<'_>,
    first: usize,
    states: usize,
    heads: usize,
    weights: *const f32,
    to: *mut u8,
) {
    vectors!(S, v.width(), |span| {
        let mut sum = simd.splat(0.0);
        for state in 0..states {
            // SAFETY: the caller guarantees the weights; spans stay inside the rows, which have the same
            // length (validated).
            unsafe {
                let weight = *weights.add(state * heads);
                if weight != ABSENT {
                    let values = kind.load(simd, v.start(first + state * heads), span);
                    sum = simd.fma(values, simd.splat(weight), sum);
                }
            }
        }
        // SAFETY: the caller guarantees the row.
        unsafe { kind.store(simd, to, span, sum) };
    });
}
