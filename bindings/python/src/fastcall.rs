//! Functions as the interpreter calls them fastest: arguments in a row, keywords found by comparing pointers.
//!
//! The interpreter interns the names that stand in source code, and so do we: a keyword is nearly always found without
//! looking at its letters. Nothing here knows what an operation is.

use std::ffi::CStr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::OnceLock;

use pyo3::Borrowed;
use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::panic::PanicException;
use pyo3::prelude::*;

/// Arguments in the order of the signature; `None` and what was not given are nothing.
pub type Arguments<'a, 'py, const N: usize> = [Option<Borrowed<'a, 'py, PyAny>>; N];

/// What a function takes. Arguments that may come by position come first.
pub struct Signature {
    name: &'static CStr,
    doc: &'static CStr,
    parameters: &'static [&'static str],
    positional: usize,
    /// One bit an argument that must be there.
    required: u64,
    interned: OnceLock<Interned>,
}

struct Interned(Box<[*mut ffi::PyObject]>);

// SAFETY: interned strings that are never given back; their addresses are compared and nothing else.
unsafe impl Send for Interned {}
// SAFETY: as above.
unsafe impl Sync for Interned {}

impl Signature {
    /// For generated statics. The documentation begins with the signature as `inspect` reads it.
    pub const fn new(
        name: &'static CStr,
        doc: &'static CStr,
        parameters: &'static [&'static str],
        positional: usize,
        required: u64,
    ) -> Signature {
        Signature { name, doc, parameters, positional, required, interned: OnceLock::new() }
    }

    fn interned(&self) -> &[*mut ffi::PyObject] {
        let names = self.interned.get_or_init(|| {
            let intern = |name: &&str| {
                // SAFETY: the letters are UTF-8 of that length; the reference is kept for good.
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
    fn position_by_letters(&self, py: Python<'_>, name: *mut ffi::PyObject) -> PyResult<usize> {
        // SAFETY: the interpreter gives keywords as a tuple of strings that outlives the call.
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
        let absent = |place: &usize| self.required & !filled & 1 << place != 0;
        let names: Vec<String> = (0..self.parameters.len())
            .filter(absent)
            .map(|at| format!("'{}'", self.parameters[at]))
            .collect();
        self.refuse(format!("misses the required {}", names.join(", ")))
    }

    /// A refused call may be torch's to make.
    ///
    /// # Safety
    /// The pointers are those of a call with `METH_FASTCALL | METH_KEYWORDS`.
    #[cold]
    unsafe fn elsewhere<'py>(
        &self,
        py: Python<'py>,
        arguments: *const *mut ffi::PyObject,
        count: usize,
        keywords: *mut ffi::PyObject,
    ) -> Option<PyResult<Bound<'py, PyAny>>> {
        let name = self.name.to_str().ok()?;
        // SAFETY: promised by the caller.
        unsafe { crate::elsewhere::call(py, name, arguments, count, keywords) }
    }

    /// # Safety
    /// The pointers are those of a call with `METH_FASTCALL | METH_KEYWORDS`.
    #[inline]
    unsafe fn parse<'a, 'py, const N: usize>(
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
            // SAFETY: a tuple of strings, whose values follow the positional arguments.
            let more = unsafe { ffi::PyTuple_Size(keywords) };
            for number in 0..more {
                // SAFETY: as above; the tuple outlives the call, and the entry is borrowed.
                let (name, value) = unsafe {
                    (ffi::PyTuple_GetItem(keywords, number), *arguments.add(count + number as usize))
                };
                let place = match names.iter().position(|known| *known == name) {
                    Some(place) => place,
                    None => self.position_by_letters(py, name)?,
                };
                let Some(slot) = slots.get_mut(place) else { continue };
                if !slot.is_null() {
                    return Err(self.refuse(format!("got several values for '{}'", self.parameters[place])));
                }
                *slot = value;
                filled |= 1 << place;
            }
        }
        if self.required & !filled != 0 {
            return Err(self.missing(filled));
        }
        // SAFETY: None is immortal; the others are borrowed from the caller for the time of the call.
        unsafe {
            let none = ffi::Py_None();
            Ok(slots.map(|object| (object != none).then(|| Borrowed::from_ptr_or_opt(py, object)).flatten()))
        }
    }
}

/// Runs the body of a function that the interpreter calls.
///
/// # Safety
/// The pointers are those of a call with `METH_FASTCALL | METH_KEYWORDS`, and the signature has `N` parameters.
#[inline]
pub unsafe fn enter<const N: usize>(
    signature: &Signature,
    arguments: *const *mut ffi::PyObject,
    count: ffi::Py_ssize_t,
    keywords: *mut ffi::PyObject,
    body: for<'a, 'py> fn(Python<'py>, Arguments<'a, 'py, N>) -> PyResult<Bound<'py, PyAny>>,
) -> *mut ffi::PyObject {
    // SAFETY: the interpreter holds its lock when it calls.
    let py = unsafe { Python::assume_attached() };
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: promised by the caller.
        let parsed = unsafe { signature.parse(py, arguments, count as usize, keywords) }?;
        body(py, parsed)
    }));
    match outcome {
        Ok(Ok(result)) => result.into_ptr(),
        // SAFETY: promised by the caller.
        Ok(Err(error)) => match unsafe { signature.elsewhere(py, arguments, count as usize, keywords) } {
            Some(Ok(result)) => result.into_ptr(),
            Some(Err(error)) => fail(py, error),
            None => fail(py, error),
        },
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
            fail(
                py,
                PanicException::new_err((text.unwrap_or_else(|| "a panic without a message".to_owned()),)),
            )
        }
    }
}

#[cold]
fn fail(py: Python<'_>, error: PyErr) -> *mut ffi::PyObject {
    error.restore(py);
    ptr::null_mut()
}

/// A function object for a signature.
pub fn function<'py>(
    module: &Bound<'py, PyModule>,
    signature: &'static Signature,
    entry: ffi::PyCFunctionFastWithKeywords,
) -> PyResult<Bound<'py, PyAny>> {
    signature.interned();
    let definition = Box::leak(Box::new(ffi::PyMethodDef {
        ml_name: signature.name.as_ptr(),
        ml_meth: ffi::PyMethodDefPointer { PyCFunctionFastWithKeywords: entry },
        ml_flags: ffi::METH_FASTCALL | ffi::METH_KEYWORDS,
        ml_doc: signature.doc.as_ptr(),
    }));
    let name = module.name()?;
    // SAFETY: the definition is leaked, as the interpreter wants it; a new reference comes back, or null with an exception.
    unsafe {
        let object = ffi::PyCFunction_NewEx(definition, ptr::null_mut(), name.as_ptr());
        Bound::from_owned_ptr_or_err(module.py(), object)
    }
}
