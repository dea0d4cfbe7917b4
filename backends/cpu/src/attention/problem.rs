//! An attention problem, independent of the operation: sequences of queries, the KV layout, mask and bias.
//! Pointers come from validated views; index tensors are clamped to valid ranges.

use std::ops::Range;

use lz_core::{DType, KernelError, TensorMut, TensorView};

use crate::simd::Float;

/// Parameters that are the same for every sequence of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// KV heads.
    pub kv_heads: usize,
    /// Query heads per KV head (GQA group size).
    pub group: usize,
    /// Head dimension of the first part of a key, and of a second part stored elsewhere (MLA rotary part; 0
    /// if there is none).
    pub dims: [usize; 2],
    /// Head dimension of a value.
    pub dim_v: usize,
    /// Whether a value is the first part of its key (MLA).
    pub shared: bool,
    pub scale: f32,
    /// The factor of the scores of rows that are computed in f64.
    pub exact_scale: f64,
    pub soft_cap: f32,
    pub causal: bool,
    /// -1: no limit.
    pub window_left: i64,
    /// -1: no limit.
    pub window_right: i64,
}

impl Shape {
    /// Query heads that share KV heads, without soft cap, causal mask and windows.
    pub(crate) fn grouped(heads: i64, kv_heads: i64, dim: i64, dim_v: i64, scale: f32) -> Shape {
        Shape {
            kv_heads: kv_heads as usize,
            group: (heads / kv_heads.max(1)) as usize,
            dims: [dim as usize, 0],
            dim_v: dim_v as usize,
            shared: false,
            scale,
            exact_scale: f64::from(scale),
            soft_cap: 0.0,
            causal: false,
            window_left: -1,
            window_right: -1,
        }
    }

    /// Head dimension of a whole key.
    pub(crate) fn dim(&self) -> usize {
        self.dims[0] + self.dims[1]
    }

    /// Causal and window limits: the range of `keys` keys visible to a query at `position`.
    #[inline]
    pub(crate) fn visible(&self, position: i64, keys: usize) -> Range<usize> {
        let keys = keys as i64;
        let mut end = keys;
        if self.causal {
            end = end.min(position.saturating_add(1));
        }
        if self.window_right >= 0 {
            end = end.min(position.saturating_add(self.window_right).saturating_add(1));
        }
        let mut start = 0;
        if self.window_left >= 0 {
            start = position.saturating_sub(self.window_left).clamp(0, keys);
        }
        start as usize..end.max(start) as usize
    }
}

/// Rows of features, one per position and head.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rows<T> {
    pub data: *const T,
    /// Strides of the outermost dimension, of positions and of heads, in elements.
    pub outer: isize,
    pub position: isize,
    pub head: isize,
}

impl<T> Rows<T> {
    pub(crate) const NONE: Rows<T> = Rows { data: std::ptr::null(), outer: 0, position: 0, head: 0 };

    #[inline(always)]
    pub(crate) fn at(&self, position: usize, head: usize) -> *const T {
        self.data.wrapping_offset(position as isize * self.position + head as isize * self.head)
    }

    /// The rows at an index of the outermost dimension.
    pub(crate) fn outer(self, index: usize) -> Rows<T> {
        Rows { data: self.data.wrapping_offset(index as isize * self.outer), ..self }
    }

    /// The rows starting at a position.
    pub(crate) fn from(self, position: i64) -> Rows<T> {
        Rows { data: self.data.wrapping_offset(position as isize * self.position), ..self }
    }
}

/// Layout of the KV cache.
#[derive(Debug, Clone, Copy)]
pub(crate) enum KvLayout<'a> {
    /// Contiguous.
    Dense,
    /// Paged: key j is on page `pages[j / size]` in slot `j % size`. Page indices are clamped to `0..count`.
    Paged { pages: &'a [i32], size: usize, count: usize, key: isize, second: isize, value: isize },
}

/// One sequence: queries, keys, values and outputs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sequence<'a, T> {
    pub queries: usize,
    pub keys: usize,
    /// Query i has the position of key i + offset.
    pub offset: i64,
    pub q: Rows<T>,
    pub q_second: Rows<T>,
    pub k: Rows<T>,
    pub k_second: Rows<T>,
    pub v: Rows<T>,
    pub kv_layout: KvLayout<'a>,
    pub mask: Option<Mask>,
    pub slopes: Option<Slopes>,
    pub sinks: Option<Sinks>,
    pub output: Rows<T>,
    /// Null if no lse is requested.
    pub lse: Rows<f32>,
}

/// Addresses of one key: its two parts and its value.
pub(crate) type Key<T> = [*const T; 3];

impl<T: Float> Sequence<'_, T> {
    /// Address of a key of a KV head.
    #[inline(always)]
    pub(crate) fn key(&self, j: usize, head: usize) -> Key<T> {
        match self.kv_layout {
            KvLayout::Dense => [self.k.at(j, head), self.k_second.at(j, head), self.v.at(j, head)],
            KvLayout::Paged { pages, size, count, key, second, value } => {
                let page = pages.get(j / size).copied().unwrap_or(0).max(0) as usize;
                let (page, slot) = (page.min(count.saturating_sub(1)) as isize, j % size);
                [
                    self.k.at(slot, head).wrapping_offset(page * key),
                    self.k_second.at(slot, head).wrapping_offset(page * second),
                    self.v.at(slot, head).wrapping_offset(page * value),
                ]
            }
        }
    }
}

/// A mask, offset to its batch row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mask {
    data: *const u8,
    dtype: DType,
    /// Strides in elements; 0 along broadcast dimensions.
    head: isize,
    query: isize,
    key: isize,
}

impl Mask {
    /// Of a validated mask over [batch, heads, queries, keys], or without queries if `rank` is 3.
    pub(crate) fn new(view: &TensorView<'_>, batch: usize, rank: usize) -> Mask {
        let stride = |axis: usize| aligned(view, rank, axis);
        let dtype = view.dtype();
        let data = view.as_ptr().wrapping_offset(batch as isize * stride(0) * dtype.size() as isize);
        let query = if rank == 4 { stride(2) } else { 0 };
        Mask { data, dtype, head: stride(1), query, key: stride(rank - 1) }
    }

    /// Whether it is a boolean mask (instead of an additive one).
    pub(crate) fn is_boolean(&self) -> bool {
        self.dtype == DType::Bool
    }

    /// Whether it is the same for every row.
    pub(crate) fn is_uniform(&self) -> bool {
        self.head == 0 && self.query == 0
    }

    /// Reads the additive mask of `keys` for one row: -∞ where a bool is false.
    ///
    /// # Safety
    /// Head, query and keys are inside the mask, which is still borrowed.
    pub(crate) unsafe fn read(&self, head: usize, query: usize, keys: Range<usize>, to: &mut [f32]) {
        let start = head as isize * self.head + query as isize * self.query + keys.start as isize * self.key;
        // SAFETY: the caller guarantees the indices; the view has this dtype and is aligned.
        unsafe {
            match self.dtype {
                DType::F32 => self.read_as(start, to, |value: f32| value),
                DType::F16 => self.read_as(start, to, half::f16::to_f32),
                DType::BF16 => self.read_as(start, to, half::bf16::to_f32),
                _ => self.read_as(start, to, |seen: u8| if seen != 0 { 0.0 } else { f32::NEG_INFINITY }),
            }
        }
    }

    /// # Safety
    /// All elements from offset `start` on are inside the mask, of this type, and still borrowed.
    unsafe fn read_as<E: Copy>(&self, start: isize, to: &mut [f32], number: impl Fn(E) -> f32) {
        if to.is_empty() {
            return;
        }
        let data = self.data.cast::<E>().wrapping_offset(start);
        if self.key == 1 {
            // SAFETY: the caller guarantees the elements, which are contiguous.
            let from = unsafe { std::slice::from_raw_parts(data, to.len()) };
            to.iter_mut().zip(from).for_each(|(to, &from)| *to = number(from));
        } else {
            for (index, to) in to.iter_mut().enumerate() {
                // SAFETY: as above.
                *to = number(unsafe { *data.offset(index as isize * self.key) });
            }
        }
    }

    /// Additive mask of one score.
    ///
    /// # Safety
    /// As [`Mask::read`].
    pub(crate) unsafe fn at(&self, head: usize, query: usize, key: usize) -> f32 {
        let offset = head as isize * self.head + query as isize * self.query + key as isize * self.key;
        // SAFETY: the caller guarantees the offset.
        unsafe { self.value(offset) }
    }

    #[inline(always)]
    unsafe fn value(&self, offset: isize) -> f32 {
        // SAFETY: the caller guarantees the offset; the view has this dtype and is aligned.
        unsafe {
            match self.dtype {
                DType::F32 => *self.data.cast::<f32>().offset(offset),
                DType::F16 => (*self.data.cast::<half::f16>().offset(offset)).to_f32(),
                DType::BF16 => (*self.data.cast::<half::bf16>().offset(offset)).to_f32(),
                _ if *self.data.offset(offset) != 0 => 0.0,
                _ => f32::NEG_INFINITY,
            }
        }
    }
}

/// ALiBi slopes, offset to their batch row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slopes {
    data: *const f32,
    head: isize,
}

impl Slopes {
    pub(crate) fn new(view: &TensorView<'_>, batch: usize) -> Slopes {
        let data = view.as_ptr().cast::<f32>().wrapping_offset(batch as isize * aligned(view, 2, 0));
        Slopes { data, head: aligned(view, 2, 1) }
    }

    /// The slopes of the heads from this one on.
    pub(crate) fn starting_at(self, head: usize) -> Slopes {
        Slopes { data: self.data.wrapping_offset(head as isize * self.head), ..self }
    }

    /// # Safety
    /// The head is inside, and the slopes are still borrowed.
    pub(crate) unsafe fn at(&self, head: usize) -> f32 {
        // SAFETY: the caller guarantees the head.
        unsafe { *self.data.offset(head as isize * self.head) }
    }
}

/// Sinks: a score of each head that has no value.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sinks {
    data: *const f32,
    head: isize,
}

// SAFETY: it is only read, and the call borrows the tensor.
unsafe impl Sync for Sinks {}

impl Sinks {
    /// Of a validated tensor with one element per head.
    pub(crate) fn new(view: &TensorView<'_>) -> Sinks {
        Sinks {
            data: view.as_ptr().cast(),
            head: view.strides().first().map_or(0, |stride| *stride as isize),
        }
    }

    /// The sinks of the heads from this one on.
    pub(crate) fn starting_at(self, head: usize) -> Sinks {
        Sinks { data: self.data.wrapping_offset(head as isize * self.head), ..self }
    }

    /// The sink of a head; `None` if it has no effect.
    ///
    /// # Safety
    /// The head is inside, and the sinks are still borrowed.
    pub(crate) unsafe fn at(&self, head: usize) -> Option<f32> {
        // SAFETY: the caller guarantees the head.
        let sink = unsafe { *self.data.offset(head as isize * self.head) };
        (sink != f32::NEG_INFINITY).then_some(sink)
    }
}

/// Stride of an axis in a view that is broadcast to `rank` dimensions (right-aligned).
fn aligned(view: &TensorView<'_>, rank: usize, axis: usize) -> isize {
    let own = (axis + view.rank()).checked_sub(rank);
    match own.and_then(|own| Some((*view.shape().get(own)?, *view.strides().get(own)?))) {
        Some((size, stride)) if size != 1 => stride as isize,
        _ => 0,
    }
}

fn not_dense_rows() -> KernelError {
    KernelError::failed("a tensor cannot be viewed as dense rows of the expected dtype".to_owned())
        .before_writing()
}

/// Rows of an input, with the strides of the given dimensions.
pub(crate) fn rows<T: Float>(
    view: &TensorView<'_>,
    position: usize,
    head: usize,
) -> Result<Rows<T>, KernelError> {
    let layout = view.layout();
    if view.dtype() != T::DTYPE || !layout.device.is_host() || !layout.last_is_dense() || !view.is_sound() {
        return Err(not_dense_rows());
    }
    let stride = |axis: usize| layout.strides.get(axis).copied().unwrap_or(0) as isize;
    Ok(Rows { data: view.as_ptr().cast(), outer: stride(0), position: stride(position), head: stride(head) })
}

/// Rows of an output without internal overlap; they are written through [`Rows::at`].
pub(crate) fn rows_mut<T: Float>(
    tensor: &mut TensorMut<'_>,
    position: usize,
    head: usize,
) -> Result<Rows<T>, KernelError> {
    let layout = tensor.layout();
    let usable = tensor.dtype() == T::DTYPE && layout.device.is_host() && layout.last_is_dense();
    if !usable || !tensor.is_sound() || layout.overlaps_itself() {
        return Err(not_dense_rows());
    }
    let layout = *layout;
    let stride = |axis: usize| layout.strides.get(axis).copied().unwrap_or(0) as isize;
    Ok(Rows {
        data: tensor.as_mut_ptr().cast_const().cast(),
        outer: stride(0),
        position: stride(position),
        head: stride(head),
    })
}

/// The lse output, whose last dimension need not be features.
pub(crate) fn lse_mut(
    tensor: Option<&mut TensorMut<'_>>,
    position: usize,
    head: usize,
) -> Result<Rows<f32>, KernelError> {
    let Some(tensor) = tensor else { return Ok(Rows::NONE) };
    let layout = *tensor.layout();
    if tensor.dtype() != DType::F32
        || !layout.device.is_host()
        || !tensor.is_sound()
        || layout.overlaps_itself()
    {
        return Err(not_dense_rows());
    }
    let stride = |axis: usize| layout.strides.get(axis).copied().unwrap_or(0) as isize;
    Ok(Rows {
        data: tensor.as_mut_ptr().cast_const().cast(),
        outer: stride(0),
        position: stride(position),
        head: stride(head),
    })
}

/// Reads an i32 index tensor.
pub(crate) fn index_slice<'a>(view: &TensorView<'a>, leading: &[i64]) -> Result<&'a [i32], KernelError> {
    view.row::<i32>(leading).ok_or_else(not_dense_rows)
}

/// Part `part` of an indptr, clamped to `total`.
pub(crate) fn span(indptr: &[i32], part: usize, total: i64) -> Range<i64> {
    let total = total.max(0);
    let at = |index: usize| indptr.get(index).map_or(0, |&value| i64::from(value));
    let start = at(part).clamp(0, total);
    start..at(part + 1).clamp(start, total)
}
