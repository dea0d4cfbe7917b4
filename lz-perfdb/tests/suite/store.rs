//! The performance database: storing, looking up, invalidating, pruning, exporting and importing.

use lz_perfdb::{
    Bucket, DropReason, Filter, HealthState, ImportError, ImportReport, Invalidation, Measurement, Mode,
    OpenStatus, PerfDb, Query, RejectedLine, Setting, Timing,
};
use lz_test_support::Folder;

use crate::support::{NOW, health_row, measurement, setting};

fn kernels_found(db: &PerfDb, bucket: u64, now: u64) -> Vec<String> {
    let bucket = Bucket::from([bucket, u64::MAX].as_slice());
    let setting = setting();
    let query = Query { operation: "norm.rms", setting: &setting, dtypes: "bf16", bucket: &bucket };
    db.lookup(query, now).into_iter().map(|evidence| evidence.key.kernel).collect()
}

#[test]
fn records_are_found_after_a_restart() {
    let folder = Folder::new();
    let opened = PerfDb::open(folder.database());
    assert_eq!(opened.status, OpenStatus::Created);
    opened.db.record(&measurement("slow", 1, 900.0)).unwrap();
    opened.db.record(&measurement("fast", 1, 300.0)).unwrap();
    opened.db.record(&measurement("elsewhere", 2, 100.0)).unwrap();
    drop(opened);

    let opened = PerfDb::open(folder.database());
    assert_eq!(opened.status, OpenStatus::Ready { migrated_from: None });
    assert_eq!(kernels_found(&opened.db, 1, NOW), ["fast", "slow"], "the best comes first");
    assert_eq!(kernels_found(&opened.db, 3, NOW), Vec::<String>::new());
    let snapshot = opened.db.load_operation("norm.rms", &setting(), NOW);
    assert_eq!(snapshot.rows().len(), 3);
    let one = measurement("fast", 1, 300.0).key;
    assert_eq!(snapshot.of_bucket(one.bucket.words()).len(), 2);
    assert_eq!(snapshot.of_kernel(&one.bucket, "bf16", "fast", "1.0", "abc").count(), 1);
    assert_eq!(snapshot.of_kernel(&one.bucket, "bf16", "fast", "1.0", "other").count(), 0);
    assert_eq!(opened.db.load_operation("norm.layer", &setting(), NOW).rows().len(), 0);
}

#[test]
fn every_key_column_distinguishes_measurements() {
    let folder = Folder::new();
    let db = PerfDb::open(folder.database()).db;
    let base = measurement("k", 1, 100.0);
    let changes: [fn(&mut Measurement); 12] = [
        |m| m.key.kernel.push('x'),
        |m| m.key.kernel_version.push('x'),
        |m| m.key.operation.push('x'),
        |m| m.key.setting.device_uuid.push('x'),
        |m| m.key.setting.driver.push('x'),
        |m| m.key.setting.toolkit.push('x'),
        |m| m.key.setting.torch.push('x'),
        |m| m.key.setting.layerzero.push('x'),
        |m| m.key.dtypes.push('x'),
        |m| m.key.bucket = Bucket::from([5u64].as_slice()),
        |m| m.key.capabilities_hash.push('x'),
        |m| m.key.environment = "hot/high/throttled".parse().unwrap(),
    ];
    db.record(&base).unwrap();
    for change in changes {
        let mut other = base.clone();
        change(&mut other);
        db.record(&other).unwrap();
    }
    let all = db.show(&Filter::default(), 100);
    assert_eq!(all.len(), 13);
    assert!(all.iter().all(|evidence| evidence.timing.samples == 10));
}

#[test]
fn samples_of_the_same_key_are_merged() {
    let folder = Folder::new();
    let db = PerfDb::open(folder.database()).db;
    db.record(&measurement("k", 1, 100.0)).unwrap();
    db.record(&measurement("k", 1, 200.0)).unwrap();
    let all = db.show(&Filter::default(), 10);
    assert_eq!(all.len(), 1);
    assert_eq!((all[0].timing.samples, all[0].timing.median_ns), (20, 150.0));
    assert_eq!(all[0].timing.variance_ns2, 4.0 + 2500.0);
}

#[test]
fn measurements_expire() {
    let folder = Folder::new();
    let db = PerfDb::open(folder.database()).db;
    let nightly = Measurement { expires_at: Some(NOW + 10), ..measurement("nightly", 1, 100.0) };
    db.record(&nightly).unwrap();
    assert_eq!(kernels_found(&db, 1, NOW + 9), ["nightly"]);
    assert_eq!(kernels_found(&db, 1, NOW + 10), Vec::<String>::new());
    assert!(db.load_operation("norm.rms", &setting(), NOW + 10).rows().is_empty());
    // A measurement after expiry replaces the expired one.
    let timing = Timing { measured_at: NOW + 20, median_ns: 500.0, ..nightly.timing };
    db.record(&Measurement { timing, expires_at: Some(NOW + 30), ..nightly }).unwrap();
    assert_eq!(db.show(&Filter::default(), 9)[0].timing.median_ns, 500.0);
    assert_eq!(db.prune(&Filter { expired_by: Some(NOW + 30), ..Filter::default() }), Ok(1));
}

#[test]
fn changes_invalidate_and_measuring_again_revalidates() {
    let folder = Folder::new();
    let db = PerfDb::open(folder.database()).db;
    db.record(&measurement("a", 1, 100.0)).unwrap();
    db.record(&measurement("b", 1, 200.0)).unwrap();
    let same = Invalidation::SettingChanged(setting());
    assert_eq!(db.invalidate(&same), Ok(0));
    let driver = Invalidation::SettingChanged(Setting { driver: "590".to_owned(), ..setting() });
    assert_eq!(db.invalidate(&driver), Ok(2));
    assert_eq!(kernels_found(&db, 1, NOW), Vec::<String>::new());
    db.record(&measurement("a", 1, 700.0)).unwrap();
    assert_eq!(kernels_found(&db, 1, NOW), ["a"]);
    assert_eq!(
        db.show(&Filter { kernel: Some("a".to_owned()), ..Filter::default() }, 9)[0].timing.median_ns,
        700.0
    );

    let version = |version: &str| Invalidation::KernelVersion { kernel: "a".into(), version: version.into() };
    assert_eq!((db.invalidate(&version("1.0")), db.invalidate(&version("2.0"))), (Ok(0), Ok(1)));
    db.record(&measurement("a", 1, 700.0)).unwrap();
    let hash = |hash: &str| Invalidation::Capabilities { kernel: "a".into(), capabilities_hash: hash.into() };
    assert_eq!((db.invalidate(&hash("abc")), db.invalidate(&hash("def"))), (Ok(0), Ok(1)));
    db.record(&measurement("a", 1, 700.0)).unwrap();
    assert_eq!(db.invalidate(&Invalidation::Kernel("a".to_owned())), Ok(1));
    assert_eq!(db.prune(&Filter { invalid_only: true, ..Filter::default() }), Ok(2));
}

#[test]
fn prune_and_show_use_the_filter() {
    let folder = Folder::new();
    let db = PerfDb::open(folder.database()).db;
    for (kernel, age) in [("a", 0), ("b", 100), ("c", 200)] {
        let mut old = measurement(kernel, 1, 100.0);
        old.timing.measured_at = NOW - age;
        db.record(&old).unwrap();
    }
    let everything = db.prune(&Filter::default());
    assert!(matches!(everything, Err(DropReason::Rejected(_))), "{everything:?}");
    let old = Filter { measured_before: Some(NOW - 50), ..Filter::default() };
    assert_eq!((db.count(&old), db.show(&old, 1).len()), (2, 1));
    assert_eq!(db.prune(&Filter { kernel: Some("b".to_owned()), ..old.clone() }), Ok(1));
    assert_eq!(db.prune(&Filter { operation: Some("other".to_owned()), ..Filter::default() }), Ok(0));
    assert_eq!(db.prune(&Filter { device_uuid: Some("GPU-1".to_owned()), ..Filter::default() }), Ok(2));
}

#[test]
fn invalid_measurements_are_rejected() {
    let folder = Folder::new();
    let db = PerfDb::open(folder.database()).db;
    let mut wrong = measurement("k", 1, 100.0);
    wrong.timing.median_ns = f64::NAN;
    let result = db.record_all(&[measurement("good", 1, 1.0), wrong]);
    assert!(
        matches!(&result, Err(DropReason::Rejected(rejection)) if rejection.field == "median_ns"),
        "{result:?}"
    );
    assert_eq!(db.count(&Filter::default()), 0, "all of them or none");
    let mut unnamed = measurement("", 1, 100.0);
    assert!(db.record(&unnamed).is_err());
    unnamed.key.kernel = "x".repeat(100_000);
    assert!(db.record(&unnamed).is_ok(), "long is not wrong");
    assert_eq!(db.status().dropped_writes, 2);
}

#[test]
fn health_is_stored_and_the_later_observation_wins() {
    let folder = Folder::new();
    let db = PerfDb::open(folder.database()).db;
    let row = health_row("k", 1);
    db.save_health(&[row.clone(), health_row("other", 2)]).unwrap();
    drop(db);
    let db = PerfDb::open(folder.database()).db;
    assert_eq!(db.load_health(Some("GPU-1")), [row.clone(), health_row("other", 2)]);
    assert!(db.load_health(Some("GPU-2")).is_empty());

    let mut stale = row.clone();
    (stale.updated_at, stale.state) = (NOW - 1, HealthState::Closed);
    db.save_health(&[stale.clone()]).unwrap();
    (stale.failures, stale.reopenings) = (0, 0);
    db.save_health(&[stale.clone()]).unwrap();
    assert_eq!(db.load_health(None)[0], row, "an older observation changes nothing");
    stale.updated_at = NOW + 1;
    db.save_health(&[stale]).unwrap();
    assert_eq!(db.load_health(None), [health_row("other", 2)], "the healthy need no row");
}

#[test]
fn import_is_idempotent() {
    let folder = Folder::new();
    let db = PerfDb::open(folder.database()).db;
    db.record(&measurement("a", 1, 123.456_789)).unwrap();
    db.record(&measurement("b", u64::MAX - 1, 1e9)).unwrap();
    db.save_health(&[health_row("k", 1)]).unwrap();
    let mut text = Vec::new();
    let exported = db.export(&Filter::default(), &mut text).unwrap();
    assert_eq!((exported.measurements, exported.health), (2, 1));

    let other = PerfDb::open(folder.path().join("other/deep/perfdb.sqlite")).db;
    let first = other.import(text.as_slice()).unwrap();
    assert_eq!(first, ImportReport { stored: 2, kept: 0, health: 1 });
    let second = other.import(text.as_slice()).unwrap();
    assert_eq!((second.stored, second.kept), (0, 2));
    assert_eq!(other.show(&Filter::default(), 9), db.show(&Filter::default(), 9));
    assert_eq!(other.load_health(None), db.load_health(None));
}

#[test]
fn import_with_invalid_lines_is_rejected_and_reports_them() {
    let folder = Folder::new();
    let db = PerfDb::open(folder.database()).db;
    db.record(&measurement("a", 1, 100.0)).unwrap();
    let mut text = Vec::new();
    db.export(&Filter::default(), &mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    let (header, row) = text.trim_end().split_once('\n').unwrap();
    let nonsense = row.replace("\"samples\":10", "\"samples\":0");
    let other = row.replace("\"kernel\":\"a\"", "\"kernel\":\"b\"");
    let file = format!("{header}\n\n{{\n{nonsense}\n{other}\n");
    let rejected = |text: &[u8]| match db.import(text) {
        Err(ImportError::Rejected { lines, count }) => {
            assert_eq!(lines.len(), count.min(20));
            lines
        }
        other => panic!("{other:?}"),
    };
    let lines = rejected(file.as_bytes());
    assert_eq!(lines.iter().map(|line| line.line).collect::<Vec<_>>(), [3, 4]);
    assert_eq!(lines[1].message, "`samples`: must be at least 1");
    assert_eq!(db.count(&Filter::default()), 1, "nothing of it was stored");

    let message = "the first line must be the header that `export` writes".to_owned();
    assert_eq!(rejected(row.as_bytes()), [RejectedLine { line: 1, message }]);
    let newer = header.replace("\"version\":1", "\"version\":2");
    assert_eq!(
        rejected(newer.as_bytes())[0].message,
        "format `layerzero.perfdb` version 2 is not `layerzero.perfdb` version 1"
    );
    assert_eq!(rejected(b"")[0].message, "the file is empty");
    assert_eq!(rejected(b"\xff\xfe garbage").len(), 1);
    let endless = format!("{header}\n{}", "{}\n".repeat(5000));
    let error = db.import(endless.as_bytes()).unwrap_err().to_string();
    assert!(error.starts_with("nothing was imported: 5000 invalid lines\n  line 2: "), "{error}");
    assert!(error.ends_with("… and 4980 more"), "{error}");
}

#[test]
fn closed_database_returns_nothing() {
    let db = PerfDb::disabled();
    assert!(matches!(db.status().mode, Mode::Closed(_)));
    assert!(matches!(db.record(&measurement("k", 1, 1.0)), Err(DropReason::Closed(_))));
    assert!(db.show(&Filter::default(), 9).is_empty() && db.load_health(None).is_empty());
    let header = b"{\"header\":{\"format\":\"layerzero.perfdb\",\"version\":1}}\n".as_slice();
    assert!(matches!(db.import(header), Err(ImportError::Dropped(DropReason::Closed(_)))));
    assert_eq!(db.status().dropped_writes, 2);
}
