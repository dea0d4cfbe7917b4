//! `MatMul` and `Gemm`: the weight is operand B, transposed through its strides.

use super::arguments::Arguments;
use super::tensors::{float, joined, sizes, strided};
use super::{MapError, MappedCall, MappedOutput, unsupported};
use lz_core::Tensor;
use lz_core::tensor::Indices;
use lz_ops::MlpLinear;

/// `MatMul` maps to `mlp.linear`, once per matrix of operand B.
pub fn matmul(arguments: &Arguments<'_>) -> Result<Vec<MappedCall>, MapError> {
    arguments.only(&[], 2)?;
    let (first, second) = (arguments.input(0)?, arguments.input(1)?);
    let (a, b) = (float(first)?, float(second)?);
    // A vector is a matrix with one row or column, which is removed from the result.
    let (a_batch, [rows, inner]) = match sizes(&first.shape).as_slice() {
        [inner] => (Vec::new(), [1, *inner]),
        [batch @ .., rows, inner] => (batch.to_vec(), [*rows, *inner]),
        [] => return Err(unsupported("an operand without dimensions")),
    };
    let (b_batch, columns) = match sizes(&second.shape).as_slice() {
        [_] => (Vec::new(), 1),
        [batch @ .., _, columns] => (batch.to_vec(), *columns),
        [] => return Err(unsupported("an operand without dimensions")),
    };
    let batch = broadcast(&a_batch, &b_batch)?;
    let mut shape: Vec<usize> = batch.iter().map(|&size| size as usize).collect();
    shape.extend((first.shape.len() > 1).then_some(rows as usize));
    shape.extend((second.shape.len() > 1).then_some(columns as usize));
    Ok(vec![MappedCall::new("mlp.linear", move |engine| {
        let mut parts = Vec::new();
        for index in Indices::new(&batch) {
            let a_start = offset(&a_batch, &index) * rows * inner;
            let b_start = offset(&b_batch, &index) * inner * columns;
            let x = strided(&a, a_start, &[rows, inner], &[inner, 1])?;
            let weight = strided(&b, b_start, &[columns, inner], &[1, columns])?;
            parts.push(lz_ops::mlp_linear(engine, MlpLinear::new(x, weight))?.output);
        }
        Ok(vec![MappedOutput { output: 0, tensor: joined(&parts, &a, &shape)? }])
    })])
}

/// The broadcast shape.
fn broadcast(a: &[i64], b: &[i64]) -> Result<Vec<i64>, MapError> {
    let rank = a.len().max(b.len());
    let size = |shape: &[i64], dim: usize| {
        (dim + shape.len()).checked_sub(rank).and_then(|dim| shape.get(dim)).copied().unwrap_or(1)
    };
    (0..rank)
        .map(|dim| match (size(a, dim), size(b, dim)) {
            (one, other) if one == other => Ok(one),
            (1, other) | (other, 1) => Ok(other),
            (one, other) => Err(unsupported(format!("{one} and {other} matrices"))),
        })
        .collect()
}

/// Index of the matrix at a broadcast index.
fn offset(shape: &[i64], index: &[i64]) -> i64 {
    let aligned = index.iter().skip(index.len().saturating_sub(shape.len()));
    shape.iter().zip(aligned).fold(0, |offset, (&size, &dim)| offset * size + if size == 1 { 0 } else { dim })
}

/// A matrix and the strides of its rows and columns.
struct Strided {
    tensor: Tensor,
    rows: i64,
    columns: i64,
    strides: [i64; 2],
}

impl Strided {
    fn read(arguments: &Arguments<'_>, input: usize, transposed: bool) -> Result<Self, MapError> {
        let named = arguments.input(input)?;
        let [rows, columns] = *sizes(&named.shape) else {
            return Err(unsupported(format!("`{}` is not a matrix", named.name)));
        };
        let tensor = float(named)?;
        Ok(if transposed {
            Self { tensor, rows: columns, columns: rows, strides: [1, columns] }
        } else {
            Self { tensor, rows, columns, strides: [columns, 1] }
        })
    }
}

/// `Gemm` without scale factors maps to `mlp.linear`, once per row if the addend differs between rows.
pub fn gemm(arguments: &Arguments<'_>) -> Result<Vec<MappedCall>, MapError> {
    arguments.only(&["alpha", "beta", "transA", "transB"], 3)?;
    for factor in ["alpha", "beta"] {
        if arguments.float(factor)?.is_some_and(|factor| factor != 1.0) {
            return Err(unsupported(format!("the factor `{factor}`")));
        }
    }
    let x = Strided::read(arguments, 0, arguments.int("transA", 0)? != 0)?;
    // A weight has a row per output feature, so it is operand B transposed.
    let weight = Strided::read(arguments, 1, arguments.int("transB", 0)? == 0)?;
    let (rows, features) = (x.rows, weight.rows);
    // Row and column strides of the addend; 0 broadcasts it.
    let bias = match arguments.optional(2) {
        None => None,
        Some(addend) => {
            let strides = match *sizes(&addend.shape) {
                [] => [0, 0],
                [columns] => [0, i64::from(columns != 1)],
                [rows, columns] => [if rows == 1 { 0 } else { columns }, i64::from(columns != 1)],
                _ => return Err(unsupported("an addend of more than two dimensions")),
            };
            Some((float(addend)?, strides))
        }
    };
    let shape = [rows as usize, features as usize];
    Ok(vec![MappedCall::new("mlp.linear", move |engine| {
        let weight = strided(&weight.tensor, 0, &[features, weight.columns], &weight.strides)?;
        let differs = bias.as_ref().is_some_and(|(_, [row_stride, _])| *row_stride != 0);
        let (calls, rows_each) = if differs { (rows, 1) } else { (1, rows) };
        let mut parts = Vec::new();
        for row in 0..calls {
            let view = strided(&x.tensor, row * x.strides[0], &[rows_each, x.columns], &x.strides)?;
            let mut call = MlpLinear::new(view, weight);
            if let Some((addend, [row_stride, column_stride])) = &bias {
                call.bias = Some(strided(addend, row * row_stride, &[features], &[*column_stride])?);
            }
            parts.push(lz_ops::mlp_linear(engine, call)?.output);
        }
        Ok(vec![MappedOutput { output: 0, tensor: joined(&parts, &x.tensor, &shape)? }])
    })])
}
