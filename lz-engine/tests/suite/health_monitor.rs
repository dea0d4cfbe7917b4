//! Health as selection uses it: admission, scope, penalties, time, notifications, restarts and concurrency. No test sleeps.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lz_core::{Cause, Severity};
use lz_engine::health::{
    Change, CircuitConfig, CircuitStatus, DegradationLevel, Failure, Health, HealthConfig, InstalledCounts,
    ManualClock, RefusalScope, Subject,
};
use lz_perfdb::{HealthScope, HealthState, PerfDb};
use lz_test_support::Folder;

const START: u64 = 2_000_000_000;

fn subject<'a>(kernel: &'a str, bucket: &'a [u64]) -> Subject<'a> {
    Subject {
        kernel,
        kernel_version: "1.0",
        bucket,
        backend: "flashinfer",
        backend_version: "0.6",
        device: "GPU-1",
    }
}

fn health() -> (Arc<ManualClock>, Health) {
    let clock = Arc::new(ManualClock::starting_at(START));
    (clock.clone(), Health::new(HealthConfig::default(), clock))
}

const KERNEL: (Cause, Severity) = (Cause::Kernel, Severity::Call);
const BACKEND_LOST: (Cause, Severity) = (Cause::Kernel, Severity::Backend);
const DEVICE_LOST: (Cause, Severity) = (Cause::Kernel, Severity::Device);

fn fail(health: &Health, subject: Subject<'_>, (cause, severity): (Cause, Severity)) {
    let failure = Failure { cause, severity, ..Failure::of_kernel("boom") };
    health.admit(subject).unwrap().failed(failure);
}

fn open(health: &Health, subject: Subject<'_>) {
    for _ in 0..5 {
        fail(health, subject, KERNEL);
    }
}

#[test]
fn circuits_are_per_bucket() {
    let (clock, health) = health();
    assert!(health.all_closed() && health.has_no_records());
    open(&health, subject("k", &[1]));
    assert!(!health.all_closed());
    let refusal = health.admit(subject("k", &[1])).unwrap_err();
    assert_eq!((refusal.scope, refusal.failures), (RefusalScope::Kernel, 5));
    assert_eq!(refusal.retry_in, Some(Duration::from_secs(30)));
    assert_eq!(
        refusal.to_string(),
        "the circuit of kernel k is open after 5 failures (boom); the next probe is in 30.0 s"
    );
    assert_eq!(health.circuit_status(&subject("k", &[1])), CircuitStatus::Refused(refusal));
    assert_eq!(health.circuit_status(&subject("k", &[2])), CircuitStatus::Closed);
    health.admit(subject("k", &[2])).unwrap().succeeded();
    let newer = Subject { kernel_version: "2.0", ..subject("k", &[1]) };
    assert_eq!(health.circuit_status(&newer), CircuitStatus::Closed, "a new version starts clean");
    clock.advance(Duration::from_secs(29));
    assert!(!health.poll_due() && health.admit(subject("k", &[1])).is_err());
}

#[test]
fn last_failure_in_other_buckets_is_labeled() {
    let (_, health) = health();
    fail(&health, subject("k", &[1]), KERNEL);
    assert_eq!(health.last_failure(&subject("k", &[1])).as_deref(), Some("boom"));
    assert_eq!(health.last_failure(&subject("k", &[2])).as_deref(), Some("on other calls: boom"));
    assert_eq!(health.last_failure(&subject("other", &[1])), None);
    let newer = Subject { kernel_version: "2.0", ..subject("k", &[2]) };
    assert_eq!(health.last_failure(&newer), None, "a new version starts clean");
    fail(&health, subject("other", &[1]), BACKEND_LOST);
    assert_eq!(
        health.last_failure(&subject("third", &[1])).as_deref(),
        Some("boom"),
        "it was their backend's"
    );
}

#[test]
fn probes_decide_and_backoff_grows() {
    let (clock, health) = health();
    let bad = subject("k", &[1]);
    open(&health, bad);
    for wait in [30, 60, 120] {
        clock.advance(Duration::from_secs(wait) - Duration::from_nanos(1));
        assert!(health.admit(bad).is_err(), "{wait}");
        clock.advance(Duration::from_nanos(1));
        assert_eq!(health.circuit_status(&bad), CircuitStatus::Probing);
        let permit = health.admit(bad).unwrap();
        assert!(permit.is_probe());
        permit.failed(Failure::of_kernel("still"));
    }
    clock.advance(Duration::from_secs(240));
    assert!(health.poll_due() && health.poll() && !health.poll_due());
    let permits: Vec<_> = (0..3).map(|_| health.admit(bad).unwrap()).collect();
    assert!(health.admit(bad).is_err(), "three probes and no more");
    let mut permits = permits.into_iter();
    drop(permits.next());
    let again = health.admit(bad).expect("a probe that said nothing is given back");
    permits.for_each(|permit| permit.succeeded());
    assert!(!health.all_closed());
    again.succeeded();
    assert!(health.all_closed() && !health.has_no_records());
    assert_eq!(health.reliability_penalty(&bad), 20.0, "four openings are recorded");
    for _ in 0..20 {
        health.admit(bad).unwrap().succeeded();
    }
    assert!(health.has_no_records());
    let counters = health.summary().counters;
    assert_eq!((counters.openings, counters.closings, counters.probes, counters.refusals), (4, 1, 7, 4));
}

#[test]
fn fatal_failure_opens_only_its_backend() {
    let (clock, health) = health();
    fail(&health, subject("k", &[1]), BACKEND_LOST);
    let refusal = health.admit(subject("another", &[9])).unwrap_err();
    assert_eq!((refusal.scope, refusal.name.as_str()), (RefusalScope::Backend, "flashinfer"));
    let elsewhere = Subject { backend: "torch", ..subject("sdpa", &[1]) };
    health.admit(elsewhere).unwrap().succeeded();
    clock.advance(Duration::from_secs(30));
    let probe = health.admit(subject("another", &[9])).unwrap();
    assert!(probe.is_probe() && health.admit(subject("third", &[9])).is_err(), "one probe for a backend");
    // A failure of the kernel says nothing about the backend.
    probe.failed(Failure::of_kernel("shape"));
    health.admit(subject("third", &[9])).unwrap().succeeded();
    assert!(health.all_closed());
}

#[test]
fn lost_device_never_recovers_by_itself() {
    let (clock, health) = health();
    health.set_population(InstalledCounts { kernels: 32, backends: 4, devices: 1 });
    fail(&health, subject("k", &[1]), DEVICE_LOST);
    clock.advance(Duration::from_secs(365 * 24 * 3600));
    health.poll();
    let refusal = health.admit(subject("other", &[7])).unwrap_err();
    assert_eq!((refusal.scope, refusal.retry_in), (RefusalScope::Device, None));
    assert_eq!(
        refusal.to_string(),
        "the context of device GPU-1 is lost (boom): restart the process to use it again"
    );
    let second = Subject { device: "GPU-2", ..subject("other", &[7]) };
    health.admit(second).unwrap().succeeded();
    assert_eq!(health.level(), DegradationLevel::ReferencesOnly);
    let rows = health.export("GPU-1");
    assert_eq!(rows.len(), 1, "the device is not kept, the suspect is");
    assert_eq!((rows[0].name.as_str(), rows[0].failures), ("k", 1));
    health.device_recovered("GPU-1");
    health.admit(subject("other", &[7])).unwrap().succeeded();
}

#[test]
fn only_failures_of_the_kernel_count_against_it() {
    let blameless = [Cause::Caller, Cause::Capacity, Cause::Environment];
    for cause in blameless {
        let (clock, health) = health();
        let k = subject("k", &[1]);
        for _ in 0..100 {
            fail(&health, k, (cause, Severity::Call));
        }
        assert!(health.has_no_records(), "{cause}");
        assert_eq!((health.generation(), health.export("GPU-1").len()), (0, 0), "{cause}");
        let counters = health.summary().counters;
        let counted = [counters.caller_failures, counters.capacity_failures, counters.environment_failures];
        assert_eq!(counted, blameless.map(|one| if one == cause { 100 } else { 0 }));
        assert_eq!((counters.failures, counters.openings), (0, 0));
        open(&health, k);
        clock.advance(Duration::from_secs(30));
        for _ in 0..10 {
            fail(&health, k, (cause, Severity::Call));
        }
        assert_eq!(health.circuit_status(&k), CircuitStatus::Probing, "{cause}: probes are given back");
    }
}

#[test]
fn environment_failure_opens_the_backend_only() {
    let (_, health) = health();
    fail(&health, subject("k", &[1]), (Cause::Capacity, Severity::Backend));
    assert!(health.has_no_records());
    fail(&health, subject("k", &[1]), (Cause::Environment, Severity::Backend));
    let refusal = health.admit(subject("k", &[1])).unwrap_err();
    assert_eq!((refusal.scope, refusal.failures), (RefusalScope::Backend, 1));
    assert!(health.export("GPU-1").iter().all(|row| row.scope == HealthScope::Backend));
}

#[test]
fn trial_failure_opens_immediately() {
    let (_, health) = health();
    let k = subject("k", &[1]);
    health.admit(k).unwrap().failed(Failure::of_kernel("crashed").in_trial());
    let refusal = health.admit(k).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "the circuit of kernel k is open after 1 failure (crashed); the next probe is in 30.0 s"
    );
    let (_, health) = self::health();
    let failure = Failure { cause: Cause::Capacity, ..Failure::of_kernel("no memory") };
    health.admit(k).unwrap().failed(failure.in_trial());
    assert!(health.has_no_records());
}

#[test]
fn failures_lower_the_score_until_forgiven() {
    let (_, health) = health();
    let k = subject("k", &[1]);
    assert_eq!(health.reliability_penalty(&k), 0.0);
    fail(&health, k, KERNEL);
    fail(&health, k, KERNEL);
    assert_eq!(health.reliability_penalty(&k), 8.0);
    for _ in 0..3 {
        health.admit(k).unwrap().succeeded();
    }
    assert_eq!(health.reliability_penalty(&k), 0.0);
    for bucket in 10..40 {
        open(&health, subject("k", &[bucket]));
    }
    assert_eq!(health.reliability_penalty(&k), 30.0, "other failing buckets count, up to the maximum");
    assert_eq!(health.reliability_penalty(&subject("other", &[1])), 0.0);
}

#[test]
fn generation_changes_with_every_visible_change_only() {
    let (clock, health) = health();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sink = seen.clone();
    assert!(
        health.on_change(move |change, generation| sink.lock().unwrap().push((change.clone(), generation)))
    );
    assert!(!health.on_change(|_, _| {}), "only the first is taken");
    let k = subject("k", &[1]);
    for _ in 0..10 {
        health.admit(k).unwrap().succeeded();
    }
    assert_eq!(health.generation(), 0);
    open(&health, k);
    assert_eq!(health.generation(), 5);
    let _ = health.admit(k);
    assert_eq!(health.generation(), 5);
    clock.advance(Duration::from_secs(30));
    health.poll();
    assert_eq!(health.generation(), 6);
    let kinds: Vec<String> = seen
        .lock()
        .unwrap()
        .iter()
        .map(|(change, generation)| match change {
            Change::Circuit { name, from, to, .. } => format!("{generation} {name} {from} {to}"),
            Change::Weight { name } => format!("{generation} {name} weight"),
            Change::Level(step) => format!("{generation} level {}", step.to),
        })
        .collect();
    assert_eq!(
        kinds,
        ["1 k weight", "2 k weight", "3 k weight", "4 k weight", "5 k closed open", "6 k open half_open"]
    );
}

#[test]
fn health_round_trips_through_the_database() {
    let folder = Folder::new();
    let db = PerfDb::open(folder.database()).db;
    let (clock, before) = health();
    open(&before, subject("k", &[u64::MAX, 2]));
    fail(&before, subject("shaky", &[1]), KERNEL);
    fail(&before, Subject { backend: "broken", ..subject("x", &[1]) }, BACKEND_LOST);
    clock.advance(Duration::from_secs(10));
    db.save_health(&before.export("GPU-1")).unwrap();

    let clock = Arc::new(ManualClock::starting_at(START + 15));
    let after = Health::new(HealthConfig::default(), clock.clone());
    let version = |scope, name: &str| match (scope, name) {
        (HealthScope::Backend, "broken") => Some("0.6".to_owned()),
        (HealthScope::Kernel, "k" | "x") => Some("1.0".to_owned()),
        (HealthScope::Kernel, "shaky") => Some("1.1".to_owned()),
        _ => None,
    };
    let rows = db.load_health(Some("GPU-1"));
    assert_eq!(rows.len(), 4);
    assert_eq!(after.import(&rows, "GPU-2", version), 0);
    assert_eq!(after.import(&rows, "GPU-1", version), 3, "a new version starts clean");
    assert_eq!(after.import(&rows, "GPU-1", version), 0, "what is known stays");
    let refusal = after.admit(subject("k", &[u64::MAX, 2])).unwrap_err();
    assert_eq!(refusal.retry_in, Some(Duration::from_secs(15)));
    assert_eq!(refusal.last_error, "boom");
    assert!(after.admit(Subject { backend: "broken", ..subject("y", &[1]) }).is_err());
    assert_eq!(after.circuit_status(&subject("shaky", &[1])), CircuitStatus::Closed);

    clock.advance(Duration::from_secs(15));
    for _ in 0..3 {
        after.admit(subject("k", &[u64::MAX, 2])).unwrap().succeeded();
    }
    for _ in 0..20 {
        after.admit(subject("k", &[u64::MAX, 2])).unwrap().succeeded();
    }
    db.save_health(&after.export("GPU-1")).unwrap();
    let names: Vec<String> = db.load_health(None).into_iter().map(|row| row.name).collect();
    assert_eq!(names, ["broken", "shaky", "x"], "what was forgiven is deleted");
    drop(db);
}

#[test]
fn calendar_jump_does_not_disable_a_kernel() {
    let (_, before) = health();
    open(&before, subject("k", &[1]));
    let mut rows = before.export("GPU-1");
    rows[0].next_probe_at = Some(u64::MAX);
    let clock = Arc::new(ManualClock::starting_at(START));
    let after = Health::new(HealthConfig::default(), clock);
    assert_eq!(after.import(&rows, "GPU-1", |_, _| Some("1.0".to_owned())), 1);
    let wait = after.admit(subject("k", &[1])).unwrap_err().retry_in.unwrap();
    assert_eq!(wait, CircuitConfig::default().max_backoff);
}

#[test]
fn number_of_circuits_is_bounded() {
    let clock = Arc::new(ManualClock::default());
    let health = Health::new(HealthConfig { max_circuits: 10, ..HealthConfig::default() }, clock.clone());
    for bucket in 0..100 {
        clock.advance(Duration::from_millis(1));
        fail(&health, subject("k", &[bucket]), KERNEL);
    }
    assert_eq!(health.summary().tracked, 10, "the oldest closed ones make room");
    for bucket in 0..10 {
        open(&health, subject("k", &[bucket]));
    }
    fail(&health, subject("k", &[1000]), KERNEL);
    let summary = health.summary();
    assert_eq!((summary.tracked, summary.blocking, summary.counters.untracked), (10, 10, 1));
    health.reset_kernel("k");
    assert!(health.has_no_records());
}

#[test]
fn engine_degrades_and_recovers_by_time() {
    let (clock, health) = health();
    health.set_population(InstalledCounts { kernels: 10, backends: 2, devices: 1 });
    assert_eq!(health.level(), DegradationLevel::Full);
    for fault in 1..=4 {
        health.record_engine_fault("selection panicked");
        let expected = if fault < 3 { DegradationLevel::Full } else { DegradationLevel::NoBackground };
        assert_eq!(health.level(), expected, "{fault}");
    }
    let generation = health.generation();
    clock.advance(Duration::from_secs(60));
    assert!(health.poll_due());
    health.poll();
    assert_eq!(health.level(), DegradationLevel::NoBackground, "the faults are forgotten, the hold begins");
    clock.advance(Duration::from_secs(30));
    assert!(health.poll());
    assert_eq!(health.level(), DegradationLevel::Full);
    assert!(health.generation() > generation && !health.poll_due());
    assert_eq!(health.times_entered(DegradationLevel::NoBackground), 1);
    assert_eq!(health.summary().counters.engine_faults, 4);
}

#[test]
fn concurrent_probes_are_bounded() {
    let (clock, health) = health();
    let bad = subject("k", &[1]);
    for _ in 0..50 {
        while health.circuit_status(&bad) == CircuitStatus::Closed {
            if let Ok(permit) = health.admit(bad) {
                permit.failed(Failure::of_kernel("boom"));
            }
        }
        clock.advance(Duration::from_secs(1800));
        let granted = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    health.poll();
                    if let Ok(permit) = health.admit(bad) {
                        granted.fetch_add(1, Ordering::SeqCst);
                        // The probe is lost with its thread and times out.
                        std::mem::forget(permit);
                    }
                });
            }
        });
        assert_eq!(granted.load(Ordering::SeqCst), 3);
        clock.advance(Duration::from_secs(60));
        assert!(health.poll(), "probes that never return are given up");
        assert!(matches!(health.circuit_status(&bad), CircuitStatus::Refused(_)));
        clock.advance(Duration::from_secs(1800));
        for _ in 0..3 {
            health.admit(bad).unwrap().succeeded();
        }
        assert!(health.all_closed());
    }
}

#[test]
fn concurrent_outcomes_keep_state_consistent() {
    let (clock, health) = health();
    let changes = Arc::new(AtomicU64::new(0));
    let counted = changes.clone();
    health.on_change(move |_, _| {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let (health, clock) = (&health, &clock);
            scope.spawn(move || {
                for round in 0..2000u64 {
                    let bucket = [(thread + round) % 5];
                    let call = subject(if round % 3 == 0 { "a" } else { "b" }, &bucket);
                    let _ = health.reliability_penalty(&call);
                    if let Ok(permit) = health.admit(call) {
                        match (thread * 31 + round * 7) % 11 {
                            0..4 => permit.failed(Failure::of_kernel("boom")),
                            4 => drop(permit),
                            _ => permit.succeeded(),
                        }
                    }
                    if round % 50 == 0 {
                        clock.advance(Duration::from_secs(20));
                        health.poll();
                    }
                }
            });
        }
    });
    assert!(changes.load(Ordering::Relaxed) >= health.generation());
    let rows = health.export("GPU-1");
    let blocking = rows.iter().filter(|row| row.state != HealthState::Closed).count();
    assert_eq!(health.summary().blocking as usize, blocking);
    health.reset_kernel("a");
    health.reset_kernel("b");
    assert!(health.has_no_records() && health.all_closed());
}
