//! Detection of devices: the host's processor, NVIDIA GPUs through the driver and NVML, AMD GPUs through the kernel driver, and
//! presets of devices that need not be there. All of them are [`DeviceSpec`](lz_core::device::DeviceSpec)s, which are plain data.
//!
//! Never depends on the engine. Nothing here fails because hardware is absent: absence is a value ([`Absence`]).

mod absence;
mod cgroup;
mod cpu;
mod cuda_driver;
mod discover;
mod free_memory;
mod nvml;
mod preset;
mod rocm_topology;
mod thread_stack;

pub use absence::{Absence, AbsenceReason};
pub use cpu::{detect_cpu, detect_cpu_at};
pub use cuda_driver::{CudaDriver, DRIVER_LIBRARY};
pub use discover::{Discovery, discover, discover_by, discover_with, read_environment};
pub use free_memory::FreeMemory;
pub use nvml::{NVML_LIBRARY, Nvml};
pub use preset::{PRESETS, UnknownPreset, preset};
pub use rocm_topology::detect_rocm_at;
pub use thread_stack::ThreadHandle;
