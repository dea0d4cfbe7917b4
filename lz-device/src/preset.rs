//! Presets of well-known devices, for `Engine::with_device`, tests and documentation.

use std::fmt;

use lz_core::device::{
    CpuSpec, CudaSpec, DeviceDetail, DeviceSpec, GenerationTable, HpuSpec, Isa, RocmSpec, Vendor,
};

/// An unknown preset name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownPreset {
    /// The name.
    pub name: String,
}

impl fmt::Display for UnknownPreset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown device preset `{}`; expected one of {}", self.name, PRESETS.join(", "))
    }
}

impl std::error::Error for UnknownPreset {}

const GIB: u64 = 1 << 30;

struct NvidiaPreset {
    preset: &'static str,
    name: &'static str,
    sm: u32,
    sm_count: u32,
    memory_bytes: u64,
    shared_memory: u32,
    l2_bytes: u64,
}

const NVIDIA: &[NvidiaPreset] = &[
    NvidiaPreset {
        preset: "h100",
        name: "NVIDIA H100 80GB HBM3",
        sm: 90,
        sm_count: 132,
        memory_bytes: 80 * GIB,
        shared_memory: 232_448,
        l2_bytes: 50 << 20,
    },
    NvidiaPreset {
        preset: "h200",
        name: "NVIDIA H200",
        sm: 90,
        sm_count: 132,
        memory_bytes: 140 * GIB,
        shared_memory: 232_448,
        l2_bytes: 50 << 20,
    },
    NvidiaPreset {
        preset: "b200",
        name: "NVIDIA B200",
        sm: 100,
        sm_count: 148,
        memory_bytes: 180 * GIB,
        shared_memory: 232_448,
        l2_bytes: 126 << 20,
    },
    NvidiaPreset {
        preset: "a100",
        name: "NVIDIA A100-SXM4-80GB",
        sm: 80,
        sm_count: 108,
        memory_bytes: 80 * GIB,
        shared_memory: 166_912,
        l2_bytes: 40 << 20,
    },
    NvidiaPreset {
        preset: "rtx3080",
        name: "NVIDIA GeForce RTX 3080",
        sm: 86,
        sm_count: 68,
        memory_bytes: 10 * GIB,
        shared_memory: 101_376,
        l2_bytes: 5 << 20,
    },
];

/// All presets.
pub const PRESETS: [&str; 8] = ["h100", "h200", "b200", "a100", "rtx3080", "mi300x", "gaudi3", "laptop-cpu"];

/// A simulated well-known device. Its uuid is `preset-` and the name.
pub fn preset(name: &str) -> Result<DeviceSpec, UnknownPreset> {
    if let Some(preset) = NVIDIA.iter().find(|preset| preset.preset == name) {
        return Ok(nvidia(preset));
    }
    let (title, vendor, detail) = match name {
        "mi300x" => ("AMD Instinct MI300X", Vendor::Amd, DeviceDetail::Rocm(mi300x())),
        "gaudi3" => ("Intel Gaudi 3", Vendor::Intel, DeviceDetail::Hpu(gaudi3())),
        "laptop-cpu" => ("Laptop processor with AVX2", Vendor::Intel, DeviceDetail::Cpu(laptop())),
        _ => return Err(UnknownPreset { name: name.to_owned() }),
    };
    Ok(DeviceSpec { name: title.to_owned(), vendor, uuid: format!("preset-{name}"), index: 0, detail })
}

fn nvidia(preset: &NvidiaPreset) -> DeviceSpec {
    let mut spec = CudaSpec::for_sm(preset.sm, &GenerationTable::default());
    spec.sm_count = preset.sm_count;
    spec.memory_bytes = preset.memory_bytes;
    spec.max_shared_memory_per_block = preset.shared_memory;
    spec.l2_bytes = preset.l2_bytes;
    spec.driver_version = "580.65.06".to_owned();
    spec.cuda_version = "13.0".to_owned();
    DeviceSpec {
        name: preset.name.to_owned(),
        vendor: Vendor::Nvidia,
        uuid: format!("preset-{}", preset.preset),
        index: 0,
        detail: DeviceDetail::Cuda(spec),
    }
}

fn mi300x() -> RocmSpec {
    RocmSpec {
        gfx: "gfx942".to_owned(),
        family: RocmSpec::family_of("gfx942").map(str::to_owned),
        compute_units: 304,
        wavefront_size: 64,
        memory_bytes: 192 * GIB,
        shared_memory_per_block: 64 * 1024,
        max_threads_per_block: 1024,
        max_grid: [2_147_483_647, 65_535, 65_535],
        driver_version: "6.14".to_owned(),
        rocm_version: "7.0".to_owned(),
        bf16: true,
        f8: true,
    }
}

fn gaudi3() -> HpuSpec {
    HpuSpec {
        architecture: "gaudi3".to_owned(),
        matrix_engines: 8,
        tensor_cores: 64,
        memory_bytes: 128 * GIB,
        driver_version: "1.22.0".to_owned(),
        synapse_version: "1.22.0".to_owned(),
        f8: true,
    }
}

fn laptop() -> CpuSpec {
    CpuSpec {
        architecture: "x86_64".to_owned(),
        isa: [Isa::Sse42, Isa::Avx, Isa::Avx2, Isa::Fma, Isa::F16c].into_iter().collect(),
        cores: 8,
        logical_cores: 16,
        l1d_bytes: 48 << 10,
        l2_bytes: 1280 << 10,
        l3_bytes: 24 << 20,
        memory_bytes: Some(16 * GIB),
        vendor_id: "GenuineIntel".to_owned(),
        model: "Laptop processor with AVX2".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lz_core::device::{Generation, InstructionSet, Platform};

    #[test]
    fn every_preset_exists_and_others_do_not() {
        for name in PRESETS {
            let device = preset(name).unwrap();
            assert_eq!(device.uuid, format!("preset-{name}"));
            assert!(device.memory_bytes().unwrap() >= 10 * GIB);
        }
        let message = preset("tpu").unwrap_err().to_string();
        assert_eq!(
            message,
            "unknown device preset `tpu`; expected one of h100, h200, b200, a100, rtx3080, mi300x, gaudi3, laptop-cpu"
        );
    }

    #[test]
    fn presets_match_their_names() {
        let device = |name| preset(name).unwrap();
        assert_eq!(device("h100").generation(), Some(&Generation::named("hopper")));
        assert!(device("b200").cuda().unwrap().instruction_sets.contains(&InstructionSet::Tcgen05Mma));
        assert_eq!(device("mi300x").platform(), Platform::Rocm);
        assert_eq!(device("gaudi3").platform(), Platform::Hpu);
        assert!(device("laptop-cpu").isa().has(Isa::Avx2) && !device("laptop-cpu").isa().has(Isa::Avx512F));
    }

    #[test]
    fn signatures_name_architecture_and_toolkit() {
        let signatures: Vec<String> = PRESETS
            .iter()
            .filter_map(|name| preset(name).ok())
            .map(|device| device.hardware_signature())
            .collect();
        assert_eq!(
            signatures,
            [
                "cuda_sm90_cu130",
                "cuda_sm90_cu130",
                "cuda_sm100_cu130",
                "cuda_sm80_cu130",
                "cuda_sm86_cu130",
                "rocm_gfx942_rocm70",
                "hpu_gaudi3_synapse122",
                "cpu_x86_64_avx2_16t",
            ]
        );
    }

    #[test]
    fn every_preset_survives_json() {
        for name in PRESETS {
            let device = preset(name).unwrap();
            let text = serde_json::to_string(&device).unwrap();
            assert_eq!(serde_json::from_str::<DeviceSpec>(&text).unwrap(), device, "{name}");
        }
    }
}
