//! Tensors as rows (dense in the last dimension, any strides in the others), and the partition of rows into
//! tasks.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::Range;

use lz_core::element::Element;
use lz_core::tensor::Layout;
use lz_core::{DType, KernelError, TensorMut, TensorView};

use crate::simd::{Float, FloatKind, Simd, not_a_float, prefetch_for_writing};
use crate::{memory, pool};

/// Calls that move fewer bytes run on the caller's thread: waking another thread costs more than it saves.
const MIN_PARALLEL_BYTES: usize = 1 << 19;

/// Approximate number of bytes that one task moves.
pub(crate) const TASK_BYTES: usize = 1 << 18;

/// Outputs of at least this size use non-temporal stores, because they would evict useful cache lines.
const MIN_STREAM_BYTES: usize = 8 << 20;

thread_local! {
    /// Memory for one row of a task. Kept, so that calls do not allocate.
    static ROW: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// Calls `body` with memory for one row, which stays in L1. Its content is unspecified.
#[inline(always)]
pub(crate) fn with_row<T: Float, R>(
    width: usize,
    body: impl FnOnce(&mut [T]) -> R,
) -> Result<R, KernelError> {
    const { assert!(size_of::<T>() <= size_of::<f32>() && align_of::<T>() <= align_of::<f32>()) };
    let mut memory = ROW.take();
    memory::grow(&mut memory, width)?;
    // SAFETY: room for `width` elements of at most 4 bytes, of which any bits are valid.
    let result = body(unsafe { std::slice::from_raw_parts_mut(memory.as_mut_ptr().cast(), width) });
    ROW.set(memory);
    Ok(result)
}

/// Runs `body` over `0..rows`, in ranges distributed over the thread pool. `bytes` is the traffic of one row,
/// input and output.
///
/// Rows must be independent: the ranges depend on the size of the call.
///
/// Not generic over `body`: each kernel would otherwise be compiled once for one thread and once for several.
#[inline(never)]
pub(crate) fn for_each_range(rows: usize, bytes: usize, body: &(dyn Fn(Range<usize>) + Sync)) {
    if !should_parallelize(rows.saturating_mul(bytes)) {
        return body(0..rows);
    }
    let grain = (TASK_BYTES / bytes.max(1)).max(1);
    pool::for_each(rows.div_ceil(grain), &|task| {
        let start = task * grain;
        body(start..rows.min(start + grain));
    });
}

/// Whether a call that moves `bytes` bytes is worth more than one thread.
#[inline(always)]
pub(crate) fn should_parallelize(bytes: usize) -> bool {
    bytes >= MIN_PARALLEL_BYTES && pool::threads() > 1
}

/// Whether an output of `bytes` bytes should use non-temporal stores.
#[inline(always)]
pub(crate) fn should_stream(bytes: usize) -> bool {
    bytes >= MIN_STREAM_BYTES
}

/// Reads a scalar: the only element of a tensor of rank 0.
pub(crate) fn read_scalar<T: Element>(view: &TensorView<'_>) -> Result<T, KernelError> {
    let rows = Rows::<T>::shaped(view, Shape::Elements)?;
    rows.row(0).first().copied().ok_or_else(|| not_dense_rows("a scalar"))
}

/// Copies bytes, with non-temporal stores if `stream` and aligned.
///
/// # Safety
/// `bytes` bytes are readable at `from` and writable at `to`, and the two do not overlap.
#[inline(always)]
pub(crate) unsafe fn copy_bytes<S: Simd>(simd: S, from: *const u8, to: *mut u8, bytes: usize, stream: bool) {
    let vector = S::LANES * size_of::<f32>();
    let mut at = 0;
    if stream && to.addr().is_multiple_of(vector) {
        while at + vector <= bytes {
            // SAFETY: the caller guarantees the bytes; the alignment was checked. Moving f32 lanes preserves
            // their bits.
            unsafe { simd.stream(to.add(at).cast(), simd.load(from.add(at).cast())) };
            at += vector;
        }
    }
    // SAFETY: the caller guarantees the bytes.
    unsafe { std::ptr::copy_nonoverlapping(from.add(at), to.add(at), bytes - at) };
}

/// Whether full vectors of a row can be stored non-temporally: the row is aligned to a vector of `T`.
#[inline(always)]
pub(crate) fn can_stream<S: Simd, T>(row: &[T]) -> bool {
    row.as_ptr().addr().is_multiple_of(S::LANES * size_of::<T>())
}

/// Elements per row when a contiguous tensor is viewed as [`Shape::Blocks`].
const BLOCK: usize = 4096;

/// How a tensor is viewed as rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// The last dimension is a row.
    Last,
    /// Up to this many trailing dimensions form a row; fewer if they are not dense together.
    Trailing(usize),
    /// A contiguous tensor of any rank as rows of equal size; only the last one may be shorter.
    Blocks,
    /// Every element is a row.
    Elements,
}

/// Offsets of rows. Small, because one is built for every tensor of every call.
#[derive(Debug, Clone, Copy)]
struct RowOffsets<'a> {
    count: usize,
    width: usize,
    /// Elements of the last row.
    last_width: usize,
    /// Stride between rows in elements, if all leading dimensions collapse into one.
    stride: isize,
    /// Number of leading dimensions and their layout, if they do not collapse.
    strided: Option<(usize, &'a Layout)>,
}

impl<'a> RowOffsets<'a> {
    #[inline]
    fn new(layout: &'a Layout, shape: Shape) -> Option<RowOffsets<'a>> {
        if !layout.device.is_host() {
            return None;
        }
        match shape {
            Shape::Elements => RowOffsets::over_leading(layout, layout.shape.len(), 1),
            Shape::Last => RowOffsets::trailing(layout, 1),
            Shape::Trailing(max_dims) => RowOffsets::trailing(layout, max_dims),
            Shape::Blocks => {
                let elements = usize::try_from(layout.elements()?).ok()?;
                let count = elements.div_ceil(BLOCK);
                let last_width = elements - count.saturating_sub(1) * BLOCK;
                let offsets =
                    RowOffsets { count, width: BLOCK, last_width, stride: BLOCK as isize, strided: None };
                layout.is_contiguous().then_some(offsets)
            }
        }
    }

    #[inline]
    fn trailing(layout: &'a Layout, max_dims: usize) -> Option<RowOffsets<'a>> {
        if !layout.last_is_dense() {
            return None;
        }
        let (mut leading, mut width) = (layout.shape.len().checked_sub(1)?, *layout.shape.last()?);
        while leading > 0 && layout.shape.len() - leading < max_dims {
            let (size, stride) = (layout.shape[leading - 1], layout.strides[leading - 1]);
            if size != 1 && stride != width {
                break;
            }
            width *= size;
            leading -= 1;
        }
        RowOffsets::over_leading(layout, leading, width as usize)
    }

    /// Rows are the index tuples of the first `leading` dimensions.
    fn over_leading(layout: &'a Layout, leading: usize, width: usize) -> Option<RowOffsets<'a>> {
        let dimensions = layout.shape.iter().zip(layout.strides.iter()).take(leading);
        // The stride that the next dimension must have for all to collapse into one.
        let (mut count, mut stride, mut next, mut strided) = (1i64, 0, None, None);
        for (&size, &step) in dimensions.rev().filter(|(size, _)| **size != 1) {
            count = count.checked_mul(size)?;
            match next {
                None => stride = step as isize,
                Some(next) if next == step => {}
                Some(_) => strided = Some((leading, layout)),
            }
            next = Some(step.wrapping_mul(size));
        }
        let count = usize::try_from(count).ok()?;
        Some(RowOffsets { count, width, last_width: width, stride, strided })
    }

    /// Elements of a row.
    #[inline(always)]
    fn width(&self, row: usize) -> usize {
        if row + 1 == self.count { self.last_width } else { self.width }
    }

    /// Offset of a row's first element, in elements.
    #[inline(always)]
    fn offset(&self, row: usize) -> isize {
        assert!(row < self.count, "row index out of range");
        match self.strided {
            None => row as isize * self.stride,
            Some((leading, layout)) => strided_offset(layout, leading, row),
        }
    }
}

#[inline(never)]
fn strided_offset(layout: &Layout, leading: usize, mut row: usize) -> isize {
    let mut offset = 0;
    for (&size, &stride) in layout.shape.iter().zip(layout.strides.iter()).take(leading).rev() {
        offset += (row % size as usize) as isize * stride as isize;
        row /= size as usize;
    }
    offset
}

fn not_dense_rows(what: &str) -> KernelError {
    KernelError::failed(format!("{what} cannot be viewed as dense rows of the expected dtype"))
        .before_writing()
}

/// The rows of an input tensor.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rows<'a, T> {
    data: *const T,
    offsets: RowOffsets<'a>,
    memory: PhantomData<&'a [T]>,
}

// SAFETY: as a shared slice.
unsafe impl<T: Sync> Send for Rows<'_, T> {}
// SAFETY: as a shared slice.
unsafe impl<T: Sync> Sync for Rows<'_, T> {}

impl<'a, T: Element> Rows<'a, T> {
    /// Of a validated view, with the last dimension as a row; an error if the dtype differs or rows are not
    /// dense.
    pub(crate) fn new(view: &'a TensorView<'_>) -> Result<Rows<'a, T>, KernelError> {
        Rows::shaped(view, Shape::Last)
    }

    /// Of a validated view; an error if the dtype differs or it cannot be viewed this way.
    pub(crate) fn shaped(view: &'a TensorView<'_>, shape: Shape) -> Result<Rows<'a, T>, KernelError> {
        match RowOffsets::new(view.layout(), shape) {
            Some(offsets) if view.dtype() == T::DTYPE && view.is_sound() => {
                Ok(Rows { data: view.as_ptr().cast(), offsets, memory: PhantomData })
            }
            _ => Err(not_dense_rows("an input")),
        }
    }

    /// Number of rows.
    #[inline(always)]
    pub(crate) fn count(&self) -> usize {
        self.offsets.count
    }

    /// Elements of every row except possibly the last.
    #[inline(always)]
    pub(crate) fn width(&self) -> usize {
        self.offsets.width
    }

    /// The first row and the distance between rows in elements, if it is the same between all rows.
    pub(crate) fn uniform(&self) -> Option<(*const T, usize)> {
        let stride = usize::try_from(self.offsets.stride).ok()?;
        self.offsets.strided.is_none().then_some((self.data, stride))
    }

    /// One row.
    #[inline(always)]
    pub(crate) fn row(&self, row: usize) -> &'a [T] {
        let offset = self.offsets.offset(row);
        let width = self.offsets.width(row);
        if width == 0 {
            return &[];
        }
        // SAFETY: the view is sound, so each of its dense rows is in memory that its creator guaranteed.
        unsafe { std::slice::from_raw_parts(self.data.offset(offset), width) }
    }
}

/// The rows of an output tensor, written by several threads.
#[derive(Debug)]
pub(crate) struct RowsMut<'a, T> {
    data: *mut T,
    offsets: RowOffsets<'a>,
    memory: PhantomData<&'a mut [T]>,
}

// SAFETY: as an exclusive slice; the caller that takes a row guarantees exclusive access.
unsafe impl<T: Send> Send for RowsMut<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for RowsMut<'_, T> {}

impl<'a, T: Element> RowsMut<'a, T> {
    /// Of a validated output, with the last dimension as a row; an error if the dtype differs or rows are not
    /// dense.
    pub(crate) fn new(tensor: &'a mut TensorMut<'_>) -> Result<RowsMut<'a, T>, KernelError> {
        RowsMut::shaped(tensor, Shape::Last)
    }

    /// Of a validated output; an error if the dtype differs or it cannot be viewed this way.
    pub(crate) fn shaped(tensor: &'a mut TensorMut<'_>, shape: Shape) -> Result<RowsMut<'a, T>, KernelError> {
        let data = tensor.as_mut_ptr().cast();
        let tensor: &'a TensorMut<'_> = tensor;
        match RowOffsets::new(tensor.layout(), shape) {
            Some(offsets)
                if tensor.dtype() == T::DTYPE && tensor.is_sound() && !tensor.layout().overlaps_itself() =>
            {
                Ok(RowsMut { data, offsets, memory: PhantomData })
            }
            _ => Err(not_dense_rows("an output")),
        }
    }

    /// Prefetches a range of elements of one row for writing.
    #[inline(always)]
    pub(crate) fn prefetch(&self, row: usize, part: Range<usize>) {
        let start = self.data.wrapping_offset(self.offsets.offset(row)).wrapping_add(part.start);
        prefetch_for_writing(start, part.len() * size_of::<T>());
    }

    /// A range of elements of one row.
    ///
    /// # Safety
    /// No other reference to these elements exists, and they are inside the row.
    #[expect(
        clippy::mut_from_ref,
        reason = "threads share the elements out among themselves; see the safety section"
    )]
    pub(crate) unsafe fn part(&self, row: usize, part: Range<usize>) -> &mut [T] {
        let start = self.data.wrapping_offset(self.offsets.offset(row)).wrapping_add(part.start);
        // SAFETY: the tensor is sound and borrowed exclusively, and the caller guarantees the elements.
        unsafe { std::slice::from_raw_parts_mut(start, part.len()) }
    }

    /// One row.
    ///
    /// # Safety
    /// No other reference to this row exists. Tasks with disjoint rows are safe: rows do not overlap.
    #[inline(always)]
    #[expect(
        clippy::mut_from_ref,
        reason = "threads share the rows out among themselves; see the safety section"
    )]
    pub(crate) unsafe fn row(&self, row: usize) -> &mut [T] {
        let offset = self.offsets.offset(row);
        let width = self.offsets.width(row);
        if width == 0 {
            return &mut [];
        }
        // SAFETY: the tensor is sound and borrowed exclusively, and the caller guarantees exclusive access to
        // the row.
        unsafe { std::slice::from_raw_parts_mut(self.data.offset(offset), width) }
    }
}

/// A dense row of floats whose type is known only at run time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AnyRow {
    /// Its first element.
    pub start: *const u8,
    /// Its type.
    pub kind: FloatKind,
}

// SAFETY: it is only read, and its creator keeps the memory alive.
unsafe impl Sync for AnyRow {}

/// The only row of a tensor of rank 1, such as a weight. Validation guarantees that it is as long as the rows
/// it belongs to.
pub(crate) fn any_row(view: Option<&TensorView<'_>>) -> Result<Option<AnyRow>, KernelError> {
    let Some(view) = view else { return Ok(None) };
    let rows = AnyRows::new(view, Shape::Last)?;
    Ok(Some(AnyRow { start: rows.start(0), kind: rows.kind()? }))
}

/// The rows of an input tensor of any dtype.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AnyRows<'a> {
    data: *const u8,
    dtype: DType,
    offsets: RowOffsets<'a>,
    memory: PhantomData<&'a [u8]>,
}

// SAFETY: as a shared slice.
unsafe impl Send for AnyRows<'_> {}
// SAFETY: as a shared slice.
unsafe impl Sync for AnyRows<'_> {}

impl<'a> AnyRows<'a> {
    /// Of a validated view; an error if it cannot be viewed this way.
    pub(crate) fn new(view: &'a TensorView<'_>, shape: Shape) -> Result<AnyRows<'a>, KernelError> {
        match RowOffsets::new(view.layout(), shape) {
            Some(offsets) if view.is_sound() => {
                Ok(AnyRows { data: view.as_ptr(), dtype: view.dtype(), offsets, memory: PhantomData })
            }
            _ => Err(not_dense_rows("an input")),
        }
    }

    /// The float type of the elements; an error if they are not floats.
    pub(crate) fn kind(&self) -> Result<FloatKind, KernelError> {
        FloatKind::of(self.dtype).ok_or_else(|| not_a_float(Some(self.dtype)))
    }

    /// Number of rows.
    #[inline(always)]
    pub(crate) fn count(&self) -> usize {
        self.offsets.count
    }

    /// Elements of every row except possibly the last.
    #[inline(always)]
    pub(crate) fn width(&self) -> usize {
        self.offsets.width
    }

    /// Elements of a row.
    #[inline(always)]
    pub(crate) fn len(&self, row: usize) -> usize {
        self.offsets.width(row)
    }

    /// Address of a row.
    #[inline(always)]
    pub(crate) fn start(&self, row: usize) -> *const u8 {
        self.data.wrapping_offset(self.offsets.offset(row) * self.dtype.size() as isize)
    }
}

/// The rows of an output tensor of any dtype, written by several threads.
#[derive(Debug)]
pub(crate) struct AnyRowsMut<'a> {
    data: *mut u8,
    dtype: DType,
    offsets: RowOffsets<'a>,
    memory: PhantomData<&'a mut [u8]>,
}

// SAFETY: as an exclusive slice; the caller that writes a row guarantees exclusive access.
unsafe impl Send for AnyRowsMut<'_> {}
// SAFETY: as above.
unsafe impl Sync for AnyRowsMut<'_> {}

impl<'a> AnyRowsMut<'a> {
    /// Of a validated output; an error if it cannot be viewed this way.
    pub(crate) fn new(tensor: &'a mut TensorMut<'_>, shape: Shape) -> Result<AnyRowsMut<'a>, KernelError> {
        let data = tensor.as_mut_ptr();
        let tensor: &'a TensorMut<'_> = tensor;
        match RowOffsets::new(tensor.layout(), shape) {
            Some(offsets) if tensor.is_sound() && !tensor.layout().overlaps_itself() => {
                Ok(AnyRowsMut { data, dtype: tensor.dtype(), offsets, memory: PhantomData })
            }
            _ => Err(not_dense_rows("an output")),
        }
    }

    /// The float type of the elements; an error if they are not floats.
    pub(crate) fn kind(&self) -> Result<FloatKind, KernelError> {
        FloatKind::of(self.dtype).ok_or_else(|| not_a_float(Some(self.dtype)))
    }

    /// The dtype of the elements.
    pub(crate) fn dtype(&self) -> DType {
        self.dtype
    }

    /// Elements of every row except possibly the last.
    #[inline(always)]
    pub(crate) fn width(&self) -> usize {
        self.offsets.width
    }

    /// Elements of a row.
    #[inline(always)]
    pub(crate) fn len(&self, row: usize) -> usize {
        self.offsets.width(row)
    }

    /// Address of a row.
    #[inline(always)]
    pub(crate) fn start(&self, row: usize) -> *mut u8 {
        self.data.wrapping_offset(self.offsets.offset(row) * self.dtype.size() as isize)
    }
}

/// Whether full vectors of elements of `size` bytes can be stored non-temporally at this address.
#[inline(always)]
pub(crate) fn is_stream_aligned<S: Simd>(start: *mut u8, size: usize) -> bool {
    start.addr().is_multiple_of(S::LANES * size)
}
