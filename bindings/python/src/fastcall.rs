//! Functions with CPython's vectorcall convention: arguments in an array, keyword names compared by pointer.
//!
//! The interpreter interns names in source code, and so does this module: a keyword is nearly always matched
//! without comparing characters.

use std::ffi::CStr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::OnceLock;

use lz_core::OperationInfo;
use pyo3::Borrowed;
use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::panic::PanicException;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::error::is_no_kernel;
use crate::selection::Selection;
use crate::split;
use crate::torch_dispatch;

/// The flag that the interpreter sets in the argument count to mark a free slot before the arguments
/// (`PY_VECTORCALL_ARGUMENTS_OFFSET`). Part of the limited API from Python 3.12 on, and the same before.
const ARGUMENTS_OFFSET: usize = 1 << (usize::BITS - 1);

/// Arguments in signature order; absent arguments and `None` are `None`.
pub type Arguments<'a, 'py, const N: usize> = [Option<Borrowed<'a, 'py, PyAny>>; N];

/// The signature of a function. Positional arguments come first.
pub struct Signature {
    name: &'static CStr,
    doc: &'static CStr,
    parameters: &'static [&'static str],
    positional: usize,
    /// One bit per required argument.
    required: u64,
    interned: OnceLock<Interned>,
}

struct Interned(Box<[*mut ffi::PyObject]>);

// SAFETY: interned strings that are never released; only their addresses are compared.
unsafe impl Send for Interned {}
// SAFETY: as above.
unsafe impl Sync for Interned {}

impl Signature {
    /// For generated statics. The docstring begins with the signature as `inspect` parses it.
    pub const fn new(
        name: &'static CStr,
        doc: &'static CStr,
        parameters: &'static [&'static str],
        positional: usize,
        required: u64,
    ) -> Signature {
        Signature { name, doc, parameters, positional, required, interned: OnceLock::new() }
    }

    /// The same arguments without `out=`.
    pub fn without_out<'a, 'py, const N: usize>(
        &self,
        mut arguments: Arguments<'a, 'py, N>,
    ) -> Arguments<'a, 'py, N> {
        for (argument, name) in arguments.iter_mut().zip(self.parameters) {
            if *name == "out" {
                *argument = None;
            }
        }
        arguments
    }

    /// The function's name.
    pub fn name(&self) -> &'static str {
        self.name.to_str().unwrap_or_default()
    }

    /// The signature as `inspect` parses it, and the docstring.
    pub fn doc(&self) -> (&'static str, &'static str) {
        let text = self.doc.to_str().unwrap_or_default();
        let (head, rest) = text.split_once("\n--\n\n").unwrap_or(("", text));
        (head.find('(').map_or("", |at| &head[at..]), rest)
    }

    /// Interns the parameter names ahead of the first call.
    pub fn prepare(&self) {
        self.interned();
    }

    fn interned(&self) -> &[*mut ffi::PyObject] {
        let names = self.interned.get_or_init(|| {
            let intern = |name: &&str| {
                // SAFETY: UTF-8 text of that length; the reference is never released.
                unsafe {
                    let mut text =
                        ffi::PyUnicode_FromStringAndSize(name.as_ptr().cast(), name.len() as ffi::Py_ssize_t);
                    ffi::PyUnicode_InternInPlace(&raw mut text);
                    text
                }
            };
            Interned(self.parameters.iter().map(intern).collect())
        });
        &names.0
    }

    #[cold]
    fn position_by_text(&self, py: Python<'_>, name: *mut ffi::PyObject) -> PyResult<usize> {
        // SAFETY: the interpreter passes keyword names as a tuple of strings that outlives the call.
        let name = unsafe { Borrowed::from_ptr(py, name) };
        let text: String = name.extract()?;
        self.parameters.iter().position(|known| *known == text).ok_or_else(|| {
            let near = lz_schema::diagnostics::nearest(&text, self.parameters.iter().copied());
            let hint = near.map(|near| format!("; did you mean '{near}'?")).unwrap_or_default();
            self.refuse(format!("got an unexpected keyword argument '{text}'{hint}"))
        })
    }

    #[cold]
    fn refuse(&self, what: String) -> PyErr {
        PyTypeError::new_err(format!("{}() {what}", self.name.to_string_lossy()))
    }

    #[cold]
    fn missing(&self, filled: u64) -> PyErr {
        let absent = |index: &usize| self.required & !filled & 1 << index != 0;
        let names: Vec<String> = (0..self.parameters.len())
            .filter(absent)
            .map(|at| format!("'{}'", self.parameters[at]))
            .collect();
        self.refuse(format!("is missing the required arguments {}", names.join(", ")))
    }

    /// Parses arguments into signature order.
    ///
    /// # Safety
    /// The pointers are those of a call with `METH_FASTCALL | METH_KEYWORDS`.
    #[inline]
    pub unsafe fn parse<'a, 'py, const N: usize>(
        &self,
        py: Python<'py>,
        arguments: *const *mut ffi::PyObject,
        count: usize,
        keywords: *mut ffi::PyObject,
    ) -> PyResult<Arguments<'a, 'py, N>> {
        let mut slots = [ptr::null_mut::<ffi::PyObject>(); N];
        if count > self.positional {
            return Err(self
                .refuse(format!("takes at most {} positional arguments, but got {count}", self.positional)));
        }
        let mut filled = (1u64 << count) - 1;
        for (number, slot) in slots.iter_mut().enumerate().take(count) {
            // SAFETY: the interpreter passes `count` arguments.
            *slot = unsafe { *arguments.add(number) };
        }
        if !keywords.is_null() {
            let names = self.interned();
            // SAFETY: a tuple of strings; their values follow the positional arguments.
            let more = unsafe { ffi::PyTuple_Size(keywords) };
            for number in 0..more {
                // SAFETY: as above; the tuple outlives the call, and the entry is borrowed.
                let (name, value) = unsafe {
                    (ffi::PyTuple_GetItem(keywords, number), *arguments.add(count + number as usize))
                };
                let index = match names.iter().position(|known| *known == name) {
                    Some(index) => index,
                    None => self.position_by_text(py, name)?,
                };
                let Some(slot) = slots.get_mut(index) else { continue };
                if !slot.is_null() {
                    return Err(
                        self.refuse(format!("got multiple values for argument '{}'", self.parameters[index]))
                    );
                }
                *slot = value;
                filled |= 1 << index;
            }
        }
        if self.required & !filled != 0 {
            return Err(self.missing(filled));
        }
        // SAFETY: None is immortal; the others are borrowed from the caller for the duration of the call.
        unsafe {
            let none = ffi::Py_None();
            Ok(slots.map(|object| (object != none).then(|| Borrowed::from_ptr_or_opt(py, object)).flatten()))
        }
    }
}

/// Calls an operation with vectorcall arguments, with the kernel selected as `Selection` states.
pub type CallWith = for<'py> unsafe fn(
    Python<'py>,
    Selection<'_>,
    *const *mut ffi::PyObject,
    usize,
    *mut ffi::PyObject,
) -> PyResult<Bound<'py, PyAny>>;

/// An operation of the catalog, as generated code describes it.
pub struct Entry {
    /// The operation.
    pub operation: &'static OperationInfo,
    /// Its signature.
    pub signature: &'static Signature,
    /// The vectorcall function.
    pub call: ffi::vectorcallfunc,
    /// The call function of plans.
    pub call_with: CallWith,
}

/// Runs the body of a function that the interpreter calls.
///
/// # Safety
/// The pointers are those of a vectorcall, and the signature has `N` parameters.
#[inline]
pub unsafe fn enter<const N: usize>(
    entry: &'static Entry,
    arguments: *const *mut ffi::PyObject,
    count: usize,
    keywords: *mut ffi::PyObject,
    body: for<'a, 'py> fn(Python<'py>, Selection<'a>, Arguments<'a, 'py, N>) -> PyResult<Bound<'py, PyAny>>,
) -> *mut ffi::PyObject {
    let count = count & !ARGUMENTS_OFFSET;
    // SAFETY: the interpreter holds the GIL when it calls; the pointers are as promised by the caller.
    unsafe {
        guarded(|py| {
            let parsed = entry.signature.parse(py, arguments, count, keywords);
            match parsed.and_then(|parsed| body(py, Selection::Select, parsed)) {
                Err(error) => handle_failure(entry, error, py, arguments, count, keywords),
                done => done,
            }
        })
    }
}

/// Handles a failed call: it may belong to torch's dispatcher, or may run in parts.
///
/// # Safety
/// The pointers are those of a call with `METH_FASTCALL | METH_KEYWORDS`.
#[cold]
unsafe fn handle_failure<'py>(
    entry: &'static Entry,
    error: PyErr,
    py: Python<'py>,
    arguments: *const *mut ffi::PyObject,
    count: usize,
    keywords: *mut ffi::PyObject,
) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: promised by the caller.
    unsafe {
        if let Some(result) = torch_dispatch::call(py, entry.signature.name(), arguments, count, keywords) {
            return result;
        }
        if !is_no_kernel(py, &error) {
            return Err(error);
        }
        let (arguments, keywords) = collect_arguments(py, arguments, count, keywords)?;
        split::call(py, entry.operation, &arguments, Some(&keywords))?.ok_or(error)
    }
}

/// Arguments as a tuple and a dictionary.
///
/// # Safety
/// The pointers are those of a call with `METH_FASTCALL | METH_KEYWORDS`.
pub unsafe fn collect_arguments<'py>(
    py: Python<'py>,
    arguments: *const *mut ffi::PyObject,
    count: usize,
    keywords: *mut ffi::PyObject,
) -> PyResult<(Bound<'py, PyTuple>, Bound<'py, PyDict>)> {
    // SAFETY: the positional arguments are followed by one value per keyword, and all of them outlive the
    // call.
    unsafe {
        let at = |index: usize| Borrowed::from_ptr(py, *arguments.add(index));
        let positional = PyTuple::new(py, (0..count).map(at))?;
        let named = PyDict::new(py);
        if !keywords.is_null() {
            let names = Borrowed::from_ptr(py, keywords);
            for (number, name) in names.cast::<PyTuple>()?.iter().enumerate() {
                named.set_item(name, at(count + number))?;
            }
        }
        Ok((positional, named))
    }
}

/// Runs a function called by the interpreter; errors and panics become Python exceptions.
///
/// # Safety
/// The interpreter is attached.
#[inline]
pub unsafe fn guarded<'py>(
    body: impl FnOnce(Python<'py>) -> PyResult<Bound<'py, PyAny>>,
) -> *mut ffi::PyObject {
    // SAFETY: promised by the caller.
    let py = unsafe { Python::assume_attached() };
    match catch_unwind(AssertUnwindSafe(|| body(py))) {
        Ok(Ok(result)) => result.into_ptr(),
        Ok(Err(error)) => fail(py, error),
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
            let text = text.unwrap_or_else(|| "a panic without a message".to_owned());
            fail(py, PanicException::new_err((text,)))
        }
    }
}

#[cold]
fn fail(py: Python<'_>, error: PyErr) -> *mut ffi::PyObject {
    error.restore(py);
    ptr::null_mut()
}
