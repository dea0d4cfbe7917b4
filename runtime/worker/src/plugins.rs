//! Plugins by policy: which may be loaded (`plugins`), and where each runs (`backend_isolation`).

use std::path::{Path, PathBuf};

use lz_core::built_in::reserved_name;
use lz_core::{Error, Reason, ReasonCode};
use lz_engine::Engine;
use lz_engine::replace::Trial;
use lz_plugin::loader::{self, Trust};
use lz_schema::policy::SettingValue;

pub use lz_plugin::loader::{Install, LoadedPlugin};

use crate::host::Worker;
use crate::settings::{self, Isolation, Origin};

/// The trust settings of the policy: `plugins.directories`, `plugins.manifest`, `plugins.keys`.
pub fn trust(engine: &Engine) -> Result<Trust, Error> {
    let mut trust = Trust::directories(texts(engine, "plugins.directories").into_iter().map(PathBuf::from));
    let manifest = engine.setting("plugins.manifest").map(|set| set.value.to_string());
    if let Some(path) = manifest.filter(|path| path != "none") {
        let read = Trust::read_manifest_file(Path::new(&path));
        trust.manifest = Some(read.map_err(|reason| wrong("plugins.manifest", reason.sentence()))?);
    }
    for key in texts(engine, "plugins.keys") {
        trust.keys.push(Trust::read_key(&key).map_err(|why| wrong("plugins.keys", why))?);
    }
    Ok(trust)
}

/// Loads a plugin that the policy trusts, into this process or into a worker.
///
/// # Safety
/// A plugin that is not isolated runs in this process; the caller trusts the plugins that the policy permits.
pub unsafe fn load(engine: &Engine, path: &Path) -> Result<LoadedPlugin, Error> {
    // SAFETY: forwarded to the caller.
    unsafe { load_trusted(engine, path, &trust(engine)?) }
}

/// Loads a plugin that `trust` permits, into this process or into a worker, depending on `backend_isolation`.
///
/// # Safety
/// As for [`load`].
pub unsafe fn load_trusted(engine: &Engine, path: &Path, trust: &Trust) -> Result<LoadedPlugin, Error> {
    // SAFETY: forwarded to the caller.
    unsafe { install_trusted(engine, path, trust, Install::New) }
}

/// Loads a plugin that the policy trusts next to, or in place of, registered kernels: see [`Install`]. On error nothing
/// changes.
///
/// # Safety
/// As for [`load`].
pub unsafe fn load_as(engine: &Engine, path: &Path, install: Install) -> Result<LoadedPlugin, Error> {
    // SAFETY: forwarded to the caller.
    unsafe { install_trusted(engine, path, &trust(engine)?, install) }
}

/// Checks a plugin that the policy trusts: loads it into this process, tries its kernels and unloads it.
///
/// # Safety
/// As for [`load`].
pub unsafe fn check(engine: &Engine, path: &Path) -> Result<(LoadedPlugin, Trial), Error> {
    // SAFETY: forwarded to the caller.
    unsafe { loader::check(engine, path, &trust(engine)?) }
}

/// # Safety
/// As for [`load`].
unsafe fn install_trusted(
    engine: &Engine,
    path: &Path,
    trust: &Trust,
    install: Install,
) -> Result<LoadedPlugin, Error> {
    // The backend's name is known only after the plugin's code has run. If any backend is isolated, it runs in a worker first.
    if settings::any_isolated(engine)
        && let Some(loaded) = load_isolated(engine, path, trust, install)?
    {
        return Ok(loaded);
    }
    // SAFETY: forwarded to the caller.
    unsafe { loader::load_as(engine, path, trust, install) }
}

/// Loads every plugin of `plugins.load`; a rejected plugin does not prevent the others from loading.
///
/// # Safety
/// As for [`load`].
pub unsafe fn load_all(engine: &Engine) -> Vec<(PathBuf, Result<LoadedPlugin, Error>)> {
    if settings::is_worker() {
        return Vec::new();
    }
    let paths = texts(engine, "plugins.load").into_iter().map(PathBuf::from);
    // SAFETY: forwarded to the caller.
    let load_one = |path: PathBuf| (path.clone(), unsafe { load(engine, &path) });
    paths.map(load_one).collect()
}

/// Starts a worker with a plugin; `None` if its backend is not isolated.
fn load_isolated(
    engine: &Engine,
    path: &Path,
    trust: &Trust,
    install: Install,
) -> Result<Option<LoadedPlugin>, Error> {
    let mut sha256 = String::new();
    let outcome = try_isolated(engine, path, trust, install, &mut sha256);
    if let Some(outcome) =
        outcome.as_ref().map_or_else(|error| Some(Err(error)), |loaded| loaded.as_ref().map(Ok))
    {
        loader::audit(path, &sha256, outcome);
    }
    outcome
}

fn try_isolated(
    engine: &Engine,
    path: &Path,
    trust: &Trust,
    install: Install,
    sha256: &mut String,
) -> Result<Option<LoadedPlugin>, Error> {
    let refuse = |reason: Reason| loader::refusal(path, reason);
    // Checked before a process is spawned; the worker repeats the checks before it loads the plugin.
    trust.check(path, sha256).map_err(refuse)?;
    let name = |worker: &Worker| -> Result<String, Error> {
        let json = worker.descriptor().map_err(refuse)?;
        let value: Option<serde_json::Value> = serde_json::from_str(&json).ok();
        let backend = value.as_ref().and_then(|value| value.get("backend")?.as_str());
        Ok(backend.unwrap_or_default().to_owned())
    };
    let mut options = settings::options(engine, None).map_err(refuse)?.argument(path);
    for folder in &trust.directories {
        options = options.argument("--allow").argument(folder);
    }
    for key in &trust.keys {
        options = options.argument("--key").argument(loader::trust::hexadecimal(key.as_bytes()));
    }
    if let Some(manifest) = &trust.manifest {
        let lines: String = manifest.iter().map(|(file, hash)| format!("{hash}  {file}\n")).collect();
        options = options.argument("--pins").argument(lines);
    }
    let runs_in = options.runs_in.clone();
    let worker = Worker::start(options).map_err(refuse)?;
    let backend = name(&worker)?;
    if let Some(reason) = reserved_name(&backend) {
        return Err(refuse(reason));
    }
    let isolation = settings::isolation(engine, Origin::File(path), &backend).map_err(refuse)?;
    if isolation.value == Isolation::InProcess {
        settings::refuse_misspelled(engine, Origin::File(path), &backend, |_| false).map_err(refuse)?;
        return Ok(None);
    }
    let entries = worker.kernels(engine)?;
    let version = entries.first().map(|entry| entry.spec.version.clone()).unwrap_or_default();
    let (kernels, replacement) = install.install(engine, &backend, entries)?;
    let (sha256, runs_in) = (sha256.clone(), Some(runs_in));
    Ok(Some(LoadedPlugin { backend, version, sha256, kernels, runs_in, replacement }))
}

fn texts(engine: &Engine, key: &str) -> Vec<String> {
    match engine.setting(key).map(|set| set.value) {
        Some(SettingValue::Texts(texts)) => texts,
        _ => Vec::new(),
    }
}

fn wrong(key: &str, message: String) -> Error {
    let reason = Reason::new(ReasonCode::PolicyInvalid).message(message.clone());
    Error::Configuration { subject: key.to_owned(), message, reasons: vec![reason] }
}
