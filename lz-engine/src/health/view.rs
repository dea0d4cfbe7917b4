//! The reader's view of health: immutable, read without a lock, replaced on every change.

use std::collections::HashMap;
use std::time::Duration;

use super::config::{CircuitConfig, HealthConfig, PenaltyConfig};
use super::permit::{Refusal, RefusalScope, Subject};
use super::registry::{Record, Registry};
use lz_perfdb::HealthState;

/// The status of a kernel's circuits, for the filter and for `explain`. Claims no probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CircuitStatus {
    /// Calls may run.
    Closed,
    /// A call may be granted a probe.
    Probing,
    /// Calls are refused.
    Refused(Refusal),
}

#[derive(Debug, Clone)]
struct BreakerView {
    version: String,
    state: HealthState,
    failures: u32,
    openings: u32,
    lost: bool,
    tripped: bool,
    next_probe_at: Option<Duration>,
    last_error: String,
}

#[derive(Debug, Default)]
pub(super) struct View {
    kernels: HashMap<String, HashMap<Box<[u64]>, BreakerView>>,
    backends: HashMap<String, BreakerView>,
    devices: HashMap<String, BreakerView>,
}

/// The values of the atomics that are read on every call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Totals {
    pub tracked: u32,
    pub blocking: u32,
    pub due_at: Option<Duration>,
}

impl Totals {
    pub fn of(registry: &Registry, config: &HealthConfig) -> Totals {
        let mut totals = Totals { tracked: 0, blocking: 0, due_at: None };
        let mut count = |record: &Record, config: &CircuitConfig| {
            totals.tracked += 1;
            totals.blocking += u32::from(record.circuit.state() != HealthState::Closed);
            totals.due_at = match (totals.due_at, record.circuit.due_at(config)) {
                (Some(known), Some(due)) => Some(known.min(due)),
                (known, due) => known.or(due),
            };
        };
        registry.kernels.values().flat_map(HashMap::values).for_each(|record| count(record, &config.kernel));
        registry
            .backends
            .values()
            .chain(registry.devices.values())
            .for_each(|record| count(record, &config.backend));
        totals
    }
}

impl View {
    pub fn of(registry: &Registry) -> View {
        let breakers = |records: &HashMap<String, Record>| {
            records.iter().map(|(name, record)| (name.clone(), BreakerView::of(record))).collect()
        };
        let kernels = registry.kernels.iter().map(|(kernel, buckets)| {
            let breakers = buckets.iter().map(|(bucket, record)| (bucket.clone(), BreakerView::of(record)));
            (kernel.clone(), breakers.collect())
        });
        View {
            kernels: kernels.collect(),
            backends: breakers(&registry.backends),
            devices: breakers(&registry.devices),
        }
    }

    /// The worst of the three circuits decides; half-open allows probing if the others do not refuse.
    pub fn circuit_status(&self, subject: &Subject<'_>, now: Duration) -> CircuitStatus {
        let device = self.devices.get(subject.device);
        let backend =
            self.backends.get(subject.backend).filter(|breaker| breaker.version == subject.backend_version);
        let mut circuit_status = CircuitStatus::Closed;
        for (scope, name, breaker) in [
            (RefusalScope::Device, subject.device, device),
            (RefusalScope::Backend, subject.backend, backend),
            (RefusalScope::Kernel, subject.kernel, self.kernel(subject)),
        ] {
            let Some(breaker) = breaker else { continue };
            match breaker.state {
                HealthState::Closed => {}
                HealthState::Open if breaker.lost || breaker.next_probe_at.is_none_or(|due| now < due) => {
                    return CircuitStatus::Refused(breaker.refusal(scope, name, now));
                }
                HealthState::Open | HealthState::HalfOpen => circuit_status = CircuitStatus::Probing,
            }
        }
        circuit_status
    }

    /// Whether there is a record of a kernel, its backend, or any device.
    pub fn has_failure_record(&self, kernel: &str, backend: &str) -> bool {
        !self.devices.is_empty() || self.kernels.contains_key(kernel) || self.backends.contains_key(backend)
    }

    /// Whether a success of this call must be recorded.
    pub fn has_record(&self, subject: &Subject<'_>) -> bool {
        self.kernel(subject).is_some() || self.backends.contains_key(subject.backend)
    }

    /// The last recorded error of the kernel in this bucket; otherwise of its backend, or of the kernel in other
    /// buckets.
    pub fn last_failure(&self, subject: &Subject<'_>) -> Option<String> {
        let error_of =
            |breaker: &BreakerView| (!breaker.last_error.is_empty()).then(|| breaker.last_error.clone());
        let backend =
            self.backends.get(subject.backend).filter(|breaker| breaker.version == subject.backend_version);
        let own = self.kernel(subject).and_then(error_of);
        let elsewhere = || {
            // Buckets have no order; the minimum is deterministic.
            let buckets = self.kernels.get(subject.kernel)?.values();
            let others =
                buckets.filter(|breaker| breaker.version == subject.kernel_version).filter_map(error_of);
            others.min().map(|error| format!("on other calls: {error}"))
        };
        own.or_else(|| backend.and_then(error_of)).or_else(elsewhere)
    }

    fn kernel(&self, subject: &Subject<'_>) -> Option<&BreakerView> {
        let breaker = self.kernels.get(subject.kernel)?.get(subject.bucket)?;
        (breaker.version == subject.kernel_version).then_some(breaker)
    }

    /// A half-open circuit has no penalty for its own failures: otherwise its probe might never be selected.
    pub fn penalty(&self, subject: &Subject<'_>, config: &PenaltyConfig) -> f64 {
        let Some(buckets) = self.kernels.get(subject.kernel) else { return 0.0 };
        let own = self.kernel(subject).filter(|breaker| breaker.state == HealthState::Closed).map_or(
            0.0,
            |breaker| {
                f64::from(breaker.failures) * config.per_failure
                    + f64::from(breaker.openings) * config.per_opening
            },
        );
        let others = buckets
            .iter()
            .filter(|(bucket, breaker)| {
                bucket.as_ref() != subject.bucket
                    && breaker.version == subject.kernel_version
                    && breaker.state != HealthState::Closed
            })
            .count();
        (own + others as f64 * config.per_other_bucket).min(config.max_penalty)
    }
}

impl BreakerView {
    fn of(record: &Record) -> BreakerView {
        let circuit = &record.circuit;
        BreakerView {
            version: record.version.clone(),
            state: circuit.state(),
            failures: circuit.failures(),
            openings: circuit.openings(),
            lost: circuit.is_lost(),
            tripped: circuit.opened_at_once(),
            next_probe_at: circuit.next_probe_at(),
            last_error: circuit.last_error().to_owned(),
        }
    }

    fn refusal(&self, scope: RefusalScope, name: &str, now: Duration) -> Refusal {
        Refusal {
            scope,
            name: name.to_owned(),
            failures: self.failures,
            last_error: self.last_error.clone(),
            retry_in: self.next_probe_at.map(|due| due.saturating_sub(now)),
            opened_at_once: self.tripped,
        }
    }
}
