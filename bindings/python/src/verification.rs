//! Verification of calls: waiting for it, and replaying the reproducers that it writes.

use std::path::PathBuf;
use std::time::Duration;

use lz_core::expr::Value;
use lz_core::recorded::{self, RecordedArg, RecordedCall, RecordedResult, ResultView};
use lz_core::{DType, OperationInfo};
use lz_engine::verify::Reproducer;
use lz_interchange::{CallArguments, export_workload};
use lz_schema::model::ParamType;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};

use crate::dynamic_call::perform;
use crate::engine::engine;
use crate::error::{raise, raise_kernel};
use crate::selection::Selection;
use crate::tensor::BorrowedTensor;

fn load(path: PathBuf) -> PyResult<Reproducer> {
    Reproducer::load(&path).map_err(|error| PyValueError::new_err(error.to_string()))
}

fn operation_of(py: Python<'_>, reproducer: &Reproducer) -> PyResult<&'static OperationInfo> {
    reproducer.find_operation(&engine()?.registry()).map_err(|error| raise(py, &error))
}

/// Waits until every sampled call so far is verified; false after the timeout.
#[pyfunction]
fn wait_for_verification(py: Python<'_>, seconds: f64) -> PyResult<bool> {
    let engine = engine()?;
    let timeout = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::from_secs(365 * 24 * 3600));
    Ok(py.detach(|| engine.wait_for_verification(timeout)))
}

/// Replays a reproducer; the result is JSON.
#[pyfunction]
fn replay(py: Python<'_>, path: PathBuf) -> PyResult<String> {
    let engine = engine()?;
    let reproducer = load(path)?;
    let replay = py.detach(|| engine.replay(&reproducer)).map_err(|error| raise(py, &error))?;
    serde_json::to_string(&replay).map_err(|error| PyValueError::new_err(error.to_string()))
}

/// The arguments of a reproducer by name: numbers, texts, or tensors as bytes, dtype, shape and device.
#[pyfunction]
fn reproducer_arguments(py: Python<'_>, path: PathBuf) -> PyResult<Bound<'_, PyDict>> {
    let reproducer = load(path)?;
    let schema = operation_of(py, &reproducer)?.schema();
    let arguments = PyDict::new(py);
    for (position, (name, arg)) in reproducer.argument_names().zip(&reproducer.call.args).enumerate() {
        match arg {
            RecordedArg::Absent => {}
            RecordedArg::Text(texts) => arguments.set_item(name, texts)?,
            RecordedArg::Tensor(tensor) => {
                let bytes = PyBytes::new(py, tensor.data.bytes());
                let (dtype, shape) = (tensor.data.dtype().long_name(), tensor.data.shape().to_vec());
                arguments.set_item(name, (bytes, dtype, shape, tensor.device.to_string()))?;
            }
            RecordedArg::Value(Value::Int(value)) => arguments.set_item(name, value)?,
            RecordedArg::Value(Value::Float(value)) => arguments.set_item(name, value)?,
            RecordedArg::Value(Value::Bool(value)) => arguments.set_item(name, value)?,
            RecordedArg::Value(Value::Enum(case)) => {
                let param = position.checked_sub(schema.inputs.len()).and_then(|at| schema.params.get(at));
                if let Some(ParamType::Enum(cases)) = param.map(|param| &param.ty) {
                    arguments.set_item(name, cases.get(*case as usize))?;
                }
            }
        }
    }
    Ok(arguments)
}

/// Calls the kernel of a reproducer with Python arguments, and returns how its results differ from the expected ones.
#[pyfunction]
#[pyo3(signature = (path, **keywords))]
fn replay_with<'py>(
    py: Python<'py>,
    path: PathBuf,
    keywords: Option<&Bound<'py, PyDict>>,
) -> PyResult<Option<String>> {
    let reproducer = load(path)?;
    let operation = operation_of(py, &reproducer)?;
    let kernel = &reproducer.kernel().id;
    let registry = engine()?.registry();
    let Some(entry) = registry.kernels_of(operation).find(|entry| entry.spec.id == *kernel) else {
        return Err(PyRuntimeError::new_err(format!("the kernel {kernel} is not registered")));
    };
    let nothing = PyTuple::empty(py);
    let (outcome, result) =
        perform(py, Selection::Select, operation, &nothing, keywords, |frame, _, run_one| {
            let mut scratch = lz_core::run::Scratch::default();
            Ok(run_one(frame, entry, &mut lz_core::Run::unbounded(&mut scratch)))
        })?;
    outcome.map_err(|error| raise_kernel(py, operation, error))?;
    let found = recorded(&reproducer, operation, keywords, &result)?;
    Ok(recorded::difference(operation, &found, &reproducer.expected))
}

/// The results of a call, in the order of the recorded ones: outputs, then arguments that were changed in place.
fn recorded(
    reproducer: &Reproducer,
    operation: &OperationInfo,
    keywords: Option<&Bound<'_, PyDict>>,
    result: &Bound<'_, PyAny>,
) -> PyResult<Vec<RecordedResult>> {
    let objects: Vec<Bound<'_, PyAny>> = match result.cast::<PyTuple>() {
        Ok(several) => several.iter().collect(),
        Err(_) => vec![result.clone()],
    };
    let schema = operation.schema();
    let present = reproducer.expected.iter().take(schema.outputs.len());
    let present = present.filter(|result| !matches!(result, RecordedResult::Absent)).count();
    let changed = schema.inputs.iter().filter(|input| input.read_write);
    let changed = changed.filter_map(|input| keywords?.get_item(&input.name).ok().flatten());
    let mut objects = objects.into_iter().take(present).chain(changed);
    let mut found = RecordedCall::default();
    for expected in &reproducer.expected {
        let mut one = RecordedCall::default();
        let unreadable = || PyValueError::new_err("a result of the kernel cannot be read");
        let is_read = match expected {
            RecordedResult::Absent => one.add_results(&[], &[ResultView::Absent]),
            RecordedResult::Text(_) => {
                let texts: Vec<String> = objects.next().ok_or_else(unreadable)?.extract()?;
                one.add_results(&[], &[ResultView::Text(&texts)])
            }
            RecordedResult::Tensor(expected) => {
                let object = objects.next().ok_or_else(unreadable)?;
                let mut tensor = BorrowedTensor::new(object.as_borrowed()).map_err(|_| unreadable())?;
                tensor.nibbles(expected.dtype() == DType::F4E2M1x2);
                one.add_results(&[], &[ResultView::Tensor(tensor.view())])
            }
        };
        if !is_read {
            return Err(unreadable());
        }
        found.results.append(&mut one.results);
    }
    Ok(found.results)
}

/// Writes a reproducer as a FlashInfer-Trace definition and workload into a folder; returns the files.
#[pyfunction]
fn export_reproducer(py: Python<'_>, path: PathBuf, folder: PathBuf) -> PyResult<Vec<PathBuf>> {
    let name = path.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let reproducer = load(path)?;
    let schema = operation_of(py, &reproducer)?.schema();
    let mut call = CallArguments::default();
    for (position, (name, arg)) in reproducer.argument_names().zip(&reproducer.call.args).enumerate() {
        let name = name.to_owned();
        match arg {
            RecordedArg::Tensor(tensor) => {
                call.tensors.insert(name, (tensor.data.dtype(), tensor.data.shape().to_vec()));
            }
            RecordedArg::Value(Value::Int(value)) => drop(call.scalars.insert(name, (*value).into())),
            RecordedArg::Value(Value::Float(value)) => drop(call.scalars.insert(name, (*value).into())),
            RecordedArg::Value(Value::Bool(value)) => drop(call.scalars.insert(name, (*value).into())),
            RecordedArg::Value(Value::Enum(case)) => {
                let param = position.checked_sub(schema.inputs.len()).and_then(|at| schema.params.get(at));
                if let Some(ParamType::Enum(cases)) = param.map(|param| &param.ty) {
                    call.cases.extend(cases.get(*case as usize).map(|case| (name, case.clone())));
                }
            }
            RecordedArg::Absent | RecordedArg::Text(_) => {}
        }
    }
    let tensors_file = format!("{name}.inputs.safetensors");
    let exported = export_workload(schema, &call, &tensors_file, &name)
        .map_err(|error| PyValueError::new_err(error.to_string()))?;
    std::fs::create_dir_all(&folder)?;
    let paths = [format!("{name}.definition.json"), format!("{name}.workload.jsonl"), tensors_file];
    let [definition, workload, tensors] = paths.map(|name| folder.join(name));
    std::fs::write(&definition, exported.definition)?;
    std::fs::write(&workload, exported.workload)?;
    reproducer.save_inputs(&tensors, &exported.shapes)?;
    Ok(vec![definition, workload, tensors])
}

/// Adds the functions.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(wait_for_verification, module)?)?;
    module.add_function(wrap_pyfunction!(replay, module)?)?;
    module.add_function(wrap_pyfunction!(reproducer_arguments, module)?)?;
    module.add_function(wrap_pyfunction!(replay_with, module)?)?;
    module.add_function(wrap_pyfunction!(export_reproducer, module)?)
}
