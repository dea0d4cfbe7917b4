//! The functions of `layerzero.ops`: objects of a custom type with vectorcall and a `plan` method. `help`,
//! `inspect` and Dynamo see built-in functions; Dynamo substitutes only those.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulong, c_void};
use std::mem::offset_of;
use std::ptr;

use pyo3::ffi;
use pyo3::prelude::*;

use crate::fastcall::{Entry, guarded};
use crate::plan::{PyPlan, Source};

#[repr(C)]
struct Function {
    object: ffi::PyObject,
    vectorcall: ffi::vectorcallfunc,
    entry: &'static Entry,
    /// Weak references to it, which Dynamo's guards guard.
    weak: *mut ffi::PyObject,
}

/// Parts of the limited API from Python 3.12 on, with the same meaning before.
const HAVE_VECTORCALL: c_ulong = 1 << 11;
unsafe extern "C" {
    fn PyVectorcall_Call(
        callable: *mut ffi::PyObject,
        arguments: *mut ffi::PyObject,
        keywords: *mut ffi::PyObject,
    ) -> *mut ffi::PyObject;
}

/// # Safety
/// The object is an `Operation` function object of this module.
unsafe fn entry_of(object: *mut ffi::PyObject) -> &'static Entry {
    // SAFETY: promised by the caller.
    unsafe { (*object.cast::<Function>()).entry }
}

fn text(text: &str) -> *mut ffi::PyObject {
    // SAFETY: UTF-8 text of that length; the result is a new reference, or null with an exception.
    unsafe { ffi::PyUnicode_FromStringAndSize(text.as_ptr().cast(), text.len() as ffi::Py_ssize_t) }
}

unsafe extern "C" fn name(object: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
    // SAFETY: a method of our type.
    text(unsafe { entry_of(object) }.signature.name())
}

unsafe extern "C" fn doc(object: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
    // SAFETY: as above.
    text(unsafe { entry_of(object) }.signature.doc().1)
}

unsafe extern "C" fn text_signature(object: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
    // SAFETY: as above.
    text(unsafe { entry_of(object) }.signature.doc().0)
}

/// The value of `__class__`, which `isinstance` checks in addition to the type.
unsafe extern "C" fn class(_: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
    let class = (&raw mut ffi::PyCFunction_Type).cast::<ffi::PyObject>();
    // SAFETY: the type of built-in functions lives as long as the interpreter.
    unsafe {
        ffi::Py_INCREF(class);
    }
    class
}

unsafe extern "C" fn repr(object: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: a method of our type.
    text(&format!("<operation {}>", unsafe { entry_of(object) }.operation.name))
}

/// Pickled and copied by name.
unsafe extern "C" fn reduce(object: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: a method of our type.
    text(unsafe { entry_of(object) }.signature.name())
}

unsafe extern "C" fn plan(
    object: *mut ffi::PyObject,
    arguments: *const *mut ffi::PyObject,
    count: ffi::Py_ssize_t,
    keywords: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: the interpreter holds the GIL when it calls a method, and passes the arguments that these flags
    // state.
    unsafe {
        guarded(|py| {
            let entry = entry_of(object);
            let plan = PyPlan::make(Source::Catalog(entry), |selection| {
                (entry.call_with)(py, selection, arguments, count as usize, keywords)
            })?;
            Ok(Bound::new(py, plan)?.into_any())
        })
    }
}

const PLAN_DOC: &CStr = c"plan($self, /, *arguments, **keywords)\n--\n\n\
Selects the kernel for calls like this one without running it. The arguments are those of the operation. Returns a plan whose\n\
`run` takes the same arguments and uses that kernel, and whatever the kernel precomputed, until you make a new plan. Kernels\n\
that plan from the values of page tables do so here: plan again when the values change. `run` refuses calls with other sizes,\n\
dtypes or params.";

fn attribute(name: &'static CStr, get: ffi::getter) -> ffi::PyGetSetDef {
    ffi::PyGetSetDef { name: name.as_ptr(), get: Some(get), ..Default::default() }
}

/// A type member that holds the offset of a field.
fn member(name: &'static CStr, offset: usize) -> ffi::PyMemberDef {
    ffi::PyMemberDef {
        name: name.as_ptr(),
        type_code: ffi::Py_T_PYSSIZET,
        offset: offset as ffi::Py_ssize_t,
        flags: ffi::Py_READONLY,
        doc: ptr::null::<c_char>(),
    }
}

fn slot<T>(slot: c_int, what: *const T) -> ffi::PyType_Slot {
    ffi::PyType_Slot { slot, pfunc: what.cast_mut().cast() }
}

/// Creates the type. Definitions that the interpreter keeps reading are leaked.
fn make_type(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let attributes = [
        attribute(c"__name__", name),
        attribute(c"__qualname__", name),
        attribute(c"__doc__", doc),
        attribute(c"__text_signature__", text_signature),
        attribute(c"__class__", class),
        ffi::PyGetSetDef::default(),
    ];
    let methods = [
        ffi::PyMethodDef {
            ml_name: c"plan".as_ptr(),
            ml_meth: ffi::PyMethodDefPointer { PyCFunctionFastWithKeywords: plan },
            ml_flags: ffi::METH_FASTCALL | ffi::METH_KEYWORDS,
            ml_doc: PLAN_DOC.as_ptr(),
        },
        ffi::PyMethodDef {
            ml_name: c"__reduce__".as_ptr(),
            ml_meth: ffi::PyMethodDefPointer { PyCFunction: reduce },
            ml_flags: ffi::METH_NOARGS,
            ml_doc: ptr::null(),
        },
        ffi::PyMethodDef::zeroed(),
    ];
    let members = [
        member(c"__vectorcalloffset__", offset_of!(Function, vectorcall)),
        member(c"__weaklistoffset__", offset_of!(Function, weak)),
        ffi::PyMemberDef::default(),
    ];
    let mut slots = [
        slot(ffi::Py_tp_call, PyVectorcall_Call as *const c_void),
        slot(ffi::Py_tp_repr, repr as *const c_void),
        slot(ffi::Py_tp_getset, Box::leak(Box::new(attributes)).as_ptr()),
        slot(ffi::Py_tp_methods, Box::leak(Box::new(methods)).as_ptr()),
        slot(ffi::Py_tp_members, Box::leak(Box::new(members)).as_ptr()),
        ffi::PyType_Slot::default(),
    ];
    let flags = ffi::Py_TPFLAGS_DEFAULT
        | ffi::Py_TPFLAGS_IMMUTABLETYPE
        | ffi::Py_TPFLAGS_DISALLOW_INSTANTIATION
        | HAVE_VECTORCALL;
    let mut spec = ffi::PyType_Spec {
        name: c"layerzero.ops.Operation".as_ptr(),
        basicsize: size_of::<Function>() as c_int,
        itemsize: 0,
        flags: flags as c_uint,
        slots: slots.as_mut_ptr(),
    };
    // SAFETY: the spec is complete; the result is a new reference, or null with an exception.
    unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyType_FromSpec(&raw mut spec)) }
}

/// Adds one function per entry.
pub fn add(module: &Bound<'_, PyModule>, entries: &[&'static Entry]) -> PyResult<()> {
    let py = module.py();
    let class = make_type(py)?;
    for entry in entries {
        entry.signature.prepare();
        // SAFETY: objects of this type have these fields, which are written before the object is visible.
        let object = unsafe {
            let object = ffi::PyType_GenericAlloc(class.as_ptr().cast(), 0);
            if let Some(function) = object.cast::<Function>().as_mut() {
                ptr::write(&raw mut function.vectorcall, entry.call);
                ptr::write(&raw mut function.entry, *entry);
                ptr::write(&raw mut function.weak, ptr::null_mut());
            }
            Bound::from_owned_ptr_or_err(py, object)?
        };
        module.add(entry.signature.name(), object)?;
    }
    Ok(())
}
