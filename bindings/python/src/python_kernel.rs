//! Kernels that are Python functions. They receive the caller's own objects. How a call runs one is in `python_kernel_run`.

use std::any::Any;
use std::mem::MaybeUninit;

use lz_core::{Arg, Kernel, KernelEntry, KernelError, OutArg, Run};
use pyo3::exceptions::{PyNotImplementedError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyString, PyTuple};

use crate::vectorcall::{Argument, MAX_ARGUMENTS, PyObject_Vectorcall, TemporaryObjects};

/// A Python kernel.
pub struct PythonKernel {
    /// The registered object; it may import the function on first use (`layerzero.backends.LazyKernel`).
    function: Py<PyAny>,
    /// The function itself, once it was resolved, and how many inputs it takes.
    found: PyOnceLock<(Py<PyAny>, usize)>,
    /// Whether it can write into the caller's `out=`.
    takes_out: bool,
    /// Keyword names: the params, and the params with `out`.
    names: Py<PyTuple>,
    names_with_out: Py<PyTuple>,
}

/// A param with its default filled in, for params that the caller did not pass.
#[derive(Clone, Copy)]
pub enum Param {
    /// A number.
    Float(f64),
    /// An integer.
    Int(i64),
    /// A boolean.
    Bool(bool),
    /// An enum case.
    Text(&'static str),
}

impl PythonKernel {
    /// A kernel of an operation with these params.
    pub fn new<'p>(
        function: &Bound<'_, PyAny>,
        takes_out: bool,
        params: impl Iterator<Item = &'p str>,
    ) -> PyResult<PythonKernel> {
        let py = function.py();
        let mut names: Vec<Bound<'_, PyString>> = params.map(|name| PyString::intern(py, name)).collect();
        let without = PyTuple::new(py, &names)?.unbind();
        names.push(PyString::intern(py, "out"));
        let with = PyTuple::new(py, names)?.unbind();
        let found = PyOnceLock::new();
        if !function.hasattr("find_kernel")? {
            // The cell is empty, so setting it succeeds.
            found.set(py, (function.clone().unbind(), accepted_inputs(function, &without)?)).ok();
        }
        let function = function.clone().unbind();
        Ok(PythonKernel { function, found, takes_out, names: without, names_with_out: with })
    }

    /// The Python kernel behind an entry, if it is one.
    #[inline]
    pub fn of(entry: &KernelEntry) -> Option<&PythonKernel> {
        entry.kernel.as_any().downcast_ref()
    }

    /// Whether it can write into the caller's `out=`.
    pub fn takes_out(&self) -> bool {
        self.takes_out
    }

    /// The function, imported on first use.
    #[cold]
    pub fn find(&self, py: Python<'_>) -> PyResult<&Py<PyAny>> {
        Ok(&self.resolve(py)?.0)
    }

    /// The inputs of a call that the function takes. A call with an input that it does not take is declined.
    pub fn taken<'a, I>(
        &self,
        py: Python<'_>,
        inputs: &'a [I],
        is_given: impl Fn(&I) -> bool,
    ) -> PyResult<&'a [I]> {
        let accepted = self.resolve(py)?.1;
        let (taken, omitted) = inputs.split_at(inputs.len().min(accepted));
        if omitted.iter().any(is_given) {
            let message = format!("the function takes {accepted} inputs, and the call has more");
            return Err(PyNotImplementedError::new_err(message));
        }
        Ok(taken)
    }

    /// The function, imported on first use, and how many inputs it takes.
    #[inline]
    fn resolve(&self, py: Python<'_>) -> PyResult<&(Py<PyAny>, usize)> {
        match self.found.get(py) {
            Some(found) => Ok(found),
            None => self.import(py),
        }
    }

    #[cold]
    fn import(&self, py: Python<'_>) -> PyResult<&(Py<PyAny>, usize)> {
        self.found.get_or_try_init(py, || {
            let function = self.function.bind(py).call_method0("find_kernel")?;
            let accepted = accepted_inputs(&function, &self.names)?;
            Ok((function.unbind(), accepted))
        })
    }

    /// Calls the function or its replacement. Params behind those that it has names for are statistics, which it does not get.
    pub fn call<'py>(
        &self,
        py: Python<'py>,
        instead: Option<&Py<PyAny>>,
        inputs: &[Argument<'_, 'py>],
        params: &[(Argument<'_, 'py>, Param)],
        out: Argument<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let inputs = self.taken(py, inputs, Option::is_some)?;
        let params = params.get(..self.names.bind(py).len()).unwrap_or(params);
        let mut arguments = [const { MaybeUninit::<*mut ffi::PyObject>::uninit() }; MAX_ARGUMENTS];
        if inputs.len() + params.len() + 1 > MAX_ARGUMENTS {
            let message = format!("a Python kernel takes fewer than {MAX_ARGUMENTS} arguments");
            return Err(PyValueError::new_err(message));
        }
        // SAFETY: None is immortal.
        let none = unsafe { ffi::Py_None() };
        for (slot, input) in arguments.iter_mut().zip(inputs) {
            slot.write(input.map_or(none, |object| object.as_ptr()));
        }
        let mut temporaries = TemporaryObjects::new();
        for (slot, (given, value)) in arguments.iter_mut().skip(inputs.len()).zip(params) {
            slot.write(match given {
                Some(object) => object.as_ptr(),
                None => temporaries.keep(value.into_object(py)?),
            });
        }
        let passes_out = self.takes_out && out.is_some();
        if let (true, Some(out)) = (passes_out, out) {
            arguments[inputs.len() + params.len()].write(out.as_ptr());
        }
        let names = if passes_out { &self.names_with_out } else { &self.names };
        let function = match instead {
            Some(function) => function,
            None => &self.resolve(py)?.0,
        };
        // SAFETY: as many arguments as inputs and names, all of them written and alive during the call; the
        // result is a new reference, or null with an exception.
        unsafe {
            let arguments = arguments.as_ptr().cast::<*mut ffi::PyObject>();
            let result = PyObject_Vectorcall(function.as_ptr(), arguments, inputs.len(), names.as_ptr());
            Bound::from_owned_ptr_or_err(py, result)
        }
    }
}

/// How many inputs a function takes by position. Functions that were written before an operation had an optional
/// input take fewer than the operation has; it is not passed to them.
fn accepted_inputs(function: &Bound<'_, PyAny>, params: &Py<PyTuple>) -> PyResult<usize> {
    let count = function.py().import("layerzero._signatures")?.getattr("positional_count")?;
    Ok(count.call1((function, params))?.extract::<Option<usize>>()?.unwrap_or(usize::MAX))
}

impl Param {
    fn into_object(self, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        Ok(match self {
            Param::Float(value) => value.into_pyobject(py)?.into_any(),
            Param::Int(value) => value.into_pyobject(py)?.into_any(),
            Param::Bool(value) => value.into_pyobject(py)?.to_owned().into_any(),
            Param::Text(text) => PyString::intern(py, text).into_any(),
        })
    }
}

impl Kernel for PythonKernel {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn run(
        &self,
        _args: &mut [Arg<'_>],
        _outputs: &mut [OutArg<'_>],
        _run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let message =
            "a Python kernel needs the caller's Python objects, and this call did not come from Python";
        Err(KernelError::declined(message))
    }

    fn needs_caller(&self) -> bool {
        true
    }
}
