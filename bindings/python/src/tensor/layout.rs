//! The DLPack structures as the specification lays them out. Only layout here, no behaviour.

use std::ffi::c_void;

/// Where memory is.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DLDevice {
    /// 1 is the CPU, 2 CUDA, 3 pinned host memory, 10 ROCm, 13 CUDA managed.
    pub device_type: i32,
    /// Number of the device.
    pub device_id: i32,
}

/// Element type.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DLDataType {
    /// Kind of number.
    pub code: u8,
    /// Bits of one lane.
    pub bits: u8,
    /// Lanes.
    pub lanes: u16,
}

/// A borrowed tensor.
#[repr(C)]
pub struct DLTensor {
    /// Start of the allocation.
    pub data: *mut c_void,
    /// Where it is.
    pub device: DLDevice,
    /// Number of dimensions.
    pub ndim: i32,
    /// Element type.
    pub dtype: DLDataType,
    /// Sizes.
    pub shape: *mut i64,
    /// Strides in elements; null for dense row-major.
    pub strides: *mut i64,
    /// Bytes from `data` to the first element.
    pub byte_offset: u64,
}

impl DLTensor {
    /// To be filled.
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

/// The function that fills one from an object, which must outlive it.
pub type Borrow = unsafe extern "C" fn(*mut c_void, *mut DLTensor) -> std::ffi::c_int;

/// A tensor with its owner, before version 1.0.
#[repr(C)]
pub struct DLManagedTensor {
    /// The tensor.
    pub dl_tensor: DLTensor,
    /// The owner's.
    pub manager_ctx: *mut c_void,
    /// Gives it back.
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensor)>,
}

/// Version of the structures.
#[repr(C)]
pub struct DLPackVersion {
    /// Changes break.
    pub major: u32,
    /// Changes add.
    pub minor: u32,
}

/// A tensor with its owner, from version 1.0.
#[repr(C)]
pub struct DLManagedTensorVersioned {
    /// Version.
    pub version: DLPackVersion,
    /// The owner's.
    pub manager_ctx: *mut c_void,
    /// Gives it back.
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensorVersioned)>,
    /// Bit 0: read-only.
    pub flags: u64,
    /// The tensor.
    pub dl_tensor: DLTensor,
}

/// The flag of memory that may not be written.
pub const FLAG_READ_ONLY: u64 = 1;

/// The functions of a framework that lends its tensors without a capsule each, from version 1.3 of the specification.
#[repr(C)]
pub struct DLPackExchangeAPI {
    /// Version.
    pub version: DLPackVersion,
    /// The table of an earlier version, or null.
    pub previous: *const DLPackExchangeAPI,
    /// Allocates; not used here, because its memory cannot be resized.
    pub allocate: *const c_void,
    /// An owned tensor from an object.
    pub managed_from_object: *const c_void,
    /// An object from an owned tensor.
    pub object_from_managed: *const c_void,
    /// A borrowed tensor from an object, valid while the object is; may be null.
    pub borrow: Option<Borrow>,
    /// The stream that the framework works on.
    pub stream: Option<unsafe extern "C" fn(i32, i32, *mut *mut c_void) -> std::ffi::c_int>,
}
