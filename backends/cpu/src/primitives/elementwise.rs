//! Elementwise float primitives: `unary`, `activation`, `binary`, `binary_scalar`.

use lz_core::{DType, KernelError, OutArg, Run};
use lz_primitives::call::{Call, mismatch, output};
use lz_primitives::functions::{ActivationFunction, BinaryFunction, UnaryFunction};
use lz_primitives::numbers;

use super::block::{BLOCK, Buffer, Strided, is_lanes};
use super::lanes::{self, Apply};
use super::runs::{Operand, Runs};
use crate::simd::Simd;

/// Applies a function in f32 to runs of an output and two operands.
fn map<S: Simd>(s: S, runs: &Runs<3>, dtypes: [DType; 3], apply: &Apply<S>) {
    let dense = |n: usize| dtypes[n] == DType::F32 && runs.inner[n] == 4;
    let direct = dense(0) && dense(1) && dense(2);
    runs.for_each(|[to, a, b], len| {
        if direct {
            // SAFETY: all three are dense, and the run has this many elements.
            return unsafe { apply.run(s, [a.cast(), b.cast()], to.cast(), len) };
        }
        let strided = |n: usize, start| Strided { start, stride: runs.inner[n], dtype: dtypes[n] };
        let (to, a, b) = (strided(0, to), strided(1, a), strided(2, b));
        let mut buffers = [const { Buffer([0.0; BLOCK]) }; 3];
        let [to_buffer, a_buffer, b_buffer] = &mut buffers;
        let mut first = 0;
        while first < len {
            let count = BLOCK.min(len - first);
            // SAFETY: the block is inside the run, and dtypes are those of the tensors. The buffer of an operand with stride 0
            // stays valid after its first block.
            unsafe {
                let from = [(a, &mut *a_buffer), (b, &mut *b_buffer)].map(|(operand, buffer)| {
                    if first > 0 && operand.stride == 0 {
                        buffer.0.as_ptr()
                    } else {
                        operand.from(first).load_f32(s, count, buffer)
                    }
                });
                let to = to.from(first);
                match to.dense::<f32>(DType::F32) {
                    Some(direct) => apply.run(s, from, direct, count),
                    None => {
                        apply.run(s, from, to_buffer.0.as_mut_ptr(), count);
                        to.store_f32(s, to_buffer.0.as_ptr(), count);
                    }
                }
            }
            first += count;
        }
    });
}

/// Applies a function in f64.
fn map_f64(runs: &Runs<3>, dtypes: [DType; 3], function: impl Fn(f64, f64) -> f64 + Sync) {
    runs.for_each(|[to, a, b], len| {
        let strided = |n: usize, start| Strided { start, stride: runs.inner[n], dtype: dtypes[n] };
        let (to, a, b) = (strided(0, to), strided(1, a), strided(2, b));
        for first in (0..len).step_by(BLOCK) {
            let count = BLOCK.min(len - first);
            let (mut x, mut y) = (Buffer([0.0; BLOCK]), Buffer([0.0; BLOCK]));
            // SAFETY: the block is inside the run.
            unsafe {
                a.from(first).load_f64(count, &mut x);
                b.from(first).load_f64(count, &mut y);
                for (x, y) in x.0[..count].iter_mut().zip(&y.0) {
                    *x = function(*x, *y);
                }
                to.from(first).store_f64(count, &x);
            }
        }
    });
}

fn float_types(dtypes: [DType; 3]) -> Result<bool, KernelError> {
    if dtypes.iter().all(|&dtype| is_lanes(dtype)) {
        Ok(true)
    } else if dtypes.iter().all(|dtype| dtype.is_float() && dtype.size() > 1) {
        Ok(false)
    } else {
        Err(mismatch("tensors must be floats"))
    }
}

/// `primitive.unary`.
pub(super) fn unary<S: Simd>(
    s: S,
    call: Call<'_, '_>,
    outputs: &mut [OutArg<'_>],
    _run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let (x, function) = (call.tensor(0)?, call.case::<UnaryFunction>(1)?);
    let output = output(outputs, 0)?;
    let dtypes = [output.dtype(), x.dtype(), x.dtype()];
    let shape = output.layout().shape;
    let operand = Operand::input(x, &shape)?;
    let runs = Runs::new(&shape, [Operand::output(output), operand, operand]);
    if float_types(dtypes)? {
        map(s, &runs, dtypes, &lanes::unary(function));
    } else {
        map_f64(&runs, dtypes, |x, _| numbers::unary(function, x));
    }
    Ok(())
}

/// `primitive.activation`.
pub(super) fn activation<S: Simd>(
    s: S,
    call: Call<'_, '_>,
    outputs: &mut [OutArg<'_>],
    _run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let (x, function) = (call.tensor(0)?, call.case::<ActivationFunction>(1)?);
    let (alpha, beta) = (call.float(2)?, call.float(3)?);
    let output = output(outputs, 0)?;
    let dtypes = [output.dtype(), x.dtype(), x.dtype()];
    let shape = output.layout().shape;
    let operand = Operand::input(x, &shape)?;
    let runs = Runs::new(&shape, [Operand::output(output), operand, operand]);
    if float_types(dtypes)? {
        map(s, &runs, dtypes, &lanes::activation(function, alpha, beta));
    } else {
        map_f64(&runs, dtypes, |x, _| numbers::activation(function, alpha, beta, x));
    }
    Ok(())
}

/// `primitive.binary`.
pub(super) fn binary<S: Simd>(
    s: S,
    call: Call<'_, '_>,
    outputs: &mut [OutArg<'_>],
    _run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let (a, b, function) = (call.tensor(0)?, call.tensor(1)?, call.case::<BinaryFunction>(2)?);
    let output = output(outputs, 0)?;
    let dtypes = [output.dtype(), a.dtype(), b.dtype()];
    let shape = output.layout().shape;
    let operands = [Operand::input(a, &shape)?, Operand::input(b, &shape)?];
    let runs = Runs::new(&shape, [Operand::output(output), operands[0], operands[1]]);
    if float_types(dtypes)? {
        map(s, &runs, dtypes, &lanes::binary(function));
    } else {
        map_f64(&runs, dtypes, |a, b| numbers::binary(function, a, b));
    }
    Ok(())
}

/// `primitive.binary_scalar`.
pub(super) fn binary_scalar<S: Simd>(
    s: S,
    call: Call<'_, '_>,
    outputs: &mut [OutArg<'_>],
    _run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let (x, function) = (call.tensor(0)?, call.case::<BinaryFunction>(1)?);
    let (value, reversed) = (call.float(2)?, call.flag(3)?);
    let output = output(outputs, 0)?;
    let dtypes = [output.dtype(), x.dtype(), x.dtype()];
    let shape = output.layout().shape;
    let operand = Operand::input(x, &shape)?;
    if !float_types(dtypes)? {
        let runs = Runs::new(&shape, [Operand::output(output), operand, operand]);
        map_f64(&runs, dtypes, |x, _| {
            let (a, b) = if reversed { (value, x) } else { (x, value) };
            numbers::binary(function, a, b)
        });
        return Ok(());
    }
    let value = value as f32;
    if function == BinaryFunction::Pow
        && !reversed
        && let Some(power) = lanes::power(f64::from(value))
    {
        let runs = Runs::new(&shape, [Operand::output(output), operand, operand]);
        map(s, &runs, dtypes, &power);
        return Ok(());
    }
    let scalar = Operand::scalar(&value);
    let (operands, dtypes) = if reversed {
        ([scalar, operand], [dtypes[0], DType::F32, dtypes[1]])
    } else {
        ([operand, scalar], [dtypes[0], dtypes[1], DType::F32])
    };
    let runs = Runs::new(&shape, [Operand::output(output), operands[0], operands[1]]);
    map(s, &runs, dtypes, &lanes::binary(function));
    Ok(())
}
