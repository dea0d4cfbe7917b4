//! One call as filter and score see it: its values, device, active rules, lock and table hint.

use std::cell::OnceCell;

use super::operation_table::{Candidate, CompiledRule, OperationTable, RuleScore};
use super::prefilter::{BITSET_WIDTH, BitSet, iter_bits, single_bit};
use super::snapshot::Snapshot;
use crate::bucket::Bucket;
use crate::compiled::CompiledKernel;
use crate::health::Subject;
use crate::policy::{JitPolicy, Provenance};
use crate::selection::loaded_tables::Hint;
use lz_core::context::{Context, FRESH_ALIGNMENT};
use lz_core::device::DeviceSpec;
use lz_core::expression_names::Values;
use lz_core::mode::{Mode, ModeFlag};
use lz_core::spec::KernelSpec;

/// A locked kernel: its position, its id, and the source of the lock.
pub(crate) type ActiveLock<'a> = (Option<u16>, &'a str, &'a Provenance);

/// A call under one snapshot.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub snapshot: &'a Snapshot,
    pub table: &'a OperationTable,
    pub context: &'a Context,
    pub mode: Mode,
    pub device: Option<&'a DeviceSpec>,
    pub values: Values<'a>,
    pub bucket: Bucket,
    /// Active rules.
    rules: ActiveRules,
    /// Candidates that passed the prefilter.
    passed: BitSet,
    /// The locked kernel, if any.
    pub lock: Option<ActiveLock<'a>>,
    /// The answer of the dispatch tables.
    pub hint: Hint<'a>,
    /// The limit on workspace memory; computed on first use.
    memory: OnceCell<Option<u64>>,
    /// Properties that all tensors have in common.
    pub strides: Strides,
    /// Whether a kernel may compile inside the call; see [`Call::with_cold`].
    pub allow_cold: bool,
    /// Whether open circuits of kernels and backends are ignored; see [`Call::with_open`].
    pub allow_open_circuit: bool,
    /// Whether the decision waits for judgments of handles that are not final.
    pub settles_judgments: bool,
    /// The version that was drawn for this call.
    pub version: Option<u16>,
    /// Whether scores depend on more than kernels, policy and measurements: on requested invariance or on recent failures.
    pub is_special: bool,
}

/// Properties that all tensors of a call have in common.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Strides {
    /// Stride-class bits that all tensors have.
    pub common: u64,
    /// Stride-class bits that all tensors have that the engine does not copy.
    pub uncopied: u64,
    /// The smallest alignment, as a power of two.
    pub alignment: u64,
    /// Whether the caller passes `out`.
    pub has_out: bool,
}

impl Strides {
    fn of(table: &OperationTable, context: &Context) -> Strides {
        let mut all = Strides { common: u64::MAX, uncopied: u64::MAX, alignment: u64::MAX, has_out: false };
        for (position, (store, _)) in table.strides.iter().enumerate() {
            let class = context.raw(*store);
            if class & 1 != 0 {
                all.common &= class;
                all.alignment = all.alignment.min(class >> 3);
                all.has_out |= position >= table.strided_inputs && class >> 3 != FRESH_ALIGNMENT;
            }
        }
        for store in &table.uncopied {
            let class = context.raw(*store);
            if class & 1 != 0 {
                all.uncopied &= class;
            }
        }
        all
    }
}

impl<'a> Call<'a> {
    pub fn new(
        snapshot: &'a Snapshot,
        table: &'a OperationTable,
        context: &'a Context,
        mode: Mode,
    ) -> Call<'a> {
        let device = snapshot.devices.of_call(table.device_field, context);
        let values = Values::of_call(&table.info.fields, context, device, mode);
        let passing = table.prefilter.evaluate(&values);
        let rules = ActiveRules::of(table, passing.rules, &values);
        let lock = active_lock(table, &rules, context, &values);
        // A table decides for each size of a batch.
        let hint = if mode.has(ModeFlag::BatchInvariant) {
            Hint::None
        } else {
            hint(snapshot, table, context, device, lock.is_some(), &rules)
        };
        Call {
            snapshot,
            table,
            context,
            mode,
            device,
            values,
            bucket: table.bucket.of(context),
            rules,
            passed: passing.candidates,
            lock,
            hint,
            memory: OnceCell::new(),
            strides: Strides::of(table, context),
            allow_cold: false,
            allow_open_circuit: false,
            settles_judgments: snapshot.policy.verify_before_first_call.value,
            version: None,
            is_special: snapshot.takes_slow_path(table.info.slot())
                || mode.has(ModeFlag::TensorParallelInvariant),
        }
    }

    /// Whether a rule is active.
    #[inline]
    pub fn applies(&self, rule: u16) -> bool {
        self.rules.has(rule)
    }

    /// The active rules.
    pub fn active_rules(&self) -> impl Iterator<Item = &'a CompiledRule> {
        let all = self.table.rules.iter().zip(0u16..);
        all.filter(|(_, number)| self.applies(*number)).map(|(rule, _)| rule)
    }

    /// The score that active rules add to a candidate.
    #[inline]
    pub fn points(&self, candidate: &Candidate) -> f64 {
        self.rules.points(self.table, candidate)
    }

    /// The active rule that denies a candidate; the last one if there are several.
    pub fn denied_by(&self, position: u16) -> Option<&'a CompiledRule> {
        self.active_rules().filter(|rule| rule.denied.contains(&position)).last()
    }

    /// Whether a version that is not in use is requested for this call: drawn by its share, or named in a lock or a rule.
    pub fn requests_version(&self, position: u16, candidate: &Candidate) -> bool {
        candidate.is_requested
            || self.version == Some(position)
            || self.lock.is_some_and(|(locked, ..)| locked == Some(position))
            || self.active_rules().any(|rule| rule.versions.contains(&position))
    }

    /// Candidates that may be able to run the call; all others are excluded for its whole cell. JIT-compiled candidates stay if
    /// there is a background compiler, because better-ranked ones are submitted to it.
    #[inline]
    pub fn candidates(&self) -> impl Iterator<Item = u16> + use<> {
        let count = self.table.candidates.len();
        let mut passed = self.passed;
        match self.lock {
            Some((Some(position), ..)) => passed &= single_bit(usize::from(position)),
            Some((None, ..)) => passed = 0,
            None => {}
        }
        if self.snapshot.jit.is_some() {
            passed |= self.table.jit_candidates;
        }
        let there = if count < BITSET_WIDTH { (1 << count) - 1 } else { BitSet::MAX };
        iter_bits(passed & there).chain(BITSET_WIDTH as u16..count.max(BITSET_WIDTH) as u16)
    }

    /// The limit on a kernel's workspace in bytes.
    pub fn memory(&self) -> Option<u64> {
        *self.memory.get_or_init(|| self.snapshot.memory_limit(self.device))
    }

    /// The same call with compilation inside the call allowed, for calls without an eligible kernel. `None` if policy forbids
    /// it.
    pub fn with_cold(&self) -> Option<Call<'a>> {
        let policy = &self.snapshot.policy;
        let allowed = policy.jit.value == JitPolicy::WhenWarm && !policy.fail_on_no_fallback.value;
        allowed.then(|| Call {
            allow_cold: true,
            ..Call::new(self.snapshot, self.table, self.context, self.mode)
        })
    }

    /// The same call with open circuits ignored, for calls without an eligible kernel. `None` without recent failures.
    pub fn with_open(&self) -> Option<Call<'a>> {
        self.snapshot.takes_slow_path(self.table.info.slot()).then(|| Call {
            allow_open_circuit: true,
            ..Call::new(self.snapshot, self.table, self.context, self.mode)
        })
    }

    /// Whether a kernel has not been compiled for this call's bucket.
    pub fn is_cold(&self, spec: &KernelSpec) -> bool {
        !self.snapshot.warm.contains(self.table.info, &spec.id, self.bucket.words())
    }

    /// The circuit-breaker subject of a kernel on this call.
    pub fn subject(&self, kernel: &'a CompiledKernel) -> Subject<'_> {
        let spec = kernel.spec();
        Subject {
            kernel: &spec.id,
            kernel_version: &spec.version,
            bucket: self.bucket.words(),
            backend: &spec.backend,
            backend_version: &spec.version,
            device: self.device.map_or("", |device| &device.uuid),
        }
    }

    /// Whether a formula has the same value for the whole cell.
    pub fn is_cell_constant(&self, reads: lz_core::expression_names::FieldSet) -> bool {
        reads & self.table.varying == 0
    }
}

/// The answer of the dispatch tables after policy: a lock overrules it, and so does a preference for a kernel that it does not put first.
fn hint<'a>(
    snapshot: &'a Snapshot,
    table: &OperationTable,
    context: &Context,
    device: Option<&DeviceSpec>,
    locked: bool,
    rules: &ActiveRules,
) -> Hint<'a> {
    if !snapshot.level.allows_cache() {
        return Hint::None;
    }
    let mut hint = snapshot.solved.hint(table, &snapshot.registry, context, device);
    if locked && matches!(hint, Hint::Outside { .. }) {
        return Hint::None;
    }
    if let Hint::Decided { positions, overruled, .. } = &mut hint {
        let weight = |candidate: &Candidate| candidate.points + rules.points(table, candidate);
        let weights: Vec<f64> = table.candidates.iter().map(weight).collect();
        let first = positions.first().and_then(|first| weights.get(usize::from(*first)));
        if locked {
            *overruled = Some("a lock");
        } else if first.is_some_and(|first| weights.iter().any(|other| other > first)) {
            *overruled = Some("a preference");
        }
    }
    hint
}

/// The active lock. The last lock wins, and locks of rules win over others.
fn active_lock<'a>(
    table: &'a OperationTable,
    rules: &ActiveRules,
    context: &Context,
    values: &Values<'_>,
) -> Option<ActiveLock<'a>> {
    let rule = table.locking_rules.iter().rev().filter(|number| rules.has(**number)).find_map(|number| {
        let rule = table.rules.get(usize::from(*number))?;
        let (candidate, id) = rule.lock.as_ref()?;
        Some((*candidate, id.as_str(), &rule.source))
    });
    rule.or_else(|| {
        let lock = table.locks.iter().rev().find(|lock| lock.applies(context, values))?;
        Some((lock.candidate, lock.kernel.as_str(), &lock.source))
    })
}

/// The active rules of a call.
#[derive(Debug)]
struct ActiveRules {
    bits: BitSet,
    /// Rules beyond the width of the bitset.
    overflow: Vec<u16>,
}

impl ActiveRules {
    /// Takes the prefilter's result and evaluates the conditions that it cannot.
    #[inline]
    fn of(table: &OperationTable, passing: BitSet, values: &Values<'_>) -> ActiveRules {
        let mut active_rules = ActiveRules { bits: passing, overflow: Vec::new() };
        for number in &table.unindexed_rules {
            let bit = single_bit(usize::from(*number));
            if bit != 0 && passing & bit == 0 {
                continue;
            }
            let rule = table.rules.get(usize::from(*number));
            let acts = rule.is_some_and(|rule| rule.condition.holds(values));
            match bit {
                0 if acts => active_rules.overflow.push(*number),
                _ if !acts => active_rules.bits &= !bit,
                _ => {}
            }
        }
        active_rules
    }

    #[inline]
    fn has(&self, rule: u16) -> bool {
        match single_bit(usize::from(rule)) {
            0 => self.overflow.contains(&rule),
            bit => self.bits & bit != 0,
        }
    }

    #[inline]
    fn points(&self, table: &OperationTable, candidate: &Candidate) -> f64 {
        let (first, end) = candidate.rule_scores;
        let mine = table.rule_scores.get(first as usize..end as usize).unwrap_or_default();
        let acts = |score: &&RuleScore| {
            score.bit & self.bits != 0 || score.bit == 0 && self.overflow.contains(&score.rule)
        };
        mine.iter().filter(acts).fold(0.0, |sum, score| sum + score.points)
    }
}
