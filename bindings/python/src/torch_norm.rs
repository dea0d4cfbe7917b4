//! torch's RMS norm called natively: the checks of a Python adapter would take a tenth of the call.

use std::ffi::c_int;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};

use crate::tensor::torch::{Handle, handle, library};
use crate::vectorcall::PyObject_Vectorcall;

/// The functions that read handles, and `torch.rms_norm`.
struct Functions {
    dtype: unsafe extern "C" fn(Handle, *mut i32) -> c_int,
    size: unsafe extern "C" fn(Handle, i64, *mut i64) -> c_int,
    rms_norm: Py<PyAny>,
}

static FUNCTIONS: PyOnceLock<Option<Functions>> = PyOnceLock::new();

impl Functions {
    fn find(torch: &Bound<'_, PyAny>) -> Option<Functions> {
        let library = library(torch)?;
        // SAFETY: the names and types are those of torch's stable header; the library is never unloaded.
        unsafe {
            Some(Functions {
                dtype: *library.get(b"aoti_torch_get_dtype").ok()?,
                size: *library.get(b"aoti_torch_get_size").ok()?,
                rms_norm: torch.getattr("rms_norm").ok()?.unbind(),
            })
        }
    }

    /// The length of a weight, if it has the dtype of `x`.
    fn length(&self, x: Handle, weight: Handle) -> Option<i64> {
        let (mut of_x, mut of_weight, mut length) = (0, 0, 0);
        // SAFETY: handles of live tensors; the weight has one dimension.
        let succeeded = unsafe {
            (self.dtype)(x, &raw mut of_x) == 0
                && (self.dtype)(weight, &raw mut of_weight) == 0
                && (self.size)(weight, 0, &raw mut length) == 0
        };
        (succeeded && of_x == of_weight).then_some(length)
    }
}

/// `torch.rms_norm` with a weight of the same dtype; other calls go to the Python adapter.
#[pyfunction]
#[pyo3(signature = (x, weight, *, eps, weight_offset))]
fn torch_rms_norm<'py>(
    py: Python<'py>,
    x: &Bound<'py, PyAny>,
    weight: &Bound<'py, PyAny>,
    eps: Bound<'py, PyAny>,
    weight_offset: f64,
) -> PyResult<Bound<'py, PyAny>> {
    let found =
        FUNCTIONS.get_or_init(py, || py.import("torch").ok().and_then(|torch| Functions::find(&torch)));
    if let Some(functions) = found
        && weight_offset == 0.0
        && let (Some(rows), Some(factors)) = (handle(x.as_borrowed()), handle(weight.as_borrowed()))
        && let Some(length) = functions.length(rows.get(), factors.get())
    {
        let shape = PyTuple::new(py, [length])?;
        let arguments = [x.as_ptr(), shape.as_ptr(), weight.as_ptr(), eps.as_ptr()];
        // SAFETY: four positional arguments, alive during the call, and no keywords.
        return unsafe {
            let result = PyObject_Vectorcall(
                functions.rms_norm.as_ptr(),
                arguments.as_ptr(),
                arguments.len(),
                std::ptr::null_mut::<ffi::PyObject>(),
            );
            Bound::from_owned_ptr_or_err(py, result)
        };
    }
    let keywords = PyDict::new(py);
    keywords.set_item("eps", eps)?;
    keywords.set_item("weight_offset", weight_offset)?;
    py.import("layerzero.backends.torch")?.getattr("_norm_rms")?.call((x, weight), Some(&keywords))
}

/// Adds the function.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(torch_rms_norm, module)?)
}
