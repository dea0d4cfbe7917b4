//! Layouts of views: what a view does to offset, sizes and strides.

use lz_core::tensor::{Dims, Layout};

use crate::graph::View;

/// A layout and the offset, in elements, of its first element from the start of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Strided {
    /// Sizes, strides and dtype.
    pub layout: Layout,
    /// Offset in elements.
    pub offset: i64,
}

impl Strided {
    /// Dense row-major from the start of a buffer; `None` if the sizes are unsound.
    pub fn dense(shape: &[i64], dtype: lz_core::DType) -> Option<Strided> {
        Some(Strided { layout: Layout::contiguous(shape, dtype).ok()?, offset: 0 })
    }

    /// Offset in bytes.
    pub fn byte_offset(&self) -> isize {
        self.offset as isize * self.layout.dtype.size() as isize
    }

    fn with(self, shape: &[i64], strides: &[i64], offset: i64) -> Option<Strided> {
        let layout = Layout { shape: Dims::new(shape)?, strides: Dims::new(strides)?, ..self.layout };
        Some(Strided { layout, offset })
    }

    /// The view with these result sizes; `None` if strides cannot express it (a reshape that needs a copy) or it leaves the tensor.
    /// `start` is the first element of a slice.
    pub fn view(self, view: &View, shape: &[i64], start: i64) -> Option<Strided> {
        let (sizes, strides) = (&self.layout.shape[..], &self.layout.strides[..]);
        match view {
            View::Reshape => {
                let strides = reshape_strides(sizes, strides, shape)?;
                self.with(shape, &strides, self.offset)
            }
            View::Permute(order) => {
                let moved: Option<Vec<i64>> = order.iter().map(|&axis| strides.get(axis).copied()).collect();
                self.with(shape, &moved?, self.offset)
            }
            View::Slice { axis, step, .. } => {
                let (&size, &stride) = (sizes.get(*axis)?, strides.get(*axis)?);
                let length = *shape.get(*axis)?;
                if length < 0 {
                    return None;
                }
                if length > 0 {
                    let last = start.checked_add(step.checked_mul(length - 1)?)?;
                    if start < 0 || start >= size || last < 0 || last >= size {
                        return None;
                    }
                }
                let mut stepped = strides.to_vec();
                stepped[*axis] = stride.checked_mul(*step)?;
                let first = if length > 0 { start.checked_mul(stride)? } else { 0 };
                self.with(shape, &stepped, self.offset.checked_add(first)?)
            }
            View::Expand => {
                let missing = shape.len().checked_sub(sizes.len())?;
                let mut expanded = vec![0; missing];
                for ((&own, &stride), &size) in sizes.iter().zip(strides).zip(&shape[missing..]) {
                    match own {
                        _ if own == size => expanded.push(stride),
                        1 => expanded.push(0),
                        _ => return None,
                    }
                }
                self.with(shape, &expanded, self.offset)
            }
        }
    }
}

/// Strides of a reshape without a copy; `None` if there are none.
fn reshape_strides(sizes: &[i64], strides: &[i64], shape: &[i64]) -> Option<Vec<i64>> {
    let product = |dims: &[i64]| dims.iter().try_fold(1i64, |product, &size| product.checked_mul(size));
    if product(sizes)? != product(shape)? {
        return None;
    }
    if shape.contains(&0) {
        return Some(Dims::new(shape)?.contiguous_strides().to_vec());
    }
    // Runs of dimensions that lie behind each other in memory, without those of size 1.
    let mut runs: Vec<(i64, i64)> = Vec::new();
    for (&size, &stride) in sizes.iter().zip(strides).filter(|(size, _)| **size != 1) {
        match runs.last_mut() {
            Some((total, inner)) if *inner == stride.checked_mul(size)? => {
                *total = total.checked_mul(size)?;
                *inner = stride;
            }
            _ => runs.push((size, stride)),
        }
    }
    let mut result = vec![1i64; shape.len()];
    let mut runs = runs.into_iter().rev();
    let (mut left, mut stride) = (1i64, 1i64);
    for (slot, &size) in result.iter_mut().zip(shape).rev() {
        if size == 1 {
            *slot = stride;
            continue;
        }
        if left == 1 {
            (left, stride) = runs.next()?;
        }
        if left % size != 0 {
            return None;
        }
        *slot = stride;
        stride = stride.checked_mul(size)?;
        left /= size;
    }
    Some(result)
}

#[cfg(test)]
mod tests {
    use lz_core::DType;

    use super::*;
    use crate::dim::Dim;

    fn strides(view: &Strided) -> Vec<i64> {
        view.layout.strides.to_vec()
    }

    #[test]
    fn reshape_splits_and_merges_dense_dimensions() {
        let x = Strided::dense(&[2, 3, 8], DType::F32).unwrap();
        assert_eq!(strides(&x.view(&View::Reshape, &[6, 2, 4], 0).unwrap()), [8, 4, 1]);
        assert_eq!(strides(&x.view(&View::Reshape, &[48], 0).unwrap()), [1]);
        assert_eq!(strides(&x.view(&View::Reshape, &[2, 1, 3, 8, 1], 0).unwrap())[2..4], [8, 1]);
    }

    #[test]
    fn reshape_of_a_transposed_tensor_needs_a_copy() {
        let x = Strided::dense(&[2, 3], DType::F32).unwrap();
        let transposed = x.view(&View::Permute(vec![1, 0]), &[3, 2], 0).unwrap();
        assert_eq!(transposed.view(&View::Reshape, &[6], 0), None);
        assert_eq!(strides(&transposed.view(&View::Reshape, &[3, 1, 2], 0).unwrap()), [1, 6, 3]);
    }

    #[test]
    fn expanded_dimensions_merge_only_with_each_other() {
        let x = Strided::dense(&[4, 1, 1], DType::F32).unwrap();
        let expanded = x.view(&View::Expand, &[4, 2, 3], 0).unwrap();
        assert_eq!(strides(&expanded), [1, 0, 0]);
        assert_eq!(strides(&expanded.view(&View::Reshape, &[4, 6], 0).unwrap()), [1, 0]);
        assert_eq!(expanded.view(&View::Reshape, &[8, 3], 0), None);
    }

    #[test]
    fn slices_stay_inside() {
        let x = Strided::dense(&[5, 2], DType::F32).unwrap();
        let slice = |start: i64, step: i64, length: i64| {
            x.view(&View::Slice { axis: 0, start: Dim::from(start), step }, &[length, 2], start)
        };
        assert_eq!(slice(4, -2, 3).map(|view| (view.offset, strides(&view))), Some((8, vec![-4, 1])));
        assert_eq!(slice(3, 1, 3), None);
        assert_eq!(slice(5, 1, 1), None);
        assert!(slice(5, 1, 0).is_some());
    }
}
