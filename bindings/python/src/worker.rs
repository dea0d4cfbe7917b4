//! Python kernels that run in a worker process. The host ([`remote_function`], [`remote_backend`]) has the
//! kernel's spec, the worker process the function: it loads the same module or backend (`python -m
//! layerzero._worker SOURCE`) and serves the kernels that it registers.

use std::any::Any;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lz_core::device::Platform;
use lz_core::expr::Value;
use lz_core::{
    Arg, Cause, Kernel, KernelEntry, KernelError, KernelSpec, OperationInfo, OutArg, Reason, ReasonCode, Run,
    Tensor, TensorView,
};
use lz_ops::tokenizer::Tokenizer;
use lz_schema::model::{DTypeRef, Output, ParamType};
use lz_worker::serve::{WorkerKernels, serve};
use lz_worker::settings::{self, Isolation, Origin};
use lz_worker::{WeakWorker, Worker};
use pyo3::exceptions::{PyKeyboardInterrupt, PyRuntimeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyMemoryView, PyTuple};

use crate::arguments::signature_order;
use crate::call::failure_of;
use crate::engine::engine;
use crate::error::raise;
use crate::interrupt;
use crate::python_kernel::PythonKernel;
use crate::tensor::{BorrowedTensor, Problem};
use crate::text::PyTokenizer;

/// A worker configured in this process.
struct WorkerEntry {
    backend: String,
    /// A module that registers kernels, or `backend:<name>` for an installed backend.
    source: String,
    worker: WeakWorker,
}

/// The workers that kernels use, including those that are not started yet. A worker ends with its last kernel.
static WORKERS: Mutex<Vec<WorkerEntry>> = Mutex::new(Vec::new());

fn workers() -> MutexGuard<'static, Vec<WorkerEntry>> {
    WORKERS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn configuration(py: Python<'_>, subject: &str, reason: Reason) -> PyErr {
    let error = lz_core::Error::Configuration {
        subject: subject.to_owned(),
        message: reason.sentence(),
        reasons: vec![reason],
    };
    raise(py, &error)
}

/// Whether a module or an entry point of this name could be loaded.
fn is_loadable(py: Python<'_>, name: &str) -> bool {
    let check = || py.import("layerzero._isolation")?.call_method1("is_loadable", (name,))?.is_truthy();
    check().unwrap_or(false)
}

/// Whether the operator's settings isolate a backend in a worker process. Refuses a backend whose name is
/// probably misspelled there.
pub fn is_isolated(py: Python<'_>, origin: Origin<'_>, backend: &str) -> PyResult<bool> {
    match settings::isolation(engine()?, origin, backend) {
        Ok(isolation) if isolation.value == Isolation::Subprocess => Ok(true),
        Ok(_) => settings::refuse_misspelled(engine()?, origin, backend, |name| is_loadable(py, name))
            .map(|()| false)
            .map_err(|reason| configuration(py, backend, reason)),
        Err(reason) => Err(configuration(py, backend, reason)),
    }
}

/// Refuses reserved names of LayerZero's backends for other backends.
pub fn refuse_reserved(py: Python<'_>, subject: &str, backend: &str) -> PyResult<()> {
    lz_core::built_in::reserved_name(backend).map_or(Ok(()), |reason| Err(configuration(py, subject, reason)))
}

/// The module of a function.
pub fn module_of(function: &Bound<'_, PyAny>) -> String {
    function.getattr("__module__").and_then(|module| module.extract()).unwrap_or_default()
}

/// A kernel that runs a function in a worker, which imports the function's module.
pub fn remote_function(
    function: &Bound<'_, PyAny>,
    spec: KernelSpec,
    info: &'static OperationInfo,
) -> PyResult<KernelEntry> {
    let py = function.py();
    let module = module_of(function);
    let refuse = |message: String| {
        Err(configuration(py, &spec.id, Reason::new(ReasonCode::PolicyInvalid).message(message)))
    };
    if !supports_worker(&spec) {
        return refuse(format!(
            "{} is configured to run in a worker process (backend_isolation), which cannot access {} tensors",
            spec.id, spec.platform
        ));
    }
    match module.as_str() {
        module if !matches!(module, "" | "__main__") => remote(py, module, spec, info),
        _ => refuse(format!(
            "{} is configured to run in a worker process (backend_isolation), which imports the module that registers it; \
             a function of `__main__` cannot be imported: move it to a module",
            spec.id
        )),
    }
}

/// A kernel of an installed backend, in a worker that loads this backend by the name of its entry point, if
/// it has one.
pub fn remote_backend(
    py: Python<'_>,
    entry_point: Option<&str>,
    spec: KernelSpec,
    info: &'static OperationInfo,
) -> PyResult<KernelEntry> {
    let source = format!("backend:{}", entry_point.unwrap_or(&spec.backend));
    remote(py, &source, spec, info)
}

/// Whether a kernel's tensors can be passed to a worker process.
pub fn supports_worker(spec: &KernelSpec) -> bool {
    spec.platform == Platform::Cpu
}

/// A kernel in a worker that loads `source`; the first call starts the worker.
pub fn remote(
    py: Python<'_>,
    source: &str,
    spec: KernelSpec,
    info: &'static OperationInfo,
) -> PyResult<KernelEntry> {
    let known = |all: &[WorkerEntry]| -> Option<Worker> {
        let same = |known: &&WorkerEntry| known.backend == spec.backend && known.source == source;
        all.iter().filter(same).find_map(|known| known.worker.upgrade())
    };
    if let Some(worker) = known(&workers()) {
        return Ok(worker.kernel(spec, info));
    }
    // The list is not locked meanwhile: if a thread released the GIL while it holds the lock and another
    // thread forked, the lock would stay locked in the child.
    let started = start(py, &spec.backend, source)?;
    let mut all = workers();
    let worker = known(&all).unwrap_or_else(|| {
        all.retain(|known| known.worker.upgrade().is_some());
        let (backend, source, worker) = (spec.backend.clone(), source.to_owned(), started.downgrade());
        all.push(WorkerEntry { backend, source, worker });
        started
    });
    drop(all);
    Ok(worker.kernel(spec, info))
}

fn start(py: Python<'_>, backend: &str, source: &str) -> PyResult<Worker> {
    let (program, environment) = interpreter(py)?;
    let mut options =
        settings::options(engine()?, Some(program)).map_err(|reason| configuration(py, backend, reason))?;
    if source.starts_with("definition:") {
        options.runs_in = "a worker process, as every reference of an imported definition".to_owned();
    }
    for argument in ["-m", "layerzero._worker", source] {
        options = options.argument(argument);
    }
    options.environment.push(environment);
    Worker::on_demand(options).map_err(|reason| configuration(py, backend, reason))
}

/// The interpreter of this process, and the variable with which a worker can import what this process can.
fn interpreter(py: Python<'_>) -> PyResult<(PathBuf, (OsString, OsString))> {
    let sys = py.import("sys")?;
    let program: PathBuf = sys.getattr("executable")?.extract()?;
    let path: Vec<OsString> = sys.getattr("path")?.extract()?;
    let path = std::env::join_paths(path.iter().filter(|folder| !folder.is_empty())).map_err(|error| {
        PyRuntimeError::new_err(format!("sys.path cannot be passed to the worker: {error}"))
    })?;
    Ok((program, ("PYTHONPATH".into(), path)))
}

/// Makes this interpreter the worker program of isolated plugins, because a wheel has no `lz-worker`.
pub fn use_interpreter_for_plugins(py: Python<'_>) -> PyResult<()> {
    let (program, environment) = interpreter(py)?;
    // An embedded interpreter may have no program.
    if !program.as_os_str().is_empty() {
        let arguments = ["-m", "layerzero._plugin_worker"].map(OsString::from).to_vec();
        settings::set_own_program(program, arguments, vec![environment]);
    }
    Ok(())
}

/// Serves a native plugin, in a process that a host has started, with the arguments of `lz-worker`. Does not return while the
/// host lives.
#[pyfunction]
fn serve_plugin(py: Python<'_>, arguments: Vec<OsString>) -> PyResult<()> {
    py.detach(|| lz_worker::program::run(arguments)).map_err(PyErr::from)
}

/// Every worker of this process: backend, source, process id while it runs, and number of starts.
#[pyfunction]
fn list_workers() -> Vec<(String, String, Option<i32>, u64)> {
    let all = workers();
    let rows = all.iter().filter_map(|known| {
        let worker = known.worker.upgrade()?;
        Some((known.backend.clone(), known.source.clone(), worker.process_id(), worker.starts()))
    });
    rows.collect()
}

/// Removes the workers of a backend, so that kernels registered from now on start others.
pub fn remove_workers(backend: &str) {
    workers().retain(|known| known.backend != backend);
}

/// Loads a native plugin that the operator allows: its backend, its kernels, and its worker process if it
/// runs in one.
#[pyfunction]
fn load_plugin(py: Python<'_>, path: PathBuf) -> PyResult<(String, Vec<String>, Option<String>)> {
    let engine = engine()?;
    // SAFETY: the operator's settings list what may be loaded, and the caller requests it.
    let loaded = py.detach(|| unsafe { lz_worker::plugins::load(engine, &path) });
    let loaded = loaded.map_err(|error| raise(py, &error))?;
    Ok((loaded.backend, loaded.kernels, loaded.runs_in))
}

/// Serves the kernels that `load` registers, in a process that a host has started; `invoke` calls a function
/// with tensor descriptions. Does not return while the host lives.
#[pyfunction]
fn serve_worker(py: Python<'_>, load: Py<PyAny>, invoke: Py<PyAny>) -> PyResult<()> {
    let offer = move || {
        Python::attach(|py| {
            load.call0(py).map_err(|error| error.to_string())?;
            let registry = engine().map_err(|error| error.to_string())?.registry();
            let mut kernels = Vec::new();
            for entry in registry.kernels() {
                let (true, Some(info)) =
                    (PythonKernel::of(entry).is_some(), registry.operation(&entry.spec.operation))
                else {
                    continue;
                };
                let kernel = Served {
                    entry: entry.clone(),
                    invoke: invoke.clone_ref(py),
                    info,
                    tokenizers: Mutex::default(),
                };
                kernels.push(KernelEntry::new((*entry.spec).clone(), kernel).of(info));
            }
            Ok(WorkerKernels { descriptor: String::new(), kernels })
        })
    };
    py.detach(|| serve(offer)).map_err(PyErr::from)
}

/// A function that serves the host's calls.
struct Served {
    /// The kernel, a [`PythonKernel`].
    entry: KernelEntry,
    invoke: Py<PyAny>,
    info: &'static OperationInfo,
    /// The last tokenizer, as a Python object.
    tokenizers: Mutex<Option<Py<PyTokenizer>>>,
}

impl Kernel for Served {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn run(
        &self,
        args: &mut [Arg<'_>],
        outputs: &mut [OutArg<'_>],
        _run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        Python::attach(|py| self.call(py, args, outputs).map_err(|error| failure(py, &error)))
    }
}

/// Converts an exception to a failure of the call.
fn failure(py: Python<'_>, error: &PyErr) -> KernelError {
    if error.is_instance_of::<PyKeyboardInterrupt>(py) {
        // The terminal interrupts this process too; in the host the interruption ends the call.
        return KernelError::environment("the worker process was interrupted");
    }
    let failure = failure_of(py, error);
    // Any other exception that is not an `Exception` was raised by the kernel.
    if failure.cause == Cause::Caller { KernelError::failed(error.to_string()) } else { failure }
}

impl Served {
    fn call(&self, py: Python<'_>, args: &mut [Arg<'_>], outputs: &mut [OutArg<'_>]) -> PyResult<()> {
        let schema = self.info.schema();
        let Some(hosted) = PythonKernel::of(&self.entry) else {
            return Err(PyRuntimeError::new_err(format!("{} is not a Python function", self.entry.spec.id)));
        };
        let order = signature_order(schema);
        let is_given = |at: &usize| args.get(*at).is_some_and(|arg| !matches!(arg, Arg::Absent));
        let inputs = PyList::empty(py);
        for &at in hosted.taken(py, &order, is_given)? {
            inputs.append(self.input(py, args.get(at).unwrap_or(&Arg::Absent))?)?;
        }
        let params = PyDict::new(py);
        for (param, arg) in schema.kernel_params().zip(args.iter().skip(schema.inputs.len())) {
            let Arg::Value(value) = arg else { continue };
            match (value, &param.ty) {
                (Value::Int(value), _) => params.set_item(&param.name, value)?,
                (Value::Float(value), _) => params.set_item(&param.name, value)?,
                (Value::Bool(value), _) => params.set_item(&param.name, value)?,
                (Value::Enum(case), ParamType::Enum(cases)) => {
                    params.set_item(&param.name, cases.get(*case as usize))?;
                }
                (Value::Enum(_), _) => {}
            }
        }
        let out = PyList::empty(py);
        for output in outputs.iter() {
            match output {
                OutArg::Tensor(tensor) => out.append(tensor_description(py, &tensor.as_view())?)?,
                OutArg::Absent | OutArg::Dynamic(_) | OutArg::Text(_) => out.append(py.None())?,
            }
        }
        let named = schema.outputs.iter().zip(outputs.iter());
        let expected: Vec<Option<&str>> = named
            .map(|(output, slot)| (!matches!(slot, OutArg::Absent)).then_some(output.name.as_str()))
            .collect();
        let function = hosted.find(py)?;
        let results =
            self.invoke.bind(py).call1((function, inputs, params, out, expected, hosted.takes_out()))?;
        for ((output, result), stated) in outputs.iter_mut().zip(results.try_iter()?).zip(&schema.outputs) {
            let result = result?;
            match output {
                OutArg::Dynamic(slot) => **slot = Some(to_owned_tensor(&result, stated)?),
                OutArg::Text(slot) => **slot = Some(result.extract()?),
                OutArg::Absent | OutArg::Tensor(_) => {}
            }
        }
        Ok(())
    }

    fn input<'py>(&self, py: Python<'py>, arg: &Arg<'_>) -> PyResult<Bound<'py, PyAny>> {
        match arg {
            Arg::Tensor(view) => Ok(tensor_description(py, view)?.into_any()),
            Arg::TensorMut(tensor) => Ok(tensor_description(py, &tensor.as_view())?.into_any()),
            Arg::Text(texts) => Ok(PyList::new(py, *texts)?.into_any()),
            Arg::Handle(handle) => {
                let mut last = self.tokenizers.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(known) = last.as_ref().filter(|known| known.get().is(handle.digest())) {
                    return Ok(known.bind(py).clone().into_any());
                }
                let json = Tokenizer::from_handle(*handle)
                    .map_err(|error| PyRuntimeError::new_err(error.to_string()))?
                    .json();
                let tokenizer = Py::new(py, PyTokenizer::from_bytes(json)?)?;
                Ok(last.insert(tokenizer).bind(py).clone().into_any())
            }
            Arg::Absent | Arg::Value(_) => Ok(py.None().into_bound(py)),
        }
    }
}

/// The description from which Python creates a tensor without a copy: memory, dtype, sizes, strides, and the
/// offset of index 0, the last two in elements.
fn tensor_description<'py>(py: Python<'py>, view: &TensorView<'_>) -> PyResult<Bound<'py, PyTuple>> {
    let layout = view.layout();
    let (lowest, highest) = layout.reach().unwrap_or((0, -1));
    let size = layout.dtype.size();
    let count = usize::try_from(highest - lowest + 1).unwrap_or(0);
    let data = view.as_ptr().wrapping_offset(lowest as isize * size as isize);
    // SAFETY: the memory lives until the call is answered; objects created from it do not outlive the call,
    // unless they break the same contract that holds in the host.
    let memory = unsafe {
        let memory = ffi::PyMemoryView_FromMemory(
            data.cast_mut().cast(),
            (count * size) as ffi::Py_ssize_t,
            ffi::PyBUF_WRITE,
        );
        Bound::from_owned_ptr_or_err(py, memory)?.cast_into::<PyMemoryView>()?
    };
    let (shape, strides) = (PyTuple::new(py, layout.shape.iter())?, PyTuple::new(py, layout.strides.iter())?);
    PyTuple::new(
        py,
        [
            memory.into_any(),
            layout.dtype.long_name().into_pyobject(py)?.into_any(),
            shape.into_any(),
            strides.into_any(),
            (-lowest).into_pyobject(py)?.into_any(),
        ],
    )
}

/// Copies a function's result to an owned tensor. Its dtype and rank must be those of the schema.
fn to_owned_tensor(object: &Bound<'_, PyAny>, stated: &Output) -> PyResult<Tensor> {
    let wrong = |text: String| PyRuntimeError::new_err(text);
    let import = BorrowedTensor::new(object.as_borrowed()).map_err(|problem| match problem {
        Problem::Python(error) => error,
        Problem::Reason(reason) => wrong(reason.to_string()),
    })?;
    let view = import.view();
    let rank = stated.shape.all().first().map_or(0, Vec::len);
    let states = |dtype: &DTypeRef| !matches!(dtype, DTypeRef::Fixed(dtype) if *dtype != view.dtype());
    if view.shape().len() != rank || !stated.dtype.all().iter().any(states) {
        return Err(wrong(format!(
            "the kernel's result `{}` has {} dimensions of {}, which differs from the schema",
            stated.name,
            view.shape().len(),
            view.dtype().long_name()
        )));
    }
    let mut tensor = Tensor::zeros(view.shape(), view.dtype()).map_err(|reason| wrong(reason.to_string()))?;
    let mut to = tensor.view_mut();
    let (bits, mut written) = (view.bits(), to.bits_mut());
    for index in lz_core::tensor::Indices::new(view.shape()) {
        written.set_int(&index, bits.int_at(&index));
    }
    Ok(tensor)
}

/// Adds the functions.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    lz_worker::set_interrupt_check(interrupt::check_signals);
    module.add_function(wrap_pyfunction!(list_workers, module)?)?;
    module.add_function(wrap_pyfunction!(load_plugin, module)?)?;
    module.add_function(wrap_pyfunction!(serve_plugin, module)?)?;
    module.add_function(wrap_pyfunction!(serve_worker, module)?)
}
