//! Functions of single elements over whole tensors: dense ones in blocks, others row by row.

use lz_core::{KernelError, TensorMut, TensorView};

use crate::rows::{AnyRows, AnyRowsMut, Shape, for_each_range, is_stream_start, worth_streaming};
use crate::simd::{Kind, Simd, vectors};

/// A function of `N` numbers. `apply` must be `#[inline(always)]`, as everything in an inner loop.
pub(crate) trait Pointwise<const N: usize>: Copy + Sync {
    /// The function on lanes.
    fn apply<S: Simd>(self, simd: S, x: [S::F32; N]) -> S::F32;
}

/// Applies a function to each element of tensors that have one shape and one float type.
pub(crate) fn run<S: Simd, const N: usize>(
    simd: S,
    inputs: [&TensorView<'_>; N],
    output: &mut TensorMut<'_>,
    function: impl Pointwise<N>,
) -> Result<(), KernelError> {
    let dense = output.layout().is_contiguous() && inputs.iter().all(|input| input.layout().is_contiguous());
    let shape = if dense { Shape::Blocks } else { Shape::Last };
    let elements = output.elements() as usize;
    let [first, ..] = inputs.as_slice() else { return Ok(()) };
    let mut rows = [AnyRows::new(first, shape)?; N];
    for (rows, input) in rows.iter_mut().zip(inputs) {
        *rows = AnyRows::new(input, shape)?;
    }
    let kind = rows[0].kind()?;
    let to = AnyRowsMut::new(output, shape)?;
    let stream = worth_streaming(elements * kind.size());
    for_each_range(rows[0].count(), (N + 1) * rows[0].width() * kind.size(), |range| {
        simd.vectorize(|| {
            for row in range {
                let mut from = [std::ptr::null(); N];
                for (from, rows) in from.iter_mut().zip(&rows) {
                    *from = rows.start(row);
                }
                // SAFETY: all rows have one length and one type, as the call was checked; ranges do not overlap, so nobody else has
                // this row of the output.
                unsafe { apply(simd, kind, from, to.start(row), to.len(row), function, stream) };
            }
            if stream {
                simd.fence();
            }
        });
    });
    Ok(())
}

/// # Safety
/// Each of `from` has `len` readable elements of the kind, `to` as many that may be written.
#[inline(always)]
unsafe fn apply<S: Simd, const N: usize>(
    s: S,
    kind: Kind,
    from: [*const u8; N],
    to: *mut u8,
    len: usize,
    function: impl Pointwise<N>,
    stream: bool,
) {
    let stream = stream && is_stream_start::<S>(to, kind.size());
    vectors!(S, len, |span| {
        let mut x = [s.splat(0.0); N];
        for k in 0..N {
            // SAFETY: spans stay inside the rows.
            x[k] = unsafe { kind.load(s, from[k], span) };
        }
        let value = function.apply(s, x);
        // SAFETY: as above, and whole vectors are aligned where they are streamed.
        unsafe { kind.put(s, to, span, value, stream) };
    });
}
