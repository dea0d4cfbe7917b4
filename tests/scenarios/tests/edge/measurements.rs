//! Measurements that must be ignored or discounted: other version, driver, dtype or descriptor, expired, too
//! few samples, clock skew.

use lz_core::DType;
use lz_device::detect_cpu;
use lz_engine::Engine;
use lz_perfdb::{Invalidation, Measurement, PerfDb, unix_now};
use lz_scenarios::calls::{Norm, ScenarioCall};
use lz_scenarios::measured::{evidence, measurement, spec_of};
use lz_scenarios::process::rank;
use lz_test_support::Folder;

/// The selected kernel when the only measurement makes `gamma`, the kernel with the lowest priority, the
/// fastest.
fn selected_with(change: impl FnOnce(&mut Measurement)) -> String {
    decide(&[changed_measurement(change)])
}

fn changed_measurement(change: impl FnOnce(&mut Measurement)) -> Measurement {
    let mut row = measurement(&Norm::default(), &spec_of(&rank(), "gamma.norm.rms"), &detect_cpu(), 100.0);
    change(&mut row);
    row
}

fn decide(rows: &[Measurement]) -> String {
    let folder = Folder::new();
    let database = PerfDb::open(folder.database()).db;
    database.record_all(rows).unwrap();
    Norm::default().selected(&engine_with_database(&database)).unwrap()
}

fn engine_with_database(database: &PerfDb) -> Engine {
    let engine = rank();
    engine.set_evidence(Some(evidence(database, &detect_cpu())));
    engine
}

/// Baseline of this file: a measurement of the same kernel, device and software is used.
#[test]
fn a_matching_measurement_is_used() {
    assert_eq!(selected_with(|_| {}), "gamma.norm.rms");
}

/// The library was upgraded: measurements of the old version are ignored.
#[test]
fn a_measurement_of_another_version_is_ignored() {
    assert_eq!(selected_with(|row| row.key.kernel_version = "0.9".to_owned()), "alpha.norm.rms");
}

/// The driver was upgraded: measurements under the old driver are ignored.
#[test]
fn a_measurement_of_another_driver_is_ignored() {
    assert_eq!(selected_with(|row| row.key.setting.driver = "570.1".to_owned()), "alpha.norm.rms");
}

/// A measurement was taken with another torch version: it is ignored.
#[test]
fn a_measurement_of_another_torch_is_ignored() {
    assert_eq!(selected_with(|row| row.key.setting.torch = "2.9".to_owned()), "alpha.norm.rms");
}

/// The backend's descriptor changed its limits: measurements under the old capabilities hash are ignored.
#[test]
fn a_measurement_of_another_descriptor_is_ignored() {
    assert_eq!(selected_with(|row| row.key.capabilities_hash = "0123".to_owned()), "alpha.norm.rms");
}

/// bf16 was tuned, f32 is served: measurements are per dtype.
#[test]
fn a_measurement_of_another_dtype_is_ignored() {
    let half = Norm { dtype: DType::BF16, weight: Some(DType::BF16), ..Norm::default() };
    let row = measurement(&half, &spec_of(&rank(), "gamma.norm.rms"), &detect_cpu(), 100.0);
    assert_eq!(decide(&[row]), "alpha.norm.rms");
}

/// Measurements of a nightly build expire after a day: from then on they are ignored.
#[test]
fn a_nightly_measurement_expires() {
    assert_eq!(selected_with(|row| row.expires_at = Some(unix_now() + 3600)), "gamma.norm.rms");
    assert_eq!(selected_with(|row| row.expires_at = Some(unix_now() - 1)), "alpha.norm.rms");
}

/// The clock of the measuring machine was a day ahead: the measurement counts as new.
#[test]
fn a_future_timestamp_counts_as_new() {
    assert_eq!(selected_with(|row| row.timing.measured_at = unix_now() + 86_400), "gamma.norm.rms");
}

/// A single or noisy sample does not outweigh five points of priority, 40 stable samples do; a year later
/// they do not.
#[test]
fn few_noisy_or_old_samples_have_low_weight() {
    assert_eq!(selected_with(|row| row.timing.samples = 1), "alpha.norm.rms");
    assert_eq!(selected_with(|row| row.timing.variance_ns2 = 10_000.0), "alpha.norm.rms");
    assert_eq!(selected_with(|row| row.timing.measured_at -= 365 * 86_400), "alpha.norm.rms");
    assert_eq!(selected_with(|row| row.timing.samples = 40), "gamma.norm.rms");
}

/// A kernel is half as fast as the fastest one: it loses points and its first rank.
#[test]
fn a_slow_kernel_loses_its_priority_advantage() {
    let slow = measurement(&Norm::default(), &spec_of(&rank(), "alpha.norm.rms"), &detect_cpu(), 200.0);
    let fast = measurement(&Norm::default(), &spec_of(&rank(), "beta.norm.rms"), &detect_cpu(), 100.0);
    assert_eq!(decide(&[slow, fast]), "beta.norm.rms");
}

/// An operator invalidates the measurements of a kernel from a throttled machine: they are ignored and stay
/// visible.
#[test]
fn invalidated_measurements_are_ignored_and_stay_visible() {
    let folder = Folder::new();
    let database = PerfDb::open(folder.database()).db;
    database.record(&changed_measurement(|_| {})).unwrap();
    assert_eq!(Norm::default().selected(&engine_with_database(&database)).unwrap(), "gamma.norm.rms");
    assert_eq!(database.invalidate(&Invalidation::Kernel("gamma.norm.rms".to_owned())), Ok(1));
    assert_eq!(Norm::default().selected(&engine_with_database(&database)).unwrap(), "alpha.norm.rms");
    let rows = database.show(&lz_perfdb::Filter::default(), 9);
    assert_eq!((rows.len(), rows[0].valid), (1, false));
}
