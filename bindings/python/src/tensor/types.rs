//! How objects of each type are read. Each type is classified once.

use std::sync::atomic::{AtomicPtr, Ordering};

use lz_core::fork::Mutex;
use lz_core::{Reason, ReasonCode, TensorView};
use pyo3::Borrowed;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyType};

use super::{BorrowGuard, Kind, Problem, buffer, capsule, numpy, torch};

/// The address of a type, once it was seen. The type is never released, so the address cannot be reused.
pub struct TypeAddress(AtomicPtr<ffi::PyTypeObject>);

/// `numpy.ndarray`.
pub static NUMPY: TypeAddress = TypeAddress(AtomicPtr::new(std::ptr::null_mut()));
/// `torch.Tensor`.
pub static TENSOR: TypeAddress = TypeAddress(AtomicPtr::new(std::ptr::null_mut()));
/// `torch.nn.Parameter`.
pub static PARAMETER: TypeAddress = TypeAddress(AtomicPtr::new(std::ptr::null_mut()));

impl TypeAddress {
    /// Whether it is this type.
    #[inline]
    pub fn is(&self, ty: *mut ffi::PyTypeObject) -> bool {
        self.0.load(Ordering::Relaxed) == ty
    }

    /// Stores a type and keeps a reference to it.
    pub fn set(&self, ty: &Bound<'_, PyType>) {
        self.0.store(ty.clone().into_ptr().cast(), Ordering::Relaxed);
    }
}

/// The exact type of an object, by address.
#[inline]
pub fn of(object: Borrowed<'_, '_, PyAny>) -> *mut ffi::PyTypeObject {
    // SAFETY: the object is alive.
    unsafe { ffi::Py_TYPE(object.as_ptr()) }
}

/// Whether an object is a `torch.Tensor` or `torch.nn.Parameter`, not an instance of another subclass, which
/// may override attributes.
#[inline]
pub fn is_plain_tensor(object: Borrowed<'_, '_, PyAny>) -> bool {
    let ty = of(object);
    TENSOR.is(ty) || PARAMETER.is(ty)
}

/// Whether an object has one of the common tensor types.
#[inline]
pub fn is_common_tensor(object: Borrowed<'_, '_, PyAny>) -> bool {
    let ty = of(object);
    NUMPY.is(ty) || TENSOR.is(ty) || PARAMETER.is(ty)
}

/// How objects of a type are read.
#[derive(Clone, Copy)]
enum Access {
    /// As `numpy.ndarray`: every subclass begins with its struct.
    Array,
    /// A numpy array through the buffer protocol, if the struct's version is unknown.
    ArrayBuffer,
    /// As `torch.Tensor`.
    Tensor,
    /// Through `__dlpack__`.
    Capsule,
    /// Through the buffer protocol.
    Buffer,
    /// A `str`: its UTF-8 bytes.
    Text,
    /// Not read: it implements `__torch_dispatch__`.
    Dispatch,
    /// Refused, with the reason.
    Refused(&'static str),
}

/// Types other than the three common ones, with a reference to each.
static ACCESS_BY_TYPE: Mutex<Vec<(usize, Access)>> = Mutex::new(Vec::new());

/// Reads an object of another type than the three common ones.
#[inline(never)]
pub fn read(
    object: Borrowed<'_, '_, PyAny>,
    view: &mut TensorView<'_>,
    guard: &mut BorrowGuard,
) -> Result<(), Problem> {
    let address = of(object) as usize;
    let access = match cached_access(address) {
        Some(access) => access,
        None => classify(object)?,
    };
    match access {
        // SAFETY: a subclass of `numpy.ndarray` begins with its struct.
        Access::Array => unsafe { numpy::read(object, view, guard) },
        Access::Tensor => torch::read(object, view, guard),
        Access::Capsule => capsule::read(object, Kind::Other, view, guard),
        Access::Buffer => buffer::read(object, Kind::Buffer, view, guard),
        Access::Text => buffer::read_text(object, view, guard),
        Access::ArrayBuffer => buffer::read(object, Kind::Numpy, view, guard),
        Access::Dispatch => {
            let why = "a tensor that implements __torch_dispatch__ has no memory that a kernel could use";
            Err(refused(object, why))
        }
        Access::Refused(why) => Err(refused(object, why)),
    }
}

fn cached_access(address: usize) -> Option<Access> {
    let types = ACCESS_BY_TYPE.lock();
    types.iter().find(|(ty, _)| *ty == address).map(|(_, access)| *access)
}

fn refused(object: Borrowed<'_, '_, PyAny>, why: &str) -> Problem {
    Reason::new(ReasonCode::ArgumentKind)
        .required("a torch tensor, a numpy array or anything with __dlpack__".to_owned())
        .found(format!("{} ({why})", type_name(object)))
        .into()
}

/// Whether an object is a tensor that implements `__torch_dispatch__`.
pub fn implements_torch_dispatch(object: Borrowed<'_, '_, PyAny>) -> bool {
    let access = cached_access(of(object) as usize).map_or_else(|| classify(object).ok(), Some);
    matches!(access, Some(Access::Dispatch))
}

fn type_name(object: Borrowed<'_, '_, PyAny>) -> String {
    object.get_type().fully_qualified_name().map(|name| name.to_string()).unwrap_or_default()
}

/// Classifies a type on first use.
#[cold]
fn classify(object: Borrowed<'_, '_, PyAny>) -> Result<Access, Problem> {
    let py = object.py();
    let ty = object.get_type();
    // A module that was never imported cannot have created the object, so nothing is imported here.
    let modules = py.import("sys")?.getattr("modules")?;
    let loaded = |name: &str| modules.get_item(name).ok().filter(|module| !module.is_none());
    let access = if let Some(module) = loaded("torch").filter(|torch| is_a(&ty, torch, "Tensor")) {
        torch::register(&module)?;
        // Fake tensors, DTensors and similar subclasses have no memory, or memory that is not the tensor's
        // content.
        let plain = module.getattr("Tensor")?.getattr("__torch_dispatch__")?;
        if ty.getattr("__torch_dispatch__")?.is(&plain) { Access::Tensor } else { Access::Dispatch }
    } else if let Some(module) = loaded("numpy").filter(|numpy| is_a(&ty, numpy, "ndarray")) {
        let masked = module.getattr("ma").is_ok_and(|masked| is_a(&ty, &masked, "MaskedArray"));
        match (masked, numpy::register(&module)?) {
            (true, _) => Access::Refused("its mask would be lost; pass the filled array"),
            (false, true) => Access::Array,
            (false, false) => Access::ArrayBuffer,
        }
    } else if loaded("numpy").is_some_and(|numpy| is_a(&ty, &numpy, "generic")) {
        Access::Refused("a numpy scalar; pass numpy.asarray of it")
    } else if object.is_exact_instance_of::<PyString>() {
        Access::Text
    } else if ty.hasattr("__dlpack__")? {
        Access::Capsule
    } else {
        // SAFETY: the object is alive.
        match unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) } {
            0 => Access::Refused("it supports neither DLPack nor the buffer protocol"),
            _ => Access::Buffer,
        }
    };
    if !matches!(access, Access::Array | Access::Tensor) || !(NUMPY.is(of(object)) || TENSOR.is(of(object))) {
        let address = ty.into_ptr() as usize;
        ACCESS_BY_TYPE.lock().push((address, access));
    }
    Ok(access)
}

fn is_a(ty: &Bound<'_, PyType>, module: &Bound<'_, PyAny>, class: &str) -> bool {
    module.getattr(class).is_ok_and(|class| ty.is_subclass(&class).unwrap_or(false))
}
