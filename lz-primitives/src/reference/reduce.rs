//! References of primitives over the last dimension.

use std::cmp::Ordering;

use lz_core::tensor::{Dims, Indices};
use lz_core::{KernelError, OutArg, TensorView};

use super::{split_last, with};
use crate::call::{Call, output};
use crate::functions::{ArgReduceFunction, ReduceFunction, ReduceIntFunction};
use crate::numbers;

/// `primitive.reduce`.
pub fn reduce(call: Call<'_, '_>, outputs: &mut [OutArg<'_>]) -> Result<(), KernelError> {
    let (x, function) = (call.tensor(0)?, call.case::<ReduceFunction>(1)?);
    let (n, rows) = split_last(x.shape())?;
    let output = output(outputs, 0)?;
    for row in Indices::new(rows) {
        let values = (0..n).map(|i| x.at(&with(row, i)));
        output.set(
            &row,
            match function {
                ReduceFunction::Sum => values.sum(),
                ReduceFunction::Mean => values.sum::<f64>() / n as f64,
                ReduceFunction::Max => values.fold(f64::NEG_INFINITY, numbers::maximum),
                ReduceFunction::Min => values.fold(f64::INFINITY, numbers::minimum),
                ReduceFunction::Prod => values.product(),
                ReduceFunction::SumSquares => values.map(|value| value * value).sum(),
            },
        );
    }
    Ok(())
}

/// `primitive.reduce_int`.
pub fn reduce_int(call: Call<'_, '_>, outputs: &mut [OutArg<'_>]) -> Result<(), KernelError> {
    let (x, function) = (call.tensor(0)?, call.case::<ReduceIntFunction>(1)?);
    let (n, rows) = split_last(x.shape())?;
    let output = output(outputs, 0)?;
    for row in Indices::new(rows) {
        let mut values = (0..n).map(|i| x.int_at(&with(row, i)));
        output.set_int(
            &row,
            match function {
                ReduceIntFunction::Sum => values.fold(0, i64::wrapping_add),
                ReduceIntFunction::Prod => values.fold(1, i64::wrapping_mul),
                ReduceIntFunction::Max => values.max().unwrap_or(0),
                ReduceIntFunction::Min => values.min().unwrap_or(0),
                ReduceIntFunction::Any => i64::from(values.any(|value| value != 0)),
                ReduceIntFunction::All => i64::from(values.all(|value| value != 0)),
            },
        );
    }
    Ok(())
}

/// The order of two elements of a row; NaN is larger than every number and equal to itself.
fn order(x: &TensorView<'_>, a: &[i64], b: &[i64]) -> Ordering {
    if !x.dtype().is_float() {
        return x.int_at(a).cmp(&x.int_at(b));
    }
    let (a, b) = (x.at(a), x.at(b));
    a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

/// `primitive.arg_reduce`.
pub fn arg_reduce(call: Call<'_, '_>, outputs: &mut [OutArg<'_>]) -> Result<(), KernelError> {
    let (x, function, last) = (call.tensor(0)?, call.case::<ArgReduceFunction>(1)?, call.flag(2)?);
    let (n, rows) = split_last(x.shape())?;
    let output = output(outputs, 0)?;
    for row in Indices::new(rows) {
        let mut best = 0;
        for i in 1..n {
            let (now, then) = (with(row, i), with(row, best));
            let found = order(x, &now, &then);
            let wanted = match function {
                ArgReduceFunction::Argmax => Ordering::Greater,
                // NaN is the smallest element too.
                ArgReduceFunction::Argmin if x.at(&now).is_nan() != x.at(&then).is_nan() => Ordering::Greater,
                ArgReduceFunction::Argmin => Ordering::Less,
            };
            if found == wanted || (last && found == Ordering::Equal) {
                best = i;
            }
        }
        output.set_int(&row, best);
    }
    Ok(())
}

/// `primitive.softmax`.
pub fn softmax(call: Call<'_, '_>, outputs: &mut [OutArg<'_>]) -> Result<(), KernelError> {
    let (x, log) = (call.tensor(0)?, call.flag(1)?);
    let (n, rows) = split_last(x.shape())?;
    let output = output(outputs, 0)?;
    for row in Indices::new(rows) {
        let values = (0..n).map(|i| x.at(&with(row, i)));
        let largest = values.clone().fold(f64::NEG_INFINITY, numbers::maximum);
        let sum: f64 = values.map(|value| (value - largest).exp()).sum();
        for i in 0..n {
            let index = with(row, i);
            let shifted = x.at(&index) - largest;
            output.set(&index, if log { shifted - sum.ln() } else { shifted.exp() / sum });
        }
    }
    Ok(())
}

/// `primitive.cumsum`.
pub fn cumsum(call: Call<'_, '_>, outputs: &mut [OutArg<'_>]) -> Result<(), KernelError> {
    let (x, exclusive, reverse) = (call.tensor(0)?, call.flag(1)?, call.flag(2)?);
    let (n, rows) = split_last(x.shape())?;
    let output = output(outputs, 0)?;
    let dtype = output.dtype();
    for row in Indices::new(rows) {
        let (mut float, mut int) = (0.0, 0i64);
        for step in 0..n {
            let index = with(row, if reverse { n - 1 - step } else { step });
            let (before, int_before) = (float, int);
            float += x.at(&index);
            int = int.wrapping_add(x.int_at(&index));
            if dtype.is_float() {
                output.set(&index, if exclusive { before } else { float });
            } else {
                output.set_int(&index, numbers::wrap(dtype, if exclusive { int_before } else { int }));
            }
        }
    }
    Ok(())
}

/// `primitive.topk`.
pub fn topk(call: Call<'_, '_>, outputs: &mut [OutArg<'_>]) -> Result<(), KernelError> {
    let (x, k, largest, sorted) = (call.tensor(0)?, call.size(1)?, call.flag(2)?, call.flag(3)?);
    let (n, rows) = split_last(x.shape())?;
    let mut chosen: Vec<(Dims, i64, i64)> = Vec::new();
    for row in Indices::new(rows) {
        let mut positions: Vec<i64> = (0..n).collect();
        positions.sort_by(|&a, &b| {
            let order = order(x, &with(row, a), &with(row, b));
            if largest { order.reverse() } else { order }
        });
        positions.truncate(k);
        if !sorted {
            positions.sort_unstable();
        }
        chosen.extend((0i64..).zip(positions).map(|(slot, from)| (row, slot, from)));
    }
    let values = output(outputs, 0)?;
    for &(row, slot, from) in &chosen {
        values.bits_mut().set_int(&with(row, slot), x.bits().int_at(&with(row, from)));
    }
    let indices = output(outputs, 1)?;
    for &(row, slot, from) in &chosen {
        indices.set_int(&with(row, slot), from);
    }
    Ok(())
}
