//! Primitives that search or scan rows: `arg_reduce`, `topk`, `cumsum`.

use lz_core::element::{load_f64, load_i64, store_f64, store_i64};
use lz_core::tensor::{Dims, Indices, Layout};
use lz_core::{DType, KernelError, OutArg, Run};
use lz_primitives::call::{Call, mismatch, output};
use lz_primitives::functions::{ArgReduceFunction, ReduceFunction};
use lz_primitives::numbers;

use super::block::{BLOCK, Buffer, Strided, is_lanes};
use super::reduce::reduce_dense;
use super::rows::RowRuns;
use crate::simd::Simd;

/// A key that orders elements as signed integers: floats by value with NaN above all, -0 equal to 0.
///
/// # Safety
/// The element is readable.
#[inline(always)]
unsafe fn key(row: Strided, index: usize) -> i64 {
    // SAFETY: the caller guarantees the element.
    unsafe {
        if !row.dtype.is_float() {
            return load_i64(row.dtype, row.at(index));
        }
        let value = load_f64(row.dtype, row.at(index));
        if value.is_nan() {
            return i64::MAX;
        }
        let bits = (value + 0.0).to_bits() as i64;
        bits ^ (((bits >> 63) as u64) >> 1) as i64
    }
}

/// `primitive.arg_reduce`.
pub(super) fn arg_reduce<S: Simd>(
    s: S,
    call: Call<'_, '_>,
    outputs: &mut [OutArg<'_>],
    _run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let (x, function, last) = (call.tensor(0)?, call.case::<ArgReduceFunction>(1)?, call.flag(2)?);
    let output = output(outputs, 0)?;
    if output.dtype() != DType::I64 {
        return Err(mismatch("the output must be i64"));
    }
    let rows = RowRuns::with_elements(x, output)?;
    if rows.n == 0 {
        return Err(mismatch("a row must have at least one element"));
    }
    let (n, lanes) = (rows.n, is_lanes(x.dtype()));
    rows.for_each(|to, row| {
        // SAFETY: the row has `n` elements.
        let best = unsafe {
            if lanes { best_lanes(s, row, n, function, last) } else { best(row, n, function, last) }
        };
        // SAFETY: the output has one element per row.
        unsafe { to.start.cast::<i64>().write(best as i64) };
    });
    Ok(())
}

unsafe fn best(row: Strided, n: usize, function: ArgReduceFunction, last: bool) -> usize {
    let key_at = |index: usize| {
        // SAFETY: the caller guarantees the row.
        let key = unsafe { key(row, index) };
        match function {
            ArgReduceFunction::Argmax => key,
            // NaN is the smallest element too.
            ArgReduceFunction::Argmin if key == i64::MAX && row.dtype.is_float() => i64::MAX,
            ArgReduceFunction::Argmin => !key,
        }
    };
    let (mut best, mut best_key) = (0, key_at(0));
    for index in 1..n {
        let key = key_at(index);
        if key > best_key || (last && key == best_key) {
            (best, best_key) = (index, key);
        }
    }
    best
}

/// Searches only blocks whose extreme is better than the best so far.
unsafe fn best_lanes<S: Simd>(
    s: S,
    row: Strided,
    n: usize,
    function: ArgReduceFunction,
    last: bool,
) -> usize {
    let reduction = match function {
        ArgReduceFunction::Argmax => ReduceFunction::Max,
        ArgReduceFunction::Argmin => ReduceFunction::Min,
    };
    let better = |new: f32, old: f32| {
        let beats = match function {
            ArgReduceFunction::Argmax => new > old,
            ArgReduceFunction::Argmin => new < old,
        };
        let equal = new == old || (new.is_nan() && old.is_nan());
        (!old.is_nan() && (beats || new.is_nan())) || (last && equal)
    };
    let mut buffer = Buffer([0f32; BLOCK]);
    let mut best: Option<(usize, f32)> = None;
    for first in (0..n).step_by(BLOCK) {
        let count = BLOCK.min(n - first);
        // SAFETY: the block is inside the row.
        let block = unsafe {
            let from = row.from(first).load_f32(s, count, &mut buffer);
            std::slice::from_raw_parts(from, count)
        };
        // SAFETY: the block has `count` elements.
        let extreme = unsafe { reduce_dense(s, reduction, block.as_ptr(), count) };
        if best.is_some_and(|(_, value)| !better(extreme, value)) {
            continue;
        }
        let is_extreme = |x: &f32| *x == extreme || (x.is_nan() && extreme.is_nan());
        let found = if last { block.iter().rposition(is_extreme) } else { block.iter().position(is_extreme) };
        best = found.map(|index| (first + index, extreme)).or(best);
    }
    best.map_or(0, |(index, _)| index)
}

/// `primitive.topk`.
pub(super) fn topk<S: Simd>(
    _s: S,
    call: Call<'_, '_>,
    outputs: &mut [OutArg<'_>],
    run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let (x, k, largest, sorted) = (call.tensor(0)?, call.size(1)?, call.flag(2)?, call.flag(3)?);
    let [first, second] = outputs else { return Err(mismatch("there must be two outputs")) };
    let values = output(std::slice::from_mut(first), 0)?;
    let indices = output(std::slice::from_mut(second), 0)?;
    let n = x.shape().last().map_or(0, |&n| n as usize);
    if indices.dtype() != DType::I64
        || values.dtype() != x.dtype()
        || values.shape().last() != Some(&(k as i64))
        || indices.shape() != values.shape()
        || k > n
    {
        return Err(mismatch("outputs must have k elements per row: values of the dtype of x, and i64"));
    }
    let leading = &x.shape()[..x.rank().saturating_sub(1)];
    if values.shape()[..values.rank().saturating_sub(1)] != *leading {
        return Err(mismatch("outputs must have the rows of x"));
    }
    if k == 0 {
        return Ok(());
    }
    let workspace = run.workspace(16 * n as u64)?;
    // SAFETY: the workspace is aligned to a cache line and has 16 bytes per element; every pair is a valid value.
    let pairs = unsafe { std::slice::from_raw_parts_mut(workspace.as_mut_ptr().cast::<[i64; 2]>(), n) };
    let (value_start, index_start) = (values.as_mut_ptr(), indices.as_mut_ptr());
    for row in Indices::new(leading) {
        let from = row_of(x.layout(), x.as_ptr().cast_mut(), row);
        let value_row = row_of(values.layout(), value_start, row);
        let index_row = row_of(indices.layout(), index_start, row);
        for (index, pair) in pairs.iter_mut().enumerate() {
            // SAFETY: the row has `n` elements.
            *pair = [unsafe { key(from, index) }, index as i64];
        }
        let order = |a: &[i64; 2], b: &[i64; 2]| {
            let by_key = if largest { b[0].cmp(&a[0]) } else { a[0].cmp(&b[0]) };
            by_key.then(a[1].cmp(&b[1]))
        };
        if 0 < k && k < n {
            pairs.select_nth_unstable_by(k - 1, order);
        }
        let chosen = &mut pairs[..k];
        if sorted {
            chosen.sort_unstable_by(order);
        } else {
            chosen.sort_unstable_by_key(|pair| pair[1]);
        }
        for (slot, pair) in chosen.iter().enumerate() {
            // SAFETY: positions are inside the row, and slots inside both outputs.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    from.at(pair[1] as usize),
                    value_row.at(slot),
                    x.dtype().size(),
                );
                index_row.at(slot).cast::<i64>().write(pair[1]);
            }
        }
    }
    Ok(())
}

/// The row at a leading index.
fn row_of(layout: &Layout, start: *mut u8, leading: Dims) -> Strided {
    let size = layout.dtype.size() as isize;
    let offsets = leading.iter().zip(layout.strides.iter());
    let offset: isize = offsets.map(|(index, stride)| (index * stride) as isize * size).sum();
    let stride = layout.strides.last().map_or(0, |stride| *stride as isize * size);
    Strided { start: start.wrapping_offset(offset), stride, dtype: layout.dtype }
}

/// `primitive.cumsum`.
pub(super) fn cumsum<S: Simd>(
    _s: S,
    call: Call<'_, '_>,
    outputs: &mut [OutArg<'_>],
    _run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let (x, exclusive, reverse) = (call.tensor(0)?, call.flag(1)?, call.flag(2)?);
    let output = output(outputs, 0)?;
    if x.shape() != output.shape() || x.dtype() != output.dtype() {
        return Err(mismatch("x and the output must have the same shape and dtype"));
    }
    let dtype = x.dtype();
    let rows = RowRuns::with_rows(x, output)?;
    let n = rows.n;
    rows.for_each(|to, row| {
        let (mut float, mut int) = (0f64, 0i64);
        for step in 0..n {
            let index = if reverse { n - 1 - step } else { step };
            // SAFETY: both rows have `n` elements.
            unsafe {
                if dtype.is_float() {
                    let before = float;
                    float += load_f64(dtype, row.at(index));
                    store_f64(dtype, to.at(index), if exclusive { before } else { float });
                } else {
                    let before = int;
                    int = int.wrapping_add(load_i64(dtype, row.at(index)));
                    let value = if exclusive { before } else { int };
                    store_i64(dtype, to.at(index), numbers::wrap(dtype, value));
                }
            }
        }
    });
    Ok(())
}
