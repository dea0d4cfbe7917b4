//! Sizes that depend on the inputs of a run.

use lz_graph::Dim;
use pyo3::prelude::*;

/// A size of a graph that is known when the graph runs.
#[pyclass(name = "SymbolicSize", module = "layerzero", frozen, eq, hash)]
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct SymbolicSize(pub Dim);

/// A size: an int or a [`SymbolicSize`].
pub struct Size(pub Dim);

impl<'py> FromPyObject<'_, 'py> for Size {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Size> {
        if let Ok(size) = object.cast::<SymbolicSize>() {
            return Ok(Size(size.get().0.clone()));
        }
        Ok(Size(Dim::from(object.extract::<i64>()?)))
    }
}

/// A size as Python sees it: an int if it is known.
pub fn to_python<'py>(py: Python<'py>, dim: &Dim) -> PyResult<Bound<'py, PyAny>> {
    match dim.constant() {
        Some(value) => Ok(value.into_pyobject(py)?.into_any()),
        None => Ok(Bound::new(py, SymbolicSize(dim.clone()))?.into_any()),
    }
}

#[pymethods]
impl SymbolicSize {
    fn __add__(&self, other: Size) -> SymbolicSize {
        SymbolicSize(self.0.plus(&other.0))
    }

    fn __radd__(&self, other: Size) -> SymbolicSize {
        SymbolicSize(other.0.plus(&self.0))
    }

    fn __sub__(&self, other: Size) -> SymbolicSize {
        SymbolicSize(self.0.minus(&other.0))
    }

    fn __rsub__(&self, other: Size) -> SymbolicSize {
        SymbolicSize(other.0.minus(&self.0))
    }

    fn __mul__(&self, other: Size) -> SymbolicSize {
        SymbolicSize(self.0.times(&other.0))
    }

    fn __rmul__(&self, other: Size) -> SymbolicSize {
        SymbolicSize(other.0.times(&self.0))
    }

    fn __neg__(&self) -> SymbolicSize {
        SymbolicSize(self.0.times(&Dim::from(-1)))
    }

    fn __floordiv__(&self, other: Size) -> SymbolicSize {
        SymbolicSize(self.0.floor_div(&other.0))
    }

    fn __rfloordiv__(&self, other: Size) -> SymbolicSize {
        SymbolicSize(other.0.floor_div(&self.0))
    }

    fn __mod__(&self, other: Size) -> SymbolicSize {
        SymbolicSize(self.0.modulo(&other.0))
    }

    /// The smaller one of two sizes.
    fn smaller(&self, other: Size) -> SymbolicSize {
        SymbolicSize(self.0.smaller(&other.0))
    }

    /// The larger one of two sizes.
    fn larger(&self, other: Size) -> SymbolicSize {
        SymbolicSize(self.0.larger(&other.0))
    }

    fn __repr__(&self) -> String {
        self.0.to_string()
    }
}
