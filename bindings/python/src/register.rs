//! Registering Python kernels, and listing kernels and backends.

use std::time::Duration;

use lz_core::descriptor::{self, Catalog};
use lz_core::device::Platform;
use lz_core::spec::{Limit, StrideNeeds};
use lz_core::{DType, KernelEntry, KernelSpec, OperationInfo, ReasonCode};
use lz_worker::settings::Origin;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::arguments::signature_order;
use crate::engine::engine;
use crate::error::raise;
use crate::inspect::{operation, targets};
use crate::jit;
use crate::python_kernel::PythonKernel;
use crate::simulate::{self, DescribedBackend};
use crate::worker;

/// The description of a decorated function, from the decorator's keywords.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Description {
    operation: String,
    id: String,
    backend: String,
    version: String,
    platform: String,
    dtypes: Vec<(String, Vec<String>)>,
    limits: Vec<(String, String)>,
    layouts: Vec<String>,
    strides: String,
    priority: u8,
    deterministic: bool,
    cuda_graph_safe: bool,
    reduced_precision: bool,
    writes_into_output: bool,
    install: String,
}

/// Registers a kernel: as a new one, in place of the one with its id, or as another version next to it.
fn install(py: Python<'_>, entry: KernelEntry, how: &str) -> PyResult<()> {
    let engine = engine()?;
    let installed = py.detach(|| match how {
        "replace" => engine.replace_kernels(vec![entry], Duration::ZERO).map(drop),
        "alongside" => engine.register_versions([entry]),
        _ => engine.register([entry]),
    });
    installed.map_err(|error| raise(py, &error))
}

fn wrong(what: &str, found: &str, allowed: &str) -> PyErr {
    PyValueError::new_err(format!("unknown {what} {found:?}; expected one of {allowed}"))
}

/// Registers a Python function as a kernel.
#[pyfunction]
fn register_kernel(
    py: Python<'_>,
    function: &Bound<'_, PyAny>,
    description: &Bound<'_, PyDict>,
) -> PyResult<()> {
    let kernel: Description = description.extract()?;
    let info = operation(&kernel.operation)?;
    let platforms =
        [Platform::Cpu, Platform::Cuda, Platform::Rocm, Platform::Hpu, Platform::Xpu, Platform::Metal];
    let platform =
        platforms.into_iter().find(|platform| platform.to_string() == kernel.platform).ok_or_else(|| {
            wrong("platform", &kernel.platform, &platforms.map(|platform| platform.to_string()).join(", "))
        })?;
    let mut spec = KernelSpec::new(&kernel.id, &info.name, &kernel.backend, &kernel.version, platform);
    for (variable, names) in &kernel.dtypes {
        let mut dtypes = Vec::new();
        for name in names {
            let all = || DType::ALL.map(DType::long_name).join(", ");
            dtypes.push(DType::parse(name).ok_or_else(|| wrong("dtype", name, &all()))?);
        }
        spec = spec.dtype(variable, &dtypes);
    }
    for (check, code) in kernel.limits {
        let code = ReasonCode::parse(&code)
            .ok_or_else(|| PyValueError::new_err(format!("unknown reason code {code:?}")))?;
        spec.limits.push(Limit { check, code });
    }
    spec.strides = match kernel.strides.as_str() {
        "any" => StrideNeeds::Any,
        "last_dense" => StrideNeeds::LastDense,
        "contiguous" => StrideNeeds::Contiguous,
        other => return Err(wrong("stride requirement", other, "any, last_dense, contiguous")),
    };
    if !kernel.layouts.is_empty() && info.field("layout").is_none() {
        let message = format!("{} has no layouts: remove `layouts` from the kernel {}", info.name, kernel.id);
        return Err(PyValueError::new_err(message));
    }
    spec.layouts = kernel.layouts;
    spec.priority = kernel.priority;
    spec.deterministic = kernel.deterministic;
    spec.cuda_graph_safe = kernel.cuda_graph_safe;
    spec.reduced_precision = kernel.reduced_precision;
    spec.writes_into_output = kernel.writes_into_output;
    let entry = function_entry(function, spec, info)?;
    install(py, entry, &kernel.install)
}

/// Registers a Python function as the one kernel of a capability descriptor, for each of its operations. `compile` compiles it for
/// a call, outside of calls.
#[pyfunction]
fn register_described_kernel(
    py: Python<'_>,
    function: &Bound<'_, PyAny>,
    id: &str,
    descriptor: &str,
    compile: Option<&Bound<'_, PyAny>>,
    how: &str,
) -> PyResult<()> {
    let registry = engine()?.registry();
    let catalog = Catalog::new(registry.operations().map(OperationInfo::schema));
    let path = format!("capabilities of {id}");
    let read = descriptor::read(&path, descriptor, &catalog).map_err(|error| raise(py, &error.into()))?;
    for spec in read.kernels {
        if spec.jit != compile.is_some() {
            let message = "a kernel with the capability `jit` needs the argument `compile`, and only such a kernel takes it";
            return Err(PyValueError::new_err(message));
        }
        let info = operation(&spec.operation)?;
        let mut entry = function_entry(function, spec, info)?;
        if let Some(compile) = compile {
            jit::ensure_queue(engine()?);
            entry = entry.compiled_by(jit::Compiler { function: compile.clone().unbind() });
        }
        install(py, entry, how)?;
    }
    Ok(())
}

/// A kernel that calls a Python function, in this process or in a worker, as policy says.
fn function_entry(
    function: &Bound<'_, PyAny>,
    spec: KernelSpec,
    info: &'static OperationInfo,
) -> PyResult<KernelEntry> {
    let py = function.py();
    worker::refuse_reserved(py, &spec.id, &spec.backend)?;
    let module = worker::module_of(function);
    if worker::is_isolated(py, Origin::Module(&module), &spec.backend)? {
        return worker::remote_function(function, spec, info);
    }
    let params = info.schema().kernel_params().map(|param| param.name.as_str());
    let hosted = PythonKernel::new(function, spec.writes_into_output, params)?;
    Ok(KernelEntry::new(spec, hosted).of(info))
}

/// Unregisters the kernels with this id, of one operation if it is given.
#[pyfunction]
fn unregister_kernel(py: Python<'_>, id: &str, operation_name: Option<&str>) -> PyResult<()> {
    engine()?.unregister_kernel(id, operation_name).map_err(|error| raise(py, &error))
}

/// Whether an operation has a kernel with this id.
#[pyfunction]
fn is_registered_kernel(operation_name: &str, id: &str) -> PyResult<bool> {
    let info = operation(operation_name)?;
    Ok(engine()?.registry().kernels_of(info).any(|entry| entry.spec.id == id))
}

/// Registers the reference of an imported definition: a kernel in a worker process that loads `source`.
#[pyfunction]
fn register_isolated_reference(
    py: Python<'_>,
    operation_name: &str,
    id: &str,
    source: &str,
    replace: bool,
) -> PyResult<()> {
    let info = operation(operation_name)?;
    // Each reference is its own backend, because the circuit breaker of a backend disables all of its kernels.
    let mut spec = KernelSpec::new(id, &info.name, id, "0", Platform::Cpu);
    spec.reference = true;
    spec.priority = 0;
    let entry = worker::remote(py, source, spec, info)?;
    install(py, entry, if replace { "replace" } else { "new" })
}

/// Unregisters a backend and its kernels.
#[pyfunction]
fn unregister_backend(backend: &str) -> PyResult<bool> {
    let was_registered = engine()?.unregister_backend(backend);
    worker::remove_workers(backend);
    Ok(was_registered)
}

/// The call signature of an operation's kernels: positional inputs, keyword params, and whether `out` can be
/// passed.
#[pyfunction]
fn kernel_signature(operation_name: &str) -> PyResult<(Vec<&'static str>, Vec<&'static str>, bool, usize)> {
    let schema = operation(operation_name)?.schema();
    let inputs = signature_order(schema).into_iter().map(|at| schema.inputs[at].name.as_str()).collect();
    let params = schema.kernel_params().map(|param| param.name.as_str()).collect();
    let takes_out =
        !schema.outputs.is_empty() && schema.outputs.iter().all(|output| !output.is_dynamic(schema));
    let required = schema.inputs.iter().filter(|input| input.optional.is_none()).count();
    Ok((inputs, params, takes_out, required))
}

/// Names of an operation's dtype variables.
#[pyfunction]
fn dtype_variables(operation_name: &str) -> PyResult<Vec<&'static str>> {
    Ok(operation(operation_name)?.schema().types.iter().map(|variable| variable.name.as_str()).collect())
}

/// Every kernel as a dictionary, in registration order.
#[pyfunction]
#[pyo3(signature = (operation_name = None, backend = None, device = None, backends = Vec::new()))]
fn kernels<'py>(
    py: Python<'py>,
    operation_name: Option<&str>,
    backend: Option<&str>,
    device: Option<&str>,
    backends: Vec<DescribedBackend>,
) -> PyResult<Bound<'py, PyList>> {
    let operations = operation_name.map(targets).transpose()?;
    let is_wanted = |name: &str| {
        operations.as_ref().is_none_or(|wanted| wanted.iter().any(|(info, _)| info.name == name))
    };
    let device = device.map(simulate::device).transpose()?;
    let platform = device.as_ref().map(lz_core::device::DeviceSpec::platform);
    let registry = match device {
        None => engine()?.registry(),
        Some(device) => simulate::engine_on(py, engine()?, device, backends)?.registry(),
    };
    let all = PyList::empty(py);
    for entry in registry.kernels() {
        let spec = &entry.spec;
        if !is_wanted(&spec.operation)
            || backend.is_some_and(|name| name != spec.backend)
            || platform.is_some_and(|platform| platform != spec.platform)
        {
            continue;
        }
        let one = PyDict::new(py);
        one.set_item("id", &spec.id)?;
        one.set_item("operation", &spec.operation)?;
        one.set_item("backend", &spec.backend)?;
        one.set_item("version", &spec.version)?;
        one.set_item("version_of", entry.version_of.as_deref())?;
        one.set_item("platform", spec.platform.to_string())?;
        one.set_item("priority", spec.priority)?;
        let dtypes = PyDict::new(py);
        for (variable, names) in &spec.dtypes {
            dtypes.set_item(variable, names.iter().map(|dtype| dtype.long_name()).collect::<Vec<_>>())?;
        }
        one.set_item("dtypes", dtypes)?;
        one.set_item("limits", spec.limits.iter().map(|limit| limit.check.as_str()).collect::<Vec<_>>())?;
        one.set_item("reference", spec.reference)?;
        one.set_item("deterministic", spec.deterministic)?;
        one.set_item("tp_invariant", spec.tp_invariant)?;
        one.set_item("batch_invariant", spec.batch_invariant)?;
        one.set_item("cuda_graph_safe", spec.cuda_graph_safe)?;
        one.set_item("jit", spec.jit)?;
        one.set_item("hosted", PythonKernel::of(entry).is_some())?;
        one.set_item("runs_in", &spec.runs_in)?;
        let disabled = match registry.backend(&spec.backend).map(|backend| &backend.state) {
            Some(lz_engine::registry::BackendState::Disabled(reason)) => Some(reason.sentence()),
            _ => None,
        };
        one.set_item("disabled", disabled)?;
        all.append(one)?;
    }
    Ok(all)
}

/// Backends with their version and, if one is disabled, the reason.
#[pyfunction]
fn backends(py: Python<'_>) -> PyResult<Bound<'_, PyList>> {
    let registry = engine()?.registry();
    let all = PyList::empty(py);
    for (name, backend) in registry.backends() {
        let one = PyDict::new(py);
        one.set_item("name", name)?;
        one.set_item("version", &backend.version)?;
        let count = registry.kernels().filter(|entry| entry.spec.backend == name).count();
        one.set_item("kernels", count)?;
        match &backend.state {
            lz_engine::registry::BackendState::Available => {
                one.set_item("available", true)?;
                one.set_item("reason", py.None())?;
            }
            lz_engine::registry::BackendState::Disabled(reason) => {
                one.set_item("available", false)?;
                one.set_item("reason", reason.to_string())?;
            }
        }
        all.append(one)?;
    }
    Ok(all)
}

/// Adds the functions.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(register_kernel, module)?)?;
    module.add_function(wrap_pyfunction!(register_described_kernel, module)?)?;
    module.add_function(wrap_pyfunction!(unregister_backend, module)?)?;
    module.add_function(wrap_pyfunction!(unregister_kernel, module)?)?;
    module.add_function(wrap_pyfunction!(is_registered_kernel, module)?)?;
    module.add_function(wrap_pyfunction!(register_isolated_reference, module)?)?;
    module.add_function(wrap_pyfunction!(kernel_signature, module)?)?;
    module.add_function(wrap_pyfunction!(dtype_variables, module)?)?;
    module.add_function(wrap_pyfunction!(kernels, module)?)?;
    module.add_function(wrap_pyfunction!(backends, module)?)
}
