//! The performance database in trouble: selection goes on, and the database says what happened.

use std::fs;
use std::io::{BufRead, BufReader};

use lz_device::detect_cpu;
use lz_perfdb::{ClosedReason, DropReason, Filter, Mode, OpenStatus, Options, PerfDb, SCHEMA_VERSION};
use lz_scenarios::calls::Norm;
use lz_scenarios::measured::{measurement, spec_of};
use lz_scenarios::process::{decisions, rank, rank_with, start};
use lz_test_support::Folder;

use super::OTHER;

fn row(hidden: i64) -> lz_perfdb::Measurement {
    measurement(&Norm::hidden(hidden), &spec_of(&rank(), "gamma.norm.rms"), &detect_cpu(), 100.0)
}

fn filled(folder: &Folder) {
    let database = PerfDb::open(folder.database()).db;
    database.record_all(&(1..=200).map(row).collect::<Vec<_>>()).unwrap();
}

/// A copy was cut off half-way: the damaged file is kept beside, a new one is started, and ranks decide by priorities meanwhile.
#[test]
fn a_truncated_database_is_set_aside() {
    let folder = Folder::new();
    filled(&folder);
    let whole = fs::read(folder.database()).unwrap();
    fs::write(folder.database(), &whole[..whole.len() / 2]).unwrap();
    let opened = PerfDb::open(folder.database());
    let OpenStatus::Quarantined { kept_as, .. } = &opened.status else { panic!("{:?}", opened.status) };
    assert_eq!(fs::read(kept_as).unwrap(), &whole[..whole.len() / 2], "the evidence is kept as it was");
    assert_eq!(decisions(&rank_with(&opened.db)), ["alpha.norm.rms"; 5]);
    opened.db.record(&row(1)).unwrap();
    assert_eq!(opened.db.count(&Filter::default()), 1);
}

/// `perfdb.path` names a text file by mistake: it is left as it is, and ranks decide without a database.
#[test]
fn a_text_file_in_its_place_is_left_alone() {
    let folder = Folder::new();
    let note = "measurements of last week, do not delete\n".repeat(100);
    folder.write("perfdb.sqlite", &note);
    let opened = PerfDb::open(folder.database());
    let OpenStatus::Closed(ClosedReason::NotADatabase { .. }) = opened.status else {
        panic!("{:?}", opened.status)
    };
    assert!(folder.names_with(".corrupt-").is_empty());
    assert_eq!(fs::read_to_string(folder.database()).unwrap(), note);
}

/// A newer release wrote the file: this one does not touch it, says both versions, and decides without it.
#[test]
fn a_database_of_a_newer_release_is_left_alone() {
    let folder = Folder::new();
    filled(&folder);
    let connection = rusqlite::Connection::open(folder.database()).unwrap();
    connection.pragma_update(None, "user_version", SCHEMA_VERSION + 1).unwrap();
    drop(connection);
    let before = fs::read(folder.database()).unwrap();
    let opened = PerfDb::open(folder.database());
    let expected = ClosedReason::NewerSchema { found: SCHEMA_VERSION + 1, supported: SCHEMA_VERSION };
    assert_eq!(opened.status, OpenStatus::Closed(expected.clone()));
    assert_eq!(opened.db.record(&row(1)), Err(DropReason::Closed(expected)));
    assert_eq!(decisions(&rank_with(&opened.db)), ["alpha.norm.rms"; 5]);
    drop(opened);
    assert_eq!(fs::read(folder.database()).unwrap(), before);
}

/// The path points at a database of another program: it is refused by its mark, and not a byte of it changes.
#[test]
fn a_database_of_another_program_is_not_touched() {
    let folder = Folder::new();
    let connection = rusqlite::Connection::open(folder.database()).unwrap();
    connection.execute_batch("CREATE TABLE history (url TEXT); INSERT INTO history VALUES ('x');").unwrap();
    drop(connection);
    let opened = PerfDb::open(folder.database());
    assert_eq!(opened.status, OpenStatus::Closed(ClosedReason::ForeignDatabase { application_id: 0 }));
    drop(opened);
    let connection = rusqlite::Connection::open(folder.database()).unwrap();
    let tables: u32 =
        connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).unwrap();
    assert_eq!(tables, 1);
}

/// The database is opened for inspection only: it answers, and a write is dropped with that reason.
#[test]
fn a_read_only_database_answers_and_drops_writes() {
    let folder = Folder::new();
    filled(&folder);
    let options = Options { read_only: true, ..Options::default() };
    let opened = PerfDb::open_with(folder.database(), options);
    assert!(matches!(opened.status, OpenStatus::ReadOnly { .. }), "{:?}", opened.status);
    assert_eq!(opened.db.count(&Filter::default()), 200);
    assert_eq!(opened.db.record(&row(1)), Err(DropReason::ReadOnly));
    let status = opened.db.status();
    assert_eq!((status.mode, status.dropped_writes), (Mode::ReadOnly, 1));
}

/// The disk is full while a tuner writes: what was stored stays readable, the dropped writes are counted, nothing is damaged.
#[test]
fn a_full_disk_drops_writes_and_damages_nothing() {
    let folder = Folder::new();
    filled(&folder);
    let options = Options { max_pages: Some(40), ..Options::default() };
    let opened = PerfDb::open_with(folder.database(), options);
    let failure = (1000..20_000).find_map(|hidden| opened.db.record(&row(hidden)).err());
    assert_eq!(failure, Some(DropReason::DiskFull));
    assert!(opened.db.count(&Filter::default()) >= 200);
    assert_eq!(opened.db.status().dropped_writes, 1);
    drop(opened);
    assert_eq!(PerfDb::open(folder.database()).status, OpenStatus::Ready { migrated_from: None });
}

/// The folder of the database is a file: there is no database, every write is dropped, and ranks decide all the same.
#[test]
fn an_impossible_path_leaves_selection_without_a_database() {
    let folder = Folder::new();
    folder.write("cache", "not a folder");
    let opened = PerfDb::open(folder.file("cache/perfdb.sqlite"));
    assert!(
        matches!(opened.status, OpenStatus::Closed(ClosedReason::Unavailable { .. })),
        "{:?}",
        opened.status
    );
    assert!(opened.db.record(&row(1)).is_err());
    assert_eq!(decisions(&rank_with(&opened.db)), ["alpha.norm.rms"; 5]);
}

/// A timer returned NaN: the figure is refused by name, and the database learns no nonsense.
#[test]
fn nonsense_is_refused_by_name() {
    let folder = Folder::new();
    let database = PerfDb::open(folder.database()).db;
    let mut wrong = row(1);
    wrong.timing.median_ns = f64::NAN;
    let failure = database.record(&wrong).unwrap_err();
    assert_eq!(failure.to_string(), "invalid record: `median_ns`: NaN is not a finite number of at least 0");
    assert_eq!(database.count(&Filter::default()), 0);
}

/// A tuner is killed with `kill -9` in the middle of its writes, again and again: nothing that it reported as stored is lost.
#[test]
fn a_killed_tuner_loses_nothing_that_it_reported() {
    let folder = Folder::new();
    let path = folder.database();
    let mut promised = 0;
    for round in 0..5u64 {
        let first = (1 + round * 10_000).to_string();
        let mut tuner = start(OTHER, &["tune-for-ever", path.to_str().unwrap(), &first]);
        let mut lines = BufReader::new(tuner.stdout.take().unwrap()).lines();
        for _ in 0..1 + round * 9 {
            assert!(lines.next().unwrap().unwrap().starts_with("stored "));
            promised += 1;
        }
        // The tuner does not wait for us: the kill falls anywhere in a write.
        tuner.kill().unwrap();
        tuner.wait().unwrap();
        let opened = PerfDb::open(&path);
        assert_eq!(opened.status, OpenStatus::Ready { migrated_from: None });
        assert!(opened.db.count(&Filter::default()) >= promised);
    }
    assert!(folder.names_with("corrupt").is_empty());
}
