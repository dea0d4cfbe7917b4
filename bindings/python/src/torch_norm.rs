//! torch's RMS norm called natively: the checks of a Python adapter would take a tenth of the call.

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};

use crate::tensor::{BorrowedTensor, Kind};
use crate::vectorcall::PyObject_Vectorcall;

static RMS_NORM: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// A torch tensor as the call itself reads it, without a handle of torch's C ABI, whose creation allocates.
fn read(tensor: &Bound<'_, PyAny>) -> Option<BorrowedTensor> {
    BorrowedTensor::new(tensor.as_borrowed()).ok().filter(|tensor| tensor.kind() == Kind::Torch)
}

/// The length of a weight that has the dtype of `x`.
fn common_length(x: &Bound<'_, PyAny>, weight: &Bound<'_, PyAny>) -> Option<i64> {
    let (x, weight) = (read(x)?, read(weight)?);
    let (x, weight) = (x.view(), weight.view());
    match weight.shape() {
        [length] if x.dtype() == weight.dtype() => Some(*length),
        _ => None,
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
    if weight_offset == 0.0
        && let Some(length) = common_length(x, weight)
    {
        let rms_norm = RMS_NORM.import(py, "torch", "rms_norm")?;
        let shape = PyTuple::new(py, [length])?;
        let arguments = [x.as_ptr(), shape.as_ptr(), weight.as_ptr(), eps.as_ptr()];
        // SAFETY: four positional arguments, alive during the call, and no keywords.
        return unsafe {
            let result = PyObject_Vectorcall(
                rms_norm.as_ptr(),
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
