//! The degradation level of the engine: degrades immediately, recovers one level at a time.

use std::fmt;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use super::config::DegradationConfig;
use lz_core::fork::Mutex;

/// What the engine still does. Each level does less than the previous one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum DegradationLevel {
    /// Everything.
    Full = 0,
    /// No background tuning and no compilation.
    NoBackground = 1,
    /// Cached and tabled decisions only; other calls are ranked by priority.
    CachedOnly = 2,
    /// Priorities only: no measurements, no cache.
    PrioritiesOnly = 3,
    /// Reference kernels only.
    ReferencesOnly = 4,
}

impl DegradationLevel {
    /// Every level, healthiest first.
    pub const ALL: [DegradationLevel; 5] =
        [Self::Full, Self::NoBackground, Self::CachedOnly, Self::PrioritiesOnly, Self::ReferencesOnly];

    /// The name used in logs and by `readiness_check`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::NoBackground => "no_background",
            Self::CachedOnly => "cached_only",
            Self::PrioritiesOnly => "priorities_only",
            Self::ReferencesOnly => "references_only",
        }
    }

    /// Whether tuning and compilation may run in the background.
    pub const fn allows_background(self) -> bool {
        matches!(self, Self::Full)
    }

    /// Whether new decisions may use measurements.
    pub const fn allows_scoring(self) -> bool {
        (self as u8) < (Self::CachedOnly as u8)
    }

    /// Whether cached and tabled decisions may be used.
    pub const fn allows_cache(self) -> bool {
        (self as u8) < (Self::PrioritiesOnly as u8)
    }

    /// Whether non-reference kernels may run.
    pub const fn allows_kernels(self) -> bool {
        !matches!(self, Self::ReferencesOnly)
    }

    fn from_number(number: u8) -> DegradationLevel {
        Self::ALL.get(usize::from(number)).copied().unwrap_or(Self::ReferencesOnly)
    }
}

impl fmt::Display for DegradationLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The inputs of the health score.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HealthInputs {
    /// Kernels that are registered.
    pub kernels: u32,
    /// Kernels with a circuit that is not closed.
    pub kernels_troubled: u32,
    /// Backends that are registered.
    pub backends: u32,
    /// Backends whose circuit is not closed.
    pub backends_troubled: u32,
    /// Devices in use.
    pub devices: u32,
    /// Devices whose context is lost.
    pub devices_lost: u32,
    /// Recent internal faults of the engine: a panic in selection, a snapshot that could not be built.
    pub engine_faults: u32,
}

impl HealthInputs {
    /// The health score, from 0 (nothing works) to 100. Kernels, backends and devices count by share, so that one bad kernel of
    /// many weighs little. A population of 0 is unknown and contributes nothing.
    pub fn score(&self) -> f64 {
        let share = |part: u32, whole: u32| {
            if whole == 0 { 0.0 } else { f64::from(part.min(whole)) / f64::from(whole) }
        };
        let lost = 50.0 * share(self.kernels_troubled, self.kernels)
            + 50.0 * share(self.backends_troubled, self.backends)
            + 100.0 * share(self.devices_lost, self.devices)
            + 10.0 * f64::from(self.engine_faults);
        (100.0 - lost).clamp(0.0, 100.0)
    }
}

/// A change of level.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LevelChange {
    /// Before.
    pub from: DegradationLevel,
    /// After.
    pub to: DegradationLevel,
    /// The score that caused it.
    pub score: f64,
}

/// The level with hysteresis. Reading the level is one atomic load.
#[derive(Debug)]
pub struct Degradation {
    config: DegradationConfig,
    level: AtomicU8,
    /// How many times each level was entered.
    entered: [AtomicU64; 5],
    better_since: Mutex<Option<Duration>>,
}

impl Degradation {
    /// Starts at full.
    pub fn new(config: DegradationConfig) -> Degradation {
        Degradation {
            config,
            level: AtomicU8::new(0),
            entered: Default::default(),
            better_since: Mutex::new(None),
        }
    }

    /// The current level.
    pub fn level(&self) -> DegradationLevel {
        DegradationLevel::from_number(self.level.load(Ordering::Acquire))
    }

    /// How many times a level was entered.
    pub fn times_entered(&self, level: DegradationLevel) -> u64 {
        self.entered[level as usize].load(Ordering::Relaxed)
    }

    /// The level for a score, without hysteresis.
    pub fn level_of(&self, score: f64) -> DegradationLevel {
        let missed = self.config.thresholds.iter().filter(|threshold| score < **threshold).count();
        DegradationLevel::from_number(missed as u8)
    }

    /// When the next recovery step is due if the score stays.
    pub fn due_at(&self) -> Option<Duration> {
        let since = *self.better_since.lock();
        since.map(|since| since.saturating_add(self.config.hold))
    }

    /// Updates the level. Degrades immediately, by as many levels as needed; recovers one level after the score has been above
    /// threshold plus margin for the hold time.
    pub fn assess(&self, score: f64, now: Duration) -> Option<LevelChange> {
        let mut better_since = self.better_since.lock();
        let from = self.level();
        let worse = self.level_of(score);
        if worse > from {
            *better_since = None;
            return Some(self.enter(from, worse, score));
        }
        let Some(threshold) =
            (from as usize).checked_sub(1).and_then(|step| self.config.thresholds.get(step))
        else {
            *better_since = None;
            return None;
        };
        // Clamped, so that full recovery is always reachable.
        if score < (threshold + self.config.margin).min(100.0) {
            *better_since = None;
            return None;
        }
        let since = *better_since.get_or_insert(now);
        if now.saturating_sub(since) < self.config.hold {
            return None;
        }
        let to = DegradationLevel::from_number(from as u8 - 1);
        *better_since = (to != DegradationLevel::Full).then_some(now);
        Some(self.enter(from, to, score))
    }

    fn enter(&self, from: DegradationLevel, to: DegradationLevel, score: f64) -> LevelChange {
        self.level.store(to as u8, Ordering::Release);
        self.entered[to as usize].fetch_add(1, Ordering::Relaxed);
        if to > from {
            tracing::warn!(target: "lz::health", %from, %to, score, "engine degraded");
        } else {
            tracing::info!(target: "lz::health", %from, %to, score, "engine recovered");
        }
        LevelChange { from, to, score }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn degrades_immediately_and_recovers_one_level_at_a_time() {
        let degradation = Degradation::new(DegradationConfig::default());
        assert_eq!(degradation.assess(100.0, seconds(0)), None);
        let fall = degradation.assess(10.0, seconds(1)).unwrap();
        assert_eq!((fall.from, fall.to), (DegradationLevel::Full, DegradationLevel::ReferencesOnly));
        let mut seen = Vec::new();
        for second in 2..200 {
            if let Some(step) = degradation.assess(100.0, seconds(second)) {
                seen.push((second, step.to));
            }
        }
        use DegradationLevel::{CachedOnly, Full, NoBackground, PrioritiesOnly};
        assert_eq!(seen, [(32, PrioritiesOnly), (62, CachedOnly), (92, NoBackground), (122, Full)]);
        assert_eq!(degradation.times_entered(DegradationLevel::ReferencesOnly), 1);
        assert_eq!(degradation.times_entered(Full), 1);
        assert_eq!(degradation.due_at(), None);
    }

    #[test]
    fn oscillating_score_does_not_flap() {
        let degradation = Degradation::new(DegradationConfig::default());
        for second in 0..600 {
            degradation.assess(if second % 2 == 0 { 79.0 } else { 84.0 }, seconds(second));
        }
        assert_eq!(degradation.level(), DegradationLevel::NoBackground);
        assert_eq!(degradation.times_entered(DegradationLevel::NoBackground), 1);
        assert_eq!(degradation.times_entered(DegradationLevel::Full), 0);
    }

    #[test]
    fn score_is_computed_from_shares() {
        let healthy = HealthInputs { kernels: 32, backends: 4, devices: 1, ..HealthInputs::default() };
        assert_eq!(healthy.score(), 100.0);
        assert!(HealthInputs { kernels_troubled: 1, ..healthy }.score() > 95.0);
        assert_eq!(HealthInputs { backends_troubled: 4, kernels_troubled: 32, ..healthy }.score(), 0.0);
        assert_eq!(HealthInputs { devices_lost: 1, ..healthy }.score(), 0.0);
        assert_eq!(HealthInputs { devices_lost: 1, devices: 8, ..healthy }.score(), 87.5);
        assert_eq!(HealthInputs { engine_faults: 3, ..healthy }.score(), 70.0);
        assert_eq!(
            HealthInputs { kernels_troubled: 9, ..HealthInputs::default() }.score(),
            100.0,
            "an unknown population contributes nothing"
        );
    }

    #[test]
    fn each_level_allows_less() {
        let allowed = |level: DegradationLevel| {
            [level.allows_background(), level.allows_scoring(), level.allows_cache(), level.allows_kernels()]
                .iter()
                .filter(|allowed| **allowed)
                .count()
        };
        assert_eq!(DegradationLevel::ALL.map(allowed), [4, 3, 2, 1, 0]);
    }

    proptest! {
        #[test]
        fn level_is_never_better_than_the_score_and_recovers_slowly(
            scores in proptest::collection::vec((0.0..=100.0f64, 0u64..40), 1..80)
        ) {
            let degradation = Degradation::new(DegradationConfig::default());
            let (mut now, mut last_rise) = (0, None::<u64>);
            for (score, wait) in scores {
                now += wait;
                let before = degradation.level();
                let step = degradation.assess(score, seconds(now));
                let after = degradation.level();
                prop_assert!(after >= degradation.level_of(score));
                prop_assert_eq!(step.is_some(), before != after);
                if after < before {
                    prop_assert_eq!(before as u8 - after as u8, 1);
                    prop_assert!(last_rise.is_none_or(|rise| now - rise >= 30));
                    last_rise = Some(now);
                }
            }
        }
    }
}
