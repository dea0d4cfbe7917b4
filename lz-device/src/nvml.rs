//! NVML, loaded at run time: driver version, temperature, memory and clock events.
//!
//! NVML is optional: whatever cannot be read is `unknown`, never an error.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::path::Path;

use libloading::Library;

use lz_core::device::{Environment, MemoryPressure, PowerState, Temperature};

use crate::absence::AbsenceReason;
use crate::cuda_driver::{symbol, text};

/// The name of the NVML library.
pub const NVML_LIBRARY: &str = if cfg!(windows) { "nvml.dll" } else { "libnvidia-ml.so.1" };

const SUCCESS: c_int = 0;
const GPU_SENSOR: c_int = 0;

#[repr(C)]
#[derive(Default)]
struct MemoryInfo {
    total: u64,
    free: u64,
    used: u64,
}

type Device = *mut c_void;
type Init = unsafe extern "C" fn() -> c_int;
type DriverVersion = unsafe extern "C" fn(*mut c_char, c_uint) -> c_int;
type HandleByUuid = unsafe extern "C" fn(*const c_char, *mut Device) -> c_int;
type TemperatureOf = unsafe extern "C" fn(Device, c_int, *mut c_uint) -> c_int;
type MemoryOf = unsafe extern "C" fn(Device, *mut MemoryInfo) -> c_int;
type ClockReasonsOf = unsafe extern "C" fn(Device, *mut u64) -> c_int;

/// The loaded NVML library. It stays initialized until the process ends.
#[derive(Debug)]
pub struct Nvml {
    driver_version: DriverVersion,
    handle_by_uuid: HandleByUuid,
    temperature: Option<TemperatureOf>,
    memory: Option<MemoryOf>,
    clock_reasons: Option<ClockReasonsOf>,
    /// Keeps the code behind the function pointers mapped.
    _library: Library,
}

impl Nvml {
    /// Loads and initializes NVML at `path` (a bare name is searched as the system does).
    pub fn open(path: &Path) -> Result<Nvml, AbsenceReason> {
        // SAFETY: loading runs the library's initializers; the path is the fixed name or one that the caller trusts.
        let library = unsafe { Library::new(path) }.map_err(|error| AbsenceReason::LibraryMissing {
            library: path.to_path_buf(),
            message: error.to_string(),
        })?;
        let init: Init = symbol(&library, path, &["nvmlInit_v2", "nvmlInit"])?;
        let nvml = Nvml {
            driver_version: symbol(&library, path, &["nvmlSystemGetDriverVersion"])?,
            handle_by_uuid: symbol(&library, path, &["nvmlDeviceGetHandleByUUID"])?,
            temperature: symbol(&library, path, &["nvmlDeviceGetTemperature"]).ok(),
            memory: symbol(&library, path, &["nvmlDeviceGetMemoryInfo"]).ok(),
            clock_reasons: symbol(
                &library,
                path,
                &["nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"],
            )
            .ok(),
            _library: library,
        };
        // SAFETY: initialization has no parameters and is reference-counted.
        match unsafe { init() } {
            SUCCESS => Ok(nvml),
            code => Err(AbsenceReason::CallFailed { function: "nvmlInit_v2", code }),
        }
    }

    /// The kernel driver's version, such as `580.65.06`.
    pub fn driver_version(&self) -> Option<String> {
        let mut buffer = [0 as c_char; 96];
        // SAFETY: the buffer has 96 bytes.
        let status = unsafe { (self.driver_version)(buffer.as_mut_ptr(), 96) };
        (status == SUCCESS).then(|| text(&buffer))
    }

    /// The current environment of the GPU with this UUID; all unknown if it is absent.
    pub fn environment(&self, uuid: &str) -> Environment {
        let Some(device) = self.handle(uuid) else { return Environment::default() };
        Environment {
            temperature: self.celsius(device).map_or(Temperature::Unknown, Temperature::of_celsius),
            memory_pressure: self.memory(device).map_or(MemoryPressure::Unknown, |memory| {
                MemoryPressure::of_bytes(memory.used, memory.total)
            }),
            power: self.reasons(device).map_or(PowerState::Unknown, PowerState::of_clock_reasons),
        }
    }

    /// Free device memory in bytes, across all processes.
    pub fn free_memory_bytes(&self, uuid: &str) -> Option<u64> {
        self.memory(self.handle(uuid)?).map(|memory| memory.free)
    }

    fn handle(&self, uuid: &str) -> Option<Device> {
        let uuid = CString::new(uuid).ok()?;
        let mut device: Device = std::ptr::null_mut();
        // SAFETY: the text ends with a zero and lives through the call, which fills the pointer.
        let status = unsafe { (self.handle_by_uuid)(uuid.as_ptr(), &mut device) };
        (status == SUCCESS && !device.is_null()).then_some(device)
    }

    fn celsius(&self, device: Device) -> Option<u32> {
        let mut degrees: c_uint = 0;
        // SAFETY: the handle came from this library, which stays initialized; the pointer is to a live integer.
        let status = unsafe { (self.temperature?)(device, GPU_SENSOR, &mut degrees) };
        (status == SUCCESS).then_some(degrees)
    }

    fn memory(&self, device: Device) -> Option<MemoryInfo> {
        let mut memory = MemoryInfo::default();
        // SAFETY: the handle came from this library, which stays initialized; the record has the layout of nvmlMemory_t.
        let status = unsafe { (self.memory?)(device, &mut memory) };
        (status == SUCCESS).then_some(memory)
    }

    fn reasons(&self, device: Device) -> Option<u64> {
        let mut reasons = 0u64;
        // SAFETY: the handle came from this library, which stays initialized; the pointer is to a live integer.
        let status = unsafe { (self.clock_reasons?)(device, &mut reasons) };
        (status == SUCCESS).then_some(reasons)
    }
}
