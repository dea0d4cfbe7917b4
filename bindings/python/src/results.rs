//! Checks results of Python kernels against the schema before the caller gets them: a mismatch is a failure
//! of the kernel.

use lz_core::check::OutputSpec;
use lz_core::tensor::Dims;
use lz_core::{DType, KernelError, Reason, ReasonCode, TensorView};
use lz_schema::model::{DTypeRef, Kind as OutputKind, Output};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::call::Frame;
use crate::output::returned;
use crate::tensor::{BorrowGuard, BorrowedTensor, Kind, Problem};

/// The expected value of one output.
#[derive(Clone, Copy)]
pub enum ExpectedOutput {
    /// This call does not produce it.
    Absent,
    /// A tensor of these sizes.
    Tensor(Dims, DType),
    /// A tensor or strings whose size the kernel determines.
    Dynamic,
}

impl ExpectedOutput {
    /// An output whose size the kernel determines, if the call produces it.
    pub fn dynamic(produced: bool) -> ExpectedOutput {
        if produced { ExpectedOutput::Dynamic } else { ExpectedOutput::Absent }
    }
}

impl From<Option<(Dims, DType)>> for ExpectedOutput {
    fn from(spec: Option<(Dims, DType)>) -> ExpectedOutput {
        spec.map_or(ExpectedOutput::Absent, |(sizes, dtype)| ExpectedOutput::Tensor(sizes, dtype))
    }
}

impl From<&OutputSpec> for ExpectedOutput {
    fn from(spec: &OutputSpec) -> ExpectedOutput {
        match spec {
            OutputSpec::Absent => ExpectedOutput::Absent,
            OutputSpec::Tensor(sizes, dtype) => ExpectedOutput::Tensor(*sizes, *dtype),
            OutputSpec::Dynamic(_) | OutputSpec::Text => ExpectedOutput::Dynamic,
        }
    }
}

/// Checks the results of a kernel and returns them as the caller gets them: `None`, the only result, or a
/// tuple.
pub fn check_results<'py>(
    frame: &Frame<'_, 'py>,
    expected: &[ExpectedOutput],
    result: Bound<'py, PyAny>,
) -> Result<Bound<'py, PyAny>, KernelError> {
    let outputs = frame.operation.schema().outputs.iter().zip(expected);
    let mut produced = outputs.filter(|(_, expected)| !matches!(expected, ExpectedOutput::Absent));
    let Some(first) = produced.next() else {
        // An operation without outputs returns `None`, whatever its kernel returns.
        return Ok(frame.py.None().into_bound(frame.py));
    };
    let Some(second) = produced.next() else {
        let only = match result.cast::<PyTuple>() {
            Ok(tuple) if tuple.len() == 1 => tuple.get_item(0).map_err(unreadable)?,
            _ => result,
        };
        check(frame, first, &only)?;
        return Ok(only);
    };
    let expected: Vec<_> = [first, second].into_iter().chain(produced).collect();
    let results: Vec<Bound<'py, PyAny>> = if let Ok(tuple) = result.cast::<PyTuple>() {
        tuple.iter().collect()
    } else if let Ok(list) = result.cast::<PyList>() {
        list.iter().collect()
    } else {
        vec![result]
    };
    if results.len() != expected.len() {
        let names: Vec<&str> = expected.iter().map(|(output, _)| output.name.as_str()).collect();
        let reason = Reason::new(ReasonCode::KernelFailed)
            .required(format!("{} results of the kernel ({})", expected.len(), names.join(", ")))
            .found(results.len().to_string());
        return Err(KernelError::because(reason));
    }
    for (one, result) in expected.into_iter().zip(&results) {
        check(frame, one, result)?;
    }
    returned(frame.py, results).map_err(unreadable)
}

fn check(
    frame: &Frame<'_, '_>,
    (output, expected): (&Output, &ExpectedOutput),
    result: &Bound<'_, PyAny>,
) -> Result<(), KernelError> {
    let mismatch = |required: String, found: String| {
        let reason = Reason::new(ReasonCode::KernelFailed)
            .argument(format!("the kernel's result `{}`", output.name))
            .required(required)
            .found(found);
        Err(KernelError::because(reason))
    };
    if output.kind == OutputKind::Text {
        return match result.extract::<Vec<String>>() {
            Ok(_) => Ok(()),
            Err(_) => mismatch("a list of str".to_owned(), type_of(result)),
        };
    }
    let (like, kind, device) = frame.like();
    let mut described = Described::of(result);
    match expected {
        ExpectedOutput::Absent => Ok(()),
        ExpectedOutput::Dynamic => {
            let rank = output.shape.all().first().map_or(0, Vec::len);
            let dtype = output.dtype.all().iter().find_map(|one| match one {
                DTypeRef::Fixed(dtype) => Some(*dtype),
                _ => None,
            });
            // Without numpy such results are lists of numbers.
            if rank == 1 && result.extract::<Vec<i64>>().is_ok() && result.is_instance_of::<PyList>() {
                return Ok(());
            }
            let fits = |view: &TensorView<'_>| {
                dtype.is_none_or(|dtype| view.dtype() == dtype) && view.shape().len() == rank
            };
            match &described {
                Ok(found) if fits(&found.import.view()) => Ok(()),
                found => {
                    let dtype = dtype.map_or("any dtype", DType::long_name);
                    mismatch(format!("a tensor of {dtype} with {rank} dimensions"), text(found, result))
                }
            }
        }
        ExpectedOutput::Tensor(sizes, dtype) => {
            if let Ok(found) = &mut described {
                found.import.nibbles(*dtype == DType::F4E2M1x2);
            }
            let fits = |found: &Described| {
                let view = found.import.view();
                view.dtype() == *dtype
                    && view.shape() == &**sizes
                    && view.device() == device
                    && (like.is_none() || found.kind == kind)
            };
            match &described {
                Ok(found) if fits(found) => Ok(()),
                found => {
                    let kind = if like.is_some() { kind.name() } else { "a tensor" };
                    let required = format!("{kind} of {} {:?} on {device}", dtype.long_name(), &**sizes);
                    mismatch(required, text(found, result))
                }
            }
        }
    }
}

/// A result as a tensor.
struct Described {
    import: BorrowedTensor,
    kind: Kind,
}

impl Described {
    fn of(result: &Bound<'_, PyAny>) -> Result<Described, Problem> {
        let mut import = BorrowedTensor::EMPTY;
        let (tensor, guard) = import.parts();
        // SAFETY: the view describes the object's own memory, which is only read.
        let view = unsafe { tensor.description() };
        match guard.fill(result.as_borrowed(), view) {
            Ok(()) => {
                let kind = guard.kind;
                Ok(Described { import, kind })
            }
            // A kernel may capture tensors that require a gradient; its result may require one then.
            Err(problem) => match result.getattr("requires_grad").and_then(|grad| grad.extract::<bool>()) {
                Ok(true) => {
                    let detached = result.call_method0("detach")?;
                    *guard = BorrowGuard::EMPTY;
                    guard.fill(detached.as_borrowed(), view)?;
                    let kind = guard.kind;
                    Ok(Described { import, kind })
                }
                _ => Err(problem),
            },
        }
    }
}

fn text(found: &Result<Described, Problem>, result: &Bound<'_, PyAny>) -> String {
    match found {
        Ok(found) => {
            let view = found.import.view();
            let (kind, dtype) = (found.kind.name(), view.dtype().long_name());
            format!("{kind} of {dtype} {:?} on {}", view.shape(), view.device())
        }
        Err(Problem::Reason(reason)) => format!("{} ({})", type_of(result), reason.sentence()),
        Err(Problem::Python(error)) => format!("{} ({error})", type_of(result)),
    }
}

fn type_of(result: &Bound<'_, PyAny>) -> String {
    result.get_type().fully_qualified_name().map_or_else(|_| "an object".to_owned(), |name| name.to_string())
}

fn unreadable(error: PyErr) -> KernelError {
    KernelError::failed(format!("the kernel's results cannot be read: {error}"))
}

/// Refuses a result that differs in kind, dtype, sizes or device from the tensor that it is copied into.
#[pyfunction]
fn check_result(name: &str, result: &Bound<'_, PyAny>, target: &Bound<'_, PyAny>) -> PyResult<()> {
    let (found, expected) = (Described::of(result), Described::of(target));
    if let (Ok(found), Ok(expected)) = (&found, &expected) {
        let (a, b) = (found.import.view(), expected.import.view());
        if found.kind == expected.kind
            && a.dtype() == b.dtype()
            && a.shape() == b.shape()
            && a.device() == b.device()
        {
            return Ok(());
        }
    }
    let message = format!(
        "the kernel's result `{name}`: requires {}, found {}",
        text(&expected, target),
        text(&found, result)
    );
    Err(PyTypeError::new_err(message))
}

/// Adds the functions.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(check_result, module)?)
}
