//! The device spec: identity common to all platforms, and details per platform.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{CpuSpec, CudaSpec, Generation, HpuSpec, IsaSet, MetalSpec, RocmSpec, XpuSpec};

/// The closed set of platforms that a kernel can be written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Platform {
    /// Host processors.
    Cpu,
    /// NVIDIA GPUs.
    Cuda,
    /// AMD GPUs.
    Rocm,
    /// Intel Gaudi accelerators.
    Hpu,
    /// Intel GPUs.
    Xpu,
    /// Apple GPUs.
    Metal,
}

impl Platform {
    /// Every platform, in declaration order.
    pub const ALL: [Platform; 6] =
        [Platform::Cpu, Platform::Cuda, Platform::Rocm, Platform::Hpu, Platform::Xpu, Platform::Metal];

    /// The lower-case name used in descriptors, policy and signatures.
    pub const fn name(self) -> &'static str {
        match self {
            Platform::Cpu => "cpu",
            Platform::Cuda => "cuda",
            Platform::Rocm => "rocm",
            Platform::Hpu => "hpu",
            Platform::Xpu => "xpu",
            Platform::Metal => "metal",
        }
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An unknown platform name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownPlatform {
    /// The name.
    pub name: String,
}

impl fmt::Display for UnknownPlatform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown platform `{}`; expected one of cpu, cuda, rocm, hpu, xpu, metal", self.name)
    }
}

impl std::error::Error for UnknownPlatform {}

impl FromStr for Platform {
    type Err = UnknownPlatform;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|platform| platform.name() == text)
            .ok_or_else(|| UnknownPlatform { name: text.to_owned() })
    }
}

/// The vendor of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Vendor {
    /// NVIDIA.
    Nvidia,
    /// AMD.
    Amd,
    /// Intel, Habana included.
    Intel,
    /// Apple.
    Apple,
    /// Arm and its licensees, where the implementer is not one of the above.
    Arm,
    /// Any other.
    Other,
}

impl Vendor {
    /// The lower-case name used in descriptors and policy.
    pub const fn name(self) -> &'static str {
        match self {
            Vendor::Nvidia => "nvidia",
            Vendor::Amd => "amd",
            Vendor::Intel => "intel",
            Vendor::Apple => "apple",
            Vendor::Arm => "arm",
            Vendor::Other => "other",
        }
    }
}

impl fmt::Display for Vendor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Platform-specific details; the variant determines the platform, so that the two cannot disagree.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceDetail {
    /// A host processor.
    Cpu(CpuSpec),
    /// An NVIDIA GPU.
    Cuda(CudaSpec),
    /// An AMD GPU.
    Rocm(RocmSpec),
    /// An Intel Gaudi accelerator.
    Hpu(HpuSpec),
    /// An Intel GPU.
    Xpu(XpuSpec),
    /// An Apple GPU.
    Metal(MetalSpec),
}

/// A device, detected or simulated.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceSpec {
    /// The product name.
    pub name: String,
    /// The vendor.
    pub vendor: Vendor,
    /// Stable identity: the GPU's UUID, or for CPUs a digest of everything that affects speed.
    pub uuid: String,
    /// Index among the devices of the same platform.
    pub index: u32,
    /// Platform-specific details.
    pub detail: DeviceDetail,
}

impl DeviceSpec {
    /// The platform that kernels for this device are written for.
    pub const fn platform(&self) -> Platform {
        match self.detail {
            DeviceDetail::Cpu(_) => Platform::Cpu,
            DeviceDetail::Cuda(_) => Platform::Cuda,
            DeviceDetail::Rocm(_) => Platform::Rocm,
            DeviceDetail::Hpu(_) => Platform::Hpu,
            DeviceDetail::Xpu(_) => Platform::Xpu,
            DeviceDetail::Metal(_) => Platform::Metal,
        }
    }

    /// The CPU details, if it is one.
    pub const fn cpu(&self) -> Option<&CpuSpec> {
        match &self.detail {
            DeviceDetail::Cpu(spec) => Some(spec),
            _ => None,
        }
    }

    /// The NVIDIA GPU details, if it is one.
    pub const fn cuda(&self) -> Option<&CudaSpec> {
        match &self.detail {
            DeviceDetail::Cuda(spec) => Some(spec),
            _ => None,
        }
    }

    /// The AMD GPU details, if it is one.
    pub const fn rocm(&self) -> Option<&RocmSpec> {
        match &self.detail {
            DeviceDetail::Rocm(spec) => Some(spec),
            _ => None,
        }
    }

    /// The compute capability of an NVIDIA GPU as one number (90 for 9.0).
    pub fn sm(&self) -> Option<u32> {
        self.cuda().map(|spec| spec.sm)
    }

    /// The GPU generation, if the platform has one and the generation table contains it.
    pub fn generation(&self) -> Option<&Generation> {
        self.cuda().and_then(|spec| spec.generation.as_ref())
    }

    /// The instruction sets of a CPU; empty on other platforms.
    pub fn isa(&self) -> IsaSet {
        self.cpu().map_or(IsaSet::EMPTY, |spec| spec.isa)
    }

    /// Device memory in bytes; for CPUs the host memory, if it could be read.
    pub fn memory_bytes(&self) -> Option<u64> {
        match &self.detail {
            DeviceDetail::Cpu(spec) => spec.memory_bytes,
            DeviceDetail::Cuda(spec) => Some(spec.memory_bytes),
            DeviceDetail::Rocm(spec) => Some(spec.memory_bytes),
            DeviceDetail::Hpu(spec) => Some(spec.memory_bytes),
            DeviceDetail::Xpu(spec) => Some(spec.memory_bytes),
            DeviceDetail::Metal(spec) => Some(spec.memory_bytes),
        }
    }

    /// The driver version; empty without a driver (CPUs).
    pub fn driver_version(&self) -> &str {
        match &self.detail {
            DeviceDetail::Cpu(_) => "",
            DeviceDetail::Cuda(spec) => &spec.driver_version,
            DeviceDetail::Rocm(spec) => &spec.driver_version,
            DeviceDetail::Hpu(spec) => &spec.driver_version,
            DeviceDetail::Xpu(spec) => &spec.driver_version,
            DeviceDetail::Metal(spec) => &spec.os_version,
        }
    }

    /// The toolkit or runtime version; empty without one.
    pub fn toolkit_version(&self) -> &str {
        match &self.detail {
            DeviceDetail::Cpu(_) | DeviceDetail::Metal(_) => "",
            DeviceDetail::Cuda(spec) => &spec.cuda_version,
            DeviceDetail::Rocm(spec) => &spec.rocm_version,
            DeviceDetail::Hpu(spec) => &spec.synapse_version,
            DeviceDetail::Xpu(spec) => &spec.runtime_version,
        }
    }

    /// The maximum launch grid, if the platform has one.
    pub fn max_grid(&self) -> Option<[u64; 3]> {
        match &self.detail {
            DeviceDetail::Cuda(spec) => Some(spec.max_grid),
            DeviceDetail::Rocm(spec) => Some(spec.max_grid),
            _ => None,
        }
    }

    /// The maximum number of threads per block, if the platform has one.
    pub fn max_threads_per_block(&self) -> Option<u32> {
        match &self.detail {
            DeviceDetail::Cuda(spec) => Some(spec.max_threads_per_block),
            DeviceDetail::Rocm(spec) => Some(spec.max_threads_per_block),
            _ => None,
        }
    }

    /// The hardware signature that a dispatch table must match, such as `cuda_sm90_cu130`.
    ///
    /// Devices with the same signature get the same decisions: it names the architecture, its toolkit, and for CPUs the
    /// instruction-set tier and the number of usable cores, never the individual device.
    pub fn hardware_signature(&self) -> String {
        match &self.detail {
            DeviceDetail::Cpu(spec) => {
                format!("cpu_{}_{}_{}t", spec.architecture, spec.isa.tier(), spec.logical_cores)
            }
            DeviceDetail::Cuda(spec) => joined("cuda_sm", &spec.sm.to_string(), "cu", &spec.cuda_version),
            DeviceDetail::Rocm(spec) => joined("rocm_", &spec.gfx, "rocm", &spec.rocm_version),
            DeviceDetail::Hpu(spec) => joined("hpu_", &spec.architecture, "synapse", &spec.synapse_version),
            DeviceDetail::Xpu(spec) => joined("xpu_", &spec.architecture, "rt", &spec.runtime_version),
            DeviceDetail::Metal(spec) => joined("metal_", &spec.gpu_family, "os", &spec.os_version),
        }
    }
}

/// `prefix` + `architecture` + `_` + `toolkit` + the first two version components without a dot. An unknown version omits the toolkit
/// part.
fn joined(prefix: &str, architecture: &str, toolkit: &str, version: &str) -> String {
    let digits: String = version
        .split('.')
        .take(2)
        .map(|part| part.chars().take_while(char::is_ascii_digit).collect::<String>())
        .collect();
    if digits.is_empty() {
        format!("{prefix}{architecture}")
    } else {
        format!("{prefix}{architecture}_{toolkit}{digits}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_version_is_omitted_from_the_signature() {
        assert_eq!(joined("cuda_sm", "90", "cu", ""), "cuda_sm90");
        assert_eq!(joined("cuda_sm", "90", "cu", "12.8.1"), "cuda_sm90_cu128");
    }

    #[test]
    fn platforms_are_closed() {
        assert_eq!("rocm".parse(), Ok(Platform::Rocm));
        let error = "tpu".parse::<Platform>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "unknown platform `tpu`; expected one of cpu, cuda, rocm, hpu, xpu, metal"
        );
        assert!(serde_json::from_str::<Platform>("\"tpu\"").is_err());
    }
}
