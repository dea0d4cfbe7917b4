//! Token ids as the matrices of a batch.

use lz_tokenize::{BatchOptions, Padding, Rows, Side, Truncation};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyByteArray;

use crate::text::PyTokenizer;
use crate::token_encode::read_buffer;

/// Flat arrays of ids, offsets and starts of rows, as they come from `tokenize_encode`.
struct OwnedRows {
    ids: Vec<i32>,
    offsets: Vec<i64>,
    indptr: Vec<i64>,
}

impl OwnedRows {
    fn new(arrays: &[Bound<'_, PyAny>]) -> PyResult<OwnedRows> {
        let [ids, indptr, rest @ ..] = arrays else {
            return Err(PyValueError::new_err("expected tokens, indptr and optionally offsets"));
        };
        let offsets = rest.first().map(read_buffer::<i64>).transpose()?.unwrap_or_default();
        Ok(OwnedRows { ids: read_buffer(ids)?, offsets, indptr: read_buffer(indptr)? })
    }

    fn rows(&self) -> Rows<'_> {
        Rows { ids: &self.ids, offsets: &self.offsets, indptr: &self.indptr }
    }
}

fn side(name: &str, value: &str) -> PyResult<Side> {
    match value {
        "left" => Ok(Side::Left),
        "right" => Ok(Side::Right),
        other => Err(PyValueError::new_err(format!("`{name}` must be \"left\" or \"right\", not {other:?}"))),
    }
}

type Matrices<'py> = (usize, usize, [Bound<'py, PyByteArray>; 6]);

/// Combines rows to a batch. Returns the number of rows, their length, and the bytes of the matrices: ids, attention mask, type ids,
/// mask of special tokens, offsets, and the text of each row.
#[pyfunction]
#[pyo3(signature = (tokenizer, first, second, *, special, max_length, stride, truncation, truncation_side, overflow, length, multiple_of, padding_side, pad_id))]
#[expect(clippy::too_many_arguments, reason = "the options of a batch, by keyword")]
fn token_batch<'py>(
    py: Python<'py>,
    tokenizer: &Bound<'py, PyTokenizer>,
    first: Vec<Bound<'py, PyAny>>,
    second: Option<Vec<Bound<'py, PyAny>>>,
    special: bool,
    max_length: Option<usize>,
    stride: usize,
    truncation: &str,
    truncation_side: &str,
    overflow: bool,
    length: Option<usize>,
    multiple_of: usize,
    padding_side: &str,
    pad_id: Option<u32>,
) -> PyResult<Matrices<'py>> {
    let truncation = match truncation {
        "longest_first" => Truncation::LongestFirst,
        "only_first" => Truncation::OnlyFirst,
        "only_second" => Truncation::OnlySecond,
        other => {
            let expected = "\"longest_first\", \"only_first\" or \"only_second\"";
            return Err(PyValueError::new_err(format!("`truncation` must be {expected}, not {other:?}")));
        }
    };
    let options = BatchOptions {
        special,
        max_length,
        stride,
        truncation,
        truncation_side: side("truncation_side", truncation_side)?,
        overflow,
        padding: length.map_or(Padding::Longest, Padding::Fixed),
        multiple_of,
        padding_side: side("padding_side", padding_side)?,
        pad_id,
    };
    let first = OwnedRows::new(&first)?;
    let second = second.map(|second| OwnedRows::new(&second)).transpose()?;
    let handle = tokenizer.get().handle();
    let made = py
        .detach(|| lz_tokenize::batch(handle, first.rows(), second.as_ref().map(OwnedRows::rows), &options));
    let batch = made.map_err(|error| PyValueError::new_err(error.to_string()))?;
    let bytes = |values: &[i64]| -> Vec<u8> { values.iter().flat_map(|value| value.to_ne_bytes()).collect() };
    let matrices = [
        &batch.ids,
        &batch.attention_mask,
        &batch.type_ids,
        &batch.special_mask,
        &batch.offsets,
        &batch.samples,
    ];
    Ok((batch.rows, batch.length, matrices.map(|values| PyByteArray::new(py, &bytes(values)))))
}

/// Adds the functions.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(token_batch, module)?)
}
