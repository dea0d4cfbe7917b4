//! What is known about a canary: results compared, errors, latencies, and when that suffices for a verdict.

use std::time::Duration;

use serde::Serialize;

use super::{Comparison, Verdict};
use crate::policy::CanaryCriteria;
use lz_core::fork::Mutex;

/// Latencies that are kept of each version.
const MAX_SAMPLES: usize = 512;

/// The results of a canary so far.
#[derive(Debug, Default)]
pub struct CanaryStats(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    totals: CanaryTotals,
    version_ns: Vec<u64>,
    stable_ns: Vec<u64>,
    /// The latest mismatch or error.
    problem: String,
    is_decided: bool,
}

/// Counts of a canary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct CanaryTotals {
    /// Calls of the canary.
    pub calls: u64,
    /// Calls whose results were compared with those of the stable version.
    pub compared: u64,
    /// Compared calls with results outside of the tolerance of the operation.
    pub mismatches: u64,
    /// Calls that failed.
    pub errors: u64,
}

/// A canary for operators.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CanaryReport {
    /// The version, `<id>@<version>`.
    pub kernel: String,
    /// The percentage of calls that it gets now.
    pub percent: u8,
    /// `running`, `promoted` or `rolled_back`.
    pub state: &'static str,
    /// Why it was promoted or rolled back; empty while it runs.
    pub why: String,
    /// Its counts.
    #[serde(flatten)]
    pub totals: CanaryTotals,
    /// The median latency of the canary and of the stable version; 0 without calls.
    pub median_ns: u64,
    /// The median latency of the stable version; 0 without calls.
    pub stable_median_ns: u64,
    /// The latest mismatch or error.
    pub problem: String,
}

impl CanaryStats {
    /// Adds a call of the canary.
    pub(crate) fn add(&self, comparison: &Comparison) {
        let mut state = self.0.lock();
        state.totals.calls += 1;
        state.totals.compared += u64::from(comparison.is_compared);
        push(&mut state.version_ns, comparison.version_time);
        push(&mut state.stable_ns, comparison.stable_time);
        if let Some(error) = &comparison.version_error {
            state.totals.errors += 1;
            state.problem = error.reason.to_string();
        } else if let Some(difference) = &comparison.difference {
            state.totals.mismatches += 1;
            state.problem.clone_from(difference);
        }
    }

    /// Adds the latency of a call of the stable version.
    pub(crate) fn add_stable(&self, time: Duration) {
        push(&mut self.0.lock().stable_ns, Some(time));
    }

    /// The counts.
    pub fn totals(&self) -> CanaryTotals {
        self.0.lock().totals
    }

    /// The median latencies of the canary and of the stable version, and the latest problem.
    pub(crate) fn medians(&self) -> (u64, u64, String) {
        let state = self.0.lock();
        (median(&state.version_ns), median(&state.stable_ns), state.problem.clone())
    }

    /// The verdict, returned once, with its reason.
    pub(crate) fn verdict(&self, criteria: &CanaryCriteria) -> Option<(Verdict, String)> {
        let mut state = self.0.lock();
        if state.is_decided {
            return None;
        }
        let CanaryTotals { calls, compared, mismatches, errors } = state.totals;
        let (own, stable) = (median(&state.version_ns), median(&state.stable_ns));
        let limit = stable as f64 * (1.0 + criteria.max_slowdown_percent / 100.0);
        let problem = &state.problem;
        let verdict = if errors > criteria.max_errors {
            (Verdict::RolledBack, format!("{errors} of {calls} calls failed: {problem}"))
        } else if mismatches > criteria.max_mismatches {
            (Verdict::RolledBack, format!("{mismatches} of {compared} compared results are wrong: {problem}"))
        } else if calls < criteria.calls {
            return None;
        } else if stable > 0 && own as f64 > limit {
            let why = format!("the median latency is {own} ns, and {stable} ns of the stable version");
            (Verdict::RolledBack, why)
        } else {
            let why = format!("{calls} calls, {compared} compared, {mismatches} mismatches, {errors} errors");
            (Verdict::Promoted, why)
        };
        state.is_decided = true;
        Some(verdict)
    }
}

fn push(samples: &mut Vec<u64>, time: Option<Duration>) {
    let Some(ns) = time.map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)) else { return };
    if samples.len() >= MAX_SAMPLES {
        samples.remove(0);
    }
    samples.push(ns);
}

fn median(samples: &[u64]) -> u64 {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lz_core::kernel::KernelError;

    fn criteria() -> CanaryCriteria {
        CanaryCriteria { calls: 3, max_mismatches: 0, max_errors: 0, max_slowdown_percent: 20.0 }
    }

    fn run(version: u64, stable: u64) -> Comparison {
        Comparison {
            is_compared: true,
            version_time: Some(Duration::from_nanos(version)),
            stable_time: Some(Duration::from_nanos(stable)),
            ..Comparison::default()
        }
    }

    fn verdict_of(runs: &[Comparison]) -> Option<Verdict> {
        let stats = CanaryStats::default();
        runs.iter().for_each(|one| stats.add(one));
        let verdict = stats.verdict(&criteria()).map(|(verdict, _)| verdict);
        assert!(stats.verdict(&criteria()).is_none(), "a verdict is returned once");
        verdict
    }

    #[test]
    fn verdicts_follow_the_criteria() {
        let good = || run(100, 100);
        assert_eq!(verdict_of(&[good(), good()]), None);
        assert_eq!(verdict_of(&[good(), good(), good()]), Some(Verdict::Promoted));
        assert_eq!(verdict_of(&[run(130, 100), run(130, 100), run(130, 100)]), Some(Verdict::RolledBack));
        let wrong = Comparison { difference: Some("[0] is 1".to_owned()), ..good() };
        assert_eq!(verdict_of(&[wrong]), Some(Verdict::RolledBack));
        let failed = Comparison { version_error: Some(KernelError::failed("no")), ..good() };
        assert_eq!(verdict_of(&[failed]), Some(Verdict::RolledBack));
    }
}
