//! Token ids as Python lists and as the matrices of a batch.

use std::sync::Mutex;

use lz_tokenize::{BatchOptions, Padding, Rows, Side, Truncation};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyInt, PyList};

use crate::text::PyTokenizer;

/// The integer objects of ids: creating an integer takes longer than the rest of building a list. Ids of a text repeat, and so do
/// those of all tokenizers together.
static INTEGERS: Mutex<Shared> = Mutex::new(Vec::new());
/// Larger ids get a new integer object each time.
const MAX_SHARED_ID: usize = 1 << 19;

type Shared = Vec<Option<Py<PyInt>>>;

fn integer<'py>(py: Python<'py>, shared: Option<&mut Shared>, id: i32) -> PyResult<Bound<'py, PyInt>> {
    let new = || Ok(id.into_pyobject(py)?);
    let index = usize::try_from(id).ok().filter(|index| *index < MAX_SHARED_ID);
    let (Some(shared), Some(index)) = (shared, index) else { return new() };
    if index >= shared.len() {
        shared.resize_with((index + 1).next_power_of_two(), || None);
    }
    if let Some(known) = &shared[index] {
        return Ok(known.bind(py).clone());
    }
    let made: Bound<'py, PyInt> = new()?;
    shared[index] = Some(made.clone().unbind());
    Ok(made)
}

/// The elements of a buffer.
fn values<T: pyo3::buffer::Element + Copy>(py: Python<'_>, object: &Bound<'_, PyAny>) -> PyResult<Vec<T>> {
    // A buffer of no bytes may have no address.
    if object.len()? == 0 {
        return Ok(Vec::new());
    }
    PyBuffer::<T>::get(object)?.to_vec(py)
}

/// The positions of the rows in a flat array of `total` elements.
fn ranges(indptr: &[i64], total: usize) -> PyResult<Vec<std::ops::Range<usize>>> {
    let bounds: Option<Vec<usize>> = indptr.iter().map(|bound| usize::try_from(*bound).ok()).collect();
    let bounds =
        bounds.filter(|bounds| bounds.is_sorted() && bounds.last().is_none_or(|last| *last <= total));
    let bounds = bounds.ok_or_else(|| PyValueError::new_err("`indptr` must ascend within the tokens"))?;
    Ok(bounds.windows(2).map(|bounds| bounds[0]..bounds[1]).collect())
}

/// The rows of a flat array of ids as lists.
#[pyfunction]
fn token_rows<'py>(
    py: Python<'py>,
    tokens: &Bound<'py, PyAny>,
    indptr: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyList>> {
    let (tokens, indptr) = (values::<i32>(py, tokens)?, values::<i64>(py, indptr)?);
    let ranges = ranges(&indptr, tokens.len())?;
    // Allocating a list can run finalizers, which may come here again: who does not get the lock does without.
    let mut shared = INTEGERS.try_lock().ok();
    let rows = ranges.into_iter().map(|range| {
        let ids = tokens[range].iter().map(|id| integer(py, shared.as_deref_mut(), *id));
        PyList::new(py, ids.collect::<PyResult<Vec<_>>>()?)
    });
    PyList::new(py, rows.collect::<PyResult<Vec<_>>>()?)
}

/// The rows of a flat array of byte ranges as lists of `[start, end]`.
#[pyfunction]
fn offset_rows<'py>(
    py: Python<'py>,
    offsets: &Bound<'py, PyAny>,
    indptr: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyList>> {
    let (offsets, indptr) = (values::<i64>(py, offsets)?, values::<i64>(py, indptr)?);
    let rows = ranges(&indptr, offsets.len() / 2)?.into_iter().map(|range| {
        let pairs = offsets[2 * range.start..2 * range.end].chunks_exact(2).map(|pair| PyList::new(py, pair));
        PyList::new(py, pairs.collect::<PyResult<Vec<_>>>()?)
    });
    PyList::new(py, rows.collect::<PyResult<Vec<_>>>()?)
}

/// Flat arrays of ids, offsets and starts of rows, as they come from `tokenize_encode`.
struct OwnedRows {
    ids: Vec<i32>,
    offsets: Vec<i64>,
    indptr: Vec<i64>,
}

impl OwnedRows {
    fn new(py: Python<'_>, arrays: &[Bound<'_, PyAny>]) -> PyResult<OwnedRows> {
        let [ids, indptr, rest @ ..] = arrays else {
            return Err(PyValueError::new_err("expected tokens, indptr and optionally offsets"));
        };
        let offsets = rest.first().map(|offsets| values::<i64>(py, offsets)).transpose()?.unwrap_or_default();
        Ok(OwnedRows { ids: values(py, ids)?, offsets, indptr: values(py, indptr)? })
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
    let first = OwnedRows::new(py, &first)?;
    let second = second.map(|second| OwnedRows::new(py, &second)).transpose()?;
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
    module.add_function(wrap_pyfunction!(token_rows, module)?)?;
    module.add_function(wrap_pyfunction!(offset_rows, module)?)?;
    module.add_function(wrap_pyfunction!(token_batch, module)?)?;
    Ok(())
}
