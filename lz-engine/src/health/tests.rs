//! Unit tests of health: what its private interface promises to the engine.

use std::sync::Arc;
use std::time::Duration;

use lz_perfdb::{HealthRow, HealthState};

use super::circuit::Circuit;
use super::registry::{Key, Registry};
use super::{
    Change, CircuitConfig, CircuitReport, Degradation, DegradationConfig, DegradationLevel, Failure, Health,
    HealthConfig, HealthInputs, ManualClock, PenaltyConfig, Refusal, RefusalScope, Subject,
};

fn subject<'a>(kernel: &'a str, bucket: &'a [u64]) -> Subject<'a> {
    Subject { kernel, kernel_version: "1", bucket, backend: "b", backend_version: "1", device: "d" }
}

fn health() -> Health {
    Health::new(HealthConfig::default(), Arc::new(ManualClock::starting_at(2_000_000_000)))
}

fn fail(health: &Health, kernel: &str, bucket: &[u64], times: u32) {
    for _ in 0..times {
        health.admit(subject(kernel, bucket)).unwrap().failed(Failure::of_kernel("boom"));
    }
}

/// An open circuit with fewer failures than the threshold was opened by one failure; a closed one never was.
#[test]
fn restored_circuits_know_what_opened_them() {
    let config = CircuitConfig::default();
    let restored = |state, failures| {
        let probe = Some(std::time::Duration::from_secs(1));
        let circuit = Circuit::restored(state, failures, 0, probe, String::new(), &config);
        (circuit.opened_at_once(), circuit.is_lost())
    };
    let threshold = config.failure_threshold;
    assert_eq!(restored(HealthState::Open, threshold - 1), (true, false));
    assert_eq!(restored(HealthState::Open, threshold), (false, false));
    assert_eq!(restored(HealthState::Closed, 1), (false, false));
    let quarantined = Circuit::restored(HealthState::Open, threshold, 0, None, String::new(), &config);
    assert!(quarantined.opened_at_once() && quarantined.is_lost());
}

#[test]
fn a_score_at_the_threshold_and_its_margin_recovers() {
    let config = DegradationConfig::default();
    let at = config.thresholds[0] + config.margin;
    let degradation = Degradation::new(config);
    let start = std::time::Duration::ZERO;
    degradation.assess(config.thresholds[0] - 1.0, start).expect("it degrades at once");
    assert!(degradation.assess(at, start).is_none());
    let change = degradation.assess(at, config.hold).expect("it was better for long enough");
    assert_eq!(change.to, DegradationLevel::Full);
    let names = DegradationLevel::ALL.map(DegradationLevel::name);
    assert_eq!(names, ["full", "no_background", "cached_only", "priorities_only", "references_only"]);
}

#[test]
fn a_successful_trial_forgives_one_bucket() {
    let health = health();
    fail(&health, "k", &[1], 5);
    fail(&health, "k", &[2], 1);
    assert!(health.refuses_any());
    health.forgive(&subject("k", &[3]));
    assert_eq!(health.circuits().len(), 2, "there is no record of that bucket");
    health.forgive(&subject("k", &[1]));
    let left: Vec<Vec<u64>> = health.circuits().into_iter().map(|circuit| circuit.bucket).collect();
    assert_eq!(left, [[2]]);
    assert!(!health.refuses_any(), "one failure opens nothing");
    assert!(health.admit(subject("k", &[1])).is_ok());
}

/// Resetting an open circuit closes it; resetting a closed one only restores the weight of its kernel.
#[test]
fn a_reset_reports_what_it_changed() {
    let health = health();
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    fail(&health, "open", &[1], 5);
    fail(&health, "weak", &[1], 1);
    health.on_change(move |change: &Change, _| {
        let text = match change {
            Change::Circuit { name, to, .. } => format!("{name} {to:?}"),
            Change::Weight { name } => format!("{name} weight"),
            other => format!("{other:?}"),
        };
        log.lock().unwrap().push(text);
    });
    health.reset_all();
    let mut seen = seen.lock().unwrap().clone();
    seen.sort();
    assert_eq!(seen, ["open Closed", "weak weight"]);
}

#[test]
fn reports_of_the_same_circuit_have_its_scope_name_and_bucket() {
    let health = health();
    fail(&health, "a", &[1], 1);
    fail(&health, "a", &[2], 1);
    fail(&health, "b", &[1], 1);
    let all = health.circuits();
    assert_eq!(all.len(), 3);
    for (index, one) in all.iter().enumerate() {
        for (other, two) in all.iter().enumerate() {
            assert_eq!(one.is_same(two), index == other);
        }
    }
    let mut backend = all[0].clone();
    backend.scope = super::RefusalScope::Backend;
    assert!(!backend.is_same(&all[0]));
}

/// Scheduled deletions of stored rows are bounded.
#[test]
fn at_most_4096_forgiven_records_are_kept() {
    let mut registry = Registry::default();
    for number in 0..4100u64 {
        let key = Key::Kernel("k".to_owned(), Box::new([number]));
        registry.entry(&key, "1", Duration::ZERO, 1).expect("there is no other record");
        registry.forgive(&key);
        assert_eq!(registry.len(), 0);
        assert_eq!(registry.forgiven.len(), (number as usize + 1).min(4096));
    }
    registry.forgive(&Key::Backend("b".to_owned()));
    assert_eq!(registry.forgiven.len(), 4096);
}

/// A probe that is dropped without an outcome, as by a panic, can be taken by the next call.
#[test]
fn an_abandoned_probe_is_returned() {
    let clock = Arc::new(ManualClock::starting_at(2_000_000_000));
    let health = Health::new(HealthConfig::default(), clock.clone());
    fail(&health, "k", &[1], 5);
    assert!(health.admit(subject("k", &[1])).is_err());
    clock.advance(Duration::from_secs(3600));
    let mut probes: Vec<_> = std::iter::from_fn(|| health.admit(subject("k", &[1])).ok()).take(100).collect();
    assert!(!probes.is_empty() && probes.len() < 100, "{} probes at the same time", probes.len());
    assert!(probes.iter().all(super::Permit::is_probe));
    drop(probes.pop());
    let again = health.admit(subject("k", &[1])).expect("the probe was returned");
    assert!(health.admit(subject("k", &[1])).is_err(), "only that one");
    again.succeeded();
    assert!(health.admit(subject("k", &[1])).is_err(), "a recorded probe is not returned");
}

/// A success is recorded if the kernel has failed in the bucket, or its backend has; other calls need no record.
#[test]
fn successes_are_recorded_where_there_are_failures() {
    let health = health();
    let has_record = |kernel, bucket: &[u64]| health.view().has_record(&subject(kernel, bucket));
    assert!(!has_record("k", &[1]));
    fail(&health, "k", &[1], 1);
    assert!(has_record("k", &[1]) && !has_record("k", &[2]) && !has_record("other", &[1]));
    let crash = Failure { severity: lz_core::failure::Severity::Backend, ..Failure::of_kernel("crash") };
    health.admit(subject("k", &[1])).unwrap().failed(crash);
    assert!(has_record("other", &[1]), "its backend has failed");
}

/// A kernel with a wrong result is quarantined once per bucket; without room for a record only the count remains.
#[test]
fn a_quarantine_is_new_once_and_counted() {
    let config = HealthConfig { max_circuits: 1, ..HealthConfig::default() };
    let health = Health::new(config, Arc::new(ManualClock::starting_at(2_000_000_000)));
    assert!(health.quarantine(&subject("k", &[1]), "wrong"));
    assert!(!health.quarantine(&subject("k", &[1]), "wrong again"));
    assert!(!health.quarantine(&subject("k", &[2]), "there is no room"));
    assert!(!health.quarantine(&subject("k", &[3]), "nor here"));
    let counters = health.summary().counters;
    assert_eq!((counters.failures, counters.untracked), (4, 2));
    assert!(health.admit(subject("k", &[1])).is_err() && health.admit(subject("k", &[2])).is_ok());
}

#[test]
fn a_backend_is_reset_by_its_name() {
    let health = health();
    let crash = Failure { severity: lz_core::failure::Severity::Backend, ..Failure::of_kernel("crash") };
    let threshold = HealthConfig::default().backend.failure_threshold;
    for bucket in 0..u64::from(threshold) {
        health.admit(subject("k", &[bucket])).unwrap().failed(crash);
    }
    assert!(health.admit(subject("other", &[1])).is_err(), "its backend has failed");
    health.reset_backend("another");
    assert!(health.admit(subject("other", &[1])).is_err());
    health.reset_backend("b");
    assert!(health.admit(subject("other", &[1])).is_ok());
}

#[test]
fn entries_of_a_level_are_counted() {
    let health = health();
    assert_eq!(DegradationLevel::ALL.map(|level| health.times_entered(level)), [0; 5]);
}

/// Without another kernel a call past an open circuit is better than none, except on a lost device or after a crash.
#[test]
fn refusals_yield_where_the_call_does_no_harm() {
    let yields = |scope, opened_at_once, is_reference| {
        let (name, last_error) = ("k".to_owned(), "no".to_owned());
        let refusal = Refusal { scope, name, failures: 1, last_error, retry_in: None, opened_at_once };
        refusal.yields_to_last_resort(is_reference)
    };
    for scope in [RefusalScope::Kernel, RefusalScope::Backend] {
        assert!(yields(scope, false, false) && yields(scope, false, true) && yields(scope, true, true));
        assert!(!yields(scope, true, false), "it may crash again");
    }
    assert!(
        ![(false, false), (false, true), (true, true)]
            .iter()
            .any(|&(once, reference)| { yields(RefusalScope::Device, once, reference) })
    );
}

#[test]
fn an_ordinary_call_is_no_probe() {
    let health = health();
    assert!(!health.admit(subject("k", &[1])).unwrap().is_probe());
    fail(&health, "k", &[1], 1);
    assert!(!health.admit(subject("k", &[1])).unwrap().is_probe(), "one failure opens nothing");
}

/// Rows of the last day are imported; the time until a probe is rounded up.
#[test]
fn rows_have_an_age_and_a_time_of_the_next_probe() {
    let start = 2_000_000_000;
    let clock = Arc::new(ManualClock::starting_at(start));
    let health = Health::new(HealthConfig::default(), clock.clone());
    fail(&health, "k", &[1], 5);
    let due = health.export("d")[0].next_probe_at.expect("it is open") - start;
    clock.advance(Duration::from_millis(500));
    let rows = health.export("d");
    let now = start + u64::from(rows[0].updated_at > start);
    assert_eq!(rows[0].next_probe_at, Some(now + due), "a part of a second counts as a whole one");
    clock.advance(Duration::from_millis(500));
    assert_eq!(health.export("d")[0].next_probe_at, Some(start + due));
    let imported = |age: u64| {
        let later = Health::new(
            HealthConfig::default(),
            Arc::new(ManualClock::starting_at(rows[0].updated_at + age)),
        );
        later.import(&rows, "d", |_, _| Some("1".to_owned()))
    };
    assert_eq!([0, 24 * 3600, 24 * 3600 + 1].map(imported), [1, 1, 0]);
}

#[test]
fn a_registry_counts_kernels_backends_and_devices() {
    let mut registry = Registry::default();
    for key in [
        Key::Kernel("k".to_owned(), Box::new([1])),
        Key::Kernel("k".to_owned(), Box::new([2])),
        Key::Backend("b".to_owned()),
        Key::Backend("c".to_owned()),
        Key::Device("d".to_owned()),
    ] {
        registry.entry(&key, "1", Duration::ZERO, 10).expect("there is room");
    }
    assert_eq!(registry.len(), 5);
}

/// A stored row refuses until its probe is due; one without a probe is quarantined.
#[test]
fn stored_rows_say_whether_they_refuse() {
    let health = health();
    fail(&health, "k", &[1], 5);
    let row = health.export("d").remove(0);
    let due = row.next_probe_at.expect("it is open");
    let report = |row: &HealthRow, now| {
        let report = CircuitReport::of_row(row, now);
        (report.retry_in, report.refuses())
    };
    assert_eq!(report(&row, due - 2), (Some(Duration::from_secs(2)), true));
    assert_eq!([report(&row, due), report(&row, due + 1)], [(None, false); 2]);
    let quarantined = HealthRow { next_probe_at: None, ..row.clone() };
    assert_eq!(report(&quarantined, due + 1), (None, true));
    let closed = HealthRow { state: HealthState::Closed, ..row };
    assert!(!report(&closed, due - 2).1);
}

/// Own failures count while the circuit is closed; other buckets count while theirs is not.
#[test]
fn the_penalty_of_a_kernel_depends_on_its_buckets() {
    let (health, config) = (health(), PenaltyConfig::default());
    fail(&health, "k", &[1], 1);
    fail(&health, "k", &[2], 5);
    fail(&health, "k", &[3], 1);
    let penalty = |bucket: &[u64]| health.view().penalty(&subject("k", bucket), &config);
    assert_eq!(penalty(&[1]), config.per_failure + config.per_other_bucket);
    assert_eq!(penalty(&[2]), 0.0);
    assert_eq!(penalty(&[4]), config.per_other_bucket);
    let newer = Subject { kernel_version: "2", ..subject("k", &[4]) };
    assert_eq!(health.view().penalty(&newer, &config), 0.0, "another version");
}

#[test]
fn troubles_of_kernels_and_backends_add_up() {
    let inputs = |kernels_troubled, backends_troubled| {
        HealthInputs {
            kernels: 4,
            kernels_troubled,
            backends: 2,
            backends_troubled,
            ..HealthInputs::default()
        }
        .score()
    };
    assert_eq!([inputs(0, 0), inputs(1, 0), inputs(0, 1), inputs(1, 1)], [100.0, 87.5, 75.0, 62.5]);
}
