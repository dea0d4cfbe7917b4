//! The numbers that health is judged by.

use std::time::Duration;

/// When one circuit opens, how long it stays open, and how it closes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CircuitConfig {
    /// Failures, not yet forgiven, that open it.
    pub failure_threshold: u32,
    /// Probes that must succeed before it closes. Taken as `max_probes` when larger: it could never close otherwise.
    pub success_threshold: u32,
    /// Probes that may run in one half-open period.
    pub max_probes: u32,
    /// How long it stays open the first time; each further time twice as long.
    pub base_backoff: Duration,
    /// The longest that it stays open.
    pub max_backoff: Duration,
    /// A half-open period in which no probe comes back for this long counts as failed.
    pub probe_timeout: Duration,
    /// Successes in a row that forgive the failures of a closed circuit. More than one, so that a kernel that fails every
    /// second time is found out.
    pub recovery_streak: u32,
    /// Successes in a row after which earlier openings no longer lengthen the back-off, and the record is dropped.
    pub forgiveness_streak: u32,
}

impl Default for CircuitConfig {
    fn default() -> Self {
        CircuitConfig {
            failure_threshold: 5,
            success_threshold: 3,
            max_probes: 3,
            base_backoff: Duration::from_secs(30),
            max_backoff: Duration::from_secs(30 * 60),
            probe_timeout: Duration::from_secs(60),
            recovery_streak: 3,
            forgiveness_streak: 20,
        }
    }
}

impl CircuitConfig {
    /// How long the `openings`-th opening in a row lasts, counted from 1.
    pub fn backoff(&self, openings: u32) -> Duration {
        let doublings = openings.saturating_sub(1).min(31);
        self.base_backoff.checked_mul(1 << doublings).unwrap_or(self.max_backoff).min(self.max_backoff)
    }

    pub(super) fn successes_to_close(&self) -> u32 {
        self.success_threshold.clamp(1, self.max_probes.max(1))
    }
}

/// How failures weigh in the score.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PenaltyConfig {
    /// For each failure of this kernel in this bucket that is not forgiven.
    pub per_failure: f64,
    /// For each earlier opening of this circuit that is not forgiven.
    pub per_opening: f64,
    /// For each other bucket in which this kernel is not closed.
    pub per_other_bucket: f64,
    /// The most that health takes away.
    pub most: f64,
}

impl Default for PenaltyConfig {
    fn default() -> Self {
        PenaltyConfig { per_failure: 4.0, per_opening: 5.0, per_other_bucket: 2.0, most: 30.0 }
    }
}

/// When the engine as a whole steps back. The score goes from 0 to 100.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DegradationConfig {
    /// Below these scores: no background work; cached and tabled only; priorities alone; references only.
    pub thresholds: [f64; 4],
    /// How far above a threshold the score must be to step up again.
    pub margin: f64,
    /// How long it must stay there, for each single step.
    pub hold: Duration,
    /// How long a fault of the engine itself counts.
    pub fault_window: Duration,
}

impl Default for DegradationConfig {
    fn default() -> Self {
        DegradationConfig {
            thresholds: [80.0, 60.0, 40.0, 20.0],
            margin: 5.0,
            hold: Duration::from_secs(30),
            fault_window: Duration::from_secs(60),
        }
    }
}

/// Everything that health is judged by.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HealthConfig {
    /// Circuits of kernels.
    pub kernel: CircuitConfig,
    /// Circuits of backends; only fatal failures count, and by default one is enough.
    pub backend: CircuitConfig,
    /// The score.
    pub penalty: PenaltyConfig,
    /// The engine as a whole.
    pub degradation: DegradationConfig,
    /// The most records that are kept; a kernel that fails in ever new shapes must not fill the memory.
    pub max_circuits: usize,
}

impl Default for HealthConfig {
    fn default() -> Self {
        HealthConfig {
            kernel: CircuitConfig::default(),
            backend: CircuitConfig {
                failure_threshold: 1,
                success_threshold: 1,
                max_probes: 1,
                ..CircuitConfig::default()
            },
            penalty: PenaltyConfig::default(),
            degradation: DegradationConfig::default(),
            max_circuits: 4096,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn back_off_doubles_up_to_its_cap() {
        let config = CircuitConfig::default();
        let seconds: Vec<u64> = (0..10).map(|openings| config.backoff(openings).as_secs()).collect();
        assert_eq!(seconds, [30, 30, 60, 120, 240, 480, 960, 1800, 1800, 1800]);
        assert_eq!(config.backoff(u32::MAX), config.max_backoff);
        let long = CircuitConfig { base_backoff: Duration::MAX, ..config };
        assert_eq!(long.backoff(7), long.max_backoff);
    }
}
