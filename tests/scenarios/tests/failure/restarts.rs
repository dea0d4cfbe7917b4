//! State that survives a restart, and state that must not.

use lz_core::KernelError;
use lz_device::detect_cpu;
use lz_ops::NORM_RMS;
use lz_perfdb::{Filter, HealthState, PerfDb};
use lz_scenarios::calls::{Norm, ScenarioCall};
use lz_scenarios::engines::{host_spec, register};
use lz_scenarios::kernels::kernel_fn;
use lz_scenarios::process::{broken_rank, rank, restore, run_process, start};
use lz_test_support::Folder;

use super::OTHER_PROCESS;

/// Crash during tuning (flashinfer#4157): the process aborts in a kernel; earlier measurements are kept, and
/// the kernel is not tried again.
#[test]
fn a_crash_during_tuning_keeps_measurements_and_excludes_the_kernel() {
    let folder = Folder::new();
    let file = folder.database();
    let file = file.to_str().unwrap();
    let status = start(OTHER_PROCESS, &["tune-and-crash", file, "delta.norm.rms"]).wait().unwrap();
    assert!(!status.success());
    let database = PerfDb::open(file).db;
    assert_eq!(database.count(&Filter::default()), 3);
    let rows = database.load_health(None);
    assert_eq!((rows.len(), rows[0].name.as_str(), rows[0].state), (1, "delta.norm.rms", HealthState::Open));
    drop(database);
    assert_eq!(run_process(OTHER_PROCESS, &["health", file]), ["alpha.norm.rms"]);
}

/// A server restarts: the circuit of a failing kernel is still open, with its last error message.
#[test]
fn health_survives_a_restart() {
    let folder = Folder::new();
    let database = PerfDb::open(folder.database()).db;
    let before = broken_rank();
    (0..10).for_each(|_| assert_eq!(Norm::default().serve(&before).unwrap(), "alpha.norm.rms"));
    database.save_health(&before.health().export(&detect_cpu().uuid)).unwrap();
    drop(before);

    let after = broken_rank();
    assert_eq!(
        Norm::default().selected(&after).unwrap(),
        "delta.norm.rms",
        "before the health records are loaded"
    );
    assert_eq!(restore(&after, &database), 1);
    assert_eq!(Norm::default().codes(&after, "delta.norm.rms"), ["CIRCUIT_OPEN"]);
    let explanation = Norm::default().explain(&after);
    let sentence = &explanation.candidate("delta.norm.rms").unwrap().reasons[0].sentence;
    assert!(sentence.contains("an illegal memory access"), "{sentence}");
}

/// The library is upgraded between two runs: the new version starts without failure records.
#[test]
fn a_new_version_starts_without_failure_records() {
    let folder = Folder::new();
    let database = PerfDb::open(folder.database()).db;
    let before = broken_rank();
    (0..10).for_each(|_| drop(Norm::default().serve(&before).unwrap()));
    database.save_health(&before.health().export(&detect_cpu().uuid)).unwrap();

    let upgraded = rank();
    let mut spec = host_spec("delta.norm.rms").priority(90);
    spec.version = "2".to_owned();
    register(&upgraded, [kernel_fn(spec, &NORM_RMS, || Ok::<(), KernelError>(()))]);
    assert_eq!(restore(&upgraded, &database), 0);
    assert_eq!(Norm::default().serve(&upgraded).unwrap(), "delta.norm.rms");
}

/// A kernel recovers and the server restarts: its failure record is deleted from the database.
#[test]
fn a_recovered_kernel_is_deleted_from_the_database() {
    let folder = Folder::new();
    let database = PerfDb::open(folder.database()).db;
    let engine = broken_rank();
    (0..10).for_each(|_| drop(Norm::default().serve(&engine).unwrap()));
    let uuid = detect_cpu().uuid;
    database.save_health(&engine.health().export(&uuid)).unwrap();
    assert_eq!(database.load_health(None).len(), 1);
    engine.health().reset_kernel("delta.norm.rms");
    database.save_health(&engine.health().export(&uuid)).unwrap();
    assert_eq!(database.load_health(None).len(), 0);
}
