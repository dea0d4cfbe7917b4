//! Token ids as the matrices of a batch.

use lz_tokenize::{BatchError, BatchOptions, Padding, Rows, Side, Truncation};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyByteArray};

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

/// The choice that an option names.
fn choice<T: Copy>(name: &str, value: &Bound<'_, PyAny>, choices: &[(&str, T)]) -> PyResult<T> {
    let word: Option<String> = value.extract().ok();
    let found = choices.iter().find(|(known, _)| word.as_deref() == Some(known));
    found.map(|(_, choice)| *choice).ok_or_else(|| {
        let expected: Vec<String> = choices.iter().map(|(known, _)| format!("{known:?}")).collect();
        PyValueError::new_err(format!("`{name}` must be {}, not {value:?}", expected.join(" or ")))
    })
}

const SIDES: [(&str, Side); 2] = [("left", Side::Left), ("right", Side::Right)];
const TRUNCATIONS: [(&str, Truncation); 3] = [
    ("longest_first", Truncation::LongestFirst),
    ("only_first", Truncation::OnlyFirst),
    ("only_second", Truncation::OnlySecond),
];

/// `longest`, `max_length`, or a length.
fn padding(value: &Bound<'_, PyAny>) -> PyResult<Padding> {
    if !value.is_instance_of::<PyBool>() {
        if let Ok(length) = value.extract() {
            return Ok(Padding::Fixed(length));
        }
        match value.extract().unwrap_or_default() {
            "longest" => return Ok(Padding::Longest),
            "max_length" => return Ok(Padding::MaxLength),
            _ => {}
        }
    }
    let message = format!("`padding` must be 'longest', 'max_length' or a length, not {value:?}");
    Err(PyValueError::new_err(message))
}

/// The padding token: its id, or its text.
#[derive(FromPyObject)]
enum PadToken {
    Id(u32),
    Text(String),
}

fn error(error: BatchError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

type Matrices<'py> = (usize, usize, [Bound<'py, PyByteArray>; 6]);

/// Combines rows to a batch. Returns the number of rows, their length, and the bytes of the matrices: ids, attention mask, type ids,
/// mask of special tokens, offsets, and the text of each row.
#[pyfunction]
#[pyo3(signature = (tokenizer, first, second, *, special, max_length, stride, truncation, truncation_side, overflow, padding, multiple_of, padding_side, pad_id, offsets))]
#[expect(clippy::too_many_arguments, reason = "the options of a batch, by keyword")]
fn token_batch<'py>(
    py: Python<'py>,
    tokenizer: &Bound<'py, PyTokenizer>,
    first: Vec<Bound<'py, PyAny>>,
    second: Option<Vec<Bound<'py, PyAny>>>,
    special: bool,
    max_length: Option<usize>,
    stride: usize,
    truncation: &Bound<'py, PyAny>,
    truncation_side: &Bound<'py, PyAny>,
    overflow: bool,
    padding: &Bound<'py, PyAny>,
    multiple_of: usize,
    padding_side: &Bound<'py, PyAny>,
    pad_id: Option<PadToken>,
    offsets: bool,
) -> PyResult<Matrices<'py>> {
    let handle = tokenizer.get().handle();
    let pad_id = match pad_id {
        Some(PadToken::Text(token)) => Some(lz_tokenize::pad_id(handle, &token).map_err(error)?),
        Some(PadToken::Id(id)) => Some(id),
        None => None,
    };
    let options = BatchOptions {
        special,
        max_length,
        stride,
        truncation: choice("truncation", truncation, &TRUNCATIONS)?,
        truncation_side: choice("truncation_side", truncation_side, &SIDES)?,
        overflow,
        padding: self::padding(padding)?,
        multiple_of,
        padding_side: choice("padding_side", padding_side, &SIDES)?,
        pad_id,
        offsets,
    };
    let first = OwnedRows::new(&first)?;
    let second = second.map(|second| OwnedRows::new(&second)).transpose()?;
    let made = py
        .detach(|| lz_tokenize::batch(handle, first.rows(), second.as_ref().map(OwnedRows::rows), &options));
    let batch = made.map_err(error)?;
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
