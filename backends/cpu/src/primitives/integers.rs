//! Elementwise primitives of integers, comparisons and selections: `unary_int`, `binary_int`, `binary_int_scalar`, `compare`,
//! `compare_scalar`, `test`, `where`. Integers of every width are computed in i64.

use std::sync::atomic::{AtomicBool, Ordering};

use lz_core::{DType, KernelError, OutArg, Run};
use lz_primitives::call::{Call, division_by_zero, mismatch, output};
use lz_primitives::functions::{BinaryIntFunction, CompareFunction, TestFunction, UnaryIntFunction};
use lz_primitives::numbers;

use super::block::{BLOCK, Buffer, Strided, is_lanes};
use super::runs::{Operand, Runs};
use crate::simd::Simd;

/// Applies a function of two i64 blocks in place of the first.
fn map(runs: &Runs<3>, dtypes: [DType; 3], function: impl Fn(&mut [i64], &[i64]) + Sync) {
    runs.for_each(|[to, a, b], len| {
        let strided = |n: usize, start| Strided { start, stride: runs.inner[n], dtype: dtypes[n] };
        let (to, a, b) = (strided(0, to), strided(1, a), strided(2, b));
        let (mut x, mut y) = (Buffer([0i64; BLOCK]), Buffer([0i64; BLOCK]));
        for first in (0..len).step_by(BLOCK) {
            let count = BLOCK.min(len - first);
            // SAFETY: the block is inside the run.
            unsafe {
                a.from(first).load_i64(count, &mut x);
                b.from(first).load_i64(count, &mut y);
                function(&mut x.0[..count], &y.0[..count]);
                to.from(first).store_i64(count, &x);
            }
        }
    });
}

#[inline(always)]
fn each(x: &mut [i64], y: &[i64], function: impl Fn(i64, i64) -> i64) {
    for (x, &y) in x.iter_mut().zip(y) {
        *x = function(*x, y);
    }
}

fn require_ints(dtypes: [DType; 3]) -> Result<(), KernelError> {
    let is_int = |dtype: &DType| {
        matches!(dtype, DType::I64 | DType::I32 | DType::I16 | DType::I8 | DType::U8 | DType::Bool)
    };
    if dtypes.iter().all(is_int) { Ok(()) } else { Err(mismatch("tensors must be integers or bools")) }
}

/// `primitive.unary_int`.
pub(super) fn unary_int<S: Simd>(
    _s: S,
    call: Call<'_, '_>,
    outputs: &mut [OutArg<'_>],
    _run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let (x, function) = (call.tensor(0)?, call.case::<UnaryIntFunction>(1)?);
    let output = output(outputs, 0)?;
    let dtypes = [output.dtype(), x.dtype(), x.dtype()];
    require_ints(dtypes)?;
    let shape = output.layout().shape;
    let operand = Operand::input(x, &shape)?;
    let runs = Runs::new(&shape, [Operand::output(output), operand, operand]);
    map(&runs, dtypes, |x, y| each(x, y, |x, _| numbers::unary_int(function, dtypes[1], x)));
    Ok(())
}

/// Runs a function whose operands have the width of `dtype`, although a number among them is stored as i64.
fn run_binary(
    runs: &Runs<3>,
    dtypes: [DType; 3],
    dtype: DType,
    function: BinaryIntFunction,
) -> Result<(), KernelError> {
    require_ints(dtypes)?;
    let failed = AtomicBool::new(false);
    match function {
        BinaryIntFunction::Add => map(runs, dtypes, |x, y| each(x, y, i64::wrapping_add)),
        BinaryIntFunction::Sub => map(runs, dtypes, |x, y| each(x, y, i64::wrapping_sub)),
        BinaryIntFunction::Mul => map(runs, dtypes, |x, y| each(x, y, i64::wrapping_mul)),
        BinaryIntFunction::BitwiseAnd => map(runs, dtypes, |x, y| each(x, y, |x, y| x & y)),
        BinaryIntFunction::BitwiseOr => map(runs, dtypes, |x, y| each(x, y, |x, y| x | y)),
        _ => map(runs, dtypes, |x, y| {
            each(x, y, |x, y| match numbers::binary_int(function, dtype, x, y) {
                Some(value) => value,
                None => {
                    failed.store(true, Ordering::Relaxed);
                    0
                }
            });
        }),
    }
    if failed.into_inner() { Err(division_by_zero()) } else { Ok(()) }
}

/// `primitive.binary_int`.
pub(super) fn binary_int<S: Simd>(
    _s: S,
    call: Call<'_, '_>,
    outputs: &mut [OutArg<'_>],
    _run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let (a, b, function) = (call.tensor(0)?, call.tensor(1)?, call.case::<BinaryIntFunction>(2)?);
    let output = output(outputs, 0)?;
    let (shape, dtypes) = (output.layout().shape, [output.dtype(), a.dtype(), b.dtype()]);
    let (a, b) = (Operand::input(a, &shape)?, Operand::input(b, &shape)?);
    run_binary(&Runs::new(&shape, [Operand::output(output), a, b]), dtypes, dtypes[1], function)
}

/// `primitive.binary_int_scalar`.
pub(super) fn binary_int_scalar<S: Simd>(
    _s: S,
    call: Call<'_, '_>,
    outputs: &mut [OutArg<'_>],
    _run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let (x, function, reversed) = (call.tensor(0)?, call.case::<BinaryIntFunction>(1)?, call.flag(3)?);
    let value = numbers::wrap(x.dtype(), call.int(2)?);
    let output = output(outputs, 0)?;
    let shape = output.layout().shape;
    let (x_dtype, x) = (x.dtype(), Operand::input(x, &shape)?);
    let scalar = Operand::scalar(&value);
    let dtype = output.dtype();
    let (operands, dtypes) = if reversed {
        ([scalar, x], [dtype, DType::I64, x_dtype])
    } else {
        ([x, scalar], [dtype, x_dtype, DType::I64])
    };
    let runs = Runs::new(&shape, [Operand::output(output), operands[0], operands[1]]);
    run_binary(&runs, dtypes, x_dtype, function)
}

/// The comparison of two blocks, compiled for each function.
#[inline(always)]
fn compare_blocks<T: PartialOrd + Copy>(function: CompareFunction, a: &[T], b: &[T], to: &mut [i64]) {
    #[inline(always)]
    fn each<T: Copy>(a: &[T], b: &[T], to: &mut [i64], holds: impl Fn(T, T) -> bool) {
        for ((to, &a), &b) in to.iter_mut().zip(a).zip(b) {
            *to = i64::from(holds(a, b));
        }
    }
    match function {
        CompareFunction::Eq => each(a, b, to, |a, b| a == b),
        CompareFunction::Ne => each(a, b, to, |a, b| a != b),
        CompareFunction::Lt => each(a, b, to, |a, b| a < b),
        CompareFunction::Le => each(a, b, to, |a, b| a <= b),
        CompareFunction::Gt => each(a, b, to, |a, b| a > b),
        CompareFunction::Ge => each(a, b, to, |a, b| a >= b),
    }
}

fn run_compare<S: Simd>(
    s: S,
    runs: &Runs<3>,
    dtypes: [DType; 3],
    function: CompareFunction,
) -> Result<(), KernelError> {
    let (lanes, floats) = (is_lanes(dtypes[1]) && is_lanes(dtypes[2]), dtypes[1].is_float());
    if dtypes[0] != DType::Bool || dtypes[1].is_float() != dtypes[2].is_float() {
        return Err(mismatch("operands must have the same dtype, and the output must be bool"));
    }
    runs.for_each(|[to, a, b], len| {
        let strided = |n: usize, start| Strided { start, stride: runs.inner[n], dtype: dtypes[n] };
        let (to, a, b) = (strided(0, to), strided(1, a), strided(2, b));
        let mut result = Buffer([0i64; BLOCK]);
        for first in (0..len).step_by(BLOCK) {
            let count = BLOCK.min(len - first);
            let (a, b) = (a.from(first), b.from(first));
            // SAFETY: the block is inside the run.
            unsafe {
                if lanes {
                    let (mut x, mut y) = (Buffer([0f32; BLOCK]), Buffer([0f32; BLOCK]));
                    let x = std::slice::from_raw_parts(a.load_f32(s, count, &mut x), count);
                    let y = std::slice::from_raw_parts(b.load_f32(s, count, &mut y), count);
                    compare_blocks(function, x, y, &mut result.0[..count]);
                } else if floats {
                    let (mut x, mut y) = (Buffer([0f64; BLOCK]), Buffer([0f64; BLOCK]));
                    a.load_f64(count, &mut x);
                    b.load_f64(count, &mut y);
                    compare_blocks(function, &x.0[..count], &y.0[..count], &mut result.0[..count]);
                } else {
                    let (mut x, mut y) = (Buffer([0i64; BLOCK]), Buffer([0i64; BLOCK]));
                    a.load_i64(count, &mut x);
                    b.load_i64(count, &mut y);
                    compare_blocks(function, &x.0[..count], &y.0[..count], &mut result.0[..count]);
                }
                to.from(first).store_i64(count, &result);
            }
        }
    });
    Ok(())
}

/// `primitive.compare`.
pub(super) fn compare<S: Simd>(
    s: S,
    call: Call<'_, '_>,
    outputs: &mut [OutArg<'_>],
    _run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let (a, b, function) = (call.tensor(0)?, call.tensor(1)?, call.case::<CompareFunction>(2)?);
    let output = output(outputs, 0)?;
    let (shape, dtypes) = (output.layout().shape, [output.dtype(), a.dtype(), b.dtype()]);
    let (a, b) = (Operand::input(a, &shape)?, Operand::input(b, &shape)?);
    run_compare(s, &Runs::new(&shape, [Operand::output(output), a, b]), dtypes, function)
}

/// `primitive.compare_scalar`.
pub(super) fn compare_scalar<S: Simd>(
    s: S,
    call: Call<'_, '_>,
    outputs: &mut [OutArg<'_>],
    _run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let (x, function, value) = (call.tensor(0)?, call.case::<CompareFunction>(1)?, call.float(2)?);
    let output = output(outputs, 0)?;
    let (shape, to, dtype) = (output.layout().shape, output.dtype(), x.dtype());
    let operand = Operand::input(x, &shape)?;
    let (narrow, int) = (value as f32, value as i64);
    let (scalar, scalar_dtype) = if is_lanes(dtype) {
        (Operand::scalar(&narrow), DType::F32)
    } else if dtype.is_float() {
        (Operand::scalar(&value), DType::F64)
    } else if value == int as f64 && value.abs() < 9e15 {
        (Operand::scalar(&int), DType::I64)
    } else {
        // No integer equals the number.
        let runs = Runs::new(&shape, [Operand::output(output), operand, operand]);
        require_ints([to, dtype, dtype])?;
        map(&runs, [to, dtype, dtype], |x, y| {
            each(x, y, |x, _| i64::from(numbers::compare_exactly(function, x, value)));
        });
        return Ok(());
    };
    let runs = Runs::new(&shape, [Operand::output(output), operand, scalar]);
    run_compare(s, &runs, [to, dtype, scalar_dtype], function)
}

/// `primitive.test`.
pub(super) fn test<S: Simd>(
    _s: S,
    call: Call<'_, '_>,
    outputs: &mut [OutArg<'_>],
    _run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let (x, function) = (call.tensor(0)?, call.case::<TestFunction>(1)?);
    let output = output(outputs, 0)?;
    if output.dtype() != DType::Bool || !x.dtype().is_float() {
        return Err(mismatch("x must be a float tensor, and the output must be bool"));
    }
    let (shape, dtypes) = (output.layout().shape, [output.dtype(), x.dtype()]);
    let operand = Operand::input(x, &shape)?;
    let runs = Runs::new(&shape, [Operand::output(output), operand]);
    runs.for_each(|[to, x], len| {
        let to = Strided { start: to, stride: runs.inner[0], dtype: dtypes[0] };
        let x = Strided { start: x, stride: runs.inner[1], dtype: dtypes[1] };
        let (mut values, mut result) = (Buffer([0f64; BLOCK]), Buffer([0i64; BLOCK]));
        for first in (0..len).step_by(BLOCK) {
            let count = BLOCK.min(len - first);
            // SAFETY: the block is inside the run.
            unsafe {
                x.from(first).load_f64(count, &mut values);
                for (to, x) in result.0.iter_mut().zip(&values.0[..count]) {
                    *to = i64::from(match function {
                        TestFunction::IsNan => x.is_nan(),
                        TestFunction::IsInf => x.is_infinite(),
                        TestFunction::IsFinite => x.is_finite(),
                    });
                }
                to.from(first).store_i64(count, &result);
            }
        }
    });
    Ok(())
}

/// `primitive.where`.
pub(super) fn select<S: Simd>(
    s: S,
    call: Call<'_, '_>,
    outputs: &mut [OutArg<'_>],
    _run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let (condition, a, b) = (call.tensor(0)?, call.tensor(1)?, call.tensor(2)?);
    let output = output(outputs, 0)?;
    let dtype = output.dtype();
    if condition.dtype().size() != 1 || a.dtype() != dtype || b.dtype() != dtype {
        return Err(mismatch("the condition must be bool, and the other tensors must have the same dtype"));
    }
    let shape = output.layout().shape;
    let (condition, a, b) =
        (Operand::input(condition, &shape)?, Operand::input(a, &shape)?, Operand::input(b, &shape)?);
    let runs = Runs::new(&shape, [Operand::output(output), condition, a, b]);
    match dtype.size() {
        1 => select_sized::<S, u8>(s, &runs),
        2 => select_sized::<S, u16>(s, &runs),
        4 => select_sized::<S, u32>(s, &runs),
        _ => select_sized::<S, u64>(s, &runs),
    }
    Ok(())
}

fn select_sized<S: Simd, T: Copy>(s: S, runs: &Runs<4>) {
    let size = size_of::<T>() as isize;
    let [to_step, condition_step, a_step, b_step] = runs.inner;
    runs.for_each(|[to, condition, a, b], len| {
        let (to, a, b) = (to.cast::<T>(), a.cast::<T>(), b.cast::<T>());
        // SAFETY: each operand has an element of its size at every multiple of its stride.
        s.vectorize(|| unsafe {
            if to_step == size && condition_step == 1 && a_step == size && b_step == size {
                for index in 0..len {
                    let (a, b) = (*a.add(index), *b.add(index));
                    *to.add(index) = if *condition.add(index) != 0 { a } else { b };
                }
            } else if to_step == size && condition_step == 1 && a_step == size && b_step == 0 {
                let b = *b;
                for index in 0..len {
                    let a = *a.add(index);
                    *to.add(index) = if *condition.add(index) != 0 { a } else { b };
                }
            } else {
                for index in 0..len as isize {
                    let from = if *condition.wrapping_offset(condition_step * index) != 0 {
                        a.wrapping_byte_offset(a_step * index)
                    } else {
                        b.wrapping_byte_offset(b_step * index)
                    };
                    *to.wrapping_byte_offset(to_step * index) = *from;
                }
            }
        });
    });
}
