//! References of primitives that move elements.

use lz_core::tensor::{Dims, Indices};
use lz_core::{KernelError, OutArg, TensorMut, TensorView};

use super::{split_last, with};
use crate::call::{Call, out_of_range, output, position};
use crate::functions::{ScatterReduction, TargetDtype};
use crate::numbers;

fn copy_bits(
    x: &TensorView<'_>,
    output: &mut TensorMut<'_>,
    from: impl Fn(&Dims) -> Result<Dims, KernelError>,
) -> Result<(), KernelError> {
    let (x, shape) = (x.bits(), output.layout().shape);
    let mut bits = output.bits_mut();
    for index in Indices::new(&shape) {
        bits.set_int(&index, x.int_at(&from(&index)?));
    }
    Ok(())
}

fn index_at(indices: &TensorView<'_>, at: &[i64], size: i64) -> Result<i64, KernelError> {
    let index = indices.int_at(at);
    position(index, size).ok_or_else(|| out_of_range(index, size))
}

/// `primitive.copy`.
pub fn copy(call: Call<'_, '_>, outputs: &mut [OutArg<'_>]) -> Result<(), KernelError> {
    copy_bits(call.tensor(0)?, output(outputs, 0)?, |index| Ok(*index))
}

/// `primitive.cast`.
pub fn cast(call: Call<'_, '_>, outputs: &mut [OutArg<'_>]) -> Result<(), KernelError> {
    let (x, to) = (call.tensor(0)?, call.case::<TargetDtype>(1)?.dtype());
    let output = output(outputs, 0)?;
    let shape = output.layout().shape;
    for index in Indices::new(&shape) {
        match (x.dtype().is_float(), to.is_float()) {
            (true, true) => output.set(&index, x.at(&index)),
            (true, false) => output.set_int(&index, numbers::float_to_int(to, x.at(&index))),
            // An i64 is rounded once: through f64 it would be rounded twice.
            (false, true) if to == lz_core::DType::F32 => {
                output.set(&index, f64::from(x.int_at(&index) as f32))
            }
            (false, true) => output.set(&index, x.int_at(&index) as f64),
            (false, false) => output.set_int(&index, numbers::wrap(to, x.int_at(&index))),
        }
    }
    Ok(())
}

/// `primitive.arange`.
pub fn arange(call: Call<'_, '_>, outputs: &mut [OutArg<'_>]) -> Result<(), KernelError> {
    let (start, step) = (call.tensor(0)?, call.float(2)?);
    let output = output(outputs, 0)?;
    let (shape, dtype) = (output.layout().shape, output.dtype());
    for index in Indices::new(&shape) {
        if dtype.is_float() {
            output.set(&index, start.at(&[0]) + index[0] as f64 * step);
        } else {
            let value = start.int_at(&[0]).wrapping_add(index[0].wrapping_mul(step as i64));
            output.set_int(&index, numbers::wrap(dtype, value));
        }
    }
    Ok(())
}

/// `primitive.gather`.
pub fn gather(call: Call<'_, '_>, outputs: &mut [OutArg<'_>]) -> Result<(), KernelError> {
    let (x, indices) = (call.tensor(0)?, call.tensor(1)?);
    let size = x.shape().get(1).copied().unwrap_or(0);
    copy_bits(x, output(outputs, 0)?, |index| {
        let row = index_at(indices, &[index[1]], size)?;
        Ok(with(with(with(Dims::empty(), index[0]), row), index[2]))
    })
}

/// `primitive.gather_elements`.
pub fn gather_elements(call: Call<'_, '_>, outputs: &mut [OutArg<'_>]) -> Result<(), KernelError> {
    let (x, indices) = (call.tensor(0)?, call.tensor(1)?);
    let (size, _) = split_last(x.shape())?;
    copy_bits(x, output(outputs, 0)?, |index| {
        let leading = Dims::new(&index[..index.len().saturating_sub(1)]).unwrap_or(Dims::empty());
        Ok(with(leading, index_at(indices, index, size)?))
    })
}

/// `primitive.scatter`.
pub fn scatter(call: Call<'_, '_>, outputs: &mut [OutArg<'_>]) -> Result<(), KernelError> {
    let (x, indices, updates) = (call.tensor(0)?, call.tensor(1)?, call.tensor(2)?);
    let (reduction, size) = (call.case(3)?, x.shape().get(1).copied().unwrap_or(0));
    let output = output(outputs, 0)?;
    copy_bits(x, output, |index| Ok(*index))?;
    for index in Indices::new(updates.shape()) {
        let row = index_at(indices, &[index[1]], size)?;
        combine(
            output,
            &with(with(with(Dims::empty(), index[0]), row), index[2]),
            updates,
            &index,
            reduction,
        );
    }
    Ok(())
}

/// `primitive.scatter_elements`.
pub fn scatter_elements(call: Call<'_, '_>, outputs: &mut [OutArg<'_>]) -> Result<(), KernelError> {
    let (x, indices, updates, reduction) = (call.tensor(0)?, call.tensor(1)?, call.tensor(2)?, call.case(3)?);
    let (size, _) = split_last(x.shape())?;
    let output = output(outputs, 0)?;
    copy_bits(x, output, |index| Ok(*index))?;
    for index in Indices::new(indices.shape()) {
        let leading = Dims::new(&index[..index.len().saturating_sub(1)]).unwrap_or(Dims::empty());
        let target = with(leading, index_at(indices, &index, size)?);
        combine(output, &target, updates, &index, reduction);
    }
    Ok(())
}

/// Combines one element of the output with an update.
fn combine(
    output: &mut TensorMut<'_>,
    target: &[i64],
    updates: &TensorView<'_>,
    index: &[i64],
    reduction: ScatterReduction,
) {
    if reduction == ScatterReduction::None {
        let value = updates.bits().int_at(index);
        return output.bits_mut().set_int(target, value);
    }
    let dtype = output.dtype();
    if dtype.is_float() {
        let (old, new) = (output.as_view().at(target), updates.at(index));
        output.set(
            target,
            match reduction {
                ScatterReduction::None => new,
                ScatterReduction::Add => old + new,
                ScatterReduction::Mul => old * new,
                ScatterReduction::Max => numbers::maximum(old, new),
                ScatterReduction::Min => numbers::minimum(old, new),
            },
        );
    } else {
        let (old, new) = (output.as_view().int_at(target), updates.int_at(index));
        output.set_int(
            target,
            numbers::wrap(
                dtype,
                match reduction {
                    ScatterReduction::None => new,
                    ScatterReduction::Add => old.wrapping_add(new),
                    ScatterReduction::Mul => old.wrapping_mul(new),
                    ScatterReduction::Max => old.max(new),
                    ScatterReduction::Min => old.min(new),
                },
            ),
        );
    }
}
