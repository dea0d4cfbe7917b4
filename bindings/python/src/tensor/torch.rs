//! torch tensors. Inputs are borrowed through a C++ extension, if one was compiled for this torch, else through
//! the DLPack exchange API of their type; output allocation goes through torch's stable C ABI (`allocate`). Two kinds of tensors that the exchange API exports are refused, because a
//! kernel would compute a wrong result: views with the negative bit set, and tensors that require grad.

use std::ffi::{c_int, c_void};
use std::ptr;

use lz_core::device::Platform;
use lz_core::tensor::{Device, Dims};
use lz_core::{DType, Reason, ReasonCode, TensorView};
use pyo3::exceptions::{PyBufferError, PyRuntimeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{IntoPyDict, PyTuple, PyType};
use pyo3::{Borrowed, intern};

use super::layout::{DLPackExchangeAPI, DLTensor};
use super::{BorrowGuard, Kind, Problem, capsule, describe_contiguous, types};
use crate::private;

mod extension;
mod flags;
mod numbers;
mod reader;
mod stable;

use extension::Extension;
use flags::Flags;
use numbers::Numbers;
use reader::Reader;
use stable::Stable;
pub use stable::{Handle, TensorHandle, library, sibling_library};

/// DLPack's device type of CUDA.
const DL_CUDA: i32 = 2;

/// The outcome of reading a tensor.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    /// It is described.
    Described,
    /// It is a view with the negative bit set.
    Negated,
    /// It requires grad, and gradients are enabled in this thread.
    RequiresGrad,
    /// Not a strided tensor of the host or of a GPU; the DLPack exchange API reports what is wrong with it.
    Unusual,
}

impl Outcome {
    /// The result; `None` if the tensor must be read by the exchange API.
    #[inline]
    fn settle(self) -> Option<Result<(), Problem>> {
        match self {
            Outcome::Described => Some(Ok(())),
            Outcome::Negated => Some(Err(flags::negated_view())),
            Outcome::RequiresGrad => Some(Err(flags::requires_gradient())),
            Outcome::Unusual => None,
        }
    }
}

/// The functions of this process's torch.
struct Torch {
    exchange: Option<&'static DLPackExchangeAPI>,
    stable: Option<Stable>,
    extension: Option<Extension>,
    reader: Option<Reader>,
    flags: Flags,
}

// SAFETY: function tables that live as long as the library, which is never unloaded.
unsafe impl Send for Torch {}
// SAFETY: as above.
unsafe impl Sync for Torch {}

static TORCH: PyOnceLock<Torch> = PyOnceLock::new();

/// Registers torch's types and looks up its functions.
pub fn register(module: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = module.py();
    if TORCH.get(py).is_some() {
        return Ok(());
    }
    let tensor = module.getattr("Tensor")?.cast_into::<PyType>()?;
    let flags = Flags::find(module, &tensor)?;
    let mut stable = Stable::find(module);
    let numbers = stable.as_ref().and_then(|stable| Numbers::find(module, stable));
    let extension = match &numbers {
        Some(numbers) => Extension::find(module, numbers)?,
        None => None,
    };
    if let (Some(stable), Some(extension)) = (&mut stable, &extension) {
        stable.convert_by(extension.objects);
    }
    let reader = numbers.filter(|_| private::allowed()).and_then(|numbers| Reader::find(module, &numbers));
    let torch = Torch { exchange: exchange(&tensor)?, stable, extension, reader, flags };
    // Another thread may have been first; it found the same functions.
    TORCH.set(py, torch).ok();
    types::TENSOR.set(&tensor);
    types::PARAMETER.set(module.getattr("nn")?.getattr("Parameter")?.cast::<PyType>()?);
    Ok(())
}

/// The DLPack exchange API of a type, if it has one of a known version.
fn exchange(ty: &Bound<'_, PyType>) -> PyResult<Option<&'static DLPackExchangeAPI>> {
    let Ok(capsule) = ty.getattr("__dlpack_c_exchange_api__") else { return Ok(None) };
    // SAFETY: a capsule of this name holds this table, which lives as long as the type; the type is never
    // released.
    unsafe {
        let table = ffi::PyCapsule_GetPointer(capsule.as_ptr(), c"dlpack_exchange_api".as_ptr());
        if table.is_null() {
            ffi::PyErr_Clear();
            return Ok(None);
        }
        let mut table = table.cast::<DLPackExchangeAPI>().cast_const();
        while !table.is_null() && (*table).version.major != 1 {
            table = (*table).previous;
        }
        Ok(table.as_ref().filter(|table| table.borrow.is_some()))
    }
}

/// Borrows a tensor.
#[inline]
pub fn read(
    object: Borrowed<'_, '_, PyAny>,
    view: &mut TensorView<'_>,
    guard: &mut BorrowGuard,
) -> Result<(), Problem> {
    guard.kind = Kind::Torch;
    let Some(torch) = TORCH.get(object.py()) else { return capsule::read(object, Kind::Torch, view, guard) };
    if let Some(extension) = &torch.extension
        && types::is_plain_tensor(object)
    {
        // SAFETY: it has one of the two types.
        if let Some(result) = unsafe { extension.read(object, view) }.settle() {
            return result;
        }
    }
    read_by_functions(torch, object, view, guard)
}

/// Borrows a tensor without the C++ extension.
fn read_by_functions(
    torch: &Torch,
    object: Borrowed<'_, '_, PyAny>,
    view: &mut TensorView<'_>,
    guard: &mut BorrowGuard,
) -> Result<(), Problem> {
    if torch.is_grad_enabled(object.py())? {
        torch.flags.refuse_grad(object)?;
    }
    if let (Some(reader), Some(stable)) = (&torch.reader, &torch.stable)
        && let Some(result) = reader.read(stable, object, view).settle()
    {
        return result;
    }
    read_by_exchange(torch, object, view, guard)
}

/// Borrows a tensor through published functions only.
#[inline]
fn read_by_exchange(
    torch: &Torch,
    object: Borrowed<'_, '_, PyAny>,
    view: &mut TensorView<'_>,
    guard: &mut BorrowGuard,
) -> Result<(), Problem> {
    torch.flags.refuse_negated(object)?;
    let Some(borrow) = torch.exchange.and_then(|exchange| exchange.borrow) else {
        return read_by_capsule(object, view, guard);
    };
    let mut tensor = DLTensor::EMPTY;
    // SAFETY: the object is a tensor of the type that the function belongs to; it fills the structure, whose
    // pointers are valid while the caller holds the object.
    unsafe {
        if borrow(object.as_ptr().cast(), &raw mut tensor) != 0 {
            return Err(borrow_refused(object, PyErr::fetch(object.py())));
        }
        capsule::describe(&tensor, view)
    }
}

impl Torch {
    /// Whether autograd is enabled in this thread.
    #[inline]
    fn is_grad_enabled(&self, py: Python<'_>) -> PyResult<bool> {
        match &self.stable {
            Some(stable) => Ok(stable.grad_enabled()),
            None => self.flags.is_grad_enabled(py),
        }
    }
}

/// Names of the interfaces in use.
pub fn interfaces(py: Python<'_>) -> Vec<&'static str> {
    let Some(torch) = TORCH.get(py) else { return Vec::new() };
    let exchange = torch.exchange.map(|_| "exchange");
    let (stable, reader) = (torch.stable.as_ref().map(|_| "stable"), torch.reader.as_ref().map(|_| "is_neg"));
    let extension = torch.extension.as_ref().map(|_| "extension");
    [exchange, stable, reader, extension].into_iter().flatten().collect()
}

/// Borrows a tensor of a torch without the DLPack exchange API.
fn read_by_capsule(
    object: Borrowed<'_, '_, PyAny>,
    view: &mut TensorView<'_>,
    guard: &mut BorrowGuard,
) -> Result<(), Problem> {
    // torch exports no tensor that requires grad. Other tensors are not detached: that is an operation, which
    // torch modes intercept.
    let requires_grad = object.getattr(intern!(object.py(), "requires_grad"))?.is_truthy()?;
    let detached = if requires_grad { object.call_method0("detach")? } else { object.to_owned() };
    match capsule::read(detached.as_borrowed(), Kind::Torch, view, guard) {
        Err(Problem::Python(error)) if error.is_instance_of::<PyRuntimeError>(object.py()) => {
            return Err(borrow_refused(object, error));
        }
        done => done?,
    }
    // Before version 1.3 torch never marks an exported tensor as read-only.
    guard.read_only = false;
    Ok(())
}

#[cold]
fn borrow_refused(object: Borrowed<'_, '_, PyAny>, error: PyErr) -> Problem {
    let py = object.py();
    let nested = object.getattr("is_nested").and_then(|nested| nested.extract::<bool>()).unwrap_or(false);
    if nested {
        return Reason::new(ReasonCode::NestedTensorUnsupported).into();
    }
    // The first line describes the tensor; the others are a stack trace inside torch.
    let message = error.value(py).to_string();
    let first = message.lines().next().unwrap_or_default();
    capsule::export_refused(py, PyBufferError::new_err(first.to_owned()))
}

/// An AOTI handle that shares the tensor of an object. Nothing for objects of other types, and where torch's
/// stable C ABI cannot create one.
#[inline]
pub fn handle(object: Borrowed<'_, '_, PyAny>) -> Option<TensorHandle> {
    let is_plain = types::is_plain_tensor(object);
    TORCH.get(object.py())?.stable.as_ref().filter(|_| is_plain)?.handle(object)
}

/// A Python object that shares the tensor of an AOTI handle.
pub fn object_of<'py>(py: Python<'py>, tensor: &TensorHandle) -> PyResult<Bound<'py, PyAny>> {
    let stable = TORCH.get(py).and_then(|torch| torch.stable.as_ref());
    let object = stable.and_then(|stable| stable.object(py, tensor));
    object.ok_or_else(|| PyRuntimeError::new_err("torch returned no Python object for a tensor handle"))
}

/// torch's current stream, as the driver's handle.
pub fn stream(py: Python<'_>, device: Device) -> usize {
    let device_type = match device.platform {
        Platform::Cuda => DL_CUDA,
        Platform::Rocm => 10,
        _ => return 0,
    };
    let exchange = TORCH.get(py).and_then(|torch| torch.exchange);
    let mut stream = ptr::null_mut::<c_void>();
    // SAFETY: the function fills the pointer, or sets an exception.
    let is_known = exchange.and_then(|exchange| exchange.stream).is_some_and(|current| unsafe {
        current(device_type, c_int::from(device.index), &raw mut stream) == 0
    });
    if is_known {
        return stream as usize;
    }
    drop(PyErr::take(py));
    // A torch without that function has the stream as a Python attribute; one without a GPU has only the
    // default stream.
    stream_by_attribute(py, device.index).unwrap_or_default()
}

fn stream_by_attribute(py: Python<'_>, index: u16) -> PyResult<usize> {
    let stream = py.import("torch")?.getattr("cuda")?.call_method1("current_stream", (index,))?;
    stream.getattr("cuda_stream")?.extract()
}

/// The torch dtype object.
fn dtype_object(py: Python<'_>, dtype: DType) -> PyResult<Bound<'_, PyAny>> {
    static OBJECTS: [PyOnceLock<Py<PyAny>>; DType::ALL.len() + 1] =
        [const { PyOnceLock::new() }; DType::ALL.len() + 1];
    let find = || Ok::<_, PyErr>(py.import("torch")?.getattr(dtype.long_name())?.unbind());
    Ok(OBJECTS[dtype as usize].get_or_try_init(py, find)?.bind(py).clone())
}

/// Allocates an output as a torch tensor on a device and describes it; its memory is uninitialized.
pub fn allocate<'py>(
    py: Python<'py>,
    sizes: &Dims,
    dtype: DType,
    like: Borrowed<'_, 'py, PyAny>,
    device: Device,
    view: &mut TensorView<'_>,
    guard: &mut BorrowGuard,
) -> Result<Bound<'py, PyAny>, Problem> {
    guard.kind = Kind::Torch;
    let strides = sizes.contiguous_strides();
    if let Some(stable) = TORCH.get(py).and_then(|torch| torch.stable.as_ref())
        && let Some((object, data)) = stable.empty(py, sizes, &strides, dtype, device)
    {
        // In a torch mode that creates other tensors (FakeTensorMode) the result has another type, and is
        // read like any other object.
        if types::TENSOR.is(types::of(object.as_borrowed())) {
            describe_contiguous(view, data, sizes, dtype, device);
            return Ok(object);
        }
        guard.fill(object.as_borrowed(), view)?;
        return Ok(object);
    }
    // For a torch without the stable C ABI, or for dtypes that it lacks. `new_empty` is cheaper than
    // `torch.empty`, which needs the device.
    let (torch_dtype, shape) = (dtype_object(py, dtype)?, PyTuple::new(py, sizes.iter())?);
    let object = if like.getattr(intern!(py, "dtype"))?.is(&torch_dtype) {
        like.call_method1(intern!(py, "new_empty"), (shape,))?
    } else {
        let keywords = [("dtype", torch_dtype)].into_py_dict(py)?;
        like.call_method(intern!(py, "new_empty"), (shape,), Some(&keywords))?
    };
    guard.fill(object.as_borrowed(), view)?;
    Ok(object)
}
