//! Lockfiles: errors have locations, an accepted one survives writing and reading, and only the digest protects the rest.

use lz_engine::table::Lockfile;
use lz_schema::diagnostics::Code;

use crate::diagnostics;

pub fn run(input: &[u8]) -> bool {
    let text = String::from_utf8_lossy(input);
    let lockfile = match Lockfile::read("layerzero.lock", &text) {
        Ok(lockfile) => lockfile,
        Err(error) => {
            diagnostics::check(&error.report);
            if !diagnostics::is_only(&error.report, Code::DigestMismatch) {
                return false;
            }
            // A mutation nearly always breaks the digest. With the right one, the file must be accepted.
            let notes = error.report.diagnostics.iter().flat_map(|diagnostic| &diagnostic.notes);
            let mut expected = notes.filter_map(|note| note.strip_prefix("expected ")?.split(';').next());
            let Some(expected) = expected.next() else { panic!("{error}") };
            let Some(start) = text.rfind("digest:") else { return false };
            let repaired = format!("{}digest: {expected}\n", &text[..start]);
            match Lockfile::read("layerzero.lock", &repaired) {
                Ok(lockfile) => lockfile,
                // What came after the digest belonged to the file.
                Err(error) => {
                    diagnostics::check(&error.report);
                    return false;
                }
            }
        }
    };
    let written = lockfile.text();
    let again =
        Lockfile::read("layerzero.lock", &written).unwrap_or_else(|error| panic!("{written}\n{error}"));
    assert_eq!(again, lockfile);
    assert_eq!(again.text(), written);
    assert!(lockfile.compare(&again).is_empty() && lockfile.diff(&again).is_empty());
    let empty = Lockfile::new(&lockfile.hardware, &lockfile.policy, &lockfile.capabilities);
    let missing = lockfile.compare(&empty).len();
    assert!(missing >= lockfile.decisions().count(), "{missing} differences to an empty one\n{written}");
    true
}
