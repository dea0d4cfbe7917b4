//! What clients of the engine keep with it and hear from it, without the engine knowing them.

use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use crate::selection::call::Call;

/// One value a type. Looked up outside of calls that hit a cache.
#[derive(Debug, Default)]
pub(super) struct Extensions(Mutex<Vec<Arc<dyn Any + Send + Sync>>>);

impl Extensions {
    /// The value of a type, made by default when there is none yet.
    pub fn get<T: Default + Send + Sync + 'static>(&self) -> Arc<T> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for one in all.iter() {
            if let Ok(found) = Arc::clone(one).downcast::<T>() {
                return found;
            }
        }
        let made = Arc::new(T::default());
        all.push(Arc::<T>::clone(&made));
        made
    }
}

/// Notified of each new decision; cache hits are not decisions.
pub(crate) trait DecisionObserver: Send + Sync {
    /// The candidate at this position was chosen for a call.
    fn decided(&self, call: &Call<'_>, position: u16);
}

/// The observer of an engine, if it has one.
#[derive(Default)]
pub(super) struct Observer {
    on: AtomicBool,
    who: RwLock<Option<Arc<dyn DecisionObserver>>>,
}

impl Observer {
    pub fn set(&self, who: Option<Arc<dyn DecisionObserver>>) {
        self.on.store(who.is_some(), Ordering::Relaxed);
        *self.who.write().unwrap_or_else(PoisonError::into_inner) = who;
    }

    /// Tells the observer of a decision.
    #[inline]
    pub fn decided(&self, call: &Call<'_>, position: u16) {
        if self.on.load(Ordering::Relaxed) {
            self.notify(call, position);
        }
    }

    #[cold]
    fn notify(&self, call: &Call<'_>, position: u16) {
        let who = self.who.read().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(who) = who {
            who.decided(call, position);
        }
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer").field("on", &self.on).finish_non_exhaustive()
    }
}
