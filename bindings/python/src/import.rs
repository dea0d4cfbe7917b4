//! Python objects as tensor views, without copying: numpy arrays through the buffer protocol (or `__array_interface__` where
//! a dtype refuses it), everything else through DLPack.

use std::ffi::CStr;
use std::mem::MaybeUninit;

use lz_core::device::Platform;
use lz_core::tensor::{Dims, Layout, Place};
use lz_core::{DType, Reason, ReasonCode, TensorMut, TensorView};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyTuple};

use crate::dlpack::{DLDataType, DLManagedTensor, DLManagedTensorVersioned, DLTensor, FLAG_READ_ONLY};
use crate::error::refuse;

/// Which library an object belongs to, and so which one allocates results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A numpy array.
    Numpy,
    /// A torch tensor.
    Torch,
    /// Anything else with DLPack.
    Other,
}

/// A tensor that was lent by Python; gives it back when dropped.
pub struct Import {
    data: *mut u8,
    layout: Layout,
    read_only: bool,
    /// Which library it belongs to.
    pub kind: Kind,
    owner: Owner,
}

enum Owner {
    Buffer(Box<ffi::Py_buffer>),
    DlPack(*mut DLManagedTensor),
    DlPackVersioned(*mut DLManagedTensorVersioned),
    /// The object itself, kept alive.
    #[expect(dead_code, reason = "held, not read")]
    Object(Py<PyAny>),
}

impl Drop for Import {
    fn drop(&mut self) {
        match &mut self.owner {
            // SAFETY: filled by PyObject_GetBuffer and released once; the interpreter is attached wherever an import is dropped.
            Owner::Buffer(buffer) => unsafe { ffi::PyBuffer_Release(&mut **buffer) },
            Owner::DlPack(tensor) => {
                // SAFETY: taken out of its capsule, so it is ours to give back, once.
                unsafe {
                    if let Some(deleter) = (**tensor).deleter {
                        deleter(*tensor);
                    }
                }
            }
            Owner::DlPackVersioned(tensor) => {
                // SAFETY: as above.
                unsafe {
                    if let Some(deleter) = (**tensor).deleter {
                        deleter(*tensor);
                    }
                }
            }
            Owner::Object(_) => {}
        }
    }
}

impl Import {
    /// Borrows an argument.
    pub fn new(operation: &str, name: &str, object: &Bound<'_, PyAny>) -> PyResult<Import> {
        let kind = kind_of(object);
        let imported = match kind {
            Kind::Numpy => {
                from_buffer(object).or_else(|error| from_array_interface(object).map_err(|_| error))
            }
            Kind::Torch | Kind::Other => from_dlpack(object, kind),
        };
        imported.map_err(|problem| match problem {
            Problem::Python(error) => error,
            Problem::Reason(reason) => refuse(object.py(), operation, reason.argument(name)),
        })
    }

    /// Borrows an argument that will be written.
    pub fn writable(operation: &str, name: &str, object: &Bound<'_, PyAny>) -> PyResult<Import> {
        let import = Import::new(operation, name, object)?;
        if import.read_only {
            let reason = Reason::new(ReasonCode::ReadOnlyOutput)
                .argument(name)
                .message(format!("{name} is read-only, but must be written"));
            return Err(refuse(object.py(), operation, reason));
        }
        Ok(import)
    }

    /// To read.
    pub fn view(&self) -> TensorView<'_> {
        // SAFETY: the owner keeps the memory alive and described it; the caller holds it for the time of the call.
        unsafe { TensorView::from_raw(self.data, self.layout) }
    }

    /// For a question about a call that is not made: looks writable, and nobody writes.
    pub fn described(&self) -> TensorMut<'_> {
        // SAFETY: checks read the metadata alone, and no kernel gets this view.
        unsafe { TensorMut::from_raw(self.data, self.layout) }
    }

    /// To write.
    pub fn view_mut(&mut self) -> TensorMut<'_> {
        // SAFETY: as above, and writable: `writable` refused read-only memory.
        unsafe { TensorMut::from_raw(self.data, self.layout) }
    }
}

enum Problem {
    Python(PyErr),
    Reason(Reason),
}

impl From<PyErr> for Problem {
    fn from(error: PyErr) -> Problem {
        Problem::Python(error)
    }
}

impl From<Reason> for Problem {
    fn from(reason: Reason) -> Problem {
        Problem::Reason(reason)
    }
}

fn kind_of(object: &Bound<'_, PyAny>) -> Kind {
    let module =
        object.get_type().getattr("__module__").and_then(|name| name.extract::<String>()).unwrap_or_default();
    match module.split('.').next() {
        Some("numpy") => Kind::Numpy,
        Some("torch") => Kind::Torch,
        _ if object.hasattr("__array_interface__").unwrap_or(false) => Kind::Numpy,
        _ => Kind::Other,
    }
}

fn dims(what: &str, values: &[i64]) -> Result<Dims, Reason> {
    Dims::new(values).ok_or_else(|| {
        Reason::new(ReasonCode::RankMismatch)
            .required(format!("at most {} dimensions", lz_core::tensor::MAX_RANK))
            .found(format!("{} {what}", values.len()))
    })
}

fn from_buffer(object: &Bound<'_, PyAny>) -> Result<Import, Problem> {
    let mut buffer = Box::new(MaybeUninit::<ffi::Py_buffer>::zeroed());
    let flags = ffi::PyBUF_FULL_RO;
    // SAFETY: the object is alive, the buffer is zeroed memory of the right type.
    if unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), buffer.as_mut_ptr(), flags) } != 0 {
        return Err(Problem::Python(PyErr::fetch(object.py())));
    }
    // SAFETY: filled by the successful call above.
    let buffer = unsafe { Box::from_raw(Box::into_raw(buffer).cast::<ffi::Py_buffer>()) };
    let mut import = Import {
        data: buffer.buf.cast(),
        layout: Layout { shape: Dims::EMPTY, strides: Dims::EMPTY, dtype: DType::U8, place: Place::HOST },
        read_only: buffer.readonly != 0,
        kind: Kind::Numpy,
        owner: Owner::Buffer(buffer),
    };
    let Owner::Buffer(buffer) = &import.owner else { return Ok(import) };
    let format = if buffer.format.is_null() {
        "B".to_owned()
    } else {
        // SAFETY: the exporter gives a terminated string that lives as long as the buffer.
        unsafe { CStr::from_ptr(buffer.format) }.to_string_lossy().into_owned()
    };
    let dtype = dtype_of_format(&format, buffer.itemsize as usize)?;
    let rank = buffer.ndim.max(0) as usize;
    if rank > lz_core::tensor::MAX_RANK {
        return Err(dims("dimensions", &vec![0; rank])
            .err()
            .map_or_else(|| unreachable!("checked above"), Problem::Reason));
    }
    // SAFETY: PyBUF_FULL_RO makes the exporter fill both arrays with `ndim` entries (or leave them null for rank 0).
    let (shape, strides) = unsafe {
        if rank == 0 {
            (Vec::new(), Vec::new())
        } else {
            let shape: Vec<i64> =
                std::slice::from_raw_parts(buffer.shape, rank).iter().map(|&size| size as i64).collect();
            let strides: Vec<i64> = std::slice::from_raw_parts(buffer.strides, rank)
                .iter()
                .map(|&stride| stride as i64)
                .collect();
            (shape, strides)
        }
    };
    let layout = byte_layout(&shape, &strides, dtype)?;
    import.layout = layout;
    Ok(import)
}

/// A layout from strides in bytes.
fn byte_layout(shape: &[i64], strides: &[i64], dtype: DType) -> Result<Layout, Problem> {
    let size = dtype.size() as i64;
    if let Some(stride) = strides.iter().find(|&&stride| stride % size != 0) {
        return Err(Problem::Reason(
            Reason::new(ReasonCode::StrideInvalid)
                .required(format!("strides that are multiples of {size} bytes"))
                .found(format!("{stride} bytes")),
        ));
    }
    let elements: Vec<i64> = strides.iter().map(|stride| stride / size).collect();
    Ok(Layout {
        shape: dims("dimensions", shape)?,
        strides: dims("strides", &elements)?,
        dtype,
        place: Place::HOST,
    })
}

fn dtype_of_format(format: &str, size: usize) -> Result<DType, Problem> {
    let body = format.trim_start_matches(['<', '=', '@', '|']);
    let dtype = match (body, size) {
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
    };
    Ok(dtype)
}

fn unsupported(found: &str) -> Problem {
    Problem::Reason(
        Reason::new(ReasonCode::DtypeUnsupported)
            .required("a native-endian number or bool dtype".to_owned())
            .found(found.to_owned()),
    )
}

/// For dtypes that refuse the buffer protocol (bfloat16 and float8 of ml_dtypes).
fn from_array_interface(object: &Bound<'_, PyAny>) -> Result<Import, Problem> {
    let name: String = object.getattr("dtype")?.getattr("name")?.extract()?;
    let dtype = DType::parse(&name).ok_or_else(|| unsupported(&name))?;
    let interface = object.getattr("__array_interface__")?;
    let interface = interface.cast::<PyDict>().map_err(PyErr::from)?;
    let item = |key: &str| -> Result<Bound<'_, PyAny>, Problem> {
        interface.get_item(key)?.ok_or_else(|| unsupported(&format!("an __array_interface__ without {key}")))
    };
    let (address, read_only): (usize, bool) = item("data")?.extract()?;
    let shape: Vec<i64> = item("shape")?.extract()?;
    let strides: Option<Vec<i64>> = match interface.get_item("strides")? {
        Some(strides) if !strides.is_none() => Some(strides.extract()?),
        _ => None,
    };
    let layout = match strides {
        Some(strides) => byte_layout(&shape, &strides, dtype)?,
        None => Layout::contiguous(&shape, dtype)?,
    };
    Ok(Import {
        data: std::ptr::with_exposed_provenance_mut(address),
        layout,
        read_only,
        kind: Kind::Numpy,
        owner: Owner::Object(object.clone().unbind()),
    })
}

fn from_dlpack(object: &Bound<'_, PyAny>, kind: Kind) -> Result<Import, Problem> {
    let py = object.py();
    let source = if kind == Kind::Torch { without_grad(object)? } else { object.clone() };
    if !source.hasattr("__dlpack__")? {
        let name = object.get_type().fully_qualified_name().map(|name| name.to_string()).unwrap_or_default();
        return Err(Problem::Reason(
            Reason::new(ReasonCode::ArgumentKind)
                .required("a torch tensor, a numpy array or anything with __dlpack__".to_owned())
                .found(name),
        ));
    }
    let keywords = PyDict::new(py);
    keywords.set_item("max_version", PyTuple::new(py, [1, 0])?)?;
    let capsule = match source.call_method("__dlpack__", (), Some(&keywords)) {
        Ok(capsule) => capsule,
        // Exporters from before version 1.0 do not know the keyword.
        Err(error) if error.is_instance_of::<pyo3::exceptions::PyTypeError>(py) => {
            source.call_method0("__dlpack__")?
        }
        Err(error) => return Err(Problem::Python(error)),
    };
    let capsule = capsule.cast::<PyCapsule>().map_err(PyErr::from)?;
    // SAFETY: the capsule is checked for its name, its pointer is of the type that the name promises, and renaming it takes
    // over the duty to call the deleter.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule.as_ptr(), c"dltensor_versioned".as_ptr()) != 0 {
            let pointer = ffi::PyCapsule_GetPointer(capsule.as_ptr(), c"dltensor_versioned".as_ptr());
            let tensor = pointer.cast::<DLManagedTensorVersioned>();
            if (*tensor).version.major > 1 {
                return Err(unsupported("DLPack of a later major version"));
            }
            let (data, layout) = describe(&(*tensor).dl_tensor)?;
            ffi::PyCapsule_SetName(capsule.as_ptr(), c"used_dltensor_versioned".as_ptr());
            let read_only = (*tensor).flags & FLAG_READ_ONLY != 0;
            return Ok(Import { data, layout, read_only, kind, owner: Owner::DlPackVersioned(tensor) });
        }
        if ffi::PyCapsule_IsValid(capsule.as_ptr(), c"dltensor".as_ptr()) == 0 {
            return Err(unsupported("a capsule that is not a tensor"));
        }
        let tensor =
            ffi::PyCapsule_GetPointer(capsule.as_ptr(), c"dltensor".as_ptr()).cast::<DLManagedTensor>();
        let (data, layout) = describe(&(*tensor).dl_tensor)?;
        ffi::PyCapsule_SetName(capsule.as_ptr(), c"used_dltensor".as_ptr());
        Ok(Import { data, layout, read_only: false, kind, owner: Owner::DlPack(tensor) })
    }
}

/// A torch tensor that torch will export: detached if that is what the caller's grad mode means.
fn without_grad<'py>(object: &Bound<'py, PyAny>) -> Result<Bound<'py, PyAny>, Problem> {
    if !object.getattr("requires_grad")?.extract::<bool>()? {
        return Ok(object.clone());
    }
    let torch = object.py().import("torch")?;
    if torch.call_method0("is_grad_enabled")?.extract::<bool>()? {
        return Err(Problem::Reason(
            Reason::new(ReasonCode::ArgumentKind).message(
                "requires grad, and LayerZero has no backward; call under torch.no_grad() or detach it"
                    .to_owned(),
            ),
        ));
    }
    Ok(object.call_method0("detach")?)
}

/// # Safety
/// The tensor comes from an exporter that keeps DLPack's rules.
unsafe fn describe(tensor: &DLTensor) -> Result<(*mut u8, Layout), Problem> {
    let rank = usize::try_from(tensor.ndim).unwrap_or(0);
    let slice = |pointer: *mut i64| -> Vec<i64> {
        if pointer.is_null() || rank == 0 {
            Vec::new()
        } else {
            // SAFETY: DLPack promises `ndim` entries behind a pointer that is not null.
            unsafe { std::slice::from_raw_parts(pointer, rank) }.to_vec()
        }
    };
    let shape = dims("dimensions", &slice(tensor.shape))?;
    let strides = if tensor.strides.is_null() {
        shape.contiguous_strides()
    } else {
        dims("strides", &slice(tensor.strides))?
    };
    let dtype = dtype_of_dlpack(tensor.dtype)?;
    let platform = match tensor.device.device_type {
        1 | 3 => Platform::Cpu,
        2 | 13 => Platform::Cuda,
        10 => Platform::Rocm,
        8 => Platform::Metal,
        other => return Err(unsupported(&format!("a tensor on DLPack device type {other}"))),
    };
    let index =
        if platform == Platform::Cpu { 0 } else { u16::try_from(tensor.device.device_id).unwrap_or(0) };
    let data = tensor.data.cast::<u8>().wrapping_add(tensor.byte_offset as usize);
    Ok((data, Layout { shape, strides, dtype, place: Place { platform, index } }))
}

fn dtype_of_dlpack(dtype: DLDataType) -> Result<DType, Problem> {
    let found = match (dtype.code, dtype.bits, dtype.lanes) {
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
        (code, bits, lanes) => {
            return Err(unsupported(&format!("DLPack type code {code}, {bits} bits, {lanes} lanes")));
        }
    };
    Ok(found)
}
