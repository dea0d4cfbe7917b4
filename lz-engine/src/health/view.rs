//! What selection sees of health: an immutable picture that is read without a lock and replaced whole on every change.

use std::collections::HashMap;
use std::time::Duration;

use super::config::{CircuitConfig, HealthConfig, PenaltyConfig};
use super::permit::{Refusal, RefusalScope, Subject};
use super::registry::{Record, Registry};
use lz_perfdb::HealthState;

/// How a kernel stands, for the filter and for `explain`. Asking changes nothing and claims no probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It may be called.
    Closed,
    /// It may be tried: a call may be granted a probe.
    Probing,
    /// It may not be called.
    Refused(Refusal),
}

#[derive(Debug, Clone)]
struct Gate {
    version: String,
    state: HealthState,
    failures: u32,
    openings: u32,
    lost: bool,
    at_once: bool,
    next_probe_at: Option<Duration>,
    last_error: String,
}

#[derive(Debug, Default)]
pub(super) struct View {
    kernels: HashMap<String, HashMap<Box<[u64]>, Gate>>,
    backends: HashMap<String, Gate>,
    devices: HashMap<String, Gate>,
}

/// What the few words that are read on every call should say.
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
        let gates = |records: &HashMap<String, Record>| {
            records.iter().map(|(name, record)| (name.clone(), Gate::of(record))).collect()
        };
        let kernels = registry.kernels.iter().map(|(kernel, buckets)| {
            let gates = buckets.iter().map(|(bucket, record)| (bucket.clone(), Gate::of(record)));
            (kernel.clone(), gates.collect())
        });
        View {
            kernels: kernels.collect(),
            backends: gates(&registry.backends),
            devices: gates(&registry.devices),
        }
    }

    /// The worst of the three circuits decides; a half-open one lets a probe through when the others let anything through.
    pub fn standing(&self, subject: &Subject<'_>, now: Duration) -> Standing {
        let device = self.devices.get(subject.device);
        let backend =
            self.backends.get(subject.backend).filter(|gate| gate.version == subject.backend_version);
        let mut standing = Standing::Closed;
        for (scope, name, gate) in [
            (RefusalScope::Device, subject.device, device),
            (RefusalScope::Backend, subject.backend, backend),
            (RefusalScope::Kernel, subject.kernel, self.kernel(subject)),
        ] {
            let Some(gate) = gate else { continue };
            match gate.state {
                HealthState::Closed => {}
                HealthState::Open if gate.lost || gate.next_probe_at.is_none_or(|due| now < due) => {
                    return Standing::Refused(gate.refusal(scope, name, now));
                }
                HealthState::Open | HealthState::HalfOpen => standing = Standing::Probing,
            }
        }
        standing
    }

    /// Whether anything is remembered of a kernel, of its backend, or of any device.
    pub fn concerns(&self, kernel: &str, backend: &str) -> bool {
        !self.devices.is_empty() || self.kernels.contains_key(kernel) || self.backends.contains_key(backend)
    }

    /// Whether a success of this call would be news.
    pub fn remembers(&self, subject: &Subject<'_>) -> bool {
        self.kernel(subject).is_some() || self.backends.contains_key(subject.backend)
    }

    /// What the last failure said that is held against this call; where there was none, what the kernel or its backend said
    /// when it failed on other calls.
    pub fn last_failure(&self, subject: &Subject<'_>) -> Option<String> {
        let said = |gate: &Gate| (!gate.last_error.is_empty()).then(|| gate.last_error.clone());
        let backend =
            self.backends.get(subject.backend).filter(|gate| gate.version == subject.backend_version);
        let own = self.kernel(subject).and_then(said);
        let elsewhere = || {
            // Buckets keep no order in time; the least text is at least always the same one.
            let buckets = self.kernels.get(subject.kernel)?.values();
            let others = buckets.filter(|gate| gate.version == subject.kernel_version).filter_map(said);
            others.min().map(|error| format!("on other calls: {error}"))
        };
        own.or_else(|| backend.and_then(said)).or_else(elsewhere)
    }

    fn kernel(&self, subject: &Subject<'_>) -> Option<&Gate> {
        let gate = self.kernels.get(subject.kernel)?.get(subject.bucket)?;
        (gate.version == subject.kernel_version).then_some(gate)
    }

    /// A half-open circuit weighs nothing for its own failures: with a handicap its probe might never be chosen.
    pub fn penalty(&self, subject: &Subject<'_>, config: &PenaltyConfig) -> f64 {
        let Some(buckets) = self.kernels.get(subject.kernel) else { return 0.0 };
        let own = self.kernel(subject).filter(|gate| gate.state == HealthState::Closed).map_or(0.0, |gate| {
            f64::from(gate.failures) * config.per_failure + f64::from(gate.openings) * config.per_opening
        });
        let others = buckets
            .iter()
            .filter(|(bucket, gate)| {
                bucket.as_ref() != subject.bucket
                    && gate.version == subject.kernel_version
                    && gate.state != HealthState::Closed
            })
            .count();
        (own + others as f64 * config.per_other_bucket).min(config.most)
    }
}

impl Gate {
    fn of(record: &Record) -> Gate {
        let circuit = &record.circuit;
        Gate {
            version: record.version.clone(),
            state: circuit.state(),
            failures: circuit.failures(),
            openings: circuit.openings(),
            lost: circuit.is_lost(),
            at_once: circuit.opened_at_once(),
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
            opened_at_once: self.at_once,
        }
    }
}
