//! Functions of single elements over whole tensors: dense ones in blocks, others row by row.

use half::{bf16, f16};
use lz_core::{KernelError, TensorMut, TensorView};

use crate::rows::{AnyRows, AnyRowsMut, Shape, for_each_range, is_stream_start, worth_streaming};
use crate::simd::{Float, Kind, Simd, Span, Work, vectors};

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
        for row in range {
            let mut from = [std::ptr::null(); N];
            for (from, rows) in from.iter_mut().zip(&rows) {
                *from = rows.start(row);
            }
            let (to, len) = (to.start(row), to.len(row));
            let stream = stream && is_stream_start::<S>(to, kind.size());
            // All rows have one length and one type, as the call was checked; ranges do not overlap, so nobody else has this row of
            // the output. Where it is streamed it starts as streams must.
            match kind {
                Kind::F32 => simd.perform(Row {
                    simd,
                    from: from.map(cast::<f32>),
                    to: to.cast::<f32>(),
                    len,
                    function,
                    stream,
                }),
                Kind::F16 => simd.perform(Row {
                    simd,
                    from: from.map(cast::<f16>),
                    to: to.cast::<f16>(),
                    len,
                    function,
                    stream,
                }),
                Kind::BF16 => simd.perform(Row {
                    simd,
                    from: from.map(cast::<bf16>),
                    to: to.cast::<bf16>(),
                    len,
                    function,
                    stream,
                }),
            }
        }
        if stream {
            simd.fence();
        }
    });
    Ok(())
}

fn cast<T>(row: *const u8) -> *const T {
    row.cast()
}

/// One row, with a loop of its own for every type.
struct Row<S, T, F, const N: usize> {
    simd: S,
    from: [*const T; N],
    to: *mut T,
    len: usize,
    function: F,
    stream: bool,
}

impl<S: Simd, T: Float, F: Pointwise<N>, const N: usize> Row<S, T, F, N> {
    /// # Safety
    /// Elements of the span are readable at each of `from`.
    #[inline(always)]
    unsafe fn value(&self, span: impl Span) -> S::F32 {
        let mut x = [self.simd.splat(0.0); N];
        for (x, &from) in x.iter_mut().zip(&self.from) {
            // SAFETY: the caller vouches for the elements.
            *x = unsafe { T::load(self.simd, from, span) };
        }
        self.function.apply(self.simd, x)
    }
}

impl<S: Simd, T: Float, F: Pointwise<N>, const N: usize> Work for Row<S, T, F, N> {
    #[inline(always)]
    fn perform(self) {
        let s = self.simd;
        // SAFETY: whoever made the row vouches for `len` elements on all sides, and for aligned ones where they are streamed.
        unsafe {
            if self.stream {
                vectors!(S, self.len, |span| { T::stream(s, self.to, span, self.value(span)) });
            } else {
                vectors!(S, self.len, |span| { T::store(s, self.to, span, self.value(span)) });
            }
        }
    }
}
