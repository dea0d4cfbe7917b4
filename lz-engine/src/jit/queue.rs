//! The background queue: what calls wanted is compiled by threads of its own, while other kernels do the work.
//!
//! The queue is bounded and drops the oldest. It holds the engine weakly: the engine holds it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::compile_one::{self, Outcome};
use super::config::JitConfig;
use super::manifest::{Manifest, ManifestState};
use crate::bucket::Bucket;
use crate::engine::Engine;
use crate::engine::{JitRequests, WeakEngine};
use lz_core::context::Context;
use lz_core::operation::OperationInfo;
use lz_core::reason::{Reason, ReasonCode};

/// How often a thread that may not work looks whether it may.
const LOOK: Duration = Duration::from_millis(50);

/// A kernel, the slot of its operation and a bucket.
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
    /// What waits or is being compiled, so that nothing waits twice.
    known: HashSet<Key>,
    failures: HashMap<Key, u32>,
    busy: usize,
    last_dropped: Option<Reason>,
    manifest: Manifest,
    unsaved: bool,
}

/// What the queue has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct JitCounters {
    /// Requests that were taken.
    pub wanted: u64,
    /// Requests that were dropped because the queue was full.
    pub dropped: u64,
    /// Compilations that worked.
    pub compiled: u64,
    /// Compilations that failed.
    pub failed: u64,
    /// Requests for kernels that are gone or cannot be compiled.
    pub impossible: u64,
}

#[derive(Debug)]
struct Inner {
    config: JitConfig,
    engine: WeakEngine,
    state: Mutex<State>,
    wake: Condvar,
    stopping: AtomicBool,
    /// The process that has the threads. A forked child has none of them, and they may have held the lock.
    process: u32,
    wanted: AtomicU64,
    dropped: AtomicU64,
    compiled: AtomicU64,
    failed: AtomicU64,
    impossible: AtomicU64,
}

/// Compiles in the background what calls of an engine wanted. Dropping it ends its threads after what they compile now.
#[derive(Debug)]
pub struct JitQueue {
    inner: Arc<Inner>,
    workers: Vec<JoinHandle<()>>,
}

impl JitQueue {
    /// Starts the threads and tells the engine whom to ask. `model` names what is served, for the manifest.
    pub fn start(engine: &Engine, model: &str, config: JitConfig) -> JitQueue {
        let manifest = match &config.manifest {
            None => Manifest::new(model),
            Some(path) => {
                let (manifest, warning) = Manifest::load(path, model, config.manifest_stale);
                if let Some(warning) = warning {
                    tracing::warn!(warning, "the manifest of shapes is not used");
                }
                manifest
            }
        };
        let count = if config.background { config.workers.max(1) } else { 0 };
        let inner = Arc::new(Inner {
            config,
            engine: engine.downgrade(),
            state: Mutex::new(State { manifest, ..State::default() }),
            wake: Condvar::new(),
            stopping: AtomicBool::new(false),
            process: std::process::id(),
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
                    tracing::warn!(%error, "a thread for background compilation could not be started")
                }
            }
        }
        engine.set_jit(Some(Arc::clone(&inner) as Arc<dyn JitRequests>));
        JitQueue { inner, workers }
    }

    /// The shapes that were wanted or compiled, from this run and from the manifest that it began with.
    pub fn manifest(&self) -> Manifest {
        self.inner.state().manifest.clone()
    }

    /// What it has done.
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

    /// Why a request was dropped last, if any was.
    pub fn last_dropped(&self) -> Option<Reason> {
        self.inner.state().last_dropped.clone()
    }

    /// How many requests wait, those that rest after a failure among them.
    pub fn waiting(&self) -> usize {
        self.inner.state().waiting.len()
    }

    /// Waits until nothing is left to be compiled now, at most so long. What rests after a failure does not count.
    pub fn wait_until_idle(&self, most: Duration) -> bool {
        let end = Instant::now() + most;
        let mut state = self.inner.state();
        loop {
            let now = Instant::now();
            let due = |request: &Request| request.not_before.is_none_or(|at| at <= now);
            if state.busy == 0 && !state.waiting.iter().any(due) {
                return true;
            }
            if now >= end {
                return false;
            }
            let wait = LOOK.min(end - now);
            state = self.inner.wake.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Ends the threads, waits for what they compile now, and writes the manifest. In a forked child there is nothing to end.
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
            // Handles of threads that do not exist here must not even be detached.
            std::mem::forget(std::mem::take(&mut self.workers));
            return;
        }
        self.inner.stop();
    }
}

impl JitRequests for Inner {
    fn want(&self, kernel: &str, operation: &'static OperationInfo, context: &Context) {
        let key: Key = (kernel.to_owned(), operation.slot(), Bucket::of(operation, context).words().into());
        if !self.is_own() {
            return;
        }
        let mut state = self.state();
        if self.stopping.load(Ordering::Relaxed) || state.known.contains(&key) {
            return;
        }
        self.wanted.fetch_add(1, Ordering::Relaxed);
        // The version is filled in when it is compiled: a call must not wait for the registry.
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
                tracing::debug!(kernel = oldest.key.0, %reason, "dropped from a full queue of compilations");
                state.last_dropped = Some(reason);
            }
        }
        state.known.insert(key.clone());
        state.waiting.push_back(Request { key, operation, context: *context, not_before: None });
        drop(state);
        self.wake.notify_one();
    }
}

impl Inner {
    fn is_own(&self) -> bool {
        self.process == std::process::id()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.wake.notify_all();
    }

    /// The life of a thread.
    fn work(&self) {
        while let Some(request) = self.next() {
            let Some(engine) = self.engine.upgrade() else { return };
            let outcome = compile_one::compile(&engine, &request.key.0, request.operation, &request.context);
            self.settle(&engine, request, outcome);
        }
        self.save();
    }

    /// The next request that may be compiled now; `None` when it is time to end.
    fn next(&self) -> Option<Request> {
        loop {
            if self.stopping.load(Ordering::Relaxed) {
                return None;
            }
            let health = self.engine.upgrade()?.health();
            health.poll();
            let allowed = health.level().allows_background();
            let mut state = self.state();
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
            let waited = self.wake.wait_timeout(state, LOOK);
            drop(waited.unwrap_or_else(PoisonError::into_inner).0);
        }
    }

    /// Puts down what became of a request.
    fn settle(&self, engine: &Engine, mut request: Request, outcome: Outcome) {
        let kernel = &request.key.0;
        let registry = engine.registry();
        let mut entries = registry.kernels_of(request.operation);
        let version = entries.find(|entry| entry.spec.id == *kernel).map(|entry| entry.spec.version.clone());
        let version = version.unwrap_or_default();
        let mut state = self.state();
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
                tracing::debug!(kernel, "compiled in the background");
            }
            Outcome::Impossible(reason) => {
                self.impossible.fetch_add(1, Ordering::Relaxed);
                // It stays known, so that it is not asked for again and again.
                note(&mut state, ManifestState::Failed(reason.sentence()));
                tracing::warn!(kernel, %reason, "cannot be compiled in the background");
            }
            Outcome::Resting(reason) => {
                tracing::debug!(kernel, %reason, "rests before it is compiled");
                request.not_before = Some(Instant::now() + self.config.backoff);
                state.waiting.push_back(request);
            }
            Outcome::Failed(reason) => {
                self.failed.fetch_add(1, Ordering::Relaxed);
                note(&mut state, ManifestState::Failed(reason.sentence()));
                let failures = state.failures.entry(request.key.clone()).or_default();
                *failures += 1;
                let rest = self.config.rest(*failures);
                tracing::warn!(kernel, %reason, failures = *failures, "a compilation failed and is tried again later");
                request.not_before = Some(Instant::now() + rest);
                state.waiting.push_back(request);
            }
        }
        drop(state);
        self.wake.notify_all();
    }

    /// Writes the manifest, if there is anything new and a place for it. The file is not written under the lock.
    fn save(&self) {
        let Some(path) = &self.config.manifest else {
            self.state().unsaved = false;
            return;
        };
        let manifest = {
            let mut state = self.state();
            if !std::mem::take(&mut state.unsaved) {
                return;
            }
            state.manifest.clone()
        };
        if let Err(error) = manifest.save(path) {
            tracing::warn!(path = %path.display(), %error, "the manifest of shapes could not be written");
        }
    }
}
