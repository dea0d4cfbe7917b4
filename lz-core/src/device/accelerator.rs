//! Details of accelerators other than CPUs and NVIDIA GPUs.

use serde::{Deserialize, Serialize};

/// An AMD GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RocmSpec {
    /// The architecture as the compiler names it: `gfx942`.
    pub gfx: String,
    /// The matrix-core family: `cdna3`, `rdna3`; `None` for an unknown architecture.
    pub family: Option<String>,
    /// Compute units.
    pub compute_units: u32,
    /// Lanes of one wavefront (64 on CDNA, 32 on RDNA).
    pub wavefront_size: u32,
    /// Device memory in bytes.
    pub memory_bytes: u64,
    /// Local data share of one workgroup, in bytes.
    pub shared_memory_per_block: u32,
    /// Largest workgroup.
    pub max_threads_per_block: u32,
    /// Largest launch grid in each dimension.
    pub max_grid: [u64; 3],
    /// Version of the kernel driver; empty when unknown.
    pub driver_version: String,
    /// Version of the ROCm runtime; empty when unknown.
    pub rocm_version: String,
    /// Whether bf16 is computed natively.
    pub bf16: bool,
    /// Whether 8-bit floats are computed natively (and, on CDNA 3, in the FNUZ encodings).
    pub f8: bool,
}

impl RocmSpec {
    /// The matrix-core family of an architecture name, if it is known.
    pub fn family_of(gfx: &str) -> Option<&'static str> {
        Some(match gfx {
            "gfx906" => "gcn5",
            "gfx908" => "cdna1",
            "gfx90a" => "cdna2",
            "gfx940" | "gfx941" | "gfx942" => "cdna3",
            "gfx950" => "cdna4",
            name if name.starts_with("gfx103") => "rdna2",
            name if name.starts_with("gfx110") => "rdna3",
            name if name.starts_with("gfx115") => "rdna3.5",
            name if name.starts_with("gfx120") => "rdna4",
            _ => return None,
        })
    }
}

/// An Intel Gaudi accelerator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HpuSpec {
    /// `gaudi`, `gaudi2` or `gaudi3`.
    pub architecture: String,
    /// Matrix engines.
    pub matrix_engines: u32,
    /// Tensor processor cores.
    pub tensor_cores: u32,
    /// Device memory in bytes.
    pub memory_bytes: u64,
    /// Version of the kernel driver; empty when unknown.
    pub driver_version: String,
    /// Version of the SynapseAI software; empty when unknown.
    pub synapse_version: String,
    /// Whether 8-bit floats are computed natively.
    pub f8: bool,
}

/// An Intel GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct XpuSpec {
    /// `xe-hpc`, `xe-hpg`, `xe2`, …
    pub architecture: String,
    /// Execution units or vector engines.
    pub execution_units: u32,
    /// Device memory in bytes.
    pub memory_bytes: u64,
    /// Whether matrix extensions (XMX) exist.
    pub xmx: bool,
    /// Version of the kernel driver; empty when unknown.
    pub driver_version: String,
    /// Version of the Level Zero or SYCL runtime; empty when unknown.
    pub runtime_version: String,
}

/// An Apple GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MetalSpec {
    /// The Metal GPU family: `apple9`.
    pub gpu_family: String,
    /// GPU cores.
    pub cores: u32,
    /// Unified memory in bytes.
    pub memory_bytes: u64,
    /// Version of the operating system, which is also the driver's; empty when unknown.
    pub os_version: String,
}
