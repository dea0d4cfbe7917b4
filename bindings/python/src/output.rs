//! Results: the caller's `out=`, or memory that the caller's own library allocates.

use lz_core::tensor::Dims;
use lz_core::{DType, OperationInfo, Reason, ReasonCode, Tensor};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};

use crate::error::refuse;
use crate::import::{Import, Kind};

/// What `out=` holds, one entry an output that the caller gave.
pub struct Given<'py> {
    objects: Vec<Bound<'py, PyAny>>,
    next: usize,
}

impl<'py> Given<'py> {
    /// From `out=`: nothing, one tensor, or a tuple or list of them in the order of the outputs.
    pub fn new(out: Option<&Bound<'py, PyAny>>) -> PyResult<Option<Given<'py>>> {
        let Some(out) = out else { return Ok(None) };
        let objects = if let Ok(tuple) = out.cast::<PyTuple>() {
            tuple.iter().collect()
        } else if let Ok(list) = out.cast::<PyList>() {
            list.iter().collect()
        } else {
            vec![out.clone()]
        };
        Ok(Some(Given { objects, next: 0 }))
    }

    fn take(&mut self) -> Option<Bound<'py, PyAny>> {
        let object = self.objects.get(self.next)?.clone();
        self.next += 1;
        Some(object)
    }

    /// Refuses entries that no output took.
    pub fn finish(&self, py: Python<'_>, operation: &OperationInfo) -> PyResult<()> {
        if self.next == self.objects.len() {
            return Ok(());
        }
        let reason = Reason::new(ReasonCode::OutputUnexpected)
            .argument("out")
            .required(format!("{} tensors", self.next))
            .found(self.objects.len().to_string());
        Err(refuse(py, &operation.name, reason))
    }
}

/// One output: the object that is returned and the memory behind it.
pub struct Place<'py> {
    /// What the caller gets.
    pub object: Bound<'py, PyAny>,
    /// Where the kernel writes.
    pub import: Import,
}

/// Finds or makes the place of an output. `like` is an input tensor: its library and device are the result's.
pub fn place<'py>(
    operation: &OperationInfo,
    name: &str,
    spec: (Dims, DType),
    given: &mut Option<Given<'py>>,
    like: (&Bound<'py, PyAny>, Kind),
) -> PyResult<Place<'py>> {
    let py = like.0.py();
    let object = match given {
        Some(given) => given.take().ok_or_else(|| {
            let reason = Reason::new(ReasonCode::OutputMissing)
                .argument("out")
                .message(format!("out has no tensor for {name}"));
            refuse(py, &operation.name, reason)
        })?,
        None => allocate(spec, like)?,
    };
    let import = Import::writable(&operation.name, name, &object)?;
    Ok(Place { object, import })
}

fn allocate<'py>(
    (sizes, dtype): (Dims, DType),
    (like, kind): (&Bound<'py, PyAny>, Kind),
) -> PyResult<Bound<'py, PyAny>> {
    let py = like.py();
    let shape = PyTuple::new(py, sizes.iter())?;
    match kind {
        Kind::Torch => {
            let torch = py.import("torch")?;
            let keywords = PyDict::new(py);
            keywords.set_item("dtype", torch.getattr(torch_name(dtype))?)?;
            keywords.set_item("device", like.getattr("device")?)?;
            torch.call_method("empty", (shape,), Some(&keywords))
        }
        Kind::Numpy | Kind::Other => {
            let numpy = py.import("numpy")?;
            numpy.call_method1("empty", (shape, numpy_dtype(py, dtype)?))
        }
    }
}

fn torch_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F4E2M1x2 => "float4_e2m1fn_x2",
        _ => dtype.long_name(),
    }
}

/// The numpy dtype; those that numpy lacks come from ml_dtypes, and packed nibbles are bytes.
fn numpy_dtype(py: Python<'_>, dtype: DType) -> PyResult<Bound<'_, PyAny>> {
    let numpy = py.import("numpy")?;
    match dtype {
        DType::BF16 | DType::F8E4M3 | DType::F8E5M2 | DType::F8E8M0 => {
            numpy.call_method1("dtype", (py.import("ml_dtypes")?.getattr(dtype.long_name())?,))
        }
        DType::F4E2M1x2 => numpy.call_method1("dtype", ("uint8",)),
        _ => numpy.call_method1("dtype", (dtype.long_name(),)),
    }
}

/// A tensor whose size the kernel found, as a numpy array; without numpy, as a list of numbers.
pub fn dynamic<'py>(py: Python<'py>, tensor: &Tensor) -> PyResult<Bound<'py, PyAny>> {
    let Ok(numpy) = py.import("numpy") else {
        let values: Vec<i64> =
            lz_core::tensor::Indices::new(tensor.shape()).map(|index| tensor.view().int_at(&index)).collect();
        return Ok(PyList::new(py, values)?.into_any());
    };
    let flat = numpy
        .call_method1("frombuffer", (PyBytes::new(py, tensor.bytes()), numpy_dtype(py, tensor.dtype())?))?;
    let shape = PyTuple::new(py, tensor.shape())?;
    flat.call_method0("copy")?.call_method1("reshape", (shape,))
}

/// What a function returns: nothing, the one result, or a tuple of them.
pub fn returned<'py>(py: Python<'py>, mut results: Vec<Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
    match results.len() {
        0 => Ok(py.None().into_bound(py)),
        1 => Ok(results.swap_remove(0)),
        _ => Ok(PyTuple::new(py, results)?.into_any()),
    }
}
