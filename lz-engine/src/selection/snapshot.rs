//! One state of everything that a decision depends on, and the decisions that were made in it.
//!
//! A world is never changed, only replaced: a decision lives and dies with the state that it was made under, so that no
//! decision can outlive a change of registry, policy, capabilities or health.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use super::devices::Devices;
use super::guard::Guard;
use super::operation_table::OperationTable;
use super::publish::Numbered;
use super::scoped_snapshots::ScopedWorlds;
use crate::evidence::{Evidence, KeptBlocks, MemoryProbe, StoredEvidence, system_memory};
use crate::health::{DegradationLevel, Health};
use crate::policy::Policy;
use crate::registry::Registry;
use crate::selection::cache::{DecisionTable, Entry};
use crate::selection::loaded_tables::LoadedTables;
use crate::selection::prepared_evidence::Prepared;
use crate::telemetry::{Watch, Watching};
use lz_core::context::Context;
use lz_core::device::DeviceSpec;
use lz_core::mode::Mode;
use lz_core::operation::OperationInfo;

/// Somebody who compiles in the background. Asked once a cell for a kernel that would have been better, had it been warm.
pub trait JitRequests: Send + Sync {
    /// A kernel is wanted for calls like this one. Must return at once and must not call the engine.
    fn want(&self, kernel: &str, operation: &'static OperationInfo, context: &Context);
}

/// Buckets by operation slot and kernel: one id may stand for a kernel of each of several operations.
type Known = HashMap<u32, HashMap<String, HashSet<Box<[u64]>>>>;

/// What is known of kernels because it was tried: which have been compiled, and for which buckets; which can be captured.
#[derive(Debug, Clone, Default)]
pub(crate) struct Warm {
    buckets: Known,
    /// What survived a trial capture.
    captured: Known,
}

impl Warm {
    pub fn contains(&self, operation: &OperationInfo, kernel: &str, bucket: &[u64]) -> bool {
        has(&self.buckets, operation, kernel, bucket)
    }

    pub fn add(&mut self, operation: &OperationInfo, kernel: &str, bucket: &[u64]) -> bool {
        put(&mut self.buckets, operation, kernel, bucket)
    }

    pub fn can_be_captured(&self, operation: &OperationInfo, kernel: &str, bucket: &[u64]) -> bool {
        has(&self.captured, operation, kernel, bucket)
    }

    pub fn add_captured(&mut self, operation: &OperationInfo, kernel: &str, bucket: &[u64]) -> bool {
        put(&mut self.captured, operation, kernel, bucket)
    }
}

fn has(known: &Known, operation: &OperationInfo, kernel: &str, bucket: &[u64]) -> bool {
    let kernels = known.get(&operation.slot());
    kernels.and_then(|kernels| kernels.get(kernel)).is_some_and(|buckets| buckets.contains(bucket))
}

fn put(known: &mut Known, operation: &OperationInfo, kernel: &str, bucket: &[u64]) -> bool {
    let kernels = known.entry(operation.slot()).or_default();
    kernels.entry(kernel.to_owned()).or_default().insert(bucket.into())
}

/// What a world is made of, without its decisions.
#[derive(Clone, Default)]
pub(crate) struct Parts {
    pub registry: Arc<Registry>,
    pub policy: Arc<Policy>,
    pub devices: Devices,
    pub evidence: Option<Arc<dyn Evidence>>,
    pub memory: Option<Arc<dyn MemoryProbe>>,
    /// What the above found out and need not find out again soon.
    pub blocks: Arc<KeptBlocks>,
    pub jit: Option<Arc<dyn JitRequests>>,
    pub warm: Arc<Warm>,
    pub health: Arc<Health>,
    /// Decisions that were made beforehand.
    pub solved: Arc<LoadedTables>,
    pub watching: Watching,
}

/// One state of everything.
pub(crate) struct World {
    pub generation: u64,
    pub registry: Arc<Registry>,
    pub policy: Arc<Policy>,
    pub devices: Devices,
    pub evidence: Option<Arc<dyn Evidence>>,
    pub memory: Option<Arc<dyn MemoryProbe>>,
    pub blocks: Arc<KeptBlocks>,
    pub jit: Option<Arc<dyn JitRequests>>,
    pub warm: Arc<Warm>,
    pub health: Arc<Health>,
    pub solved: Arc<LoadedTables>,
    pub watching: Watching,
    /// What is observed of each call.
    pub watch: Watch,
    /// This world under what threads lay over its policy.
    pub scoped: ScopedWorlds,
    /// How far the engine has stepped back.
    pub level: DegradationLevel,
    /// Which kernels have failed lately, or their backends, and which operations have such a kernel; nothing when nothing has.
    trouble: Option<Box<Troubles>>,
    /// Whether decisions are kept.
    pub keeps: bool,
    /// Whether they are, devices are real, and calls are not watched: the case of nearly all calls.
    pub is_plain: bool,
    /// The ground of the modes of calls.
    pub mode: Mode,
    /// When its decisions began to be made.
    pub born: Instant,
    tables: Arc<Tables>,
    /// What stored measurements mean for each operation, once a decision has needed it.
    prepared: Arc<[OnceLock<Prepared>]>,
    pub decisions: DecisionTable,
}

/// The tables of operations, made when first asked for. They depend on registry, policy and dispatch tables alone.
#[derive(Debug)]
struct Tables(Box<[OnceLock<Box<OperationTable>>]>);

impl World {
    /// A world of these parts. Tables are taken over from one before that had the same registry, policy and dispatch tables.
    pub fn new(parts: Parts, generation: u64, before: Option<&World>, room: usize) -> World {
        let same = before.filter(|before| {
            Arc::ptr_eq(&before.registry, &parts.registry)
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
        let Parts {
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
            watching,
        } = parts;
        let keeps = policy.cache.value.enabled && health.level().allows_cache();
        let trouble = Troubles::of(&registry, &health).map(Box::new);
        World {
            generation,
            mode: policy.mode(),
            watch: watching.watch(),
            scoped: ScopedWorlds::after(before, &policy),
            keeps,
            is_plain: keeps && devices.are_real() && watching.watch() == Watch::default(),
            level: health.level(),
            trouble,
            born: Instant::now(),
            decisions: DecisionTable::new(room),
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
            watching,
            tables,
            prepared,
        }
    }

    /// What its stored measurements mean for an operation.
    #[inline]
    pub fn prepared(&self, stored: &StoredEvidence, table: &OperationTable) -> Option<&Prepared> {
        let slot = self.prepared.get(table.info.slot() as usize)?;
        Some(slot.get_or_init(|| Prepared::new(stored, table, &self.registry)))
    }

    /// What it is made of.
    pub fn parts(&self) -> Parts {
        Parts {
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
            watching: self.watching.clone(),
        }
    }

    /// The table of an operation; `None` when it has no kernels.
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
        Some(slot.get_or_init(|| {
            Box::new(OperationTable::build(info, &self.registry, &self.policy, &self.solved))
        }))
    }

    /// Bytes that a kernel's scratch memory may take now.
    pub fn memory_limit(&self, device: Option<&DeviceSpec>) -> Option<u64> {
        let mut limits = [self.policy.memory_headroom.value, None, None];
        let probe = match &self.memory {
            Some(probe) => Some(probe.as_ref()),
            None => self.policy.probe_memory.value.then(system_memory),
        };
        if let (Some(probe), Some(device)) = (probe, device) {
            let believed = self.policy.probe_time_to_live.value;
            limits[1] = probe.free_bytes(device);
            limits[2] = self.blocks.largest(probe, device, believed);
        }
        limits.into_iter().flatten().min()
    }

    /// Whether the above may change from call to call.
    pub fn memory_changes(&self) -> bool {
        self.memory.is_some() || self.policy.probe_memory.value
    }

    /// Whether a decision stays right for a call until the world changes: what it hangs on is the call alone, and not memory
    /// that others take and give back.
    pub fn lasts(&self, entry: &Entry) -> bool {
        !(self.memory_changes() && entry.guards().any(|guard| matches!(guard, Guard::Memory { .. })))
    }

    /// Whether calls of an operation depend on nothing that may change: they need no leave, are not watched, and run on devices
    /// that are there.
    pub fn is_quick(&self, operation: &OperationInfo) -> bool {
        self.is_plain && !self.is_careful(operation.slot())
    }

    /// Whether anything has failed lately.
    #[inline]
    pub fn is_troubled(&self) -> bool {
        self.trouble.is_some()
    }

    /// Whether a kernel of an operation has failed lately, so that its calls depend on how time passes.
    #[inline]
    pub fn is_careful(&self, slot: u32) -> bool {
        self.trouble.as_ref().is_some_and(|trouble| is_so(&trouble.operations, slot))
    }

    /// Whether calls of a kernel must ask for leave and tell their outcome.
    #[inline]
    pub fn must_ask(&self, kernel: u32) -> bool {
        self.trouble.as_ref().is_some_and(|trouble| is_so(&trouble.kernels, kernel))
    }
}

/// What health remembers, by kernel and by operation.
struct Troubles {
    /// By their indices.
    kernels: Box<[bool]>,
    /// By their slots.
    operations: Box<[bool]>,
}

impl Troubles {
    fn of(registry: &Registry, health: &Health) -> Option<Troubles> {
        if health.is_spotless() {
            return None;
        }
        let kernels: Box<[bool]> =
            registry.kernels().map(|entry| health.concerns(&entry.spec.id, &entry.spec.backend)).collect();
        let mut operations: Box<[bool]> = vec![false; registry.slots()].into();
        for operation in registry.operations() {
            if let Some(place) = operations.get_mut(operation.slot() as usize) {
                *place = registry.compiled_of(operation).iter().any(|kernel| is_so(&kernels, *kernel));
            }
        }
        Some(Troubles { kernels, operations })
    }
}

/// What is not known is so.
fn is_so(flags: &[bool], number: u32) -> bool {
    flags.get(number as usize).copied().unwrap_or(true)
}

impl Numbered for World {
    #[inline]
    fn number(&self) -> u64 {
        self.generation
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").field("generation", &self.generation).finish_non_exhaustive()
    }
}
