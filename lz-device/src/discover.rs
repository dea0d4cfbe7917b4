//! Detects the devices of this machine. Absence is a value with a reason; nothing here returns an error or prints.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use lz_core::device::{DeviceSpec, Environment, GenerationTable, MemoryPressure, Platform};

use crate::absence::{Absence, AbsenceReason};
use crate::cpu::detect_cpu;
use crate::cuda_driver::{CudaDriver, DRIVER_LIBRARY};
use crate::free_memory::kilobytes;
use crate::nvml::{NVML_LIBRARY, Nvml};
use crate::rocm_topology::detect_rocm_at;

/// The devices of this machine, and what is absent and why.
#[derive(Debug, Clone, PartialEq)]
pub struct Discovery {
    /// All devices; the CPU is always first.
    pub devices: Vec<DeviceSpec>,
    /// Platforms (or single devices of them) that are not usable.
    pub absent: Vec<Absence>,
}

impl Discovery {
    /// The devices of one platform.
    pub fn of(&self, platform: Platform) -> impl Iterator<Item = &DeviceSpec> {
        self.devices.iter().filter(move |device| device.platform() == platform)
    }

    /// Why a platform has no device, if it was probed.
    pub fn absence(&self, platform: Platform) -> Option<&AbsenceReason> {
        self.absent.iter().find(|absence| absence.platform == platform).map(|absence| &absence.reason)
    }
}

/// Detects all devices of this machine, with the built-in generation table.
pub fn discover() -> Discovery {
    discover_by(&GenerationTable::default())
}

/// Like [`discover`], with another generation table.
pub fn discover_by(table: &GenerationTable) -> Discovery {
    discover_with(table, Path::new(DRIVER_LIBRARY), Path::new(NVML_LIBRARY), Path::new("/"))
}

/// Like [`discover`], with another generation table, other libraries, and another root for AMD's topology files.
pub fn discover_with(table: &GenerationTable, driver: &Path, nvml: &Path, root: &Path) -> Discovery {
    let mut found = Discovery { devices: vec![detect_cpu()], absent: Vec::new() };
    let absent = |platform, reason| Absence { platform, reason };

    let driver_version = Nvml::open(nvml).ok().and_then(|nvml| nvml.driver_version()).unwrap_or_default();
    match CudaDriver::open(driver).and_then(|driver| driver.devices(table, &driver_version)) {
        Ok((devices, failures)) => {
            found.devices.extend(devices);
            found.absent.extend(failures.into_iter().map(|reason| absent(Platform::Cuda, reason)));
        }
        Err(reason) => found.absent.push(absent(Platform::Cuda, reason)),
    }
    match detect_rocm_at(root) {
        Ok(devices) => found.devices.extend(devices),
        Err(reason) => found.absent.push(absent(Platform::Rocm, reason)),
    }
    for platform in [Platform::Hpu, Platform::Xpu, Platform::Metal] {
        found.absent.push(absent(platform, AbsenceReason::NotProbed));
    }
    found
}

/// The current environment of a device; `unknown` where nothing can be read, as for a simulated device.
pub fn read_environment(device: &DeviceSpec) -> Environment {
    static NVML: OnceLock<Option<Nvml>> = OnceLock::new();
    match device.platform() {
        Platform::Cuda => NVML
            .get_or_init(|| Nvml::open(Path::new(NVML_LIBRARY)).ok())
            .as_ref()
            .map_or_else(Environment::default, |nvml| nvml.environment(&device.uuid)),
        Platform::Cpu => host_environment(Path::new("/")),
        _ => Environment::default(),
    }
}

/// Memory pressure is the only condition that a host reports reliably: thermal zones are often those of the board.
fn host_environment(root: &Path) -> Environment {
    let info = fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
    let memory_pressure = match (kilobytes(&info, "MemTotal"), kilobytes(&info, "MemAvailable")) {
        (Some(total), Some(free)) => MemoryPressure::of_bytes(total.saturating_sub(free), total),
        _ => MemoryPressure::Unknown,
    };
    Environment { memory_pressure, ..Environment::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_without_gpus_has_a_cpu_and_reasons() {
        let nowhere = Path::new("/nonexistent/library.so");
        let found = discover_with(&GenerationTable::default(), nowhere, nowhere, Path::new("/nonexistent"));
        assert_eq!(found.devices.len(), 1);
        assert_eq!(found.devices[0].platform(), Platform::Cpu);
        assert!(matches!(found.absence(Platform::Cuda), Some(AbsenceReason::LibraryMissing { .. })));
        assert!(matches!(found.absence(Platform::Rocm), Some(AbsenceReason::DriverMissing { .. })));
        assert_eq!(found.absence(Platform::Hpu), Some(&AbsenceReason::NotProbed));
    }

    #[test]
    fn simulated_device_has_unknown_environment() {
        let device = crate::preset("h100").unwrap();
        assert_eq!(read_environment(&device), Environment::default());
    }
}
