//! AMD GPUs as listed by the kernel driver below `/sys/class/kfd`: no library is loaded.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use lz_core::device::{DeviceDetail, DeviceSpec, RocmSpec, Vendor};

use crate::absence::AbsenceReason;

/// The AMD GPUs of the machine whose `sys` and `opt` are below `root`, or why there are none.
pub fn detect_rocm_at(root: &Path) -> Result<Vec<DeviceSpec>, AbsenceReason> {
    let nodes = root.join("sys/class/kfd/kfd/topology/nodes");
    let entries = fs::read_dir(&nodes)
        .map_err(|error| AbsenceReason::DriverMissing { path: nodes.clone(), message: error.to_string() })?;
    let mut numbers: Vec<u32> =
        entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    numbers.sort_unstable();
    let driver_version = first_line(&root.join("sys/module/amdgpu/version"));
    let rocm_version = first_line(&root.join("opt/rocm/.info/version"));
    let mut devices = Vec::new();
    for number in numbers {
        let folder = nodes.join(number.to_string());
        let properties = properties(&folder.join("properties"));
        let property = |name: &str| properties.get(name).copied().unwrap_or(0);
        // CPU nodes have a target version of zero.
        let version = property("gfx_target_version");
        if version == 0 {
            continue;
        }
        let gfx = gfx_name(version);
        let simd_per_unit = property("simd_per_cu").max(1);
        let family = RocmSpec::family_of(&gfx).map(str::to_owned);
        let modern = family.as_deref().is_some_and(|family| family != "gcn5" && family != "rdna2");
        let spec = RocmSpec {
            family,
            compute_units: (property("simd_count") / simd_per_unit) as u32,
            wavefront_size: property("wave_front_size") as u32,
            memory_bytes: memory_bytes(&folder),
            shared_memory_per_block: (property("lds_size_in_kb") * 1024) as u32,
            max_threads_per_block: 1024,
            max_grid: [2_147_483_647, 65_535, 65_535],
            driver_version: driver_version.clone(),
            rocm_version: rocm_version.clone(),
            bf16: modern,
            f8: matches!(gfx.as_str(), "gfx940" | "gfx941" | "gfx942" | "gfx950")
                || gfx.starts_with("gfx120"),
            gfx,
        };
        devices.push(DeviceSpec {
            name: format!("AMD {}", spec.gfx),
            vendor: Vendor::Amd,
            uuid: format!("GPU-{:016x}", property("unique_id")),
            index: devices.len() as u32,
            detail: DeviceDetail::Rocm(spec),
        });
    }
    if devices.is_empty() { Err(AbsenceReason::NoDevices) } else { Ok(devices) }
}

/// 90402 is `gfx942`, 90010 is `gfx90a`: major, then minor and stepping as hexadecimal digits.
fn gfx_name(version: u64) -> String {
    format!("gfx{}{:x}{:x}", version / 10_000, version / 100 % 100, version % 100)
}

fn properties(path: &Path) -> HashMap<String, u64> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines()
        .filter_map(|line| {
            let (name, value) = line.split_once(' ')?;
            Some((name.to_owned(), value.trim().parse().ok()?))
        })
        .collect()
}

/// Heap types 1 and 2 are GPU memory, visible to the host or not.
fn memory_bytes(node: &Path) -> u64 {
    let Ok(banks) = fs::read_dir(node.join("mem_banks")) else { return 0 };
    banks
        .filter_map(|bank| {
            let bank = properties(&bank.ok()?.path().join("properties"));
            matches!(bank.get("heap_type"), Some(1 | 2)).then(|| bank.get("size_in_bytes").copied())?
        })
        .sum()
}

fn first_line(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().next().unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_versions_become_architecture_names() {
        assert_eq!(gfx_name(90_402), "gfx942");
        assert_eq!(gfx_name(90_010), "gfx90a");
        assert_eq!(gfx_name(110_000), "gfx1100");
    }
}
