//! What is to be attended to, with the operation's own names gone: sequences of queries, where each key lies, and what
//! hides or shifts a score. Pointers come from views that validation found sound; index tensors are clamped to what exists.

use std::ops::Range;

use lz_core::{DType, KernelError, TensorMut, TensorView};

use crate::simd::Float;

/// What holds for every sequence of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// Key heads.
    pub kv_heads: usize,
    /// Query heads that share a key head.
    pub group: usize,
    /// Features of the first part of a key, and of a second part that lies elsewhere (0 without).
    pub dims: [usize; 2],
    /// Features of a value.
    pub dim_v: usize,
    /// Whether a value is the first part of its key.
    pub shared: bool,
    pub scale: f32,
    pub soft_cap: f32,
    pub causal: bool,
    /// -1 is none.
    pub window_left: i64,
    /// -1 is none.
    pub window_right: i64,
}

impl Shape {
    /// Features of a whole key.
    pub(crate) fn dim(&self) -> usize {
        self.dims[0] + self.dims[1]
    }

    /// Which of `keys` keys a query at `place` may see.
    #[inline]
    pub(crate) fn visible(&self, place: i64, keys: usize) -> Range<usize> {
        let keys = keys as i64;
        let mut end = keys;
        if self.causal {
            end = end.min(place.saturating_add(1));
        }
        if self.window_right >= 0 {
            end = end.min(place.saturating_add(self.window_right).saturating_add(1));
        }
        let mut start = 0;
        if self.window_left >= 0 {
            start = place.saturating_sub(self.window_left).clamp(0, keys);
        }
        start as usize..end.max(start) as usize
    }
}

/// Rows of features: one for each position and head.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rows<T> {
    pub data: *const T,
    /// Distance of the outermost dimension, of positions and of heads, in elements.
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

    /// The rows from a position on.
    pub(crate) fn from(self, position: i64) -> Rows<T> {
        Rows { data: self.data.wrapping_offset(position as isize * self.position), ..self }
    }
}

/// Where keys and values lie.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Table<'a> {
    /// One after the other.
    Dense,
    /// On pages: key j is on page `pages[j / size]` at place `j % size`. Page numbers are clamped to `0..count`.
    Paged { pages: &'a [i32], size: usize, count: usize, key: isize, second: isize, value: isize },
}

/// One sequence: its queries, its keys, its places for results.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sequence<'a, T> {
    pub queries: usize,
    pub keys: usize,
    /// Query i stands at the place of key i + offset.
    pub offset: i64,
    pub q: Rows<T>,
    pub q_second: Rows<T>,
    pub k: Rows<T>,
    pub k_second: Rows<T>,
    pub v: Rows<T>,
    pub table: Table<'a>,
    pub mask: Option<Mask>,
    pub slopes: Option<Slopes>,
    pub output: Rows<T>,
    /// Null where no lse is wanted.
    pub lse: Rows<f32>,
}

/// Addresses of one key: its two parts and its value.
pub(crate) type Key<T> = [*const T; 3];

impl<T: Float> Sequence<'_, T> {
    /// Where a key of a key head lies.
    #[inline(always)]
    pub(crate) fn key(&self, j: usize, head: usize) -> Key<T> {
        match self.table {
            Table::Dense => [self.k.at(j, head), self.k_second.at(j, head), self.v.at(j, head)],
            Table::Paged { pages, size, count, key, second, value } => {
                let page = pages.get(j / size).copied().unwrap_or(0).max(0) as usize;
                let (page, place) = (page.min(count.saturating_sub(1)) as isize, j % size);
                [
                    self.k.at(place, head).wrapping_offset(page * key),
                    self.k_second.at(place, head).wrapping_offset(page * second),
                    self.v.at(place, head).wrapping_offset(page * value),
                ]
            }
        }
    }
}

/// A mask, already at its batch row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mask {
    data: *const u8,
    dtype: DType,
    /// Distances in elements; 0 where it is broadcast.
    head: isize,
    query: isize,
    key: isize,
}

impl Mask {
    /// Of a checked mask over [batch, heads, queries, keys], or without queries where `rank` is 3.
    pub(crate) fn new(view: &TensorView<'_>, batch: usize, rank: usize) -> Mask {
        let stride = |axis: usize| aligned(view, rank, axis);
        let dtype = view.dtype();
        let data = view.as_ptr().wrapping_offset(batch as isize * stride(0) * dtype.size() as isize);
        let query = if rank == 4 { stride(2) } else { 0 };
        Mask { data, dtype, head: stride(1), query, key: stride(rank - 1) }
    }

    /// Whether it hides keys instead of adding to scores.
    pub(crate) fn hides(&self) -> bool {
        self.dtype == DType::Bool
    }

    /// Whether it says the same to every row.
    pub(crate) fn is_uniform(&self) -> bool {
        self.head == 0 && self.query == 0
    }

    /// What is added to the scores of `keys` for one row: -∞ where a bool is false.
    ///
    /// # Safety
    /// Head, query and keys are inside the mask, which is still borrowed.
    pub(crate) unsafe fn read(&self, head: usize, query: usize, keys: Range<usize>, to: &mut [f32]) {
        let start = head as isize * self.head + query as isize * self.query + keys.start as isize * self.key;
        // SAFETY: the caller vouches for the places; the view was of this dtype and aligned.
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
    /// So many elements from the place `start` on are inside the mask, of this type, and still borrowed.
    unsafe fn read_as<E: Copy>(&self, start: isize, to: &mut [f32], number: impl Fn(E) -> f32) {
        if to.is_empty() {
            return;
        }
        let data = self.data.cast::<E>().wrapping_offset(start);
        if self.key == 1 {
            // SAFETY: the caller vouches for the elements, which lie in one piece.
            let from = unsafe { std::slice::from_raw_parts(data, to.len()) };
            to.iter_mut().zip(from).for_each(|(to, &from)| *to = number(from));
        } else {
            for (place, to) in to.iter_mut().enumerate() {
                // SAFETY: as above.
                *to = number(unsafe { *data.offset(place as isize * self.key) });
            }
        }
    }

    /// What is added to one score.
    ///
    /// # Safety
    /// As [`Mask::read`].
    pub(crate) unsafe fn at(&self, head: usize, query: usize, key: usize) -> f32 {
        let place = head as isize * self.head + query as isize * self.query + key as isize * self.key;
        // SAFETY: the caller vouches for the place.
        unsafe { self.value(place) }
    }

    #[inline(always)]
    unsafe fn value(&self, place: isize) -> f32 {
        // SAFETY: the caller vouches for the place; the view was of this dtype and aligned.
        unsafe {
            match self.dtype {
                DType::F32 => *self.data.cast::<f32>().offset(place),
                DType::F16 => (*self.data.cast::<half::f16>().offset(place)).to_f32(),
                DType::BF16 => (*self.data.cast::<half::bf16>().offset(place)).to_f32(),
                _ if *self.data.offset(place) != 0 => 0.0,
                _ => f32::NEG_INFINITY,
            }
        }
    }
}

/// ALiBi slopes, already at their batch row.
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

    /// # Safety
    /// The head is inside, and the slopes are still borrowed.
    pub(crate) unsafe fn at(&self, head: usize) -> f32 {
        // SAFETY: the caller vouches for the place.
        unsafe { *self.data.offset(head as isize * self.head) }
    }
}

/// Stride of an axis in a view that is broadcast to `rank` dimensions, aligned at the right.
fn aligned(view: &TensorView<'_>, rank: usize, axis: usize) -> isize {
    let own = (axis + view.rank()).checked_sub(rank);
    match own.and_then(|own| Some((*view.shape().get(own)?, *view.strides().get(own)?))) {
        Some((size, stride)) if size != 1 => stride as isize,
        _ => 0,
    }
}

fn unusable() -> KernelError {
    KernelError::failed("a tensor has no dense rows of the type that was asked for".to_owned())
        .before_writing()
}

/// Rows of an input, with the strides of the named dimensions.
pub(crate) fn rows<T: Float>(
    view: &TensorView<'_>,
    position: usize,
    head: usize,
) -> Result<Rows<T>, KernelError> {
    let layout = view.layout();
    if view.dtype() != T::DTYPE || !layout.place.is_host() || !layout.last_is_dense() || !view.is_sound() {
        return Err(unusable());
    }
    let stride = |axis: usize| layout.strides.get(axis).copied().unwrap_or(0) as isize;
    Ok(Rows { data: view.as_ptr().cast(), outer: stride(0), position: stride(position), head: stride(head) })
}

/// Rows of an output that does not overlap itself; they are written through [`Rows::at`].
pub(crate) fn rows_mut<T: Float>(
    tensor: &mut TensorMut<'_>,
    position: usize,
    head: usize,
) -> Result<Rows<T>, KernelError> {
    let layout = tensor.layout();
    let usable = tensor.dtype() == T::DTYPE && layout.place.is_host() && layout.last_is_dense();
    if !usable || !tensor.is_sound() || layout.overlaps_itself() {
        return Err(unusable());
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

/// Places of the lse, whose last dimension need not be features.
pub(crate) fn lse_mut(
    tensor: Option<&mut TensorMut<'_>>,
    position: usize,
    head: usize,
) -> Result<Rows<f32>, KernelError> {
    let Some(tensor) = tensor else { return Ok(Rows::NONE) };
    let layout = *tensor.layout();
    if tensor.dtype() != DType::F32
        || !layout.place.is_host()
        || !tensor.is_sound()
        || layout.overlaps_itself()
    {
        return Err(unusable());
    }
    let stride = |axis: usize| layout.strides.get(axis).copied().unwrap_or(0) as isize;
    Ok(Rows {
        data: tensor.as_mut_ptr().cast_const().cast(),
        outer: stride(0),
        position: stride(position),
        head: stride(head),
    })
}

/// A list of integers.
pub(crate) fn integers<'a>(view: &TensorView<'a>, leading: &[i64]) -> Result<&'a [i32], KernelError> {
    view.row::<i32>(leading).ok_or_else(unusable)
}

/// Part `part` of what an indptr divides; never reaches beyond `total`.
pub(crate) fn span(indptr: &[i32], part: usize, total: i64) -> Range<i64> {
    let total = total.max(0);
    let at = |place: usize| indptr.get(place).map_or(0, |&value| i64::from(value));
    let start = at(part).clamp(0, total);
    start..at(part + 1).clamp(start, total)
}
