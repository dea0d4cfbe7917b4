//! Host CPUs: instruction sets, usable cores, caches.
//!
//! Everything but the instruction sets of this processor is read from files below a root (`/` on a real machine), so that tests can create
//! machines in directories. A missing or malformed file yields a default; detection never fails.

use std::fs;
use std::path::Path;

use lz_core::device::{CpuSpec, DeviceDetail, DeviceSpec, Isa, IsaSet, Vendor};
use sha2::{Digest, Sha256};

use crate::cgroup::processor_quota;

/// The CPU of this machine.
pub fn detect_cpu() -> DeviceSpec {
    let mut device = detect_cpu_at(Path::new("/"));
    if let DeviceDetail::Cpu(spec) = &mut device.detail {
        // Emulators such as valgrind support fewer instructions than the processor whose flags /proc lists.
        for (isa, is_supported) in instructions_by_processor() {
            spec.isa.set(isa, is_supported);
        }
        // Without /proc (another operating system) use the standard library.
        if !Path::new("/proc/self/status").exists()
            && let Ok(count) = std::thread::available_parallelism()
        {
            spec.logical_cores = u32::try_from(count.get()).unwrap_or(u32::MAX);
            spec.cores = spec.logical_cores;
        }
        device.uuid = identity(spec);
    }
    device
}

/// The CPU of the machine whose `proc` and `sys` are below `root`.
pub fn detect_cpu_at(root: &Path) -> DeviceSpec {
    let info = fs::read_to_string(root.join("proc/cpuinfo")).unwrap_or_default();
    let allowed = allowed_processors(root);
    let online = allowed.clone().unwrap_or_else(|| counted_processors(&info));
    let quota = processor_quota(root);
    let logical = online.len().max(1) as u32;
    let logical_cores = quota.map_or(logical, |quota| quota.min(logical));
    let first = online.first().copied().unwrap_or(0);
    let cache = |level: u32, data: bool| cache_bytes(root, first, level, data).unwrap_or(0);
    let vendor_id = field(&info, &["vendor_id", "CPU implementer"]).unwrap_or_default();
    // On most aarch64 machines only the part number tells processors apart.
    let model = field(&info, &["model name", "Model", "Hardware", "CPU part"]).unwrap_or_default();
    let spec = CpuSpec {
        architecture: std::env::consts::ARCH.to_owned(),
        isa: instructions_by_flags(&info),
        cores: physical_cores(root, &online).min(logical_cores).max(1),
        logical_cores,
        l1d_bytes: cache(1, true),
        l2_bytes: cache(2, false),
        l3_bytes: cache(3, false),
        memory_bytes: memory_total(root),
        vendor_id,
        model,
    };
    DeviceSpec {
        name: if spec.model.is_empty() { spec.architecture.clone() } else { spec.model.clone() },
        vendor: vendor(&spec.vendor_id),
        uuid: identity(&spec),
        index: 0,
        detail: DeviceDetail::Cpu(spec),
    }
}

/// Equal CPUs share measurements, so the identity is a digest of everything that affects speed and nothing else.
fn identity(spec: &CpuSpec) -> String {
    let text = format!(
        "{}|{}|{}|{}|{}|{}|{}|{}|{}",
        spec.architecture,
        spec.vendor_id,
        spec.model,
        spec.isa,
        spec.cores,
        spec.logical_cores,
        spec.l1d_bytes,
        spec.l2_bytes,
        spec.l3_bytes
    );
    let digest = Sha256::digest(text.as_bytes());
    let mut uuid = String::from("cpu-");
    for byte in digest.iter().take(8) {
        uuid.push_str(&format!("{byte:02x}"));
    }
    uuid
}

fn vendor(vendor_id: &str) -> Vendor {
    match vendor_id {
        "GenuineIntel" => Vendor::Intel,
        "AuthenticAMD" | "HygonGenuine" => Vendor::Amd,
        "0x61" => Vendor::Apple,
        "0x4e" => Vendor::Nvidia,
        "0x41" | "0xc0" | "0x51" | "0x46" => Vendor::Arm,
        _ if cfg!(target_vendor = "apple") => Vendor::Apple,
        _ => Vendor::Other,
    }
}

fn field(info: &str, names: &[&str]) -> Option<String> {
    names.iter().find_map(|name| {
        info.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            (key.trim() == *name).then(|| value.trim().to_owned())
        })
    })
}

/// The operating system's list: unlike CPUID it omits what the kernel does not support.
fn instructions_by_flags(info: &str) -> IsaSet {
    let flags = field(info, &["flags", "Features"]).unwrap_or_default();
    flags
        .split_whitespace()
        .filter_map(|flag| {
            Some(match flag {
                "sse4_2" => Isa::Sse42,
                "asimd" => Isa::Neon,
                "asimdhp" => Isa::Fp16,
                "asimddp" => Isa::DotProd,
                other => Isa::from_name(other)?,
            })
        })
        .collect()
}

/// What CPUID reports, with the AMX sets off where their vector instructions are missing: the standard library cannot detect AMX.
#[cfg(target_arch = "x86_64")]
fn instructions_by_processor() -> Vec<(Isa, bool)> {
    let has_avx512 = std::is_x86_feature_detected!("avx512f");
    let mut isa = vec![
        (Isa::Sse42, std::is_x86_feature_detected!("sse4.2")),
        (Isa::Avx, std::is_x86_feature_detected!("avx")),
        (Isa::Avx2, std::is_x86_feature_detected!("avx2")),
        (Isa::Fma, std::is_x86_feature_detected!("fma")),
        (Isa::F16c, std::is_x86_feature_detected!("f16c")),
        (Isa::AvxVnni, std::is_x86_feature_detected!("avxvnni")),
        (Isa::Avx512F, has_avx512),
        (Isa::Avx512Bw, std::is_x86_feature_detected!("avx512bw")),
        (Isa::Avx512Dq, std::is_x86_feature_detected!("avx512dq")),
        (Isa::Avx512Vl, std::is_x86_feature_detected!("avx512vl")),
        (Isa::Avx512Vbmi, std::is_x86_feature_detected!("avx512vbmi")),
        (Isa::Avx512Vnni, std::is_x86_feature_detected!("avx512vnni")),
        (Isa::Avx512Bf16, std::is_x86_feature_detected!("avx512bf16")),
        (Isa::Avx512Fp16, std::is_x86_feature_detected!("avx512fp16")),
    ];
    if !has_avx512 {
        isa.extend([Isa::AmxTile, Isa::AmxBf16, Isa::AmxInt8, Isa::AmxFp16].map(|isa| (isa, false)));
    }
    isa
}

#[cfg(target_arch = "aarch64")]
fn instructions_by_processor() -> Vec<(Isa, bool)> {
    use std::arch::is_aarch64_feature_detected;
    vec![
        (Isa::Neon, is_aarch64_feature_detected!("neon")),
        (Isa::Fp16, is_aarch64_feature_detected!("fp16")),
        (Isa::DotProd, is_aarch64_feature_detected!("dotprod")),
        (Isa::Bf16, is_aarch64_feature_detected!("bf16")),
        (Isa::I8mm, is_aarch64_feature_detected!("i8mm")),
        (Isa::Sve, is_aarch64_feature_detected!("sve")),
        (Isa::Sve2, is_aarch64_feature_detected!("sve2")),
    ]
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn instructions_by_processor() -> Vec<(Isa, bool)> {
    Vec::new()
}

/// The processors in this process's affinity mask.
fn allowed_processors(root: &Path) -> Option<Vec<u32>> {
    let status = fs::read_to_string(root.join("proc/self/status")).ok()?;
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let processors = processor_list(list.trim());
    (!processors.is_empty()).then_some(processors)
}

/// Parses `0-3,8,10-11`; malformed parts are skipped and huge ranges are truncated.
fn processor_list(text: &str) -> Vec<u32> {
    const MAX_PROCESSOR: u32 = 65_536;
    let mut processors = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (Ok(first), Ok(last)) = (first.trim().parse::<u32>(), last.trim().parse::<u32>()) else {
            continue;
        };
        processors.extend(first..=last.min(MAX_PROCESSOR));
    }
    processors
}

fn counted_processors(info: &str) -> Vec<u32> {
    let count =
        info.lines().filter(|line| line.split(':').next().map(str::trim) == Some("processor")).count();
    (0..count as u32).collect()
}

/// Distinct (package, core) pairs among the usable threads; each thread counts as a core if the topology cannot be read.
fn physical_cores(root: &Path, processors: &[u32]) -> u32 {
    let mut cores: Vec<(String, String)> = processors
        .iter()
        .filter_map(|processor| {
            let folder = root.join(format!("sys/devices/system/cpu/cpu{processor}/topology"));
            let read = |name| fs::read_to_string(folder.join(name)).ok();
            Some((read("physical_package_id")?, read("core_id")?))
        })
        .collect();
    if cores.len() != processors.len() {
        return processors.len().max(1) as u32;
    }
    cores.sort();
    cores.dedup();
    cores.len().max(1) as u32
}

fn cache_bytes(root: &Path, processor: u32, level: u32, data_only: bool) -> Option<u64> {
    (0..8).find_map(|index| {
        let folder = root.join(format!("sys/devices/system/cpu/cpu{processor}/cache/index{index}"));
        let read = |name| fs::read_to_string(folder.join(name)).ok();
        let kind = read("type")?;
        let matches_kind = if data_only { kind.trim() == "Data" } else { kind.trim() != "Instruction" };
        (matches_kind && read("level")?.trim().parse() == Ok(level))
            .then(|| size(read("size")?.trim()))
            .flatten()
    })
}

/// `48K`, `2M` or plain bytes.
fn size(text: &str) -> Option<u64> {
    let (digits, unit) = match text.as_bytes().last()? {
        b'K' => (text.strip_suffix('K')?, 1 << 10),
        b'M' => (text.strip_suffix('M')?, 1 << 20),
        b'G' => (text.strip_suffix('G')?, 1 << 30),
        _ => (text, 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

fn memory_total(root: &Path) -> Option<u64> {
    let info = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let value = field(&info, &["MemTotal"])?;
    value.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_processor_lists_are_tolerated() {
        assert_eq!(processor_list("0-3,8,10-11"), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!(processor_list("x,5-4,7"), [7]);
        assert!(processor_list("0-4294967295").len() <= 65_537);
    }

    #[test]
    fn cache_sizes_have_units() {
        assert_eq!((size("48K"), size("2M"), size("77")), (Some(49_152), Some(2 << 20), Some(77)));
        assert_eq!((size(""), size("K"), size("99999999999999999999K")), (None, None, None));
    }

    #[test]
    fn missing_files_yield_defaults() {
        let device = detect_cpu_at(Path::new("/nonexistent/root"));
        let spec = device.cpu().unwrap();
        assert_eq!((spec.cores, spec.logical_cores, spec.l1d_bytes), (1, 1, 0));
        assert_eq!(device.vendor == Vendor::Apple, cfg!(target_vendor = "apple"));
    }

    #[test]
    fn this_machine_agrees_with_the_standard_library() {
        let device = detect_cpu();
        let spec = device.cpu().unwrap();
        let at_once = std::thread::available_parallelism().unwrap().get();
        assert_eq!(spec.logical_cores as usize, at_once);
        assert!(spec.cores >= 1 && spec.cores <= spec.logical_cores);
        for (isa, is_supported) in instructions_by_processor() {
            assert_eq!(spec.isa.has(isa), is_supported, "{isa:?}");
        }
        assert_eq!(device.uuid, detect_cpu().uuid);
    }
}
