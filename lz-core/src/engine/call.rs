//! One call as filter and score see it: its context read once, its device found, the rules that act on it known.

use super::table::OperationTable;
use super::world::World;
use crate::bucket::Bucket;
use crate::compiled::CompiledKernel;
use crate::context::Context;
use crate::device::DeviceSpec;
use crate::expression_names::Values;
use crate::health::Subject;
use crate::mode::Mode;
use crate::policy::{JitPolicy, Provenance};
use crate::spec::KernelSpec;
use crate::table::Hint;

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
    /// One truth a rule.
    pub rules: Vec<bool>,
    /// Points of the rules that act, by candidate; empty when none gives any.
    pub points: Vec<f64>,
    /// The rule that excludes, by candidate; empty when none does.
    pub denied: Vec<Option<u16>>,
    /// The locked kernel, if any.
    pub lock: Option<ActingLock<'a>>,
    /// What dispatch tables say.
    pub hint: Hint<'a>,
    /// Bytes that a kernel's scratch memory may take now.
    pub memory: Option<u64>,
    /// What is true of the strides and addresses of all tensors together.
    pub strides: Strides,
    /// Whether a kernel may compile inside the call; see [`Call::with_cold`].
    pub takes_cold: bool,
}

/// What is true of all tensors of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Strides {
    /// Bits of stride classes that all have.
    pub common: u64,
    /// The least alignment, as a power of two.
    pub alignment: u64,
}

impl Strides {
    fn of(table: &OperationTable, context: &Context) -> Strides {
        let classes =
            table.strides.iter().map(|(store, _)| context.raw(*store)).filter(|class| class & 1 != 0);
        classes.fold(Strides { common: u64::MAX, alignment: u64::MAX }, |all, class| Strides {
            common: all.common & class,
            alignment: all.alignment.min(class >> 3),
        })
    }
}

impl<'a> Call<'a> {
    pub fn new(world: &'a World, table: &'a OperationTable, context: &'a Context, mode: Mode) -> Call<'a> {
        let device = world.devices.of_call(table.place, context);
        let values = Values::of_call(&table.info.fields, context, device, mode);
        let rules: Vec<bool> = table.rules.iter().map(|rule| rule.condition.holds(&values)).collect();
        let (mut points, mut denied) = (Vec::new(), Vec::new());
        for (number, (rule, _)) in table.rules.iter().zip(&rules).enumerate().filter(|(_, (_, acts))| **acts)
        {
            if !rule.points.is_empty() {
                points.resize(table.candidates.len(), 0.0);
            }
            for (position, more) in &rule.points {
                if let Some(points) = points.get_mut(usize::from(*position)) {
                    *points += more;
                }
            }
            if !rule.denied.is_empty() {
                denied.resize(table.candidates.len(), None);
            }
            for position in &rule.denied {
                if let Some(denied) = denied.get_mut(usize::from(*position)) {
                    *denied = Some(number as u16);
                }
            }
        }
        let lock = acting_lock(table, &rules, context, &values);
        let hint = hint(world, table, context, device, lock.is_some(), &points);
        Call {
            world,
            table,
            context,
            mode,
            device,
            values,
            bucket: Bucket::of(table.info, context),
            rules,
            points,
            denied,
            lock,
            hint,
            memory: world.memory_limit(device),
            strides: Strides::of(table, context),
            takes_cold: false,
        }
    }

    /// The same call, for which a kernel may compile inside of it: for whoever has seen that nothing else can run it. `None`
    /// where policy refuses such calls.
    pub fn with_cold(&self) -> Option<Call<'a>> {
        let policy = &self.world.policy;
        let allowed = policy.jit.value == JitPolicy::WhenWarm && !policy.fail_on_no_fallback.value;
        allowed
            .then(|| Call { takes_cold: true, ..Call::new(self.world, self.table, self.context, self.mode) })
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
    pub fn is_settled(&self, reads: crate::expression_names::FieldSet) -> bool {
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
    points: &[f64],
) -> Hint<'a> {
    if !world.level.allows_cache() {
        return Hint::None;
    }
    let mut hint = world.solved.hint(table, &world.registry, context, device);
    if locked && matches!(hint, Hint::Outside { .. }) {
        return Hint::None;
    }
    if let Hint::Decided { positions, overruled, .. } = &mut hint {
        let more = points.iter().copied().chain(std::iter::repeat(0.0));
        let weights: Vec<f64> =
            table.candidates.iter().zip(more).map(|(candidate, more)| candidate.points + more).collect();
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
    rules: &[bool],
    context: &Context,
    values: &Values<'_>,
) -> Option<ActingLock<'a>> {
    let rule = table.rules.iter().zip(rules).rev().find_map(|(rule, acts)| {
        let (candidate, id) = rule.lock.as_ref()?;
        acts.then_some((*candidate, id.as_str(), &rule.source))
    });
    rule.or_else(|| {
        let lock = table.locks.iter().rev().find(|lock| lock.acts(context, values))?;
        Some((lock.candidate, lock.kernel.as_str(), &lock.source))
    })
}
