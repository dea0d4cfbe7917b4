//! Tensors as rows: dense in the last dimension, any strides in the others; and how rows are shared out among threads.

use std::marker::PhantomData;
use std::ops::Range;

use lz_core::element::Element;
use lz_core::tensor::Layout;
use lz_core::{DType, KernelError, TensorMut, TensorView};

use crate::pool;
use crate::simd::{Kind, Simd, not_a_float};

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
    if !worth_sharing(rows.saturating_mul(bytes)) {
        return body(0..rows);
    }
    let grain = (TASK / bytes.max(1)).max(1);
    pool::for_each(rows.div_ceil(grain), &|task| {
        let start = task * grain;
        body(start..rows.min(start + grain));
    });
}

/// Whether a call that moves so many bytes is worth more than one thread.
#[inline(always)]
pub(crate) fn worth_sharing(bytes: usize) -> bool {
    bytes >= WORTH_SHARING && pool::threads() > 1
}

/// Whether a result of so many bytes is better stored past the caches.
#[inline(always)]
pub(crate) fn worth_streaming(bytes: usize) -> bool {
    bytes >= WORTH_STREAMING
}

/// The one element of a tensor of rank 0.
pub(crate) fn only<T: Element>(view: &TensorView<'_>) -> Result<T, KernelError> {
    let rows = Rows::<T>::shaped(view, Shape::Elements)?;
    rows.row(0).first().copied().ok_or_else(|| unusable("a scalar"))
}

/// Copies bytes, past the caches where asked and possible.
///
/// # Safety
/// So many bytes are readable at `from` and writable at `to`, and the two do not overlap.
#[inline(always)]
pub(crate) unsafe fn copy_bytes<S: Simd>(simd: S, from: *const u8, to: *mut u8, bytes: usize, stream: bool) {
    let vector = S::LANES * size_of::<f32>();
    let mut at = 0;
    if stream && to.addr().is_multiple_of(vector) {
        while at + vector <= bytes {
            // SAFETY: the caller vouches for the bytes; the address was looked at. Moving lanes keeps their bits.
            unsafe { simd.stream(to.add(at).cast(), simd.load(from.add(at).cast())) };
            at += vector;
        }
    }
    // SAFETY: the caller vouches for the bytes.
    unsafe { std::ptr::copy_nonoverlapping(from.add(at), to.add(at), bytes - at) };
}

/// Whether whole vectors of a row may be streamed: the row starts where a vector of `T`s may.
#[inline(always)]
pub(crate) fn can_stream<S: Simd, T>(row: &[T]) -> bool {
    row.as_ptr().addr().is_multiple_of(S::LANES * size_of::<T>())
}

/// How many elements a dense tensor has in each row when it is seen as blocks.
const BLOCK: usize = 4096;

/// How a tensor is seen as rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// The last dimension is a row.
    Last,
    /// So many trailing dimensions are a row, or fewer where they are not dense together.
    Trailing(usize),
    /// A dense tensor of any rank in rows of one size; only the last one may be shorter.
    Blocks,
    /// Every element is a row of its own.
    Elements,
}

/// Where rows start. Small, because one is made for every tensor of every call.
#[derive(Debug, Clone, Copy)]
struct Starts<'a> {
    count: usize,
    width: usize,
    /// Elements of the last row.
    last_width: usize,
    /// Distance of neighbours where all leading dimensions are one, in elements.
    stride: isize,
    /// The leading dimensions where they are not: how many, and whose.
    apart: Option<(usize, &'a Layout)>,
}

impl<'a> Starts<'a> {
    #[inline]
    fn new(layout: &'a Layout, shape: Shape) -> Option<Starts<'a>> {
        if !layout.place.is_host() {
            return None;
        }
        match shape {
            Shape::Elements => Starts::over(layout, layout.shape.len(), 1),
            Shape::Last => Starts::trailing(layout, 1),
            Shape::Trailing(most) => Starts::trailing(layout, most),
            Shape::Blocks => {
                let elements = usize::try_from(layout.elements()?).ok()?;
                let count = elements.div_ceil(BLOCK);
                let last_width = elements - count.saturating_sub(1) * BLOCK;
                let starts = Starts { count, width: BLOCK, last_width, stride: BLOCK as isize, apart: None };
                layout.is_contiguous().then_some(starts)
            }
        }
    }

    #[inline]
    fn trailing(layout: &'a Layout, most: usize) -> Option<Starts<'a>> {
        if !layout.last_is_dense() {
            return None;
        }
        let (mut leading, mut width) = (layout.shape.len().checked_sub(1)?, *layout.shape.last()?);
        while leading > 0 && layout.shape.len() - leading < most {
            let (size, stride) = (layout.shape[leading - 1], layout.strides[leading - 1]);
            if size != 1 && stride != width {
                break;
            }
            width *= size;
            leading -= 1;
        }
        Starts::over(layout, leading, width as usize)
    }

    /// The first dimensions, so many, each index of which is a row.
    fn over(layout: &'a Layout, leading: usize, width: usize) -> Option<Starts<'a>> {
        let dimensions = layout.shape.iter().zip(layout.strides.iter()).take(leading);
        // What one more in the next dimension must add, for all to be one dimension.
        let (mut count, mut stride, mut next, mut apart) = (1i64, 0, None, None);
        for (&size, &step) in dimensions.rev().filter(|(size, _)| **size != 1) {
            count = count.checked_mul(size)?;
            match next {
                None => stride = step as isize,
                Some(next) if next == step => {}
                Some(_) => apart = Some((leading, layout)),
            }
            next = Some(step.wrapping_mul(size));
        }
        let count = usize::try_from(count).ok()?;
        Some(Starts { count, width, last_width: width, stride, apart })
    }

    /// How many elements a row has.
    #[inline(always)]
    fn width(&self, row: usize) -> usize {
        if row + 1 == self.count { self.last_width } else { self.width }
    }

    /// Offset of a row's first element, in elements.
    #[inline(always)]
    fn offset(&self, row: usize) -> isize {
        assert!(row < self.count, "a row that is not there");
        match self.apart {
            None => row as isize * self.stride,
            Some((leading, layout)) => far_offset(layout, leading, row),
        }
    }
}

#[inline(never)]
fn far_offset(layout: &Layout, leading: usize, mut row: usize) -> isize {
    let mut offset = 0;
    for (&size, &stride) in layout.shape.iter().zip(layout.strides.iter()).take(leading).rev() {
        offset += (row % size as usize) as isize * stride as isize;
        row /= size as usize;
    }
    offset
}

fn unusable(what: &str) -> KernelError {
    KernelError::failed(format!("{what} has no dense rows of the type that was asked for")).before_writing()
}

/// The rows of a tensor, to read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rows<'a, T> {
    data: *const T,
    starts: Starts<'a>,
    memory: PhantomData<&'a [T]>,
}

// SAFETY: as a shared slice.
unsafe impl<T: Sync> Send for Rows<'_, T> {}
// SAFETY: as a shared slice.
unsafe impl<T: Sync> Sync for Rows<'_, T> {}

impl<'a, T: Element> Rows<'a, T> {
    /// Of a view that validation found sound, its last dimension a row; an error if it is of another type or not dense there.
    pub(crate) fn new(view: &'a TensorView<'_>) -> Result<Rows<'a, T>, KernelError> {
        Rows::shaped(view, Shape::Last)
    }

    /// Of a view that validation found sound; an error if it is of another type or cannot be seen as such rows.
    pub(crate) fn shaped(view: &'a TensorView<'_>, shape: Shape) -> Result<Rows<'a, T>, KernelError> {
        match Starts::new(view.layout(), shape) {
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

    /// How many elements every row has but perhaps the last.
    #[inline(always)]
    pub(crate) fn width(&self) -> usize {
        self.starts.width
    }

    /// One row.
    #[inline(always)]
    pub(crate) fn row(&self, row: usize) -> &'a [T] {
        let offset = self.starts.offset(row);
        let width = self.starts.width(row);
        if width == 0 {
            return &[];
        }
        // SAFETY: the view was sound, so each of its dense rows lies in memory that its maker vouched for.
        unsafe { std::slice::from_raw_parts(self.data.offset(offset), width) }
    }
}

/// The rows of a tensor, to write, by several threads.
#[derive(Debug)]
pub(crate) struct RowsMut<'a, T> {
    data: *mut T,
    starts: Starts<'a>,
    memory: PhantomData<&'a mut [T]>,
}

// SAFETY: as an exclusive slice; who takes a row vouches that nobody else has it.
unsafe impl<T: Send> Send for RowsMut<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for RowsMut<'_, T> {}

impl<'a, T: Element> RowsMut<'a, T> {
    /// Of a place that validation found sound, its last dimension a row; an error if it is of another type or not dense there.
    pub(crate) fn new(tensor: &'a mut TensorMut<'_>) -> Result<RowsMut<'a, T>, KernelError> {
        RowsMut::shaped(tensor, Shape::Last)
    }

    /// Of a place that validation found sound; an error if it is of another type or cannot be seen as such rows.
    pub(crate) fn shaped(tensor: &'a mut TensorMut<'_>, shape: Shape) -> Result<RowsMut<'a, T>, KernelError> {
        let data = tensor.as_mut_ptr().cast();
        let tensor: &'a TensorMut<'_> = tensor;
        match Starts::new(tensor.layout(), shape) {
            Some(starts)
                if tensor.dtype() == T::DTYPE && tensor.is_sound() && !tensor.layout().overlaps_itself() =>
            {
                Ok(RowsMut { data, starts, memory: PhantomData })
            }
            _ => Err(unusable("an output")),
        }
    }

    /// Some elements of one row.
    ///
    /// # Safety
    /// Nobody else has these elements now, and they are inside the row.
    #[expect(
        clippy::mut_from_ref,
        reason = "threads share the elements out among themselves; see the safety section"
    )]
    pub(crate) unsafe fn part(&self, row: usize, part: Range<usize>) -> &mut [T] {
        let start = self.data.wrapping_offset(self.starts.offset(row)).wrapping_add(part.start);
        // SAFETY: the tensor was sound and borrowed exclusively, and the caller vouches for the elements.
        unsafe { std::slice::from_raw_parts_mut(start, part.len()) }
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
        let width = self.starts.width(row);
        if width == 0 {
            return &mut [];
        }
        // SAFETY: the tensor was sound and borrowed exclusively, and the caller vouches that nobody else has the row.
        unsafe { std::slice::from_raw_parts_mut(self.data.offset(offset), width) }
    }
}

/// A dense row of floats whose type is known only at run time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AnyRow {
    /// Its first element.
    pub start: *const u8,
    /// Its type.
    pub kind: Kind,
}

// SAFETY: it is only read, and whoever made it holds the memory.
unsafe impl Sync for AnyRow {}

/// The only row of a tensor of rank 1, such as a weight; the call was checked, so it is as long as the rows it belongs to.
pub(crate) fn any_row(view: Option<&TensorView<'_>>) -> Result<Option<AnyRow>, KernelError> {
    let Some(view) = view else { return Ok(None) };
    let rows = AnyRows::new(view, Shape::Last)?;
    Ok(Some(AnyRow { start: rows.start(0), kind: rows.kind()? }))
}

/// The rows of a tensor of any type, to read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AnyRows<'a> {
    data: *const u8,
    dtype: DType,
    starts: Starts<'a>,
    memory: PhantomData<&'a [u8]>,
}

// SAFETY: as a shared slice.
unsafe impl Send for AnyRows<'_> {}
// SAFETY: as a shared slice.
unsafe impl Sync for AnyRows<'_> {}

impl<'a> AnyRows<'a> {
    /// Of a view that validation found sound; an error if it cannot be seen as such rows.
    pub(crate) fn new(view: &'a TensorView<'_>, shape: Shape) -> Result<AnyRows<'a>, KernelError> {
        match Starts::new(view.layout(), shape) {
            Some(starts) if view.is_sound() => {
                Ok(AnyRows { data: view.as_ptr(), dtype: view.dtype(), starts, memory: PhantomData })
            }
            _ => Err(unusable("an input")),
        }
    }

    /// The float type of its elements; an error if it is none.
    pub(crate) fn kind(&self) -> Result<Kind, KernelError> {
        Kind::of(self.dtype).ok_or_else(|| not_a_float(Some(self.dtype)))
    }

    /// How many rows.
    #[inline(always)]
    pub(crate) fn count(&self) -> usize {
        self.starts.count
    }

    /// How many elements every row has but perhaps the last.
    #[inline(always)]
    pub(crate) fn width(&self) -> usize {
        self.starts.width
    }

    /// How many elements a row has.
    #[inline(always)]
    pub(crate) fn len(&self, row: usize) -> usize {
        self.starts.width(row)
    }

    /// Where a row starts.
    #[inline(always)]
    pub(crate) fn start(&self, row: usize) -> *const u8 {
        self.data.wrapping_offset(self.starts.offset(row) * self.dtype.size() as isize)
    }
}

/// The rows of a tensor of any type, to write, by several threads.
#[derive(Debug)]
pub(crate) struct AnyRowsMut<'a> {
    data: *mut u8,
    dtype: DType,
    starts: Starts<'a>,
    memory: PhantomData<&'a mut [u8]>,
}

// SAFETY: as an exclusive slice; who writes to a row vouches that nobody else has it.
unsafe impl Send for AnyRowsMut<'_> {}
// SAFETY: as above.
unsafe impl Sync for AnyRowsMut<'_> {}

impl<'a> AnyRowsMut<'a> {
    /// Of a place that validation found sound; an error if it cannot be seen as such rows.
    pub(crate) fn new(tensor: &'a mut TensorMut<'_>, shape: Shape) -> Result<AnyRowsMut<'a>, KernelError> {
        let data = tensor.as_mut_ptr();
        let tensor: &'a TensorMut<'_> = tensor;
        match Starts::new(tensor.layout(), shape) {
            Some(starts) if tensor.is_sound() && !tensor.layout().overlaps_itself() => {
                Ok(AnyRowsMut { data, dtype: tensor.dtype(), starts, memory: PhantomData })
            }
            _ => Err(unusable("an output")),
        }
    }

    /// The float type of its elements; an error if it is none.
    pub(crate) fn kind(&self) -> Result<Kind, KernelError> {
        Kind::of(self.dtype).ok_or_else(|| not_a_float(Some(self.dtype)))
    }

    /// The type of its elements.
    pub(crate) fn dtype(&self) -> DType {
        self.dtype
    }

    /// How many elements every row has but perhaps the last.
    #[inline(always)]
    pub(crate) fn width(&self) -> usize {
        self.starts.width
    }

    /// How many elements a row has.
    #[inline(always)]
    pub(crate) fn len(&self, row: usize) -> usize {
        self.starts.width(row)
    }

    /// Where a row starts.
    #[inline(always)]
    pub(crate) fn start(&self, row: usize) -> *mut u8 {
        self.data.wrapping_offset(self.starts.offset(row) * self.dtype.size() as isize)
    }
}

/// Whether whole vectors may be streamed from this address on, as elements of so many bytes.
#[inline(always)]
pub(crate) fn is_stream_start<S: Simd>(start: *mut u8, size: usize) -> bool {
    start.addr().is_multiple_of(S::LANES * size)
}
