//! Kernels that are Python functions. They get the caller's own objects, and what they return goes to the caller as it is, once
//! it was checked against the schema.

use std::any::Any;
use std::mem::MaybeUninit;

use lz_core::{Arg, Kernel, KernelEntry, KernelError, OutArg, Run};
use pyo3::Borrowed;
use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyString, PyTuple};

use crate::call::{Frame, Given};
use crate::output::Out;
use crate::plan::Way;
use crate::results::{Wanted, checked};

/// A kernel in Python.
pub struct Hosted {
    /// What was registered; it may only know where the function is (`layerzero.backends.Later`).
    function: Py<PyAny>,
    /// The function itself, once it was called or asked for.
    found: PyOnceLock<Py<PyAny>>,
    /// Whether it can write into places that the caller gives.
    takes_out: bool,
    /// Names of the params, then `out`.
    names: Py<PyTuple>,
    names_with_out: Py<PyTuple>,
}

/// A param with its value filled in, for functions that the caller did not give it to.
#[derive(Clone, Copy)]
pub enum Param {
    /// A number.
    Float(f64),
    /// A whole number.
    Int(i64),
    /// A truth value.
    Bool(bool),
    /// A case of an enum.
    Text(&'static str),
}

unsafe extern "C" {
    /// Part of the limited interface from Python 3.12 on, and exported with the same meaning before.
    pub fn PyObject_Vectorcall(
        callable: *mut ffi::PyObject,
        arguments: *const *mut ffi::PyObject,
        count: usize,
        keywords: *mut ffi::PyObject,
    ) -> *mut ffi::PyObject;
}

/// More arguments than any operation has.
pub const ROOM: usize = 48;

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
            // It is empty, so that it takes it.
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

    /// Whether it can write into places that the caller gives.
    pub fn takes_out(&self) -> bool {
        self.takes_out
    }

    /// Runs it: inputs by position, params by name with their values filled in, `out=` if it was given and can be taken. While
    /// something is planned it plans instead, and what that gave is called in its place later.
    pub fn run<'py>(
        &self,
        frame: &mut Frame<'_, 'py>,
        inputs: &[Given<'_, 'py>],
        params: &[(Given<'_, 'py>, Param)],
        wanted: &[Wanted],
        out: Given<'_, 'py>,
    ) -> Result<(), KernelError> {
        let planned = match frame.way {
            Way::Decide => None,
            Way::Along(planned) => planned.run.as_ref(),
            Way::Plan(_) => return self.plan(frame, inputs, params),
        };
        match self.call(frame.py, planned, inputs, params, out) {
            Ok(_) if out.is_some() && self.takes_out => Ok(()),
            Ok(result) => {
                let result = checked(frame, wanted, result)?;
                match out {
                    None => frame.keep_result(result),
                    Some(out) => copy_into(out, &result).map_err(|error| frame.failed(error))?,
                }
                Ok(())
            }
            Err(error) => Err(frame.failed(error)),
        }
    }

    /// A function with an attribute `plan` is asked for what is to be called in its place.
    #[cold]
    fn plan<'py>(
        &self,
        frame: &mut Frame<'_, 'py>,
        inputs: &[Given<'_, 'py>],
        params: &[(Given<'_, 'py>, Param)],
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

    /// Calls the function, or what takes its place.
    fn call<'py>(
        &self,
        py: Python<'py>,
        instead: Option<&Py<PyAny>>,
        inputs: &[Given<'_, 'py>],
        params: &[(Given<'_, 'py>, Param)],
        out: Given<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let mut arguments = [const { MaybeUninit::<*mut ffi::PyObject>::uninit() }; ROOM];
        if inputs.len() + params.len() + 1 > ROOM {
            return Err(PyValueError::new_err("more arguments than a kernel in Python can take"));
        }
        // SAFETY: None is immortal.
        let none = unsafe { ffi::Py_None() };
        for (place, input) in arguments.iter_mut().zip(inputs) {
            place.write(input.map_or(none, |object| object.as_ptr()));
        }
        let mut made = Made::new();
        for (place, (given, value)) in arguments.iter_mut().skip(inputs.len()).zip(params) {
            place.write(match given {
                Some(object) => object.as_ptr(),
                None => made.keep(value.into_object(py)?),
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
        // SAFETY: as many arguments as inputs and names, all of them written and alive during the call; a new reference comes
        // back, or null with an exception.
        unsafe {
            let arguments = arguments.as_ptr().cast::<*mut ffi::PyObject>();
            let result = PyObject_Vectorcall(function.as_ptr(), arguments, inputs.len(), names.as_ptr());
            Bound::from_owned_ptr_or_err(py, result)
        }
    }
}

/// Objects that are made for the time of a call; only those that there are cost anything.
pub struct Made<'py> {
    /// The first `count` are written.
    objects: [MaybeUninit<Bound<'py, PyAny>>; ROOM],
    count: usize,
}

impl<'py> Made<'py> {
    /// None yet.
    #[inline]
    pub fn new() -> Made<'py> {
        Made { objects: [const { MaybeUninit::uninit() }; ROOM], count: 0 }
    }

    /// Keeps an object, one for each argument at most.
    #[inline]
    pub fn keep(&mut self, object: Bound<'py, PyAny>) -> *mut ffi::PyObject {
        let pointer = object.as_ptr();
        self.objects[self.count].write(object);
        self.count += 1;
        pointer
    }
}

impl Drop for Made<'_> {
    fn drop(&mut self) {
        for object in &mut self.objects[..self.count] {
            // SAFETY: written, and dropped once.
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

/// Writes what a kernel returned into the caller's places.
fn copy_into(out: Borrowed<'_, '_, PyAny>, result: &Bound<'_, PyAny>) -> PyResult<()> {
    let mut places = Out::new(Some(out));
    let results: Vec<Bound<'_, PyAny>> = match result.cast::<PyTuple>() {
        Ok(several) => several.iter().collect(),
        Err(_) => vec![result.clone()],
    };
    for one in results {
        let Some(place) = places.take() else {
            return Err(PyValueError::new_err("the kernel returned more tensors than out= has places"));
        };
        if place.hasattr("copy_")? {
            place.call_method1("copy_", (one,))?;
        } else {
            place.set_item(place.py().Ellipsis(), one)?;
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
            "a kernel in Python works on the caller's own objects, and this call did not come from Python";
        Err(KernelError::declined(message))
    }
}
