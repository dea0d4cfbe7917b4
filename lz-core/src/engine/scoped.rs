//! Scoped snapshots: a snapshot under a thread's policy overlay. It shares registry, health and measurements and has its own
//! policy and decision cache.
//!
//! Scoped snapshots are owned by the snapshot that they derive from, so a new snapshot invalidates them too.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::world::{Parts, World};
use crate::mode::Mode;
use crate::policy::Policy;
use crate::thread_scope;

/// The maximum number of scoped snapshots per snapshot.
const MOST: usize = 64;

/// Scoped snapshots by overlay id.
#[derive(Debug, Default)]
pub(crate) struct ScopedWorlds {
    now: Mutex<Vec<(u32, Arc<World>)>>,
    /// Those of the previous snapshot if it had the same policy: their policies and tables are reused.
    before: Vec<(u32, Arc<World>)>,
}

impl ScopedWorlds {
    /// For a snapshot that follows `before`.
    pub fn after(before: Option<&World>, policy: &Arc<Policy>) -> ScopedWorlds {
        let same = before.filter(|before| Arc::ptr_eq(&before.policy, policy));
        let before = same.map(|before| before.scoped.now().clone()).unwrap_or_default();
        ScopedWorlds { now: Mutex::default(), before }
    }

    fn now(&self) -> MutexGuard<'_, Vec<(u32, Arc<World>)>> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl World {
    /// The snapshot for calls of this mode, if it is not this one.
    #[inline]
    pub fn in_scope(&self, mode: Mode) -> Option<Arc<World>> {
        if mode.laid() == 0 { None } else { self.laid_over(mode.laid()) }
    }

    #[cold]
    fn laid_over(&self, number: u32) -> Option<Arc<World>> {
        let known = |worlds: &[(u32, Arc<World>)]| {
            worlds.iter().find(|(known, _)| *known == number).map(|(_, world)| Arc::clone(world))
        };
        let mut now = self.scoped.now();
        if let Some(world) = known(&now) {
            return Some(world);
        }
        let laid = thread_scope::laid_of_thread()?;
        // An overlay of another engine does not apply.
        let layer = laid.over(self.watching.engine)?;
        let before = known(&self.scoped.before);
        let policy = before
            .as_ref()
            .map_or_else(|| Arc::new(self.policy.overlaid(layer)), |before| Arc::clone(&before.policy));
        let parts = Parts { policy, ..self.parts() };
        let world = Arc::new(World::new(parts, self.generation, before.as_deref(), self.decisions.room()));
        if now.len() >= MOST {
            now.remove(0);
        }
        now.push((number, Arc::clone(&world)));
        Some(world)
    }
}
