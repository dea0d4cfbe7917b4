//! Which way the objects of a type are read. Each type is looked at once.

use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, Ordering};

use lz_core::{Reason, ReasonCode, TensorView};
use pyo3::Borrowed;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyType;

use super::{Hold, Kind, Problem, buffer, capsule, numpy, torch};

/// The address of a type, once it was seen. The type is held for good, so the address cannot become another's.
pub struct Known(AtomicPtr<ffi::PyTypeObject>);

/// `numpy.ndarray`.
pub static NUMPY: Known = Known(AtomicPtr::new(std::ptr::null_mut()));
/// `torch.Tensor`.
pub static TENSOR: Known = Known(AtomicPtr::new(std::ptr::null_mut()));
/// `torch.nn.Parameter`.
pub static PARAMETER: Known = Known(AtomicPtr::new(std::ptr::null_mut()));

impl Known {
    /// Whether it is this one.
    #[inline]
    pub fn is(&self, ty: *mut ffi::PyTypeObject) -> bool {
        self.0.load(Ordering::Relaxed) == ty
    }

    /// Remembers a type and holds it.
    pub fn learn(&self, ty: &Bound<'_, PyType>) {
        self.0.store(ty.clone().into_ptr().cast(), Ordering::Relaxed);
    }
}

/// The exact type of an object, by address.
#[inline]
pub fn of(object: Borrowed<'_, '_, PyAny>) -> *mut ffi::PyTypeObject {
    // SAFETY: the object is alive.
    unsafe { ffi::Py_TYPE(object.as_ptr()) }
}

/// Whether an object is of one of the types that come in every call.
#[inline]
pub fn is_usual(object: Borrowed<'_, '_, PyAny>) -> bool {
    let ty = of(object);
    NUMPY.is(ty) || TENSOR.is(ty) || PARAMETER.is(ty)
}

/// How objects of a type are read.
#[derive(Clone, Copy)]
enum Way {
    /// As `numpy.ndarray` itself: its struct is at the front of every subclass.
    Array,
    /// An array of numpy's through the buffer protocol, where its struct is not known.
    ArrayBuffer,
    /// As `torch.Tensor` itself.
    Tensor,
    /// Through `__dlpack__`.
    Capsule,
    /// Through the buffer protocol.
    Buffer,
    /// Not by us: it computes by `__torch_dispatch__`.
    Dispatch,
    /// Not at all.
    Refused(&'static str),
}

/// Types that are neither of the three, with a reference to each.
static WAYS: Mutex<Vec<(usize, Way)>> = Mutex::new(Vec::new());

/// Reads an object whose type is none of the three.
#[inline(never)]
pub fn read(
    object: Borrowed<'_, '_, PyAny>,
    view: &mut TensorView<'_>,
    hold: &mut Hold,
) -> Result<(), Problem> {
    let address = of(object) as usize;
    let way = match known(address) {
        Some(way) => way,
        None => look(object)?,
    };
    match way {
        // SAFETY: a subclass of numpy's array begins with its struct.
        Way::Array => unsafe { numpy::read(object, view, hold) },
        Way::Tensor => torch::read(object, view, hold),
        Way::Capsule => capsule::read(object, Kind::Other, view, hold),
        Way::Buffer => buffer::read(object, Kind::Buffer, view, hold),
        Way::ArrayBuffer => buffer::read(object, Kind::Numpy, view, hold),
        Way::Dispatch => {
            let why = "a tensor that computes by __torch_dispatch__ has no memory that a kernel could use";
            Err(refused(object, why))
        }
        Way::Refused(why) => Err(refused(object, why)),
    }
}

fn known(address: usize) -> Option<Way> {
    let ways = WAYS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    ways.iter().find(|(ty, _)| *ty == address).map(|(_, way)| *way)
}

fn refused(object: Borrowed<'_, '_, PyAny>, why: &str) -> Problem {
    Reason::new(ReasonCode::ArgumentKind)
        .required("a torch tensor, a numpy array or anything with __dlpack__".to_owned())
        .found(format!("{} ({why})", type_name(object)))
        .into()
}

/// Whether an object is a tensor that computes by `__torch_dispatch__`.
pub fn computes_by_dispatch(object: Borrowed<'_, '_, PyAny>) -> bool {
    let way = known(of(object) as usize).map_or_else(|| look(object).ok(), Some);
    matches!(way, Some(Way::Dispatch))
}

fn type_name(object: Borrowed<'_, '_, PyAny>) -> String {
    object.get_type().fully_qualified_name().map(|name| name.to_string()).unwrap_or_default()
}

/// Looks at a type for the first time.
#[cold]
fn look(object: Borrowed<'_, '_, PyAny>) -> Result<Way, Problem> {
    let py = object.py();
    let ty = object.get_type();
    // A module that was never imported cannot have made the object, so nothing is imported to look.
    let modules = py.import("sys")?.getattr("modules")?;
    let loaded = |name: &str| modules.get_item(name).ok().filter(|module| !module.is_none());
    let way = if let Some(module) = loaded("torch").filter(|torch| is_a(&ty, torch, "Tensor")) {
        torch::learn(&module)?;
        // FakeTensors, DTensors and their kin hold no memory of their own, or not the memory that they stand for.
        let plain = module.getattr("Tensor")?.getattr("__torch_dispatch__")?;
        if ty.getattr("__torch_dispatch__")?.is(&plain) { Way::Tensor } else { Way::Dispatch }
    } else if let Some(module) = loaded("numpy").filter(|numpy| is_a(&ty, numpy, "ndarray")) {
        let masked = module.getattr("ma").is_ok_and(|masked| is_a(&ty, &masked, "MaskedArray"));
        match (masked, numpy::learn(&module)?) {
            (true, _) => Way::Refused("its mask would be lost"),
            (false, true) => Way::Array,
            (false, false) => Way::ArrayBuffer,
        }
    } else if loaded("numpy").is_some_and(|numpy| is_a(&ty, &numpy, "generic")) {
        Way::Refused("a numpy scalar; pass numpy.asarray of it")
    } else if ty.hasattr("__dlpack__")? {
        Way::Capsule
    } else {
        // SAFETY: the object is alive.
        match unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) } {
            0 => Way::Refused("it has no memory to share"),
            _ => Way::Buffer,
        }
    };
    if !matches!(way, Way::Array | Way::Tensor) || !(NUMPY.is(of(object)) || TENSOR.is(of(object))) {
        let address = ty.into_ptr() as usize;
        WAYS.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((address, way));
    }
    Ok(way)
}

fn is_a(ty: &Bound<'_, PyType>, module: &Bound<'_, PyAny>, class: &str) -> bool {
    module.getattr(class).is_ok_and(|class| ty.is_subclass(&class).unwrap_or(false))
}
