//! Figures that must not count: of another version, driver, dtype or descriptor, too old, too few, from a clock that is wrong.

use lz_core::DType;
use lz_device::detect_cpu;
use lz_engine::Engine;
use lz_perfdb::{Invalidation, Measurement, PerfDb, unix_now};
use lz_scenarios::calls::{Ask, Norm};
use lz_scenarios::measured::{evidence, measurement, spec_of};
use lz_scenarios::process::rank;
use lz_test_support::Folder;

/// What is chosen when the only figure there is makes `gamma`, the last on paper, the fastest.
fn chosen_with(change: impl FnOnce(&mut Measurement)) -> String {
    decide(&[figure(change)])
}

fn figure(change: impl FnOnce(&mut Measurement)) -> Measurement {
    let mut row = measurement(&Norm::default(), &spec_of(&rank(), "gamma.norm.rms"), &detect_cpu(), 100.0);
    change(&mut row);
    row
}

fn decide(rows: &[Measurement]) -> String {
    let folder = Folder::new();
    let database = PerfDb::open(folder.database()).db;
    database.record_all(rows).unwrap();
    Norm::default().chosen(&with(&database)).unwrap()
}

fn with(database: &PerfDb) -> Engine {
    let engine = rank();
    engine.set_evidence(Some(evidence(database, &detect_cpu())));
    engine
}

/// A figure of the very kernel, device and software counts: the ground that the other scenarios of this file stand on.
#[test]
fn a_fitting_figure_counts() {
    assert_eq!(chosen_with(|_| {}), "gamma.norm.rms");
}

/// The library was upgraded: what was measured of the old version says nothing about the new one.
#[test]
fn a_figure_of_another_version_does_not_count() {
    assert_eq!(chosen_with(|row| row.key.kernel_version = "0.9".to_owned()), "alpha.norm.rms");
}

/// The driver was upgraded overnight: what was measured under the old one does not count.
#[test]
fn a_figure_of_another_driver_does_not_count() {
    assert_eq!(chosen_with(|row| row.key.setting.driver = "570.1".to_owned()), "alpha.norm.rms");
}

/// A figure was measured with another torch in the process: it does not count without it.
#[test]
fn a_figure_of_another_torch_does_not_count() {
    assert_eq!(chosen_with(|row| row.key.setting.torch = "2.9".to_owned()), "alpha.norm.rms");
}

/// The backend's descriptor changed its limits: figures under the old digest do not count.
#[test]
fn a_figure_of_another_descriptor_does_not_count() {
    assert_eq!(chosen_with(|row| row.key.capabilities_hash = "0123".to_owned()), "alpha.norm.rms");
}

/// bf16 was tuned, f32 is served: each dtype has figures of its own.
#[test]
fn a_figure_of_another_dtype_does_not_count() {
    let half = Norm { dtype: DType::BF16, weight: Some(DType::BF16), ..Norm::default() };
    let row = measurement(&half, &spec_of(&rank(), "gamma.norm.rms"), &detect_cpu(), 100.0);
    assert_eq!(decide(&[row]), "alpha.norm.rms");
}

/// A nightly build's figures live for a day: a second after their end they are no longer read.
#[test]
fn a_nightly_figure_expires() {
    assert_eq!(chosen_with(|row| row.expires_at = Some(unix_now() + 3600)), "gamma.norm.rms");
    assert_eq!(chosen_with(|row| row.expires_at = Some(unix_now() - 1)), "alpha.norm.rms");
}

/// The machine that measured had its clock a day ahead: the figure is taken as new, not as suspect.
#[test]
fn a_clock_that_ran_ahead_is_no_reason_for_doubt() {
    assert_eq!(chosen_with(|row| row.timing.measured_at = unix_now() + 86_400), "gamma.norm.rms");
}

/// One noisy sample does not overturn five points of priority, forty steady ones do; a year later they no longer do.
#[test]
fn few_noisy_or_old_samples_weigh_little() {
    assert_eq!(chosen_with(|row| row.timing.samples = 1), "alpha.norm.rms");
    assert_eq!(chosen_with(|row| row.timing.variance_ns2 = 10_000.0), "alpha.norm.rms");
    assert_eq!(chosen_with(|row| row.timing.measured_at -= 365 * 86_400), "alpha.norm.rms");
    assert_eq!(chosen_with(|row| row.timing.samples = 40), "gamma.norm.rms");
}

/// A kernel is twice as slow as the fastest one: it loses points, and loses its first place with them.
#[test]
fn a_slow_kernel_loses_what_its_name_promised() {
    let slow = measurement(&Norm::default(), &spec_of(&rank(), "alpha.norm.rms"), &detect_cpu(), 200.0);
    let fast = measurement(&Norm::default(), &spec_of(&rank(), "beta.norm.rms"), &detect_cpu(), 100.0);
    assert_eq!(decide(&[slow, fast]), "beta.norm.rms");
}

/// An operator invalidates the figures of a kernel that was measured on a throttled machine: they end, and stay for inspection.
#[test]
fn invalidated_figures_end_and_stay_visible() {
    let folder = Folder::new();
    let database = PerfDb::open(folder.database()).db;
    database.record(&figure(|_| {})).unwrap();
    assert_eq!(Norm::default().chosen(&with(&database)).unwrap(), "gamma.norm.rms");
    assert_eq!(database.invalidate(&Invalidation::Kernel("gamma.norm.rms".to_owned())), Ok(1));
    assert_eq!(Norm::default().chosen(&with(&database)).unwrap(), "alpha.norm.rms");
    let rows = database.show(&lz_perfdb::Filter::default(), 9);
    assert_eq!((rows.len(), rows[0].valid), (1, false));
}
