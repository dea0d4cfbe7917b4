//! Reference of `primitive.matmul`.

use lz_core::tensor::{Dims, Indices};
use lz_core::{KernelError, OutArg};

use super::{split_last, with};
use crate::call::{Call, output};

/// Runs the operation.
pub fn matmul(call: Call<'_, '_>, outputs: &mut [OutArg<'_>]) -> Result<(), KernelError> {
    let (a, b, bias, alpha) = (call.tensor(0)?, call.tensor(1)?, call.optional(2)?, call.float(3)?);
    let (depth, rows) = split_last(a.shape())?;
    let (_, batch) = split_last(rows)?;
    let output = output(outputs, 0)?;
    let shape = output.layout().shape;
    for index in Indices::new(&shape) {
        let (&[row, column], leading) = (&index[batch.len()..], &index[..batch.len()]) else { continue };
        let leading = Dims::new(leading).unwrap_or(Dims::empty());
        let sum: f64 = (0..depth)
            .map(|l| a.at(&with(with(leading, row), l)) * b.at(&with(with(leading, l), column)))
            .sum();
        output.set(&index, alpha * sum + bias.map_or(0.0, |bias| bias.at(&[column])));
    }
    Ok(())
}
