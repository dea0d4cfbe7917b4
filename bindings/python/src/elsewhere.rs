//! Calls with tensors that compute by `__torch_dispatch__` (FakeTensors, tensors that are traced, subclasses that wrap others).
//! They have no memory that a kernel could use, so the call becomes one of `torch.ops.layerzero`, where torch decides what it
//! means for such a tensor.

use pyo3::ffi;
use pyo3::prelude::*;

use crate::hosted::PyObject_Vectorcall;
use crate::tensor::computes_by_dispatch;

/// The call as torch makes it, or nothing if no argument asks for that.
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
        // SAFETY: the interpreter gives keywords as a tuple of strings that outlives the call.
        unsafe { Borrowed::from_ptr(py, keywords) }.extract().ok()?
    };
    // Places alone do not make it torch's call: a kernel would have nowhere to write.
    let asks = (0..count + names.len()).any(|at| {
        let place = at.checked_sub(count).and_then(|at| names.get(at));
        // SAFETY: the interpreter passes the positional arguments and then a value a keyword.
        place.is_none_or(|name| name != "out")
            && computes_by_dispatch(unsafe { Borrowed::from_ptr(py, *arguments.add(at)) })
    });
    if !asks {
        return None;
    }
    let function = py.import("layerzero._torch_ops").and_then(|module| module.getattr(name)).ok()?;
    // SAFETY: the arguments are passed on as they came; a new reference comes back, or null with an exception.
    Some(unsafe {
        let result = PyObject_Vectorcall(function.as_ptr(), arguments, count, keywords);
        Bound::from_owned_ptr_or_err(py, result)
    })
}
