//! Plans: `lz.ops.<operation>.plan(...)` returns one; its `run` takes the arguments of the operation.
//!
//! A plan fixes the kernel, and what the kernel precomputed, until the caller makes a new plan. Arguments are
//! validated as in any other call; the engine checks that they match the planned call.

use std::cell::OnceCell;

use lz_core::OperationInfo;
use pyo3::Borrowed;
use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::dynamic_call;
use crate::fastcall::{Entry, collect_arguments, guarded};
use crate::selection::{PlannedKernel, Selection};

/// The operation of a plan.
pub enum Source {
    /// An operation with generated code.
    Catalog(&'static Entry),
    /// An operation loaded at run time.
    Read(&'static OperationInfo),
}

/// One kernel for calls with equal shapes, dtypes and params.
#[pyclass(name = "PlanHandle", module = "layerzero", frozen, subclass)]
pub struct PyPlan {
    source: Source,
    planned: PlannedKernel,
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
    /// Makes a plan: `call` calls the operation with the given `Selection`.
    pub fn make<'py>(
        source: Source,
        call: impl FnOnce(Selection<'_>) -> PyResult<Bound<'py, PyAny>>,
    ) -> PyResult<PyPlan> {
        let kept = OnceCell::new();
        call(Selection::Plan(&kept))?;
        let planned = kept.into_inner();
        let planned = planned.ok_or_else(|| PyRuntimeError::new_err("planning selected no kernel"))?;
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
    // SAFETY: the interpreter holds the GIL when it calls a method, and passes the arguments that these flags
    // state.
    unsafe {
        guarded(|py| {
            let plan = Borrowed::from_ptr(py, plan);
            let plan = plan.cast::<PyPlan>()?;
            let plan = plan.get();
            let selection = Selection::Planned(&plan.planned);
            match plan.source {
                Source::Catalog(entry) => {
                    (entry.call_with)(py, selection, arguments, count as usize, keywords)
                }
                Source::Read(info) => {
                    let (arguments, keywords) = collect_arguments(py, arguments, count as usize, keywords)?;
                    dynamic_call::call(py, selection, info, &arguments, Some(&keywords))
                }
            }
        })
    }
}

/// Adds the class. `run` is a vectorcall method: PyO3 would pass arguments as a tuple and a dictionary, which
/// costs more than the rest of the call.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add_class::<PyPlan>()?;
    let class = py.get_type::<PyPlan>();
    let definition = Box::leak(Box::new(ffi::PyMethodDef {
        ml_name: c"run".as_ptr(),
        ml_meth: ffi::PyMethodDefPointer { PyCFunctionFastWithKeywords: run },
        ml_flags: ffi::METH_FASTCALL | ffi::METH_KEYWORDS,
        ml_doc: c"run($self, /, *arguments, **keywords)\n--\n\nCalls the operation with the planned kernel."
            .as_ptr(),
    }));
    // SAFETY: the definition is leaked, as the interpreter requires; the result is a new reference, or null
    // with an exception.
    let method =
        unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyDescr_NewMethod(class.as_type_ptr(), definition))? };
    class.setattr("run", method)
}
