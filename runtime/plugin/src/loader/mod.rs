//! Plugin loading: trust checks ([`trust`]), kernels of a shared library ([`library`]), and the audit log.
//!
//! A plugin is rejected before any of its code runs if its path, owner, permissions, hash, signature or ABI version is not accepted.
//! Nothing here protects against the code of a plugin once it runs; a backend that is not trusted to that extent runs in a worker
//! process.

pub mod library;
pub mod trust;

use std::path::Path;

use lz_core::built_in::reserved_name;
use lz_core::{Error, Reason};
use lz_engine::Engine;

pub use library::Plugin;
pub use trust::Trust;

/// A loaded plugin.
#[derive(Debug, Clone)]
pub struct LoadedPlugin {
    /// The name of the backend, from its descriptor.
    pub backend: String,
    /// The version of the backend.
    pub version: String,
    /// SHA-256 of the file.
    pub sha256: String,
    /// Ids of its kernels.
    pub kernels: Vec<String>,
    /// Where it runs and the source of that setting; `None` for this process.
    pub runs_in: Option<String>,
}

/// Loads a plugin and registers its kernels: all or none. Writes one line to the audit log.
///
/// # Safety
/// The plugin's code runs in this process; the caller trusts the plugins that `trust` permits.
pub unsafe fn load(engine: &Engine, path: &Path, trust: &Trust) -> Result<LoadedPlugin, Error> {
    let mut sha256 = String::new();
    // SAFETY: forwarded to the caller.
    let outcome = unsafe { try_load(engine, path, trust, &mut sha256) };
    audit(path, &sha256, outcome.as_ref());
    outcome
}

/// Writes one audit log line per attempt: user, file, hash, and accepted or the reason of the rejection.
pub fn audit(path: &Path, sha256: &str, outcome: Result<&LoadedPlugin, &Error>) {
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
) -> Result<LoadedPlugin, Error> {
    let refuse = |reason: Reason| refusal(path, reason);
    let checked = trust.check(path, sha256).map_err(refuse)?;
    // SAFETY: forwarded to the caller.
    let plugin = unsafe { Plugin::open(&checked) }.map_err(refuse)?;
    // SAFETY: forwarded to the caller.
    let (descriptor, entries) = unsafe { plugin.kernels(engine, path) }?;
    if let Some(reason) = reserved_name(&descriptor.backend) {
        return Err(refuse(reason));
    }
    let kernels = entries.iter().map(|entry| entry.spec.id.clone()).collect();
    engine.register(entries)?;
    Ok(LoadedPlugin {
        backend: descriptor.backend,
        version: descriptor.version,
        sha256: sha256.clone(),
        kernels,
        runs_in: None,
    })
}

/// The error of a plugin that is not loaded.
pub fn refusal(path: &Path, reason: Reason) -> Error {
    Error::Configuration {
        subject: path.display().to_string(),
        message: reason.sentence(),
        reasons: vec![reason],
    }
}
