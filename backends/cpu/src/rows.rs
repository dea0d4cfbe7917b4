//! Tensors as rows: dense in the last dimension, any strides in the others; and how rows are shared out among threads.

use std::marker::PhantomData;
use std::ops::Range;

use lz_core::element::Element;
use lz_core::tensor::{Dims, Layout, MAX_RANK};
use lz_core::{KernelError, TensorMut, TensorView};

use crate::pool;
use crate::simd::Simd;

/// A call that moves fewer bytes than this stays on the caller's thread: waking another costs more than it saves.
const WORTH_SHARING: usize = 1 << 19;

/// About how many bytes one task moves.
const TASK: usize = 1 << 18;

/// Results of at least so many bytes go past the caches, because they would only push out what is needed again.
const WORTH_STREAMING: usize = 8 << 20;

/// Runs `body` over all of `0..rows`, in ranges that other threads may take. `bytes` is what one row moves, in and out.
///
/// Rows must not depend on each other: which ranges there are changes with the size of the call.
#[inline(always)]
pub(crate) fn for_each_range(rows: usize, bytes: usize, body: impl Fn(Range<usize>) + Sync) {
    if rows.saturating_mul(bytes) < WORTH_SHARING || pool::threads() == 1 {
        return body(0..rows);
    }
    let grain = (TASK / bytes.max(1)).max(1);
    pool::for_each(rows.div_ceil(grain), &|task| {
        let start = task * grain;
        body(start..rows.min(start + grain));
    });
}

/// Whether a result of so many bytes is better stored past the caches.
#[inline(always)]
pub(crate) fn worth_streaming(bytes: usize) -> bool {
    bytes >= WORTH_STREAMING
}

/// Whether whole vectors of a row may be streamed: the row starts where a vector of `T`s may.
#[inline(always)]
pub(crate) fn can_stream<S: Simd, T>(row: &[T]) -> bool {
    row.as_ptr().addr().is_multiple_of(S::LANES * size_of::<T>())
}

/// Where rows start: leading dimensions, joined as far as strides allow.
#[derive(Debug, Clone, Copy)]
struct Starts {
    count: usize,
    width: usize,
    /// Distance of neighbours in the innermost joined dimension, in elements.
    stride: isize,
    /// Sizes and strides of the joined dimensions, outermost first; one or none is the usual case.
    sizes: [usize; MAX_RANK],
    strides: [isize; MAX_RANK],
    rank: usize,
}

impl Starts {
    fn new(layout: &Layout) -> Option<Starts> {
        let (&width, leading) = layout.shape.split_last()?;
        if !layout.place.is_host() || !layout.last_is_dense() {
            return None;
        }
        let mut starts = Starts {
            count: Dims::new(leading)?.product()? as usize,
            width: width as usize,
            stride: 0,
            sizes: [0; MAX_RANK],
            strides: [0; MAX_RANK],
            rank: 0,
        };
        for (&size, &stride) in leading.iter().zip(layout.strides.iter()).filter(|(size, _)| **size != 1) {
            match starts.rank.checked_sub(1) {
                Some(last) if starts.strides[last] as i64 == stride.wrapping_mul(size) => {
                    starts.sizes[last] *= size as usize;
                    starts.strides[last] = stride as isize;
                }
                _ => {
                    starts.sizes[starts.rank] = size as usize;
                    starts.strides[starts.rank] = stride as isize;
                    starts.rank += 1;
                }
            }
        }
        starts.stride = starts.strides[starts.rank.saturating_sub(1)];
        Some(starts)
    }

    /// Offset of a row's first element, in elements.
    #[inline(always)]
    fn offset(&self, row: usize) -> isize {
        assert!(row < self.count, "a row that is not there");
        if self.rank <= 1 { row as isize * self.stride } else { self.far_offset(row) }
    }

    #[inline(never)]
    fn far_offset(&self, mut row: usize) -> isize {
        let mut offset = 0;
        for (size, stride) in self.sizes[..self.rank].iter().zip(&self.strides).rev() {
            offset += (row % size) as isize * stride;
            row /= size;
        }
        offset
    }
}

fn unusable(what: &str) -> KernelError {
    KernelError::failed(format!("{what} has no dense rows of the type that was asked for")).before_writing()
}

/// The rows of a tensor, to read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rows<'a, T> {
    data: *const T,
    starts: Starts,
    memory: PhantomData<&'a [T]>,
}

// SAFETY: as a shared slice.
unsafe impl<T: Sync> Send for Rows<'_, T> {}
// SAFETY: as a shared slice.
unsafe impl<T: Sync> Sync for Rows<'_, T> {}

impl<'a, T: Element> Rows<'a, T> {
    /// Of a view that validation found sound; an error if it is of another type or not dense in its last dimension.
    pub(crate) fn new(view: &TensorView<'a>) -> Result<Rows<'a, T>, KernelError> {
        match Starts::new(view.layout()) {
            Some(starts) if view.dtype() == T::DTYPE && view.is_sound() => {
                Ok(Rows { data: view.as_ptr().cast(), starts, memory: PhantomData })
            }
            _ => Err(unusable("an input")),
        }
    }

    /// How many rows.
    #[inline(always)]
    pub(crate) fn count(&self) -> usize {
        self.starts.count
    }

    /// How many elements a row has.
    #[inline(always)]
    pub(crate) fn width(&self) -> usize {
        self.starts.width
    }

    /// One row.
    #[inline(always)]
    pub(crate) fn row(&self, row: usize) -> &'a [T] {
        let offset = self.starts.offset(row);
        if self.starts.width == 0 {
            return &[];
        }
        // SAFETY: the view was sound, so each of its dense rows lies in memory that its maker vouched for.
        unsafe { std::slice::from_raw_parts(self.data.offset(offset), self.starts.width) }
    }
}

/// The rows of a tensor, to write, by several threads.
#[derive(Debug)]
pub(crate) struct RowsMut<'a, T> {
    data: *mut T,
    starts: Starts,
    memory: PhantomData<&'a mut [T]>,
}

// SAFETY: as an exclusive slice; who takes a row vouches that nobody else has it.
unsafe impl<T: Send> Send for RowsMut<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for RowsMut<'_, T> {}

impl<'a, T: Element> RowsMut<'a, T> {
    /// Of a place that validation found sound; an error if it is of another type or not dense in its last dimension.
    pub(crate) fn new(tensor: &'a mut TensorMut<'_>) -> Result<RowsMut<'a, T>, KernelError> {
        match Starts::new(tensor.layout()) {
            Some(starts)
                if tensor.dtype() == T::DTYPE && tensor.is_sound() && !tensor.layout().overlaps_itself() =>
            {
                Ok(RowsMut { data: tensor.as_mut_ptr().cast(), starts, memory: PhantomData })
            }
            _ => Err(unusable("an output")),
        }
    }

    /// One row.
    ///
    /// # Safety
    /// Nobody else has this row now. Tasks that each take rows of their own are safe: rows do not overlap.
    #[inline(always)]
    #[expect(
        clippy::mut_from_ref,
        reason = "threads share the rows out among themselves; see the safety section"
    )]
    pub(crate) unsafe fn row(&self, row: usize) -> &mut [T] {
        let offset = self.starts.offset(row);
        if self.starts.width == 0 {
            return &mut [];
        }
        // SAFETY: the tensor was sound and borrowed exclusively, and the caller vouches that nobody else has the row.
        unsafe { std::slice::from_raw_parts_mut(self.data.offset(offset), self.starts.width) }
    }
}
