//! Versions of one kernel side by side: the share of calls of each, and canaries, which are compared with the stable version
//! until they are promoted or rolled back.
//!
//! A version is a kernel with the id `<id>@<version>`. Nothing here selects or runs anything by itself.

mod canary;
mod compare;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

pub use canary::{CanaryReport, CanaryStats, CanaryTotals};
pub(crate) use compare::{Comparable, ComparedRun, Comparer, Comparison, RunWith};
pub use compare::{CompareResults, KeptResults};

use crate::policy::{Policy, VersionShare};
use crate::registry::Registry;

/// The end of a canary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The version gets all calls.
    Promoted,
    /// The version gets no calls.
    RolledBack,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verdict::Promoted => "promoted",
            Verdict::RolledBack => "rolled back",
        })
    }
}

/// What is known about a version at run time.
#[derive(Debug, Clone, Default)]
pub(crate) struct VersionRecord {
    /// The verdict and its reason, once there is one. It overrides the settings.
    pub verdict: Option<(Verdict, String)>,
    pub stats: Arc<CanaryStats>,
}

/// What is known about versions at run time, by id. Immutable; a change creates a new value.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rollouts(BTreeMap<String, VersionRecord>);

/// How a version takes part in the calls of its stable version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EffectiveShare {
    pub percent: u8,
    /// Whether its results are compared and a verdict is due.
    pub is_canary: bool,
}

impl Rollouts {
    pub fn record(&self, version: &str) -> Option<&VersionRecord> {
        self.0.get(version)
    }

    pub fn records(&self) -> impl Iterator<Item = (&str, &VersionRecord)> {
        self.0.iter().map(|(version, record)| (version.as_str(), record))
    }

    /// With a record for each canary of the policy; `None` if there is one already.
    pub fn with_canaries(&self, policy: &Policy) -> Option<Rollouts> {
        let canaries = policy.versions.iter().filter(|share| share.is_canary).map(|share| &share.version);
        let missing: Vec<&String> = canaries.filter(|version| !self.0.contains_key(*version)).collect();
        if missing.is_empty() {
            return None;
        }
        let mut next = self.clone();
        next.0.extend(missing.into_iter().map(|version| (version.clone(), VersionRecord::default())));
        Some(next)
    }

    /// With a verdict for a version.
    pub fn with_verdict(&self, version: &str, verdict: Verdict, why: &str) -> Rollouts {
        let mut next = self.clone();
        next.0.entry(version.to_owned()).or_default().verdict = Some((verdict, why.to_owned()));
        next
    }

    /// Without what is known about these versions, because their kernels have changed.
    pub fn without(&self, is_changed: impl Fn(&str) -> bool) -> Rollouts {
        let mut next = self.clone();
        next.0.retain(|version, _| !is_changed(version));
        next
    }

    /// The share of a version: by its verdict, otherwise by the policy.
    pub fn share(&self, policy: &Policy, version: &str) -> EffectiveShare {
        if let Some((verdict, _)) = self.record(version).and_then(|record| record.verdict.as_ref()) {
            let percent = if *verdict == Verdict::Promoted { 100 } else { 0 };
            return EffectiveShare { percent, is_canary: false };
        }
        let stated = policy.versions.iter().rev().find(|share| share.version == version);
        stated.map_or(EffectiveShare { percent: 0, is_canary: false }, |share: &VersionShare| {
            EffectiveShare { percent: share.percent, is_canary: share.is_canary && share.percent > 0 }
        })
    }

    /// Whether some calls of a stable version go to another version.
    pub fn divides(&self, policy: &Policy, registry: &Registry, stable: &str) -> bool {
        if policy.versions.is_empty() && self.0.is_empty() {
            return false;
        }
        let mut versions = registry.kernels().filter(|entry| entry.version_of.as_deref() == Some(stable));
        versions.any(|entry| {
            let share = self.share(policy, &entry.spec.id);
            share.is_canary || 0 < share.percent && share.percent < 100
        })
    }
}

/// The versions that share the calls of one stable version of one operation.
#[derive(Debug)]
pub(crate) struct VersionGroup {
    /// The candidate's position.
    pub stable: u16,
    pub shares: Vec<Share>,
    calls: AtomicU64,
}

/// The share of one version.
#[derive(Debug)]
pub(crate) struct Share {
    /// The candidate's position.
    pub position: u16,
    pub percent: u8,
    /// The results so far, for a canary.
    pub canary: Option<Arc<CanaryStats>>,
}

impl VersionGroup {
    pub fn new(stable: u16, shares: Vec<Share>) -> VersionGroup {
        VersionGroup { stable, shares, calls: AtomicU64::new(0) }
    }

    /// The version of the next call; `None` for the stable one. Each hundred calls are divided exactly.
    pub fn draw(&self) -> Option<&Share> {
        /// Spreads the calls of a version over each hundred; coprime to 100.
        const STEP: u64 = 61;
        let number = self.calls.fetch_add(1, Ordering::Relaxed) % 100 * STEP % 100;
        let mut end = 0;
        self.shares.iter().find(|share| {
            end += u64::from(share.percent);
            number < end
        })
    }

    /// Whether the times of the stable version are needed.
    pub fn has_canary(&self) -> bool {
        self.shares.iter().any(|share| share.canary.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_hundred_calls_are_divided_exactly() {
        let share = |position, percent| Share { position, percent, canary: None };
        let group = VersionGroup::new(0, vec![share(1, 10), share(2, 25)]);
        let mut counts = [0; 3];
        for _ in 0..300 {
            counts[group.draw().map_or(0, |share| usize::from(share.position))] += 1;
        }
        assert_eq!(counts, [195, 30, 75]);
        let first: Vec<bool> = (0..20).map(|_| group.draw().is_some()).collect();
        assert!(first.contains(&true) && first.contains(&false), "the calls of a version are spread");
    }
}
