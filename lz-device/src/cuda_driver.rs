//! The CUDA driver library, loaded at run time: building needs no toolkit, and a machine without the library has no CUDA
//! devices.
//!
//! Only queries devices and the calling thread's context. Creates no context and allocates no memory.

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::path::{Path, PathBuf};

use libloading::Library;

use lz_core::device::{CudaSpec, CudaSupports, DeviceDetail, DeviceSpec, GenerationTable, Vendor};

use crate::absence::AbsenceReason;

/// The name of the driver library.
pub const DRIVER_LIBRARY: &str = if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so.1" };

type Status = c_int;
const SUCCESS: Status = 0;
const NO_DEVICE: Status = 100;

/// Numbers of `CUdevice_attribute`, which are part of the driver's ABI.
mod attribute {
    use super::c_int;
    pub(crate) const MAX_THREADS_PER_BLOCK: c_int = 1;
    pub(crate) const MAX_BLOCK: [c_int; 3] = [2, 3, 4];
    pub(crate) const MAX_GRID: [c_int; 3] = [5, 6, 7];
    pub(crate) const MULTIPROCESSORS: c_int = 16;
    pub(crate) const L2_BYTES: c_int = 38;
    pub(crate) const CAPABILITY_MAJOR: c_int = 75;
    pub(crate) const CAPABILITY_MINOR: c_int = 76;
    pub(crate) const COOPERATIVE_LAUNCH: c_int = 95;
    pub(crate) const SHARED_MEMORY_OPT_IN: c_int = 97;
    pub(crate) const MEMORY_POOLS: c_int = 115;
}

type Init = unsafe extern "C" fn(c_uint) -> Status;
type DriverGetVersion = unsafe extern "C" fn(*mut c_int) -> Status;
type DeviceGetCount = unsafe extern "C" fn(*mut c_int) -> Status;
type DeviceGet = unsafe extern "C" fn(*mut c_int, c_int) -> Status;
type DeviceGetName = unsafe extern "C" fn(*mut c_char, c_int, c_int) -> Status;
type DeviceGetUuid = unsafe extern "C" fn(*mut [u8; 16], c_int) -> Status;
type DeviceTotalMemory = unsafe extern "C" fn(*mut usize, c_int) -> Status;
type DeviceGetAttribute = unsafe extern "C" fn(*mut c_int, c_int, c_int) -> Status;
type ContextGetDevice = unsafe extern "C" fn(*mut c_int) -> Status;
type MemoryGetInfo = unsafe extern "C" fn(*mut usize, *mut usize) -> Status;

/// The opened driver library.
#[derive(Debug)]
pub struct CudaDriver {
    get_version: DriverGetVersion,
    get_count: DeviceGetCount,
    get_device: DeviceGet,
    get_name: DeviceGetName,
    get_uuid: DeviceGetUuid,
    total_memory: DeviceTotalMemory,
    get_attribute: DeviceGetAttribute,
    context_device: Option<ContextGetDevice>,
    memory_info: Option<MemoryGetInfo>,
    /// Keeps the code behind the function pointers mapped.
    _library: Library,
}

impl CudaDriver {
    /// Loads and initializes the driver library at `path` (a bare name is searched as the system does).
    pub fn open(path: &Path) -> Result<CudaDriver, AbsenceReason> {
        // SAFETY: loading runs the library's initializers; the path is the fixed driver name or one that the caller trusts.
        let library = unsafe { Library::new(path) }.map_err(|error| AbsenceReason::LibraryMissing {
            library: path.to_path_buf(),
            message: error.to_string(),
        })?;
        let init: Init = symbol(&library, path, &["cuInit"])?;
        let driver = CudaDriver {
            get_version: symbol(&library, path, &["cuDriverGetVersion"])?,
            get_count: symbol(&library, path, &["cuDeviceGetCount"])?,
            get_device: symbol(&library, path, &["cuDeviceGet"])?,
            get_name: symbol(&library, path, &["cuDeviceGetName"])?,
            get_uuid: symbol(&library, path, &["cuDeviceGetUuid_v2", "cuDeviceGetUuid"])?,
            total_memory: symbol(&library, path, &["cuDeviceTotalMem_v2"])?,
            get_attribute: symbol(&library, path, &["cuDeviceGetAttribute"])?,
            context_device: symbol(&library, path, &["cuCtxGetDevice"]).ok(),
            memory_info: symbol(&library, path, &["cuMemGetInfo_v2"]).ok(),
            _library: library,
        };
        // SAFETY: cuInit takes a flags word that must be zero and may be called at any time.
        match unsafe { init(0) } {
            SUCCESS => Ok(driver),
            NO_DEVICE => Err(AbsenceReason::NoDevices),
            code => Err(AbsenceReason::CallFailed { function: "cuInit", code }),
        }
    }

    /// The newest CUDA version that the driver supports, such as `13.0`.
    pub fn cuda_version(&self) -> Option<String> {
        let mut version: c_int = 0;
        // SAFETY: the pointer is to a live integer that the call fills.
        let status = unsafe { (self.get_version)(&mut version) };
        (status == SUCCESS && version > 0).then(|| format!("{}.{}", version / 1000, version % 1000 / 10))
    }

    /// Free bytes in the calling thread's context; `None` if it has none, or one of a device with another UUID.
    pub fn free_memory_bytes(&self, uuid: &str) -> Option<u64> {
        let mut device: c_int = 0;
        // SAFETY: the pointer is to a live integer that the call fills; without a context it returns an error.
        if unsafe { (self.context_device?)(&mut device) } != SUCCESS {
            return None;
        }
        let mut own = [0u8; 16];
        // SAFETY: a CUuuid is sixteen bytes, which the call fills.
        if unsafe { (self.get_uuid)(&mut own, device) } != SUCCESS || uuid_text(&own) != uuid {
            return None;
        }
        let (mut free, mut total) = (0usize, 0usize);
        // SAFETY: the pointers are to live integers that the call fills.
        let status = unsafe { (self.memory_info?)(&mut free, &mut total) };
        (status == SUCCESS).then_some(free as u64)
    }

    /// All devices in the driver's order. A device whose query fails is omitted and reported in the second list.
    pub fn devices(
        &self,
        table: &GenerationTable,
        driver_version: &str,
    ) -> Result<(Vec<DeviceSpec>, Vec<AbsenceReason>), AbsenceReason> {
        let mut count: c_int = 0;
        // SAFETY: the pointer is to a live integer that the call fills.
        let status = unsafe { (self.get_count)(&mut count) };
        if status != SUCCESS {
            return Err(AbsenceReason::CallFailed { function: "cuDeviceGetCount", code: status });
        }
        if count <= 0 {
            return Err(AbsenceReason::NoDevices);
        }
        let (mut devices, mut failures) = (Vec::new(), Vec::new());
        for index in 0..count {
            match self.device(index, table, driver_version) {
                Ok(device) => devices.push(device),
                Err(reason) => failures.push(reason),
            }
        }
        Ok((devices, failures))
    }

    fn device(
        &self,
        index: c_int,
        table: &GenerationTable,
        driver_version: &str,
    ) -> Result<DeviceSpec, AbsenceReason> {
        let mut device: c_int = 0;
        // SAFETY: the pointer is to a live integer that the call fills; the index is below the count.
        checked("cuDeviceGet", unsafe { (self.get_device)(&mut device, index) })?;
        let mut name = [0 as c_char; 256];
        // SAFETY: the buffer has 256 bytes, and the call terminates the text with a zero within them.
        checked("cuDeviceGetName", unsafe { (self.get_name)(name.as_mut_ptr(), 256, device) })?;
        let mut uuid = [0u8; 16];
        // SAFETY: a CUuuid is sixteen bytes, which the call fills.
        checked("cuDeviceGetUuid", unsafe { (self.get_uuid)(&mut uuid, device) })?;
        let mut memory: usize = 0;
        // SAFETY: the pointer is to a live integer that the call fills.
        checked("cuDeviceTotalMem_v2", unsafe { (self.total_memory)(&mut memory, device) })?;

        let attribute = |number| self.attribute(device, number);
        let major = attribute(attribute::CAPABILITY_MAJOR)?;
        let minor = attribute(attribute::CAPABILITY_MINOR)?;
        let sm = major.saturating_mul(10).saturating_add(minor);
        let mut spec = CudaSpec::for_sm(sm, table);
        spec.memory_bytes = memory as u64;
        spec.sm_count = attribute(attribute::MULTIPROCESSORS)?;
        spec.max_threads_per_block = attribute(attribute::MAX_THREADS_PER_BLOCK)?;
        for axis in 0..3 {
            spec.max_grid[axis] = attribute(attribute::MAX_GRID[axis])?.into();
            spec.max_block[axis] = attribute(attribute::MAX_BLOCK[axis])?;
        }
        // Attributes that old drivers do not support keep their conservative default.
        if let Ok(bytes) = attribute(attribute::SHARED_MEMORY_OPT_IN) {
            spec.max_shared_memory_per_block = bytes;
        }
        spec.l2_bytes = attribute(attribute::L2_BYTES).unwrap_or(0).into();
        let implied = CudaSupports::for_sm(sm);
        spec.supports = CudaSupports {
            cooperative_launch: attribute(attribute::COOPERATIVE_LAUNCH).is_ok_and(|value| value != 0),
            memory_pools: attribute(attribute::MEMORY_POOLS).is_ok_and(|value| value != 0),
            ..implied
        };
        spec.driver_version = driver_version.to_owned();
        spec.cuda_version = self.cuda_version().unwrap_or_default();
        Ok(DeviceSpec {
            name: text(&name),
            vendor: Vendor::Nvidia,
            uuid: uuid_text(&uuid),
            index: index as u32,
            detail: DeviceDetail::Cuda(spec),
        })
    }

    fn attribute(&self, device: c_int, number: c_int) -> Result<u32, AbsenceReason> {
        let mut value: c_int = 0;
        // SAFETY: the pointer is to a live integer that the call fills; an unknown number returns an error.
        checked("cuDeviceGetAttribute", unsafe { (self.get_attribute)(&mut value, number, device) })?;
        Ok(u32::try_from(value).unwrap_or(0))
    }
}

fn checked(function: &'static str, code: Status) -> Result<(), AbsenceReason> {
    if code == SUCCESS { Ok(()) } else { Err(AbsenceReason::CallFailed { function, code }) }
}

/// The first of several symbols that the library exports. `T` must be the C declaration of all of them.
pub(crate) fn symbol<T: Copy>(
    library: &Library,
    path: &Path,
    names: &[&'static str],
) -> Result<T, AbsenceReason> {
    for name in names {
        // SAFETY: the requested types match the vendor's header for these names.
        if let Ok(found) = unsafe { library.get::<T>(*name) } {
            return Ok(*found);
        }
    }
    Err(AbsenceReason::SymbolMissing {
        library: PathBuf::from(path),
        symbol: names.first().copied().unwrap_or_default(),
    })
}

/// A C string in a fixed buffer; a buffer without a terminator is used as a whole.
pub(crate) fn text(buffer: &[c_char]) -> String {
    let bytes: Vec<u8> = buffer.iter().map(|character| *character as u8).collect();
    match CStr::from_bytes_until_nul(&bytes) {
        Ok(text) => text.to_string_lossy().into_owned(),
        Err(_) => String::from_utf8_lossy(&bytes).into_owned(),
    }
}

/// The format of NVML and `nvidia-smi`.
fn uuid_text(uuid: &[u8; 16]) -> String {
    let mut text = String::from("GPU-");
    for (position, byte) in uuid.iter().enumerate() {
        if matches!(position, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_have_the_format_of_nvidia_smi() {
        let uuid: [u8; 16] = std::array::from_fn(|position| position as u8);
        assert_eq!(uuid_text(&uuid), "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f");
    }

    #[test]
    fn missing_library_is_reported_as_a_reason() {
        let reason = CudaDriver::open(Path::new("/nonexistent/libcuda.so.1")).unwrap_err();
        assert!(matches!(reason, AbsenceReason::LibraryMissing { .. }), "{reason}");
    }
}
