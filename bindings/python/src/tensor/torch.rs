//! torch's tensors: borrowed through the DLPack exchange functions of their type, allocated through torch's stable C
//! interface, and watched for what the exchange functions let through: views whose values are yet to be negated, and
//! tensors that want a gradient.

use std::ffi::{c_int, c_void};
use std::ptr;

use lz_core::device::Platform;
use lz_core::tensor::{Dims, Layout, Place};
use lz_core::{DType, Reason, ReasonCode};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple, PyType};
use pyo3::{Borrowed, intern};

use super::layout::{DLDataType, DLDevice, DLPackExchangeAPI, DLTensor};
use super::{Import, Kind, Problem, capsule, types};

mod peek;
mod stable;

use peek::Peek;
use stable::Stable;

/// What was learned of the torch of this process.
struct Torch {
    exchange: Option<&'static DLPackExchangeAPI>,
    stable: Option<Stable>,
    peek: Option<Peek>,
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
    let torch =
        Torch { exchange: exchange(&tensor)?, stable: Stable::find(module), peek: Peek::learn(module) };
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
pub fn read(object: Borrowed<'_, '_, PyAny>, import: &mut Import) -> Result<(), Problem> {
    let Some(torch) = TORCH.get(object.py()) else {
        *import = capsule::read_as(object, Kind::Torch)?;
        return Ok(());
    };
    let Some(borrow) = torch.exchange.and_then(|exchange| exchange.borrow) else {
        *import = read_by_capsule(torch, object)?;
        return Ok(());
    };
    refuse_traps(torch, object)?;
    let mut tensor = DLTensor {
        data: ptr::null_mut(),
        device: DLDevice { device_type: 0, device_id: 0 },
        ndim: 0,
        dtype: DLDataType { code: 0, bits: 0, lanes: 0 },
        shape: ptr::null_mut(),
        strides: ptr::null_mut(),
        byte_offset: 0,
    };
    // SAFETY: the object is a tensor of the type that the function came from; it fills the structure, whose pointers stay good
    // while the caller holds the object.
    unsafe {
        if borrow(object.as_ptr().cast(), &raw mut tensor) != 0 {
            return Err(not_lent(object));
        }
        import.data = capsule::describe(&tensor, &mut import.layout)?;
        import.kind = Kind::Torch;
        Ok(())
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
fn read_by_capsule(torch: &Torch, object: Borrowed<'_, '_, PyAny>) -> Result<Import, Problem> {
    refuse_traps(torch, object)?;
    let detached = object.call_method0("detach")?;
    let mut import = capsule::read_as(detached.as_borrowed(), Kind::Torch)?;
    // Before version 1.3 torch marks everything it exports as its own, and nothing as read-only.
    import.read_only = false;
    Ok(import)
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

/// The stream that torch works on, as the driver's handle.
pub fn stream(py: Python<'_>, place: Place) -> usize {
    let device = match place.platform {
        Platform::Cuda => 2,
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

/// A new tensor on a device; its content is whatever was there.
pub fn allocate<'py>(
    py: Python<'py>,
    sizes: &Dims,
    dtype: DType,
    like: Borrowed<'_, 'py, PyAny>,
    place: Place,
) -> Result<(Bound<'py, PyAny>, Import), Problem> {
    let strides = sizes.contiguous_strides();
    if let Some(stable) = TORCH.get(py).and_then(|torch| torch.stable.as_ref())
        && let Some((object, data)) = stable.empty(py, sizes, &strides, dtype, place)
    {
        // In a mode that makes other tensors (FakeTensorMode) the result is of another type, and is looked at as any other.
        if types::TENSOR.is(types::of(object.as_borrowed())) {
            let layout = Layout { shape: *sizes, strides, dtype, place };
            return Ok((object, Import::fresh(data, layout, Kind::Torch)));
        }
        let import = Import::new(object.as_borrowed())?;
        return Ok((object, import));
    }
    let torch = py.import("torch")?;
    let keywords = PyDict::new(py);
    keywords.set_item("dtype", torch.getattr(dtype.long_name())?)?;
    keywords.set_item("device", like.getattr("device")?)?;
    let object = torch.call_method("empty", (PyTuple::new(py, sizes.iter())?,), Some(&keywords))?;
    let import = Import::new(object.as_borrowed())?;
    Ok((object, import))
}
