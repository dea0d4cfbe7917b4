//! A shared library with the functions of the CUDA driver and of NVML that device detection calls.
//!
//! It simulates two GPUs: an H100, and one whose memory query fails. `fake_cuda_configure` sets what
//! initialization returns and how many devices there are.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicI32, Ordering};

static INIT_RESULT: AtomicI32 = AtomicI32::new(0);
static DEVICES: AtomicI32 = AtomicI32::new(2);

const INVALID_VALUE: c_int = 1;
const UUID: [u8; 16] = [0xab; 16];

/// Sets what `cuInit` and `nvmlInit_v2` return and how many devices `cuDeviceGetCount` reports.
#[unsafe(no_mangle)]
pub extern "C" fn fake_cuda_configure(init_result: c_int, devices: c_int) {
    INIT_RESULT.store(init_result, Ordering::SeqCst);
    DEVICES.store(devices, Ordering::SeqCst);
}

/// Fake `cuInit`.
#[unsafe(no_mangle)]
pub extern "C" fn cuInit(_flags: c_uint) -> c_int {
    INIT_RESULT.load(Ordering::SeqCst)
}

/// Fake `cuDriverGetVersion`.
///
/// # Safety
/// `version` must be valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> c_int {
    // SAFETY: the caller guarantees it.
    unsafe { *version = 12080 };
    0
}

/// Fake `cuDeviceGetCount`.
///
/// # Safety
/// `count` must be valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> c_int {
    // SAFETY: the caller guarantees it.
    unsafe { *count = DEVICES.load(Ordering::SeqCst) };
    0
}

/// Fake `cuDeviceGet`.
///
/// # Safety
/// `device` must be valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> c_int {
    // SAFETY: the caller guarantees it.
    unsafe { *device = 40 + ordinal };
    0
}

/// # Safety
/// `to` must be valid for `length` writes.
unsafe fn write_text(text: &str, to: *mut c_char, length: usize) {
    for (position, byte) in text.bytes().chain([0]).take(length).enumerate() {
        // SAFETY: the position is below `length`, which the caller guarantees.
        unsafe { *to.add(position) = byte as c_char };
    }
}

/// Fake `cuDeviceGetName`.
///
/// # Safety
/// `name` must be valid for `length` writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, length: c_int, _device: c_int) -> c_int {
    // SAFETY: the caller guarantees it.
    unsafe { write_text("Fake H100", name, length as usize) };
    0
}

/// Fake `cuDeviceGetUuid_v2`.
///
/// # Safety
/// `uuid` must be valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], _device: c_int) -> c_int {
    // SAFETY: the caller guarantees it.
    unsafe { *uuid = UUID };
    0
}

/// Fake `cuDeviceTotalMem_v2`; fails for the second device.
///
/// # Safety
/// `bytes` must be valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) -> c_int {
    if device != 40 {
        return 999;
    }
    // SAFETY: the caller guarantees it.
    unsafe { *bytes = 80 << 30 };
    0
}

/// Fake `cuCtxGetDevice`: a thread has a context of the first device once there are devices.
///
/// # Safety
/// `device` must be valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetDevice(device: *mut c_int) -> c_int {
    if DEVICES.load(Ordering::SeqCst) == 0 {
        return 201;
    }
    // SAFETY: the caller guarantees it.
    unsafe { *device = 40 };
    0
}

/// Fake `cuMemGetInfo_v2`.
///
/// # Safety
/// Both must be valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> c_int {
    // SAFETY: the caller guarantees it.
    unsafe {
        *free = 7 << 30;
        *total = 80 << 30;
    }
    0
}

/// Fake `cuDeviceGetAttribute`.
///
/// # Safety
/// `value` must be valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, _device: c_int) -> c_int {
    let known = match attribute {
        1 => 1024,
        2 | 3 => 1024,
        4 => 64,
        5 => i32::MAX,
        6 | 7 => 65_535,
        16 => 132,
        38 => 50 << 20,
        75 => 9,
        76 => 0,
        95 => 1,
        97 => 232_448,
        _ => return INVALID_VALUE,
    };
    // SAFETY: the caller guarantees it.
    unsafe { *value = known };
    0
}

/// Fake `nvmlInit_v2`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> c_int {
    INIT_RESULT.load(Ordering::SeqCst)
}

/// Fake `nvmlSystemGetDriverVersion`.
///
/// # Safety
/// `version` must be valid for `length` writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetDriverVersion(version: *mut c_char, length: c_uint) -> c_int {
    // SAFETY: the caller guarantees it.
    unsafe { write_text("570.00.01", version, length as usize) };
    0
}

/// Fake `nvmlDeviceGetHandleByUUID`.
///
/// # Safety
/// `uuid` must be a C string and `device` valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, device: *mut *mut c_void) -> c_int {
    // SAFETY: the caller guarantees that this is a C string.
    let uuid = unsafe { CStr::from_ptr(uuid) };
    if uuid.to_bytes() != b"GPU-abababab-abab-abab-abab-abababababab" {
        return 6;
    }
    // SAFETY: the caller guarantees it.
    unsafe { *device = std::ptr::dangling_mut::<c_void>() };
    0
}

/// Fake `nvmlDeviceGetTemperature`.
///
/// # Safety
/// `degrees` must be valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetTemperature(
    _device: *mut c_void,
    _sensor: c_int,
    degrees: *mut c_uint,
) -> c_int {
    // SAFETY: the caller guarantees it.
    unsafe { *degrees = 83 };
    0
}

/// Fake `nvmlDeviceGetMemoryInfo`.
///
/// # Safety
/// `memory` must be valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo(_device: *mut c_void, memory: *mut [u64; 3]) -> c_int {
    // SAFETY: the caller guarantees it.
    unsafe { *memory = [100, 30, 70] };
    0
}
