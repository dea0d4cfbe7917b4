//! Merging and comparing the databases of several machines.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use lz_perfdb::{
    Change, DiffOptions, Difference, Evidence, Filter, Invalidation, Measurement, MergeError, PerfDb,
    Setting, Side, diff, fleet_file, merge, replace_fleet_file,
};
use lz_test_support::Folder;

use crate::support::{NOW, health_row, integrity, measurement, setting};

/// A database with these measurements.
fn file(folder: &Folder, name: &str, measurements: &[Measurement]) -> PathBuf {
    let path = folder.path().join(name);
    PerfDb::open(&path).db.record_all(measurements).unwrap();
    path
}

fn rows(path: &Path) -> Vec<Evidence> {
    PerfDb::open(path).db.show(&Filter::default(), usize::MAX)
}

fn merged(folder: &Folder, name: &str, files: &[&PathBuf]) -> PathBuf {
    let out = folder.path().join(name);
    let files: Vec<PathBuf> = files.iter().map(|path| (*path).clone()).collect();
    merge(&out, &files, &BTreeMap::new()).unwrap();
    out
}

fn at(kernel: &str, median_ns: f64, measured_at: u64) -> Measurement {
    let mut one = measurement(kernel, 1, median_ns);
    one.timing.measured_at = measured_at;
    one
}

#[test]
fn merging_keeps_every_measurement_and_combines_statistics_of_equal_keys() {
    let folder = Folder::new();
    let a = file(&folder, "a.sqlite", &[at("shared", 100.0, NOW), at("only a", 300.0, NOW)]);
    let b = file(&folder, "b.sqlite", &[at("shared", 200.0, NOW + 1), at("only b", 400.0, NOW)]);
    PerfDb::open(&b).db.save_health(&[health_row("k", 1)]).unwrap();
    let out = folder.path().join("out.sqlite");
    let report = merge(&out, &[a.clone(), b.clone()], &BTreeMap::new()).unwrap();
    assert_eq!((report.measurements, report.combined, report.health), (3, 1, 1));
    let all = rows(&out);
    let shared = all.iter().find(|row| row.key.kernel == "shared").unwrap();
    assert_eq!((shared.timing.samples, shared.timing.median_ns), (20, 150.0));
    assert_eq!(shared.timing.variance_ns2, 4.0 + 2500.0, "variance within and between machines");
    assert_eq!(shared.timing.measured_at, NOW + 1);
    assert_eq!(PerfDb::open(&out).db.load_health(None), [health_row("k", 1)]);
    assert_eq!(integrity(&out), "ok");
    assert_eq!(rows(&a).len(), 2, "inputs are not modified");
}

#[test]
fn merging_is_idempotent_and_independent_of_order() {
    let folder = Folder::new();
    let a = file(&folder, "a.sqlite", &[at("shared", 100.0, NOW)]);
    let b = file(&folder, "b.sqlite", &[at("shared", 200.0, NOW + 1)]);
    let c = file(&folder, "c.sqlite", &[at("shared", 300.0, NOW + 1)]);
    let once = merged(&folder, "once.sqlite", &[&a, &b, &c]);
    let expected = rows(&once);
    assert_eq!(expected[0].timing.samples, 30);
    assert_eq!(rows(&merged(&folder, "once.sqlite", &[&a, &b, &c])), expected, "into the same file again");
    assert_eq!(rows(&merged(&folder, "order.sqlite", &[&c, &a, &b, &a])), expected);
    let ab = merged(&folder, "ab.sqlite", &[&a, &b]);
    let bc = merged(&folder, "bc.sqlite", &[&b, &c]);
    assert_eq!(
        rows(&merged(&folder, "tree.sqlite", &[&ab, &bc, &once])),
        expected,
        "merged files can be merged"
    );
    let copy = folder.path().join("copy.sqlite");
    std::fs::copy(&a, &copy).unwrap();
    assert_eq!(rows(&merged(&folder, "copies.sqlite", &[&a, &copy, &b, &c])), expected, "a copy counts once");
}

#[test]
fn later_state_of_a_file_replaces_the_earlier_one() {
    let folder = Folder::new();
    let a = file(&folder, "a.sqlite", &[at("k", 100.0, NOW)]);
    let b = file(&folder, "b.sqlite", &[at("k", 300.0, NOW)]);
    let out = merged(&folder, "out.sqlite", &[&a, &b]);
    PerfDb::open(&a).db.record(&at("k", 200.0, NOW + 5)).unwrap();
    merged(&folder, "out.sqlite", &[&a]);
    let timing = rows(&out)[0].timing;
    // 20 samples with a median of 150 of the first file, 10 with a median of 300 of the second.
    assert_eq!((timing.samples, timing.median_ns), (30, 200.0));
}

#[test]
fn invalid_and_expired_parts_do_not_count() {
    let folder = Folder::new();
    let a = file(&folder, "a.sqlite", &[at("k", 100.0, NOW)]);
    PerfDb::open(&a).db.invalidate(&Invalidation::Kernel("k".to_owned())).unwrap();
    let b = file(&folder, "b.sqlite", &[at("k", 300.0, NOW)]);
    let all = rows(&merged(&folder, "valid.sqlite", &[&a, &b]));
    assert_eq!((all[0].timing.samples, all[0].timing.median_ns, all[0].valid), (10, 300.0, true));
    let only = rows(&merged(&folder, "invalid.sqlite", &[&a]));
    assert_eq!((only.len(), only[0].valid), (1, false), "kept, as in its file");

    let nightly = Measurement { expires_at: Some(NOW + 10), ..at("k", 100.0, NOW) };
    let c = file(&folder, "c.sqlite", &[nightly]);
    let d = file(&folder, "d.sqlite", &[at("k", 500.0, NOW + 20)]);
    let all = rows(&merged(&folder, "expired.sqlite", &[&c, &d]));
    assert_eq!((all[0].timing.samples, all[0].timing.median_ns), (10, 500.0));
}

#[test]
fn devices_can_be_merged_under_a_common_name() {
    let folder = Folder::new();
    let mut other = at("k", 300.0, NOW);
    other.key.setting.device_uuid = "GPU-2".to_owned();
    let a = file(&folder, "a.sqlite", &[at("k", 100.0, NOW), other]);
    let names: BTreeMap<String, String> =
        ["GPU-1", "GPU-2"].map(|uuid| (uuid.to_owned(), "H200".to_owned())).into();
    let out = folder.path().join("out.sqlite");
    for _ in 0..2 {
        merge(&out, std::slice::from_ref(&a), &names).unwrap();
        let all = rows(&out);
        assert_eq!((all.len(), all[0].key.setting.device_uuid.as_str()), (1, "H200"));
        assert_eq!((all[0].timing.samples, all[0].timing.median_ns), (20, 200.0), "both devices count");
    }
}

#[test]
fn unreadable_file_merges_nothing() {
    let folder = Folder::new();
    let a = file(&folder, "a.sqlite", &[at("k", 100.0, NOW)]);
    let text = folder.path().join("notes.txt");
    std::fs::write(&text, "not a database, and long enough to be one").unwrap();
    let out = folder.path().join("out.sqlite");
    for missing in [folder.path().join("missing.sqlite"), text] {
        let error = merge(&out, &[a.clone(), missing.clone()], &BTreeMap::new()).unwrap_err();
        assert!(matches!(&error, MergeError::Unreadable { path, .. } if *path == missing), "{error}");
        assert!(!out.exists(), "nothing is written");
    }
    let foreign = folder.path().join("foreign.sqlite");
    rusqlite::Connection::open(&foreign).unwrap().execute_batch("CREATE TABLE t (x)").unwrap();
    let error = merge(&foreign, &[a], &BTreeMap::new()).unwrap_err().to_string();
    assert!(error.contains("another program"), "{error}");
}

fn side(path: &Path) -> Side {
    Side::parse(path.to_str().unwrap()).unwrap()
}

fn compare(before: &Path, after: &Path, threshold: f64) -> Difference {
    diff(&side(before), &side(after), DiffOptions { threshold, ..DiffOptions::default() }).unwrap()
}

#[test]
fn diff_reports_slower_and_faster_calls_and_other_decisions() {
    let folder = Folder::new();
    let upgraded = |mut one: Measurement| {
        one.key.setting.torch = "2.12".to_owned();
        one.key.kernel_version = "1.1".to_owned();
        one
    };
    let before = file(
        &folder,
        "before.sqlite",
        &[
            measurement("fast", 1, 100.0),
            measurement("slow", 1, 150.0),
            measurement("fast", 2, 100.0),
            measurement("fast", 3, 100.0),
            measurement("gone", 4, 100.0),
        ],
    );
    let after = file(
        &folder,
        "after.sqlite",
        &[
            upgraded(measurement("fast", 1, 200.0)),
            upgraded(measurement("slow", 1, 140.0)),
            upgraded(measurement("fast", 2, 50.0)),
            upgraded(measurement("fast", 3, 103.0)),
            upgraded(measurement("new", 5, 100.0)),
        ],
    );
    let found = compare(&before, &after, 0.05);
    assert_eq!((found.compared, found.only_before, found.only_after), (3, 1, 1));
    assert_eq!((found.slower, found.faster, found.decisions_changed), (1, 1, 1));
    assert!(found.regressed() && found.changed());
    let [slower, faster] = found.calls.as_slice() else { panic!("{found:?}") };
    assert_eq!((slower.before.as_str(), slower.after.as_str()), ("fast", "slow"));
    assert_eq!((slower.change, slower.ratio), (Change::Slower, 1.4));
    let kernel = &slower.kernels[0];
    assert_eq!((kernel.kernel.as_str(), kernel.change, kernel.ratio), ("fast", Change::Slower, Some(2.0)));
    assert_eq!(kernel.after.as_ref().map(|one| one.version.as_str()), Some("1.1"));
    assert_eq!((faster.change, faster.decision_changed), (Change::Faster, false));
    let versions: Vec<&str> = found.versions.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(versions, ["fast", "slow", "torch"]);

    let lenient = compare(&before, &after, 0.5);
    assert!(!lenient.regressed() && lenient.decisions_changed == 1);
    assert!(!compare(&before, &before, 0.0).changed(), "a file does not differ from itself");
}

#[test]
fn difference_within_the_noise_does_not_count() {
    let folder = Folder::new();
    let noisy = |median_ns, variance_ns2| {
        let mut one = measurement("k", 1, median_ns);
        one.timing.variance_ns2 = variance_ns2;
        one
    };
    let before = file(&folder, "before.sqlite", &[noisy(100.0, 900.0)]);
    let after = file(&folder, "after.sqlite", &[noisy(120.0, 900.0)]);
    assert!(!compare(&before, &after, 0.05).changed());
    let precise = file(&folder, "precise.sqlite", &[noisy(120.0, 1.0)]);
    let steady = file(&folder, "steady.sqlite", &[noisy(100.0, 1.0)]);
    assert!(compare(&steady, &precise, 0.05).regressed());
}

#[test]
fn environments_of_one_file_can_be_compared() {
    let folder = Folder::new();
    let mut upgraded = measurement("k", 1, 200.0);
    upgraded.key.setting.torch = "2.12".to_owned();
    let path = file(&folder, "all.sqlite", &[measurement("k", 1, 100.0), upgraded]);
    let change = Invalidation::SettingChanged(Setting { torch: "2.12".to_owned(), ..setting() });
    assert_eq!(PerfDb::open(&path).db.invalidate(&change), Ok(1));
    let at = |fields: &str| Side::parse(&format!("{}@{fields}", path.display())).unwrap();
    let found = diff(&at("torch=2.11"), &at("torch=2.12,device=GPU-1"), DiffOptions::default()).unwrap();
    assert_eq!((found.compared, found.slower), (1, 1));
    let error = Side::parse("perfdb.sqlite@color=red").unwrap_err();
    assert!(error.contains("unknown field `color`") && error.contains("layerzero"), "{error}");
    assert!(diff(&side(Path::new("missing")), &side(&path), DiffOptions::default()).is_err());
}

#[test]
fn single_devices_of_two_machines_are_compared() {
    let folder = Folder::new();
    let mut other = measurement("k", 1, 200.0);
    other.key.setting.device_uuid = "GPU-2".to_owned();
    let before = file(&folder, "before.sqlite", &[measurement("k", 1, 100.0)]);
    let after = file(&folder, "after.sqlite", &[other.clone()]);
    assert_eq!(compare(&before, &after, 0.05).slower, 1);
    let both = file(&folder, "both.sqlite", &[measurement("k", 1, 100.0), other]);
    assert!(!compare(&before, &both, 0.05).changed(), "the device in common is compared");
}

#[test]
fn fleet_file_is_replaced_only_by_a_valid_database() {
    let folder = Folder::new();
    let own = folder.path().join("perfdb.sqlite");
    assert_eq!(fleet_file(&own), folder.path().join("perfdb.fleet.sqlite"));
    let first = file(&folder, "first.sqlite", &[at("a", 100.0, NOW)]);
    assert_eq!(replace_fleet_file(&own, &first), Ok(1));
    // A log that a crashed process left behind must not be applied to another database.
    std::fs::write(folder.path().join("perfdb.fleet.sqlite-wal"), "a log of the replaced file").unwrap();
    let second = file(&folder, "second.sqlite", &[at("b", 100.0, NOW), at("c", 100.0, NOW)]);
    assert_eq!(replace_fleet_file(&own, &second), Ok(2));
    let text = folder.path().join("text");
    std::fs::write(&text, "no database").unwrap();
    assert!(replace_fleet_file(&own, &text).is_err());
    let kernels: Vec<String> = rows(&fleet_file(&own)).into_iter().map(|row| row.key.kernel).collect();
    assert_eq!(kernels, ["b", "c"], "an invalid file replaces nothing");
}
