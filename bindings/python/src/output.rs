//! Output allocation: outputs are the caller's `out=`, or are allocated by the caller's own library (torch,
//! numpy, …).

use lz_core::check::replace_inputs;
use lz_core::tensor::{Device, Dims};
use lz_core::{Arg, Cause, DType, Error, KernelError, Reason, ReasonCode, Tensor, TensorMut, TensorView};
use pyo3::Borrowed;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use crate::call::Frame;
use crate::error::validation_error;
use crate::tensor::{
    BorrowGuard, Kind, Problem, buffer, describe_contiguous, is_common_tensor, numpy, torch,
};
use crate::vectorcall::Argument;

/// The tensors of `out=`, one per output that the caller passed.
pub enum Out<'a, 'py> {
    /// No `out=`.
    Nothing,
    /// One tensor.
    One(Borrowed<'a, 'py, PyAny>),
    /// Its tensor was taken.
    Done,
    /// A tuple or list of tensors, in the order of the outputs.
    Several(Vec<Bound<'py, PyAny>>, usize),
}

impl<'a, 'py> Out<'a, 'py> {
    /// From `out=`.
    #[inline]
    pub fn new(out: Argument<'a, 'py>) -> Out<'a, 'py> {
        let Some(out) = out else { return Out::Nothing };
        if is_common_tensor(out) {
            return Out::One(out);
        }
        if let Ok(tuple) = out.cast::<PyTuple>() {
            return Out::Several(tuple.iter().collect(), 0);
        }
        if let Ok(list) = out.cast::<PyList>() {
            return Out::Several(list.iter().collect(), 0);
        }
        Out::One(out)
    }

    /// Whether the caller passed `out=`.
    #[inline]
    pub fn is_given(&self) -> bool {
        !matches!(self, Out::Nothing)
    }

    /// The next tensor.
    #[inline]
    pub fn take(&mut self) -> Option<Bound<'py, PyAny>> {
        match self {
            Out::Nothing | Out::Done => None,
            Out::One(object) => {
                let object = object.to_owned();
                *self = Out::Done;
                Some(object)
            }
            Out::Several(objects, next) => {
                let object = objects.get(*next).cloned();
                *next += 1;
                object
            }
        }
    }

    /// Refuses tensors that no output took.
    #[inline]
    pub fn finish(&self, frame: &Frame<'_, '_>) -> PyResult<()> {
        let (taken, given) = match self {
            Out::Nothing | Out::Done => return Ok(()),
            Out::One(_) => (0, 1),
            Out::Several(objects, next) => (*next, objects.len()),
        };
        if taken == given {
            return Ok(());
        }
        let reason = Reason::new(ReasonCode::OutputUnexpected)
            .argument("out")
            .required(format!("{taken} tensors"))
            .found(given.to_string());
        Err(validation_error(frame.py, &frame.operation.name, reason))
    }
}

/// The output slot of one output: the object that is returned, and its borrow. The caller of the methods
/// holds the view of its memory.
pub struct OutputSlot<'py> {
    object: Option<Bound<'py, PyAny>>,
    guard: BorrowGuard,
}

impl<'py> OutputSlot<'py> {
    /// Not allocated yet.
    pub const EMPTY: OutputSlot<'py> = OutputSlot { object: None, guard: BorrowGuard::EMPTY };

    /// Takes the caller's `out=` tensor for this output.
    #[inline]
    pub fn take(
        &mut self,
        frame: &mut Frame<'_, 'py>,
        out: &mut Out<'_, 'py>,
        name: &'static str,
        tensor: &mut TensorMut<'_>,
    ) -> PyResult<()> {
        let Some(object) = out.take() else { return Err(missing(frame, name)) };
        frame.output(name, object.as_borrowed(), tensor, &mut self.guard)?;
        self.object = Some(object);
        Ok(())
    }

    /// Allocates this output with the caller's library, unless the call does not produce it.
    #[inline]
    pub fn allocate(
        &mut self,
        frame: &mut Frame<'_, 'py>,
        spec: Option<(Dims, DType)>,
        tensor: &mut TensorMut<'_>,
    ) -> Result<(), KernelError> {
        let Some((sizes, dtype)) = spec else { return Ok(()) };
        match allocate(frame, &sizes, dtype, tensor, &mut self.guard) {
            Ok(object) => {
                frame.count(tensor.elements());
                self.object = Some(object);
                Ok(())
            }
            Err(Problem::Python(error)) => Err(frame.unallocated(error)),
            Err(Problem::Reason(reason)) => {
                Err(KernelError::because(*reason).cause(Cause::Environment).before_writing())
            }
        }
    }

    /// Releases the output of an earlier run of the same call.
    pub fn release(&mut self, frame: &mut Frame<'_, 'py>, tensor: &TensorMut<'_>) {
        if self.is_present() {
            frame.count(-tensor.elements());
            *self = OutputSlot::EMPTY;
        }
    }

    /// Whether the output exists: some calls do not produce it.
    #[inline]
    pub fn is_present(&self) -> bool {
        self.object.is_some()
    }

    /// The object that the caller gets.
    #[inline]
    pub fn into_object(self) -> Option<Bound<'py, PyAny>> {
        self.object
    }
}

/// Reinterprets bytes as packed 4-bit floats, if the output is declared as such.
pub fn nibbles(spec: Option<(Dims, DType)>, tensor: &mut TensorMut<'_>) {
    if spec.is_some_and(|(_, dtype)| dtype == DType::F4E2M1x2) {
        // SAFETY: the same memory with elements of the same size.
        unsafe { tensor.description() }.take_bytes_for_nibbles();
    }
}

#[cold]
fn missing(frame: &Frame<'_, '_>, name: &str) -> PyErr {
    let reason = Reason::new(ReasonCode::OutputMissing)
        .argument("out")
        .message(format!("out has no tensor for output {name}"));
    validation_error(frame.py, &frame.operation.name, reason)
}

fn allocate<'py>(
    frame: &Frame<'_, 'py>,
    sizes: &Dims,
    dtype: DType,
    tensor: &mut TensorMut<'_>,
    guard: &mut BorrowGuard,
) -> Result<Bound<'py, PyAny>, Problem> {
    let (like, kind, device) = frame.like();
    // SAFETY: the view describes newly allocated memory, which nothing else uses.
    let view = unsafe { tensor.description() };
    let object = match (kind, like) {
        (Kind::Torch, Some(like)) => {
            return torch::allocate(frame.py, sizes, dtype, like, device, view, guard);
        }
        (Kind::Buffer, _) => buffer::allocate(frame.py, sizes, dtype)?,
        (Kind::Other, Some(like)) => allocate_other(frame.py, sizes, dtype, like, device)?,
        _ => {
            let (object, data) = numpy::allocate(frame.py, sizes, dtype)?;
            describe_contiguous(view, data, sizes, dtype, Device::HOST);
            return Ok(object);
        }
    };
    guard.fill(object.as_borrowed(), view)?;
    if dtype == DType::F4E2M1x2 {
        view.take_bytes_for_nibbles();
    }
    Ok(object)
}

/// Allocates a tensor of another library: with `from_dlpack` of a numpy array on the host, else with its
/// module's `empty`.
fn allocate_other<'py>(
    py: Python<'py>,
    sizes: &Dims,
    dtype: DType,
    like: Borrowed<'_, 'py, PyAny>,
    device: Device,
) -> PyResult<Bound<'py, PyAny>> {
    let shape = PyTuple::new(py, sizes.iter())?;
    let module = match like.call_method0("__array_namespace__") {
        Ok(module) => module,
        Err(_) => {
            let name: String = like.get_type().getattr("__module__")?.extract()?;
            py.import(name.split('.').next().unwrap_or_default())?.into_any()
        }
    };
    if device.is_host()
        && let Ok(import) = module.getattr("from_dlpack")
        && let Ok((array, _)) = numpy::allocate(py, sizes, dtype)
    {
        return import.call1((array,));
    }
    let keywords = PyDict::new(py);
    keywords.set_item("dtype", module.getattr(dtype.long_name())?)?;
    module.call_method("empty", (shape,), Some(&keywords)).map_err(|error| {
        let text = format!("{module} cannot allocate the output; pass out=");
        let raised = PyTypeError::new_err(text);
        raised.set_cause(py, Some(error));
        raised
    })
}

/// Computes into new memory and copies the result into `out`, if the only problem is that `out` is an input.
#[cold]
pub fn compute_apart<'py>(
    frame: &mut Frame<'_, 'py>,
    error: &Error,
    args: &[Arg<'_>],
    outputs: &[TensorView<'_>],
    out: Argument<'_, 'py>,
    without_out: impl FnOnce() -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let Some(out) = out.filter(|_| replace_inputs(error, args, outputs)) else {
        return Err(frame.raise(error));
    };
    let result = without_out()?;
    // A plan has no result.
    if result.is_none() {
        return Ok(result);
    }
    copy_into(out, &result)?;
    returned_out(out)
}

/// The return value of a call with `out=`: the tensor, or a tuple of several.
pub fn returned_out<'py>(out: Borrowed<'_, 'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let mut given = Out::new(Some(out));
    returned(out.py(), std::iter::from_fn(|| given.take()))
}

/// A tensor whose size the kernel determines, as a numpy array; without numpy, as a list of numbers.
pub fn dynamic<'py>(py: Python<'py>, tensor: &Tensor) -> PyResult<Bound<'py, PyAny>> {
    if py.import("numpy").is_err() {
        let values: Vec<i64> =
            lz_core::tensor::Indices::new(tensor.shape()).map(|index| tensor.view().int_at(&index)).collect();
        return Ok(PyList::new(py, values)?.into_any());
    }
    let sizes = Dims::new(tensor.shape()).ok_or_else(|| PyTypeError::new_err("too many dimensions"))?;
    let (array, data) = numpy::allocate(py, &sizes, tensor.dtype())?;
    let bytes = tensor.bytes();
    // SAFETY: the array is new, dense, and of the same shape and dtype.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), data, bytes.len()) };
    Ok(array)
}

/// The return value of a function: `None`, the only output, or a tuple of outputs.
#[inline]
pub fn returned<'py>(
    py: Python<'py>,
    results: impl IntoIterator<Item = Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let mut results = results.into_iter();
    let Some(first) = results.next() else { return Ok(py.None().into_bound(py)) };
    let Some(second) = results.next() else { return Ok(first) };
    let all: Vec<_> = [first, second].into_iter().chain(results).collect();
    Ok(PyTuple::new(py, all)?.into_any())
}

/// Copies results into the caller's `out=`.
pub fn copy_into(out: Borrowed<'_, '_, PyAny>, result: &Bound<'_, PyAny>) -> PyResult<()> {
    let mut outputs = Out::new(Some(out));
    let results: Vec<Bound<'_, PyAny>> = match result.cast::<PyTuple>() {
        Ok(several) => several.iter().collect(),
        Err(_) => vec![result.clone()],
    };
    for one in results {
        let Some(output) = outputs.take() else {
            return Err(PyValueError::new_err("there are more results than out= has tensors"));
        };
        if output.hasattr("copy_")? {
            output.call_method1("copy_", (one,))?;
        } else {
            output.set_item(output.py().Ellipsis(), one)?;
        }
    }
    Ok(())
}
