//! What the system says of its memory, for engines whose settings ask for it (`memory.probe`).

use std::sync::LazyLock;

use super::MemoryProbe;
use lz_core::device::{DeviceSpec, Platform};
use lz_device::FreeMemory;

/// Asks this machine. The driver of a GPU is asked on every call; files of the host are read as often as
/// `memory.probe_ttl_seconds` says, because reading them takes longer than many a kernel.
#[derive(Debug, Default)]
pub struct SystemMemory(FreeMemory);

impl SystemMemory {
    /// Of another machine, as tests lay it out.
    pub fn of(memory: FreeMemory) -> SystemMemory {
        SystemMemory(memory)
    }
}

impl MemoryProbe for SystemMemory {
    fn free_bytes(&self, device: &DeviceSpec) -> Option<u64> {
        if device.platform() == Platform::Cpu { None } else { self.0.bytes(device) }
    }

    /// No system tells how its memory is cut up; no piece is larger than all that is free.
    fn largest_block(&self, device: &DeviceSpec) -> Option<u64> {
        self.0.bytes(device)
    }
}

/// The machine's own.
pub(crate) fn system_memory() -> &'static dyn MemoryProbe {
    static SYSTEM: LazyLock<SystemMemory> = LazyLock::new(SystemMemory::default);
    &*SYSTEM
}
