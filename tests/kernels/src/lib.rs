//! The list of kernels that test suites and benchmarks run. A backend joins every suite by adding its kernels
//! to [`all`].

use std::sync::OnceLock;

use lz_core::KernelEntry;
use lz_core::device::{DeviceDetail, Isa};
use lz_device::detect_cpu;

/// Every kernel of every backend in this repository, including those that this machine cannot run.
pub fn all() -> &'static [KernelEntry] {
    static KERNELS: OnceLock<Vec<KernelEntry>> = OnceLock::new();
    KERNELS.get_or_init(layerzero::kernels)
}

/// Kernels whose instruction sets this machine supports: those that a suite can check against the reference
/// here.
pub fn runnable() -> &'static [KernelEntry] {
    static KERNELS: OnceLock<Vec<KernelEntry>> = OnceLock::new();
    KERNELS.get_or_init(|| {
        let device = detect_cpu();
        let has = |name: &String| match &device.detail {
            DeviceDetail::Cpu(cpu) => Isa::from_name(name).is_some_and(|isa| cpu.isa.has(isa)),
            _ => false,
        };
        all().iter().filter(|entry| entry.spec.device.isa.iter().all(has)).cloned().collect()
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn ids_are_unique_and_instruction_sets_are_known() {
        let ids: HashSet<&str> = all().iter().map(|entry| entry.spec.id.as_str()).collect();
        assert_eq!(ids.len(), all().len());
        for entry in all() {
            for name in &entry.spec.device.isa {
                assert!(Isa::from_name(name).is_some(), "{}: {name}", entry.spec.id);
            }
        }
    }

    #[test]
    fn portable_kernels_are_runnable() {
        let plain = all().iter().filter(|entry| entry.spec.device.isa.is_empty()).count();
        assert!(plain > 0 && runnable().len() >= plain);
    }
}
