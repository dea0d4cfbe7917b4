//! Results: the caller's `out=`, or memory that the caller's own library allocates.

use lz_core::tensor::{Dims, Place as Device};
use lz_core::{DType, KernelError, Reason, ReasonCode, Tensor, TensorMut};
use pyo3::Borrowed;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};

use crate::call::{Frame, Given};
use crate::error::refuse;
use crate::tensor::{Import, Kind, Problem, buffer, numpy, torch};

/// What `out=` holds, one entry an output that the caller gave.
pub enum Out<'a, 'py> {
    /// No `out=`.
    Nothing,
    /// One tensor.
    One(Borrowed<'a, 'py, PyAny>),
    /// It was taken.
    Done,
    /// A tuple or list of tensors, in the order of the outputs.
    Several(Vec<Bound<'py, PyAny>>, usize),
}

impl<'a, 'py> Out<'a, 'py> {
    /// From `out=`.
    #[inline]
    pub fn new(out: Given<'a, 'py>) -> Out<'a, 'py> {
        let Some(out) = out else { return Out::Nothing };
        if let Ok(tuple) = out.cast::<PyTuple>() {
            return Out::Several(tuple.iter().collect(), 0);
        }
        if let Ok(list) = out.cast::<PyList>() {
            return Out::Several(list.iter().collect(), 0);
        }
        Out::One(out)
    }

    /// Whether the caller gave places.
    #[inline]
    pub fn is_given(&self) -> bool {
        !matches!(self, Out::Nothing)
    }

    /// The next one.
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

    /// Refuses entries that no output took.
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
        Err(refuse(frame.py, &frame.operation.name, reason))
    }
}

/// One output: the object that is returned and the memory behind it.
pub struct Place<'py> {
    object: Option<Bound<'py, PyAny>>,
    /// Empty while there is no object.
    import: Import,
}

impl<'py> Place<'py> {
    /// Not there yet.
    pub const EMPTY: Place<'py> = Place { object: None, import: Import::EMPTY };

    /// Takes the caller's tensor for this output.
    #[inline]
    pub fn take(
        &mut self,
        frame: &mut Frame<'_, 'py>,
        out: &mut Out<'_, 'py>,
        name: &'static str,
    ) -> PyResult<()> {
        let Some(object) = out.take() else {
            let reason = Reason::new(ReasonCode::OutputMissing)
                .argument("out")
                .message(format!("out has no tensor for {name}"));
            return Err(refuse(frame.py, &frame.operation.name, reason));
        };
        frame.place(name, object.as_borrowed(), &mut self.import)?;
        self.object = Some(object);
        Ok(())
    }

    /// Takes bytes for pairs of 4-bit floats, where the output is such.
    #[inline]
    pub fn nibbles(&mut self, spec: Option<(Dims, DType)>) {
        let packed = spec.is_some_and(|(_, dtype)| dtype == DType::F4E2M1x2);
        self.import.nibbles(packed);
    }

    /// Has the caller's library allocate this output, unless it is there already or the call does not produce it.
    #[inline]
    pub fn allocate(
        &mut self,
        frame: &mut Frame<'_, 'py>,
        spec: Option<(Dims, DType)>,
    ) -> Result<(), KernelError> {
        let (None, Some((sizes, dtype))) = (&self.object, spec) else { return Ok(()) };
        match allocate(frame, &sizes, dtype) {
            Ok((object, import)) => {
                frame.count(import.elements());
                self.object = Some(object);
                self.import = import;
                Ok(())
            }
            Err(Problem::Python(error)) => Err(frame.failed(error).before_writing()),
            Err(Problem::Reason(reason)) => Err(KernelError::because(*reason).before_writing()),
        }
    }

    /// The memory, if this output is produced.
    #[inline]
    pub fn lend<'m>(&self) -> Option<TensorMut<'m>> {
        self.object.as_ref().map(|_| self.import.lend())
    }

    /// The memory of an output that every call produces.
    #[inline]
    pub fn must<'m>(&self, frame: &Frame<'_, '_>) -> Result<TensorMut<'m>, lz_core::Error> {
        self.lend().ok_or_else(|| frame.disagreement())
    }

    /// What the caller gets.
    #[inline]
    pub fn into_object(self) -> Option<Bound<'py, PyAny>> {
        self.object
    }
}

fn allocate<'py>(
    frame: &Frame<'_, 'py>,
    sizes: &Dims,
    dtype: DType,
) -> Result<(Bound<'py, PyAny>, Import), Problem> {
    let (like, kind, device) = frame.like();
    match (kind, like) {
        (Kind::Torch, Some(like)) => torch::allocate(frame.py, sizes, dtype, like, device),
        (Kind::Buffer, _) => {
            let object = buffer::allocate(frame.py, sizes, dtype)?;
            let mut import = Import::new(object.as_borrowed())?;
            import.nibbles(dtype == DType::F4E2M1x2);
            Ok((object, import))
        }
        (Kind::Other, Some(like)) => {
            let object = allocate_elsewhere(frame.py, sizes, dtype, like, device)?;
            let mut import = Import::new(object.as_borrowed())?;
            import.nibbles(dtype == DType::F4E2M1x2);
            Ok((object, import))
        }
        _ => Ok(numpy::allocate(frame.py, sizes, dtype)?),
    }
}

/// A tensor of a library that we do not know: its module's `empty`, or on the host a numpy array that it takes over.
fn allocate_elsewhere<'py>(
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
        let text = format!("{module} cannot allocate a result; pass out=");
        let raised = PyTypeError::new_err(text);
        raised.set_cause(py, Some(error));
        raised
    })
}

/// A tensor whose size the kernel found, as a numpy array; without numpy, as a list of numbers.
pub fn dynamic<'py>(py: Python<'py>, tensor: &Tensor) -> PyResult<Bound<'py, PyAny>> {
    let Ok(numpy) = py.import("numpy") else {
        let values: Vec<i64> =
            lz_core::tensor::Indices::new(tensor.shape()).map(|index| tensor.view().int_at(&index)).collect();
        return Ok(PyList::new(py, values)?.into_any());
    };
    let bytes = PyBytes::new(py, tensor.bytes());
    let flat = numpy.call_method1("frombuffer", (bytes, numpy::dtype_object(py, tensor.dtype())?))?;
    let shape = PyTuple::new(py, tensor.shape())?;
    flat.call_method0("copy")?.call_method1("reshape", (shape,))
}

/// What a function with several results returns: nothing, the one result, or a tuple of them.
pub fn returned<'py>(py: Python<'py>, mut results: Vec<Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
    match results.len() {
        0 => Ok(py.None().into_bound(py)),
        1 => Ok(results.swap_remove(0)),
        _ => Ok(PyTuple::new(py, results)?.into_any()),
    }
}
