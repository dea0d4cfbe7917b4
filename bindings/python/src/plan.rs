//! Plans: what `lz.ops.<operation>.plan(...)` gives, and whose `run` takes the arguments of the operation.
//!
//! A plan fixes the kernel, and what that worked out beforehand, until the caller makes a new one. The call is checked as any
//! other; that it looks like the one that was planned is checked by the engine.

use std::cell::OnceCell;

use lz_core::OperationInfo;
use lz_engine::engine::Pinned;
use pyo3::Borrowed;
use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::fastcall::{collected, guarded};
use crate::function::Entry;
use crate::runtime;

/// Who decides which kernel runs a call.
#[derive(Clone, Copy)]
pub enum Way<'h> {
    /// The engine, now.
    Decide,
    /// The engine, for calls that will come: nothing runs, and what is decided is kept there.
    Plan(&'h OnceCell<Planned>),
    /// A plan did.
    Along(&'h Planned),
}

/// What a plan fixes.
pub struct Planned {
    /// The decision.
    pub pinned: Pinned,
    /// What a kernel in Python gave to be called in its place.
    pub run: Option<Py<PyAny>>,
}

/// What a plan is of.
pub enum Source {
    /// An operation with generated code.
    Catalogue(&'static Entry),
    /// One that was read at run time.
    Read(&'static OperationInfo),
}

/// One kernel for calls that look alike.
#[pyclass(name = "PlanHandle", module = "layerzero", frozen, subclass)]
pub struct PyPlan {
    source: Source,
    planned: Planned,
}

#[pymethods]
impl PyPlan {
    /// The operation's dotted name.
    #[getter]
    fn operation(&self) -> &str {
        &self.planned.pinned.operation().name
    }

    /// The kernel that runs.
    #[getter]
    fn kernel(&self) -> &str {
        &self.planned.pinned.entry().spec.id
    }

    fn __repr__(&self) -> String {
        format!("<plan of {} with {}>", self.operation(), self.kernel())
    }
}

impl PyPlan {
    /// Plans: `call` calls the operation with what it is given here.
    pub fn make<'py>(
        source: Source,
        call: impl FnOnce(Way<'_>) -> PyResult<Bound<'py, PyAny>>,
    ) -> PyResult<PyPlan> {
        let kept = OnceCell::new();
        call(Way::Plan(&kept))?;
        let planned = kept.into_inner();
        let planned = planned.ok_or_else(|| PyRuntimeError::new_err("nothing was decided"))?;
        Ok(PyPlan { source, planned })
    }
}

/// # Safety
/// For the interpreter to call, as a method of `PlanHandle`.
unsafe extern "C" fn run(
    plan: *mut ffi::PyObject,
    arguments: *const *mut ffi::PyObject,
    count: ffi::Py_ssize_t,
    keywords: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: the interpreter holds its lock when it calls a method, and passes what a call with these flags has.
    unsafe {
        guarded(|py| {
            let plan = Borrowed::from_ptr(py, plan);
            let plan = plan.cast::<PyPlan>()?;
            let plan = plan.get();
            let way = Way::Along(&plan.planned);
            match plan.source {
                Source::Catalogue(entry) => (entry.along)(py, way, arguments, count as usize, keywords),
                Source::Read(info) => {
                    let (arguments, keywords) = collected(py, arguments, count as usize, keywords)?;
                    runtime::call(py, way, info, &arguments, Some(&keywords))
                }
            }
        })
    }
}

/// Adds the class. PyO3 would pass arguments as a tuple and a dictionary, which costs more than all the rest of a call.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add_class::<PyPlan>()?;
    let class = py.get_type::<PyPlan>();
    let definition = Box::leak(Box::new(ffi::PyMethodDef {
        ml_name: c"run".as_ptr(),
        ml_meth: ffi::PyMethodDefPointer { PyCFunctionFastWithKeywords: run },
        ml_flags: ffi::METH_FASTCALL | ffi::METH_KEYWORDS,
        ml_doc: c"run($self, /, *arguments, **keywords)\n--\n\nCalls the operation as it was planned."
            .as_ptr(),
    }));
    // SAFETY: the definition is leaked, as the interpreter wants it; a new reference comes back, or null with an exception.
    let method =
        unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyDescr_NewMethod(class.as_type_ptr(), definition))? };
    class.setattr("run", method)
}
