//! Calls of Python callables with CPython's vectorcall convention: arguments in an array on the stack.

use std::mem::MaybeUninit;

use pyo3::Borrowed;
use pyo3::ffi;
use pyo3::prelude::*;

/// An argument, or nothing if it was not passed or is `None`.
pub type Argument<'a, 'py> = Option<Borrowed<'a, 'py, PyAny>>;

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
