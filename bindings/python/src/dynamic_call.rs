//! Calls any operation through its schema, without generated code: operations loaded at run time, plans of them, and tuning.

use lz_core::expr::Value;
use lz_core::{Context, KernelEntry, KernelError, OperationInfo, OutArg, Run, TensorMut, check, dynamic};
use lz_schema::model::ParamType;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::arguments::{
    BorrowedArgument, as_args, borrow_arguments, match_arguments, signature_order, texts,
};
use crate::call::Frame;
use crate::error::validation_error;
use crate::output::{Out, OutputSlot, compute_apart, dynamic as dynamic_result, nibbles, returned};
use crate::python_kernel::{Param, PythonKernel};
use crate::python_kernel_run::record_results;
use crate::results::ExpectedOutput;
use crate::selection::Selection;
use crate::vectorcall::Argument;

/// Calls any operation with Python arguments.
pub fn call<'py>(
    py: Python<'py>,
    selection: Selection<'_>,
    info: &'static OperationInfo,
    arguments: &Bound<'py, PyTuple>,
    keywords: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let ((), result) = perform(py, selection, info, arguments, keywords, |frame, context, run_one| {
        frame.dispatch(context, |frame, entry, run| run_one(frame, entry, run))
    })?;
    Ok(result)
}

/// Runs a prepared call with one kernel.
pub type RunOne<'r, 'a, 'py> =
    dyn FnMut(&mut Frame<'a, 'py>, &KernelEntry, &mut Run<'_>) -> Result<(), KernelError> + 'r;

/// Prepares a call of any operation, has `act` run it any number of times, and returns the outputs of the
/// last run.
pub fn perform<'py, R>(
    py: Python<'py>,
    selection: Selection<'_>,
    info: &'static OperationInfo,
    arguments: &Bound<'py, PyTuple>,
    keywords: Option<&Bound<'py, PyDict>>,
    act: impl for<'a> FnOnce(&mut Frame<'a, 'py>, &Context, &mut RunOne<'_, 'a, 'py>) -> PyResult<R>,
) -> PyResult<(R, Bound<'py, PyAny>)> {
    let (objects, out) = match_arguments(py, info, arguments, keywords)?;
    perform_matched(py, selection, info, &objects, out.as_ref(), act)
}

fn perform_matched<'py, R>(
    py: Python<'py>,
    selection: Selection<'_>,
    info: &'static OperationInfo,
    objects: &[Option<Bound<'py, PyAny>>],
    out: Option<&Bound<'py, PyAny>>,
    act: impl for<'a> FnOnce(&mut Frame<'a, 'py>, &Context, &mut RunOne<'_, 'a, 'py>) -> PyResult<R>,
) -> PyResult<(R, Bound<'py, PyAny>)> {
    let schema = info.schema();
    let mut frame = Frame::new(py, info, selection);
    let borrowed = borrow_arguments(&mut frame, objects)?;
    for (at, input) in schema.inputs.iter().enumerate().filter(|(_, input)| input.read_write) {
        if let Some(BorrowedArgument::Tensor(import)) = borrowed.get(at)
            && import.is_read_only()
        {
            return Err(frame.refuse_read_only(&input.name));
        }
    }
    let strings = texts(&borrowed);
    let mut args = as_args(schema, &borrowed, &strings);
    let bound = check::check_call(schema, &args, None).map_err(|error| frame.raise(&error))?;
    let specs =
        check::infer_outputs(schema, &bound).map_err(|reason| validation_error(py, &info.name, reason))?;
    let mut slots: Vec<OutputSlotView<'py>> =
        specs.iter().map(|_| (OutputSlot::EMPTY, TensorMut::empty())).collect();
    let mut given = Out::new(out.map(Bound::as_borrowed));
    if given.is_given() {
        for ((spec, (slot, tensor)), output) in specs.iter().zip(&mut slots).zip(&schema.outputs) {
            if let check::OutputSpec::Tensor(sizes, dtype) = spec {
                slot.take(&mut frame, &mut given, &output.name, tensor)?;
                nibbles(Some((*sizes, *dtype)), tensor);
            }
        }
        given.finish(&frame)?;
    }
    let mut tensors: Vec<Option<lz_core::Tensor>> = specs.iter().map(|_| None).collect();
    let mut strings_out: Vec<Option<Vec<String>>> = specs.iter().map(|_| None).collect();
    let context = {
        let outs = given.is_given().then(|| out_args(&specs, &slots, &mut tensors, &mut strings_out));
        if let Some(outs) = &outs
            && let Err(error) = check::check_call(schema, &args, Some(outs))
        {
            let views: Vec<_> = slots.iter().map(|(_, tensor)| tensor.as_view()).collect();
            let mut answer = None;
            let apart = || {
                let (found, result) = perform_matched(py, selection, info, objects, None, act)?;
                answer = Some(found);
                Ok(result)
            };
            let out = out.map(Bound::as_borrowed);
            let result = compute_apart(&mut frame, &error, &args, &views, out, apart)?;
            return answer.map(|answer| (answer, result)).ok_or_else(|| frame.raise(&error));
        }
        dynamic::context(schema, &bound, &args, outs.as_deref()).map_err(|error| frame.raise(&error))?
    };
    // Kernels get every param, so that no kernel computes its own defaults.
    let values: Vec<Value> =
        bound.values.iter().skip(schema.axes.len()).take(schema.params.len()).copied().collect();
    for (arg, value) in args.iter_mut().skip(schema.inputs.len()).zip(&values) {
        *arg = lz_core::Arg::Value(*value);
    }
    let order = signature_order(schema);
    let inputs: Vec<Argument<'_, 'py>> =
        order.iter().map(|&at| objects.get(at)?.as_ref().map(Bound::as_borrowed)).collect();
    let params: Vec<(Argument<'_, 'py>, Param)> = schema
        .params
        .iter()
        .zip(&values)
        .enumerate()
        .map(|(number, (param, value))| {
            let object = objects.get(schema.inputs.len() + number).and_then(Option::as_ref);
            (object.map(Bound::as_borrowed), hosted_param(&param.ty, *value))
        })
        .collect();
    let expected: Vec<ExpectedOutput> = specs.iter().map(ExpectedOutput::from).collect();
    let allocates_outputs = !given.is_given();
    let answer = act(&mut frame, &context, &mut |frame, entry, run| {
        // Every run allocates its outputs, as every call does, so that the cost is part of the measurement.
        if allocates_outputs {
            drop(frame.take_result());
            for (slot, tensor) in &mut slots {
                slot.release(frame, tensor);
            }
        }
        if let Some(hosted) = PythonKernel::of(entry) {
            let recorder = entry.kernel.recorder();
            if let Some(recorder) = recorder {
                recorder.record_arguments(&args);
            }
            let given_out = out.map(Bound::as_borrowed);
            let outcome = hosted.run(frame, &inputs, &params, &expected, given_out);
            if let (Some(recorder), Ok(())) = (recorder, &outcome) {
                record_results(recorder, frame, &args, &expected, given_out);
            }
            return outcome;
        }
        for (spec, (slot, tensor)) in specs.iter().zip(&mut slots) {
            if let (check::OutputSpec::Tensor(sizes, dtype), false) = (spec, slot.is_present()) {
                slot.allocate(frame, Some((*sizes, *dtype)), tensor)?;
            }
        }
        let mut outs = out_args(&specs, &slots, &mut tensors, &mut strings_out);
        frame.native(|| entry.run(&mut args, &mut outs, run))
    })?;
    if let Some(result) = frame.take_result() {
        return Ok((answer, result));
    }
    let mut results = Vec::new();
    for (((slot, _), tensor), strings) in slots.into_iter().zip(tensors).zip(strings_out) {
        results.extend(slot.into_object());
        if let Some(tensor) = tensor {
            results.push(dynamic_result(py, &tensor)?);
        }
        if let Some(strings) = strings {
            results.push(strings.into_pyobject(py)?.into_any());
        }
    }
    Ok((answer, returned(py, results)?))
}

/// An output slot and the view of its memory.
type OutputSlotView<'py> = (OutputSlot<'py>, TensorMut<'static>);

fn out_args<'o>(
    specs: &[check::OutputSpec],
    slots: &[OutputSlotView<'_>],
    tensors: &'o mut [Option<lz_core::Tensor>],
    strings: &'o mut [Option<Vec<String>>],
) -> Vec<OutArg<'o>> {
    let results = slots.iter().zip(tensors.iter_mut().zip(strings.iter_mut()));
    specs
        .iter()
        .zip(results)
        .map(|(spec, ((slot, memory), (tensor, text)))| match (spec, slot.is_present()) {
            (check::OutputSpec::Absent, _) => OutArg::Absent,
            (check::OutputSpec::Text, _) => OutArg::Text(text),
            // SAFETY: one run at a time writes this memory, and only through this view.
            (check::OutputSpec::Tensor(..), true) => OutArg::Tensor(unsafe { memory.duplicate() }),
            _ => OutArg::Dynamic(tensor),
        })
        .collect()
}

fn hosted_param(ty: &'static ParamType, value: Value) -> Param {
    match (ty, value) {
        (ParamType::Enum(cases), Value::Enum(case)) => {
            Param::Text(cases.get(case as usize).map_or("", String::as_str))
        }
        (_, Value::Int(value)) => Param::Int(value),
        (_, Value::Float(value)) => Param::Float(value),
        (_, Value::Bool(value)) => Param::Bool(value),
        (_, Value::Enum(case)) => Param::Int(i64::from(case)),
    }
}
