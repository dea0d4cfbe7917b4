//! Sizes and strides held in place, and the indices that sizes allow.

use std::ops::Deref;

/// The largest number of dimensions a tensor may have.
pub const MAX_RANK: usize = 8;

/// Up to [`MAX_RANK`] sizes or strides, held in place.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Dims {
    values: [i64; MAX_RANK],
    len: u8,
}

impl Dims {
    /// No dimensions.
    pub const EMPTY: Dims = Dims { values: [0; MAX_RANK], len: 0 };

    /// Copies `values`; `None` if there are more than [`MAX_RANK`].
    #[inline]
    pub fn new(values: &[i64]) -> Option<Dims> {
        if values.len() > MAX_RANK {
            return None;
        }
        let mut dims = Dims { values: [0; MAX_RANK], len: values.len() as u8 };
        dims.values[..values.len()].copy_from_slice(values);
        Some(dims)
    }

    /// Appends one dimension; `false` when it is full.
    #[inline]
    #[must_use]
    pub fn push(&mut self, value: i64) -> bool {
        let Some(place) = self.values.get_mut(usize::from(self.len)) else { return false };
        *place = value;
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
        let mut strides = *self;
        let mut next = 1i64;
        for position in (0..self.len()).rev() {
            strides.values[position] = next;
            next = next.saturating_mul(self.values[position].max(1));
        }
        strides
    }
}

impl Deref for Dims {
    type Target = [i64];
    #[inline]
    fn deref(&self) -> &[i64] {
        &self.values[..usize::from(self.len)]
    }
}

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
            Some(dims) if dims.iter().all(|&size| size > 0) => {
                Some(Dims { values: [0; MAX_RANK], len: dims.len })
            }
            _ => None,
        };
        Indices { shape: Dims::new(shape).unwrap_or(Dims::EMPTY), next }
    }
}

impl Iterator for Indices {
    type Item = Dims;

    fn next(&mut self) -> Option<Dims> {
        let current = self.next?;
        let mut following = current;
        self.next = None;
        for position in (0..self.shape.len()).rev() {
            following.values[position] += 1;
            if following.values[position] < self.shape[position] {
                self.next = Some(following);
                break;
            }
            following.values[position] = 0;
        }
        Some(current)
    }
}
