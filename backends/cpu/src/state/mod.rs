//! `attention.state.merge`: for each row the weights of its states, heads side by side in lanes; then each head's weighted sum.

use std::marker::PhantomData;

use lz_core::{KernelError, Run};
use lz_ops::{AttentionStateMergeCall, AttentionStateMergeKernel, AttentionStateMergeOut};

use crate::isa::require;
use crate::rows::{AnyRows, AnyRowsMut, Rows, RowsMut, Shape, for_each_range};
use crate::simd::{Float, FloatKind, Simd, Span, exp, vectors};

/// What stands for the weight of a state that takes no part, whatever its values are.
const ABSENT: f32 = -1.0;

/// Heads that are dense.
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
    tp_invariant = true
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

/// The weights of all rows; each task writes those of its own.
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
    for_each_range(rows, (states + 1) * heads * v.width() * kind.size(), |range| {
        simd.vectorize(|| {
            for row in range {
                // SAFETY: the workspace has `states * heads` weights a row, and ranges do not overlap.
                let (weights, lse) = unsafe { (weights.at(row * states * heads), lse.row(row)) };
                // SAFETY: as above.
                unsafe { weigh(simd, &s, row * states, states, weights, lse) };
                for head in 0..heads {
                    let (first, to) = (row * states * heads + head, output.start(row * heads + head));
                    // SAFETY: the weights of the row were written just now, and ranges do not overlap, so nobody else has this row.
                    unsafe { combine(simd, kind, &v, first, states, heads, weights.add(head), to) };
                }
            }
        });
    });
    Ok(())
}

/// Writes the weights of all states of a row, and its lse.
///
/// # Safety
/// `weights` has room for `states` times as many numbers as a row of `s` has.
#[inline(always)]
unsafe fn weigh<S: Simd>(
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
        // SAFETY: spans stay inside rows of `heads` numbers, which `s`, `lse` and each state's weights have.
        unsafe {
            let mut largest = lowest;
            for state in 0..states {
                largest = simd.max(f32::load(simd, s.row(first + state).as_ptr(), span), largest);
            }
            let mut total = simd.splat(0.0);
            for state in 0..states {
                let score = f32::load(simd, s.row(first + state).as_ptr(), span);
                let weight = exp(simd, simd.sub(score, largest));
                // A state that saw no key takes no part; NaN compares with nothing, so it is asked for apart.
                let present = simd.lt(lowest, score);
                let weight =
                    simd.select(present, weight, simd.select(simd.is_nan(score), score, simd.splat(ABSENT)));
                total =
                    simd.add(total, simd.select(simd.lt(weight, simd.splat(0.0)), simd.splat(0.0), weight));
                f32::store(simd, weights.add(state * heads), span, weight);
            }
            // The mean needs weights that sum to 1; where there is none the output is 0 because no state takes part.
            let scale = simd.div(simd.splat(1.0), total);
            for state in 0..states {
                let weight = f32::load(simd, weights.add(state * heads), span);
                // No weight is zero in exact arithmetic: one that is too small for f32 must still carry an infinity of its value.
                let scaled = simd.max(simd.splat(f32::from_bits(1)), simd.mul(weight, scale));
                let scaled = simd.select(simd.lt(weight, simd.splat(0.0)), weight, scaled);
                f32::store(simd, weights.add(state * heads), span, scaled);
            }
            f32::store(simd, lse.as_mut_ptr(), span, total);
            let mut maxima = [0.0; 16];
            simd.store(maxima.as_mut_ptr(), largest);
            for (lane, &largest) in maxima.iter().enumerate().take(span.part().unwrap_or(S::LANES)) {
                let place = lse.as_mut_ptr().add(span.at() + lane);
                *place = (f64::from(largest) + f64::from(*place).ln()) as f32;
            }
        }
    });
}

/// One head's weighted sum over its states.
///
/// # Safety
/// `weights` points at the head's first weight; those of the other states follow at distances of `heads`. `to` is a row of the
/// output.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "where the states of a head lie takes four of them")]
unsafe fn combine<S: Simd>(
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
            // SAFETY: the caller guarantees the weights; spans stay inside the rows, which have one length as the call was checked.
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
