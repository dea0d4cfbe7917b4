//! Engine errors as Python exceptions with `Reason` objects.

use pyo3::exceptions::{PyAttributeError, PyException, PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple, PyType};

use lz_core::{Error, Reason, ReasonCode};

/// What pickle stores: the class, and code, argument, axis, required, found and message.
type Reduced<'py> = (Bound<'py, PyType>, ReasonParts);
type ReasonParts = (&'static str, Option<String>, Option<String>, Option<String>, Option<String>, String);

/// One reason.
#[pyclass(name = "Reason", module = "layerzero", frozen, get_all)]
#[derive(Clone)]
pub struct PyReason {
    code: &'static str,
    argument: Option<String>,
    axis: Option<String>,
    required: Option<String>,
    found: Option<String>,
    message: String,
}

#[pymethods]
impl PyReason {
    /// For pickle and copies.
    #[new]
    fn new(
        code: &str,
        argument: Option<String>,
        axis: Option<String>,
        required: Option<String>,
        found: Option<String>,
        message: String,
    ) -> PyResult<PyReason> {
        Ok(PyReason { code: parse_code(code)?.as_str(), argument, axis, required, found, message })
    }

    fn __reduce__<'py>(slf: &Bound<'py, PyReason>) -> Reduced<'py> {
        let PyReason { code, argument, axis, required, found, message } = slf.get().clone();
        (slf.get_type(), (code, argument, axis, required, found, message))
    }

    fn __repr__(&self) -> String {
        format!("Reason({}: {})", self.code, self.message)
    }
}

impl From<&Reason> for PyReason {
    fn from(reason: &Reason) -> PyReason {
        PyReason {
            code: reason.code.as_str(),
            argument: reason.argument.clone(),
            axis: reason.axis.clone(),
            required: reason.required.clone(),
            found: reason.found.clone(),
            message: reason.sentence(),
        }
    }
}

/// A reason for errors that are raised in Python.
#[pyfunction]
fn reason(code: &str, message: &str) -> PyResult<PyReason> {
    Ok(PyReason::from(&Reason::new(parse_code(code)?).message(message)))
}

fn parse_code(code: &str) -> PyResult<ReasonCode> {
    ReasonCode::parse(code).ok_or_else(|| PyValueError::new_err(format!("`{code}` is not a reason code")))
}

struct Exceptions {
    base: Py<PyType>,
    validation: Py<PyType>,
    no_kernel: Py<PyType>,
    graph: Py<PyType>,
    execution: Py<PyType>,
    configuration: Py<PyType>,
    import: Py<PyType>,
    unknown_operation: Py<PyType>,
}

static EXCEPTIONS: PyOnceLock<Exceptions> = PyOnceLock::new();

fn exceptions(py: Python<'_>) -> PyResult<&'static Exceptions> {
    EXCEPTIONS.get_or_try_init(py, || {
        let exception = py.get_type::<PyException>();
        let make = |name: &str, doc: &str, bases: Bound<'_, PyTuple>| -> PyResult<Py<PyType>> {
            let namespace = PyDict::new(py);
            namespace.set_item("__module__", "layerzero")?;
            namespace.set_item("__doc__", doc)?;
            // `KeyError` would print the repr of the message.
            namespace.set_item("__str__", exception.getattr("__str__")?)?;
            let ty = py.get_type::<PyType>().call1((name, bases, namespace))?;
            Ok(ty.cast_into::<PyType>()?.unbind())
        };
        let base = make(
            "LayerZeroError",
            "Base class of LayerZero's errors; `.reasons` lists the causes.",
            PyTuple::new(py, [exception.clone()])?,
        )?;
        let bound = base.bind(py).clone();
        let value_error = py.get_type::<PyValueError>();
        let configuration = make(
            "ConfigurationError",
            "A schema, policy or descriptor is invalid.",
            PyTuple::new(py, [bound.clone(), value_error.clone()])?,
        )?;
        let unknown_bases =
            [configuration.bind(py).clone(), py.get_type::<PyKeyError>(), py.get_type::<PyAttributeError>()];
        Ok(Exceptions {
            unknown_operation: make(
                "UnknownOperationError",
                "No operation or alias has this name.",
                PyTuple::new(py, unknown_bases)?,
            )?,
            configuration,
            validation: make(
                "ValidationError",
                "The arguments of a call are invalid.",
                PyTuple::new(py, [bound.clone(), value_error.clone()])?,
            )?,
            no_kernel: make(
                "NoKernelFoundError",
                "No kernel can run the call.",
                PyTuple::new(py, [bound.clone()])?,
            )?,
            graph: make(
                "CudaGraphUnsafeError",
                "No kernel is known to be safe inside a CUDA graph capture.",
                PyTuple::new(py, [bound.clone()])?,
            )?,
            execution: make(
                "KernelExecutionError",
                "A kernel ran and failed.",
                PyTuple::new(py, [bound.clone()])?,
            )?,
            import: make(
                "GraphImportError",
                "A model cannot be imported as a graph.",
                PyTuple::new(py, [bound, value_error])?,
            )?,
            base,
        })
    })
}

/// Adds the exception classes and `Reason`.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add_function(wrap_pyfunction!(reason, module)?)?;
    let all = exceptions(py)?;
    module.add("LayerZeroError", &all.base)?;
    module.add("ValidationError", &all.validation)?;
    module.add("NoKernelFoundError", &all.no_kernel)?;
    module.add("CudaGraphUnsafeError", &all.graph)?;
    module.add("KernelExecutionError", &all.execution)?;
    module.add("ConfigurationError", &all.configuration)?;
    module.add("GraphImportError", &all.import)?;
    module.add("UnknownOperationError", &all.unknown_operation)?;
    module.add_class::<PyReason>()
}

/// The exception for an engine error.
#[cold]
pub fn raise(py: Python<'_>, error: &Error) -> PyErr {
    // A signal handler raised while the call waited: the caller gets that exception.
    if let Some(raised) = crate::interrupt::take_signal_exception() {
        return raised;
    }
    let build = || -> PyResult<PyErr> {
        let all = exceptions(py)?;
        let class = match error {
            Error::Validation { .. } => &all.validation,
            Error::NoKernel { .. } | Error::Locked { .. } => &all.no_kernel,
            Error::CudaGraphUnsafe { .. } => &all.graph,
            Error::KernelExecution { .. } => &all.execution,
            Error::UnknownOperation { .. } => &all.unknown_operation,
            Error::Configuration { .. } => &all.configuration,
        };
        let value = class.bind(py).call1((error.to_string(),))?;
        let reasons: Vec<PyReason> = error.reasons().into_iter().map(PyReason::from).collect();
        value.setattr("reasons", reasons)?;
        Ok(PyErr::from_value(value))
    };
    build().unwrap_or_else(|error| error)
}

/// An error of the system with what it is about: the path of a file, or an address.
#[cold]
pub fn system_error(subject: impl std::fmt::Display, error: &std::io::Error) -> PyErr {
    std::io::Error::new(error.kind(), format!("{subject}: {error}")).into()
}

/// The error of a model that cannot be imported.
#[cold]
pub fn graph_import_error(py: Python<'_>, message: &str) -> PyErr {
    let build = || -> PyResult<PyErr> {
        let value = exceptions(py)?.import.bind(py).call1((message,))?;
        value.setattr("reasons", Vec::<PyReason>::new())?;
        Ok(PyErr::from_value(value))
    };
    build().unwrap_or_else(|error| error)
}

/// Whether the error is a `NoKernelFoundError`.
#[cold]
pub fn is_no_kernel(py: Python<'_>, error: &PyErr) -> bool {
    exceptions(py).is_ok_and(|all| error.is_instance(py, all.no_kernel.bind(py)))
}

/// A `ValidationError` for an argument, raised before the engine sees the call.
#[cold]
pub fn validation_error(py: Python<'_>, operation: &str, reason: Reason) -> PyErr {
    let reasons = vec![reason];
    lz_core::check::count_errors(&reasons);
    raise(py, &Error::Validation { operation: operation.to_owned(), reasons })
}

/// The error for a failure before the engine sees the call.
#[cold]
pub fn raise_kernel(
    py: Python<'_>,
    operation: &lz_core::OperationInfo,
    error: lz_core::KernelError,
) -> PyErr {
    validation_error(py, &operation.name, error.reason)
}
