//! Split execution: a call that is too large for every kernel runs as several calls on slices of the caller's
//! tensors. Python kernels take part, because the slices are Python objects.

use std::ffi::CString;

use lz_core::{OperationInfo, TensorMut, check};
use lz_engine::split::{self, Cut};
use pyo3::exceptions::PyRuntimeWarning;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PySlice, PyTuple};

use crate::arguments::{as_args, borrow_arguments, match_arguments, names, signature_order, texts};
use crate::call::Frame;
use crate::engine::engine;
use crate::error::raise_kernel;
use crate::output::{Out, OutputSlot, returned};
use crate::selection::Selection;
use crate::tensor::Kind;

/// Runs a call in parts that no kernel can run whole. Returns nothing if it cannot be split; slices must
/// share the tensors' memory.
#[cold]
pub fn call<'py>(
    py: Python<'py>,
    info: &'static OperationInfo,
    arguments: &Bound<'py, PyTuple>,
    keywords: Option<&Bound<'py, PyDict>>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let schema = info.schema();
    let (objects, out) = match_arguments(py, info, arguments, keywords)?;
    let mut frame = Frame::new(py, info, Selection::Select);
    let borrowed = borrow_arguments(&mut frame, &objects)?;
    let strings = texts(&borrowed);
    let args = as_args(schema, &borrowed, &strings);
    let device = frame.enter_device();
    let Some(cut) = split::cut(engine()?, info, &args, None) else { return Ok(None) };
    drop(device);
    if !matches!(frame.like().1, Kind::Torch | Kind::Numpy) {
        return Ok(None);
    }
    let bound = check::check_call(schema, &args, None).map_err(|error| frame.raise(&error))?;
    let specs = check::infer_outputs(schema, &bound)
        .map_err(|reason| crate::error::validation_error(py, &info.name, reason))?;
    let mut given = Out::new(out.as_ref().map(Bound::as_borrowed));
    let mut outputs = Vec::new();
    for spec in specs {
        let check::OutputSpec::Tensor(sizes, dtype) = spec else { continue };
        if given.is_given() {
            let Some(output) = given.take() else { return Ok(None) };
            outputs.push(output);
            continue;
        }
        let (mut slot, mut memory) = (OutputSlot::EMPTY, TensorMut::empty());
        slot.allocate(&mut frame, Some((sizes, dtype)), &mut memory)
            .map_err(|error| raise_kernel(py, info, error))?;
        outputs.extend(slot.into_object());
    }
    if cut.note(engine()?, info) {
        let Cut { split, kernel, .. } = &cut;
        let text = format!("{}: the call is too large for every kernel: {split}, run by {kernel}", info.name);
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
            &outputs,
            PySlice::new(py, start as isize, end as isize, 1),
        )?;
        start = end;
    }
    Ok(Some(match out {
        Some(out) => out,
        None => returned(py, outputs)?,
    }))
}

fn run_part<'py>(
    info: &'static OperationInfo,
    function: &Bound<'py, PyAny>,
    cut: &Cut,
    objects: &[Option<Bound<'py, PyAny>>],
    outputs: &[Bound<'py, PyAny>],
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
    if !outputs.is_empty() {
        let outputs: Vec<_> = outputs.iter().map(|output| output.get_item(&part)).collect::<PyResult<_>>()?;
        keywords.set_item("out", PyTuple::new(py, outputs)?)?;
    }
    function.call(PyTuple::new(py, inputs)?, Some(&keywords))?;
    Ok(())
}
