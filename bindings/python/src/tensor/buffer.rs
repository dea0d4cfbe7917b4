//! Memory through the buffer protocol: memoryviews, `array.array`, bytes. Works without numpy.

use std::ffi::CStr;
use std::mem::MaybeUninit;

use lz_core::tensor::{Device, Dims};
use lz_core::{DType, Reason, ReasonCode, TensorView};
use pyo3::Borrowed;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyString, PyTuple};

use super::{BorrowGuard, Kind, Owner, Problem, describe_bytes, unsupported};

/// Borrows the memory of an object through the buffer protocol.
pub fn read(
    object: Borrowed<'_, '_, PyAny>,
    kind: Kind,
    view: &mut TensorView<'_>,
    guard: &mut BorrowGuard,
) -> Result<(), Problem> {
    let mut buffer = Box::new(MaybeUninit::<ffi::Py_buffer>::zeroed());
    // SAFETY: the object is alive, the buffer is zeroed memory of the right type.
    if unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), buffer.as_mut_ptr(), ffi::PyBUF_FULL_RO) } != 0 {
        return Err(Problem::Python(PyErr::fetch(object.py())));
    }
    // SAFETY: filled by the successful call above.
    let buffer = unsafe { Box::from_raw(Box::into_raw(buffer).cast::<ffi::Py_buffer>()) };
    let (data, rank, size) = (buffer.buf.cast::<u8>(), buffer.ndim.max(0) as usize, buffer.itemsize as usize);
    let (shape, strides, format) = (buffer.shape, buffer.strides, buffer.format);
    (guard.read_only, guard.kind) = (buffer.readonly != 0, kind);
    // From here on dropping the hold releases the buffer.
    guard.owner = Owner::Buffer(buffer);
    let format = if format.is_null() {
        "B".to_owned()
    } else {
        // SAFETY: the exporter provides a null-terminated string that lives as long as the buffer.
        unsafe { CStr::from_ptr(format) }.to_string_lossy().into_owned()
    };
    // SAFETY: as below.
    if !shape.is_null() && (0..rank).any(|position| unsafe { *shape.add(position) } == 0) {
        // No Python buffer can represent an empty output.
        return Err(Reason::new(ReasonCode::ZeroSize)
            .required(
                "a buffer with at least one element, or an empty numpy array or torch tensor".to_owned(),
            )
            .found("an empty buffer".to_owned())
            .into());
    }
    // SAFETY: PyBUF_FULL_RO makes the exporter fill both arrays with `ndim` entries.
    unsafe { describe_bytes(view, data, rank, (shape, strides), dtype(&format, size)?) }
}

/// Borrows the UTF-8 bytes of a `str`, which keeps them as long as it lives.
pub fn read_text(
    object: Borrowed<'_, '_, PyAny>,
    view: &mut TensorView<'_>,
    guard: &mut BorrowGuard,
) -> Result<(), Problem> {
    let text = object.cast::<PyString>().map_err(PyErr::from)?;
    let text = text.to_str()?;
    (guard.read_only, guard.kind) = (true, Kind::Text);
    // SAFETY: the caller holds the object, and with it the bytes, for the duration of the call.
    unsafe {
        view.describe(text.as_ptr().cast_mut(), 1, (DType::U8, Device::HOST), |_| (text.len() as i64, 1));
    }
    Ok(())
}

fn dtype(format: &str, size: usize) -> Result<DType, Problem> {
    let body = format.trim_start_matches(['<', '=', '@', '|']);
    Ok(match (body, size) {
        ("f", 4) => DType::F32,
        ("d", 8) => DType::F64,
        ("e", 2) => DType::F16,
        ("?", 1) => DType::Bool,
        ("b" | "c", 1) => DType::I8,
        ("B", 1) => DType::U8,
        ("h", 2) => DType::I16,
        ("H", 2) => DType::U16,
        ("i" | "l", 4) => DType::I32,
        ("I" | "L", 4) => DType::U32,
        ("l" | "q", 8) => DType::I64,
        ("L" | "Q", 8) => DType::U64,
        _ => return Err(unsupported(format)),
    })
}

/// Allocates an output as a memoryview.
pub fn allocate<'py>(py: Python<'py>, sizes: &Dims, dtype: DType) -> PyResult<Bound<'py, PyAny>> {
    let format = match dtype {
        DType::F64 => "d",
        DType::F32 => "f",
        DType::F16 => "e",
        DType::I64 => "q",
        DType::I32 => "i",
        DType::I16 => "h",
        DType::I8 => "b",
        DType::U64 => "Q",
        DType::U32 => "I",
        DType::U16 => "H",
        DType::Bool => "?",
        _ => "B",
    };
    let bytes = sizes.product().unwrap_or(0).max(0) as usize * dtype.size();
    let memory = PyByteArray::new_with(py, bytes, |_| Ok(()))?;
    let view = py.import("builtins")?.getattr("memoryview")?.call1((memory,))?;
    view.call_method1("cast", (format, PyTuple::new(py, sizes.iter())?))
}
