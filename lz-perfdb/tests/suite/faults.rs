//! Faults of the performance database: concurrent processes, killed processes, damaged files, no space, no permission, other versions.
//! Each has one defined outcome, and the handle stays usable in all of them.
//!
//! Child processes are this binary, started again for `child_process` only.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lz_perfdb::{ClosedReason, DropReason, Filter, Mode, OpenStatus, Options, PerfDb, SCHEMA_VERSION};
use lz_test_support::Folder;

use crate::support::{health_row, integrity, measurement};

const ROLE: &str = "LZ_PERFDB_TEST_ROLE";
const FILE: &str = "LZ_PERFDB_TEST_FILE";

/// Generous timeouts for eight processes on two cores: the tests check that nothing is lost.
fn patient() -> Options {
    Options { busy_timeout: Duration::from_secs(120), ..Options::default() }
}

fn child(role: &str, file: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "faults::child_process", "--nocapture", "--test-threads=1"]);
    command.env(ROLE, role).env(FILE, file).stdout(Stdio::piped()).stderr(Stdio::inherit());
    command
}

fn finish(children: Vec<Child>) {
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
}

#[test]
#[ignore = "the other tests run it as a process of its own"]
fn child_process() {
    let role = std::env::var(ROLE).unwrap();
    let file = std::env::var_os(FILE).unwrap();
    if role == "hold" {
        let connection = rusqlite::Connection::open(file).unwrap();
        connection.execute_batch("PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE;").unwrap();
        println!("held");
        std::io::stdin().read_line(&mut String::new()).unwrap();
        return;
    }
    let opened = PerfDb::open_with(file, patient());
    let db = opened.db;
    match role.split_once(' ').unwrap_or((&role, "")) {
        ("write", own) => {
            for round in 0..50 {
                db.record(&measurement("shared", 1, 100.0)).unwrap();
                db.record(&measurement(own, round, 100.0)).unwrap();
                db.save_health(&[health_row(own, round)]).unwrap();
            }
        }
        ("endless", start) => {
            let start: u64 = start.parse().unwrap();
            for round in start.. {
                db.record(&measurement("endless", round, 100.0)).unwrap();
                println!("stored {round}");
            }
        }
        ("fill", _) => {
            let mut failure = None;
            for round in 0..100_000 {
                if let Err(reason) = db.record(&measurement("fill", round, 100.0)) {
                    failure = Some(reason);
                    break;
                }
            }
            let failure = failure.expect("the file may not grow for ever under a limit");
            assert!(matches!(failure, DropReason::DiskFull | DropReason::Failed { .. }), "{failure}");
            assert_eq!(db.status().dropped_writes, 1);
            assert!(db.count(&Filter::default()) > 0, "what was stored is still read");
        }
        ("read-only", _) => {
            assert!(matches!(opened.status, OpenStatus::ReadOnly { .. }), "{:?}", opened.status);
            assert_eq!(db.count(&Filter::default()), 1);
            assert_eq!(db.record(&measurement("k", 1, 1.0)), Err(DropReason::ReadOnly));
        }
        ("no-folder", _) => {
            let OpenStatus::Closed(ClosedReason::Unavailable { .. }) = opened.status else {
                panic!("{:?}", opened.status)
            };
            assert!(db.record(&measurement("k", 1, 1.0)).is_err());
        }
        _ => panic!("unknown role {role}"),
    }
}

#[test]
fn concurrent_writers_lose_nothing() {
    let folder = Folder::new();
    let file = folder.database();
    let children =
        (0..8).map(|number| child(&format!("write own{number}"), &file).spawn().unwrap()).collect();
    finish(children);
    let db = PerfDb::open(&file).db;
    let shared = db.show(&Filter { kernel: Some("shared".to_owned()), ..Filter::default() }, 9);
    assert_eq!((shared.len(), shared[0].timing.samples), (1, 8 * 50 * 10));
    assert_eq!(db.count(&Filter::default()), 8 * 50 + 1);
    assert_eq!(db.load_health(None).len(), 8 * 50);
    assert_eq!(integrity(&file), "ok");
}

#[test]
fn killed_writer_loses_no_committed_row() {
    let folder = Folder::new();
    let file = folder.database();
    let mut promised = 0u64;
    for repetition in 0..20u64 {
        let mut writer = child(&format!("endless {}", repetition * 1_000_000), &file).spawn().unwrap();
        let mut lines = BufReader::new(writer.stdout.take().unwrap()).lines();
        // At a different point each time; the writer does not synchronize with us, so the kill hits any point of a write.
        let wanted = 1 + repetition * 7 % 40;
        let mut seen = 0;
        while seen < wanted {
            let line = lines.next().expect("the writer writes until it is killed").unwrap();
            seen += u64::from(line.contains("stored "));
        }
        writer.kill().unwrap();
        writer.wait().unwrap();
        promised += seen;

        let opened = PerfDb::open(&file);
        assert_eq!(opened.status, OpenStatus::Ready { migrated_from: None }, "repetition {repetition}");
        assert!(opened.db.count(&Filter::default()) >= promised, "repetition {repetition}");
        opened.db.record(&measurement("after", repetition, 1.0)).unwrap();
        promised += 1;
        drop(opened);
        assert_eq!(integrity(&file), "ok");
    }
    assert!(folder.names_with("corrupt").is_empty());
}

fn filled(file: &Path, rows: u64) {
    let db = PerfDb::open(file).db;
    let rows: Vec<_> = (0..rows).map(|row| measurement("k", row, 100.0)).collect();
    db.record_all(&rows).unwrap();
}

fn assert_quarantined(folder: &Folder, original: &[u8]) {
    let opened = PerfDb::open(folder.database());
    let OpenStatus::Quarantined { kept_as, why } = &opened.status else {
        panic!("{} bytes: {:?}", original.len(), opened.status)
    };
    assert!(!why.is_empty());
    assert_eq!(fs::read(kept_as).unwrap(), original, "the damaged file is kept as it was");
    assert_eq!(opened.db.count(&Filter::default()), 0);
    opened.db.record(&measurement("k", 1, 1.0)).unwrap();
    drop(opened);
    assert_eq!(PerfDb::open(folder.database()).status, OpenStatus::Ready { migrated_from: None });
}

#[test]
fn truncated_file_is_quarantined() {
    let folder = Folder::new();
    let file = folder.database();
    filled(&file, 400);
    let whole = fs::read(&file).unwrap();
    assert!(whole.len() > 40_000, "the log has been folded into the file");
    for length in [16, 99, 100, 4096, 5000, whole.len() / 2, whole.len() - 4096] {
        for name in folder.names_with("perfdb.sqlite") {
            fs::remove_file(folder.path().join(name)).unwrap();
        }
        fs::write(&file, &whole[..length]).unwrap();
        assert_quarantined(&folder, &whole[..length]);
    }
}

/// One of our databases with nothing but its header left.
fn damaged(folder: &Folder) -> Vec<u8> {
    let file = folder.path().join("once.sqlite");
    filled(&file, 10);
    let mut bytes = fs::read(file).unwrap();
    bytes[100..]
        .iter_mut()
        .enumerate()
        .for_each(|(at, byte)| *byte = (at.wrapping_mul(2_654_435_761) >> 13) as u8);
    bytes
}

/// The quarantined databases, without their WAL files.
fn set_aside(folder: &Folder) -> Vec<String> {
    let mut names = folder.names_with("corrupt");
    names.retain(|name| !name.ends_with("-wal") && !name.ends_with("-shm"));
    names
}

#[test]
fn non_database_file_is_not_modified() {
    let folder = Folder::new();
    let file = folder.database();
    let mut foreign = damaged(&folder);
    foreign[68..72].copy_from_slice(&[1, 2, 3, 4]);
    let not_ours = |bytes: &[u8], fits: &dyn Fn(&ClosedReason) -> bool| {
        fs::write(&file, bytes).unwrap();
        let opened = PerfDb::open(&file);
        let OpenStatus::Closed(reason) = &opened.status else { panic!("{:?}", opened.status) };
        assert!(fits(reason), "{reason:?}");
        assert!(reason.to_string().contains("set another file in `perfdb.path`"), "{reason}");
        assert!(opened.db.record(&measurement("k", 1, 1.0)).is_err());
        drop(opened);
        assert_eq!(fs::read(&file).unwrap(), bytes, "the file is not modified");
        assert_eq!(folder.names_with("perfdb.sqlite"), ["perfdb.sqlite"], "no file was created next to it");
    };
    let no_database = |reason: &ClosedReason| matches!(reason, ClosedReason::NotADatabase { .. });
    for model in [b"S".as_slice(), b"weights of a model", &[0x5a; 10_000], b"SQLite format 2 of long ago"] {
        not_ours(model, &no_database);
    }
    // Damaged, and with the application id of another program.
    fs::write(&file, &foreign).unwrap();
    let status = PerfDb::open(&file).status;
    let reason = ClosedReason::ForeignDatabase { application_id: 0x0102_0304 };
    assert_eq!(status, OpenStatus::Closed(reason));
    assert_eq!(fs::read(&file).unwrap(), foreign);
    assert!(folder.names_with("corrupt").is_empty());
}

/// Runs something that must not block: a pipe has no writer here, so opening one would never return.
fn at_once<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || drop(sender.send(act())));
    receiver.recv_timeout(Duration::from_secs(60)).expect("it does not hang")
}

#[test]
fn pipes_directories_and_devices_are_rejected() {
    let folder = Folder::new();
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for suffix in [".lock", "-wal"] {
        let pipe = folder.path().join(format!("perfdb.sqlite{suffix}"));
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let file = folder.database();
        let status = at_once(move || PerfDb::open(file).status);
        assert!(matches!(status, OpenStatus::Closed(ClosedReason::Unavailable { .. })), "{status:?}");
        fs::remove_file(pipe).unwrap();
    }
    for place in [pipe, folder.path().to_path_buf(), "/dev/zero".into()] {
        let (import, database) = (place.clone(), folder.database());
        let status = at_once(move || PerfDb::open(place).status);
        let OpenStatus::Closed(ClosedReason::Unavailable { message }) = status else { panic!("{status:?}") };
        assert!(message.contains("is not a regular file"), "{message}");
        let error = at_once(move || PerfDb::open(database).db.import_file(&import)).unwrap_err();
        assert!(error.to_string().contains("is not a regular file"), "{error}");
    }
}

#[test]
fn locked_database_is_skipped_and_retried() {
    let folder = Folder::new();
    let file = folder.database();
    filled(&file, 3);
    let mut holder = child("hold", &file).stdin(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(holder.stdout.take().unwrap()).lines();
    while !lines.next().expect("the other process holds the file").unwrap().contains("held") {}
    // Each of these once waited for five seconds.
    let handles: Vec<PerfDb> = (0..20)
        .map(|_| {
            let opened = PerfDb::open(&file);
            assert_eq!(opened.status, OpenStatus::Closed(ClosedReason::Busy));
            assert_eq!(opened.db.count(&Filter::default()), 0);
            assert!(opened.db.retry() && opened.db.is_busy());
            opened.db
        })
        .collect();
    drop(holder.stdin.take());
    assert!(holder.wait().unwrap().success());
    for db in handles {
        assert!(!db.retry());
        assert_eq!((db.status().mode, db.count(&Filter::default())), (Mode::Writable, 3));
    }
}

#[test]
fn damaged_file_is_quarantined_under_the_next_free_name() {
    let folder = Folder::new();
    let garbage = damaged(&folder);
    for _ in 0..3 {
        for name in ["perfdb.sqlite", "perfdb.sqlite-wal", "perfdb.sqlite-shm"] {
            let _ = fs::remove_file(folder.path().join(name));
        }
        fs::write(folder.database(), &garbage).unwrap();
        assert_quarantined(&folder, &garbage);
    }
    assert_eq!(
        set_aside(&folder),
        ["perfdb.sqlite.corrupt-1", "perfdb.sqlite.corrupt-2", "perfdb.sqlite.corrupt-3"]
    );
}

#[test]
fn damaged_file_is_quarantined_once() {
    let folder = Folder::new();
    let file = folder.database();
    fs::write(&file, damaged(&folder)).unwrap();
    let children =
        (0..4).map(|number| child(&format!("write own{number}"), &file).spawn().unwrap()).collect();
    finish(children);
    assert_eq!(set_aside(&folder), ["perfdb.sqlite.corrupt-1"]);
    assert_eq!(PerfDb::open(&file).db.count(&Filter::default()), 4 * 50 + 1);
}

#[test]
fn damage_found_after_opening_is_quarantined() {
    let folder = Folder::new();
    let file = folder.database();
    // Larger than the page cache, so that reads go to the file.
    filled(&file, 30_000);
    let db = PerfDb::open(&file).db;
    let mut bytes = fs::read(&file).unwrap();
    bytes[4096..].fill(0x5a);
    // In place: the open handle sees the same file.
    use std::io::Write;
    fs::File::options().write(true).open(&file).unwrap().write_all(&bytes).unwrap();
    assert!(db.show(&Filter::default(), usize::MAX).is_empty());
    let status = db.status();
    assert_eq!((status.mode, status.failed_reads), (Mode::Writable, 1));
    assert!(matches!(status.last_failure, Some(DropReason::Damaged { .. })), "{:?}", status.last_failure);
    assert!(status.quarantined.is_some_and(|kept| kept.exists()));
    db.record(&measurement("k", 1, 1.0)).unwrap();
    assert_eq!(db.count(&Filter::default()), 1);
}

#[test]
fn newer_schema_version_is_not_modified() {
    let folder = Folder::new();
    let file = folder.database();
    filled(&file, 3);
    let connection = rusqlite::Connection::open(&file).unwrap();
    connection.pragma_update(None, "user_version", 99).unwrap();
    drop(connection);
    let before = fs::read(&file).unwrap();
    let opened = PerfDb::open(&file);
    let reason = ClosedReason::NewerSchema { found: 99, supported: SCHEMA_VERSION };
    assert_eq!(opened.status, OpenStatus::Closed(reason.clone()));
    assert_eq!(opened.db.status().mode, Mode::Closed(reason.clone()));
    assert_eq!(opened.db.record(&measurement("k", 1, 1.0)), Err(DropReason::Closed(reason.clone())));
    assert!(opened.db.show(&Filter::default(), 9).is_empty());
    assert_eq!(
        reason.to_string(),
        format!("written by a newer LayerZero: schema version 99, this build supports {SCHEMA_VERSION}")
    );
    let converted = lz_core::Reason::from(&reason);
    assert_eq!(converted.code, lz_core::ReasonCode::PerfdbVersionMismatch);
    assert_eq!(
        converted.sentence(),
        format!("requires schema version {SCHEMA_VERSION} or earlier, found 99")
    );
    drop(opened);
    assert_eq!(fs::read(&file).unwrap(), before);
    assert!(folder.names_with("corrupt").is_empty());
}

#[test]
fn older_schema_version_is_migrated() {
    let folder = Folder::new();
    let file = folder.database();
    filled(&file, 3);
    let connection = rusqlite::Connection::open(&file).unwrap();
    connection.execute_batch("DROP TABLE health; DROP TABLE trial; PRAGMA user_version = 1;").unwrap();
    drop(connection);
    let looking = PerfDb::open_with(&file, Options { read_only: true, ..Options::default() });
    let older = ClosedReason::OlderSchema { found: 1, supported: SCHEMA_VERSION };
    assert_eq!(looking.status, OpenStatus::Closed(older), "reading alone must not migrate");
    let opened = PerfDb::open(&file);
    assert_eq!(opened.status, OpenStatus::Ready { migrated_from: Some(1) });
    assert_eq!(opened.db.count(&Filter::default()), 3);
    opened.db.save_health(&[health_row("k", 1)]).unwrap();
}

#[test]
fn foreign_database_is_not_modified() {
    let folder = Folder::new();
    let file = folder.database();
    let connection = rusqlite::Connection::open(&file).unwrap();
    connection.execute_batch("CREATE TABLE bookmarks (address TEXT)").unwrap();
    drop(connection);
    let before = fs::read(&file).unwrap();
    let opened = PerfDb::open(&file);
    assert_eq!(opened.status, OpenStatus::Closed(ClosedReason::ForeignDatabase { application_id: 0 }));
    assert_eq!(fs::read(&file).unwrap(), before);
}

#[test]
fn uncreatable_path_is_unavailable() {
    let folder = Folder::new();
    fs::write(folder.path().join("file"), "").unwrap();
    for place in [folder.path().join("file/perfdb.sqlite"), folder.path().to_path_buf()] {
        let opened = PerfDb::open(&place);
        let OpenStatus::Closed(ClosedReason::Unavailable { .. }) = &opened.status else {
            panic!("{}: {:?}", place.display(), opened.status)
        };
        assert!(opened.db.record(&measurement("k", 1, 1.0)).is_err());
        assert_eq!(opened.db.status().dropped_writes, 1);
    }
}

#[cfg(unix)]
#[test]
fn read_only_directory_is_read_and_not_written() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::os::unix::process::CommandExt;

    let folder = Folder::new();
    filled(&folder.database(), 1);
    let empty = folder.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let lock = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    for entry in fs::read_dir(folder.path()).unwrap() {
        let entry = entry.unwrap();
        lock(&entry.path(), if entry.file_type().unwrap().is_dir() { 0o555 } else { 0o444 });
    }
    lock(folder.path(), 0o555);
    // Root may write anywhere, so the child runs as another user.
    let superuser = fs::metadata("/proc/self").map_or(true, |process| process.uid() == 0);
    for (role, file) in [("read-only", folder.database()), ("no-folder", empty.join("perfdb.sqlite"))] {
        let mut command = child(role, &file);
        if superuser {
            command.uid(65_534).gid(65_534);
        }
        finish(vec![command.spawn().unwrap()]);
    }
    lock(folder.path(), 0o755);
    assert_eq!(PerfDb::open(folder.database()).db.count(&Filter::default()), 1);
}

#[test]
fn full_database_drops_writes_until_there_is_space() {
    let folder = Folder::new();
    let small = Options { max_pages: Some(20), ..Options::default() };
    let db = PerfDb::open_with(folder.database(), small).db;
    let mut stored = 0u64;
    let failure = loop {
        match db.record(&measurement("k", stored, 1.0)) {
            Ok(()) => stored += 1,
            Err(reason) => break reason,
        }
        assert!(stored < 10_000);
    };
    assert_eq!(failure, DropReason::DiskFull);
    assert_eq!(db.status().last_failure, Some(DropReason::DiskFull));
    assert_eq!((db.status().mode, db.count(&Filter::default())), (Mode::Writable, stored));
    assert!(db.prune(&Filter { kernel: Some("k".to_owned()), ..Filter::default() }).is_ok());
    db.record(&measurement("k", 1, 1.0)).unwrap();
    drop(db);
    assert_eq!(integrity(&folder.database()), "ok");
}

#[cfg(unix)]
#[test]
fn full_disk_leaves_a_consistent_file() {
    let folder = Folder::new();
    let file = folder.database();
    // The shell limits the file size and ignores the signal, so that the write returns an error.
    let inner = child("fill", &file);
    let mut limited = Command::new("sh");
    limited.args(["-c", "trap '' XFSZ; ulimit -f 400; exec \"$0\" \"$@\""]);
    limited.arg(inner.get_program()).args(inner.get_args());
    limited.env(ROLE, "fill").env(FILE, &file).stdout(Stdio::piped());
    finish(vec![limited.spawn().unwrap()]);
    let opened = PerfDb::open(&file);
    assert_eq!(opened.status, OpenStatus::Ready { migrated_from: None });
    assert!(opened.db.count(&Filter::default()) > 0);
    opened.db.record(&measurement("after", 1, 1.0)).unwrap();
    drop(opened);
    assert_eq!(integrity(&file), "ok");
}
