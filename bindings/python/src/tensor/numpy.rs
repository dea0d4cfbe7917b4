//! numpy arrays, read by the struct that numpy's C API publishes (`PyArrayObject_fields`, and the beginning
//! of `PyArray_Descr`), for C API versions with this layout. Other versions are read through the buffer
//! protocol.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use lz_core::tensor::Dims;
use lz_core::{DType, TensorView};
use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyTuple, PyType};
use pyo3::{Borrowed, intern};

use super::{BorrowGuard, Kind, Problem, describe_bytes, types, unsupported};
use crate::private;

/// `PyArrayObject_fields`.
#[repr(C)]
struct ArrayObject {
    head: ffi::PyObject,
    data: *mut u8,
    rank: c_int,
    shape: *mut isize,
    strides: *mut isize,
    base: *mut ffi::PyObject,
    descriptor: *mut Descriptor,
    flags: c_int,
}

/// The beginning of `PyArray_Descr`.
#[repr(C)]
struct Descriptor {
    head: ffi::PyObject,
    class: *mut ffi::PyTypeObject,
    kind: u8,
    letter: u8,
    byte_order: u8,
    flags: u8,
    number: c_int,
}

const WRITEABLE: c_int = 0x0400;

/// Borrows an array.
///
/// # Safety
/// The object is an array: its type is `numpy.ndarray` or a subclass of it.
#[inline]
pub unsafe fn read(
    object: Borrowed<'_, '_, PyAny>,
    view: &mut TensorView<'_>,
    guard: &mut BorrowGuard,
) -> Result<(), Problem> {
    // SAFETY: promised by the caller; the array and its descriptor live as long as the object.
    unsafe {
        let array = &*object.as_ptr().cast::<ArrayObject>();
        let dtype = dtype_of(object, array.descriptor)?;
        (guard.kind, guard.read_only) = (Kind::Numpy, array.flags & WRITEABLE == 0);
        describe_bytes(view, array.data, array.rank as usize, (array.shape, array.strides), dtype)
    }
}

/// # Safety
/// The descriptor is the array's own.
#[inline]
unsafe fn dtype_of(array: Borrowed<'_, '_, PyAny>, descriptor: *mut Descriptor) -> Result<DType, Problem> {
    // SAFETY: promised by the caller.
    let descriptor = unsafe { &*descriptor };
    if matches!(descriptor.byte_order, b'>' | b's') {
        return Err(unsupported("a non-native byte order"));
    }
    let long =
        if size_of::<std::ffi::c_long>() == 8 { (DType::I64, DType::U64) } else { (DType::I32, DType::U32) };
    Ok(match descriptor.number {
        0 => DType::Bool,
        1 => DType::I8,
        2 => DType::U8,
        3 => DType::I16,
        4 => DType::U16,
        5 => DType::I32,
        6 => DType::U32,
        7 => long.0,
        8 => long.1,
        9 => DType::I64,
        10 => DType::U64,
        11 => DType::F32,
        12 => DType::F64,
        23 => DType::F16,
        _ => return dtype_by_name(array),
    })
}

/// The dtype by name, for types whose number differs between processes: those of ml_dtypes.
fn dtype_by_name(array: Borrowed<'_, '_, PyAny>) -> Result<DType, Problem> {
    let name: String = array.getattr("dtype")?.getattr("name")?.extract()?;
    DType::parse(&name).ok_or_else(|| unsupported(&name))
}

type Empty = unsafe extern "C" fn(c_int, *const isize, *mut c_void, c_int) -> *mut ffi::PyObject;

/// `PyArray_Empty`, and the dtype objects used so far.
struct Interface {
    empty: Empty,
    dtypes: [AtomicPtr<ffi::PyObject>; DType::ALL.len() + 1],
}

static INTERFACE: PyOnceLock<Option<Interface>> = PyOnceLock::new();

/// Indices of `PyArray_GetNDArrayCVersion` and `PyArray_Empty` in numpy's function table.
const VERSION: usize = 0;
const EMPTY: usize = 184;
/// ABI versions with this struct: numpy 1 and numpy 2.
const VERSIONS: [u32; 2] = [0x0100_0009, 0x0200_0000];

/// Registers `numpy.ndarray`; returns whether its arrays can be read by their struct.
pub fn register(module: &Bound<'_, PyAny>) -> PyResult<bool> {
    let is_known = INTERFACE.get_or_try_init(module.py(), || Interface::find(module))?.is_some();
    if !is_known {
        return Ok(false);
    }
    types::NUMPY.set(module.getattr("ndarray")?.cast::<PyType>()?);
    Ok(true)
}

impl Interface {
    /// The functions of numpy's C API; nothing if its version is unknown.
    fn find(numpy: &Bound<'_, PyAny>) -> PyResult<Option<Interface>> {
        let py = numpy.py();
        let version: String = numpy.getattr("__version__")?.extract()?;
        // The module that numpy's own header imports.
        let inner = if version.starts_with("1.") { "numpy.core" } else { "numpy._core" };
        let capsule = py.import(format!("{inner}._multiarray_umath"))?.getattr("_ARRAY_API")?;
        // SAFETY: numpy's capsule has no name and holds the function table; the first function returns the
        // table's version, and both functions have had these indices and types since numpy 1.0.
        unsafe {
            let table = ffi::PyCapsule_GetPointer(capsule.as_ptr(), ptr::null()).cast::<*const c_void>();
            if table.is_null() {
                return Err(PyErr::fetch(py));
            }
            let (version, empty) = (*table.add(VERSION), *table.add(EMPTY));
            if version.is_null() || empty.is_null() {
                return Err(PyRuntimeError::new_err("numpy's C API has no PyArray_Empty"));
            }
            #[expect(
                clippy::disallowed_methods,
                reason = "there is no other way from a table's pointer to a function"
            )]
            let (version, empty) = (
                std::mem::transmute::<*const c_void, unsafe extern "C" fn() -> u32>(version),
                std::mem::transmute::<*const c_void, Empty>(empty),
            );
            let dtypes = [const { AtomicPtr::new(ptr::null_mut()) }; DType::ALL.len() + 1];
            let is_known = VERSIONS.contains(&version()) && private::allowed();
            Ok(is_known.then_some(Interface { empty, dtypes }))
        }
    }
}

/// Allocates an output as a numpy array; its memory is uninitialized.
pub fn allocate<'py>(py: Python<'py>, sizes: &Dims, dtype: DType) -> PyResult<(Bound<'py, PyAny>, *mut u8)> {
    if INTERFACE.get(py).is_none() {
        register(py.import("numpy")?.as_any())?;
    }
    let Some(Some(interface)) = INTERFACE.get(py) else { return allocate_by_call(py, sizes, dtype) };
    let cached = &interface.dtypes[dtype as usize];
    let mut descriptor = cached.load(Ordering::Relaxed);
    if descriptor.is_null() {
        descriptor = dtype_object(py, dtype)?.into_ptr();
        cached.store(descriptor, Ordering::Relaxed);
    }
    let mut shape = [0isize; lz_core::tensor::MAX_RANK];
    for (entry, &size) in shape.iter_mut().zip(sizes.iter()) {
        *entry = size as isize;
    }
    // SAFETY: the function steals one reference to the dtype, and returns a new array or null with an
    // exception.
    unsafe {
        ffi::Py_INCREF(descriptor);
        let object = (interface.empty)(sizes.len() as c_int, shape.as_ptr(), descriptor.cast(), 0);
        let object = Bound::from_owned_ptr_or_err(py, object)?;
        let data = (*object.as_ptr().cast::<ArrayObject>()).data;
        Ok((object, data))
    }
}

/// Allocates through `numpy.empty`.
#[cold]
fn allocate_by_call<'py>(
    py: Python<'py>,
    sizes: &Dims,
    dtype: DType,
) -> PyResult<(Bound<'py, PyAny>, *mut u8)> {
    let shape = PyTuple::new(py, sizes.iter())?;
    let object = py.import("numpy")?.call_method1("empty", (shape, dtype_object(py, dtype)?))?;
    let address: usize = object.getattr("ctypes")?.getattr("data")?.extract()?;
    Ok((object, ptr::with_exposed_provenance_mut(address)))
}

/// The numpy dtype; dtypes that numpy lacks come from ml_dtypes, and packed 4-bit floats are bytes.
pub fn dtype_object(py: Python<'_>, dtype: DType) -> PyResult<Bound<'_, PyAny>> {
    let numpy = py.import(intern!(py, "numpy"))?;
    match dtype {
        DType::BF16 | DType::F8E4M3 | DType::F8E5M2 | DType::F8E8M0 => {
            numpy.call_method1("dtype", (py.import("ml_dtypes")?.getattr(dtype.long_name())?,))
        }
        DType::F4E2M1x2 => numpy.call_method1("dtype", ("uint8",)),
        _ => numpy.call_method1("dtype", (dtype.long_name(),)),
    }
}
