//! Loading plugins: what may be loaded ([`trust`]), how a library becomes kernels ([`library`]), and a log line for each try.
//!
//! A plugin is refused before any of its code runs where that can be known: by its place, its owner and permissions, its hash,
//! its signature and the version that it states. Nothing here protects against what a plugin does once it runs; a backend that
//! is not trusted that far runs in a worker process.

pub mod library;
pub mod trust;

use std::path::Path;

use lz_core::built_in::reserved_name;
use lz_core::{Error, Reason};
use lz_engine::Engine;

pub use library::Plugin;
pub use trust::Trust;

/// What was loaded.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The backend's name, as its descriptor says.
    pub backend: String,
    /// Its version.
    pub version: String,
    /// SHA-256 of the file.
    pub sha256: String,
    /// Its kernels.
    pub kernels: Vec<String>,
    /// Where it runs and who said so; `None` for this process.
    pub runs_in: Option<String>,
}

/// Loads a plugin and registers its kernels: all or none. Whether it was accepted, or why not, is logged either way.
///
/// # Safety
/// The plugin's code runs in this process; the caller trusts what `trust` lets through.
pub unsafe fn load(engine: &Engine, path: &Path, trust: &Trust) -> Result<Loaded, Error> {
    let mut sha256 = String::new();
    // SAFETY: passed on.
    let outcome = unsafe { try_load(engine, path, trust, &mut sha256) };
    audit(path, &sha256, outcome.as_ref());
    outcome
}

/// One line a try: who, which file, which hash, accepted or why not.
pub fn audit(path: &Path, sha256: &str, outcome: Result<&Loaded, &Error>) {
    let user = lz_files::user();
    match outcome {
        Ok(loaded) => tracing::info!(
            target: "lz::audit",
            plugin = %path.display(),
            sha256,
            user,
            backend = loaded.backend,
            kernels = loaded.kernels.len(),
            runs_in = loaded.runs_in.as_deref().unwrap_or("this process"),
            "plugin accepted"
        ),
        Err(error) => {
            let why = error.reasons().first().map(ToString::to_string).unwrap_or_default();
            tracing::warn!(target: "lz::audit", plugin = %path.display(), sha256, user, why, "plugin refused");
        }
    }
}

unsafe fn try_load(
    engine: &Engine,
    path: &Path,
    trust: &Trust,
    sha256: &mut String,
) -> Result<Loaded, Error> {
    let refuse = |reason: Reason| refusal(path, reason);
    let checked = trust.check(path, sha256).map_err(refuse)?;
    // SAFETY: passed on.
    let plugin = unsafe { Plugin::open(&checked) }.map_err(refuse)?;
    // SAFETY: passed on.
    let (descriptor, entries) = unsafe { plugin.kernels(engine, path) }?;
    if let Some(reason) = reserved_name(&descriptor.backend) {
        return Err(refuse(reason));
    }
    let kernels = entries.iter().map(|entry| entry.spec.id.clone()).collect();
    engine.register(entries)?;
    Ok(Loaded {
        backend: descriptor.backend,
        version: descriptor.version,
        sha256: sha256.clone(),
        kernels,
        runs_in: None,
    })
}

/// A plugin that is not loaded, and why.
pub fn refusal(path: &Path, reason: Reason) -> Error {
    Error::Configuration {
        subject: path.display().to_string(),
        message: reason.sentence(),
        reasons: vec![reason],
    }
}
