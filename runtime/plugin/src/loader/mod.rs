//! Plugin loading: trust checks ([`trust`]), the check of the file's format ([`elf`]), kernels of a shared library ([`library`]), and the
//! audit log.
//!
//! A plugin is rejected before any of its code runs if its path, owner, permissions, hash, signature, format or ABI version is not
//! accepted.
//! Nothing here protects against the code of a plugin once it runs; a backend that is not trusted to that extent runs in a worker
//! process.

pub mod elf;
pub mod library;
pub mod trust;

use std::path::Path;
use std::time::Duration;

use lz_core::built_in::reserved_name;
use lz_core::descriptor::Descriptor;
use lz_core::{Error, KernelEntry, Reason};
use lz_engine::Engine;
use lz_engine::replace::{Replacement, Trial};

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
    /// What it replaced, if it was reloaded.
    pub replacement: Option<Replacement>,
}

/// How the kernels of a plugin are installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Install {
    /// As new kernels.
    New,
    /// As other versions of registered kernels, after a trial: `rollout.shares`, rules and locks give them calls.
    Alongside,
    /// In place of all kernels of their backend, after a trial. Waits up to this long until no call uses the old ones.
    Replace(Duration),
}

impl Install {
    /// Installs kernels: all or none.
    pub fn install(
        self,
        engine: &Engine,
        backend: &str,
        entries: Vec<KernelEntry>,
    ) -> Result<(Vec<String>, Option<Replacement>), Error> {
        let ids = |suffix: bool| -> Vec<String> {
            let id = |entry: &KernelEntry| match suffix {
                true => format!("{}@{}", entry.spec.id, entry.spec.version),
                false => entry.spec.id.clone(),
            };
            entries.iter().map(id).collect()
        };
        match self {
            Install::New => {
                let kernels = ids(false);
                engine.register(entries)?;
                Ok((kernels, None))
            }
            Install::Alongside => {
                let kernels = ids(true);
                engine.try_kernels(&entries)?;
                engine.register_versions(entries)?;
                Ok((kernels, None))
            }
            Install::Replace(patience) => {
                let replacement = engine.replace_backend(backend, entries, patience)?;
                Ok((replacement.kernels.clone(), Some(replacement)))
            }
        }
    }
}

/// Loads a plugin and registers its kernels: all or none. Writes one line to the audit log.
///
/// # Safety
/// The plugin's code runs in this process; the caller trusts the plugins that `trust` permits.
pub unsafe fn load(engine: &Engine, path: &Path, trust: &Trust) -> Result<LoadedPlugin, Error> {
    // SAFETY: forwarded to the caller.
    unsafe { load_as(engine, path, trust, Install::New) }
}

/// Loads a plugin and installs its kernels in another way: all or none. Writes one line to the audit log.
///
/// # Safety
/// As for [`load`].
pub unsafe fn load_as(
    engine: &Engine,
    path: &Path,
    trust: &Trust,
    install: Install,
) -> Result<LoadedPlugin, Error> {
    let mut sha256 = String::new();
    // SAFETY: forwarded to the caller.
    let outcome = unsafe { try_load(engine, path, trust, install, &mut sha256) };
    audit(path, &sha256, outcome.as_ref());
    outcome
}

/// Loads a plugin, tries its kernels, and unloads it. Nothing is registered.
///
/// # Safety
/// As for [`load`].
pub unsafe fn check(engine: &Engine, path: &Path, trust: &Trust) -> Result<(LoadedPlugin, Trial), Error> {
    let mut sha256 = String::new();
    // SAFETY: forwarded to the caller.
    let (descriptor, entries) = unsafe { open(engine, path, trust, false, &mut sha256) }?;
    let trial = engine.try_kernels(&entries)?;
    let loaded = LoadedPlugin {
        backend: descriptor.backend,
        version: descriptor.version,
        sha256,
        kernels: entries.iter().map(|entry| entry.spec.id.clone()).collect(),
        runs_in: None,
        replacement: None,
    };
    Ok((loaded, trial))
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
    install: Install,
    sha256: &mut String,
) -> Result<LoadedPlugin, Error> {
    // SAFETY: forwarded to the caller.
    let (descriptor, entries) = unsafe { open(engine, path, trust, install != Install::New, sha256) }?;
    let (kernels, replacement) = install.install(engine, &descriptor.backend, entries)?;
    Ok(LoadedPlugin {
        backend: descriptor.backend,
        version: descriptor.version,
        sha256: sha256.clone(),
        kernels,
        runs_in: None,
        replacement,
    })
}

/// Opens a plugin: its descriptor and its kernels, which keep it loaded.
unsafe fn open(
    engine: &Engine,
    path: &Path,
    trust: &Trust,
    must_be_new: bool,
    sha256: &mut String,
) -> Result<(Descriptor, Vec<KernelEntry>), Error> {
    let refuse = |reason: Reason| refusal(path, reason);
    let checked = trust.check(path, sha256).map_err(refuse)?;
    // SAFETY: forwarded to the caller.
    let plugin = unsafe { Plugin::open(&checked, sha256, must_be_new) }.map_err(refuse)?;
    // SAFETY: forwarded to the caller.
    let (descriptor, entries) = unsafe { plugin.kernels(engine, path) }?;
    if let Some(reason) = reserved_name(&descriptor.backend) {
        return Err(refuse(reason));
    }
    Ok((descriptor, entries))
}

/// The error of a plugin that is not loaded.
pub fn refusal(path: &Path, reason: Reason) -> Error {
    Error::Configuration {
        subject: path.display().to_string(),
        message: reason.sentence(),
        reasons: vec![reason],
    }
}
