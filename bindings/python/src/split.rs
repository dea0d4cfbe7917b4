//! The last resort for a call that is too large for every kernel: parts of the caller's own tensors, one after the other, each
//! a call like any other. So kernels in Python take part, which get the caller's objects.

use std::ffi::CString;

use lz_core::{OperationInfo, TensorMut, check};
use lz_engine::split::{self, Cut};
use pyo3::exceptions::PyRuntimeWarning;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PySlice, PyTuple};

use crate::arguments::{as_args, lend, matched, names, signature_order, texts};
use crate::call::Frame;
use crate::engine::engine;
use crate::error::raise_kernel;
use crate::output::{Out, Place, returned};
use crate::plan::Way;
use crate::tensor::Kind;

/// Runs a call that no kernel can run in parts. Nothing where it cannot be cut; tensors must have parts that share their memory.
#[cold]
pub fn call<'py>(
    py: Python<'py>,
    info: &'static OperationInfo,
    arguments: &Bound<'py, PyTuple>,
    keywords: Option<&Bound<'py, PyDict>>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let schema = info.schema();
    let (objects, out) = matched(py, info, arguments, keywords)?;
    let mut frame = Frame::new(py, info, Way::Decide);
    let lent = lend(&mut frame, &objects)?;
    let strings = texts(&lent);
    let args = as_args(schema, &lent, &strings);
    let there = frame.on_its_device();
    let Some(cut) = split::cut(engine()?, info, &args, None) else { return Ok(None) };
    drop(there);
    if !matches!(frame.like().1, Kind::Torch | Kind::Numpy) {
        return Ok(None);
    }
    let bound = check::check_call(schema, &args, None).map_err(|error| frame.raise(&error))?;
    let specs = check::infer_outputs(schema, &bound)
        .map_err(|reason| crate::error::refuse(py, &info.name, reason))?;
    let mut given = Out::new(out.as_ref().map(Bound::as_borrowed));
    let mut places = Vec::new();
    for spec in specs {
        let check::OutputSpec::Tensor(sizes, dtype) = spec else { continue };
        if given.is_given() {
            let Some(place) = given.take() else { return Ok(None) };
            places.push(place);
            continue;
        }
        let (mut place, mut memory) = (Place::EMPTY, TensorMut::empty());
        place
            .allocate(&mut frame, Some((sizes, dtype)), &mut memory)
            .map_err(|error| raise_kernel(py, info, error))?;
        places.extend(place.into_object());
    }
    if cut.note(engine()?, info) {
        let Cut { split, kernel, .. } = &cut;
        let text =
            format!("{}: no kernel can run so large a call, so {split}, which {kernel} runs", info.name);
        let text = CString::new(text).unwrap_or_default();
        PyErr::warn(py, &py.get_type::<PyRuntimeWarning>(), &text, 1)?;
    }
    let function = py.import("layerzero.ops")?.getattr(info.name.replace('.', "_"))?;
    let mut start = 0;
    while start < cut.split.size {
        let end = (start + cut.split.part).min(cut.split.size);
        run_part(
            info,
            &function,
            &cut,
            &objects,
            &places,
            PySlice::new(py, start as isize, end as isize, 1),
        )?;
        start = end;
    }
    Ok(Some(match out {
        Some(out) => out,
        None => returned(py, places)?,
    }))
}

fn run_part<'py>(
    info: &'static OperationInfo,
    function: &Bound<'py, PyAny>,
    cut: &Cut,
    objects: &[Option<Bound<'py, PyAny>>],
    places: &[Bound<'py, PyAny>],
    part: Bound<'py, PySlice>,
) -> PyResult<()> {
    let py = function.py();
    let schema = info.schema();
    let mut inputs = Vec::new();
    for at in signature_order(schema) {
        let object = objects.get(at).and_then(Option::as_ref);
        inputs.push(match object {
            Some(object) if cut.inputs.get(at) == Some(&true) => Some(object.get_item(&part)?),
            other => other.cloned(),
        });
    }
    let keywords = PyDict::new(py);
    for (name, object) in names(schema).zip(objects).skip(schema.inputs.len()) {
        if let Some(object) = object {
            keywords.set_item(name, object)?;
        }
    }
    if !places.is_empty() {
        let places: Vec<_> = places.iter().map(|place| place.get_item(&part)).collect::<PyResult<_>>()?;
        keywords.set_item("out", PyTuple::new(py, places)?)?;
    }
    function.call(PyTuple::new(py, inputs)?, Some(&keywords))?;
    Ok(())
}
