//! torch's tensors: borrowed through the DLPack exchange functions of their type, allocated through torch's stable C
//! interface, and watched for what the exchange functions let through: views whose values are yet to be negated, and
//! tensors that want a gradient.

use std::ffi::{c_int, c_void};
use std::ptr;

use lz_core::device::Platform;
use lz_core::tensor::{Dims, Place};
use lz_core::{DType, Reason, ReasonCode, TensorView};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{IntoPyDict, PyTuple, PyType};
use pyo3::{Borrowed, intern};

use super::layout::{DLPackExchangeAPI, DLTensor};
use super::{Hold, Kind, Problem, capsule, types};
use crate::output::fresh;

mod peek;
mod plain;
mod stable;

use peek::Peek;
use plain::Plain;
use stable::Stable;
pub use stable::{Handle, Wrap, find_wrap, library, library_beside};

/// DLPack's number of devices of CUDA.
const DL_CUDA: i32 = 2;

/// What was learned of the torch of this process.
struct Torch {
    exchange: Option<&'static DLPackExchangeAPI>,
    stable: Option<Stable>,
    peek: Option<Peek>,
    plain: Option<Plain>,
}

// SAFETY: tables of functions that live as long as the library, which is never unloaded.
unsafe impl Send for Torch {}
// SAFETY: as above.
unsafe impl Sync for Torch {}

static TORCH: PyOnceLock<Torch> = PyOnceLock::new();

/// Remembers torch's types and looks for its functions.
pub fn learn(module: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = module.py();
    if TORCH.get(py).is_some() {
        return Ok(());
    }
    let tensor = module.getattr("Tensor")?.cast_into::<PyType>()?;
    let (exchange, stable, peek) = (exchange(&tensor)?, Stable::find(module), Peek::learn(module));
    let plain = match (&stable, &peek, exchange.and_then(|exchange| exchange.borrow)) {
        (Some(stable), Some(peek), Some(borrow)) => Plain::learn(module, stable, peek, borrow),
        _ => None,
    };
    let torch = Torch { exchange, stable, peek, plain };
    // Another thread may have been first; what it found is the same.
    TORCH.set(py, torch).ok();
    types::TENSOR.learn(&tensor);
    types::PARAMETER.learn(module.getattr("nn")?.getattr("Parameter")?.cast::<PyType>()?);
    Ok(())
}

/// The functions that a type lends its tensors with, if it has those of a version that we know.
fn exchange(ty: &Bound<'_, PyType>) -> PyResult<Option<&'static DLPackExchangeAPI>> {
    let Ok(capsule) = ty.getattr("__dlpack_c_exchange_api__") else { return Ok(None) };
    // SAFETY: a capsule of this name holds this table, which lives as long as the type; the type is held for good.
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
    hold: &mut Hold,
) -> Result<(), Problem> {
    hold.kind = Kind::Torch;
    let Some(torch) = TORCH.get(object.py()) else { return capsule::read(object, Kind::Torch, view, hold) };
    if let Some(plain) = &torch.plain {
        // SAFETY: the object is a tensor of the torch that was learned from.
        match unsafe { plain.describe(object, view) } {
            Some(false) => return Ok(()),
            Some(true) => return refuse_grad(torch, object),
            None => {}
        }
    }
    read_any(torch, object, view, hold)
}

/// Borrows a tensor that is not on the host, or has more to it than memory.
#[inline(never)]
fn read_any(
    torch: &Torch,
    object: Borrowed<'_, '_, PyAny>,
    view: &mut TensorView<'_>,
    hold: &mut Hold,
) -> Result<(), Problem> {
    let Some(borrow) = torch.exchange.and_then(|exchange| exchange.borrow) else {
        return read_by_capsule(torch, object, view, hold);
    };
    refuse_traps(torch, object)?;
    let mut tensor = DLTensor::EMPTY;
    // SAFETY: the object is a tensor of the type that the function came from; it fills the structure, whose pointers stay good
    // while the caller holds the object.
    unsafe {
        if borrow(object.as_ptr().cast(), &raw mut tensor) != 0 {
            return Err(not_lent(object));
        }
        if tensor.device.device_type == DL_CUDA
            && let Some(plain) = &torch.plain
        {
            plain.learn_cuda(object.py(), tensor.device.device_id, borrow);
        }
        capsule::describe(&tensor, view)
    }
}

/// The exchange functions hand out what they should not.
#[inline]
fn refuse_traps(torch: &Torch, object: Borrowed<'_, '_, PyAny>) -> Result<(), Problem> {
    match &torch.peek {
        Some(peek) => {
            // SAFETY: the layout was learned from tensors of this torch.
            let (negated, may_want_grad) = unsafe { peek.look(object) };
            if negated {
                return Err(negated_view());
            }
            if !may_want_grad {
                return Ok(());
            }
        }
        None => {
            if object.call_method0(intern!(object.py(), "is_neg"))?.extract::<bool>()? {
                return Err(negated_view());
            }
        }
    }
    refuse_grad(torch, object)
}

#[cold]
fn negated_view() -> Problem {
    Reason::new(ReasonCode::ArgumentKind)
        .message("it is a view whose values are still to be negated; call resolve_neg() on it first")
        .into()
}

/// There is no backward: a result that silently forgets its gradient would be wrong.
fn refuse_grad(torch: &Torch, object: Borrowed<'_, '_, PyAny>) -> Result<(), Problem> {
    let py = object.py();
    let enabled = match &torch.stable {
        Some(stable) => stable.grad_enabled(),
        None => py.import("torch")?.call_method0("is_grad_enabled")?.extract()?,
    };
    if enabled && object.getattr(intern!(py, "requires_grad"))?.extract::<bool>()? {
        return Err(Reason::new(ReasonCode::ArgumentKind)
            .message(
                "it requires grad, and LayerZero has no backward; call under torch.no_grad(), or detach it",
            )
            .into());
    }
    Ok(())
}

/// For a torch without exchange functions.
fn read_by_capsule(
    torch: &Torch,
    object: Borrowed<'_, '_, PyAny>,
    view: &mut TensorView<'_>,
    hold: &mut Hold,
) -> Result<(), Problem> {
    refuse_traps(torch, object)?;
    let detached = object.call_method0("detach")?;
    capsule::read(detached.as_borrowed(), Kind::Torch, view, hold)?;
    // Before version 1.3 torch marks everything it exports as its own, and nothing as read-only.
    hold.read_only = false;
    Ok(())
}

#[cold]
fn not_lent(object: Borrowed<'_, '_, PyAny>) -> Problem {
    let py = object.py();
    let error = PyErr::fetch(py);
    let nested = object.getattr("is_nested").and_then(|nested| nested.extract::<bool>()).unwrap_or(false);
    if nested {
        return Reason::new(ReasonCode::NestedTensorUnsupported).into();
    }
    // Whatever is thrown inside is about this tensor; the lines after the first say where in torch.
    let message = error.value(py).to_string();
    let first = message.lines().next().unwrap_or_default();
    capsule::refused(py, PyBufferError::new_err(first.to_owned()))
}

/// A tensor as torch's C interface names it, which is where its object points to its record. Nothing for objects of other types,
/// and where the record is not where it was looked for.
#[inline]
pub fn handle(object: Borrowed<'_, '_, PyAny>) -> Option<Handle> {
    let ty = types::of(object);
    let is_known = types::TENSOR.is(ty) || types::PARAMETER.is(ty);
    TORCH.get(object.py())?.peek.as_ref().filter(|_| is_known)?;
    // SAFETY: a tensor's object is larger than its head, behind which the pointer was found.
    Some(unsafe { object.as_ptr().byte_add(size_of::<ffi::PyObject>()).cast() })
}

/// The stream that torch works on, as the driver's handle.
pub fn stream(py: Python<'_>, place: Place) -> usize {
    let device = match place.platform {
        Platform::Cuda => DL_CUDA,
        Platform::Rocm => 10,
        _ => return 0,
    };
    let exchange = TORCH.get(py).and_then(|torch| torch.exchange);
    let Some(current) = exchange.and_then(|exchange| exchange.stream) else { return 0 };
    let mut stream = ptr::null_mut::<c_void>();
    // SAFETY: the function fills the pointer or sets an exception, which is dropped: the default stream is meant then.
    unsafe {
        if current(device, c_int::from(place.index), &raw mut stream) != 0 {
            ffi::PyErr_Clear();
        }
    }
    stream as usize
}

/// torch's own object for a dtype.
fn dtype_object(py: Python<'_>, dtype: DType) -> PyResult<Bound<'_, PyAny>> {
    static OBJECTS: [PyOnceLock<Py<PyAny>>; DType::ALL.len() + 1] =
        [const { PyOnceLock::new() }; DType::ALL.len() + 1];
    let find = || Ok::<_, PyErr>(py.import("torch")?.getattr(dtype.long_name())?.unbind());
    Ok(OBJECTS[dtype as usize].get_or_try_init(py, find)?.bind(py).clone())
}

/// A new tensor on a device, described; its content is whatever was there.
pub fn allocate<'py>(
    py: Python<'py>,
    sizes: &Dims,
    dtype: DType,
    like: Borrowed<'_, 'py, PyAny>,
    place: Place,
    view: &mut TensorView<'_>,
    hold: &mut Hold,
) -> Result<Bound<'py, PyAny>, Problem> {
    hold.kind = Kind::Torch;
    let strides = sizes.contiguous_strides();
    if let Some(stable) = TORCH.get(py).and_then(|torch| torch.stable.as_ref())
        && let Some((object, data)) = stable.empty(py, sizes, &strides, dtype, place)
    {
        // In a mode that makes other tensors (FakeTensorMode) the result is of another type, and is looked at as any other.
        if types::TENSOR.is(types::of(object.as_borrowed())) {
            fresh(view, data, sizes, dtype, place);
            return Ok(object);
        }
        hold.fill(object.as_borrowed(), view)?;
        return Ok(object);
    }
    // Where torch has no such interface, or its interface no such dtype. Cheaper than `torch.empty`, which must be told where.
    let (wanted, shape) = (dtype_object(py, dtype)?, PyTuple::new(py, sizes.iter())?);
    let object = if like.getattr(intern!(py, "dtype"))?.is(&wanted) {
        like.call_method1(intern!(py, "new_empty"), (shape,))?
    } else {
        let keywords = [("dtype", wanted)].into_py_dict(py)?;
        like.call_method(intern!(py, "new_empty"), (shape,), Some(&keywords))?
    };
    hold.fill(object.as_borrowed(), view)?;
    Ok(object)
}
