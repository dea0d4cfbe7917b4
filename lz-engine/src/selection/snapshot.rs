//! The snapshot: everything that a decision depends on, and the cache of decisions made under it.
//!
//! A snapshot is immutable. A change of registry, policy, capabilities or health publishes a new snapshot with an empty
//! decision cache, so no decision can become stale.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use super::devices::Devices;
use super::guard::Guard;
use super::operation_table::OperationTable;
use super::publish::Numbered;
use super::scoped_snapshots::ScopedSnapshots;
use super::thread_cache;
use crate::evidence::{Evidence, FreeBlockCache, MemoryProbe, StoredEvidence, system_memory};
use crate::health::{DegradationLevel, Health};
use crate::policy::Policy;
use crate::registry::Registry;
use crate::rollout::Rollouts;
use crate::selection::cache::{DecisionCache, Entry};
use crate::selection::loaded_tables::LoadedTables;
use crate::selection::prepared_evidence::Prepared;
use crate::telemetry::{Observation, ObserveOptions};
use lz_core::context::Context;
use lz_core::device::DeviceSpec;
use lz_core::fork;
use lz_core::kernel::KernelEntry;
use lz_core::mode::Mode;
use lz_core::operation::OperationInfo;

/// A background compiler. Called once per cell for a kernel that would have been selected had it been compiled.
pub trait JitRequests: Send + Sync {
    /// Requests compilation of a kernel for calls like this one. Must return at once and must not call the engine.
    fn request(&self, kernel: &str, operation: &'static OperationInfo, context: &Context);

    /// What it has done and what it has to do, for readiness checks.
    fn compilation_state(&self) -> JitState {
        JitState::default()
    }
}

/// The state of a background compiler.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JitState {
    /// Kernels that wait or are being compiled.
    pub waiting: usize,
    /// Kernels whose last compilation failed.
    pub failed: usize,
    /// Successful compilations.
    pub compiled: u64,
    /// Why the shape manifest is ignored.
    pub manifest_problem: Option<String>,
}

/// Buckets by operation slot and kernel id: the same id may be registered for several operations.
type BucketsByKernel = HashMap<u32, HashMap<String, HashSet<Box<[u64]>>>>;

/// Facts established at run time: which kernels are compiled, and which passed a trial capture, for which buckets.
#[derive(Debug, Clone, Default)]
pub(crate) struct WarmState {
    buckets: BucketsByKernel,
    /// Buckets that passed a trial capture.
    captured: BucketsByKernel,
}

impl WarmState {
    pub fn contains(&self, operation: &OperationInfo, kernel: &str, bucket: &[u64]) -> bool {
        contains_bucket(&self.buckets, operation, kernel, bucket)
    }

    pub fn add(&mut self, operation: &OperationInfo, kernel: &str, bucket: &[u64]) -> bool {
        insert_bucket(&mut self.buckets, operation, kernel, bucket)
    }

    pub fn can_be_captured(&self, operation: &OperationInfo, kernel: &str, bucket: &[u64]) -> bool {
        contains_bucket(&self.captured, operation, kernel, bucket)
    }

    /// Forgets what was established about kernels that are replaced.
    pub fn forget(&mut self, is_replaced: impl Fn(&str) -> bool) {
        for kernels in self.buckets.values_mut().chain(self.captured.values_mut()) {
            kernels.retain(|kernel, _| !is_replaced(kernel));
        }
    }

    /// Whether any kernel passed a trial capture.
    pub fn has_captures(&self) -> bool {
        self.captured.values().any(|kernels| !kernels.is_empty())
    }

    pub fn add_captured(&mut self, operation: &OperationInfo, kernel: &str, bucket: &[u64]) -> bool {
        insert_bucket(&mut self.captured, operation, kernel, bucket)
    }
}

fn contains_bucket(
    buckets: &BucketsByKernel,
    operation: &OperationInfo,
    kernel: &str,
    bucket: &[u64],
) -> bool {
    let kernels = buckets.get(&operation.slot());
    kernels.and_then(|kernels| kernels.get(kernel)).is_some_and(|buckets| buckets.contains(bucket))
}

fn insert_bucket(
    buckets: &mut BucketsByKernel,
    operation: &OperationInfo,
    kernel: &str,
    bucket: &[u64],
) -> bool {
    let kernels = buckets.entry(operation.slot()).or_default();
    kernels.entry(kernel.to_owned()).or_default().insert(bucket.into())
}

/// The inputs of a snapshot, without its decision cache.
#[derive(Clone, Default)]
pub(crate) struct SnapshotParts {
    pub registry: Arc<Registry>,
    pub policy: Arc<Policy>,
    pub devices: Devices,
    pub evidence: Option<Arc<dyn Evidence>>,
    pub memory: Option<Arc<dyn MemoryProbe>>,
    /// Cached results of `memory`.
    pub blocks: Arc<FreeBlockCache>,
    pub jit: Option<Arc<dyn JitRequests>>,
    pub warm: Arc<WarmState>,
    pub health: Arc<Health>,
    /// Precomputed dispatch tables.
    pub solved: Arc<LoadedTables>,
    /// What is known about kernel versions at run time.
    pub rollouts: Arc<Rollouts>,
    pub observation: Observation,
}

/// The immutable state that decisions are made under, and their cache.
pub(crate) struct Snapshot {
    pub generation: u64,
    pub registry: Arc<Registry>,
    pub policy: Arc<Policy>,
    pub devices: Devices,
    pub evidence: Option<Arc<dyn Evidence>>,
    pub memory: Option<Arc<dyn MemoryProbe>>,
    pub blocks: Arc<FreeBlockCache>,
    pub jit: Option<Arc<dyn JitRequests>>,
    pub warm: Arc<WarmState>,
    pub health: Arc<Health>,
    pub solved: Arc<LoadedTables>,
    pub rollouts: Arc<Rollouts>,
    pub observation: Observation,
    /// What is observed of each call.
    pub observe: ObserveOptions,
    /// Snapshots of this one under thread-local policy overlays.
    pub scoped: ScopedSnapshots,
    /// The degradation level of the engine.
    pub level: DegradationLevel,
    /// Kernels and operations whose calls take the slow path; `None` without any.
    slow_path: Option<Box<SlowPathFlags>>,
    /// Whether decisions are cached.
    pub caching_enabled: bool,
    /// Whether the cache is enabled, devices are real and not every call is observed. True for nearly all calls.
    pub fast_path_enabled: bool,
    /// The base mode of calls, before the thread's mode override.
    pub mode: Mode,
    /// The number of releases of kernels before it, see [`thread_cache::releases`].
    pub releases: u64,
    /// When it was published; see `cache.time_to_live`.
    pub created_at: Instant,
    tables: Arc<Tables>,
    /// Stored measurements prepared per operation, on first use.
    prepared: Arc<[OnceLock<Prepared>]>,
    pub decisions: DecisionCache,
}

/// Operation tables, built on first use. They depend only on registry, policy and dispatch tables.
#[derive(Debug)]
struct Tables(Box<[OnceLock<Box<OperationTable>>]>);

impl Snapshot {
    /// Builds a snapshot. Operation tables are shared with the previous one if registry, policy, dispatch tables and rollouts are
    /// the same.
    pub fn new(
        mut parts: SnapshotParts,
        generation: u64,
        before: Option<&Snapshot>,
        capacity: usize,
    ) -> Snapshot {
        if let Some(rollouts) = parts.rollouts.with_canaries(&parts.policy) {
            parts.rollouts = Arc::new(rollouts);
        }
        let same = before.filter(|before| {
            Arc::ptr_eq(&before.registry, &parts.registry)
                && Arc::ptr_eq(&before.rollouts, &parts.rollouts)
                && Arc::ptr_eq(&before.policy, &parts.policy)
                && Arc::ptr_eq(&before.solved, &parts.solved)
        });
        let tables = same.map_or_else(
            || {
                let slots = parts.registry.slots();
                Arc::new(Tables((0..slots).map(|_| OnceLock::new()).collect()))
            },
            |before| Arc::clone(&before.tables),
        );
        let prepared = before.filter(|before| {
            let same = |(a, b): (&Arc<dyn Evidence>, &Arc<dyn Evidence>)| Arc::ptr_eq(a, b);
            Arc::ptr_eq(&before.registry, &parts.registry)
                && before.evidence.as_ref().zip(parts.evidence.as_ref()).is_some_and(same)
        });
        let prepared = prepared.map_or_else(
            || (0..parts.registry.slots()).map(|_| OnceLock::new()).collect(),
            |before| Arc::clone(&before.prepared),
        );
        let SnapshotParts {
            registry,
            policy,
            devices,
            evidence,
            memory,
            blocks,
            jit,
            warm,
            health,
            solved,
            rollouts,
            observation,
        } = parts;
        let caching_enabled = policy.cache.value.enabled && health.level().allows_cache();
        let slow_path = SlowPathFlags::of(&registry, &health, &policy, &rollouts).map(Box::new);
        Snapshot {
            generation,
            mode: policy.mode(),
            observe: observation.options(),
            scoped: ScopedSnapshots::after(before, &policy, &registry),
            caching_enabled,
            fast_path_enabled: caching_enabled && devices.are_real() && !observation.options().every_call(),
            level: health.level(),
            slow_path,
            releases: thread_cache::releases(),
            created_at: Instant::now(),
            decisions: DecisionCache::new(capacity),
            registry,
            policy,
            devices,
            evidence,
            memory,
            blocks,
            jit,
            warm,
            health,
            solved,
            rollouts,
            observation,
            tables,
            prepared,
        }
    }

    /// The stored measurements of an operation, prepared for scoring.
    #[inline]
    pub fn prepared(&self, stored: &StoredEvidence, table: &OperationTable) -> Option<&Prepared> {
        let slot = self.prepared.get(table.info.slot() as usize)?;
        slot.get().or_else(|| {
            let _inside = fork::hold();
            Some(slot.get_or_init(|| Prepared::new(stored, table, &self.registry)))
        })
    }

    /// The inputs that it was built from.
    pub fn parts(&self) -> SnapshotParts {
        SnapshotParts {
            registry: Arc::clone(&self.registry),
            policy: Arc::clone(&self.policy),
            devices: self.devices.clone(),
            evidence: self.evidence.clone(),
            memory: self.memory.clone(),
            blocks: Arc::clone(&self.blocks),
            jit: self.jit.clone(),
            warm: Arc::clone(&self.warm),
            health: Arc::clone(&self.health),
            solved: Arc::clone(&self.solved),
            rollouts: Arc::clone(&self.rollouts),
            observation: self.observation.clone(),
        }
    }

    /// The table of an operation; `None` if it has no kernels.
    #[inline]
    pub fn table(&self, info: &'static OperationInfo) -> Option<&OperationTable> {
        let slot = self.tables.0.get(info.slot() as usize)?;
        match slot.get() {
            Some(table) => Some(table),
            None => self.make_table(info, slot),
        }
    }

    #[cold]
    fn make_table<'a>(
        &'a self,
        info: &'static OperationInfo,
        slot: &'a OnceLock<Box<OperationTable>>,
    ) -> Option<&'a OperationTable> {
        if self.registry.compiled_of(info).is_empty() {
            return None;
        }
        let _inside = fork::hold();
        Some(slot.get_or_init(|| {
            Box::new(OperationTable::build(info, &self.registry, &self.policy, &self.solved, &self.rollouts))
        }))
    }

    /// The limit on a kernel's workspace in bytes, from policy and free memory.
    pub fn memory_limit(&self, device: Option<&DeviceSpec>) -> Option<u64> {
        let mut limits = [self.policy.memory_headroom.value, None, None];
        let probe = match &self.memory {
            Some(probe) => Some(probe.as_ref()),
            None => self.policy.probe_memory.value.then(system_memory),
        };
        if let (Some(probe), Some(device)) = (probe, device) {
            let max_age = self.policy.probe_time_to_live.value;
            limits[1] = probe.free_bytes(device);
            limits[2] = self.blocks.largest(probe, device, max_age);
        }
        limits.into_iter().flatten().min()
    }

    /// Whether [`Snapshot::memory_limit`] can change from call to call.
    pub fn memory_changes(&self) -> bool {
        self.memory.is_some() || self.policy.probe_memory.value
    }

    /// Whether a decision stays valid for a call as long as this snapshot is current. False if it depends on free memory,
    /// which other allocations change.
    pub fn depends_only_on_call(&self, entry: &Entry) -> bool {
        !(self.memory_changes() && entry.guards().any(|guard| matches!(guard, Guard::Memory { .. })))
    }

    /// Whether calls of an operation need no circuit-breaker permit, are not observed and run on real devices.
    pub fn has_fast_path(&self, operation: &OperationInfo) -> bool {
        self.fast_path_enabled
            && self.observe == ObserveOptions::default()
            && !self.takes_slow_path(operation.slot())
    }

    /// Whether any kernel takes the slow path.
    #[inline]
    pub fn any_slow_path(&self) -> bool {
        self.slow_path.is_some()
    }

    /// Whether a kernel of an operation has failed recently, so that its calls depend on circuit-breaker timers, or shares its
    /// calls with other versions.
    #[inline]
    pub fn takes_slow_path(&self, slot: u32) -> bool {
        self.slow_path.as_ref().is_some_and(|flags| is_set(&flags.operations, slot))
    }

    /// Whether calls of a kernel need a circuit-breaker permit and must record their outcome, or may go to another version.
    #[inline]
    pub fn needs_permit(&self, kernel: u32) -> bool {
        self.slow_path.as_ref().is_some_and(|flags| is_set(&flags.kernels, kernel))
    }
}

/// Kernels with recent failures according to health, and kernels that share their calls with other versions.
struct SlowPathFlags {
    /// Indexed by kernel.
    kernels: Box<[bool]>,
    /// Indexed by operation slot.
    operations: Box<[bool]>,
}

impl SlowPathFlags {
    fn of(
        registry: &Registry,
        health: &Health,
        policy: &Policy,
        rollouts: &Rollouts,
    ) -> Option<SlowPathFlags> {
        let is_divided = |entry: &KernelEntry| rollouts.divides(policy, registry, &entry.spec.id);
        if health.has_no_records() && !registry.kernels().any(is_divided) {
            return None;
        }
        let is_slow = |entry: &KernelEntry| {
            health.has_failure_record(&entry.spec.id, &entry.spec.backend) || is_divided(entry)
        };
        let kernels: Box<[bool]> = registry.kernels().map(is_slow).collect();
        let mut operations: Box<[bool]> = vec![false; registry.slots()].into();
        for operation in registry.operations() {
            if let Some(slot) = operations.get_mut(operation.slot() as usize) {
                *slot = registry.compiled_of(operation).iter().any(|kernel| is_set(&kernels, *kernel));
            }
        }
        Some(SlowPathFlags { kernels, operations })
    }
}

/// Out-of-range indices count as set.
fn is_set(flags: &[bool], number: u32) -> bool {
    flags.get(number as usize).copied().unwrap_or(true)
}

impl Numbered for Snapshot {
    #[inline]
    fn number(&self) -> u64 {
        self.generation
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot").field("generation", &self.generation).finish_non_exhaustive()
    }
}
