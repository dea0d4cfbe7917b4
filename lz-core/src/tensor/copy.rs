//! Bitwise copies between tensors with any strides.

use super::{Indices, TensorMut, TensorView};

/// Side of a tile. A tile of 8-byte elements of both tensors fits into L1, so that a transposed tensor is not read or written
/// one element per cache line.
const TILE: i64 = 32;

/// Copies all elements, bit by bit. False, and nothing is written, if the tensors differ in shape or element size, or are not
/// both sound and in host memory.
pub fn copy_elements(from: &TensorView<'_>, to: &mut TensorMut<'_>) -> bool {
    let same = from.shape() == to.shape() && from.dtype().size() == to.dtype().size();
    let on_host = from.device().is_host() && to.device().is_host();
    if !same || !on_host || !from.is_sound() || !to.is_sound() {
        return false;
    }
    if from.shape().contains(&0) {
        return true;
    }
    // SAFETY: both are sound, in host memory and have an element for every index of the shape.
    unsafe {
        match from.dtype().size() {
            1 => copy::<u8>(from, to),
            2 => copy::<u16>(from, to),
            4 => copy::<u32>(from, to),
            8 => copy::<u64>(from, to),
            _ => return false,
        }
    }
    true
}

/// # Safety
/// Both tensors have an element of the size of `T` for every index of the shape of `from`, which has no size 0.
unsafe fn copy<T: Copy>(from: &TensorView<'_>, to: &mut TensorMut<'_>) {
    let (source, target) = (from.as_ptr().cast::<T>(), to.as_mut_ptr().cast::<T>());
    let (shape, reads, writes) = (from.shape(), from.strides(), to.strides());
    let dim = |dim: usize| (shape[dim], reads[dim] as isize, writes[dim] as isize);
    let Some(last) = shape.len().checked_sub(1) else {
        // SAFETY: there is one element; addresses of foreign tensors need not be aligned.
        return unsafe { target.write_unaligned(source.read_unaligned()) };
    };
    // The other dimension of a tile is the one along which the source is closest to dense.
    let other = (0..last).filter(|dim| shape[*dim] > 1).min_by_key(|dim| reads[*dim].unsigned_abs());
    let is_outer = |dim: &usize| *dim != last && Some(*dim) != other;
    let outer: Vec<usize> = (0..shape.len()).filter(is_outer).collect();
    let sizes: Vec<i64> = outer.iter().map(|dim| shape[*dim]).collect();
    let rows = other.map_or((1, 0, 0), dim);
    for index in Indices::new(&sizes) {
        let offset = |strides: &[i64]| -> isize {
            outer.iter().zip(index.iter()).map(|(dim, at)| strides[*dim] as isize * *at as isize).sum()
        };
        let (source, target) =
            (source.wrapping_offset(offset(reads)), target.wrapping_offset(offset(writes)));
        // SAFETY: the plane at this index is inside both tensors.
        unsafe { copy_plane(source, target, rows, dim(last)) };
    }
}

/// Copies a plane; each dimension has a size, a stride of the source and one of the target.
///
/// # Safety
/// Every element of the plane is inside both tensors.
unsafe fn copy_plane<T: Copy>(
    source: *const T,
    target: *mut T,
    rows: (i64, isize, isize),
    columns: (i64, isize, isize),
) {
    let (row_count, read_row, write_row) = rows;
    let (column_count, read_column, write_column) = columns;
    let is_dense = read_column == 1 && write_column == 1;
    let tile = if is_dense { i64::MAX } else { TILE };
    let mut first_row = 0;
    while first_row < row_count {
        let end_row = first_row.saturating_add(tile).min(row_count);
        let mut first_column = 0;
        while first_column < column_count {
            let end_column = first_column.saturating_add(tile).min(column_count);
            for row in first_row..end_row {
                let source = source.wrapping_offset(row as isize * read_row);
                let target = target.wrapping_offset(row as isize * write_row);
                for column in first_column..end_column {
                    let read = source.wrapping_offset(column as isize * read_column);
                    let write = target.wrapping_offset(column as isize * write_column);
                    // SAFETY: the element is inside both tensors; addresses need not be aligned.
                    unsafe { write.write_unaligned(read.read_unaligned()) };
                }
            }
            first_column = end_column;
        }
        first_row = end_row;
    }
}

#[cfg(test)]
mod tests {
    use lz_schema::DType;

    use super::*;
    use crate::tensor::{Device, Dims, Layout, Tensor};

    /// The strides of a dense tensor of this shape in another order of dimensions.
    fn permuted_strides(shape: &[i64], order: &[usize]) -> Dims {
        let mut strides = vec![0; shape.len()];
        let mut next = 1;
        for &dim in order.iter().rev() {
            strides[dim] = next;
            next *= shape[dim];
        }
        Dims::new(&strides).unwrap()
    }

    #[test]
    fn every_order_of_dimensions_is_copied() {
        for shape in [&[][..], &[5], &[70, 33], &[3, 40, 2], &[2, 1, 35, 33], &[3, 0, 2]] {
            for turn in 0..shape.len().max(1) {
                let mut order: Vec<usize> = (0..shape.len()).collect();
                order.rotate_left(turn);
                let count: i64 = shape.iter().product();
                let data: Vec<u32> = (0..count as u32).collect();
                let layout = Layout {
                    shape: Dims::new(shape).unwrap(),
                    strides: permuted_strides(shape, &order),
                    dtype: DType::U32,
                    device: Device::HOST,
                };
                let from = TensorView::from_slice_with(&data, 0, layout).unwrap();
                let mut dense = Tensor::zeros(shape, DType::U32).unwrap();
                assert!(copy_elements(&from, &mut dense.view_mut()));
                for index in Indices::new(shape) {
                    assert_eq!(
                        dense.view().int_at(&index),
                        from.int_at(&index),
                        "{shape:?} {order:?} {index:?}"
                    );
                }
                let mut back = vec![0u32; data.len()];
                let mut to = TensorMut::from_slice_with(&mut back, 0, layout).unwrap();
                assert!(copy_elements(&dense.view(), &mut to));
                assert_eq!(back, data);
            }
        }
    }

    #[test]
    fn negative_and_zero_strides_and_every_size() {
        // Words, so that elements of every size are aligned.
        let data: Vec<u64> =
            (0..8).map(|word| 0x0706_0504_0302_0100 + word * 0x0808_0808_0808_0808).collect();
        let start: *const u8 = data.as_ptr().cast();
        for (dtype, size) in [(DType::U8, 1), (DType::F16, 2), (DType::F32, 4), (DType::I64, 8)] {
            let count = 64 / size;
            let layout = |strides: &[i64]| Layout {
                shape: Dims::new(&[2, 3]).unwrap(),
                strides: Dims::new(strides).unwrap(),
                dtype,
                device: Device::HOST,
            };
            // SAFETY: the last elements of the data, backwards; then one row twice.
            let views = unsafe {
                let end = start.add((count - 1) * size);
                [TensorView::from_raw(end, layout(&[-3, -1])), TensorView::from_raw(start, layout(&[0, 1]))]
            };
            for from in views {
                let mut dense = Tensor::zeros(&[2, 3], dtype).unwrap();
                assert!(copy_elements(&from, &mut dense.view_mut()));
                for index in Indices::new(&[2, 3]) {
                    assert_eq!(dense.view().bits().int_at(&index), from.bits().int_at(&index), "{dtype:?}");
                }
            }
        }
    }

    #[test]
    fn other_shapes_are_refused() {
        let from = Tensor::zeros(&[2, 3], DType::F32).unwrap();
        for (shape, dtype) in [(&[3, 2][..], DType::F32), (&[6], DType::F32), (&[2, 3], DType::F16)] {
            let mut to = Tensor::zeros(shape, dtype).unwrap();
            assert!(!copy_elements(&from.view(), &mut to.view_mut()));
        }
    }
}
