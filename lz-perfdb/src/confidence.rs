//! The confidence in a measurement: a pure function of the row, the time and the current environment.

use super::Evidence;
use lz_core::device::Environment;

/// Half-life by age. Drivers and libraries are part of the key, so this only covers conditions that are not recorded: firmware,
/// cooling, other load.
pub const AGE_HALF_LIFE_SECONDS: f64 = 30.0 * 24.0 * 3600.0;

/// Number of samples with a confidence factor of one half.
const HALF_CONFIDENT_SAMPLES: f64 = 5.0;

/// Standard deviation relative to the median with a confidence factor of one half.
const HALF_CONFIDENT_DEVIATION: f64 = 0.25;

/// Confidence from 0 to 1. Increases with samples; decreases with relative variance, age and differences between the recorded and
/// the current environment. An unknown environment costs less than a different one. Invalidated or expired rows have confidence 0.
/// A timestamp in the future counts as now.
pub fn confidence(evidence: &Evidence, now: u64, environment: Environment) -> f64 {
    let timing = &evidence.timing;
    if !evidence.counts_at(now) || timing.check().is_err() {
        return 0.0;
    }
    let samples = timing.samples as f64;
    let by_samples = samples / (samples + HALF_CONFIDENT_SAMPLES);
    let deviation = timing.variance_ns2.sqrt() / timing.median_ns / HALF_CONFIDENT_DEVIATION;
    let by_variance = 1.0 / (1.0 + deviation * deviation);
    let by_age = decay(now.saturating_sub(timing.measured_at));
    by_samples * by_variance * by_age * agreement(evidence.key.environment, environment)
}

/// The remaining share of confidence after this many seconds.
pub fn decay(seconds: u64) -> f64 {
    (-(seconds as f64) / AGE_HALF_LIFE_SECONDS).exp2()
}

/// Power state matters most (clocks), then temperature, then memory pressure.
fn agreement(then: Environment, now: Environment) -> f64 {
    let factor = |same: bool, unknown: bool, differs: f64| {
        if same {
            1.0
        } else if unknown {
            (1.0 + differs) / 2.0
        } else {
            differs
        }
    };
    let temperature = factor(
        then.temperature == now.temperature,
        then.temperature.is_unknown() || now.temperature.is_unknown(),
        0.8,
    );
    let memory = factor(
        then.memory_pressure == now.memory_pressure,
        then.memory_pressure.is_unknown() || now.memory_pressure.is_unknown(),
        0.9,
    );
    let power = factor(then.power == now.power, then.power.is_unknown() || now.power.is_unknown(), 0.6);
    temperature * memory * power
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bucket, EvidenceKey, Setting, Timing};
    use lz_core::device::{PowerState, Temperature};
    use proptest::prelude::*;

    const NOW: u64 = 2_000_000_000;

    fn evidence() -> Evidence {
        Evidence {
            key: EvidenceKey {
                kernel: "a.b".to_owned(),
                kernel_version: "1".to_owned(),
                operation: "norm.rms".to_owned(),
                setting: Setting::default(),
                dtypes: "bf16".to_owned(),
                bucket: Bucket::default(),
                capabilities_hash: String::new(),
                environment: Environment {
                    temperature: Temperature::Warm,
                    power: PowerState::Boost,
                    ..Environment::default()
                },
            },
            timing: Timing {
                median_ns: 1000.0,
                p95_ns: 1100.0,
                variance_ns2: 100.0,
                samples: 20,
                warmup_ns: 0.0,
                measured_at: NOW,
            },
            expires_at: None,
            valid: true,
        }
    }

    fn at(evidence: &Evidence, now: u64) -> f64 {
        confidence(evidence, now, evidence.key.environment)
    }

    #[test]
    fn confidence_at_known_points() {
        let fresh = evidence();
        assert!((at(&fresh, NOW) - 0.8 / 1.0016).abs() < 1e-9, "{}", at(&fresh, NOW));
        let month = NOW + AGE_HALF_LIFE_SECONDS as u64;
        assert!((at(&fresh, month) / at(&fresh, NOW) - 0.5).abs() < 1e-9);
        assert_eq!(at(&fresh, NOW - 1000), at(&fresh, NOW), "a timestamp in the future counts as now");
    }

    #[test]
    fn invalid_and_expired_rows_have_no_confidence() {
        let mut expired = evidence();
        expired.expires_at = Some(NOW);
        assert_eq!(at(&expired, NOW), 0.0);
        assert!(at(&expired, NOW - 1) > 0.0);
        assert_eq!(at(&Evidence { valid: false, ..evidence() }, NOW), 0.0);
        let mut broken = evidence();
        broken.timing.median_ns = f64::NAN;
        assert_eq!(at(&broken, NOW), 0.0);
    }

    #[test]
    fn different_environment_costs_more_than_unknown() {
        let fresh = evidence();
        let same = fresh.key.environment;
        let with = |power| confidence(&fresh, NOW, Environment { power, ..same });
        assert!(with(PowerState::Boost) > with(PowerState::Unknown));
        assert!(with(PowerState::Unknown) > with(PowerState::Throttled));
        let hot = Environment { temperature: Temperature::Hot, ..same };
        assert!(
            confidence(&fresh, NOW, hot) > with(PowerState::Throttled),
            "temperature costs less than clocks"
        );
    }

    proptest! {
        #[test]
        fn confidence_is_a_share_and_monotonic(
            samples in 1u64..100_000, variance in 0.0..1e9f64, age in 0u64..1 << 34, more in 1u64..1000,
        ) {
            let mut one = evidence();
            one.timing.samples = samples;
            one.timing.variance_ns2 = variance;
            let base = at(&one, NOW + age);
            prop_assert!((0.0..=1.0).contains(&base));
            let mut other = one.clone();
            other.timing.samples += more;
            prop_assert!(at(&other, NOW + age) >= base);
            let mut other = one.clone();
            other.timing.variance_ns2 += more as f64;
            prop_assert!(at(&other, NOW + age) <= base);
            prop_assert!(at(&one, NOW + age + more) <= base);
        }
    }
}
