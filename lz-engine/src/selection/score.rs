//! How good a kernel is for a call, as a sum whose addends can be seen.
//!
//! A kernel's score depends on itself, the call's cell and the state of the world, never on whether other kernels can run
//! the call: so a cached decision stays right when a worse kernel becomes possible.

use serde::Serialize;

use crate::compiled::Facts;
use crate::evidence::{Finding, Measured, Question};
use crate::policy::JitPolicy;
use crate::registry::Registry;
use crate::selection::call::Call;
use crate::selection::filter;
use crate::selection::operation_table::{Candidate, OperationTable};
use lz_core::mode::Ask;
use lz_core::plan::{TransformKind, Transforms};

/// What a cold compilation costs where it is allowed inside a call.
const JIT_POINTS: f64 = 20.0;
/// The least that copying a result into a given output costs.
const OUTPUT_POINTS: f64 = 1.0;
/// What a kernel loses that does not promise what is asked for, where that is forgiven.
const VARIANCE_POINTS: f64 = 500.0;
/// What the fastest measured kernel gains.
const PERF_BEST: f64 = 12.0;
/// What a kernel loses that takes twice as long as the fastest, up to the floor: a hundredth is worth more than priorities usually
/// differ by, so that among measured kernels the fastest is chosen, and priorities decide what is not measured or ties.
const PERF_SLOPE: f64 = 3000.0;
/// The least that measurements give: more than priorities differ by. Confidence weighs before it, not after, so that the less a
/// measurement is believed the slower a kernel must have been to lose this much, but one that was far slower does at any confidence worth the name.
const PERF_FLOOR: f64 = -60.0;

/// The addends of a score.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Score {
    /// What the kernel says of itself.
    pub priority: f64,
    /// Preferences, avoidances and rules.
    pub policy: f64,
    /// Measurements; `None` when there are none.
    pub perf: Option<f64>,
    /// Compilation, when it is cold.
    pub jit: f64,
    /// Recent failures.
    pub reliability: f64,
    /// Conversions that its adapter has to do.
    pub transform: f64,
    /// Neighbouring operations that it does as well; only plans of several operations know neighbours.
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

/// What measurements say about the candidates of a call.
#[derive(Debug, Default)]
pub(crate) enum Findings<'a> {
    /// Nothing.
    #[default]
    None,
    /// What was worked out beforehand: weighted points by candidate when they were loaded, and what is left of their weight.
    Prepared { points: &'a [f64], left: f64 },
    /// What was asked for this call.
    Asked { measured: Vec<Option<Measured>>, fastest: f64 },
}

impl<'a> Findings<'a> {
    pub fn of(call: &Call<'a>) -> Findings<'a> {
        let (Some(evidence), Some(device)) = (&call.world.evidence, call.device) else {
            return Findings::None;
        };
        if !call.world.level.allows_scoring() {
            return Findings::None;
        }
        if let Some(stored) = evidence.stored() {
            let prepared = call.world.prepared(stored, call.table);
            let rows = prepared.and_then(|prepared| prepared.find(device, call.bucket.words()));
            let Some(rows) = rows else { return Findings::None };
            if let Some((points, left)) = rows.now(stored) {
                return Findings::Prepared { points, left };
            }
        }
        let measured = measured(call);
        let medians = measured.iter().flatten().map(|measured| measured.median_ns);
        let fastest = medians.fold(f64::INFINITY, f64::min);
        Findings::Asked { measured, fastest }
    }

    #[inline]
    fn points(&self, position: u16) -> Option<f64> {
        match self {
            Findings::None => None,
            Findings::Prepared { points, left } => points
                .get(usize::from(position))
                .filter(|points| !points.is_nan())
                .map(|points| floored(points * left)),
            Findings::Asked { measured, fastest } => {
                let measured = measured.get(usize::from(position))?.as_ref()?;
                Some(floored(weighted(measured, *fastest)))
            }
        }
    }
}

/// Points for a measurement beside the fastest of all candidates, as far as it is believed, before they are [`floored`].
pub(crate) fn weighted(measured: &Measured, fastest: f64) -> f64 {
    let slowdown = measured.median_ns / fastest - 1.0;
    measured.confidence.clamp(0.0, 1.0) * (PERF_BEST - PERF_SLOPE * slowdown)
}

/// What weighted points come to.
fn floored(weighted: f64) -> f64 {
    weighted.max(PERF_FLOOR)
}

/// What was measured, by candidate; empty when nothing is known of any.
pub(crate) fn measured(call: &Call<'_>) -> Vec<Option<Measured>> {
    let (Some(evidence), Some(device)) = (&call.world.evidence, call.device) else { return Vec::new() };
    if !call.world.level.allows_scoring() {
        return Vec::new();
    }
    let question =
        Question { operation: call.table.info, context: call.context, bucket: call.bucket.words(), device };
    let mut all = Vec::new();
    evidence.findings(&question, &mut |finding| {
        believe(&mut all, call.table, &call.world.registry, finding);
    });
    all
}

/// Takes a finding over, where it is about a present kernel as it is now and nothing more believable is known of that.
pub(crate) fn believe(
    all: &mut Vec<Option<Measured>>,
    table: &OperationTable,
    registry: &Registry,
    finding: &Finding<'_>,
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
    let Some(place) = all.get_mut(usize::from(position)) else { return };
    if place.is_none_or(|known| known.confidence < finding.measured.confidence) {
        *place = Some(finding.measured);
    }
}

/// What conversions cost. A copy of the result costs at least a point: no kernel says what that is worth.
#[inline(always)]
fn conversions(facts: &Facts, transforms: Transforms) -> f64 {
    if transforms.contains(TransformKind::Output) {
        let others = f64::from(transforms.count() - 1);
        return -facts.transform_cost * others - facts.transform_cost.max(OUTPUT_POINTS);
    }
    -facts.transform_cost * f64::from(transforms.count())
}

/// The score of one candidate, and what its adapter would have to convert.
#[inline(always)]
pub(crate) fn score(
    call: &Call<'_>,
    position: u16,
    candidate: &Candidate,
    findings: &Findings<'_>,
) -> (Score, Transforms) {
    let facts = &candidate.facts;
    let kernel = || call.world.registry.compiled(candidate.kernel);
    let transforms = filter::transforms(call, facts, kernel);
    let policy = candidate.points + call.points(candidate);
    // With best effort those that promise invariance come first, whatever else speaks for the others.
    let varies = call.mode.has(Ask::TensorParallelInvariant)
        && !(facts.tp_invariant
            && kernel().is_some_and(|kernel| filter::is_tp_invariant(call, kernel.spec())));
    let policy = if varies { policy - VARIANCE_POINTS } else { policy };
    // Where cold kernels wait for the background, they cost a call nothing, and are ranked as they will be once they are warm:
    // what goes before the winner is what gets compiled.
    let inside = call.world.policy.jit.value != JitPolicy::WhenWarm || call.takes_cold;
    let cold = facts.jit && inside && kernel().is_some_and(|kernel| call.is_cold(kernel.spec()));
    let careful = if call.world.is_careful(call.table.info.slot()) { kernel() } else { None };
    let score = Score {
        priority: facts.priority,
        policy,
        perf: findings.points(position),
        jit: if cold { -JIT_POINTS } else { 0.0 },
        reliability: careful
            .map_or(0.0, |kernel| -call.world.health.reliability_penalty(&call.subject(kernel))),
        transform: conversions(facts, transforms),
        fusion: 0.0,
    };
    (score, transforms)
}

/// The sum alone. Of most candidates on most calls three addends are 0 and need not be looked at.
#[inline(always)]
pub(crate) fn total(call: &Call<'_>, position: u16, candidate: &Candidate, findings: &Findings<'_>) -> f64 {
    let facts = &candidate.facts;
    if call.is_special || facts.jit || facts.picks_layouts {
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
    fn what_is_far_slower_loses_everything_however_little_its_figures_are_believed() {
        assert_eq!([0.9, 0.3, 0.05].map(|confidence| perf(160.0, confidence)), [PERF_FLOOR; 3]);
        assert_eq!([perf(100.0, 1.0), perf(100.0, 0.5)], [PERF_BEST, PERF_BEST / 2.0]);
    }

    #[test]
    fn what_is_a_little_slower_loses_as_far_as_that_is_believed() {
        let points = [0.9, 0.3, 0.05].map(|confidence| perf(101.0, confidence));
        assert!(points.is_sorted() && points[0] < -10.0 && points[2] > -1.0, "{points:?}");
    }
}
