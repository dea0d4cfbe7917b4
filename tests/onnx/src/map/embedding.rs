//! `Gather`: rows of a table by their indices.

use super::arguments::Arguments;
use super::tensors::{float, indices, joined, strided};
use super::{MapError, Produced, Statement, unstatable};
use lz_core::tensor::Indices;
use lz_ops::EmbeddingLookup;

/// `Gather` is `embedding.lookup`, once for each index of the dimensions before `axis`.
pub fn gather(arguments: &Arguments<'_>) -> Result<Vec<Statement>, MapError> {
    arguments.only(&["axis"], 2)?;
    let (data, places) = (arguments.input(0)?, arguments.input(1)?);
    let axis = arguments.axis(0, data.shape.len())?;
    let ids = indices(places)?;
    if Indices::new(ids.shape()).any(|index| ids.view().int_at(&index) < 0) {
        return Err(unstatable("indices that count from the end"));
    }
    let (before, from_axis) = data.shape.split_at(axis);
    let (&vocab, after) = from_axis.split_first().ok_or_else(|| unstatable("a table without rows"))?;
    let shape = [before, places.shape.as_slice(), after].concat();
    let tables = before.iter().product::<usize>() as i64;
    let (vocab, width) = (vocab as i64, after.iter().product::<usize>() as i64);
    let data = float(data)?;
    Ok(vec![Statement::new("embedding.lookup", move |engine| {
        let mut parts = Vec::new();
        for table in 0..tables {
            let rows = strided(&data, table * vocab * width, &[vocab, width], &[width, 1])?;
            parts.push(lz_ops::embedding_lookup(engine, EmbeddingLookup::new(rows, ids.view()))?.output);
        }
        Ok(vec![Produced { output: 0, tensor: joined(&parts, &data, &shape)? }])
    })])
}
