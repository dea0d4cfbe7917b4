//! The DLPack structures, as in the specification. No behavior here.

use std::ffi::c_void;

/// A device.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DLDevice {
    /// 1 is the CPU, 2 CUDA, 3 pinned host memory, 8 Metal, 10 ROCm, 13 CUDA managed, 14 oneAPI (Intel GPUs).
    pub device_type: i32,
    /// Device index.
    pub device_id: i32,
}

/// Element type.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DLDataType {
    /// Type code: integer, float, …
    pub code: u8,
    /// Bits per lane.
    pub bits: u8,
    /// Lanes.
    pub lanes: u16,
}

/// A borrowed tensor.
#[repr(C)]
pub struct DLTensor {
    /// Start of the memory.
    pub data: *mut c_void,
    /// Device of the memory.
    pub device: DLDevice,
    /// Number of dimensions.
    pub ndim: i32,
    /// Element type.
    pub dtype: DLDataType,
    /// Sizes.
    pub shape: *mut i64,
    /// Strides in elements; null means contiguous.
    pub strides: *mut i64,
    /// Bytes from `data` to the first element.
    pub byte_offset: u64,
}

impl DLTensor {
    /// Zeroed, to be filled by an exporter.
    pub const EMPTY: DLTensor = DLTensor {
        data: std::ptr::null_mut(),
        device: DLDevice { device_type: 0, device_id: 0 },
        ndim: 0,
        dtype: DLDataType { code: 0, bits: 0, lanes: 0 },
        shape: std::ptr::null_mut(),
        strides: std::ptr::null_mut(),
        byte_offset: 0,
    };
}

/// Fills a tensor from a Python object, which must outlive it.
pub type Borrow = unsafe extern "C" fn(*mut c_void, *mut DLTensor) -> std::ffi::c_int;

/// A tensor with its owner, before version 1.0.
#[repr(C)]
pub struct DLManagedTensor {
    /// The tensor.
    pub dl_tensor: DLTensor,
    /// Context of the exporter.
    pub manager_ctx: *mut c_void,
    /// Releases the tensor.
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensor)>,
}

/// Version of the structures.
#[repr(C)]
pub struct DLPackVersion {
    /// Breaking changes.
    pub major: u32,
    /// Compatible additions.
    pub minor: u32,
}

/// A tensor with its owner, from version 1.0.
#[repr(C)]
pub struct DLManagedTensorVersioned {
    /// Version.
    pub version: DLPackVersion,
    /// Context of the exporter.
    pub manager_ctx: *mut c_void,
    /// Releases the tensor.
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensorVersioned)>,
    /// Bit 0: read-only.
    pub flags: u64,
    /// The tensor.
    pub dl_tensor: DLTensor,
}

/// Flag of read-only memory.
pub const FLAG_READ_ONLY: u64 = 1;

/// The DLPack exchange API: functions with which a framework exports tensors without a capsule per tensor,
/// from version 1.3 of the specification.
#[repr(C)]
pub struct DLPackExchangeAPI {
    /// Version.
    pub version: DLPackVersion,
    /// The table of an earlier version, or null.
    pub previous: *const DLPackExchangeAPI,
    /// The allocator; not used here, because its memory cannot be resized.
    pub allocate: *const c_void,
    /// Creates an owned tensor from an object.
    pub managed_from_object: *const c_void,
    /// Creates an object from an owned tensor.
    pub object_from_managed: *const c_void,
    /// Borrows the tensor of an object, valid as long as the object; may be null.
    pub borrow: Option<Borrow>,
    /// The framework's current stream.
    pub stream: Option<unsafe extern "C" fn(i32, i32, *mut *mut c_void) -> std::ffi::c_int>,
}
