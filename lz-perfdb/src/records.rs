//! The records of one kernel in one bucket, and merging of measurements.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Bucket;
use lz_core::device::{DeviceSpec, Environment, Platform};

/// The machine and software that a measurement is valid for.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    /// The device's stable identity.
    pub device_uuid: String,
    /// The driver's version; empty where there is none.
    pub driver: String,
    /// The toolkit's version; empty where there is none.
    pub toolkit: String,
    /// Torch's version; empty when torch is not loaded.
    pub torch: String,
    /// LayerZero's own version.
    pub layerzero: String,
}

impl Setting {
    /// The setting of a device, with this build's own version. `torch` is empty when torch is not loaded.
    pub fn of(device: &DeviceSpec, torch: &str) -> Setting {
        Setting {
            device_uuid: device.uuid.clone(),
            driver: device.driver_version().to_owned(),
            toolkit: device.toolkit_version().to_owned(),
            torch: torch.to_owned(),
            layerzero: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    /// The setting under which a fleet shares the measurements of all devices of one type.
    pub fn of_type(device: &DeviceSpec, torch: &str) -> Setting {
        Setting { device_uuid: device_type(device), ..Setting::of(device, torch) }
    }
}

/// The name that equal devices of several machines have in common: the identity of a CPU, which depends on its model, or the name and
/// the architecture of an accelerator.
pub fn device_type(device: &DeviceSpec) -> String {
    match device.platform() {
        Platform::Cpu => device.uuid.clone(),
        _ => format!("{} {}", device.name, device.hardware_signature()),
    }
}

/// The key of a measurement.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvidenceKey {
    /// The kernel.
    pub kernel: String,
    /// Its version.
    pub kernel_version: String,
    /// The operation.
    pub operation: String,
    /// Machine and software.
    pub setting: Setting,
    /// The dtypes of the call, in the engine's notation.
    pub dtypes: String,
    /// The packed context bucket.
    pub bucket: Bucket,
    /// Digest of the backend's capability descriptor.
    pub capabilities_hash: String,
    /// The environment at the time.
    pub environment: Environment,
}

/// Statistics of a set of runs. Times are in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timing {
    /// Median.
    pub median_ns: f64,
    /// 95th percentile.
    pub p95_ns: f64,
    /// The variance of the times, in square nanoseconds.
    pub variance_ns2: f64,
    /// Number of timed runs.
    pub samples: u64,
    /// One-time cost of the first call (compilation, warm-up).
    pub warmup_ns: f64,
    /// When, in seconds since 1970.
    pub measured_at: u64,
}

impl Timing {
    /// Merges two sets of runs; commutative. Median and percentile of a union cannot be computed from those of its parts, so they
    /// are weighted by samples. The warm-up cost is the maximum.
    #[must_use]
    pub fn merged(&self, other: &Timing) -> Timing {
        let samples = self.samples.saturating_add(other.samples);
        let (own, others) = (self.samples as f64, other.samples as f64);
        let total = (own + others).max(1.0);
        let weighted = |a: f64, b: f64| (a * own + b * others) / total;
        let median_ns = weighted(self.median_ns, other.median_ns);
        // Law of total variance: variance within the parts plus variance between them.
        let spread = |timing: &Timing| timing.variance_ns2 + (timing.median_ns - median_ns).powi(2);
        Timing {
            median_ns,
            p95_ns: weighted(self.p95_ns, other.p95_ns),
            variance_ns2: weighted(spread(self), spread(other)),
            samples,
            warmup_ns: self.warmup_ns.max(other.warmup_ns),
            measured_at: self.measured_at.max(other.measured_at),
        }
    }

    /// Validates the values; returns the first problem.
    pub fn check(&self) -> Result<(), Rejection> {
        let numbers = [
            ("median_ns", self.median_ns),
            ("p95_ns", self.p95_ns),
            ("variance_ns2", self.variance_ns2),
            ("warmup_ns", self.warmup_ns),
        ];
        for (field, value) in numbers {
            if !value.is_finite() || value < 0.0 {
                return Err(Rejection {
                    field,
                    why: format!("{value} is not a finite number of at least 0"),
                });
            }
        }
        if self.median_ns == 0.0 {
            return Err(Rejection { field: "median_ns", why: "must be greater than 0".to_owned() });
        }
        if self.samples == 0 {
            return Err(Rejection { field: "samples", why: "must be at least 1".to_owned() });
        }
        if i64::try_from(self.samples).is_err() || i64::try_from(self.measured_at).is_err() {
            return Err(Rejection { field: "samples", why: "the number is out of range".to_owned() });
        }
        Ok(())
    }
}

/// Why a record is rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// The invalid field.
    pub field: &'static str,
    /// What is wrong with it.
    pub why: String,
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`: {}", self.field, self.why)
    }
}

impl std::error::Error for Rejection {}

/// A measurement to be stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measurement {
    /// Its key.
    pub key: EvidenceKey,
    /// The statistics.
    pub timing: Timing,
    /// Expiry in seconds since 1970: set for nightly builds, whose version does not distinguish days.
    pub expires_at: Option<u64>,
}

impl Measurement {
    /// Validates the record; returns the first problem.
    pub fn check(&self) -> Result<(), Rejection> {
        for (field, text) in [("kernel", &self.key.kernel), ("operation", &self.key.operation)] {
            if text.is_empty() {
                return Err(Rejection { field, why: "is empty".to_owned() });
            }
        }
        self.timing.check()
    }
}

/// A stored measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Evidence {
    /// Its key.
    pub key: EvidenceKey,
    /// The statistics.
    pub timing: Timing,
    /// Expiry in seconds since 1970.
    pub expires_at: Option<u64>,
    /// False once it has been invalidated.
    pub valid: bool,
}

impl Evidence {
    /// Whether it is valid at `now`.
    pub fn counts_at(&self, now: u64) -> bool {
        self.valid && self.expires_at.is_none_or(|end| now < end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn timing() -> impl Strategy<Value = Timing> {
        (1.0..1e9f64, 1.0..1e9f64, 0.0..1e12f64, 1u64..10_000, 0.0..1e10f64, 0u64..1 << 40).prop_map(
            |(median_ns, p95_ns, variance_ns2, samples, warmup_ns, measured_at)| Timing {
                median_ns,
                p95_ns,
                variance_ns2,
                samples,
                warmup_ns,
                measured_at,
            },
        )
    }

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-6 * a.abs().max(b.abs()).max(1.0)
    }

    proptest! {
        #[test]
        fn merge_is_commutative(a in timing(), b in timing(), c in timing()) {
            let (left, right) = (a.merged(&b).merged(&c), c.merged(&a).merged(&b));
            prop_assert!(near(left.median_ns, right.median_ns) && near(left.p95_ns, right.p95_ns));
            prop_assert!(near(left.variance_ns2, right.variance_ns2));
            prop_assert_eq!((left.samples, left.measured_at), (right.samples, right.measured_at));
            prop_assert!(left.check().is_ok());
        }

        #[test]
        fn merged_median_is_between_its_parts(a in timing(), b in timing()) {
            let merged = a.merged(&b);
            let (low, high) = (a.median_ns.min(b.median_ns), a.median_ns.max(b.median_ns));
            prop_assert!(merged.median_ns >= low * (1.0 - 1e-9) && merged.median_ns <= high * (1.0 + 1e-9));
        }
    }

    #[test]
    fn merged_variance_includes_the_distance_of_medians() {
        let part = |median_ns| Timing {
            median_ns,
            p95_ns: median_ns,
            variance_ns2: 0.0,
            samples: 10,
            warmup_ns: 0.0,
            measured_at: 0,
        };
        assert_eq!(part(100.0).merged(&part(300.0)).variance_ns2, 10_000.0);
    }

    #[test]
    fn invalid_fields_are_reported() {
        let good = Timing {
            median_ns: 1.0,
            p95_ns: 1.0,
            variance_ns2: 0.0,
            samples: 1,
            warmup_ns: 0.0,
            measured_at: 0,
        };
        assert_eq!(good.check(), Ok(()));
        let field = |timing: Timing| timing.check().unwrap_err().field;
        assert_eq!(field(Timing { median_ns: f64::NAN, ..good }), "median_ns");
        assert_eq!(field(Timing { median_ns: 0.0, ..good }), "median_ns");
        assert_eq!(field(Timing { p95_ns: f64::INFINITY, ..good }), "p95_ns");
        assert_eq!(field(Timing { variance_ns2: -1.0, ..good }), "variance_ns2");
        assert_eq!(field(Timing { samples: 0, ..good }), "samples");
    }
}
