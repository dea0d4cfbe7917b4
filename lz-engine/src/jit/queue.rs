//! The background queue: compiles requested kernels on its own threads.
//!
//! The queue is bounded and drops the oldest request. It holds a weak reference to the engine, which owns it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::compile_one::{self, Outcome};
use super::config::JitConfig;
use super::manifest::{Manifest, ManifestState};
use crate::bucket::Bucket;
use crate::engine::Engine;
use crate::engine::{JitRequests, JitState, WeakEngine};
use lz_core::context::Context;
use lz_core::fork::{Condvar, Mutex};
use lz_core::operation::OperationInfo;
use lz_core::reason::{Reason, ReasonCode};

/// Poll interval of idle threads.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Kernel, slot of its operation, and bucket.
type Key = (String, u32, Box<[u64]>);

#[derive(Debug, Clone)]
struct Request {
    key: Key,
    operation: &'static OperationInfo,
    context: Context,
    not_before: Option<Instant>,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Request>,
    /// Queued or running requests, to avoid duplicates.
    known: HashSet<Key>,
    failures: HashMap<Key, u32>,
    busy: usize,
    last_dropped: Option<Reason>,
    manifest: Manifest,
    unsaved: bool,
}

/// Counters of the queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct JitCounters {
    /// Accepted requests.
    pub wanted: u64,
    /// Requests dropped because the queue was full.
    pub dropped: u64,
    /// Successful compilations.
    pub compiled: u64,
    /// Failed compilations.
    pub failed: u64,
    /// Requests for kernels that are not registered or cannot be compiled.
    pub impossible: u64,
}

#[derive(Debug)]
struct Inner {
    config: JitConfig,
    engine: WeakEngine,
    state: Mutex<State>,
    wake: Condvar,
    stopping: AtomicBool,
    /// The process that owns the threads: a forked child has none of them, and they may have held the lock.
    process: u32,
    /// Why the shape manifest is ignored.
    manifest_problem: Option<String>,
    wanted: AtomicU64,
    dropped: AtomicU64,
    compiled: AtomicU64,
    failed: AtomicU64,
    impossible: AtomicU64,
}

/// Compiles requested kernels of an engine in the background. Dropping it stops its threads after their current compilation.
#[derive(Debug)]
pub struct JitQueue {
    inner: Arc<Inner>,
    workers: Vec<JoinHandle<()>>,
}

impl JitQueue {
    /// Starts the threads and registers with the engine. `model` identifies the served model in the manifest.
    pub fn start(engine: &Engine, model: &str, config: JitConfig) -> JitQueue {
        let (manifest, manifest_problem) = match &config.manifest {
            None => (Manifest::new(model), None),
            Some(path) => Manifest::load(path, model, config.manifest_stale),
        };
        if let Some(warning) = &manifest_problem {
            tracing::warn!(target: "lz::jit", warning, "shape manifest is ignored");
        }
        let count = if config.background { config.workers.max(1) } else { 0 };
        let inner = Arc::new(Inner {
            config,
            engine: engine.downgrade(),
            state: Mutex::new(State { manifest, ..State::default() }),
            wake: Condvar::new(),
            stopping: AtomicBool::new(false),
            process: std::process::id(),
            manifest_problem,
            wanted: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            compiled: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            impossible: AtomicU64::new(0),
        });
        let mut workers = Vec::with_capacity(count);
        for number in 0..count {
            let inner = Arc::clone(&inner);
            let builder = thread::Builder::new().name(format!("lz-jit-{number}"));
            match builder.spawn(move || inner.work()) {
                Ok(worker) => workers.push(worker),
                Err(error) => {
                    tracing::warn!(target: "lz::jit", %error, "cannot start a background compiler thread")
                }
            }
        }
        engine.set_jit(Some(Arc::clone(&inner) as Arc<dyn JitRequests>));
        JitQueue { inner, workers }
    }

    /// The requested and compiled shapes, of this run and of the loaded manifest.
    pub fn manifest(&self) -> Manifest {
        self.inner.state.lock().manifest.clone()
    }

    /// The counters.
    pub fn counters(&self) -> JitCounters {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        JitCounters {
            wanted: read(&self.inner.wanted),
            dropped: read(&self.inner.dropped),
            compiled: read(&self.inner.compiled),
            failed: read(&self.inner.failed),
            impossible: read(&self.inner.impossible),
        }
    }

    /// Why the latest request was dropped, if any was.
    pub fn last_dropped(&self) -> Option<Reason> {
        self.inner.state.lock().last_dropped.clone()
    }

    /// Number of queued requests, including those in backoff.
    pub fn waiting(&self) -> usize {
        self.inner.state.lock().waiting.len()
    }

    /// Waits until nothing is left to compile, at most this long. Requests in backoff do not count.
    pub fn wait_until_idle(&self, most: Duration) -> bool {
        let end = Instant::now() + most;
        let mut state = self.inner.state.lock();
        loop {
            let now = Instant::now();
            let due = |request: &Request| request.not_before.is_none_or(|at| at <= now);
            if state.busy == 0 && !state.waiting.iter().any(due) {
                return true;
            }
            if now >= end {
                return false;
            }
            let wait = POLL_INTERVAL.min(end - now);
            state = self.inner.wake.wait_timeout(&self.inner.state, state, wait);
        }
    }

    /// Stops the threads after their current compilation and writes the manifest. Does nothing in a forked child.
    pub fn stop(mut self) {
        if !self.inner.is_own() {
            return;
        }
        self.inner.stop();
        for worker in self.workers.drain(..) {
            worker.join().ok();
        }
        self.inner.save();
    }
}

impl Drop for JitQueue {
    fn drop(&mut self) {
        if !self.inner.is_own() {
            // The threads do not exist in this process, so their handles must not even be detached.
            std::mem::forget(std::mem::take(&mut self.workers));
            return;
        }
        self.inner.stop();
    }
}

impl JitRequests for Inner {
    fn compilation_state(&self) -> JitState {
        let state = self.state.lock();
        JitState {
            waiting: state.waiting.len() + state.busy,
            failed: state.failures.len(),
            compiled: self.compiled.load(Ordering::Relaxed),
            manifest_problem: self.manifest_problem.clone(),
        }
    }

    fn request(&self, kernel: &str, operation: &'static OperationInfo, context: &Context) {
        let key: Key = (kernel.to_owned(), operation.slot(), Bucket::of(operation, context).words().into());
        if !self.is_own() {
            return;
        }
        let mut state = self.state.lock();
        if self.stopping.load(Ordering::Relaxed) || state.known.contains(&key) {
            return;
        }
        self.wanted.fetch_add(1, Ordering::Relaxed);
        // The version is set on compilation: a call must not wait for the registry.
        state.manifest.note(kernel, "", operation, context, ManifestState::Wanted);
        state.unsaved = true;
        if !self.config.background {
            return;
        }
        while state.waiting.len() >= self.config.queue.max(1) {
            if let Some(oldest) = state.waiting.pop_front() {
                state.known.remove(&oldest.key);
                self.dropped.fetch_add(1, Ordering::Relaxed);
                let reason = Reason::new(ReasonCode::CompileQueueFull)
                    .required(format!("at most {} waiting", self.config.queue.max(1)))
                    .found(format!("one more, so that {} was dropped", oldest.key.0));
                tracing::debug!(target: "lz::jit", kernel = oldest.key.0, %reason, "compile queue is full; request dropped");
                state.last_dropped = Some(reason);
            }
        }
        state.known.insert(key.clone());
        state.waiting.push_back(Request { key, operation, context: *context, not_before: None });
        drop(state);
        self.wake.notify_all();
    }
}

impl Inner {
    fn is_own(&self) -> bool {
        self.process == std::process::id()
    }

    fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.wake.notify_all();
    }

    /// The main loop of a thread.
    fn work(&self) {
        while let Some(request) = self.next() {
            let Some(engine) = self.engine.upgrade() else { return };
            let outcome = compile_one::compile(&engine, &request.key.0, request.operation, &request.context);
            self.record_outcome(&engine, request, outcome);
        }
        self.save();
    }

    /// The next request that may be compiled now; `None` on stop.
    fn next(&self) -> Option<Request> {
        loop {
            if self.stopping.load(Ordering::Relaxed) {
                return None;
            }
            let health = self.engine.upgrade()?.health();
            health.poll();
            let allowed = health.level().allows_background();
            let mut state = self.state.lock();
            let now = Instant::now();
            let due = |request: &Request| request.not_before.is_none_or(|at| at <= now);
            let found = state.waiting.iter().position(due).filter(|_| allowed);
            if let Some(request) = found.and_then(|position| state.waiting.remove(position)) {
                state.busy += 1;
                return Some(request);
            }
            if state.unsaved && state.waiting.is_empty() && state.busy == 0 {
                drop(state);
                self.save();
                continue;
            }
            drop(self.wake.wait_timeout(&self.state, state, POLL_INTERVAL));
        }
    }

    /// Records the outcome of a request.
    fn record_outcome(&self, engine: &Engine, mut request: Request, outcome: Outcome) {
        let kernel = &request.key.0;
        let registry = engine.registry();
        let mut entries = registry.kernels_of(request.operation);
        let version = entries.find(|entry| entry.spec.id == *kernel).map(|entry| entry.spec.version.clone());
        let version = version.unwrap_or_default();
        let mut state = self.state.lock();
        state.busy -= 1;
        let (operation, context) = (request.operation, request.context);
        let note = |state: &mut State, what| {
            state.manifest.note(kernel, &version, operation, &context, what);
            state.unsaved = true;
        };
        match outcome {
            Outcome::Done(_) | Outcome::Warm => {
                self.compiled.fetch_add(1, Ordering::Relaxed);
                note(&mut state, ManifestState::Compiled);
                state.failures.remove(&request.key);
                state.known.remove(&request.key);
                tracing::debug!(target: "lz::jit", kernel, "compiled in the background");
            }
            Outcome::Impossible(reason) => {
                self.impossible.fetch_add(1, Ordering::Relaxed);
                // It stays in `known`, so that it is not requested again.
                note(&mut state, ManifestState::Failed(reason.sentence()));
                tracing::warn!(target: "lz::jit", kernel, %reason, "kernel cannot be compiled in the background");
            }
            Outcome::Resting(reason) => {
                tracing::debug!(target: "lz::jit", kernel, %reason, "compilation is in backoff");
                request.not_before = Some(Instant::now() + self.config.backoff);
                state.waiting.push_back(request);
            }
            Outcome::Failed(reason) => {
                self.failed.fetch_add(1, Ordering::Relaxed);
                note(&mut state, ManifestState::Failed(reason.sentence()));
                let failures = state.failures.entry(request.key.clone()).or_default();
                *failures += 1;
                let rest = self.config.backoff_after(*failures);
                tracing::warn!(target: "lz::jit", kernel, %reason, failures = *failures, "compilation failed; retrying later");
                request.not_before = Some(Instant::now() + rest);
                state.waiting.push_back(request);
            }
        }
        drop(state);
        self.wake.notify_all();
    }

    /// Writes the manifest if it changed and has a path. The lock is not held while writing.
    fn save(&self) {
        let Some(path) = &self.config.manifest else {
            self.state.lock().unsaved = false;
            return;
        };
        let manifest = {
            let mut state = self.state.lock();
            if !std::mem::take(&mut state.unsaved) {
                return;
            }
            state.manifest.clone()
        };
        if let Err(error) = manifest.save(path) {
            tracing::warn!(target: "lz::jit", path = %path.display(), %error, "cannot write shape manifest");
        }
    }
}
