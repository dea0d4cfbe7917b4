//! Worlds under what a thread lays over the policy: the same registry, health and measurements, another policy, decisions of
//! their own.
//!
//! A scoped world lives in the world that it was made from and dies with it, so that everything that ends a decision ends
//! those of scopes too.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::snapshot::{Parts, World};
use crate::policy::Policy;
use crate::selection::thread_scope;
use lz_core::mode::Mode;

/// The most scoped worlds that one world keeps.
const MOST: usize = 64;

/// The scoped worlds of a world, by the number of what is laid over it.
#[derive(Debug, Default)]
pub(crate) struct ScopedWorlds {
    now: Mutex<Vec<(u32, Arc<World>)>>,
    /// Those of the world before, if it had the same policy: their policies and tables may be used again.
    before: Vec<(u32, Arc<World>)>,
}

impl ScopedWorlds {
    /// Of a world that follows another.
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
    /// The world in which a call of this mode is decided, when that is not this one.
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
        // Another engine's overlay leaves this one as it is.
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
