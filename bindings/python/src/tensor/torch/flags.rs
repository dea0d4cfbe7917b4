//! Properties of a torch tensor that DLPack does not export: the negative bit, and whether it requires grad.
//!
//! Both are public attributes of `torch.Tensor`. An attribute lookup costs as much as the call, so the C
//! functions behind the attributes are read once from the type's slots (`PyType_GetSlot` of Python's stable
//! ABI).

use std::ffi::{CStr, c_int, c_void};
use std::ptr;

use lz_core::{Reason, ReasonCode};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyType;
use pyo3::{Borrowed, intern};

use super::super::{Problem, types};

/// The C functions of `Tensor.is_neg` and `Tensor.requires_grad`; none where torch implements them in Python.
pub struct Flags {
    is_neg: Option<ffi::PyCFunction>,
    requires_grad: Option<(ffi::getter, *mut c_void)>,
    /// `torch.is_grad_enabled`, for a torch without the stable C ABI.
    is_grad_enabled: Py<PyAny>,
}

impl Flags {
    /// Looks the functions up in `torch.Tensor`.
    pub fn find(torch: &Bound<'_, PyAny>, tensor: &Bound<'_, PyType>) -> PyResult<Flags> {
        Ok(Flags {
            is_neg: method(tensor, "is_neg")?,
            requires_grad: getter(tensor, "requires_grad")?,
            is_grad_enabled: torch.getattr("is_grad_enabled")?.unbind(),
        })
    }

    /// Refuses a view with the negative bit set: its memory holds values of the opposite sign.
    #[inline]
    pub fn refuse_negated(&self, tensor: Borrowed<'_, '_, PyAny>) -> Result<(), Problem> {
        let py = tensor.py();
        let is_negated = match self.is_neg {
            // SAFETY: a method of `torch.Tensor` without arguments; the result is a new reference, or null
            // with an exception.
            Some(is_neg) if types::is_plain_tensor(tensor) => unsafe {
                answer(py, is_neg(tensor.as_ptr(), ptr::null_mut()))?
            },
            _ => tensor.call_method0(intern!(py, "is_neg"))?.is_truthy()?,
        };
        if is_negated { Err(negated_view()) } else { Ok(()) }
    }

    /// Refuses a tensor that requires grad: there is no backward, and silently dropping the gradient would be
    /// wrong. Called only while autograd is enabled in this thread.
    #[inline]
    pub fn refuse_grad(&self, tensor: Borrowed<'_, '_, PyAny>) -> Result<(), Problem> {
        let py = tensor.py();
        let requires_grad = match self.requires_grad {
            // SAFETY: the getter of `torch.Tensor` with its own closure; the result is a new reference, or
            // null with an exception.
            Some((getter, closure)) if types::is_plain_tensor(tensor) => unsafe {
                answer(py, getter(tensor.as_ptr(), closure))?
            },
            _ => tensor.getattr(intern!(py, "requires_grad"))?.is_truthy()?,
        };
        if requires_grad { Err(requires_gradient()) } else { Ok(()) }
    }

    /// Whether autograd is enabled in this thread, by calling Python.
    pub fn is_grad_enabled(&self, py: Python<'_>) -> PyResult<bool> {
        self.is_grad_enabled.bind(py).call0()?.is_truthy()
    }
}

/// The truth value that a C function returned.
///
/// # Safety
/// The pointer is a new reference, or null with an exception set.
#[inline]
unsafe fn answer(py: Python<'_>, object: *mut ffi::PyObject) -> PyResult<bool> {
    // SAFETY: promised by the caller; True is immortal.
    unsafe {
        if object == ffi::Py_False() {
            ffi::Py_DECREF(object);
            return Ok(false);
        }
        Bound::from_owned_ptr_or_err(py, object)?.is_truthy()
    }
}

/// The class in the MRO that defines a name.
fn owner<'py>(ty: &Bound<'py, PyType>, name: &str) -> PyResult<Option<Bound<'py, PyType>>> {
    for class in ty.mro() {
        if class.getattr("__dict__")?.contains(name)? {
            return Ok(Some(class.cast_into::<PyType>()?));
        }
    }
    Ok(None)
}

/// A table in a slot of the class that defines a name; null if no class does. A class written in Python has
/// no such table.
fn slot<T>(ty: &Bound<'_, PyType>, name: &str, slot: c_int) -> PyResult<*const T> {
    let Some(owner) = owner(ty, name)? else { return Ok(ptr::null()) };
    // SAFETY: the type is alive, and the slot is one that types have.
    let table = unsafe { ffi::PyType_GetSlot(owner.as_type_ptr(), slot) };
    drop(PyErr::take(ty.py()));
    Ok(table.cast_const().cast())
}

/// The C function of a method without arguments.
fn method(ty: &Bound<'_, PyType>, name: &str) -> PyResult<Option<ffi::PyCFunction>> {
    let mut entry = slot::<ffi::PyMethodDef>(ty, name, ffi::Py_tp_methods)?;
    // SAFETY: the table ends with an entry without a name and lives as long as its type; the flag determines
    // the function's type.
    unsafe {
        while !entry.is_null() && !(*entry).ml_name.is_null() {
            if CStr::from_ptr((*entry).ml_name).to_bytes() == name.as_bytes() {
                return Ok(((*entry).ml_flags == ffi::METH_NOARGS).then(|| (*entry).ml_meth.PyCFunction));
            }
            entry = entry.add(1);
        }
    }
    Ok(None)
}

/// The C getter of a property, and its closure.
fn getter(ty: &Bound<'_, PyType>, name: &str) -> PyResult<Option<(ffi::getter, *mut c_void)>> {
    let mut entry = slot::<ffi::PyGetSetDef>(ty, name, ffi::Py_tp_getset)?;
    // SAFETY: as above.
    unsafe {
        while !entry.is_null() && !(*entry).name.is_null() {
            if CStr::from_ptr((*entry).name).to_bytes() == name.as_bytes() {
                return Ok((*entry).get.map(|getter| (getter, (*entry).closure)));
            }
            entry = entry.add(1);
        }
    }
    Ok(None)
}

/// The error for a view with the negative bit set.
#[cold]
pub fn negated_view() -> Problem {
    Reason::new(ReasonCode::ArgumentKind)
        .message("it is a view with the negative bit set; call resolve_neg() on it first")
        .into()
}

/// The error for a tensor that requires grad.
#[cold]
pub fn requires_gradient() -> Problem {
    Reason::new(ReasonCode::ArgumentKind)
        .message("it requires grad, and LayerZero has no backward; call under torch.no_grad(), or detach it")
        .into()
}
