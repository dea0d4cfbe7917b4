//! The size of the largest free block of each device, believed for a while: a device may have much memory and no large piece of
//! it, and finding that out may mean trying to allocate.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::MemoryProbe;
use lz_core::device::DeviceSpec;

/// What was found out, by device.
#[derive(Debug, Default)]
pub(crate) struct KeptBlocks(Mutex<Vec<Kept>>);

#[derive(Debug)]
struct Kept {
    device: String,
    found_at: Instant,
    bytes: Option<u64>,
}

impl KeptBlocks {
    fn all(&self) -> MutexGuard<'_, Vec<Kept>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The largest block, as found out not longer ago than that.
    pub fn largest(&self, probe: &dyn MemoryProbe, device: &DeviceSpec, believed: Duration) -> Option<u64> {
        let now = Instant::now();
        if let Some(kept) = self.all().iter_mut().find(|kept| kept.device == device.uuid) {
            if now.duration_since(kept.found_at) < believed {
                return kept.bytes;
            }
            // Whoever comes while this thread tries goes on with what was known.
            kept.found_at = now;
        }
        let bytes = probe.largest_block(device);
        let mut all = self.all();
        all.retain(|kept| kept.device != device.uuid);
        all.push(Kept { device: device.uuid.clone(), found_at: Instant::now(), bytes });
        bytes
    }

    /// An allocation has failed: what was known is not true any more.
    pub fn forget(&self) {
        self.all().clear();
    }
}
