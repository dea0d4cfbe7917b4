//! Cost of writing the performance database and of loading it at startup.

use std::fs::File;
use std::hint::black_box;
use std::io::Write;

use lz_device::detect_cpu;
use lz_perfdb::{Measurement, PerfDb, Setting, unix_now};

use super::Bench;
use crate::calls::Norm;
use crate::measured::{measurement, spec_of};
use crate::process::rank;
use lz_test_support::Folder;

fn rows(count: i64) -> Vec<Measurement> {
    let (spec, device) = (spec_of(&rank(), "alpha.norm.rms"), detect_cpu());
    (1..=count).map(|hidden| measurement(&Norm::hidden(hidden), &spec, &device, 100.0)).collect()
}

/// Stores one measurement, safe for concurrent processes; compared with appending a line to a file.
pub fn a_measurement_is_stored(bench: &mut Bench) {
    let folder = Folder::new();
    let (database, rows) = (PerfDb::open(folder.database()).db, rows(1));
    let Ok(mut file) = File::create(folder.file("figures.jsonl")) else { return };
    bench.compare(
        "a line in a file",
        50,
        || drop(black_box(database.record(&rows[0]))),
        || drop(black_box(writeln!(file, "{:?}", rows[0].timing).and_then(|()| file.flush()))),
    );
}

/// Loads 1000 measurements of one operation, as a server does at startup.
pub fn a_thousand_figures_are_loaded(bench: &mut Bench) {
    let folder = Folder::new();
    let database = PerfDb::open(folder.database()).db;
    if database.record_all(&rows(1000)).is_err() {
        return;
    }
    let setting = Setting::of(&detect_cpu(), "");
    bench.measure(1, || drop(black_box(database.load_operation("norm.rms", &setting, unix_now()))));
}

/// Opens a database of 1000 measurements: locking, integrity check, version check.
pub fn a_database_is_opened(bench: &mut Bench) {
    let folder = Folder::new();
    if PerfDb::open(folder.database()).db.record_all(&rows(1000)).is_err() {
        return;
    }
    bench.measure(1, || drop(black_box(PerfDb::open(folder.database()))));
}
