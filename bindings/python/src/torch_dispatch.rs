//! Calls with tensors that implement `__torch_dispatch__` (fake tensors, traced tensors, wrapper subclasses).
//! They have no memory that a kernel could use, so the call is redirected to the operator in
//! `torch.ops.layerzero`, where torch dispatches it.

use pyo3::ffi;
use pyo3::prelude::*;

use crate::tensor::implements_torch_dispatch;
use crate::vectorcall::PyObject_Vectorcall;

/// Redirects the call to torch, or returns nothing if no argument requires it.
///
/// # Safety
/// The pointers are those of a call with `METH_FASTCALL | METH_KEYWORDS`.
#[cold]
pub unsafe fn call<'py>(
    py: Python<'py>,
    name: &str,
    arguments: *const *mut ffi::PyObject,
    count: usize,
    keywords: *mut ffi::PyObject,
) -> Option<PyResult<Bound<'py, PyAny>>> {
    let names: Vec<String> = if keywords.is_null() {
        Vec::new()
    } else {
        // SAFETY: the interpreter passes keyword names as a tuple of strings that outlives the call.
        unsafe { Borrowed::from_ptr(py, keywords) }.extract().ok()?
    };
    // `out=` alone does not redirect the call: a kernel would have no memory to write to.
    let dispatches = (0..count + names.len()).any(|at| {
        let keyword = at.checked_sub(count).and_then(|at| names.get(at));
        // SAFETY: the interpreter passes the positional arguments, then one value per keyword.
        keyword.is_none_or(|name| name != "out")
            && implements_torch_dispatch(unsafe { Borrowed::from_ptr(py, *arguments.add(at)) })
    });
    if !dispatches {
        return None;
    }
    let function = py.import("layerzero._torch_ops").and_then(|module| module.getattr(name)).ok()?;
    // SAFETY: the arguments are passed on unchanged; the result is a new reference, or null with an
    // exception.
    Some(unsafe {
        let result = PyObject_Vectorcall(function.as_ptr(), arguments, count, keywords);
        Bound::from_owned_ptr_or_err(py, result)
    })
}
