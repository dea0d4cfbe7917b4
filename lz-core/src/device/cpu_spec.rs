//! Details of a host processor. Plain data: detection is the job of `lz-device`.

use serde::{Deserialize, Serialize};

use super::IsaSet;

/// A host CPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CpuSpec {
    /// The architecture as Rust names it: `x86_64`, `aarch64`.
    pub architecture: String,
    /// Instruction sets that both CPU and operating system support. For AMX the process must still request the tile state from the
    /// kernel before using it.
    pub isa: IsaSet,
    /// Physical cores that this process may use.
    pub cores: u32,
    /// Hardware threads that this process may use, considering affinity and the cgroup quota.
    pub logical_cores: u32,
    /// First-level data cache of one core, in bytes; 0 when unknown.
    pub l1d_bytes: u64,
    /// Second-level cache of one core, in bytes; 0 when unknown.
    pub l2_bytes: u64,
    /// Last-level cache visible to one core, in bytes; 0 when unknown.
    pub l3_bytes: u64,
    /// Host memory in bytes, if it could be read.
    pub memory_bytes: Option<u64>,
    /// The vendor reported by the CPU: `GenuineIntel`.
    pub vendor_id: String,
    /// The model reported by the CPU.
    pub model: String,
}
