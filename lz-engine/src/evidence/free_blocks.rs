//! A cache of the largest free block per device: memory may be fragmented, and determining the largest block may require trial
//! allocations.

use std::time::{Duration, Instant};

use super::MemoryProbe;
use lz_core::device::DeviceSpec;
use lz_core::fork::Mutex;

/// Probe results by device.
#[derive(Debug, Default)]
pub(crate) struct FreeBlockCache(Mutex<Vec<CachedBlock>>);

#[derive(Debug)]
struct CachedBlock {
    device: String,
    probed_at: Instant,
    bytes: Option<u64>,
}

impl FreeBlockCache {
    /// The largest free block; a cached result is used if it is not older than `max_age`.
    pub fn largest(&self, probe: &dyn MemoryProbe, device: &DeviceSpec, max_age: Duration) -> Option<u64> {
        let now = Instant::now();
        if let Some(cached) = self.0.lock().iter_mut().find(|cached| cached.device == device.uuid) {
            if now.duration_since(cached.probed_at) < max_age {
                return cached.bytes;
            }
            // Other threads use the old result while this one probes.
            cached.probed_at = now;
        }
        let bytes = probe.largest_block(device);
        let mut all = self.0.lock();
        all.retain(|cached| cached.device != device.uuid);
        all.push(CachedBlock { device: device.uuid.clone(), probed_at: Instant::now(), bytes });
        bytes
    }

    /// Clears the cache after a failed allocation.
    pub fn clear(&self) {
        self.0.lock().clear();
    }
}
