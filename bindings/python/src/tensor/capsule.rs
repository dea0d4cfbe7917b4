//! Tensors of any library through DLPack capsules (`__dlpack__`).

use lz_core::device::Platform;
use lz_core::tensor::{Device, Dims, MAX_RANK};
use lz_core::{DType, Reason, ReasonCode, TensorView};
use pyo3::Borrowed;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyTuple};

use super::layout::{DLDataType, DLManagedTensor, DLManagedTensorVersioned, DLTensor, FLAG_READ_ONLY};
use super::{BorrowGuard, Kind, Owner, Problem, too_many_dimensions, unsupported};

/// Borrows a tensor through a DLPack capsule.
pub fn read(
    object: Borrowed<'_, '_, PyAny>,
    kind: Kind,
    view: &mut TensorView<'_>,
    guard: &mut BorrowGuard,
) -> Result<(), Problem> {
    let py = object.py();
    let keywords = PyDict::new(py);
    keywords.set_item("max_version", PyTuple::new(py, [1, 0])?)?;
    let capsule = match object.call_method("__dlpack__", (), Some(&keywords)) {
        Ok(capsule) => capsule,
        // Exporters before DLPack 1.0 do not accept the keyword.
        Err(error) if error.is_instance_of::<PyTypeError>(py) => object.call_method0("__dlpack__")?,
        Err(error) => return Err(export_refused(py, error)),
    };
    let capsule = capsule.cast::<PyCapsule>().map_err(PyErr::from)?;
    // SAFETY: the capsule's name is checked, its pointer has the type that the name promises, and renaming it
    // transfers the duty to call the deleter.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule.as_ptr(), c"dltensor_versioned".as_ptr()) != 0 {
            let pointer = ffi::PyCapsule_GetPointer(capsule.as_ptr(), c"dltensor_versioned".as_ptr());
            let tensor = pointer.cast::<DLManagedTensorVersioned>();
            if (*tensor).version.major > 1 {
                return Err(unsupported("DLPack with a major version above 1"));
            }
            describe(&(*tensor).dl_tensor, view)?;
            (guard.kind, guard.read_only) = (kind, (*tensor).flags & FLAG_READ_ONLY != 0);
            ffi::PyCapsule_SetName(capsule.as_ptr(), c"used_dltensor_versioned".as_ptr());
            guard.owner = Owner::DlPackVersioned(tensor);
            return Ok(());
        }
        if ffi::PyCapsule_IsValid(capsule.as_ptr(), c"dltensor".as_ptr()) == 0 {
            return Err(unsupported("a DLPack capsule without a tensor"));
        }
        let tensor =
            ffi::PyCapsule_GetPointer(capsule.as_ptr(), c"dltensor".as_ptr()).cast::<DLManagedTensor>();
        describe(&(*tensor).dl_tensor, view)?;
        guard.kind = kind;
        ffi::PyCapsule_SetName(capsule.as_ptr(), c"used_dltensor".as_ptr());
        guard.owner = Owner::DlPack(tensor);
        Ok(())
    }
}

/// Converts an exporter's `BufferError` to a reason. Other exceptions are passed on.
pub fn export_refused(py: Python<'_>, error: PyErr) -> Problem {
    if !error.is_instance_of::<PyBufferError>(py) {
        return Problem::Python(error);
    }
    Reason::new(ReasonCode::ArgumentKind)
        .required("memory that DLPack can export".to_owned())
        .found(error.value(py).to_string())
        .into()
}

/// Describes a tensor in an empty view.
///
/// # Safety
/// The tensor comes from an exporter that conforms to DLPack.
#[inline]
pub unsafe fn describe(tensor: &DLTensor, view: &mut TensorView<'_>) -> Result<(), Problem> {
    let rank = tensor.ndim as usize;
    if rank > MAX_RANK {
        return Err(too_many_dimensions(rank));
    }
    let dtype = dtype(tensor.dtype)?;
    let platform = match tensor.device.device_type {
        1 | 3 => Platform::Cpu,
        2 | 13 => Platform::Cuda,
        10 => Platform::Rocm,
        8 => Platform::Metal,
        14 => Platform::Xpu,
        other => return Err(unsupported(&format!("a tensor on DLPack device type {other}"))),
    };
    let index =
        if platform == Platform::Cpu { 0 } else { u16::try_from(tensor.device.device_id).unwrap_or(0) };
    let data = tensor.data.cast::<u8>().wrapping_add(tensor.byte_offset as usize);
    let what = (dtype, Device { platform, index });
    // SAFETY: DLPack guarantees `ndim` sizes, and as many strides if there are any; the rest is promised by
    // the caller.
    unsafe {
        if tensor.strides.is_null() {
            let shape = if rank == 0 { &[] } else { std::slice::from_raw_parts(tensor.shape, rank) };
            let dense = Dims::new(shape).unwrap_or(Dims::empty()).contiguous_strides();
            view.describe(data, rank, what, |position| (shape[position], dense[position]));
        } else {
            view.describe(data, rank, what, |position| {
                (*tensor.shape.add(position), *tensor.strides.add(position))
            });
        }
    }
    Ok(())
}

#[inline]
fn dtype(dtype: DLDataType) -> Result<DType, Problem> {
    Ok(match (dtype.code, dtype.bits, dtype.lanes) {
        (2, 64, 1) => DType::F64,
        (2, 32, 1) => DType::F32,
        (2, 16, 1) => DType::F16,
        (4, 16, 1) => DType::BF16,
        (0, 64, 1) => DType::I64,
        (0, 32, 1) => DType::I32,
        (0, 16, 1) => DType::I16,
        (0, 8, 1) => DType::I8,
        (1, 64, 1) => DType::U64,
        (1, 32, 1) => DType::U32,
        (1, 16, 1) => DType::U16,
        (1, 8, 1) => DType::U8,
        (6, 8, 1) => DType::Bool,
        (10, 8, 1) => DType::F8E4M3,
        (12, 8, 1) => DType::F8E5M2,
        (14, 8, 1) => DType::F8E8M0,
        (17, 4, 2) => DType::F4E2M1x2,
        (5, ..) => return Err(unsupported("complex numbers")),
        (code, bits, lanes) => {
            return Err(unsupported(&format!("DLPack type code {code}, {bits} bits, {lanes} lanes")));
        }
    })
}
