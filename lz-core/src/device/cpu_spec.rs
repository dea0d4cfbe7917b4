//! Details of a host processor. Plain data: detection is the job of `lz-device`.

use serde::{Deserialize, Serialize};

use super::IsaSet;

/// A host processor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CpuSpec {
    /// The architecture as Rust names it: `x86_64`, `aarch64`.
    pub architecture: String,
    /// Instruction sets that processor and operating system both support. For AMX the process must still ask the kernel
    /// for the tile state before it uses it.
    pub isa: IsaSet,
    /// Physical cores that this process may use.
    pub cores: u32,
    /// Hardware threads that this process may use: affinity and the control group's quota are respected.
    pub logical_cores: u32,
    /// First-level data cache of one core, in bytes; 0 when unknown.
    pub l1d_bytes: u64,
    /// Second-level cache of one core, in bytes; 0 when unknown.
    pub l2_bytes: u64,
    /// Last-level cache that one core sees, in bytes; 0 when unknown.
    pub l3_bytes: u64,
    /// Memory of the host in bytes, where it could be read.
    pub memory_bytes: Option<u64>,
    /// The vendor as the processor itself says it: `GenuineIntel`.
    pub vendor_id: String,
    /// The model as the processor itself says it.
    pub model: String,
}
