//! Free memory according to the system, for `memory.probe`.

use std::sync::LazyLock;

use super::MemoryProbe;
use lz_core::device::{DeviceSpec, Platform};
use lz_device::FreeMemory;

/// Queries this machine. The driver of a GPU is queried on every call; files of the host are read once per
/// `memory.probe_ttl_seconds`, because reading them takes longer than many kernels.
#[derive(Debug, Default)]
pub struct SystemMemory(FreeMemory);

impl SystemMemory {
    /// From a fake machine, for tests.
    pub fn of(memory: FreeMemory) -> SystemMemory {
        SystemMemory(memory)
    }
}

impl MemoryProbe for SystemMemory {
    fn free_bytes(&self, device: &DeviceSpec) -> Option<u64> {
        if device.platform() == Platform::Cpu { None } else { self.0.bytes(device) }
    }

    /// Systems do not report fragmentation; no block is larger than the free memory.
    fn largest_block(&self, device: &DeviceSpec) -> Option<u64> {
        self.0.bytes(device)
    }
}

/// The memory of this machine.
pub(crate) fn system_memory() -> &'static dyn MemoryProbe {
    static SYSTEM: LazyLock<SystemMemory> = LazyLock::new(SystemMemory::default);
    &*SYSTEM
}
