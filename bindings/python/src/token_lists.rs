//! Python lists of token ids and byte ranges. Each list is created with its final length and filled once, from the values that a kernel
//! returned.

use std::sync::{Mutex, MutexGuard};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyList;

/// Integer objects by id: creating an integer takes longer than the rest of building a list. Ids of a text repeat, and so do those of
/// all tokenizers together.
static INTEGERS: Mutex<Integers> = Mutex::new(Integers(Vec::new()));
/// Larger ids get a new integer object each time.
const MAX_SHARED_ID: usize = 1 << 19;

/// The integer object of each id that occurred, with [`COUNTED`] in its address; null for the others. A reference to each is kept and
/// never released.
struct Integers(Vec<*mut ffi::PyObject>);

/// The bit of an address, 0 in that of an object, that states that references to the object are counted. They are not if the object is
/// immortal.
const COUNTED: usize = 1;

// SAFETY: the objects are used only by threads that are attached to the interpreter.
unsafe impl Send for Integers {}

impl Integers {
    /// A new reference to the object of an id that did not occur; null with an exception if there is no memory.
    #[cold]
    fn add(&mut self, _py: Python<'_>, id: i32) -> *mut ffi::PyObject {
        // SAFETY: returns a new reference, or null with an exception.
        let object = unsafe { ffi::PyLong_FromLong(id.into()) };
        let index = usize::try_from(id).ok().filter(|index| *index < MAX_SHARED_ID);
        if let (Some(index), false) = (index, object.is_null()) {
            if index >= self.0.len() {
                self.0.resize((index + 1).next_power_of_two(), std::ptr::null_mut());
            }
            // SAFETY: the object is alive. The reference that is added here is the one that is kept.
            let counted = unsafe {
                let before = (*object).ob_refcnt;
                ffi::Py_INCREF(object);
                (*object).ob_refcnt != before
            };
            self.0[index] = object.map_addr(|address| address | usize::from(counted));
        }
        object
    }

    /// A new reference to the object of an id; null with an exception if there is no memory.
    #[inline]
    fn reference(&mut self, py: Python<'_>, id: i32) -> *mut ffi::PyObject {
        match self.0.get(id as usize) {
            Some(known) if !known.is_null() => {
                let object = known.map_addr(|address| address & !COUNTED);
                // The field is part of the stable ABI, and this is what its `Py_INCREF` does; a call of the function takes longer than
                // the rest of this loop.
                // SAFETY: the object is alive, because a reference is kept, and the interpreter is attached.
                unsafe { (*object).ob_refcnt += (known.addr() & COUNTED) as ffi::Py_ssize_t };
                object
            }
            _ => self.add(py, id),
        }
    }
}

/// Builds lists.
pub struct Lists {
    /// Allocating a list can run finalizers, which may build lists too: without the lock no integers are shared.
    integers: Option<MutexGuard<'static, Integers>>,
}

impl Lists {
    /// Takes the lock of the shared integers if it is free.
    pub fn new() -> Lists {
        Lists { integers: INTEGERS.try_lock().ok() }
    }

    /// A list of ids.
    pub fn ids<'py>(&mut self, py: Python<'py>, ids: &[i32]) -> PyResult<Bound<'py, PyList>> {
        match self.integers.as_deref_mut() {
            Some(integers) => filled(py, ids, |id| integers.reference(py, *id)),
            // SAFETY: returns a new reference, or null with an exception.
            None => filled(py, ids, |id| unsafe { ffi::PyLong_FromLong((*id).into()) }),
        }
    }

    /// A list of `[start, end]` of byte ranges, given one after the other.
    pub fn ranges<'py>(&mut self, py: Python<'py>, ranges: &[i64]) -> PyResult<Bound<'py, PyList>> {
        let (pairs, _) = ranges.as_chunks::<2>();
        filled(py, pairs, |pair| {
            // SAFETY: returns a new reference, or null with an exception.
            let list = filled(py, pair, |byte| unsafe { ffi::PyLong_FromLongLong(*byte) });
            new_reference(py, list)
        })
    }

    /// A list of lists.
    pub fn rows<'py, T>(
        &mut self,
        py: Python<'py>,
        rows: &[T],
        row: impl Fn(&mut Lists, &T) -> PyResult<Bound<'py, PyList>>,
    ) -> PyResult<Bound<'py, PyList>> {
        filled(py, rows, |one| new_reference(py, row(self, one)))
    }
}

/// The list as a reference, or null with the exception set.
fn new_reference(py: Python<'_>, list: PyResult<Bound<'_, PyList>>) -> *mut ffi::PyObject {
    match list {
        Ok(list) => list.into_ptr(),
        Err(error) => {
            error.restore(py);
            std::ptr::null_mut()
        }
    }
}

/// A list with one item per value. `item` returns a new reference, or null with an exception.
#[inline]
fn filled<'py, T>(
    py: Python<'py>,
    values: &[T],
    mut item: impl FnMut(&T) -> *mut ffi::PyObject,
) -> PyResult<Bound<'py, PyList>> {
    // SAFETY: the list is new and has a slot per value; `PyList_SetItem` takes the reference. An item that could not be created leaves
    // slots empty, which the release of the list permits.
    unsafe {
        let list = Bound::from_owned_ptr_or_err(py, ffi::PyList_New(values.len() as ffi::Py_ssize_t))?;
        for (index, value) in values.iter().enumerate() {
            let object = item(value);
            if object.is_null() {
                return Err(PyErr::fetch(py));
            }
            ffi::PyList_SetItem(list.as_ptr(), index as ffi::Py_ssize_t, object);
        }
        Ok(list.cast_into_unchecked())
    }
}
