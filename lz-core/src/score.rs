//! How good a kernel is for a call, as a sum whose addends can be seen.
//!
//! A kernel's score depends on itself, the call's cell and the state of the world, never on whether other kernels can run
//! the call: so a cached decision stays right when a worse kernel becomes possible.

use serde::Serialize;

use crate::engine::call::Call;
use crate::engine::table::Candidate;
use crate::evidence::{Measured, Question};
use crate::filter;
use crate::mode::Ask;
use crate::plan::Transforms;

/// What a cold compilation costs where it is allowed inside a call.
const JIT_POINTS: f64 = 20.0;
/// What a kernel loses that does not promise what is asked for, where that is forgiven.
const VARIANCE_POINTS: f64 = 500.0;
/// What the fastest measured kernel gains.
const PERF_BEST: f64 = 12.0;
/// What a kernel loses that takes twice as long as the fastest, up to the floor.
const PERF_SLOPE: f64 = 60.0;
/// The least that measurements give.
const PERF_FLOOR: f64 = -30.0;

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
pub(crate) struct Findings {
    /// One a candidate; empty when nothing is known of any.
    pub measured: Vec<Option<Measured>>,
    fastest: f64,
}

impl Findings {
    pub fn of(call: &Call<'_>) -> Findings {
        let mut findings = Findings { measured: Vec::new(), fastest: f64::INFINITY };
        let (Some(evidence), Some(device)) = (&call.world.evidence, call.device) else { return findings };
        if !call.world.level.allows_scoring() {
            return findings;
        }
        let question = Question {
            operation: call.table.info,
            context: call.context,
            bucket: call.bucket.words(),
            device,
        };
        evidence.findings(&question, &mut |finding| {
            let usable = finding.measured.confidence > 0.0 && finding.measured.median_ns > 0.0;
            let position = call.table.position_of(&call.world.registry, finding.kernel).filter(|_| usable);
            let Some((position, candidate)) =
                position.and_then(|at| Some((at, call.table.candidates.get(usize::from(at))?)))
            else {
                return;
            };
            let Some(kernel) = call.world.registry.compiled(candidate.kernel) else { return };
            let spec = kernel.spec();
            if spec.version != finding.version || spec.capabilities_hash != finding.capabilities_hash {
                return;
            }
            if findings.measured.is_empty() {
                findings.measured.resize(call.table.candidates.len(), None);
            }
            let Some(place) = findings.measured.get_mut(usize::from(position)) else { return };
            if place.is_none_or(|known| known.confidence < finding.measured.confidence) {
                *place = Some(finding.measured);
            }
        });
        let medians = findings.measured.iter().flatten().map(|measured| measured.median_ns);
        findings.fastest = medians.fold(f64::INFINITY, f64::min);
        findings
    }

    fn points(&self, position: u16) -> Option<f64> {
        let measured = self.measured.get(usize::from(position))?.as_ref()?;
        let slowdown = measured.median_ns / self.fastest - 1.0;
        Some(measured.confidence.clamp(0.0, 1.0) * (PERF_BEST - PERF_SLOPE * slowdown).max(PERF_FLOOR))
    }
}

/// The score of one candidate, and what its adapter would have to convert.
#[inline(always)]
pub(crate) fn score(
    call: &Call<'_>,
    position: u16,
    candidate: &Candidate,
    findings: &Findings,
) -> (Score, Transforms) {
    let facts = &candidate.facts;
    let kernel = || call.world.registry.compiled(candidate.kernel);
    let transforms = filter::transforms(call, facts, kernel);
    let policy = candidate.points + call.points.get(usize::from(position)).copied().unwrap_or(0.0);
    // With best effort those that promise invariance come first, whatever else speaks for the others.
    let varies = call.mode.has(Ask::TensorParallelInvariant)
        && !(facts.tp_invariant
            && kernel().is_some_and(|kernel| filter::is_tp_invariant(call, kernel.spec())));
    let policy = if varies { policy - VARIANCE_POINTS } else { policy };
    let cold = facts.jit && kernel().is_some_and(|kernel| call.is_cold(kernel.spec()));
    let careful = if call.world.careful { kernel() } else { None };
    let score = Score {
        priority: facts.priority,
        policy,
        perf: findings.points(position),
        jit: if cold { -JIT_POINTS } else { 0.0 },
        reliability: careful
            .map_or(0.0, |kernel| -call.world.health.reliability_penalty(&call.subject(kernel))),
        transform: -facts.transform_cost * f64::from(transforms.count()),
        fusion: 0.0,
    };
    (score, transforms)
}
