//! Scoped snapshots: a snapshot under a thread's policy overlay. It shares registry, health and measurements and has its own
//! policy and decision cache.
//!
//! Scoped snapshots are owned by the snapshot that they derive from, so a new snapshot invalidates them too.

use std::sync::Arc;

use super::snapshot::{Snapshot, SnapshotParts};
use crate::policy::Policy;
use crate::registry::Registry;
use crate::selection::thread_scope;
use lz_core::fork::Mutex;
use lz_core::mode::Mode;

/// The maximum number of scoped snapshots per snapshot.
const MAX_SCOPED_SNAPSHOTS: usize = 64;

/// Scoped snapshots by overlay id.
#[derive(Debug, Default)]
pub(crate) struct ScopedSnapshots {
    now: Mutex<Vec<(u32, Arc<Snapshot>)>>,
    /// Those of the previous snapshot if it had the same policy: their policies and tables are reused.
    before: Vec<(u32, Arc<Snapshot>)>,
}

impl ScopedSnapshots {
    /// For a snapshot that follows `before`. Those of another registry are dropped: they would keep replaced kernels loaded.
    pub fn after(
        before: Option<&Snapshot>,
        policy: &Arc<Policy>,
        registry: &Arc<Registry>,
    ) -> ScopedSnapshots {
        let same = before
            .filter(|before| Arc::ptr_eq(&before.policy, policy) && Arc::ptr_eq(&before.registry, registry));
        let before = same.map(|before| before.scoped.now.lock().clone()).unwrap_or_default();
        ScopedSnapshots { now: Mutex::default(), before }
    }
}

impl Snapshot {
    /// The snapshot for calls of this mode, if it is not this one.
    #[inline]
    pub fn in_scope(&self, mode: Mode) -> Option<Arc<Snapshot>> {
        if mode.overlay_id() == 0 { None } else { self.scoped_snapshot(mode.overlay_id()) }
    }

    #[cold]
    fn scoped_snapshot(&self, number: u32) -> Option<Arc<Snapshot>> {
        let known = |worlds: &[(u32, Arc<Snapshot>)]| {
            worlds.iter().find(|(known, _)| *known == number).map(|(_, snapshot)| Arc::clone(snapshot))
        };
        let mut now = self.scoped.now.lock();
        if let Some(snapshot) = known(&now) {
            return Some(snapshot);
        }
        let overlay = thread_scope::thread_overlay()?;
        // An overlay of another engine does not apply.
        let layer = overlay.over(self.observation.engine)?;
        let before = known(&self.scoped.before);
        let policy = before
            .as_ref()
            .map_or_else(|| Arc::new(self.policy.overlaid(layer)), |before| Arc::clone(&before.policy));
        let parts = SnapshotParts { policy, ..self.parts() };
        let snapshot =
            Arc::new(Snapshot::new(parts, self.generation, before.as_deref(), self.decisions.capacity()));
        if now.len() >= MAX_SCOPED_SNAPSHOTS {
            now.remove(0);
        }
        now.push((number, Arc::clone(&snapshot)));
        Some(snapshot)
    }
}
