//! `Gather`: table rows by index.

use super::arguments::Arguments;
use super::tensors::{float, indices, joined, strided};
use super::{MapError, MappedCall, MappedOutput, unsupported};
use lz_core::tensor::Indices;
use lz_ops::EmbeddingLookup;

/// `Gather` maps to `embedding.lookup`, once per index of the dimensions before `axis`.
pub fn gather(arguments: &Arguments<'_>) -> Result<Vec<MappedCall>, MapError> {
    arguments.only(&["axis"], 2)?;
    let (data, ids_input) = (arguments.input(0)?, arguments.input(1)?);
    let axis = arguments.axis(0, data.shape.len())?;
    let ids = indices(ids_input)?;
    if Indices::new(ids.shape()).any(|index| ids.view().int_at(&index) < 0) {
        return Err(unsupported("indices that count from the end"));
    }
    let (before, from_axis) = data.shape.split_at(axis);
    let (&vocab, after) = from_axis.split_first().ok_or_else(|| unsupported("a table without rows"))?;
    let shape = [before, ids_input.shape.as_slice(), after].concat();
    let tables = before.iter().product::<usize>() as i64;
    let (vocab, width) = (vocab as i64, after.iter().product::<usize>() as i64);
    let data = float(data)?;
    Ok(vec![MappedCall::new("embedding.lookup", move |engine| {
        let mut parts = Vec::new();
        for table in 0..tables {
            let rows = strided(&data, table * vocab * width, &[vocab, width], &[width, 1])?;
            parts.push(lz_ops::embedding_lookup(engine, EmbeddingLookup::new(rows, ids.view()))?.output);
        }
        Ok(vec![MappedOutput { output: 0, tensor: joined(&parts, &data, &shape)? }])
    })])
}
