//! Primitives that move or convert elements: `cast`, `arange`, `gather`, `gather_elements`, `scatter`, `scatter_elements`. Indices are
//! checked before anything is written.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use lz_core::element::{load_f64, load_i64, store_f64};
use lz_core::{DType, KernelError, OutArg, Run, TensorView};
use lz_primitives::call::{Call, mismatch, out_of_range, output, position};
use lz_primitives::functions::ScatterReduction;
use lz_primitives::numbers;

use super::block::{BLOCK, Buffer, Strided, is_lanes};
use super::copy::copy_runs;
use super::runs::{Operand, Runs};
use crate::rows::for_each_range;
use crate::simd::Simd;

/// `primitive.cast`.
pub(super) fn cast<S: Simd>(
    s: S,
    call: Call<'_, '_>,
    outputs: &mut [OutArg<'_>],
    _run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let x = call.tensor(0)?;
    let output = output(outputs, 0)?;
    let (from, to) = (x.dtype(), output.dtype());
    let (shape, elements) = (output.layout().shape, output.elements() as usize);
    let operand = Operand::input(x, &shape)?;
    let runs = Runs::new(&shape, [Operand::output(output), operand]);
    if from == to {
        copy_runs(s, &runs, from.size(), elements);
        return Ok(());
    }
    let lanes = is_lanes(from) && is_lanes(to);
    runs.for_each(|[target, source], len| {
        let target = Strided { start: target, stride: runs.inner[0], dtype: to };
        let source = Strided { start: source, stride: runs.inner[1], dtype: from };
        let mut narrow = Buffer([0f32; BLOCK]);
        let (mut floats, mut ints) = (Buffer([0f64; BLOCK]), Buffer([0i64; BLOCK]));
        for first in (0..len).step_by(BLOCK) {
            let count = BLOCK.min(len - first);
            let (target, source) = (target.from(first), source.from(first));
            // SAFETY: the block is inside the run.
            unsafe {
                if lanes {
                    let from = source.load_f32(s, count, &mut narrow);
                    target.store_f32(s, from, count);
                    continue;
                }
                if from.is_float() {
                    source.load_f64(count, &mut floats);
                } else {
                    source.load_i64(count, &mut ints);
                }
                match (from.is_float(), to.is_float()) {
                    (true, true) => {}
                    (true, false) => ints.0[..count]
                        .iter_mut()
                        .zip(&floats.0)
                        .for_each(|(int, float)| *int = numbers::float_to_int(to, *float)),
                    // An i64 is rounded once: through f64 it would be rounded twice.
                    (false, true) if to == DType::F32 => floats.0[..count]
                        .iter_mut()
                        .zip(&ints.0)
                        .for_each(|(float, int)| *float = f64::from(*int as f32)),
                    (false, true) => floats.0[..count]
                        .iter_mut()
                        .zip(&ints.0)
                        .for_each(|(float, int)| *float = *int as f64),
                    (false, false) => {}
                }
                if to.is_float() {
                    target.store_f64(count, &floats);
                } else {
                    target.store_i64(count, &ints);
                }
            }
        }
    });
    Ok(())
}

/// `primitive.arange`.
pub(super) fn arange<S: Simd>(
    _s: S,
    call: Call<'_, '_>,
    outputs: &mut [OutArg<'_>],
    _run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let (start, step) = (call.tensor(0)?, call.float(2)?);
    let output = output(outputs, 0)?;
    if start.elements() != 1 || output.rank() != 1 || start.dtype() != output.dtype() {
        return Err(mismatch("start must be one element, and the output one dimension of its dtype"));
    }
    let (count, dtype) = (output.elements() as usize, output.dtype());
    let to = strided(output.as_mut_ptr(), &output.as_view());
    // SAFETY: the start has one element, and the output has `count`.
    unsafe {
        let (float, int) = (load_f64(dtype, start.as_ptr()), load_i64(dtype, start.as_ptr()));
        for index in 0..count {
            if dtype.is_float() {
                store_f64(dtype, to.at(index), float + index as f64 * step);
            } else {
                let value = int.wrapping_add((index as i64).wrapping_mul(step as i64));
                lz_core::element::store_i64(dtype, to.at(index), numbers::wrap(dtype, value));
            }
        }
    }
    Ok(())
}

/// The last dimension of a tensor, from an address on.
fn strided(start: *mut u8, view: &TensorView<'_>) -> Strided {
    let stride = view.strides().last().map_or(0, |stride| *stride as isize * view.dtype().size() as isize);
    Strided { start, stride, dtype: view.dtype() }
}

/// Checks that every index is inside a dimension of this size.
fn check_indices(indices: &TensorView<'_>, size: i64) -> Result<(), KernelError> {
    if !matches!(indices.dtype(), DType::I32 | DType::I64) {
        return Err(mismatch("indices must be i32 or i64"));
    }
    let (runs, dtype) = (Runs::new(indices.shape(), [Operand::of(indices)]), indices.dtype());
    let (failed, wrong) = (AtomicBool::new(false), AtomicI64::new(0));
    runs.for_each(|[start], len| {
        let indices = Strided { start, stride: runs.inner[0], dtype };
        for at in 0..len {
            // SAFETY: the run has this many elements.
            let index = unsafe { load_i64(dtype, indices.at(at)) };
            if position(index, size).is_none() {
                wrong.store(index, Ordering::Relaxed);
                failed.store(true, Ordering::Relaxed);
            }
        }
    });
    if failed.into_inner() {
        return Err(out_of_range(wrong.into_inner(), size).before_writing());
    }
    Ok(())
}

/// The position of an index that was checked.
#[inline(always)]
unsafe fn checked(indices: Strided, at: usize, size: i64) -> isize {
    // SAFETY: the caller guarantees the index.
    let index = unsafe { load_i64(indices.dtype, indices.at(at)) };
    (if index < 0 { index + size } else { index }) as isize
}

/// Sizes and byte strides of the three dimensions of a tensor.
struct Slices {
    start: *mut u8,
    sizes: [usize; 3],
    steps: [isize; 3],
    size: usize,
}

// SAFETY: tasks access disjoint slices of the output, and only read inputs.
unsafe impl Sync for Slices {}

impl Slices {
    fn new(start: *mut u8, view: &TensorView<'_>) -> Result<Slices, KernelError> {
        let (&[a, b, c], &[x, y, z]) = (view.shape(), view.strides()) else {
            return Err(mismatch("a tensor must have three dimensions"));
        };
        let size = view.dtype().size();
        let steps = [x, y, z].map(|step| step as isize * size as isize);
        Ok(Slices { start, sizes: [a as usize, b as usize, c as usize], steps, size })
    }

    #[inline(always)]
    fn slice(&self, outer: usize, index: isize) -> *mut u8 {
        self.start.wrapping_offset(self.steps[0] * outer as isize + self.steps[1] * index)
    }

    /// # Safety
    /// Both slices are inside their tensors, and their elements have the same size.
    #[inline(always)]
    unsafe fn copy(&self, to: *mut u8, other: &Slices, from: *const u8) {
        let size = self.size;
        // SAFETY: the caller guarantees both slices.
        unsafe {
            if self.steps[2] == size as isize && other.steps[2] == size as isize {
                return std::ptr::copy_nonoverlapping(from, to, self.sizes[2] * size);
            }
            for index in 0..self.sizes[2] as isize {
                let from = from.wrapping_offset(other.steps[2] * index);
                std::ptr::copy_nonoverlapping(from, to.wrapping_offset(self.steps[2] * index), size);
            }
        }
    }
}

/// `primitive.gather`.
pub(super) fn gather<S: Simd>(
    _s: S,
    call: Call<'_, '_>,
    outputs: &mut [OutArg<'_>],
    _run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let (x, indices) = (call.tensor(0)?, call.tensor(1)?);
    let output = output(outputs, 0)?;
    let from = Slices::new(x.as_ptr().cast_mut(), x)?;
    let to = Slices::new(output.as_mut_ptr(), &output.as_view())?;
    let (count, size) = (to.sizes[1], from.sizes[1] as i64);
    if [to.sizes[0], to.sizes[2]] != [from.sizes[0], from.sizes[2]]
        || indices.shape() != [count as i64]
        || x.dtype() != output.dtype()
    {
        return Err(mismatch("the output must have the shape [outer, count, inner] and the dtype of x"));
    }
    check_indices(indices, size)?;
    let indices = strided(indices.as_ptr().cast_mut(), indices);
    let indices = SharedIndices(indices);
    for_each_range(to.sizes[0] * count, 2 * to.sizes[2] * to.size, &|range| {
        for row in range {
            let (outer, at) = (row / count, row % count);
            // SAFETY: the indices were checked, and ranges are disjoint.
            unsafe {
                let index = checked(indices.get(), at, size);
                to.copy(to.slice(outer, at as isize), &from, from.slice(outer, index));
            }
        }
    });
    Ok(())
}

/// Indices that several threads read.
struct SharedIndices(Strided);

// SAFETY: they are only read.
unsafe impl Sync for SharedIndices {}

impl SharedIndices {
    #[inline(always)]
    fn get(&self) -> Strided {
        self.0
    }
}

/// `primitive.gather_elements`.
pub(super) fn gather_elements<S: Simd>(
    _s: S,
    call: Call<'_, '_>,
    outputs: &mut [OutArg<'_>],
    _run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let (x, indices) = (call.tensor(0)?, call.tensor(1)?);
    let output = output(outputs, 0)?;
    let (size, rows) = last(x)?;
    let (count, index_rows) = last(indices)?;
    if indices.shape() != output.shape() || rows != index_rows || x.dtype() != output.dtype() {
        return Err(mismatch("indices and output must have the same shape, and the rows of x"));
    }
    check_indices(indices, size)?;
    let view = output.as_view();
    let (to_step, from_step, index_step) = (
        strided(std::ptr::null_mut(), &view).stride,
        strided(std::ptr::null_mut(), x).stride,
        strided(std::ptr::null_mut(), indices).stride,
    );
    let (bytes, dtype) = (x.dtype().size(), indices.dtype());
    let operands = [Operand::output(output).rows(), Operand::of(x).rows(), Operand::of(indices).rows()];
    let runs = Runs::new(rows, operands).with_traffic(count as usize * 16);
    runs.for_each(|starts, len| {
        for row in 0..len as isize {
            let [to, from, indices] = [0, 1, 2].map(|n| starts[n].wrapping_offset(runs.inner[n] * row));
            let indices = Strided { start: indices, stride: index_step, dtype };
            for at in 0..count as usize {
                // SAFETY: the indices were checked; rows have `count` and `size` elements.
                unsafe {
                    let from = from.wrapping_offset(from_step * checked(indices, at, size));
                    std::ptr::copy_nonoverlapping(from, to.wrapping_offset(to_step * at as isize), bytes);
                }
            }
        }
    });
    Ok(())
}

/// The size of the last dimension, and the others.
fn last<'v>(view: &'v TensorView<'_>) -> Result<(i64, &'v [i64]), KernelError> {
    match view.shape().split_last() {
        Some((&size, rows)) => Ok((size, rows)),
        None => Err(mismatch("a tensor must have at least one dimension")),
    }
}

/// Combines an element with an update.
///
/// # Safety
/// Both elements are inside their tensors.
#[inline(always)]
unsafe fn combine(dtype: DType, to: *mut u8, from: *const u8, reduction: ScatterReduction) {
    // SAFETY: the caller guarantees both elements.
    unsafe {
        if reduction == ScatterReduction::None {
            std::ptr::copy_nonoverlapping(from, to, dtype.size());
        } else if dtype.is_float() {
            let (old, new) = (load_f64(dtype, to), load_f64(dtype, from));
            store_f64(
                dtype,
                to,
                match reduction {
                    ScatterReduction::None => new,
                    ScatterReduction::Add => old + new,
                    ScatterReduction::Mul => old * new,
                    ScatterReduction::Max => numbers::maximum(old, new),
                    ScatterReduction::Min => numbers::minimum(old, new),
                },
            );
        } else {
            let (old, new) = (load_i64(dtype, to), load_i64(dtype, from));
            let value = match reduction {
                ScatterReduction::None => new,
                ScatterReduction::Add => old.wrapping_add(new),
                ScatterReduction::Mul => old.wrapping_mul(new),
                ScatterReduction::Max => old.max(new),
                ScatterReduction::Min => old.min(new),
            };
            lz_core::element::store_i64(dtype, to, numbers::wrap(dtype, value));
        }
    }
}

/// `primitive.scatter`.
pub(super) fn scatter<S: Simd>(
    s: S,
    call: Call<'_, '_>,
    outputs: &mut [OutArg<'_>],
    _run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let (x, indices, updates) = (call.tensor(0)?, call.tensor(1)?, call.tensor(2)?);
    let reduction = call.case::<ScatterReduction>(3)?;
    let output = output(outputs, 0)?;
    let (shape, dtype, elements) = (output.layout().shape, output.dtype(), output.elements() as usize);
    let from = Slices::new(updates.as_ptr().cast_mut(), updates)?;
    let to = Slices::new(output.as_mut_ptr(), &output.as_view())?;
    let (count, size) = (from.sizes[1], to.sizes[1] as i64);
    if [to.sizes[0], to.sizes[2]] != [from.sizes[0], from.sizes[2]]
        || indices.shape() != [count as i64]
        || x.dtype() != dtype
        || updates.dtype() != dtype
    {
        return Err(mismatch("updates must have the shape [outer, count, inner] and the dtype of x"));
    }
    check_indices(indices, size)?;
    let operand = Operand::input(x, &shape)?;
    copy_runs(s, &Runs::new(&shape, [Operand::output(output), operand]), dtype.size(), elements);
    let indices = SharedIndices(strided(indices.as_ptr().cast_mut(), indices));
    for_each_range(to.sizes[0], 2 * count * to.sizes[2] * to.size, &|range| {
        for outer in range {
            for at in 0..count {
                // SAFETY: the indices were checked, and outer indices are disjoint.
                unsafe {
                    let target = to.slice(outer, checked(indices.get(), at, size));
                    let source = from.slice(outer, at as isize);
                    if reduction == ScatterReduction::None {
                        to.copy(target, &from, source);
                        continue;
                    }
                    for inner in 0..to.sizes[2] as isize {
                        let target = target.wrapping_offset(to.steps[2] * inner);
                        combine(dtype, target, source.wrapping_offset(from.steps[2] * inner), reduction);
                    }
                }
            }
        }
    });
    Ok(())
}

/// `primitive.scatter_elements`.
pub(super) fn scatter_elements<S: Simd>(
    s: S,
    call: Call<'_, '_>,
    outputs: &mut [OutArg<'_>],
    _run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let (x, indices, updates) = (call.tensor(0)?, call.tensor(1)?, call.tensor(2)?);
    let reduction = call.case::<ScatterReduction>(3)?;
    let output = output(outputs, 0)?;
    let (shape, dtype, elements) = (output.layout().shape, output.dtype(), output.elements() as usize);
    let (size, rows) = last(x)?;
    let (count, index_rows) = last(indices)?;
    if indices.shape() != updates.shape()
        || rows != index_rows
        || x.dtype() != dtype
        || updates.dtype() != dtype
    {
        return Err(mismatch("indices and updates must have the same shape, and the rows and dtype of x"));
    }
    check_indices(indices, size)?;
    let operand = Operand::input(x, &shape)?;
    copy_runs(s, &Runs::new(&shape, [Operand::output(output), operand]), dtype.size(), elements);
    let to_step = strided(std::ptr::null_mut(), &output.as_view()).stride;
    let from_step = strided(std::ptr::null_mut(), updates).stride;
    let index = strided(std::ptr::null_mut(), indices);
    let (index_step, index_dtype) = (index.stride, index.dtype);
    let operands = [Operand::output(output).rows(), Operand::of(updates).rows(), Operand::of(indices).rows()];
    let runs = Runs::new(rows, operands).with_traffic(count as usize * 16);
    runs.for_each(|starts, len| {
        for row in 0..len as isize {
            let [to, from, indices] = [0, 1, 2].map(|n| starts[n].wrapping_offset(runs.inner[n] * row));
            let indices = Strided { start: indices, stride: index_step, dtype: index_dtype };
            for at in 0..count as usize {
                // SAFETY: the indices were checked; rows have `count` and `size` elements.
                unsafe {
                    let target = to.wrapping_offset(to_step * checked(indices, at, size));
                    combine(dtype, target, from.wrapping_offset(from_step * at as isize), reduction);
                }
            }
        }
    });
    Ok(())
}
