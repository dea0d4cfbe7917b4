//! References of elementwise primitives.

use lz_core::tensor::{Dims, Indices};
use lz_core::{DType, KernelError, OutArg, TensorMut, TensorView};

use crate::call::{Call, division_by_zero, output};
use crate::functions::{
    ActivationFunction, BinaryFunction, BinaryIntFunction, CompareFunction, TestFunction, UnaryFunction,
    UnaryIntFunction,
};
use crate::numbers;

fn floats(output: &mut TensorMut<'_>, value: impl Fn(&Dims) -> f64) {
    let shape = output.layout().shape;
    for index in Indices::new(&shape) {
        output.set(&index, value(&index));
    }
}

fn ints(
    output: &mut TensorMut<'_>,
    value: impl Fn(&Dims) -> Result<i64, KernelError>,
) -> Result<(), KernelError> {
    let (shape, dtype) = (output.layout().shape, output.dtype());
    for index in Indices::new(&shape) {
        output.set_int(&index, numbers::wrap(dtype, value(&index)?));
    }
    Ok(())
}

/// `primitive.unary`.
pub fn unary(call: Call<'_, '_>, outputs: &mut [OutArg<'_>]) -> Result<(), KernelError> {
    let (x, function) = (call.tensor(0)?, call.case::<UnaryFunction>(1)?);
    floats(output(outputs, 0)?, |index| numbers::unary(function, x.at(index)));
    Ok(())
}

/// `primitive.activation`.
pub fn activation(call: Call<'_, '_>, outputs: &mut [OutArg<'_>]) -> Result<(), KernelError> {
    let (x, function) = (call.tensor(0)?, call.case::<ActivationFunction>(1)?);
    let (alpha, beta) = (call.float(2)?, call.float(3)?);
    floats(output(outputs, 0)?, |index| numbers::activation(function, alpha, beta, x.at(index)));
    Ok(())
}

/// `primitive.unary_int`.
pub fn unary_int(call: Call<'_, '_>, outputs: &mut [OutArg<'_>]) -> Result<(), KernelError> {
    let (x, function) = (call.tensor(0)?, call.case::<UnaryIntFunction>(1)?);
    ints(output(outputs, 0)?, |index| Ok(numbers::unary_int(function, x.dtype(), x.int_at(index))))
}

/// `primitive.test`.
pub fn test(call: Call<'_, '_>, outputs: &mut [OutArg<'_>]) -> Result<(), KernelError> {
    let (x, function) = (call.tensor(0)?, call.case::<TestFunction>(1)?);
    ints(output(outputs, 0)?, |index| {
        let x = x.at(index);
        Ok(i64::from(match function {
            TestFunction::IsNan => x.is_nan(),
            TestFunction::IsInf => x.is_infinite(),
            TestFunction::IsFinite => x.is_finite(),
        }))
    })
}

/// `primitive.binary`.
pub fn binary(call: Call<'_, '_>, outputs: &mut [OutArg<'_>]) -> Result<(), KernelError> {
    let (a, b, function) = (call.tensor(0)?, call.tensor(1)?, call.case::<BinaryFunction>(2)?);
    floats(output(outputs, 0)?, |index| numbers::binary(function, a.at(index), b.at(index)));
    Ok(())
}

/// The number of a `_scalar` primitive in the precision of a tensor.
pub fn scalar_for(x: &TensorView<'_>, value: f64) -> f64 {
    if x.dtype() == DType::F64 { value } else { f64::from(value as f32) }
}

/// `primitive.binary_scalar`.
pub fn binary_scalar(call: Call<'_, '_>, outputs: &mut [OutArg<'_>]) -> Result<(), KernelError> {
    let (x, function, reversed) = (call.tensor(0)?, call.case::<BinaryFunction>(1)?, call.flag(3)?);
    let value = scalar_for(x, call.float(2)?);
    floats(output(outputs, 0)?, |index| {
        let x = x.at(index);
        let (a, b) = if reversed { (value, x) } else { (x, value) };
        numbers::binary(function, a, b)
    });
    Ok(())
}

/// `primitive.binary_int`.
pub fn binary_int(call: Call<'_, '_>, outputs: &mut [OutArg<'_>]) -> Result<(), KernelError> {
    let (a, b, function) = (call.tensor(0)?, call.tensor(1)?, call.case::<BinaryIntFunction>(2)?);
    ints(output(outputs, 0)?, |index| {
        numbers::binary_int(function, a.dtype(), a.int_at(index), b.int_at(index))
            .ok_or_else(division_by_zero)
    })
}

/// `primitive.binary_int_scalar`.
pub fn binary_int_scalar(call: Call<'_, '_>, outputs: &mut [OutArg<'_>]) -> Result<(), KernelError> {
    let (x, function, reversed) = (call.tensor(0)?, call.case::<BinaryIntFunction>(1)?, call.flag(3)?);
    let value = numbers::wrap(x.dtype(), call.int(2)?);
    ints(output(outputs, 0)?, |index| {
        let element = x.int_at(index);
        let (a, b) = if reversed { (value, element) } else { (element, value) };
        numbers::binary_int(function, x.dtype(), a, b).ok_or_else(division_by_zero)
    })
}

/// `primitive.compare`.
pub fn compare(call: Call<'_, '_>, outputs: &mut [OutArg<'_>]) -> Result<(), KernelError> {
    let (a, b, function) = (call.tensor(0)?, call.tensor(1)?, call.case::<CompareFunction>(2)?);
    ints(output(outputs, 0)?, |index| {
        Ok(i64::from(if a.dtype().is_float() {
            numbers::compare(function, a.at(index), b.at(index))
        } else {
            numbers::compare(function, a.int_at(index), b.int_at(index))
        }))
    })
}

/// `primitive.compare_scalar`.
pub fn compare_scalar(call: Call<'_, '_>, outputs: &mut [OutArg<'_>]) -> Result<(), KernelError> {
    let (x, function, value) = (call.tensor(0)?, call.case::<CompareFunction>(1)?, call.float(2)?);
    ints(output(outputs, 0)?, |index| {
        Ok(i64::from(if x.dtype().is_float() {
            numbers::compare(function, x.at(index), scalar_for(x, value))
        } else {
            numbers::compare_exactly(function, x.int_at(index), value)
        }))
    })
}

/// `primitive.where`.
pub fn select(call: Call<'_, '_>, outputs: &mut [OutArg<'_>]) -> Result<(), KernelError> {
    let (condition, a, b) = (call.tensor(0)?, call.tensor(1)?.bits(), call.tensor(2)?.bits());
    let output = output(outputs, 0)?;
    let shape = output.layout().shape;
    let mut bits = output.bits_mut();
    for index in Indices::new(&shape) {
        let chosen = if condition.int_at(&index) != 0 { &a } else { &b };
        bits.set_int(&index, chosen.int_at(&index));
    }
    Ok(())
}
