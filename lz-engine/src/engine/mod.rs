//! The engine: selects a kernel for a call, runs it, and falls back to another kernel when it fails.
//!
//! Path of a call: `dispatch` looks up the thread cache, then the decision cache of the current snapshot (`lookup`). On a miss the
//! candidates are ranked and filtered (`selection`: `decide`, `score`, `filter`). `run_kernel` runs the chosen one; after a failure
//! `fallback` runs the next. Everything that a decision depends on is in one immutable snapshot; every change publishes a new one.

mod builder;
mod capture;
mod dispatch;
mod dispatch_tables;
mod extensions;
mod fallback;
mod lookup;
pub(crate) mod measure;
mod metrics;
mod persistence;
mod pinned;
mod planned;
mod run_kernel;
mod settings;
mod swap;
mod versions;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError, Weak};

use lz_core::context::Context;
use lz_core::device::DeviceSpec;
use lz_core::error::Error;
use lz_core::fork;
use lz_core::judgment::{self, JudgmentListener};
use lz_core::kernel::{KernelEntry, KernelError};
use lz_core::mode::Mode;
use lz_core::operation::OperationInfo;
use lz_core::plan::Plan;
use lz_core::reason::Reason;
use lz_core::run::Run;

use crate::bucket::Bucket;
use crate::evidence::{Evidence, MemoryProbe};
use crate::health::{Change, Health, InstalledCounts};
use crate::policy::Policy;
use crate::policy::stack::PolicyStack;
use crate::registry::{BackendState, Registry};
use crate::selection::call::Call;
use crate::selection::devices::Devices;
use crate::selection::loaded_tables::LoadedTables;
use crate::selection::publish::Published;
use crate::selection::snapshot::{Snapshot, SnapshotParts};
use crate::selection::thread_cache::announce_release;
use crate::selection::{decide, split, thread_scope};
use crate::telemetry::Observation;

pub use crate::selection::snapshot::{JitRequests, JitState};
pub use builder::EngineBuilder;
pub use capture::HeldSnapshot;
pub(crate) use extensions::DecisionObserver;
use extensions::{Extensions, Observer};
pub(crate) use persistence::expanded;
pub use pinned::Pinned;

/// Selects kernels and dispatches calls. Clones share the same state.
#[derive(Debug, Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

/// A weak reference to an engine.
#[derive(Debug, Clone)]
pub(crate) struct WeakEngine(Weak<Shared>);

impl WeakEngine {
    pub fn upgrade(&self) -> Option<Engine> {
        self.0.upgrade().map(|shared| Engine { shared })
    }
}

#[derive(Debug)]
pub(crate) struct Shared {
    published: Published<Snapshot>,
    /// Held while a new snapshot is built and published.
    changing: Mutex<()>,
    /// The operator's settings; created on first use.
    operator: OnceLock<PolicyStack>,
    /// The PerfDB connection.
    persistence: OnceLock<Arc<persistence::Persistence>>,
    /// What clients of the engine keep with it.
    extensions: Extensions,
    /// Notified of new decisions.
    observer: Observer,
}

/// Generations are unique in a process, so that one thread cache can serve several engines.
static NEXT_GENERATION: AtomicU64 = AtomicU64::new(1);

fn next_generation() -> u64 {
    NEXT_GENERATION.fetch_add(1, Ordering::Relaxed)
}

/// Initial capacity of the decision cache. A snapshot whose cache fills up is replaced by one with a larger cache.
const INITIAL_CACHE_CAPACITY: usize = 192;

impl Default for Engine {
    fn default() -> Engine {
        Engine::new()
    }
}

impl Engine {
    /// An engine without kernels that uses the devices of this machine.
    pub fn new() -> Engine {
        Engine::with_health(Arc::new(Health::default()))
    }

    /// An engine with these kernels that uses the devices of this machine.
    pub fn with_kernels(kernels: impl IntoIterator<Item = KernelEntry>) -> Result<Engine, Error> {
        let engine = Engine::new();
        engine.register(kernels)?;
        Ok(engine)
    }

    /// An engine with this health state. A `Health` must not be shared between engines.
    pub fn with_health(health: Arc<Health>) -> Engine {
        Engine::from_parts(SnapshotParts { health, ..SnapshotParts::default() })
    }

    fn from_parts(parts: SnapshotParts) -> Engine {
        let health = Arc::clone(&parts.health);
        let capacity = parts.policy.cache.value.max_entries.min(INITIAL_CACHE_CAPACITY);
        let snapshot = Arc::new(Snapshot::new(parts, next_generation(), None, capacity));
        let shared = Arc::new(Shared {
            published: Published::new(snapshot),
            changing: Mutex::new(()),
            operator: OnceLock::new(),
            persistence: OnceLock::new(),
            extensions: Extensions::default(),
            observer: Observer::default(),
        });
        let weak: Weak<Shared> = Arc::downgrade(&shared);
        judgment::listen(weak.clone());
        health.on_change(move |change, _| {
            if let Some(shared) = weak.upgrade() {
                if let Change::Circuit { scope, name, to, .. } = change {
                    let telemetry = &shared.published.load().observation.telemetry;
                    telemetry.metrics.circuit_changed(scope.name(), name, to.name());
                }
                shared.change(|parts| Ok(Some(parts))).ok();
                shared.persist_health();
            }
        });
        Engine { shared }
    }

    /// An engine with the same kernels and policy and a simulated device: it selects and explains, and cannot run a call.
    #[must_use]
    pub fn with_device(&self, device: DeviceSpec) -> Engine {
        let parts = self.shared.published.load().parts();
        let health = Arc::new(Health::default());
        // Scopes apply to it too, but it has its own telemetry: simulated selections are not counted with real ones.
        let observation = Observation { telemetry: Arc::default(), ..parts.observation };
        Engine::from_parts(SnapshotParts {
            devices: Devices::Simulated(Arc::new(device)),
            health,
            observation,
            ..parts
        })
    }

    /// Registers operations, so that kernels can refer to them by name.
    pub fn register_operations(
        &self,
        operations: impl IntoIterator<Item = &'static OperationInfo>,
    ) -> Result<(), Error> {
        self.shared.change_registry(|registry| registry.with_operations(operations))
    }

    /// Registers kernels: all of them, or none if any spec is invalid.
    pub fn register(&self, entries: impl IntoIterator<Item = KernelEntry>) -> Result<(), Error> {
        self.shared.change_registry(|registry| registry.with_kernels(entries))?;
        self.shared.update_population();
        self.shared.load_persisted();
        if let Some(settings) = self.shared.operator.get() {
            self.shared.warn_about_names(&settings.effective());
        }
        Ok(())
    }

    /// Removes a backend and its kernels; whether there was one.
    pub fn unregister_backend(&self, backend: &str) -> bool {
        let mut was_registered = false;
        // Removal cannot fail.
        let remove = |registry: &Registry| {
            was_registered = registry.backend(backend).is_some();
            announce_release();
            Ok(registry.without_backend(backend))
        };
        self.shared.change_registry(remove).ok();
        self.shared.update_population();
        was_registered
    }

    /// Removes an operation and its kernels. Calls that run finish; later calls find no kernel.
    pub fn unregister_operation(&self, name: &str) -> Result<(), Error> {
        self.remove(|registry| registry.without_operation(name))
    }

    /// Removes the kernels with this id, of one operation if it is given.
    pub fn unregister_kernel(&self, id: &str, operation: Option<&str>) -> Result<(), Error> {
        self.remove(|registry| registry.without_kernel(id, operation))
    }

    /// Registers an operation in place of the one with its name, whose kernels are removed: they were checked against the
    /// replaced schema.
    pub fn replace_operation(&self, operation: &'static OperationInfo) -> Result<(), Error> {
        self.remove(|registry| match registry.operation(&operation.name) {
            Some(old) if !std::ptr::eq(old, operation) => {
                registry.without_operation(&operation.name)?.with_operations([operation])
            }
            _ => registry.with_operations([operation]),
        })
    }

    fn remove(&self, change: impl FnOnce(&Registry) -> Result<Registry, Error>) -> Result<(), Error> {
        self.shared.change_registry(|registry| {
            let changed = change(registry)?;
            announce_release();
            Ok(changed)
        })?;
        self.shared.update_population();
        Ok(())
    }

    /// Disables a backend; its kernels stay registered and are excluded for `reason`.
    pub fn disable_backend(&self, backend: &str, reason: Reason) {
        let state = BackendState::Disabled(reason);
        self.shared.change_registry(|registry| Ok(registry.with_backend_state(backend, state))).ok();
    }

    /// Reverts [`Engine::disable_backend`].
    pub fn enable_backend(&self, backend: &str) {
        let state = BackendState::Available;
        self.shared.change_registry(|registry| Ok(registry.with_backend_state(backend, state))).ok();
    }

    /// The registered operations and kernels.
    pub fn registry(&self) -> Arc<Registry> {
        Arc::clone(&self.shared.published.load().registry)
    }

    /// The policy in force.
    pub fn policy(&self) -> Arc<Policy> {
        Arc::clone(&self.shared.published.load().policy)
    }

    /// Replaces the policy. An equal policy changes nothing.
    pub fn set_policy(&self, policy: Policy) {
        let change = |parts: SnapshotParts| {
            Ok((*parts.policy != policy).then(|| SnapshotParts { policy: Arc::new(policy), ..parts }))
        };
        self.shared.change(change).ok();
    }

    /// Sets the source of measurements. Set it again when it has new measurements, so that cached decisions are invalidated.
    pub fn set_evidence(&self, evidence: Option<Arc<dyn Evidence>>) {
        self.shared.change(|parts| Ok(Some(SnapshotParts { evidence, ..parts }))).ok();
    }

    /// Whether selection uses measurements at all.
    pub fn has_measurements(&self) -> bool {
        self.thread_snapshot().0.evidence.is_some()
    }

    /// Sets the source of free-memory figures.
    pub fn set_memory_probe(&self, memory: Option<Arc<dyn MemoryProbe>>) {
        self.shared.change(|parts| Ok(Some(SnapshotParts { memory, blocks: Arc::default(), ..parts }))).ok();
    }

    /// Sets the background compiler.
    pub fn set_jit(&self, jit: Option<Arc<dyn JitRequests>>) {
        self.shared.change(|parts| Ok(Some(SnapshotParts { jit, ..parts }))).ok();
    }

    /// Marks a kernel as compiled for calls like this one.
    pub fn mark_warm(&self, kernel: &str, operation: &'static OperationInfo, context: &Context) {
        self.shared.mark_warm(kernel, operation, context);
    }

    /// Marks a kernel as having passed a trial capture of calls like this one; with `graph_strict_mode` only such calls are
    /// captured.
    pub fn mark_captured(&self, kernel: &str, operation: &'static OperationInfo, context: &Context) {
        let bucket = Bucket::of(operation, context);
        let change = |parts: SnapshotParts| {
            let mut warm = (*parts.warm).clone();
            let news = warm.add_captured(operation, kernel, bucket.words());
            Ok(news.then(|| SnapshotParts { warm: Arc::new(warm), ..parts }))
        };
        self.shared.change(change).ok();
    }

    /// The health of kernels, backends and devices.
    pub fn health(&self) -> Arc<Health> {
        Arc::clone(&self.shared.published.load().health)
    }

    /// Increases with every change that a decision can depend on.
    pub fn generation(&self) -> u64 {
        self.shared.published.number()
    }

    /// Number of decisions in the cache.
    pub fn cached_decisions(&self) -> usize {
        self.shared.published.load().decisions.len()
    }

    /// Runs a validated call: `run_one` is called with the selected kernel and, if that fails, with each fallback.
    #[inline]
    pub fn dispatch<F>(
        &self,
        operation: &'static OperationInfo,
        context: &Context,
        run_one: &mut F,
    ) -> Result<(), Error>
    where
        F: FnMut(&KernelEntry, &mut Run<'_>) -> Result<(), KernelError>,
    {
        self.shared.dispatch(operation, context, run_one)
    }

    /// The kernel that would be selected for a call, with its score and fallbacks.
    pub fn which(&self, operation: &'static OperationInfo, context: &Context) -> Result<Plan, Error> {
        let (snapshot, mode) = self.shared.thread_snapshot();
        let Some(table) = snapshot.table(operation) else {
            return Err(Error::NoKernel { operation: operation.name.to_string(), candidates: Vec::new() });
        };
        let call = Call::new(&snapshot, table, context, mode);
        let eligible = decide::eligible_or_last_resort(&call);
        let name = |position: u16| {
            let candidate = table.candidates.get(usize::from(position))?;
            snapshot.registry.compiled(candidate.kernel)
        };
        let last_resort = if eligible.is_empty() { split::plan(&call) } else { None };
        let best = eligible.first().or(last_resort.as_ref().map(|(_, best)| best));
        let best = best.and_then(|best| Some((best, name(best.position)?)));
        let Some((best, kernel)) = best else { return Err(decide::refusal(&call)) };
        let fallbacks = eligible.iter().skip(1).filter_map(|one| Some(name(one.position)?.spec().id.clone()));
        let allowed = snapshot.policy.fallback_enabled.value;
        Ok(Plan {
            kernel: kernel.spec().id.clone(),
            transforms: best.transforms,
            transform_cost: -best.score.transform,
            workspace_bytes: match &last_resort {
                Some((split, _)) => split::workspace(&call, kernel, split),
                None => crate::selection::filter::workspace(kernel, &call.values).unwrap_or(0),
            },
            score: best.score.total(),
            fallbacks: if allowed { fallbacks.collect() } else { Vec::new() },
            split: last_resort.as_ref().map(|(split, _)| split.clone()),
        })
    }

    /// The id of the kernel that a dispatch would use, cached or not. For tests and diagnostics.
    pub fn decide(&self, operation: &'static OperationInfo, context: &Context) -> Result<String, Error> {
        let (snapshot, mode) = self.shared.thread_snapshot();
        let Some(table) = snapshot.table(operation) else {
            return Err(Error::NoKernel { operation: operation.name.to_string(), candidates: Vec::new() });
        };
        let found = self.shared.find(&snapshot, table, context, mode)?;
        let kernel = snapshot.registry.compiled(found.choice().kernel);
        Ok(kernel.map(|kernel| kernel.spec().id.clone()).unwrap_or_default())
    }
}

impl Engine {
    /// A weak reference to this engine.
    pub(crate) fn downgrade(&self) -> WeakEngine {
        WeakEngine(Arc::downgrade(&self.shared))
    }

    /// The state that a client module stores with this engine; created on first use.
    pub(crate) fn extension<T: Default + Send + Sync + 'static>(&self) -> Arc<T> {
        self.shared.extensions.get()
    }

    /// Sets the recorder of new decisions.
    pub(crate) fn observe_decisions(&self, recorder: Option<Arc<dyn DecisionObserver>>) {
        self.shared.observer.set_recorder(recorder);
    }

    /// Sets the observer that is notified of new decisions while `perfdb.auto_tune` is on.
    pub(crate) fn set_background_tuner(&self, tuner: Arc<dyn DecisionObserver>) {
        self.shared.observer.set_tuner(tuner);
    }

    /// Whether this is the only reference to the engine.
    pub(crate) fn is_last_reference(&self) -> bool {
        Arc::strong_count(&self.shared) == 1
    }

    /// The current snapshot.
    pub(crate) fn snapshot(&self) -> Arc<Snapshot> {
        self.shared.published.load()
    }

    /// Publishes a new snapshot built from the parts of the current one.
    pub(crate) fn change(
        &self,
        change: impl FnOnce(SnapshotParts) -> Result<Option<SnapshotParts>, Error>,
    ) -> Result<(), Error> {
        self.shared.change(change)
    }
}

/// Permission to publish a snapshot.
struct Changing<'s> {
    _guard: Option<MutexGuard<'s, ()>>,
    /// Dropped behind the lock.
    _inside: Option<fork::Inside>,
}

impl JudgmentListener for Shared {
    /// Publishes a new snapshot, whose decisions are made with the new judgments. A decision that another thread is making under the
    /// old snapshot is cached there, and not used after the publication.
    fn judgments_changed(&self) {
        let judges = |registry: &Registry| registry.kernels().any(|entry| entry.judge.is_some());
        self.change(|parts| Ok(judges(&parts.registry).then_some(parts))).ok();
    }
}

impl Shared {
    /// Waits for changes by other threads; not for one that a thread of the parent was making when this process was forked.
    fn lock(&self) -> Changing<'_> {
        let inside = fork::ENGINE.enter();
        let guard = match (&inside, self.changing.try_lock()) {
            (_, Ok(guard)) => Some(guard),
            (_, Err(TryLockError::Poisoned(guard))) => Some(guard.into_inner()),
            (None, Err(TryLockError::WouldBlock)) => None,
            (Some(_), Err(TryLockError::WouldBlock)) => {
                Some(self.changing.lock().unwrap_or_else(PoisonError::into_inner))
            }
        };
        Changing { _guard: guard, _inside: inside }
    }

    /// The snapshot that this thread's calls are decided under, and their mode.
    fn thread_snapshot(&self) -> (Arc<Snapshot>, Mode) {
        let snapshot = self.published.load();
        let mode = thread_scope::of_thread().apply(snapshot.mode);
        (snapshot.in_scope(mode).unwrap_or(snapshot), mode)
    }

    /// Publishes a new snapshot built from the parts of the current one. `None` changes nothing.
    fn change(
        &self,
        change: impl FnOnce(SnapshotParts) -> Result<Option<SnapshotParts>, Error>,
    ) -> Result<(), Error> {
        let _alone = self.lock();
        let before = self.published.load();
        if let Some(parts) = change(before.parts())? {
            let max_entries = parts.policy.cache.value.max_entries;
            let capacity = before.decisions.capacity().max(INITIAL_CACHE_CAPACITY).min(max_entries);
            self.publish(parts, &before, capacity);
        }
        Ok(())
    }

    fn mark_warm(&self, kernel: &str, operation: &'static OperationInfo, context: &Context) {
        let bucket = Bucket::of(operation, context);
        let change = |parts: SnapshotParts| {
            let mut warm = (*parts.warm).clone();
            Ok(warm
                .add(operation, kernel, bucket.words())
                .then(|| SnapshotParts { warm: Arc::new(warm), ..parts }))
        };
        self.change(change).ok();
    }

    fn publish(&self, parts: SnapshotParts, before: &Snapshot, capacity: usize) {
        self.published.replace(Arc::new(Snapshot::new(parts, next_generation(), Some(before), capacity)));
    }

    fn change_registry(
        &self,
        change: impl FnOnce(&Registry) -> Result<Registry, Error>,
    ) -> Result<(), Error> {
        self.change(|parts| {
            let registry = Arc::new(change(&parts.registry)?);
            let solved = LoadedTables::with_registry(&parts.solved, &registry);
            Ok(Some(SnapshotParts { registry, solved, ..parts }))
        })
    }

    /// Health thresholds are shares of the population. Called without the lock, because health notifies the engine of changes.
    fn update_population(&self) {
        let snapshot = self.published.load();
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        snapshot.health.set_population(InstalledCounts {
            kernels: count(snapshot.registry.kernels().count()),
            backends: count(snapshot.registry.backends().count()),
            devices: 1,
        });
    }

    /// Replaces a snapshot whose decision cache is full: the capacity doubles up to `cache.max_entries`, then the cache is emptied.
    fn grow_cache(&self, full: u64) {
        let _alone = self.lock();
        let before = self.published.load();
        if before.generation != full {
            return;
        }
        let max_entries = before.policy.cache.value.max_entries;
        self.publish(before.parts(), &before, (before.decisions.capacity() * 2).min(max_entries));
    }

    /// Invalidates decisions that are older than `cache.time_to_live`.
    fn expire(&self) {
        let snapshot = self.published.load();
        if snapshot.created_at.elapsed() < snapshot.policy.cache.value.time_to_live {
            return;
        }
        let _alone = self.lock();
        let before = self.published.load();
        if before.created_at.elapsed() >= before.policy.cache.value.time_to_live {
            self.publish(before.parts(), &before, before.decisions.capacity());
        }
    }
}
