//! What one serving process has counted, and the violations that it saw.

use std::sync::atomic::{AtomicU64, Ordering};

use lz_core::fork::Mutex;
use serde_json::{Value, json};

/// Counters of a process.
#[derive(Debug, Default)]
pub struct Counts {
    /// Calls.
    pub calls: AtomicU64,
    /// Calls that failed with a listed error.
    pub listed_errors: AtomicU64,
    /// Calls of the kernel that is wrong on purpose that returned wrong values.
    pub wrong_values: AtomicU64,
    /// Calls that were tuned.
    pub tuned: AtomicU64,
    /// Restarts of worker processes.
    pub worker_restarts: AtomicU64,
    violations: Mutex<Vec<String>>,
}

/// Adds one to a counter.
pub fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Counts {
    /// Records a violation of an invariant.
    pub fn violation(&self, text: String) {
        eprintln!("violation: {text}");
        self.violations.lock().push(text);
    }

    /// Violations so far.
    pub fn violations(&self) -> usize {
        self.violations.lock().len()
    }

    /// The report that the driver reads, and whether no invariant was violated.
    pub fn report(&self, faults: u64) -> (Value, bool) {
        let violations = self.violations.lock();
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let report = json!({
            "calls": load(&self.calls),
            "faults": faults,
            "listed_errors": load(&self.listed_errors),
            "wrong_values": load(&self.wrong_values),
            "tuned": load(&self.tuned),
            "worker_restarts": load(&self.worker_restarts),
            "violations": *violations,
        });
        (report, violations.is_empty())
    }
}
