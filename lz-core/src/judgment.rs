//! Announces that a [`HandlePredicate`](crate::HandlePredicate) judges a handle differently than before, so that engines drop the
//! decisions that they have cached.

use crate::fork::Mutex;
use std::sync::Weak;

/// Is notified when a judgment has changed.
pub trait JudgmentListener: Send + Sync {
    /// Drops every decision that depends on a judgment. Called after the new judgment is visible to all threads.
    fn judgments_changed(&self);
}

static LISTENERS: Mutex<Vec<Weak<dyn JudgmentListener>>> = Mutex::new(Vec::new());

/// Adds a listener; it is removed when it is dropped.
pub fn listen(listener: Weak<dyn JudgmentListener>) {
    let mut listeners = LISTENERS.lock();
    listeners.retain(|listener| listener.strong_count() > 0);
    listeners.push(listener);
}

/// Notifies all listeners. The new judgment must be visible before.
pub fn announce() {
    // Listeners take their own locks, so they are called without this one.
    let listeners = LISTENERS.lock().clone();
    listeners.iter().filter_map(Weak::upgrade).for_each(|listener| listener.judgments_changed());
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    struct Count(Arc<AtomicUsize>);

    impl JudgmentListener for Count {
        fn judgments_changed(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_dropped_listener_is_not_notified() {
        let counts = [Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0))];
        let listeners = counts.clone().map(|count| Arc::new(Count(count)));
        for listener in &listeners {
            let weak: Weak<Count> = Arc::downgrade(listener);
            listen(weak);
        }
        let [first, second] = listeners;
        drop(second);
        announce();
        assert_eq!(counts.map(|count| count.load(Ordering::Relaxed)), [1, 0]);
        drop(first);
    }
}
