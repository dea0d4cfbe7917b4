//! Elementwise functions over whole tensors: contiguous tensors in fixed-size blocks, others row by row.

use half::{bf16, f16};
use lz_core::{KernelError, TensorMut, TensorView};

use crate::rows::{AnyRows, AnyRowsMut, Shape, for_each_range, is_stream_aligned, should_stream};
use crate::simd::{Float, FloatKind, Simd, Span, Work, vectors};

/// An elementwise function of `N` operands. `apply` must be `#[inline(always)]`, like everything in an inner
/// loop.
pub(crate) trait Pointwise<const N: usize>: Copy + Sync {
    /// Applies the function lane by lane.
    fn apply<S: Simd>(self, simd: S, x: [S::F32; N]) -> S::F32;
}

/// Applies a function to each element of tensors with the same shape and float type.
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
    let stream = should_stream(elements * kind.size());
    for_each_range(rows[0].count(), (N + 1) * rows[0].width() * kind.size(), &|range| {
        for row in range {
            let mut from = [std::ptr::null(); N];
            for (from, rows) in from.iter_mut().zip(&rows) {
                *from = rows.start(row);
            }
            let (to, len) = (to.start(row), to.len(row));
            let stream = stream && is_stream_aligned::<S>(to, kind.size());
            // Validation guarantees that all rows have the same length and dtype. Ranges are disjoint, so no
            // other task writes this row of the output. Streamed rows are aligned (`is_stream_aligned`).
            match kind {
                FloatKind::F32 => simd.perform(Row {
                    simd,
                    from: from.map(cast::<f32>),
                    to: to.cast::<f32>(),
                    len,
                    function,
                    stream,
                }),
                FloatKind::F16 => simd.perform(Row {
                    simd,
                    from: from.map(cast::<f16>),
                    to: to.cast::<f16>(),
                    len,
                    function,
                    stream,
                }),
                FloatKind::BF16 => simd.perform(Row {
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

/// One row. Monomorphized per element type.
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
            // SAFETY: the caller guarantees the elements.
            *x = unsafe { T::load(self.simd, from, span) };
        }
        self.function.apply(self.simd, x)
    }
}

impl<S: Simd, T: Float, F: Pointwise<N>, const N: usize> Work for Row<S, T, F, N> {
    #[inline(always)]
    fn perform(self) {
        let s = self.simd;
        // SAFETY: the constructor guarantees `len` elements behind every pointer, and alignment where stores
        // are streamed.
        unsafe {
            if self.stream {
                vectors!(S, self.len, |span| { T::stream(s, self.to, span, self.value(span)) });
            } else {
                vectors!(S, self.len, |span| { T::store(s, self.to, span, self.value(span)) });
            }
        }
    }
}
