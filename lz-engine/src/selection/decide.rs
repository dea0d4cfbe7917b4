//! Makes a decision: ranks the candidates, takes the best one that passes the filter, and records guards for what varies in the cell.

use std::collections::BinaryHeap;

use super::call::Call;
use super::guard::Guard;
use crate::compiled::CompiledKernel;
use crate::policy::JitPolicy;
use crate::selection::filter::{self, FilterVisitor};
use crate::selection::score::{PerfTerms, Score, score, total};
use lz_core::error::Error;
use lz_core::expression_names::Values;
use lz_core::mode::ModeFlag;
use lz_core::plan::Transforms;
use lz_core::reason::{Reason, ReasonCode};

/// The decision for a cell.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Decision {
    /// The index in the registry of the kernel, or of its form that copies strided tensors.
    pub kernel: u32,
    /// The candidate's position in the operation's table.
    pub position: u16,
    pub transforms: Transforms,
    pub workspace: Workspace,
    /// Conditions that must be checked on each hit.
    pub guards: Box<[Guard]>,
}

/// Workspace size of a cell's calls: constant, or computed per call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Workspace(u64);

impl Workspace {
    /// Computed per call.
    pub const COMPUTED: Workspace = Workspace(u64::MAX);

    /// Constant. `u64::MAX` collides with `COMPUTED`, which then computes the same value.
    pub fn fixed(bytes: u64) -> Workspace {
        Workspace(bytes)
    }

    /// Size in bytes for this kernel and call.
    #[inline]
    pub fn bytes(self, kernel: &CompiledKernel, context: &lz_core::context::Context) -> u64 {
        if self == Workspace::COMPUTED { computed_workspace(kernel, context) } else { self.0 }
    }
}

#[inline(never)]
fn computed_workspace(kernel: &CompiledKernel, context: &lz_core::context::Context) -> u64 {
    let values = Values::of_fields(&kernel.info.fields, context);
    // A guard has just checked that the formula has a value.
    filter::workspace(kernel, &values).unwrap_or(0)
}

/// A candidate and its score.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ranked {
    pub position: u16,
    pub score: Score,
    /// The sum of `score`.
    pub total: f64,
    pub transforms: Transforms,
}

/// Sort key of a candidate; larger is better. From the most significant bits: the position in a dispatch table's answer, the
/// score, the rank by id (breaks ties), the candidate's position.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct RankKey(u128);

impl RankKey {
    fn new(turn: u16, total: f64, rank: u16, position: u16) -> RankKey {
        // Maps to the order of `f64::total_cmp`.
        let bits = total.to_bits();
        let total = if bits >> 63 == 0 { bits | 1 << 63 } else { !bits };
        let (turn, rank) = (u128::from(!turn), u128::from(!rank));
        RankKey(turn << 96 | u128::from(total) << 32 | rank << 16 | u128::from(position))
    }

    fn position(self) -> u16 {
        self.0 as u16
    }
}

/// The sort key of a candidate. Ties are broken by id, so that the order is the same in every process. Kernels chosen by a
/// dispatch table come first.
#[inline(always)]
fn rank_key(call: &Call<'_>, findings: &PerfTerms<'_>, position: u16) -> Option<RankKey> {
    let candidate = call.table.candidates.get(usize::from(position))?;
    let total = total(call, position, candidate, findings);
    let turn = call.hint.first().iter().position(|hinted| *hinted == position);
    let turn = turn.and_then(|turn| u16::try_from(turn).ok()).unwrap_or(u16::MAX);
    Some(RankKey::new(turn, total, candidate.rank, position))
}

/// Candidates of a call, best first. The first one nearly always passes the filter, so the rest is only heapified when it does
/// not.
struct BestFirst<'c> {
    call: &'c Call<'c>,
    findings: &'c PerfTerms<'c>,
    first: Option<RankKey>,
    rest: Option<BinaryHeap<RankKey>>,
}

impl<'c> BestFirst<'c> {
    fn new(call: &'c Call<'c>, findings: &'c PerfTerms<'c>) -> BestFirst<'c> {
        BestFirst { call, findings, first: None, rest: None }
    }

    fn rank_keys(&self) -> impl Iterator<Item = RankKey> {
        self.call.candidates().filter_map(|position| rank_key(self.call, self.findings, position))
    }

    fn next(&mut self) -> Option<u16> {
        let next = match (&mut self.rest, self.first) {
            (Some(rest), _) => rest.pop(),
            (None, None) => {
                self.first = self.rank_keys().max();
                self.first
            }
            (None, Some(first)) => {
                let mut rest: BinaryHeap<RankKey> =
                    self.rank_keys().filter(|rank_key| *rank_key != first).collect();
                let next = rest.pop();
                self.rest = Some(rest);
                next
            }
        };
        next.map(RankKey::position)
    }
}

/// All candidates with their scores, best first.
pub(crate) fn rank(call: &Call<'_>, findings: &PerfTerms<'_>) -> Vec<Ranked> {
    let scored = |rank_key: RankKey| {
        let position = rank_key.position();
        let candidate = call.table.candidates.get(usize::from(position))?;
        let (score, transforms) = score(call, position, candidate, findings);
        Some(Ranked { position, score, total: score.total(), transforms })
    };
    let all = 0..u16::try_from(call.table.candidates.len()).unwrap_or(u16::MAX);
    let mut rank_keys: Vec<RankKey> = all.filter_map(|position| rank_key(call, findings, position)).collect();
    rank_keys.sort_unstable();
    rank_keys.into_iter().rev().filter_map(scored).collect()
}

/// A visitor that stops at the first exclusion and collects guards.
struct DecisionVisitor<'a> {
    excluded: bool,
    /// A condition that fails for this call and may hold for others in the cell.
    fails: Option<Guard>,
    /// Conditions that hold for this call and may fail for others in the cell.
    holds: &'a mut Vec<Guard>,
}

impl FilterVisitor for DecisionVisitor<'_> {
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

/// Makes a decision; `None` if no candidate can run the call.
///
/// Guards: the winner's varying conditions must keep holding, and a failing condition of each better-ranked kernel must keep
/// failing. Kernels ranked below the winner need no guards, because no score depends on the eligibility of another kernel.
pub(crate) fn decide(call: &Call<'_>) -> Option<Decision> {
    let findings = PerfTerms::of(call);
    let mut guards = policy_guards(call);
    let mut order = BestFirst::new(call, &findings);
    while let Some(position) = order.next() {
        let before = guards.len();
        let mut visitor = DecisionVisitor { excluded: false, fails: None, holds: &mut guards };
        filter::examine(call, position, &mut visitor);
        let DecisionVisitor { excluded, fails, .. } = visitor;
        let candidate = call.table.candidates.get(usize::from(position))?;
        let kernel = call.snapshot.registry.compiled(candidate.kernel)?;
        if excluded || fails.is_some() {
            guards.truncate(before);
            guards.extend(fails.filter(|_| !excluded));
            if excluded {
                request_compilation(call, position, kernel);
            }
            continue;
        }
        let constant = kernel.workspace.as_ref().is_none_or(|formula| call.is_cell_constant(formula.reads));
        let workspace = if constant {
            Workspace::fixed(filter::workspace(kernel, &call.values).unwrap_or(0))
        } else {
            Workspace::COMPUTED
        };
        let transforms = filter::transforms(call, &kernel.facts, || Some(kernel));
        return Some(Decision {
            kernel: call.snapshot.registry.adapted(candidate.kernel, transforms),
            position,
            transforms,
            workspace,
            guards: guards.into_boxed_slice(),
        });
    }
    None
}

/// Guards for rules, locks and dispatch-table answers that vary within a cell.
fn policy_guards(call: &Call<'_>) -> Vec<Guard> {
    let rules = call.table.varying_rules.iter();
    let rules = rules.map(|number| Guard::Rule { rule: *number, expect: call.applies(*number) });
    let locks = call.table.varying_locks.iter().filter_map(|number| {
        let lock = call.table.locks.get(usize::from(*number))?;
        Some(Guard::Lock { lock: *number, expect: lock.applies(call.context, &call.values) })
    });
    let mut guards: Vec<Guard> = rules.chain(locks).collect();
    if call.snapshot.level.allows_cache() && call.snapshot.solved.reads_scalars(call.table.info) {
        let digest =
            call.snapshot.solved.digest(call.table, &call.snapshot.registry, call.context, call.device);
        guards.push(Guard::Table { digest });
    }
    guards
}

/// Requests compilation of a kernel that ranks above the winner and is excluded only because it is cold.
fn request_compilation(call: &Call<'_>, position: u16, kernel: &CompiledKernel) {
    let spec = kernel.spec();
    let Some(jit) = &call.snapshot.jit else { return };
    let is_only_cold = || {
        let mut reasons: Vec<Reason> = Vec::new();
        filter::examine(call, position, &mut reasons);
        reasons.iter().all(|reason| reason.code == ReasonCode::JitCold)
    };
    if spec.jit
        && call.snapshot.policy.jit.value == JitPolicy::WhenWarm
        && call.snapshot.level.allows_background()
        && call.is_cold(spec)
        && is_only_cold()
    {
        jit.request(&spec.id, call.table.info, call.context);
    }
}

/// Where no kernel can run a call: waits for the judgments of kernels that would be eligible otherwise, best first, until one can run
/// it. Returns whether one can.
#[cold]
pub(crate) fn settle_judgments(call: &Call<'_>) -> bool {
    rank(call, &PerfTerms::of(call)).into_iter().any(|ranked| {
        let reasons = || {
            let mut reasons: Vec<Reason> = Vec::new();
            filter::examine(call, ranked.position, &mut reasons);
            reasons
        };
        let before = reasons();
        if before.is_empty() || before.iter().any(|reason| reason.code != ReasonCode::TokenizerVerifying) {
            return false;
        }
        let candidate = call.table.candidates.get(usize::from(ranked.position));
        let kernel = candidate.and_then(|candidate| call.snapshot.registry.compiled(candidate.kernel));
        let Some(judge) = kernel.and_then(|kernel| kernel.entry.judge.as_ref()) else { return false };
        judge.settle(call.table.info, call.context);
        reasons().is_empty()
    })
}

/// Kernels that are used only when no eligible kernel can run a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LastResort {
    /// A kernel that compiles inside the call, where policy allows it.
    Cold,
    /// A kernel with an open circuit.
    Open,
}

/// Decides a call that no eligible kernel can run. Not cached: another call of the cell may have an eligible kernel, which takes
/// precedence.
#[cold]
pub(crate) fn decide_last_resort(call: &Call<'_>) -> Option<(Decision, LastResort)> {
    let cold = call.with_cold().and_then(|call| decide(&call)).map(|decision| (decision, LastResort::Cold));
    cold.or_else(|| Some((decide(&call.with_open()?)?, LastResort::Open)))
}

/// All kernels that can run the call, best first.
pub(crate) fn eligible(call: &Call<'_>) -> Vec<Ranked> {
    let findings = PerfTerms::of(call);
    let mut ranked = rank(call, &findings);
    ranked.retain(|one| {
        let mut reasons: Vec<Reason> = Vec::new();
        filter::examine(call, one.position, &mut reasons);
        reasons.is_empty()
    });
    ranked
}

/// The eligible kernels, or the [last resort](decide_last_resort) if there are none.
pub(crate) fn eligible_or_last_resort(call: &Call<'_>) -> Vec<Ranked> {
    let found = eligible(call);
    if !found.is_empty() {
        return found;
    }
    if settle_judgments(call) { eligible(call) } else { last_resort(call) }
}

/// The last-resort kernels, best first.
pub(crate) fn last_resort(call: &Call<'_>) -> Vec<Ranked> {
    let cold = call.with_cold().map_or_else(Vec::new, |call| eligible(&call));
    if cold.is_empty() { open(call) } else { cold }
}

/// The kernels that are excluded only by open circuits, best first.
pub(crate) fn open(call: &Call<'_>) -> Vec<Ranked> {
    call.with_open().map_or_else(Vec::new, |call| eligible(&call))
}

/// The error that says why no kernel can run the call.
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
        let Some(kernel) = call.snapshot.registry.compiled(candidate.kernel) else { continue };
        let reasons = reasons_of(position as u16);
        nearly |= matches!(reasons.as_slice(), [only] if only.code == ReasonCode::CudaGraphUnsafe);
        candidates.push((kernel.spec().id.clone(), reasons));
    }
    if nearly && call.mode.has(ModeFlag::Capturing) {
        Error::CudaGraphUnsafe { operation, candidates }
    } else {
        Error::NoKernel { operation, candidates }
    }
}
