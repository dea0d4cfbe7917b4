//! The functions of `layerzero.ops`: objects of a type of our own, called by the interpreter's fastest convention, with `plan`
//! beside. To everything that asks they are built-in functions: `help`, `inspect`, and Dynamo, which substitutes only such.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulong, c_void};
use std::mem::offset_of;
use std::ptr;

use lz_core::OperationInfo;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::fastcall::{Signature, guarded};
use crate::plan::{PyPlan, Source, Way};

/// Calls an operation with arguments as the interpreter passes them, with somebody else deciding.
pub type Along = for<'py> unsafe fn(
    Python<'py>,
    Way<'_>,
    *const *mut ffi::PyObject,
    usize,
    *mut ffi::PyObject,
) -> PyResult<Bound<'py, PyAny>>;

/// An operation of the catalogue, as generated code describes it.
pub struct Entry {
    /// What it is.
    pub operation: &'static OperationInfo,
    /// What it takes.
    pub signature: &'static Signature,
    /// What the interpreter calls.
    pub call: ffi::vectorcallfunc,
    /// The same for plans.
    pub along: Along,
}

#[repr(C)]
struct Function {
    object: ffi::PyObject,
    vectorcall: ffi::vectorcallfunc,
    entry: &'static Entry,
    /// Weak references to it, which Dynamo keeps of what its guards look at.
    weak: *mut ffi::PyObject,
}

/// Parts of the limited interface from Python 3.12 on, which mean the same before.
const HAVE_VECTORCALL: c_ulong = 1 << 11;
unsafe extern "C" {
    fn PyVectorcall_Call(
        callable: *mut ffi::PyObject,
        arguments: *mut ffi::PyObject,
        keywords: *mut ffi::PyObject,
    ) -> *mut ffi::PyObject;
}

/// # Safety
/// The object is one of ours.
unsafe fn entry_of(object: *mut ffi::PyObject) -> &'static Entry {
    // SAFETY: promised by the caller.
    unsafe { (*object.cast::<Function>()).entry }
}

fn text(text: &str) -> *mut ffi::PyObject {
    // SAFETY: the letters are UTF-8 of that length; a new reference comes back, or null with an exception.
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

/// `isinstance` asks an object for its class where its type is another.
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

/// Pickled and copied by its name.
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
    // SAFETY: the interpreter holds its lock when it calls a method, and passes what a call with these flags has.
    unsafe {
        guarded(|py| {
            let entry = entry_of(object);
            let plan = PyPlan::make(Source::Catalogue(entry), |way| {
                (entry.along)(py, way, arguments, count as usize, keywords)
            })?;
            Ok(Bound::new(py, plan)?.into_any())
        })
    }
}

const PLAN_DOC: &CStr = c"plan($self, /, *arguments, **keywords)\n--\n\n\
Decides for calls like this one, without running anything: the arguments are those of the operation. What comes back has\n\
`run`, which takes them too and uses that decision, and what the kernel worked out for it, until you make a new plan. Kernels\n\
that plan from the values of page tables do so here: when the values change, plan again. Calls of other sizes, dtypes or\n\
params are refused.";

fn attribute(name: &'static CStr, get: ffi::getter) -> ffi::PyGetSetDef {
    ffi::PyGetSetDef { name: name.as_ptr(), get: Some(get), ..Default::default() }
}

/// Where the interpreter finds something in each object.
fn place(name: &'static CStr, offset: usize) -> ffi::PyMemberDef {
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

/// The type of all of them. What the interpreter goes on reading is leaked.
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
        place(c"__vectorcalloffset__", offset_of!(Function, vectorcall)),
        place(c"__weaklistoffset__", offset_of!(Function, weak)),
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
    // SAFETY: the description is whole; a new reference comes back, or null with an exception.
    unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyType_FromSpec(&raw mut spec)) }
}

/// Adds a function an entry.
pub fn add(module: &Bound<'_, PyModule>, entries: &[&'static Entry]) -> PyResult<()> {
    let py = module.py();
    let class = make_type(py)?;
    for entry in entries {
        entry.signature.prepare();
        // SAFETY: the type is the one whose objects have these fields, which are written before anybody sees the object.
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
