//! Reads of the file: one that fails is not damage, so that nothing is renamed and nothing is lost, and none releases locks.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::fs;
use std::os::unix::fs::MetadataExt;

use lz_perfdb::{Filter, OpenStatus, Options, PerfDb};
use lz_test_support::Folder;

use crate::support::measurement;

thread_local! {
    /// The reads of this thread that fail.
    static FAILING: Cell<Option<Failing>> = const { Cell::new(None) };
}

/// Which reads fail.
#[derive(Clone, Copy)]
struct Failing {
    /// Reads until the first.
    after: u32,
    /// Then every Nth; 0 for only the first.
    every: u32,
    /// Whether one has failed.
    has_failed: bool,
}

/// Whether the read of this thread that starts now fails.
fn fails() -> bool {
    let Ok(Some(mut failing)) = FAILING.try_with(Cell::get) else { return false };
    let fails = failing.after == 0;
    failing.has_failed |= fails;
    failing.after = match failing.every {
        0 if fails => u32::MAX,
        every if fails => every - 1,
        _ => failing.after - 1,
    };
    FAILING.set(Some(failing));
    fails
}

/// As the function of the C library, to which SQLite is linked, except that a chosen read fails.
///
/// # Safety
/// As for the function of the C library.
#[unsafe(no_mangle)]
unsafe extern "C" fn pread64(file: c_int, to: *mut c_void, bytes: usize, at: i64) -> isize {
    // SAFETY: the caller's guarantees are passed on, and this thread's error number is valid.
    unsafe {
        if fails() {
            *libc::__errno_location() = libc::EIO;
            return -1;
        }
        libc::syscall(libc::SYS_pread64, file, to, bytes, at) as isize
    }
}

#[test]
fn a_failed_read_is_not_damage() {
    const ROWS: u64 = 300;
    let folder = Folder::new();
    let file = folder.database();
    let rows: Vec<_> = (0..ROWS).map(|row| measurement("kept", row, 100.0)).collect();
    PerfDb::open(&file).db.record_all(&rows).unwrap();
    let mut failures = 0;
    for every in 0..4 {
        for after in 0.. {
            FAILING.set(Some(Failing { after, every, has_failed: false }));
            let status = PerfDb::open(&file).status;
            let has_failed = FAILING.take().is_some_and(|failing| failing.has_failed);
            assert!(!matches!(status, OpenStatus::Quarantined { .. }), "{after}, {every}: {status:?}");
            let opened = PerfDb::open(&file);
            assert_eq!(opened.status, OpenStatus::Ready { migrated_from: None }, "{after}, {every}");
            assert_eq!(opened.db.count(&Filter::default()), ROWS, "{after}, {every}");
            if !has_failed {
                break;
            }
            failures += 1;
        }
    }
    assert!(failures > 40, "only {failures} reads");
}

/// SQLite's locks belong to the process: closing any descriptor of the file would release them, and another process could then remove
/// the write-ahead log that this one writes.
#[test]
fn opening_again_keeps_the_locks_of_open_connections() {
    let folder = Folder::new();
    let file = folder.database();
    let db = PerfDb::open(&file).db;
    db.record(&measurement("kept", 1, 100.0)).unwrap();
    let inode = format!(":{} ", fs::metadata(&file).unwrap().ino());
    let locks = || {
        let all = fs::read_to_string("/proc/locks").unwrap();
        all.lines().filter(|lock| lock.contains("POSIX") && lock.contains(&inode)).count()
    };
    let before = locks();
    assert!(before > 0, "a connection to a database with a write-ahead log holds a lock");
    drop(PerfDb::open(&file));
    drop(PerfDb::open_with(&file, Options { read_only: true, ..Options::default() }));
    assert_eq!(locks(), before);
    assert_eq!(db.count(&Filter::default()), 1);
}
