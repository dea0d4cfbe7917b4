//! Plans for executors that are written in Python: steps, memory and constants as Python values.

use std::ops::ControlFlow;

use lz_core::device::Platform;
use lz_core::expr::Value;
use lz_core::tensor::Device;
use lz_graph::compiled::PlannedCall;
use lz_graph::device::{self, Choice, DeviceKernel};
use lz_graph::plan::{Location, Plan, Source, Step, StepArg};
use lz_graph::sizes::InputShape;
use lz_graph::{CompiledModel, Graph, GraphError};
use lz_schema::model::{Operation, ParamType};
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};

use super::raise_graph;
use crate::arguments::signature_order;
use crate::python_kernel::PythonKernel;

/// A tensor of a step: its memory (`input`, `constant`, `sizes`, `arena`, `output`), the index of that memory, sizes, strides, the
/// offset in elements, and the dtype.
type TensorRow = (&'static str, usize, Vec<i64>, Vec<i64>, i64, &'static str);

/// A constant: name, dtype, sizes, strides, address, and whether it is in host memory.
pub type ConstantRow = (String, &'static str, Vec<i64>, Vec<i64>, usize, bool);

/// A device by name: `cpu`, `cuda` or `cuda:1`.
fn parse_device(name: &str) -> PyResult<Device> {
    let (platform, index) = name.split_once(':').unwrap_or((name, "0"));
    let platform = match platform {
        "cpu" => Some(Platform::Cpu),
        "cuda" => Some(Platform::Cuda),
        _ => None,
    };
    match (platform, index.parse()) {
        (Some(platform), Ok(index)) => Ok(Device { platform, index }),
        _ => Err(PyValueError::new_err(format!("unknown device {name:?}; expected cpu, cuda or cuda:1"))),
    }
}

/// The plan for inputs of these shapes. The engine selects kernels if `selects`; cold ones are compiled first if `compiles`.
pub fn plan<'py>(
    py: Python<'py>,
    model: &CompiledModel,
    shapes: &[InputShape],
    device: &str,
    selects: bool,
    compiles: bool,
) -> PyResult<Bound<'py, PyDict>> {
    let device = parse_device(device)?;
    let choice = if selects { Choice::Engine } else { Choice::Executor };
    let engine = model.session().engine();
    let make = || {
        let plan = device::plan(engine, model.graph(), shapes, device, choice)?;
        let cold = if compiles { engine.cold_kernels(&device::selected_calls(&plan)) } else { Vec::new() };
        if cold.is_empty() {
            return Ok((plan, Vec::new()));
        }
        let report = engine.warmup(&cold, &mut |_| ControlFlow::Continue(()));
        let failed = report.failed.iter().map(|(kernel, reason)| format!("{kernel}: {reason}")).collect();
        Ok((device::plan(engine, model.graph(), shapes, device, choice)?, failed))
    };
    let made: Result<(Plan<DeviceKernel>, Vec<String>), GraphError> = py.detach(make);
    let (plan, not_compiled) = made.map_err(|error| raise_graph(py, &error))?;
    let steps = PyList::empty(py);
    for step in &plan.steps {
        steps.append(step_of(py, model, step)?)?;
    }
    let result = PyDict::new(py);
    result.set_item("steps", steps)?;
    result.set_item("arena_bytes", plan.placement.bytes)?;
    result.set_item("live_bytes", lz_graph::memory::live_bytes(&plan.lifetimes))?;
    result.set_item("offsets", plan.placement.offsets)?;
    result.set_item("buffers", plan.lifetimes.iter().map(|one| one.bytes).collect::<Vec<_>>())?;
    result.set_item("tables", plan.tables)?;
    let outputs = plan.outputs.into_iter().map(|(shape, dtype)| (shape, dtype.long_name()));
    result.set_item("outputs", outputs.collect::<Vec<_>>())?;
    result.set_item("not_compiled", not_compiled)?;
    Ok(result)
}

/// The calls of the plans for these sizes for which the engine selects kernels.
pub fn calls(
    py: Python<'_>,
    model: &CompiledModel,
    sizes: &[Vec<InputShape>],
    device: &str,
    selects: bool,
) -> PyResult<Vec<PlannedCall>> {
    let device = parse_device(device)?;
    let choice = if selects { Choice::Engine } else { Choice::Executor };
    let find = || device::calls(model.session().engine(), model.graph(), sizes, device, choice);
    py.detach(find).map_err(|error| raise_graph(py, &error))
}

fn step_of<'py>(
    py: Python<'py>,
    model: &CompiledModel,
    step: &Step<DeviceKernel>,
) -> PyResult<Bound<'py, PyDict>> {
    let graph = model.graph();
    let schema = step.operation.schema();
    let entry = PyDict::new(py);
    entry.set_item("operation", &*step.operation.name)?;
    entry.set_item("node", step.node.0)?;
    entry.set_item("line", graph.line(step.node))?;
    entry.set_item("source", graph.node(step.node).origin.to_string())?;
    entry.set_item("copy", step.copy.map(|reason| reason.name()))?;
    let mut hosted = None;
    match &step.pinned {
        DeviceKernel::Executor => {
            entry.set_item("kernel", py.None())?;
            entry.set_item("function", py.None())?;
        }
        DeviceKernel::Selected(pinned) => {
            let (kernel, spec) = (pinned.entry(), &pinned.entry().spec);
            entry.set_item("kernel", &spec.id)?;
            hosted = PythonKernel::of(kernel);
            entry.set_item("function", hosted.map(|kernel| kernel.find(py)).transpose()?)?;
            entry.set_item("takes_out", hosted.is_some_and(PythonKernel::takes_out))?;
            entry.set_item("graph_safe", spec.cuda_graph_safe)?;
            entry.set_item("reference", spec.reference)?;
            entry.set_item("why", why(model, step, &spec.id))?;
        }
    }
    let (inputs, written) = (PyList::empty(py), PyList::empty(py));
    let args: Vec<Option<&StepArg>> =
        signature_order(schema).into_iter().map(|index| step.args.get(index)).collect();
    let is_given = |arg: &Option<&StepArg>| matches!(arg, Some(StepArg::Read(_) | StepArg::Write(_)));
    let args = match hosted {
        Some(kernel) => kernel.taken(py, &args, is_given)?,
        None => &args[..],
    };
    for arg in args {
        match arg {
            Some(StepArg::Read(location)) => inputs.append(row(location))?,
            Some(StepArg::Write(location)) => {
                written.append(inputs.len())?;
                inputs.append(row(location))?;
            }
            _ => inputs.append(py.None())?,
        }
    }
    entry.set_item("inputs", inputs)?;
    entry.set_item("written", written)?;
    entry.set_item("params", params(py, schema, step)?)?;
    let outputs: Vec<Option<TensorRow>> = step.outputs.iter().map(|one| one.as_ref().map(row)).collect();
    entry.set_item("outputs", outputs)?;
    Ok(entry)
}

fn params<'py>(
    py: Python<'py>,
    schema: &Operation,
    step: &Step<DeviceKernel>,
) -> PyResult<Bound<'py, PyDict>> {
    let params = PyDict::new(py);
    for (param, arg) in schema.kernel_params().zip(step.args.iter().skip(schema.inputs.len())) {
        let StepArg::Param(Some(value)) = arg else { continue };
        match (value, &param.ty) {
            (Value::Int(value), _) => params.set_item(&param.name, value)?,
            (Value::Float(value), _) => params.set_item(&param.name, value)?,
            (Value::Bool(value), _) => params.set_item(&param.name, value)?,
            (Value::Enum(case), ParamType::Enum(cases)) => {
                params.set_item(&param.name, cases.get(*case as usize))?;
            }
            (Value::Enum(case), _) => params.set_item(&param.name, case)?,
        }
    }
    Ok(params)
}

fn row(location: &Location) -> TensorRow {
    let (kind, index) = match location.source {
        Source::Input(index) => ("input", index),
        Source::Constant(index) => ("constant", index),
        Source::Sizes(index) => ("sizes", index),
        Source::Arena(index) => ("arena", index),
        Source::Output(index) => ("output", index),
    };
    let layout = &location.view.layout;
    let (shape, strides) = (layout.shape.to_vec(), layout.strides.to_vec());
    (kind, index, shape, strides, location.view.offset, layout.dtype.long_name())
}

/// The score of the kernel and the best other one; why faster ones are not eligible if it is the reference.
fn why(model: &CompiledModel, step: &Step<DeviceKernel>, id: &str) -> String {
    let explanation = model.session().engine().explain(step.operation, &step.context);
    let (eligible, refused): (Vec<_>, Vec<_>) =
        explanation.candidates.iter().partition(|one| one.reasons.is_empty());
    let own = eligible.iter().find(|one| one.kernel == id);
    let next = eligible.iter().find(|one| one.kernel != id);
    let mut text = match (own, next) {
        (Some(own), Some(next)) => {
            format!("score {:.1}, next {} {:.1}", own.total, next.kernel, next.total)
        }
        (Some(own), None) => format!("score {:.1}, the only eligible one", own.total),
        (None, _) => "not eligible any more".to_owned(),
    };
    if id.contains("reference") {
        for one in refused.iter().take(2) {
            let codes: Vec<String> = one.reasons.iter().map(|reason| reason.code.to_string()).collect();
            text.push_str(&format!("; {} is not eligible: {}", one.kernel, codes.join(", ")));
        }
    }
    text
}

/// The constants of a graph.
pub fn constants(graph: &Graph) -> Vec<ConstantRow> {
    let row = |constant: &lz_graph::graph::Constant| {
        let view = constant.view();
        let (shape, strides) = (view.shape().to_vec(), view.layout().strides.to_vec());
        let dtype = view.dtype().long_name();
        (constant.name.clone(), dtype, shape, strides, view.address(), view.device().is_host())
    };
    graph.constants.iter().map(row).collect()
}

/// The memory of a constant of the host whose elements are dense in some order of its dimensions.
pub fn constant_bytes<'py>(py: Python<'py>, graph: &Graph, index: usize) -> PyResult<Bound<'py, PyBytes>> {
    let Some(constant) = graph.constants.get(index) else {
        return Err(PyIndexError::new_err(format!("there is no constant {index}")));
    };
    let view = constant.view();
    let sizes = view.shape().iter().zip(view.strides());
    // The last element is as far from the first as there are others: nothing is outside the constant.
    let last: i64 = sizes.clone().map(|(size, stride)| (size - 1).max(0) * stride).sum();
    let ascending = sizes.clone().all(|(size, stride)| *size <= 1 || *stride > 0);
    if !view.device().is_host() || (view.elements() > 0 && !(ascending && last + 1 == view.elements())) {
        return Err(PyValueError::new_err(format!("constant {index} is not dense host memory")));
    }
    let count = view.elements() as usize * view.dtype().size();
    if count == 0 {
        return Ok(PyBytes::new(py, &[]));
    }
    // SAFETY: the view is sound and reaches from its first element over this many bytes.
    let bytes = unsafe { std::slice::from_raw_parts(view.as_ptr(), count) };
    Ok(PyBytes::new(py, bytes))
}
