//! The engine: decides which kernel runs a call, runs it, and falls back when it fails.
//!
//! Follow a call: `dispatch` looks into what its thread remembers (`inline`), then into the decisions of the current
//! `world` (`cache`), and only then decides afresh (`decide`: `score`, `filter`). Everything that a decision depends on is in
//! one immutable world; a change makes a new one (`publish`).

pub(crate) mod call;
mod control;
pub(crate) mod decide;
mod devices;
mod dispatch;
mod functions;
pub(crate) mod guard;
mod inline;
mod keep;
pub(crate) mod measure;
mod moment;
mod observe;
mod open;
mod pinned;
mod planned;
mod publish;
mod scoped;
pub(crate) mod sieve;
mod sync;
pub(crate) mod table;
pub(crate) mod world;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use crate::bucket::Bucket;
use crate::context::Context;
use crate::device::DeviceSpec;
use crate::error::Error;
use crate::evidence::{Evidence, MemoryProbe};
use crate::explain::{self, Explanation, ReasonLine};
use crate::freeze::Journal;
use crate::health::{Health, Population};
use crate::kernel::{KernelEntry, KernelError};
use crate::mode::{self, Mode};
use crate::operation::OperationInfo;
use crate::perfdb;
use crate::plan::Plan;
use crate::planner::KeptPlans;
use crate::policy::Policy;
use crate::policy::stack::PolicyStack;
use crate::reason::Reason;
use crate::registry::{BackendState, Registry};
use crate::run::Run;
use crate::split::{self, Splits};
use crate::table::LoadedTables;
use crate::telemetry::Watching;
use call::Call;
use devices::Devices;
pub(crate) use devices::place_of;
pub(crate) use inline::Local;
pub use moment::Moment;
pub use open::EngineBuilder;
pub use pinned::Pinned;
use publish::{Numbered, Published};
pub use world::JitRequests;
use world::{Parts, World};

/// Decides and dispatches. A clone is the same engine.
#[derive(Debug, Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

/// An engine that is not kept alive.
#[derive(Debug, Clone)]
pub(crate) struct WeakEngine(Weak<Shared>);

impl WeakEngine {
    pub fn upgrade(&self) -> Option<Engine> {
        self.0.upgrade().map(|shared| Engine { shared })
    }
}

#[derive(Debug)]
pub(crate) struct Shared {
    published: Published<World>,
    /// Held by whoever makes a new world.
    changing: Mutex<()>,
    /// What the operator has set, once anybody asks for it.
    operator: OnceLock<PolicyStack>,
    /// Who keeps things on disk.
    keeper: OnceLock<Arc<keep::Keeper>>,
    splits: Splits,
    plans: KeptPlans,
    journal: Journal,
}

impl Numbered for World {
    #[inline]
    fn number(&self) -> u64 {
        self.generation
    }
}

/// Generations are never used twice in a process, so that a thread may serve several engines.
static NEXT_GENERATION: AtomicU64 = AtomicU64::new(1);

fn next_generation() -> u64 {
    NEXT_GENERATION.fetch_add(1, Ordering::Relaxed)
}

/// Decisions that there is room for at first; a world that fills up is followed by a roomier one.
const FIRST_ROOM: usize = 192;

impl Default for Engine {
    fn default() -> Engine {
        Engine::new()
    }
}

impl Engine {
    /// An engine without kernels, on this machine's devices.
    pub fn new() -> Engine {
        Engine::with_health(Arc::new(Health::default()))
    }

    /// An engine that keeps its health there. A health serves one engine.
    pub fn with_health(health: Arc<Health>) -> Engine {
        Engine::of_parts(Parts { health, ..Parts::default() })
    }

    fn of_parts(parts: Parts) -> Engine {
        let health = Arc::clone(&parts.health);
        let room = parts.policy.cache.value.max_entries.min(FIRST_ROOM);
        let world = Arc::new(World::new(parts, next_generation(), None, room));
        let shared = Arc::new(Shared {
            published: Published::new(world),
            changing: Mutex::new(()),
            operator: OnceLock::new(),
            keeper: OnceLock::new(),
            splits: Splits::default(),
            plans: KeptPlans::default(),
            journal: Journal::default(),
        });
        let weak: Weak<Shared> = Arc::downgrade(&shared);
        health.on_change(move |_, _| {
            if let Some(shared) = weak.upgrade() {
                shared.change(|parts| Ok(Some(parts))).ok();
                shared.keep_health();
            }
        });
        Engine { shared }
    }

    /// The same kernels and policy on a device that need not be there: it can say what would be chosen, not run it.
    #[must_use]
    pub fn with_device(&self, device: DeviceSpec) -> Engine {
        let parts = self.shared.published.load().parts();
        let health = Arc::new(Health::default());
        // Scopes act on it as on this one, but what it would do is not counted with what was done.
        let watching = Watching { telemetry: Arc::default(), ..parts.watching };
        Engine::of_parts(Parts { devices: Devices::Imagined(Arc::new(device)), health, watching, ..parts })
    }

    /// Adds operations, so that kernels can be registered by their names.
    pub fn register_operations(
        &self,
        operations: impl IntoIterator<Item = &'static OperationInfo>,
    ) -> Result<(), Error> {
        self.shared.change_registry(|registry| registry.with_operations(operations))
    }

    /// Adds kernels: all of them or, when anything is wrong with any spec, none.
    pub fn register(&self, entries: impl IntoIterator<Item = KernelEntry>) -> Result<(), Error> {
        self.shared.change_registry(|registry| registry.with_kernels(entries))?;
        self.shared.tell_population();
        self.shared.read_kept();
        Ok(())
    }

    /// Takes a backend and its kernels away.
    pub fn unregister_backend(&self, backend: &str) {
        // Taking away cannot fail.
        self.shared.change_registry(|registry| Ok(registry.without_backend(backend))).ok();
        self.shared.tell_population();
    }

    /// Says why a backend cannot be used; its kernels stay visible with that reason.
    pub fn disable_backend(&self, backend: &str, reason: Reason) {
        let state = BackendState::Disabled(reason);
        self.shared.change_registry(|registry| Ok(registry.with_backend_state(backend, state))).ok();
    }

    /// Takes the above back.
    pub fn enable_backend(&self, backend: &str) {
        let state = BackendState::Available;
        self.shared.change_registry(|registry| Ok(registry.with_backend_state(backend, state))).ok();
    }

    /// What there is to choose from.
    pub fn registry(&self) -> Arc<Registry> {
        Arc::clone(&self.shared.published.load().registry)
    }

    /// What the operator wants.
    pub fn policy(&self) -> Arc<Policy> {
        Arc::clone(&self.shared.published.load().policy)
    }

    /// Replaces the policy. One that says the same changes nothing.
    pub fn set_policy(&self, policy: Policy) {
        let change =
            |parts: Parts| Ok((*parts.policy != policy).then(|| Parts { policy: Arc::new(policy), ..parts }));
        self.shared.change(change).ok();
    }

    /// Sets who knows measurements. Set it again when there is more to know, so that decisions are made anew.
    pub fn set_evidence(&self, evidence: Option<Arc<dyn Evidence>>) {
        self.shared.change(|parts| Ok(Some(Parts { evidence, ..parts }))).ok();
    }

    /// Sets who knows how much memory is free.
    pub fn set_memory_probe(&self, memory: Option<Arc<dyn MemoryProbe>>) {
        self.shared.change(|parts| Ok(Some(Parts { memory, blocks: Arc::default(), ..parts }))).ok();
    }

    /// Sets who compiles in the background.
    pub fn set_jit(&self, jit: Option<Arc<dyn JitRequests>>) {
        self.shared.change(|parts| Ok(Some(Parts { jit, ..parts }))).ok();
    }

    /// Says that a kernel has been compiled for calls like this one.
    pub fn mark_warm(&self, kernel: &str, operation: &'static OperationInfo, context: &Context) {
        self.shared.mark_warm(kernel, operation, context);
    }

    /// Says that a kernel survived a trial capture of calls like this one; with `graph_strict_mode` only such calls of it are
    /// captured.
    pub fn mark_captured(&self, kernel: &str, operation: &'static OperationInfo, context: &Context) {
        let bucket = Bucket::of(operation, context);
        let change = |parts: Parts| {
            let mut warm = (*parts.warm).clone();
            let news = warm.add_captured(operation, kernel, bucket.words());
            Ok(news.then(|| Parts { warm: Arc::new(warm), ..parts }))
        };
        self.shared.change(change).ok();
    }

    /// The health of kernels, backends and devices.
    pub fn health(&self) -> Arc<Health> {
        Arc::clone(&self.shared.published.load().health)
    }

    /// Moves with every change that a decision can depend on.
    pub fn generation(&self) -> u64 {
        self.shared.published.number()
    }

    /// How often a call was too large for every kernel and ran in parts.
    pub fn split_calls(&self) -> u64 {
        self.shared.splits.count()
    }

    /// How many decisions are kept now.
    pub fn cached_decisions(&self) -> usize {
        self.shared.published.load().decisions.len()
    }

    /// Runs a validated call: `run_one` is called with the chosen kernel, and again with the next one if it fails.
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

    /// What would be run for a call.
    pub fn which(&self, operation: &'static OperationInfo, context: &Context) -> Result<Plan, Error> {
        let (world, mode) = self.shared.world_of_thread();
        let Some(table) = world.table(operation) else {
            return Err(Error::NoKernel { operation: operation.name.to_string(), candidates: Vec::new() });
        };
        let call = Call::new(&world, table, context, mode);
        let possible = decide::possible_or_resort(&call);
        let name = |position: u16| {
            let candidate = table.candidates.get(usize::from(position))?;
            world.registry.compiled(candidate.kernel)
        };
        let resort = if possible.is_empty() { split::plan(&call) } else { None };
        let best = possible.first().or(resort.as_ref().map(|(_, best)| best));
        let best = best.and_then(|best| Some((best, name(best.position)?)));
        let Some((best, kernel)) = best else { return Err(decide::refusal(&call)) };
        let fallbacks = possible.iter().skip(1).filter_map(|one| Some(name(one.position)?.spec().id.clone()));
        let allowed = world.policy.fallback_enabled.value;
        Ok(Plan {
            kernel: kernel.spec().id.clone(),
            transforms: best.transforms,
            transform_cost: -best.score.transform,
            workspace_bytes: match &resort {
                Some((split, _)) => split::workspace(&call, kernel, split),
                None => crate::filter::workspace(kernel, &call.values).unwrap_or(0),
            },
            score: best.score.total(),
            fallbacks: if allowed { fallbacks.collect() } else { Vec::new() },
            split: resort.as_ref().map(|(split, _)| split.clone()),
        })
    }

    /// Why that would be run: every candidate, every reason, every addend.
    pub fn explain(&self, operation: &'static OperationInfo, context: &Context) -> Explanation {
        let (world, mode) = self.shared.world_of_thread();
        let mut explanation = explain::explain(&world, operation, context, mode);
        explanation.perfdb = self.perfdb().and_then(|db| match db.status().mode {
            perfdb::Mode::Closed(why) => Some(ReasonLine::from(&Reason::from(&why))),
            perfdb::Mode::Writable | perfdb::Mode::ReadOnly => None,
        });
        explanation
    }

    /// The decision that a dispatch would use, cached or not: the kernel's id. For tests and diagnostics.
    pub fn decide(&self, operation: &'static OperationInfo, context: &Context) -> Result<String, Error> {
        let (world, mode) = self.shared.world_of_thread();
        let Some(table) = world.table(operation) else {
            return Err(Error::NoKernel { operation: operation.name.to_string(), candidates: Vec::new() });
        };
        let found = self.shared.find(&world, table, context, mode)?;
        let kernel = world.registry.compiled(found.choice().kernel);
        Ok(kernel.map(|kernel| kernel.spec().id.clone()).unwrap_or_default())
    }
}

impl Engine {
    /// The engine, not kept alive.
    pub(crate) fn downgrade(&self) -> WeakEngine {
        WeakEngine(Arc::downgrade(&self.shared))
    }

    /// Where decisions are noted while the engine records.
    pub(crate) fn journal(&self) -> &Journal {
        &self.shared.journal
    }

    /// Where splits are counted.
    pub(crate) fn splits(&self) -> &Splits {
        &self.shared.splits
    }

    /// The current state of everything.
    pub(crate) fn world(&self) -> Arc<World> {
        self.shared.published.load()
    }

    /// Makes a new state out of the parts of the current one.
    pub(crate) fn change(
        &self,
        change: impl FnOnce(Parts) -> Result<Option<Parts>, Error>,
    ) -> Result<(), Error> {
        self.shared.change(change)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The world in which this thread's calls are decided now, and their mode.
    fn world_of_thread(&self) -> (Arc<World>, Mode) {
        let world = self.published.load();
        let mode = mode::of_thread().apply(world.mode);
        (world.in_scope(mode).unwrap_or(world), mode)
    }

    /// Makes a new world out of the parts of the current one. `None` changes nothing.
    fn change(&self, change: impl FnOnce(Parts) -> Result<Option<Parts>, Error>) -> Result<(), Error> {
        let _alone = self.lock();
        let before = self.published.load();
        if let Some(parts) = change(before.parts())? {
            let most = parts.policy.cache.value.max_entries;
            let room = before.decisions.room().max(FIRST_ROOM).min(most);
            self.publish(parts, &before, room);
        }
        Ok(())
    }

    fn mark_warm(&self, kernel: &str, operation: &'static OperationInfo, context: &Context) {
        let bucket = Bucket::of(operation, context);
        let change = |parts: Parts| {
            let mut warm = (*parts.warm).clone();
            Ok(warm.add(operation, kernel, bucket.words()).then(|| Parts { warm: Arc::new(warm), ..parts }))
        };
        self.change(change).ok();
    }

    fn publish(&self, parts: Parts, before: &World, room: usize) {
        self.published.replace(Arc::new(World::new(parts, next_generation(), Some(before), room)));
    }

    fn change_registry(
        &self,
        change: impl FnOnce(&Registry) -> Result<Registry, Error>,
    ) -> Result<(), Error> {
        self.change(|parts| {
            let registry = Arc::new(change(&parts.registry)?);
            let solved = LoadedTables::beside(&parts.solved, &registry);
            Ok(Some(Parts { registry, solved, ..parts }))
        })
    }

    /// Health counts in shares of what there is. Told outside of the lock, because health tells us of changes in turn.
    fn tell_population(&self) {
        let world = self.published.load();
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        world.health.set_population(Population {
            kernels: count(world.registry.kernels().count()),
            backends: count(world.registry.backends().count()),
            devices: 1,
        });
    }

    /// Follows a full world by one with more room, or with an empty table when there is no more to be had.
    fn make_room(&self, full: u64) {
        let _alone = self.lock();
        let before = self.published.load();
        if before.generation != full {
            return;
        }
        let most = before.policy.cache.value.max_entries;
        self.publish(before.parts(), &before, (before.decisions.room() * 2).min(most));
    }

    /// Throws decisions away that are too old.
    fn expire(&self) {
        let world = self.published.load();
        if world.born.elapsed() < world.policy.cache.value.time_to_live {
            return;
        }
        let _alone = self.lock();
        let before = self.published.load();
        if before.born.elapsed() >= before.policy.cache.value.time_to_live {
            self.publish(before.parts(), &before, before.decisions.room());
        }
    }
}
