//! Making a decision afresh: rank the candidates, take the best that can run the call, and note what the answer hangs on.

use std::collections::BinaryHeap;

use super::call::Call;
use super::guard::Guard;
use crate::compiled::CompiledKernel;
use crate::policy::JitPolicy;
use crate::selection::filter::{self, Listener};
use crate::selection::score::{Findings, Score, score, total};
use lz_core::error::Error;
use lz_core::expression_names::Values;
use lz_core::mode::Ask;
use lz_core::plan::Transforms;
use lz_core::reason::{Reason, ReasonCode};

/// What was decided for a cell.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Decision {
    /// The kernel's index in the registry.
    pub kernel: u32,
    /// The candidate's position in the operation's table.
    pub position: u16,
    pub transforms: Transforms,
    pub workspace: Workspace,
    /// What must be looked at on each hit.
    pub guards: Box<[Guard]>,
}

/// Scratch memory of a cell's calls: the same number of bytes for all, or computed for each call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Workspace(u64);

impl Workspace {
    /// Computed for each call.
    pub const COMPUTED: Workspace = Workspace(u64::MAX);

    /// The same for all. What no machine has is computed each time, which gives the same number.
    pub fn fixed(bytes: u64) -> Workspace {
        Workspace(bytes)
    }

    /// In bytes, for this kernel and call.
    #[inline]
    pub fn bytes(self, kernel: &CompiledKernel, context: &lz_core::context::Context) -> u64 {
        if self == Workspace::COMPUTED { computed_workspace(kernel, context) } else { self.0 }
    }
}

#[inline(never)]
fn computed_workspace(kernel: &CompiledKernel, context: &lz_core::context::Context) -> u64 {
    let values = Values::of_fields(&kernel.info.fields, context);
    // A guard has just seen that the formula has a value.
    filter::workspace(kernel, &values).unwrap_or(0)
}

/// A candidate and its score.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ranked {
    pub position: u16,
    pub score: Score,
    /// The sum of the above.
    pub total: f64,
    pub transforms: Transforms,
}

/// A candidate's place in the order, in one number: the better, the higher. From the top: the turn that a dispatch table
/// gives it, its score, its rank, which breaks ties, and its position.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Merit(u128);

impl Merit {
    fn new(turn: u16, total: f64, rank: u16, position: u16) -> Merit {
        // In the order of `f64::total_cmp`.
        let bits = total.to_bits();
        let total = if bits >> 63 == 0 { bits | 1 << 63 } else { !bits };
        let (turn, rank) = (u128::from(!turn), u128::from(!rank));
        Merit(turn << 96 | u128::from(total) << 32 | rank << 16 | u128::from(position))
    }

    fn position(self) -> u16 {
        self.0 as u16
    }
}

/// A candidate's place in the order; ties are broken by id, so that every process ranks alike. What a dispatch table decided
/// goes before all others.
#[inline(always)]
fn merit(call: &Call<'_>, findings: &Findings<'_>, position: u16) -> Option<Merit> {
    let candidate = call.table.candidates.get(usize::from(position))?;
    let total = total(call, position, candidate, findings);
    let turn = call.hint.first().iter().position(|hinted| *hinted == position);
    let turn = turn.and_then(|turn| u16::try_from(turn).ok()).unwrap_or(u16::MAX);
    Some(Merit::new(turn, total, candidate.rank, position))
}

/// Candidates that may run a call, to be taken best first. Nearly always the first is taken, so that the others are put into
/// an order only when it is not.
struct Order<'c> {
    call: &'c Call<'c>,
    findings: &'c Findings<'c>,
    first: Option<Merit>,
    rest: Option<BinaryHeap<Merit>>,
}

impl<'c> Order<'c> {
    fn new(call: &'c Call<'c>, findings: &'c Findings<'c>) -> Order<'c> {
        Order { call, findings, first: None, rest: None }
    }

    fn merits(&self) -> impl Iterator<Item = Merit> {
        self.call.candidates().filter_map(|position| merit(self.call, self.findings, position))
    }

    fn next(&mut self) -> Option<u16> {
        let next = match (&mut self.rest, self.first) {
            (Some(rest), _) => rest.pop(),
            (None, None) => {
                self.first = self.merits().max();
                self.first
            }
            (None, Some(first)) => {
                let mut rest: BinaryHeap<Merit> = self.merits().filter(|merit| *merit != first).collect();
                let next = rest.pop();
                self.rest = Some(rest);
                next
            }
        };
        next.map(Merit::position)
    }
}

/// All candidates, best first, with their scores.
pub(crate) fn rank(call: &Call<'_>, findings: &Findings<'_>) -> Vec<Ranked> {
    let scored = |merit: Merit| {
        let position = merit.position();
        let candidate = call.table.candidates.get(usize::from(position))?;
        let (score, transforms) = score(call, position, candidate, findings);
        Some(Ranked { position, score, total: score.total(), transforms })
    };
    let all = 0..u16::try_from(call.table.candidates.len()).unwrap_or(u16::MAX);
    let mut merits: Vec<Merit> = all.filter_map(|position| merit(call, findings, position)).collect();
    merits.sort_unstable();
    merits.into_iter().rev().filter_map(scored).collect()
}

/// What the quick walk remembers of one kernel.
struct Quick<'a> {
    excluded: bool,
    /// A condition that fails now and may hold elsewhere in the cell.
    fails: Option<Guard>,
    /// Conditions that hold now and may fail elsewhere in the cell are added here.
    holds: &'a mut Vec<Guard>,
}

impl Listener for Quick<'_> {
    fn excluded(&mut self, _: impl FnOnce() -> Reason) -> bool {
        self.excluded = true;
        true
    }

    fn guarded(&mut self, guard: Guard, holds: bool, _: impl FnOnce() -> Reason) {
        if holds {
            self.holds.push(guard);
        } else if self.fails.is_none() {
            self.fails = Some(guard);
        }
    }
}

/// Decides. `None` when no candidate can run the call.
///
/// The winner's own conditions must go on holding, and each better kernel's failing one must go on failing; what happens to
/// kernels behind the winner does not matter, because no score depends on whether another kernel is possible.
pub(crate) fn decide(call: &Call<'_>) -> Option<Decision> {
    let findings = Findings::of(call);
    let mut guards = policy_guards(call);
    let mut order = Order::new(call, &findings);
    while let Some(position) = order.next() {
        let before = guards.len();
        let mut quick = Quick { excluded: false, fails: None, holds: &mut guards };
        filter::examine(call, position, &mut quick);
        let Quick { excluded, fails, .. } = quick;
        let candidate = call.table.candidates.get(usize::from(position))?;
        let kernel = call.world.registry.compiled(candidate.kernel)?;
        if excluded || fails.is_some() {
            guards.truncate(before);
            guards.extend(fails.filter(|_| !excluded));
            if excluded {
                want_compiled(call, position, kernel);
            }
            continue;
        }
        let settled = kernel.workspace.as_ref().is_none_or(|formula| call.is_settled(formula.reads));
        let workspace = if settled {
            Workspace::fixed(filter::workspace(kernel, &call.values).unwrap_or(0))
        } else {
            Workspace::COMPUTED
        };
        return Some(Decision {
            kernel: candidate.kernel,
            position,
            transforms: filter::transforms(call, &kernel.facts, || Some(kernel)),
            workspace,
            guards: guards.into_boxed_slice(),
        });
    }
    None
}

/// Conditions of rules and locks, and answers of dispatch tables, that a cell does not settle.
fn policy_guards(call: &Call<'_>) -> Vec<Guard> {
    let rules = call.table.open_rules.iter();
    let rules = rules.map(|number| Guard::Rule { rule: *number, expect: call.acts(*number) });
    let locks = call.table.open_locks.iter().filter_map(|number| {
        let lock = call.table.locks.get(usize::from(*number))?;
        Some(Guard::Lock { lock: *number, expect: lock.acts(call.context, &call.values) })
    });
    let mut guards: Vec<Guard> = rules.chain(locks).collect();
    if call.world.level.allows_cache() && call.world.solved.reads_numbers(call.table.info) {
        let says = call.world.solved.says(call.table, &call.world.registry, call.context, call.device);
        guards.push(Guard::Tabled { says });
    }
    guards
}

/// Asks for a kernel that is better than the winner and only not compiled yet.
fn want_compiled(call: &Call<'_>, position: u16, kernel: &CompiledKernel) {
    let spec = kernel.spec();
    let Some(jit) = &call.world.jit else { return };
    let is_only_cold = || {
        let mut reasons: Vec<Reason> = Vec::new();
        filter::examine(call, position, &mut reasons);
        reasons.iter().all(|reason| reason.code == ReasonCode::JitCold)
    };
    if spec.jit
        && call.world.policy.jit.value == JitPolicy::WhenWarm
        && call.world.level.allows_background()
        && call.is_cold(spec)
        && is_only_cold()
    {
        jit.want(&spec.id, call.table.info, call.context);
    }
}

/// What a call takes that nothing can run otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resort {
    /// A kernel that compiles inside of it, where policy allows that.
    Cold,
    /// A kernel whose circuit is open.
    Open,
}

/// For a call that nothing can run otherwise. It is decided anew for each call, because whatever else can run another call of
/// the cell goes before it.
#[cold]
pub(crate) fn decide_resort(call: &Call<'_>) -> Option<(Decision, Resort)> {
    let cold = call.with_cold().and_then(|call| decide(&call)).map(|decision| (decision, Resort::Cold));
    cold.or_else(|| Some((decide(&call.with_open()?)?, Resort::Open)))
}

/// All that can run the call, best first.
pub(crate) fn possible(call: &Call<'_>) -> Vec<Ranked> {
    let findings = Findings::of(call);
    let mut ranked = rank(call, &findings);
    ranked.retain(|one| {
        let mut reasons: Vec<Reason> = Vec::new();
        filter::examine(call, one.position, &mut reasons);
        reasons.is_empty()
    });
    ranked
}

/// The same, or the [last resort](decide_resort) where there is nothing else.
pub(crate) fn possible_or_resort(call: &Call<'_>) -> Vec<Ranked> {
    let possible = possible(call);
    if possible.is_empty() { resort(call) } else { possible }
}

/// What a call takes that nothing can run otherwise, best first.
pub(crate) fn resort(call: &Call<'_>) -> Vec<Ranked> {
    let cold = call.with_cold().map_or_else(Vec::new, |call| possible(&call));
    if cold.is_empty() { open(call) } else { cold }
}

/// The kernels that could run the call but for their open circuits, best first.
pub(crate) fn open(call: &Call<'_>) -> Vec<Ranked> {
    call.with_open().map_or_else(Vec::new, |call| possible(&call))
}

/// Why nothing can run the call.
#[cold]
pub(crate) fn refusal(call: &Call<'_>) -> Error {
    let operation = call.table.info.name.to_string();
    let reasons_of = |position: u16| {
        let mut reasons: Vec<Reason> = Vec::new();
        filter::examine(call, position, &mut reasons);
        reasons
    };
    if let Some((locked, id, source)) = call.lock {
        let reasons = match locked {
            Some(position) => {
                let message = format!("{operation} is locked to {id} ({source})");
                let mut reasons = vec![Reason::new(ReasonCode::LockedKernelInvalid).message(message)];
                reasons.extend(reasons_of(position));
                reasons
            }
            None => vec![
                Reason::new(ReasonCode::KernelUnknown)
                    .message(format!("{operation} has no kernel {id}, to which it is locked ({source})")),
            ],
        };
        return Error::Locked { operation, kernel: id.to_owned(), reasons };
    }
    let mut candidates = Vec::new();
    let mut nearly = false;
    for (position, candidate) in call.table.candidates.iter().enumerate() {
        let Some(kernel) = call.world.registry.compiled(candidate.kernel) else { continue };
        let reasons = reasons_of(position as u16);
        nearly |= matches!(reasons.as_slice(), [only] if only.code == ReasonCode::CudaGraphUnsafe);
        candidates.push((kernel.spec().id.clone(), reasons));
    }
    if nearly && call.mode.has(Ask::Capturing) {
        Error::CudaGraphUnsafe { operation, candidates }
    } else {
        Error::NoKernel { operation, candidates }
    }
}
