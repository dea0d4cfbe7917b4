//! `MatMul` and `Gemm`: a weight is the second factor, seen transposed through its strides.

use super::arguments::Arguments;
use super::tensors::{float, joined, sizes, strided};
use super::{MapError, Produced, Statement, unstatable};
use lz_core::Tensor;
use lz_core::tensor::Indices;
use lz_ops::MlpLinear;

/// `MatMul` is `mlp.linear`, once for each matrix of the second factor.
pub fn matmul(arguments: &Arguments<'_>) -> Result<Vec<Statement>, MapError> {
    arguments.only(&[], 2)?;
    let (first, second) = (arguments.input(0)?, arguments.input(1)?);
    let (a, b) = (float(first)?, float(second)?);
    // A vector is a matrix of one row or of one column, which the result then lacks.
    let (a_batch, [rows, inner]) = match sizes(&first.shape).as_slice() {
        [inner] => (Vec::new(), [1, *inner]),
        [batch @ .., rows, inner] => (batch.to_vec(), [*rows, *inner]),
        [] => return Err(unstatable("a factor without dimensions")),
    };
    let (b_batch, columns) = match sizes(&second.shape).as_slice() {
        [_] => (Vec::new(), 1),
        [batch @ .., _, columns] => (batch.to_vec(), *columns),
        [] => return Err(unstatable("a factor without dimensions")),
    };
    let batch = broadcast(&a_batch, &b_batch)?;
    let mut shape: Vec<usize> = batch.iter().map(|&size| size as usize).collect();
    shape.extend((first.shape.len() > 1).then_some(rows as usize));
    shape.extend((second.shape.len() > 1).then_some(columns as usize));
    Ok(vec![Statement::new("mlp.linear", move |engine| {
        let mut parts = Vec::new();
        for index in Indices::new(&batch) {
            let a_start = offset(&a_batch, &index) * rows * inner;
            let b_start = offset(&b_batch, &index) * inner * columns;
            let x = strided(&a, a_start, &[rows, inner], &[inner, 1])?;
            let weight = strided(&b, b_start, &[columns, inner], &[1, columns])?;
            parts.push(lz_ops::mlp_linear(engine, MlpLinear::new(x, weight))?.output);
        }
        Ok(vec![Produced { output: 0, tensor: joined(&parts, &a, &shape)? }])
    })])
}

/// The shape that both are repeated to.
fn broadcast(a: &[i64], b: &[i64]) -> Result<Vec<i64>, MapError> {
    let rank = a.len().max(b.len());
    let size = |shape: &[i64], place: usize| {
        (place + shape.len()).checked_sub(rank).and_then(|place| shape.get(place)).copied().unwrap_or(1)
    };
    (0..rank)
        .map(|place| match (size(a, place), size(b, place)) {
            (one, other) if one == other => Ok(one),
            (1, other) | (other, 1) => Ok(other),
            (one, other) => Err(unstatable(format!("{one} and {other} matrices"))),
        })
        .collect()
}

/// Which matrix stands at a broadcast index.
fn offset(shape: &[i64], index: &[i64]) -> i64 {
    let aligned = index.iter().skip(index.len().saturating_sub(shape.len()));
    shape
        .iter()
        .zip(aligned)
        .fold(0, |offset, (&size, &place)| offset * size + if size == 1 { 0 } else { place })
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
            return Err(unstatable(format!("`{}` is not a matrix", named.name)));
        };
        let tensor = float(named)?;
        Ok(if transposed {
            Self { tensor, rows: columns, columns: rows, strides: [1, columns] }
        } else {
            Self { tensor, rows, columns, strides: [columns, 1] }
        })
    }
}

/// `Gemm` without factors is `mlp.linear`, once for each row where the addend differs from row to row.
pub fn gemm(arguments: &Arguments<'_>) -> Result<Vec<Statement>, MapError> {
    arguments.only(&["alpha", "beta", "transA", "transB"], 3)?;
    for factor in ["alpha", "beta"] {
        if arguments.float(factor)?.is_some_and(|factor| factor != 1.0) {
            return Err(unstatable(format!("the factor `{factor}`")));
        }
    }
    let x = Strided::read(arguments, 0, arguments.int("transA", 0)? != 0)?;
    // A weight has a row for each output feature, so it is the second factor the other way round.
    let weight = Strided::read(arguments, 1, arguments.int("transB", 0)? == 0)?;
    let (rows, features) = (x.rows, weight.rows);
    // The addend's strides between rows and between columns; 0 repeats it.
    let bias = match arguments.optional(2) {
        None => None,
        Some(addend) => {
            let strides = match *sizes(&addend.shape) {
                [] => [0, 0],
                [columns] => [0, i64::from(columns != 1)],
                [rows, columns] => [if rows == 1 { 0 } else { columns }, i64::from(columns != 1)],
                _ => return Err(unstatable("an addend of more than two dimensions")),
            };
            Some((float(addend)?, strides))
        }
    };
    let shape = [rows as usize, features as usize];
    Ok(vec![Statement::new("mlp.linear", move |engine| {
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
        Ok(vec![Produced { output: 0, tensor: joined(&parts, &x.tensor, &shape)? }])
    })])
}
