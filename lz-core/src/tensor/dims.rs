//! Inline sizes and strides, and iteration over indices.

use std::mem::MaybeUninit;
use std::ops::Deref;

/// The maximum number of dimensions of a tensor.
pub const MAX_RANK: usize = 8;

/// Up to [`MAX_RANK`] sizes or strides, stored inline.
#[derive(Clone, Copy)]
pub struct Dims {
    /// The first `len` are initialized.
    values: [MaybeUninit<i64>; MAX_RANK],
    len: u8,
}

impl Dims {
    /// No dimensions.
    #[inline(always)]
    pub const fn empty() -> Dims {
        Dims { values: [const { MaybeUninit::uninit() }; MAX_RANK], len: 0 }
    }

    /// Copies `values`; `None` if there are more than [`MAX_RANK`].
    #[inline]
    pub fn new(values: &[i64]) -> Option<Dims> {
        if values.len() > MAX_RANK {
            return None;
        }
        let mut dims = Dims { len: values.len() as u8, ..Dims::empty() };
        for (slot, value) in dims.values.iter_mut().zip(values) {
            slot.write(*value);
        }
        Some(dims)
    }

    /// `len` zeros, at most [`MAX_RANK`].
    fn zeros(len: usize) -> Dims {
        Dims { values: [const { MaybeUninit::new(0) }; MAX_RANK], len: len.min(MAX_RANK) as u8 }
    }

    /// A copy made word by word.
    #[inline(always)]
    pub(super) fn copied(&self) -> Dims {
        let mut copied = Dims::empty();
        copied.copy_words(self);
        copied
    }

    /// Overwrites with a copy of `values`; `false` if there are more than [`MAX_RANK`].
    #[inline(always)]
    pub(crate) fn become_copy(&mut self, values: &[i64]) -> bool {
        if values.len() > MAX_RANK {
            return false;
        }
        self.copy_words(values);
        true
    }

    /// A wide copy would stall on store forwarding, because the values were just written with narrow stores. The volatile reads keep
    /// the compiler from merging them, and from calling `memcpy` for two words.
    #[inline(always)]
    fn copy_words(&mut self, values: &[i64]) {
        self.len = values.len() as u8;
        for (slot, value) in self.values.iter_mut().zip(values) {
            // SAFETY: a reference is always valid for reads.
            slot.write(unsafe { std::ptr::read_volatile(value) });
        }
    }

    fn as_mut_slice(&mut self) -> &mut [i64] {
        // SAFETY: the first `len` values are initialized, and `len <= MAX_RANK`.
        unsafe { std::slice::from_raw_parts_mut(self.values.as_mut_ptr().cast(), usize::from(self.len)) }
    }

    /// Sets the length, at most [`MAX_RANK`], and returns the storage.
    ///
    /// # Safety
    /// All `len` values must be written before they are read.
    #[inline(always)]
    pub(super) unsafe fn set_length(&mut self, len: usize) -> &mut [MaybeUninit<i64>; MAX_RANK] {
        self.len = len.min(MAX_RANK) as u8;
        &mut self.values
    }

    /// Appends one dimension; `false` if it is full.
    #[inline]
    #[must_use]
    pub fn push(&mut self, value: i64) -> bool {
        let Some(slot) = self.values.get_mut(usize::from(self.len)) else { return false };
        slot.write(value);
        self.len += 1;
        true
    }

    /// Product of all sizes (1 for none); `None` on overflow or a negative size.
    #[inline]
    pub fn product(&self) -> Option<i64> {
        self.iter().try_fold(1i64, |product, &size| if size < 0 { None } else { product.checked_mul(size) })
    }

    /// Dense row-major strides, in elements, of a tensor with these sizes. Sizes of 0 count as 1, so strides stay positive.
    pub fn contiguous_strides(&self) -> Dims {
        let mut strides = Dims { len: self.len, ..Dims::empty() };
        let mut next = 1i64;
        for (stride, &size) in strides.values.iter_mut().zip(self.iter()).rev() {
            stride.write(next);
            next = next.saturating_mul(size.max(1));
        }
        strides
    }
}

impl Deref for Dims {
    type Target = [i64];
    #[inline]
    fn deref(&self) -> &[i64] {
        // SAFETY: the first `len` values are initialized, and `len <= MAX_RANK`.
        // Every access to a size comes here, and the checks of `from_raw_parts` in the dev profile take a tenth of the time of tests.
        unsafe { &*std::ptr::slice_from_raw_parts(self.values.as_ptr().cast(), usize::from(self.len)) }
    }
}

impl PartialEq for Dims {
    #[inline]
    fn eq(&self, other: &Dims) -> bool {
        **self == **other
    }
}

impl Eq for Dims {}

impl std::fmt::Debug for Dims {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// All indices of a shape in row-major order; yields the empty index once for rank 0 and nothing if a size is 0 or less.
#[derive(Debug)]
pub struct Indices {
    shape: Dims,
    next: Option<Dims>,
}

impl Indices {
    /// Over a shape of at most [`MAX_RANK`] dimensions (more yields nothing).
    pub fn new(shape: &[i64]) -> Indices {
        let next = match Dims::new(shape) {
            Some(dims) if dims.iter().all(|&size| size > 0) => Some(Dims::zeros(dims.len())),
            _ => None,
        };
        Indices { shape: Dims::new(shape).unwrap_or(Dims::empty()), next }
    }
}

impl Iterator for Indices {
    type Item = Dims;

    fn next(&mut self) -> Option<Dims> {
        let current = self.next?;
        let mut following = current;
        self.next = None;
        for position in (0..self.shape.len()).rev() {
            let slot = &mut following.as_mut_slice()[position];
            *slot += 1;
            if *slot < self.shape[position] {
                self.next = Some(following);
                break;
            }
            *slot = 0;
        }
        Some(current)
    }
}
