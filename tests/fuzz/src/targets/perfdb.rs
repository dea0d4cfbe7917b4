//! Exchanged measurements: import is all or nothing and idempotent, export survives import, and merging does not depend on the order.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use lz_perfdb::{Filter, ImportError, PerfDb};

use super::files;

/// An empty database; the one of the previous input is removed.
fn database(name: &str) -> PathBuf {
    let path = files::path(name);
    for suffix in ["", "-wal", "-shm"] {
        fs::remove_file(format!("{}{suffix}", path.display())).ok();
    }
    path
}

fn export(db: &PerfDb) -> String {
    let mut text = Vec::new();
    db.export(&Filter::default(), &mut text).unwrap_or_else(|error| panic!("{error}"));
    String::from_utf8(text).unwrap_or_else(|error| panic!("{error}"))
}

/// Input: the lines of an export.
pub fn import(input: &[u8]) -> bool {
    let db = PerfDb::open(database("import.sqlite")).db;
    let report = match db.import(input) {
        Ok(report) => report,
        Err(error) => {
            if let ImportError::Rejected { lines, count } = &error {
                assert!(*count >= lines.len() && lines.iter().all(|line| line.line > 0), "{error}");
            }
            assert_eq!(db.show(&Filter::default(), usize::MAX), [], "{error}");
            return false;
        }
    };
    let written = export(&db);
    let again = db.import(input).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((again.stored, again.health), (0, report.health), "import is idempotent");
    assert_eq!(export(&db), written);
    let other = PerfDb::open(database("other.sqlite")).db;
    other.import(written.as_bytes()).unwrap_or_else(|error| panic!("{error}\n{written}"));
    assert_eq!(export(&other), written);
    true
}

/// Input: the lines of two exports, separated by a line `===`; after `!!!` follow changes of the first database's file: two bytes of
/// offset and the new byte.
pub fn merge(input: &[u8]) -> bool {
    let text = String::from_utf8_lossy(input);
    let (exports, damage) = text.split_once("!!!").unwrap_or((&text, ""));
    let (first, second) = exports.split_once("===\n").unwrap_or((exports, ""));
    let paths = [database("first.sqlite"), database("second.sqlite")];
    for (path, lines) in paths.iter().zip([first, second]) {
        // Only a valid export fills a database.
        let _ = PerfDb::open(path).db.import(lines.as_bytes());
    }
    if !damage.is_empty() {
        let mut file = fs::read(&paths[0]).unwrap_or_default();
        for change in damage.as_bytes().chunks_exact(3) {
            let at = usize::from(u16::from_le_bytes([change[0], change[1]]));
            if let Some(byte) = file.get_mut(at) {
                *byte = change[2];
            }
        }
        fs::write(&paths[0], file).expect("the temporary folder can be written");
    }
    let [one, two] = [database("one.sqlite"), database("two.sqlite")];
    let reversed: Vec<PathBuf> = paths.iter().rev().cloned().collect();
    let merged = lz_perfdb::merge(&one, &paths, &BTreeMap::new());
    let other = lz_perfdb::merge(&two, &reversed, &BTreeMap::new());
    match (merged, other) {
        (Ok(merged), Ok(other)) => {
            let written = export(&PerfDb::open(&one).db);
            // A damaged file may be repaired by the first merge.
            if damage.is_empty() {
                assert_eq!(merged, other);
                assert_eq!(export(&PerfDb::open(&two).db), written, "merging does not depend on the order");
                let again = lz_perfdb::merge(&one, &paths, &BTreeMap::new());
                let again = again.unwrap_or_else(|error| panic!("{error}"));
                assert_eq!(again.measurements, merged.measurements, "merging is idempotent");
                assert_eq!(export(&PerfDb::open(&one).db), written);
            }
            merged.measurements > 0
        }
        (merged, other) => {
            for error in [merged.err(), other.err()].into_iter().flatten() {
                assert!(error.to_string().contains(".sqlite"), "{error}");
            }
            assert!(!damage.is_empty(), "intact databases cannot be merged");
            false
        }
    }
}
