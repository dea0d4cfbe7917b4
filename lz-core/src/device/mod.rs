//! Devices: platform, limits and features as plain data.
//!
//! A spec is detected by [`discover`], taken from [`DeviceSpec::preset`], or read from JSON. Selection treats them alike, so a
//! simulated device can be used to explain selections. Nothing here depends on kernels, operations or policy, and nothing here fails
//! because hardware is absent: absence is a value ([`Absence`]).

mod accelerator;
mod cgroup;
mod cpu;
mod cuda;
mod cuda_driver;
mod discover;
mod environment;
mod free_memory;
mod generation;
mod isa;
mod nvml;
mod preset;
mod rocm_topology;
mod spec;

pub use accelerator::{HpuSpec, MetalSpec, RocmSpec, XpuSpec};
pub use cpu::{CpuSpec, detect_cpu, detect_cpu_at};
pub use cuda::{CudaSpec, CudaSupports};
pub use cuda_driver::{CudaDriver, DRIVER_LIBRARY};
pub use discover::{Absence, AbsenceReason, Discovery, discover, discover_by, discover_with};
pub use environment::{Environment, MemoryPressure, PowerState, Temperature, UnknownEnvironment};
pub use free_memory::FreeMemory;
pub use generation::{Generation, GenerationEntry, GenerationTable, GenerationTableError, InstructionSet};
pub use isa::{Isa, IsaSet};
pub use nvml::{NVML_LIBRARY, Nvml};
pub use preset::UnknownPreset;
pub use rocm_topology::detect_rocm_at;
pub use spec::{DeviceDetail, DeviceSpec, Platform, UnknownPlatform, Vendor};
