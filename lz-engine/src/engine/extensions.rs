//! What clients of the engine keep with it and hear from it, without the engine knowing them.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::selection::call::Call;
use lz_core::fork::Mutex;

/// One value a type. Looked up outside of calls that hit a cache.
#[derive(Debug, Default)]
pub(super) struct Extensions(Mutex<Vec<Arc<dyn Any + Send + Sync>>>);

impl Extensions {
    /// The value of a type, made by default when there is none yet.
    pub fn get<T: Default + Send + Sync + 'static>(&self) -> Arc<T> {
        let mut all = self.0.lock();
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

/// The observers of an engine: one that records decisions, and one that tunes in the background while that is enabled.
#[derive(Default)]
pub(super) struct Observer {
    /// Bits of the observers that are notified.
    on: AtomicU8,
    recorder: Mutex<Option<Arc<dyn DecisionObserver>>>,
    tuner: Mutex<Option<Arc<dyn DecisionObserver>>>,
}

const RECORDER: u8 = 1;
const TUNER: u8 = 2;

impl Observer {
    pub fn set_recorder(&self, recorder: Option<Arc<dyn DecisionObserver>>) {
        self.notify_if(RECORDER, recorder.is_some());
        *self.recorder.lock() = recorder;
    }

    pub fn set_tuner(&self, tuner: Arc<dyn DecisionObserver>) {
        *self.tuner.lock() = Some(tuner);
    }

    pub fn enable_tuner(&self, enabled: bool) {
        self.notify_if(TUNER, enabled);
    }

    fn notify_if(&self, bit: u8, notify: bool) {
        if notify {
            self.on.fetch_or(bit, Ordering::Relaxed);
        } else {
            self.on.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    /// Whether decisions are recorded.
    #[inline]
    pub fn is_recording(&self) -> bool {
        self.on.load(Ordering::Relaxed) & RECORDER != 0
    }

    /// Logs a new decision and notifies the observer of it.
    #[inline]
    pub fn decided(&self, call: &Call<'_>, position: u16) {
        if tracing::event_enabled!(target: "lz::select", tracing::Level::DEBUG) {
            log(call, position);
        }
        let on = self.on.load(Ordering::Relaxed);
        if on != 0 {
            self.notify(call, position, on);
        }
    }

    #[cold]
    fn notify(&self, call: &Call<'_>, position: u16, on: u8) {
        for (bit, observer) in [(RECORDER, &self.recorder), (TUNER, &self.tuner)] {
            let observer = observer.lock().clone();
            if let Some(observer) = observer.filter(|_| on & bit != 0) {
                observer.decided(call, position);
            }
        }
    }
}

#[cold]
fn log(call: &Call<'_>, position: u16) {
    let candidate = call.table.candidates.get(usize::from(position));
    let kernel = candidate.and_then(|one| call.snapshot.registry.compiled(one.kernel));
    let kernel = kernel.map_or("", |kernel| kernel.spec().id.as_str());
    tracing::debug!(target: "lz::select", operation = %call.table.info.name, kernel, "new decision");
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer").field("on", &self.on).finish_non_exhaustive()
    }
}
