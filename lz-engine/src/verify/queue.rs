//! The bounded queue of recorded calls and the thread that verifies them.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::engine::WeakEngine;
use crate::telemetry::Sample;
use lz_core::fork::{Condvar, Mutex};

/// Calls that wait; the memory of their tensors is limited by `verify_memory_mb`.
const MAX_WAITING: usize = 1024;

/// Calls that wait for verification.
#[derive(Debug, Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    idle: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Sample>,
    /// Memory of the waiting calls and of the one that is verified.
    bytes: u64,
    /// The process in which the thread runs; a forked child does not have it.
    running_in: Option<u32>,
}

impl Queue {
    /// Queues a call. Returns false if the queue is full or the thread cannot be started.
    pub fn push(self: &Arc<Queue>, sample: Sample, max_bytes: u64, engine: &WeakEngine) -> bool {
        let bytes = sample.call.bytes();
        let mut state = self.state.lock();
        let process = std::process::id();
        let is_running = state.running_in == Some(process);
        if !is_running {
            // What a forked child inherited is its parent's to verify.
            (state.waiting, state.bytes) = (VecDeque::new(), 0);
        }
        if state.waiting.len() >= MAX_WAITING || state.bytes.saturating_add(bytes) > max_bytes {
            return false;
        }
        if !is_running {
            let (queue, engine) = (Arc::clone(self), engine.clone());
            let thread = std::thread::Builder::new().name("layerzero-verify".to_owned());
            if let Err(error) = thread.spawn(move || queue.run(&engine)) {
                tracing::warn!(target: "lz::verify", %error, "cannot start the thread of verification");
                return false;
            }
            state.running_in = Some(process);
        }
        state.bytes += bytes;
        state.waiting.push_back(sample);
        true
    }

    /// Verifies what waits, then ends.
    fn run(&self, engine: &WeakEngine) {
        let mut done = 0;
        loop {
            let next = {
                let mut state = self.state.lock();
                state.bytes = state.bytes.saturating_sub(done);
                let next = state.waiting.pop_front();
                if next.is_none() {
                    state.running_in = None;
                    self.idle.notify_all();
                }
                next
            };
            let Some(sample) = next else { return };
            done = sample.call.bytes();
            let Some(engine) = engine.upgrade() else { continue };
            let verified = catch_unwind(AssertUnwindSafe(|| super::verify(&engine, sample)));
            if verified.is_err() {
                engine.health().record_engine_fault("verification panicked");
            }
        }
    }

    /// Waits until nothing is left to verify; false after the timeout.
    pub fn wait(&self, timeout: Duration) -> bool {
        let end = Instant::now() + timeout;
        let mut state = self.state.lock();
        while state.running_in == Some(std::process::id()) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self.idle.wait_timeout(&self.state, state, left);
        }
        true
    }
}
