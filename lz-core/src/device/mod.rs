//! Devices: platform, limits and features as plain data.
//!
//! A spec is detected by `lz_device::discover`, taken from `lz_device::preset`, or read from JSON. Selection treats them alike, so a
//! simulated device can be used to explain selections. Nothing here depends on kernels, operations or policy, and nothing here fails
//! because hardware is absent: absence is a value (`lz_device::Absence`).

mod accelerator;
mod cpu_spec;
mod cuda;
mod environment;
mod generation;
mod isa;
mod spec;

pub use accelerator::{HpuSpec, MetalSpec, RocmSpec, XpuSpec};
pub use cpu_spec::CpuSpec;
pub use cuda::{CudaSpec, CudaSupports};
pub use environment::{Environment, MemoryPressure, PowerState, Temperature, UnknownEnvironment};
pub use generation::{Generation, GenerationEntry, GenerationTable, GenerationTableError, InstructionSet};
pub use isa::{Isa, IsaSet};
pub use spec::{DeviceDetail, DeviceSpec, Platform, UnknownPlatform, Vendor};
