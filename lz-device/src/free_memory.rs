//! Free memory of a device: of the host from the kernel and its cgroups, of a GPU from its driver.
//!
//! Nothing is allocated. Files are read below a given root, and libraries are loaded from given paths, so that tests can create a
//! machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use lz_core::device::{DeviceSpec, Platform};

use crate::cgroup;
use crate::cuda_driver::{CudaDriver, DRIVER_LIBRARY};
use crate::nvml::{NVML_LIBRARY, Nvml};

/// The sources of free-memory figures.
#[derive(Debug)]
pub struct FreeMemory {
    root: PathBuf,
    driver: PathBuf,
    nvml: PathBuf,
    opened: OnceLock<(Option<CudaDriver>, Option<Nvml>)>,
}

impl Default for FreeMemory {
    fn default() -> FreeMemory {
        FreeMemory::at(Path::new("/"), Path::new(DRIVER_LIBRARY), Path::new(NVML_LIBRARY))
    }
}

impl FreeMemory {
    /// For a machine whose files are below `root` and whose libraries have these paths.
    pub fn at(root: &Path, driver: &Path, nvml: &Path) -> FreeMemory {
        FreeMemory {
            root: root.to_owned(),
            driver: driver.to_owned(),
            nvml: nvml.to_owned(),
            opened: OnceLock::new(),
        }
    }

    /// Free bytes on a device; `None` if unknown.
    pub fn bytes(&self, device: &DeviceSpec) -> Option<u64> {
        match device.platform() {
            Platform::Cpu => self.host(),
            Platform::Cuda => self.cuda(device),
            _ => None,
        }
    }

    /// The minimum of what the kernel can provide without swapping and what the cgroups still allow.
    fn host(&self) -> Option<u64> {
        let info = fs::read_to_string(self.root.join("proc/meminfo")).unwrap_or_default();
        let available = kilobytes(&info, "MemAvailable").and_then(|kilobytes| kilobytes.checked_mul(1024));
        [available, cgroup::memory_left(&self.root)].into_iter().flatten().min()
    }

    /// From the driver if the calling thread's context is on this device; otherwise from NVML, which needs no
    /// context.
    fn cuda(&self, device: &DeviceSpec) -> Option<u64> {
        let (driver, nvml) =
            self.opened.get_or_init(|| (CudaDriver::open(&self.driver).ok(), Nvml::open(&self.nvml).ok()));
        let in_context = driver.as_ref().and_then(|driver| driver.free_memory_bytes(&device.uuid));
        in_context.or_else(|| nvml.as_ref()?.free_memory_bytes(&device.uuid))
    }
}

/// A line of `/proc/meminfo`.
pub(crate) fn kilobytes(info: &str, name: &str) -> Option<u64> {
    let rest = info.lines().find_map(|line| line.strip_prefix(name))?;
    rest.trim_start_matches(':').trim().strip_suffix("kB")?.trim().parse().ok()
}
