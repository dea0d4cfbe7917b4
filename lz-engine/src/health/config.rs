//! Thresholds and timeouts of health.

use std::time::Duration;

/// Thresholds and timeouts of a circuit breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CircuitConfig {
    /// Unforgiven failures that open it.
    pub failure_threshold: u32,
    /// Successful probes that close it. Clamped to `max_probes`: otherwise it could never close.
    pub success_threshold: u32,
    /// Maximum number of probes per half-open period.
    pub max_probes: u32,
    /// First backoff; doubles with each opening.
    pub base_backoff: Duration,
    /// Maximum backoff.
    pub max_backoff: Duration,
    /// A half-open period without probe activity for this long counts as failed.
    pub probe_timeout: Duration,
    /// Consecutive successes that forgive the failures of a closed circuit. More than one, so that a kernel that fails every
    /// second time still opens it.
    pub recovery_streak: u32,
    /// Consecutive successes after which earlier openings no longer extend the backoff, and the record is removed.
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
    /// The backoff of the `openings`-th consecutive opening, counted from 1.
    pub fn backoff(&self, openings: u32) -> Duration {
        let doublings = openings.saturating_sub(1).min(31);
        self.base_backoff.checked_mul(1 << doublings).unwrap_or(self.max_backoff).min(self.max_backoff)
    }

    pub(super) fn successes_to_close(&self) -> u32 {
        self.success_threshold.clamp(1, self.max_probes.max(1))
    }
}

/// Score penalties for failures.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PenaltyConfig {
    /// Per unforgiven failure of this kernel in this bucket.
    pub per_failure: f64,
    /// Per unforgiven opening of this circuit.
    pub per_opening: f64,
    /// Per other bucket in which this kernel's circuit is not closed.
    pub per_other_bucket: f64,
    /// Maximum penalty.
    pub max_penalty: f64,
}

impl Default for PenaltyConfig {
    fn default() -> Self {
        PenaltyConfig { per_failure: 4.0, per_opening: 5.0, per_other_bucket: 2.0, max_penalty: 30.0 }
    }
}

/// Thresholds of the degradation level. The health score ranges from 0 to 100.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DegradationConfig {
    /// Score below which each level starts: no background work; cached and tabled only; priorities only; references only.
    pub thresholds: [f64; 4],
    /// Hysteresis: how far above a threshold the score must be to recover a level.
    pub margin: f64,
    /// How long the score must stay there, per level.
    pub hold: Duration,
    /// How long an internal fault of the engine counts.
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

/// Configuration of health.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HealthConfig {
    /// Circuits of kernels.
    pub kernel: CircuitConfig,
    /// Circuits of backends; only fatal failures count, and by default one opens it.
    pub backend: CircuitConfig,
    /// Score penalties.
    pub penalty: PenaltyConfig,
    /// The degradation level.
    pub degradation: DegradationConfig,
    /// Maximum number of records, so that a kernel that fails in many shapes cannot exhaust memory.
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
    fn backoff_doubles_up_to_its_maximum() {
        let config = CircuitConfig::default();
        let seconds: Vec<u64> = (0..10).map(|openings| config.backoff(openings).as_secs()).collect();
        assert_eq!(seconds, [30, 30, 60, 120, 240, 480, 960, 1800, 1800, 1800]);
        assert_eq!(config.backoff(u32::MAX), config.max_backoff);
        let long = CircuitConfig { base_backoff: Duration::MAX, ..config };
        assert_eq!(long.backoff(7), long.max_backoff);
    }
}
