//! Forked children of a process whose threads use the database: they never wait for a thread that does not exist in them.

use std::time::Duration;

use lz_perfdb::{ClosedReason, DropReason, Mode, Options, PerfDb};
use lz_test_support::{Folder, in_child};

use crate::support::health_row;

#[test]
fn child_of_a_process_that_is_stuck_in_the_database_continues_without_it() {
    let folder = Folder::new();
    let path = folder.database();
    let options = Options { busy_timeout: Duration::from_secs(8), ..Options::default() };
    let db = PerfDb::open_with(&path, options).db;
    db.save_health(&[health_row("a", 1)]).unwrap();
    let holder = rusqlite::Connection::open(&path).unwrap();
    holder.execute_batch("BEGIN IMMEDIATE").unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| db.save_health(&[health_row("b", 1)]).unwrap());
        // The thread waits inside SQLite for the other connection.
        std::thread::sleep(Duration::from_millis(200));
        let is_closed = |mode| matches!(mode, Mode::Closed(ClosedReason::Unavailable { message }) if message.contains("forked"));
        let succeeded = in_child(|| {
            let dropped = db.save_health(&[health_row("c", 1)]);
            is_closed(db.status().mode)
                && db.load_health(None).is_empty()
                && matches!(dropped, Err(DropReason::Closed(_)))
                && is_closed(PerfDb::open(&path).db.status().mode)
        });
        holder.execute_batch("COMMIT").unwrap();
        assert!(succeeded);
    });
    assert_eq!(db.load_health(None).len(), 2, "the parent is not affected");
}
