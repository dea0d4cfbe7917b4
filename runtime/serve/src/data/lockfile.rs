//! Differences between two lockfiles, or between a lockfile and the recorded decisions of the engine.

use std::io;
use std::path::Path;

use lz_engine::table::{Lockfile, Mismatch};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Source;

/// Lockfiles to compare. Texts, so that a page can send files that only the browser can read.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lockfiles {
    /// The expected decisions.
    pub expected: Option<NamedText>,
    /// The decisions that are compared with them; `None` for those that the engine recorded.
    #[serde(default)]
    pub found: Option<NamedText>,
}

/// A file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedText {
    /// Its name, for messages.
    pub name: String,
    /// Its content.
    pub text: String,
}

impl Lockfiles {
    pub(super) fn read(expected: &Path, found: Option<&Path>) -> io::Result<Lockfiles> {
        let read = |path: &Path| -> io::Result<NamedText> {
            let text = lz_files::read_text(path, lz_files::MAX_TABLE_BYTES)
                .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
            Ok(NamedText { name: path.display().to_string(), text })
        };
        Ok(Lockfiles { expected: Some(read(expected)?), found: found.map(read).transpose()? })
    }
}

/// The comparison of the lockfiles that the server was started with; empty without any.
pub fn configured(source: &Source) -> Result<Value, String> {
    if source.lockfiles.expected.is_none() {
        return Ok(json!({"compared": false}));
    }
    diff(source, &source.lockfiles)
}

/// Compares two lockfiles.
pub fn diff(source: &Source, lockfiles: &Lockfiles) -> Result<Value, String> {
    let read = |file: &NamedText| Lockfile::read(&file.name, &file.text).map_err(|error| error.to_string());
    let expected_file = lockfiles.expected.as_ref().ok_or("missing lockfile `expected`")?;
    let expected = read(expected_file)?;
    let found = lockfiles.found.as_ref().map(read).transpose()?.unwrap_or_else(|| source.engine.freeze());
    let found_name =
        lockfiles.found.as_ref().map_or("the decisions recorded by this process", |file| &file.name);
    let side = |name: &str, lockfile: &Lockfile| {
        json!({
            "name": name,
            "layerzero": lockfile.layerzero,
            "hardware": lockfile.hardware,
            "policy": lockfile.policy,
            "decisions": lockfile.decisions().count(),
            "digest": lockfile.digest(),
        })
    };
    let differences = expected.compare(&found);
    let difference = |one: &Mismatch| json!({"what": one.what, "expected": one.expected, "found": one.found});
    Ok(json!({
        "compared": true,
        "expected": side(&expected_file.name, &expected),
        "found": side(found_name, &found),
        "differences": differences.iter().map(difference).collect::<Vec<Value>>(),
    }))
}
