//! Encodes texts from Python without arrays: token ids, starts of rows and byte ranges as the kernel returned them.

use std::ops::Range;

use lz_core::{Tensor, TensorMut};
use lz_ops::{TOKENIZE_ENCODE, TokenizeEncode};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyList, PyTuple};

use crate::call::Frame;
use crate::operation::python_function;
use crate::python_kernel::PythonKernel;
use crate::selection::Selection;
use crate::text::PyTokenizer;
use crate::token_id::token_id;
use crate::token_lists::Lists;

/// Numbers of a kernel: its own memory, or read from an object that a kernel in Python returned.
enum Values<T> {
    Tensor(Tensor),
    Read(Vec<T>),
}

impl<T> Default for Values<T> {
    fn default() -> Values<T> {
        Values::Read(Vec::new())
    }
}

impl<T: lz_core::element::Element> Values<T> {
    fn of(tensor: Option<Tensor>) -> Values<T> {
        tensor.map_or_else(Values::default, Values::Tensor)
    }

    fn as_slice(&self) -> &[T] {
        match self {
            Values::Tensor(tensor) => tensor.view().as_slice().unwrap_or_default(),
            Values::Read(values) => values,
        }
    }
}

/// The tokens of several texts.
#[derive(Default)]
pub struct EncodedTexts {
    ids: Values<i32>,
    indptr: Vec<i64>,
    offsets: Values<i64>,
}

impl EncodedTexts {
    /// The number of texts.
    pub fn len(&self) -> usize {
        self.indptr.len().saturating_sub(1)
    }

    /// Positions of the ids of a text.
    fn range(&self, text: usize) -> Range<usize> {
        self.indptr[text] as usize..self.indptr[text + 1] as usize
    }

    /// The ids of a text.
    pub fn ids(&self, text: usize) -> &[i32] {
        &self.ids.as_slice()[self.range(text)]
    }

    /// Starts and ends of the tokens of a text, if they were requested.
    pub fn offsets(&self, text: usize) -> &[i64] {
        let range = self.range(text);
        self.offsets.as_slice().get(2 * range.start..2 * range.end).unwrap_or_default()
    }

    /// Refuses rows that are not within the tokens: a kernel outside of this library may return any.
    fn checked(self, texts: usize, has_offsets: bool) -> PyResult<EncodedTexts> {
        let total = self.ids.as_slice().len();
        let ascends = self.indptr.is_sorted() && self.indptr.first().is_some_and(|first| *first >= 0);
        let is_within = self.indptr.last().is_some_and(|last| *last <= total as i64);
        if self.indptr.len() != texts + 1 || !ascends || !is_within {
            let message = format!(
                "the kernel's result `indptr` must have {} numbers that ascend within the tokens",
                texts + 1
            );
            return Err(PyValueError::new_err(message));
        }
        if has_offsets && self.offsets.as_slice().len() != 2 * total {
            return Err(PyValueError::new_err(format!(
                "the kernel's result `offsets` must have {total} ranges"
            )));
        }
        Ok(self)
    }
}

/// Runs `tokenize.encode` on a list of strings.
pub fn encode<'a, 'py>(
    texts: &'a Bound<'py, PyList>,
    tokenizer: &'a Bound<'py, PyTokenizer>,
    add_special_tokens: bool,
    return_offsets: bool,
) -> PyResult<EncodedTexts> {
    let py = texts.py();
    let (texts, tokenizer) = (Some(texts.as_any().as_borrowed()), Some(tokenizer.as_any().as_borrowed()));
    let mut frame = Frame::new(py, &TOKENIZE_ENCODE, Selection::Select);
    let borrowed = frame.texts("texts", texts)?;
    let strings = borrowed.as_strs();
    let handle = frame.tokenizer("tokenizer", tokenizer)?;
    let args = TokenizeEncode {
        texts: &strings,
        tokenizer: &*handle,
        add_special_tokens: Some(add_special_tokens),
        return_offsets: Some(return_offsets),
    };
    let mut checked = None;
    let call = args.check_in(&mut checked).map_err(|error| frame.raise(&error))?;
    let mut indptr = vec![0i64; strings.len() + 1];
    let (mut ids, mut offsets) = (None, None);
    {
        let rows = TensorMut::from_slice(&mut indptr, &[strings.len() as i64 + 1])
            .map_err(|reason| crate::error::validation_error(py, &TOKENIZE_ENCODE.name, reason))?;
        let wanted = call.wants_offsets().then_some(&mut offsets);
        let mut slots = call.outputs(&mut ids, rows, wanted).map_err(|error| frame.raise(&error))?;
        let context = call.context_with(&slots);
        // A kernel in Python takes the params as objects only if they were given as such.
        let (add_special_tokens, return_offsets, out) = (None, None, None);
        frame.dispatch(&context, |frame, entry, run| {
            if let Some(hosted) = PythonKernel::of(entry) {
                return python_function!(@run_hosted entry hosted frame call out (texts, tokenizer)
                    (add_special_tokens: optional bool, return_offsets: optional bool)
                    [dynamic wants_tokens, tensor indptr_spec, optional_dynamic wants_offsets]);
            }
            let out = slots.reborrow();
            frame.native(|| call.run_kernel(entry, out, run))
        })?;
    }
    let encoded = match frame.take_result() {
        None => EncodedTexts { ids: Values::of(ids), indptr, offsets: Values::of(offsets) },
        Some(result) => read_result(&result)?,
    };
    encoded.checked(strings.len(), return_offsets)
}

/// Reads the results of a kernel in Python.
fn read_result(result: &Bound<'_, PyAny>) -> PyResult<EncodedTexts> {
    let results = result.cast::<PyTuple>()?;
    let offsets = if results.len() > 2 { read_buffer(&results.get_item(2)?)? } else { Vec::new() };
    Ok(EncodedTexts {
        ids: Values::Read(read_numbers(&results.get_item(0)?)?),
        indptr: read_numbers(&results.get_item(1)?)?,
        offsets: Values::Read(offsets),
    })
}

/// The elements of an array, or of a list, which stands for an array where there is no numpy.
fn read_numbers<T>(object: &Bound<'_, PyAny>) -> PyResult<Vec<T>>
where
    T: pyo3::buffer::Element + for<'a, 'py> FromPyObject<'a, 'py>,
{
    match object.cast::<PyList>() {
        Ok(list) => list.iter().map(|one| one.extract().map_err(Into::into)).collect(),
        Err(_) => read_buffer(object),
    }
}

/// The elements of a buffer.
pub fn read_buffer<T: pyo3::buffer::Element + Copy>(object: &Bound<'_, PyAny>) -> PyResult<Vec<T>> {
    // A buffer of no bytes may have no address.
    if object.len()? == 0 {
        return Ok(Vec::new());
    }
    PyBuffer::<T>::get(object)?.to_vec(object.py())
}

/// The ids of texts as lists. They are not cached.
#[pyfunction]
fn token_lists<'py>(
    py: Python<'py>,
    texts: &Bound<'py, PyList>,
    tokenizer: &Bound<'py, PyTokenizer>,
    add_special_tokens: bool,
) -> PyResult<Bound<'py, PyList>> {
    let encoded = encode(texts, tokenizer, add_special_tokens, false)?;
    let texts: Vec<usize> = (0..encoded.len()).collect();
    Lists::new().rows(py, &texts, |lists, text| lists.ids(py, encoded.ids(*text)))
}

/// The number of tokens of each text.
#[pyfunction]
fn token_counts(
    texts: &Bound<'_, PyList>,
    tokenizer: &Bound<'_, PyTokenizer>,
    add_special_tokens: bool,
) -> PyResult<Vec<usize>> {
    let encoded = encode(texts, tokenizer, add_special_tokens, false)?;
    Ok((0..encoded.len()).map(|text| encoded.range(text).len()).collect())
}

/// Ids of one row or of several: whether there are several, all ids as `int32`, and the start of each row as `int64`.
#[pyfunction]
fn flat_ids<'py>(tokens: &Bound<'py, PyAny>) -> PyResult<(bool, Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
    let (mut ids, mut indptr) = (Vec::new(), vec![0]);
    let mut several = false;
    if !append_buffer(tokens, &mut ids) {
        let tokens = listed(tokens)?;
        let first = tokens.try_iter()?.next().transpose()?;
        several = match &first {
            Some(first) => !listed(first)?.is_instance_of::<PyInt>(),
            None => false,
        };
        if several {
            for row in tokens.try_iter()? {
                append_ids(&row?, &mut ids)?;
                indptr.push(ids.len() as i64);
            }
        } else {
            append_ids(&tokens, &mut ids)?;
        }
    }
    if !several {
        indptr.push(ids.len() as i64);
    }
    let py = tokens.py();
    let ids: Vec<u8> = ids.into_iter().flat_map(i32::to_ne_bytes).collect();
    let indptr: Vec<u8> = indptr.into_iter().flat_map(i64::to_ne_bytes).collect();
    Ok((several, PyBytes::new(py, &ids), PyBytes::new(py, &indptr)))
}

/// An array or tensor as a list or a number, and any other object unchanged.
fn listed<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    match object.is_instance_of::<PyList>() || object.is_instance_of::<PyInt>() {
        true => Ok(object.clone()),
        false => match object.getattr_opt("tolist")? {
            Some(tolist) => tolist.call0(),
            None => Ok(object.clone()),
        },
    }
}

/// Appends the ids of a one-dimensional buffer of int32; returns whether the object is one.
fn append_buffer(object: &Bound<'_, PyAny>, ids: &mut Vec<i32>) -> bool {
    if object.is_instance_of::<PyList>() {
        return false;
    }
    let Ok(buffer) = PyBuffer::<i32>::get(object) else { return false };
    let values = (buffer.dimensions() == 1).then(|| buffer.to_vec(object.py()).ok()).flatten();
    ids.extend(values.iter().flatten());
    values.is_some()
}

/// Appends the ids of a row.
fn append_ids(row: &Bound<'_, PyAny>, ids: &mut Vec<i32>) -> PyResult<()> {
    if append_buffer(row, ids) {
        return Ok(());
    }
    let row = listed(row)?;
    ids.reserve(row.len().unwrap_or(0));
    for one in row.try_iter()? {
        let one = one?;
        ids.push(match one.extract() {
            Ok(id) => id,
            // Tensors of one element convert to a number.
            Err(_) => token_id(&listed(&one)?, i32::MAX as u64)?,
        });
    }
    Ok(())
}

/// Adds the functions.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(token_lists, module)?)?;
    module.add_function(wrap_pyfunction!(token_counts, module)?)?;
    module.add_function(wrap_pyfunction!(flat_ids, module)?)?;
    Ok(())
}
