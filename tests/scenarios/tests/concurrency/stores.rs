//! One database with many writers: threads and processes, concurrent readers, corruption that several
//! processes find at once.

use std::io::BufReader;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use lz_device::detect_cpu;
use lz_perfdb::{Filter, Measurement, OpenStatus, PerfDb};
use lz_scenarios::calls::Norm;
use lz_scenarios::measured::{measurement, spec_of};
use lz_scenarios::process::{decisions, freeze_rank, open, rank, rank_with, run_process, start};
use lz_test_support::Folder;

use super::OTHER_PROCESS;

fn row(hidden: i64) -> Measurement {
    measurement(&Norm::hidden(hidden), &spec_of(&rank(), "alpha.norm.rms"), &detect_cpu(), 100.0)
}

fn finish(children: Vec<std::process::Child>) {
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
}

/// Four tuners measure the same kernel for the same shapes at the same time: the samples of all four are
/// stored.
#[test]
fn concurrent_tuners_lose_no_sample() {
    let folder = Folder::new();
    let path = folder.database();
    let tune = ["tune", path.to_str().unwrap(), "beta.norm.rms", "500"];
    finish((0..4).map(|_| start(OTHER_PROCESS, &tune)).collect());
    let database = PerfDb::open(&path).db;
    let rows = database.show(&Filter::default(), 99);
    assert_eq!(rows.len(), 5);
    assert!(rows.iter().all(|row| row.timing.samples == 160 && row.timing.median_ns == 500.0), "{rows:?}");
}

/// 16 threads of one process write through one handle: every row is stored, and rows with the same key are
/// merged.
#[test]
fn threads_share_one_handle() {
    let folder = Folder::new();
    let database = open(&folder.database());
    thread::scope(|scope| {
        for number in 0..16 {
            let database = &database;
            scope.spawn(move || {
                for turn in 0..20 {
                    database.record(&row(1000 + number * 20 + turn)).unwrap();
                    database.record(&row(1)).unwrap();
                }
            });
        }
    });
    assert_eq!(database.count(&Filter::default()), 16 * 20 + 1);
    let shared = database.show(&Filter::default(), 999).into_iter().map(|row| row.timing.samples).max();
    assert_eq!(shared, Some(16 * 20 * 40));
    assert_eq!(database.status().dropped_writes, 0);
}

/// A dashboard reads while a tuner writes: the number of rows only grows, and every row is complete.
#[test]
fn a_concurrent_reader_sees_complete_rows() {
    let folder = Folder::new();
    let writer = open(&folder.database());
    let reader = open(&folder.database());
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut last = 0;
            while !done.load(Ordering::SeqCst) {
                let rows = reader.show(&Filter::default(), 999);
                assert!(rows.len() >= last, "{last} then {}", rows.len());
                assert!(rows.iter().all(|row| row.timing.check().is_ok()));
                last = rows.len();
            }
        });
        (1..=150).for_each(|hidden| writer.record(&row(hidden)).unwrap());
        done.store(true, Ordering::SeqCst);
    });
    assert_eq!(reader.count(&Filter::default()), 150);
}

/// Three processes start at the same time and find the database corrupted: it is quarantined once, and all
/// continue with the new one.
#[test]
fn a_corrupted_file_is_quarantined_once() {
    let folder = Folder::new();
    let path = folder.database();
    drop(PerfDb::open(&path));
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[100..].fill(0x5a);
    std::fs::write(&path, bytes).unwrap();
    let decide = ["decide", path.to_str().unwrap()];
    let children: Vec<_> = (0..3).map(|_| start(OTHER_PROCESS, &decide)).collect();
    finish(children);
    assert!(folder.names_with(".corrupt-1").contains(&"perfdb.sqlite.corrupt-1".to_owned()));
    assert!(folder.names_with(".corrupt-2").is_empty());
    assert_eq!(PerfDb::open(&path).status, OpenStatus::Ready { migrated_from: None });
}

/// Four ranks start at the same time with one database: their decisions are equal in every bucket.
#[test]
fn ranks_with_one_database_make_equal_decisions() {
    let folder = Folder::new();
    let path = folder.database();
    let path = path.to_str().unwrap();
    run_process(OTHER_PROCESS, &["tune", path, "gamma.norm.rms", "100"]);
    let expected = decisions(&rank_with(&open(std::path::Path::new(path))));
    assert_eq!(expected, ["gamma.norm.rms"; 5]);
    let ranks: Vec<_> = (0..4).map(|_| start(OTHER_PROCESS, &["decide", path])).collect();
    for rank in ranks {
        let output = rank.wait_with_output().unwrap();
        let lines: Vec<String> =
            String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect();
        assert_eq!(lines, expected);
    }
}

/// Four ranks without a database write lockfiles at the same time: all digests equal ours.
#[test]
fn digests_of_ranks_are_equal() {
    let ranks: Vec<_> = (0..4).map(|_| start(OTHER_PROCESS, &["digest"])).collect();
    let expected = freeze_rank(&rank()).digest();
    for rank in ranks {
        let output = rank.wait_with_output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), expected);
    }
}

/// The database is exported while a tuner writes: the export is consistent, and imports without a rejected
/// line.
#[test]
fn an_export_during_writes_is_consistent() {
    let folder = Folder::new();
    let (writer, exporter) = (open(&folder.database()), open(&folder.database()));
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                let mut text = Vec::new();
                let exported = exporter.export(&Filter::default(), &mut text).unwrap();
                let copy = Folder::new();
                let report = open(&copy.database()).import(BufReader::new(text.as_slice())).unwrap();
                assert_eq!(report.stored, exported.measurements);
            }
        });
        (1..=100).for_each(|hidden| writer.record(&row(hidden)).unwrap());
        done.store(true, Ordering::SeqCst);
    });
}

/// Old measurements are pruned while new ones are written: only the old ones are removed.
#[test]
fn pruning_during_writes_removes_old_rows_only() {
    let folder = Folder::new();
    let (writer, pruner) = (open(&folder.database()), open(&folder.database()));
    let old: Vec<Measurement> = (1001..=1100)
        .map(|hidden| {
            let mut row = row(hidden);
            row.timing.measured_at = 1000;
            row
        })
        .collect();
    writer.record_all(&old).unwrap();
    let pruned = AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            let filter = Filter { measured_before: Some(2000), ..Filter::default() };
            for _ in 0..20 {
                pruned.fetch_add(pruner.prune(&filter).unwrap() as u64, Ordering::SeqCst);
            }
        });
        (1..=100).for_each(|hidden| writer.record(&row(hidden)).unwrap());
    });
    assert_eq!((pruned.into_inner(), writer.count(&Filter::default())), (100, 100));
}
