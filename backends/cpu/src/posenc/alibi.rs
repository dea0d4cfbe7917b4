//! `posenc.alibi`: one FMA per score.

use std::marker::PhantomData;

use lz_core::{KernelError, Run};
use lz_ops::{PosencAlibiCall, PosencAlibiKernel, PosencAlibiOut};

use crate::isa::require;
use crate::rows::{AnyRows, AnyRowsMut, Rows, Shape, for_each_range, is_stream_aligned, should_stream};
use crate::simd::{FloatKind, Simd, Span, vectors};

/// Larger distances take the scalar path, because they may overflow i32 lanes.
const MAX_I32_DISTANCE: i64 = 1 << 30;

/// Dense rows of scores.
#[derive(Debug)]
pub(crate) struct AlibiRows<S>(pub PhantomData<S>);

#[lz_macros::kernel(
    id = "cpu.posenc.alibi",
    operation = "posenc.alibi",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16]),
    strides = last_dense,
    deterministic,
    tp_invariant = true,
    batch_invariant = true
)]
impl<S: Simd> PosencAlibiKernel for AlibiRows<S> {
    fn run(
        &self,
        call: &PosencAlibiCall<'_>,
        mut out: PosencAlibiOut<'_>,
        _run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        run(require::<S>()?, call, &mut out)
    }
}

fn run<S: Simd>(
    simd: S,
    call: &PosencAlibiCall<'_>,
    out: &mut PosencAlibiOut<'_>,
) -> Result<(), KernelError> {
    let scores = AnyRows::new(&call.scores, Shape::Last)?;
    let y = AnyRowsMut::new(&mut out.output, Shape::Last)?;
    let kind = scores.kind()?;
    let slopes = Rows::<f32>::new(&call.slopes)?;
    let slopes = slopes.row(0);
    let (heads, queries) = (call.axes.heads as usize, call.axes.seq_q as usize);
    let (keys, bytes) = (scores.width(), scores.width() * kind.size());
    let stream = should_stream(scores.count() * bytes);
    for_each_range(scores.count(), 2 * bytes, &|range| {
        simd.vectorize(|| {
            for row in range {
                let (head, query) = (row / queries % heads, row % queries);
                let (from, to) = (scores.start(row), y.start(row));
                let first = (query as i64 + call.causal_offset).saturating_neg();
                let slope = slopes.get(head).copied().unwrap_or(f32::NAN);
                // SAFETY: both rows have `keys` elements of `kind` (validated); ranges are disjoint, so no
                // other task writes this row.
                unsafe {
                    if first.abs() < MAX_I32_DISTANCE && (keys as i64) < MAX_I32_DISTANCE {
                        bias(simd, kind, from, to, keys, slope, first as i32, stream);
                    } else {
                        bias_f64(kind, from, to, keys, slope, first);
                    }
                }
            }
            if stream {
                simd.fence();
            }
        });
    });
    Ok(())
}

/// # Safety
/// `from` has `len` readable elements of `kind`, `to` has `len` writable ones.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "four of them describe a row")]
unsafe fn bias<S: Simd>(
    s: S,
    kind: FloatKind,
    from: *const u8,
    to: *mut u8,
    len: usize,
    slope: f32,
    first: i32,
    stream: bool,
) {
    let stream = stream && is_stream_aligned::<S>(to, kind.size());
    let slope = s.splat(slope);
    let positions = s.add_i32(s.lane_indices(), s.splat_i32(first));
    vectors!(S, len, |span| {
        let distance = s.to_f32(s.add_i32(positions, s.splat_i32(span.at() as i32)));
        // SAFETY: spans stay inside the rows.
        unsafe { kind.put(s, to, span, s.fma(slope, distance, kind.load(s, from, span)), stream) };
    });
}

/// # Safety
/// As [`bias`].
#[cold]
#[inline(never)]
unsafe fn bias_f64(kind: FloatKind, from: *const u8, to: *mut u8, len: usize, slope: f32, first: i64) {
    for index in 0..len {
        let distance = first as f64 + index as f64;
        // SAFETY: the index is inside the rows.
        unsafe {
            let score = f64::from(kind.get(from, index));
            kind.set(to, index, (score + f64::from(slope) * distance) as f32);
        }
    }
}
