//! Kernels that are Python functions. They receive the caller's own objects; their results go to the caller
//! unchanged once they are checked against the schema.

use std::any::Any;
use std::mem::MaybeUninit;

use lz_core::{Arg, Kernel, KernelEntry, KernelError, OutArg, Run};
use pyo3::Borrowed;
use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyString, PyTuple};

use crate::call::{Argument, Frame};
use crate::output::Out;
use crate::plan::Way;
use crate::results::{Wanted, check_results};

/// A Python kernel.
pub struct Hosted {
    /// The registered object; it may import the function on first use (`layerzero.backends.LazyKernel`).
    function: Py<PyAny>,
    /// The function itself, once it was resolved.
    found: PyOnceLock<Py<PyAny>>,
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

unsafe extern "C" {
    /// Part of the limited API from Python 3.12 on, and exported with the same meaning before.
    pub fn PyObject_Vectorcall(
        callable: *mut ffi::PyObject,
        arguments: *const *mut ffi::PyObject,
        count: usize,
        keywords: *mut ffi::PyObject,
    ) -> *mut ffi::PyObject;
}

/// Upper limit of a kernel's arguments; no operation has as many.
pub const MAX_ARGUMENTS: usize = 48;

impl Hosted {
    /// A kernel of an operation with these params.
    pub fn new<'p>(
        function: &Bound<'_, PyAny>,
        takes_out: bool,
        params: impl Iterator<Item = &'p str>,
    ) -> PyResult<Hosted> {
        let py = function.py();
        let mut names: Vec<Bound<'_, PyString>> = params.map(|name| PyString::intern(py, name)).collect();
        let without = PyTuple::new(py, &names)?.unbind();
        names.push(PyString::intern(py, "out"));
        let with = PyTuple::new(py, names)?.unbind();
        let found = PyOnceLock::new();
        if !function.hasattr("find_kernel")? {
            // The cell is empty, so setting it succeeds.
            found.set(py, function.clone().unbind()).ok();
        }
        let function = function.clone().unbind();
        Ok(Hosted { function, found, takes_out, names: without, names_with_out: with })
    }

    /// The Python kernel behind an entry, if it is one.
    #[inline]
    pub fn of(entry: &KernelEntry) -> Option<&Hosted> {
        entry.kernel.as_any().downcast_ref()
    }

    /// The function.
    pub fn function(&self, py: Python<'_>) -> Py<PyAny> {
        self.function.clone_ref(py)
    }

    /// Whether it can write into the caller's `out=`.
    pub fn takes_out(&self) -> bool {
        self.takes_out
    }

    /// Runs the kernel: inputs by position, params by keyword with defaults filled in, `out=` if the caller
    /// passed it and the kernel takes it. While planning, the kernel's planner runs instead; what it returns
    /// is called in place of the kernel later.
    pub fn run<'py>(
        &self,
        frame: &mut Frame<'_, 'py>,
        inputs: &[Argument<'_, 'py>],
        params: &[(Argument<'_, 'py>, Param)],
        wanted: &[Wanted],
        out: Argument<'_, 'py>,
    ) -> Result<(), KernelError> {
        let planned = match frame.way {
            Way::Decide => None,
            Way::Along(planned) => planned.run.as_ref(),
            Way::Plan(_) => return self.plan(frame, inputs, params),
        };
        match self.call(frame.py, planned, inputs, params, out) {
            Ok(_) if out.is_some() && self.takes_out => Ok(()),
            Ok(result) => {
                let result = check_results(frame, wanted, result)?;
                match out {
                    None => frame.keep_result(result),
                    Some(out) => copy_into(out, &result).map_err(|error| frame.failed(error))?,
                }
                Ok(())
            }
            Err(error) => Err(frame.failed(error)),
        }
    }

    /// Calls the function's attribute `plan`, if it has one; the result is called in place of the function
    /// later.
    #[cold]
    fn plan<'py>(
        &self,
        frame: &mut Frame<'_, 'py>,
        inputs: &[Argument<'_, 'py>],
        params: &[(Argument<'_, 'py>, Param)],
    ) -> Result<(), KernelError> {
        let py = frame.py;
        let planner = self.find(py).and_then(|function| function.bind(py).getattr_opt("plan"));
        let planned = planner.and_then(|plan| match plan {
            Some(plan) => self.call(py, Some(&plan.unbind()), inputs, params, None).map(Some),
            None => Ok(None),
        });
        match planned {
            Ok(None) => Ok(()),
            Ok(Some(run)) => {
                frame.keep_result(run);
                Ok(())
            }
            Err(error) => Err(frame.failed(error).before_writing()),
        }
    }

    #[cold]
    fn find(&self, py: Python<'_>) -> PyResult<&Py<PyAny>> {
        self.found.get_or_try_init(py, || Ok(self.function.bind(py).call_method0("find_kernel")?.unbind()))
    }

    /// Calls the function or its replacement.
    fn call<'py>(
        &self,
        py: Python<'py>,
        instead: Option<&Py<PyAny>>,
        inputs: &[Argument<'_, 'py>],
        params: &[(Argument<'_, 'py>, Param)],
        out: Argument<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
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
        let function = match instead.or_else(|| self.found.get(py)) {
            Some(function) => function,
            None => self.find(py)?,
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

/// Objects created for the duration of a call, without heap allocation; unused slots cost nothing.
pub struct TemporaryObjects<'py> {
    /// The first `count` are initialized.
    objects: [MaybeUninit<Bound<'py, PyAny>>; MAX_ARGUMENTS],
    count: usize,
}

impl<'py> TemporaryObjects<'py> {
    /// Starts empty.
    #[inline]
    pub fn new() -> TemporaryObjects<'py> {
        TemporaryObjects { objects: [const { MaybeUninit::uninit() }; MAX_ARGUMENTS], count: 0 }
    }

    /// Stores an object, at most one per argument.
    #[inline]
    pub fn keep(&mut self, object: Bound<'py, PyAny>) -> *mut ffi::PyObject {
        let pointer = object.as_ptr();
        self.objects[self.count].write(object);
        self.count += 1;
        pointer
    }
}

impl Drop for TemporaryObjects<'_> {
    fn drop(&mut self) {
        for object in &mut self.objects[..self.count] {
            // SAFETY: initialized, and dropped once.
            unsafe { object.assume_init_drop() };
        }
    }
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

/// Copies a kernel's results into the caller's `out=`.
fn copy_into(out: Borrowed<'_, '_, PyAny>, result: &Bound<'_, PyAny>) -> PyResult<()> {
    let mut outputs = Out::new(Some(out));
    let results: Vec<Bound<'_, PyAny>> = match result.cast::<PyTuple>() {
        Ok(several) => several.iter().collect(),
        Err(_) => vec![result.clone()],
    };
    for one in results {
        let Some(output) = outputs.take() else {
            return Err(PyValueError::new_err("the kernel returned more tensors than out= has"));
        };
        if output.hasattr("copy_")? {
            output.call_method1("copy_", (one,))?;
        } else {
            output.set_item(output.py().Ellipsis(), one)?;
        }
    }
    Ok(())
}

impl Kernel for Hosted {
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
}
