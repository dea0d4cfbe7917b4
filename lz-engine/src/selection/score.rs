//! The score of a kernel for a call, as a sum of visible terms.
//!
//! A score depends on the kernel, the call's cell and the snapshot, never on the eligibility of other kernels: a cached decision
//! stays valid when a worse-ranked kernel becomes eligible.

use serde::Serialize;

use crate::bucket::Bucket;
use crate::compiled::Facts;
use crate::evidence::{EvidenceQuery, KernelEvidence, Measured};
use crate::policy::JitPolicy;
use crate::registry::Registry;
use crate::selection::call::Call;
use crate::selection::filter;
use crate::selection::operation_table::{Candidate, OperationTable};
use lz_core::mode::ModeFlag;
use lz_core::plan::{TransformKind, Transforms};

/// Penalty for a cold compilation where it is allowed inside a call.
const JIT_POINTS: f64 = 20.0;
/// Minimum penalty for copying a result into a given output.
const OUTPUT_POINTS: f64 = 1.0;
/// Penalty for a kernel without the requested invariance, where policy allows it as best effort.
const VARIANCE_POINTS: f64 = 500.0;
/// Bonus of the fastest measured kernel.
const PERF_BEST: f64 = 12.0;
/// Penalty per unit of relative slowdown, down to the minimum. 1% slowdown outweighs usual differences in priority, so the fastest
/// measured kernel wins; priorities decide between unmeasured kernels and ties.
const PERF_SLOPE: f64 = 3000.0;
/// Minimum of the measurement term, below usual differences in priority. Confidence is applied before this clamp: low
/// confidence requires a larger slowdown to reach the minimum, but a much slower kernel reaches it at any usable confidence.
const PERF_FLOOR: f64 = -60.0;

/// The terms of a score.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Score {
    /// The kernel's declared priority.
    pub priority: f64,
    /// Preferences and rules of the policy.
    pub policy: f64,
    /// Measurements; `None` without any.
    pub perf: Option<f64>,
    /// Compilation of a cold kernel.
    pub jit: f64,
    /// Recent failures.
    pub reliability: f64,
    /// Conversions by its adapter.
    pub transform: f64,
    /// Fusion with neighboring operations; only set in plans of several operations.
    pub fusion: f64,
}

impl Score {
    /// The sum.
    pub fn total(&self) -> f64 {
        self.priority
            + self.policy
            + self.perf.unwrap_or(0.0)
            + self.jit
            + self.reliability
            + self.transform
            + self.fusion
    }
}

/// Measurements of the candidates of a call.
#[derive(Debug, Default)]
pub(crate) enum PerfTerms<'a> {
    /// Nothing.
    #[default]
    None,
    /// Precomputed: weighted points by candidate at load time, and the factor for their decay since.
    Prepared { points: &'a [f64], left: f64 },
    /// Queried for this call.
    Queried { measured: Vec<Option<Measured>>, fastest: f64 },
}

impl<'a> PerfTerms<'a> {
    pub fn of(call: &Call<'a>) -> PerfTerms<'a> {
        let (Some(evidence), Some(device)) = (&call.snapshot.evidence, call.device) else {
            return PerfTerms::None;
        };
        // Measurements differ between the sizes of a batch, and so would the kernel.
        if !call.snapshot.level.allows_scoring() || call.mode.has(ModeFlag::BatchInvariant) {
            return PerfTerms::None;
        }
        if let Some(stored) = evidence.stored() {
            let prepared = call.snapshot.prepared(stored, call.table);
            let find = |bucket: &Bucket| prepared.and_then(|prepared| prepared.find(device, bucket.words()));
            let rows =
                find(&call.bucket).or_else(|| find(&call.table.bucket.without_statistics(&call.bucket)?));
            let Some(rows) = rows else { return PerfTerms::None };
            if let Some((points, left)) = rows.now(stored) {
                return PerfTerms::Prepared { points, left };
            }
        }
        let measured = measured(call);
        let medians = measured.iter().flatten().map(|measured| measured.median_ns);
        let fastest = medians.fold(f64::INFINITY, f64::min);
        PerfTerms::Queried { measured, fastest }
    }

    #[inline]
    fn points(&self, position: u16) -> Option<f64> {
        match self {
            PerfTerms::None => None,
            PerfTerms::Prepared { points, left } => points
                .get(usize::from(position))
                .filter(|points| !points.is_nan())
                .map(|points| floored(points * left)),
            PerfTerms::Queried { measured, fastest } => {
                let measured = measured.get(usize::from(position))?.as_ref()?;
                Some(floored(weighted(measured, *fastest)))
            }
        }
    }
}

/// Points for a measurement relative to the fastest candidate, weighted by confidence, before [`floored`].
pub(crate) fn weighted(measured: &Measured, fastest: f64) -> f64 {
    let slowdown = measured.median_ns / fastest - 1.0;
    measured.confidence.clamp(0.0, 1.0) * (PERF_BEST - PERF_SLOPE * slowdown)
}

/// Applies the minimum.
fn floored(weighted: f64) -> f64 {
    weighted.max(PERF_FLOOR)
}

/// Measurements by candidate; empty without any.
pub(crate) fn measured(call: &Call<'_>) -> Vec<Option<Measured>> {
    let (Some(evidence), Some(device)) = (&call.snapshot.evidence, call.device) else { return Vec::new() };
    if !call.snapshot.level.allows_scoring() {
        return Vec::new();
    }
    let of_bucket = |bucket: &Bucket| {
        let (operation, context) = (call.table.info, call.context);
        let question = EvidenceQuery { operation, context, bucket: bucket.words(), device };
        let mut all = Vec::new();
        evidence.findings(&question, &mut |finding| {
            merge_finding(&mut all, call.table, &call.snapshot.registry, finding);
        });
        all
    };
    let own = of_bucket(&call.bucket);
    if !own.is_empty() {
        return own;
    }
    // Where nothing was measured for a statistic, the measurements without it count.
    call.table.bucket.without_statistics(&call.bucket).map(|bucket| of_bucket(&bucket)).unwrap_or_default()
}

/// Stores a finding if it matches a registered kernel version and no finding with higher confidence is stored.
pub(crate) fn merge_finding(
    all: &mut Vec<Option<Measured>>,
    table: &OperationTable,
    registry: &Registry,
    finding: &KernelEvidence<'_>,
) {
    if !(finding.measured.confidence > 0.0 && finding.measured.median_ns > 0.0) {
        return;
    }
    let Some(position) = table.position_of(registry, finding.kernel) else { return };
    let candidate = table.candidates.get(usize::from(position));
    let Some(kernel) = candidate.and_then(|candidate| registry.compiled(candidate.kernel)) else { return };
    let spec = kernel.spec();
    if spec.version != finding.version || spec.capabilities_hash != finding.capabilities_hash {
        return;
    }
    if all.is_empty() {
        all.resize(table.candidates.len(), None);
    }
    let Some(slot) = all.get_mut(usize::from(position)) else { return };
    if slot.is_none_or(|known| known.confidence < finding.measured.confidence) {
        *slot = Some(finding.measured);
    }
}

/// The cost of conversions. Copying the output costs at least `OUTPUT_POINTS`, because specs do not state its cost.
#[inline(always)]
fn conversions(facts: &Facts, transforms: Transforms) -> f64 {
    if transforms.contains(TransformKind::Output) {
        let others = f64::from(transforms.count() - 1);
        return -facts.transform_cost * others - facts.transform_cost.max(OUTPUT_POINTS);
    }
    -facts.transform_cost * f64::from(transforms.count())
}

/// The score of a candidate, and the conversions of its adapter.
#[inline(always)]
pub(crate) fn score(
    call: &Call<'_>,
    position: u16,
    candidate: &Candidate,
    findings: &PerfTerms<'_>,
) -> (Score, Transforms) {
    let facts = &candidate.facts;
    let kernel = || call.snapshot.registry.compiled(candidate.kernel);
    let transforms = filter::transforms(call, facts, kernel);
    let policy = candidate.points + call.points(candidate);
    // With best effort, invariant kernels rank before all others.
    let varies = call.mode.has(ModeFlag::TensorParallelInvariant)
        && !(facts.tp_invariant
            && kernel().is_some_and(|kernel| filter::is_tp_invariant(call, kernel.spec())));
    let policy = if varies { policy - VARIANCE_POINTS } else { policy };
    // With background compilation a cold kernel has no compile penalty and ranks as if warm: kernels that rank above the winner
    // are the ones submitted for compilation.
    let inside = call.snapshot.policy.jit.value != JitPolicy::WhenWarm || call.allow_cold;
    let cold = facts.jit && inside && kernel().is_some_and(|kernel| call.is_cold(kernel.spec()));
    let careful = if call.snapshot.takes_slow_path(call.table.info.slot()) { kernel() } else { None };
    let score = Score {
        priority: facts.priority,
        policy,
        perf: findings.points(position),
        jit: if cold { -JIT_POINTS } else { 0.0 },
        reliability: careful
            .map_or(0.0, |kernel| -call.snapshot.health.reliability_penalty(&call.subject(kernel))),
        transform: conversions(facts, transforms),
        fusion: 0.0,
    };
    (score, transforms)
}

/// The total only. Fast path for candidates whose jit, reliability and fusion terms are 0.
#[inline(always)]
pub(crate) fn total(call: &Call<'_>, position: u16, candidate: &Candidate, findings: &PerfTerms<'_>) -> f64 {
    let facts = &candidate.facts;
    if call.is_special || facts.jit || facts.has_layouts {
        return score(call, position, candidate, findings).0.total();
    }
    let transforms = filter::transforms(call, facts, || None);
    let transform = conversions(facts, transforms);
    let policy = candidate.points + call.points(candidate);
    let total = facts.priority + policy + findings.points(position).unwrap_or(0.0) + transform;
    debug_assert_eq!(total, score(call, position, candidate, findings).0.total());
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    fn perf(median_ns: f64, confidence: f64) -> f64 {
        let measured = Measured { median_ns, samples: 5, age_seconds: 0, confidence };
        floored(weighted(&measured, 100.0))
    }

    #[test]
    fn much_slower_kernel_gets_the_minimum_at_any_confidence() {
        assert_eq!([0.9, 0.3, 0.05].map(|confidence| perf(160.0, confidence)), [PERF_FLOOR; 3]);
        assert_eq!([perf(100.0, 1.0), perf(100.0, 0.5)], [PERF_BEST, PERF_BEST / 2.0]);
    }

    #[test]
    fn slightly_slower_kernel_loses_in_proportion_to_confidence() {
        let points = [0.9, 0.3, 0.05].map(|confidence| perf(101.0, confidence));
        assert!(points.is_sorted() && points[0] < -10.0 && points[2] > -1.0, "{points:?}");
    }
}
