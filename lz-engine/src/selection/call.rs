//! One call as filter and score see it: its context read once, its device found, the rules that act on it known.

use std::cell::OnceCell;

use super::operation_table::{Candidate, CompiledRule, Gift, OperationTable};
use super::prefilter::{MEMBERS, Set, members, only};
use super::snapshot::World;
use crate::bucket::Bucket;
use crate::compiled::CompiledKernel;
use crate::health::Subject;
use crate::policy::{JitPolicy, Provenance};
use crate::selection::loaded_tables::Hint;
use lz_core::context::{Context, FRESH_ALIGNMENT};
use lz_core::device::DeviceSpec;
use lz_core::expression_names::Values;
use lz_core::mode::{Ask, Mode};
use lz_core::spec::KernelSpec;

/// A locked kernel: its candidate, its id, and who says so.
pub(crate) type ActingLock<'a> = (Option<u16>, &'a str, &'a Provenance);

/// A call under one state of the world.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub world: &'a World,
    pub table: &'a OperationTable,
    pub context: &'a Context,
    pub mode: Mode,
    pub device: Option<&'a DeviceSpec>,
    pub values: Values<'a>,
    pub bucket: Bucket,
    /// Rules that act.
    rules: Acting,
    /// Candidates that the sieve let pass.
    passed: Set,
    /// The locked kernel, if any.
    pub lock: Option<ActingLock<'a>>,
    /// What dispatch tables say.
    pub hint: Hint<'a>,
    /// Bytes that a kernel's scratch memory may take now, once somebody has asked.
    memory: OnceCell<Option<u64>>,
    /// What is true of the strides and addresses of all tensors together.
    pub strides: Strides,
    /// Whether a kernel may compile inside the call; see [`Call::with_cold`].
    pub takes_cold: bool,
    /// Whether open circuits of kernels and backends are ignored; see [`Call::with_open`].
    pub takes_open: bool,
    /// Whether scores hang on more than kernels, policy and measurements: on promises that are asked for, or on failures.
    pub is_special: bool,
}

/// What is true of all tensors of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Strides {
    /// Bits of stride classes that all have.
    pub common: u64,
    /// The least alignment, as a power of two.
    pub alignment: u64,
    /// Whether the caller gives a place for an output.
    pub given_output: bool,
}

impl Strides {
    fn of(table: &OperationTable, context: &Context) -> Strides {
        let mut all = Strides { common: u64::MAX, alignment: u64::MAX, given_output: false };
        for (position, (store, _)) in table.strides.iter().enumerate() {
            let class = context.raw(*store);
            if class & 1 != 0 {
                all.common &= class;
                all.alignment = all.alignment.min(class >> 3);
                all.given_output |= position >= table.strided_inputs && class >> 3 != FRESH_ALIGNMENT;
            }
        }
        all
    }
}

impl<'a> Call<'a> {
    pub fn new(world: &'a World, table: &'a OperationTable, context: &'a Context, mode: Mode) -> Call<'a> {
        let device = world.devices.of_call(table.place, context);
        let values = Values::of_call(&table.info.fields, context, device, mode);
        let standing = table.sieve.sift(&values);
        let rules = Acting::of(table, standing.rules, &values);
        let lock = acting_lock(table, &rules, context, &values);
        let hint = hint(world, table, context, device, lock.is_some(), &rules);
        Call {
            world,
            table,
            context,
            mode,
            device,
            values,
            bucket: table.bucket.of(context),
            rules,
            passed: standing.candidates,
            lock,
            hint,
            memory: OnceCell::new(),
            strides: Strides::of(table, context),
            takes_cold: false,
            takes_open: false,
            is_special: world.is_careful(table.info.slot()) || mode.has(Ask::TensorParallelInvariant),
        }
    }

    /// Whether a rule acts.
    #[inline]
    pub fn acts(&self, rule: u16) -> bool {
        self.rules.has(rule)
    }

    /// Rules that act.
    pub fn acting(&self) -> impl Iterator<Item = &'a CompiledRule> {
        let all = self.table.rules.iter().zip(0u16..);
        all.filter(|(_, number)| self.acts(*number)).map(|(rule, _)| rule)
    }

    /// Points that the rules that act give to a candidate.
    #[inline]
    pub fn points(&self, candidate: &Candidate) -> f64 {
        self.rules.points(self.table, candidate)
    }

    /// The rule that excludes a candidate; the last, where several do.
    pub fn denied_by(&self, position: u16) -> Option<&'a CompiledRule> {
        self.acting().filter(|rule| rule.denied.contains(&position)).last()
    }

    /// Candidates that may be able to run the call: all others are excluded for its whole cell. One that somebody would
    /// compile stays, because it is asked for when it is better than what runs.
    #[inline]
    pub fn candidates(&self) -> impl Iterator<Item = u16> + use<> {
        let count = self.table.candidates.len();
        let mut passed = self.passed;
        match self.lock {
            Some((Some(position), ..)) => passed &= only(usize::from(position)),
            Some((None, ..)) => passed = 0,
            None => {}
        }
        if self.world.jit.is_some() {
            passed |= self.table.compiling;
        }
        let there = if count < MEMBERS { (1 << count) - 1 } else { Set::MAX };
        members(passed & there).chain(MEMBERS as u16..count.max(MEMBERS) as u16)
    }

    /// Bytes that a kernel's scratch memory may take now.
    pub fn memory(&self) -> Option<u64> {
        *self.memory.get_or_init(|| self.world.memory_limit(self.device))
    }

    /// The same call, for which a kernel may compile inside of it: for whoever has seen that nothing else can run it. `None`
    /// where policy refuses such calls.
    pub fn with_cold(&self) -> Option<Call<'a>> {
        let policy = &self.world.policy;
        let allowed = policy.jit.value == JitPolicy::WhenWarm && !policy.fail_on_no_fallback.value;
        allowed
            .then(|| Call { takes_cold: true, ..Call::new(self.world, self.table, self.context, self.mode) })
    }

    /// The same call, for which open circuits are ignored: for whoever has seen that nothing else can run it. `None` where
    /// nothing has failed.
    pub fn with_open(&self) -> Option<Call<'a>> {
        self.world
            .is_careful(self.table.info.slot())
            .then(|| Call { takes_open: true, ..Call::new(self.world, self.table, self.context, self.mode) })
    }

    /// Whether a kernel has not been compiled for calls like this one.
    pub fn is_cold(&self, spec: &KernelSpec) -> bool {
        !self.world.warm.contains(self.table.info, &spec.id, self.bucket.words())
    }

    /// What health knows the kernel by, on this call.
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

    /// Whether a formula's value is the same for the whole cell.
    pub fn is_settled(&self, reads: lz_core::expression_names::FieldSet) -> bool {
        reads & self.table.open == 0
    }
}

/// What dispatch tables say, after policy: a lock wins, and so does a preference for a kernel that the table does not put first.
fn hint<'a>(
    world: &'a World,
    table: &OperationTable,
    context: &Context,
    device: Option<&DeviceSpec>,
    locked: bool,
    rules: &Acting,
) -> Hint<'a> {
    if !world.level.allows_cache() {
        return Hint::None;
    }
    let mut hint = world.solved.hint(table, &world.registry, context, device);
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

/// Of several locks the last wins, and rules come after locks.
fn acting_lock<'a>(
    table: &'a OperationTable,
    rules: &Acting,
    context: &Context,
    values: &Values<'_>,
) -> Option<ActingLock<'a>> {
    let rule = table.locking.iter().rev().filter(|number| rules.has(**number)).find_map(|number| {
        let rule = table.rules.get(usize::from(*number))?;
        let (candidate, id) = rule.lock.as_ref()?;
        Some((*candidate, id.as_str(), &rule.source))
    });
    rule.or_else(|| {
        let lock = table.locks.iter().rev().find(|lock| lock.acts(context, values))?;
        Some((lock.candidate, lock.kernel.as_str(), &lock.source))
    })
}

/// The rules that act on a call.
#[derive(Debug)]
struct Acting {
    few: Set,
    /// Those that have no bit.
    more: Vec<u16>,
}

impl Acting {
    /// What the sieve says, and the rules that it cannot tell.
    #[inline]
    fn of(table: &OperationTable, sifted: Set, values: &Values<'_>) -> Acting {
        let mut acting = Acting { few: sifted, more: Vec::new() };
        for number in &table.unsifted {
            let bit = only(usize::from(*number));
            if bit != 0 && sifted & bit == 0 {
                continue;
            }
            let rule = table.rules.get(usize::from(*number));
            let acts = rule.is_some_and(|rule| rule.condition.holds(values));
            match bit {
                0 if acts => acting.more.push(*number),
                _ if !acts => acting.few &= !bit,
                _ => {}
            }
        }
        acting
    }

    #[inline]
    fn has(&self, rule: u16) -> bool {
        match only(usize::from(rule)) {
            0 => self.more.contains(&rule),
            bit => self.few & bit != 0,
        }
    }

    #[inline]
    fn points(&self, table: &OperationTable, candidate: &Candidate) -> f64 {
        let (first, end) = candidate.by_rules;
        let mine = table.by_rules.get(first as usize..end as usize).unwrap_or_default();
        let acts = |gift: &&Gift| gift.bit & self.few != 0 || gift.bit == 0 && self.more.contains(&gift.rule);
        mine.iter().filter(acts).fold(0.0, |sum, gift| sum + gift.points)
    }
}
