//! The policy settings of worker processes: `backend_isolation` and the section `worker`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use lz_core::built_in::reserved_name;
use lz_core::{Reason, ReasonCode};
use lz_engine::Engine;
use lz_engine::policy::WithSource;
use lz_files as files;
use lz_schema::diagnostics::nearest;
use lz_schema::policy::SettingValue;

use crate::options::WorkerOptions;
use crate::process::CONTROL_VARIABLE;
use crate::sandbox::Sandbox;

/// The policy key for where backends run.
pub const ISOLATION: &str = "backend_isolation";

/// How many files of a plugin directory are compared with a name.
const MAX_PLUGIN_FILES: usize = 10_000;

/// The default of `worker.program`.
const DEFAULT_PROGRAM: &str = "lz-worker";

/// The worker program of this host.
static OWN_PROGRAM: OnceLock<OwnProgram> = OnceLock::new();

#[derive(Debug)]
struct OwnProgram {
    program: PathBuf,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
}

impl OwnProgram {
    fn options(&self) -> WorkerOptions {
        let mut options = WorkerOptions::new(self.program.clone());
        options.arguments.clone_from(&self.arguments);
        options.environment.clone_from(&self.environment);
        options
    }
}

/// Sets the program that runs isolated plugins unless `worker.program` names another one. With the arguments of `lz-worker`
/// appended to these, it calls `program::run`. The first call counts.
///
/// A package that is installed without the program `lz-worker`, such as a Python wheel, is its own worker this way.
pub fn set_own_program(
    program: PathBuf,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
) -> bool {
    OWN_PROGRAM.set(OwnProgram { program, arguments, environment }).is_ok()
}

/// Where a backend runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    /// In this process.
    InProcess,
    /// In a worker process.
    Subprocess,
}

/// Whether this process is a worker. A worker never starts workers.
pub fn is_worker() -> bool {
    std::env::var_os(CONTROL_VARIABLE).is_some()
}

/// The origin of a backend's code, known before any of it runs.
#[derive(Debug, Clone, Copy)]
pub enum Origin<'a> {
    /// Built into LayerZero ([`lz_core::built_in`]).
    BuiltIn,
    /// A plugin file.
    File(&'a Path),
    /// A Python module whose functions were registered.
    Module(&'a str),
    /// An entry point of a Python package.
    EntryPoint(&'a str),
}

impl Origin<'_> {
    /// The name that a policy would use for it, other than the backend's.
    fn name(&self) -> Option<&str> {
        match self {
            Origin::BuiltIn => None,
            Origin::File(path) => path.file_name().and_then(|file| file.to_str()),
            Origin::Module(name) | Origin::EntryPoint(name) => Some(name),
        }
    }

    /// Whether a name in the policy matches this origin: a path or file name, a module or a parent package, or an entry point.
    fn is_named(&self, name: &str) -> bool {
        match self {
            Origin::BuiltIn => false,
            Origin::File(path) => {
                *path == Path::new(name) || path.file_name().is_some_and(|file| file == name)
            }
            Origin::Module(module) => {
                module.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            }
            Origin::EntryPoint(entry) => *entry == name,
        }
    }
}

/// Where a backend runs, and the source of that setting. The policy for its origin applies; the policy for the name that it reports
/// applies only if it is stricter, because untrusted code chooses its own name. `container` is rejected: it is not implemented.
pub fn isolation(
    engine: &Engine,
    origin: Origin<'_>,
    backend: &str,
) -> Result<WithSource<Isolation>, Reason> {
    let set = engine.setting(ISOLATION);
    let (general, named) = match set.as_ref().map(|set| &set.value) {
        Some(SettingValue::WordByName(word, named)) => (word.as_str(), named.as_slice()),
        _ => ("in_process", &[][..]),
    };
    let by_name = named.iter().find(|(name, _)| name == backend).map(|(_, word)| word.as_str());
    let by_origin = match origin {
        Origin::BuiltIn => by_name,
        _ => named.iter().find(|(name, _)| origin.is_named(name)).map(|(_, word)| word.as_str()),
    };
    let strictness = |word: &&str| ["in_process", "subprocess"].iter().position(|name| name == word);
    let word = [by_origin.or(Some(general)), by_name.filter(|_| !matches!(origin, Origin::BuiltIn))];
    // Unknown values count as the strictest.
    let word = word.into_iter().flatten().max_by_key(|word| strictness(word).unwrap_or(usize::MAX));
    let word = word.unwrap_or("in_process");
    let source = set.as_ref().map_or_else(|| "default".to_owned(), |set| set.source.to_string());
    match word {
        _ if is_worker() => Ok(WithSource::new(Isolation::InProcess, "this process is a worker")),
        "in_process" => Ok(WithSource::new(Isolation::InProcess, source)),
        "subprocess" => Ok(WithSource::new(Isolation::Subprocess, source)),
        other => Err(Reason::new(ReasonCode::PolicyInvalid).message(format!(
            "`{ISOLATION}: {other}` for `{backend}` ({source}) is not implemented; use `subprocess`, which runs it in a worker \
             process; `worker.program` may be a program that starts the worker in a container"
        ))),
    }
}

/// Refuses to run a backend in this process if the policy isolates a similar name that nothing has: it is probably a misspelling of this
/// backend, and running it here would weaken isolation. A name that some other backend may have is none: of a built-in or registered
/// backend, of a plugin file that the policy permits, or of anything for which `is_loadable` returns true.
pub fn refuse_misspelled(
    engine: &Engine,
    origin: Origin<'_>,
    backend: &str,
    is_loadable: impl Fn(&str) -> bool,
) -> Result<(), Reason> {
    let Some(set) = engine.setting(ISOLATION).filter(|_| !is_worker()) else { return Ok(()) };
    let SettingValue::WordByName(_, named) = &set.value else { return Ok(()) };
    if named.iter().any(|(name, _)| name == backend || origin.is_named(name)) {
        return Ok(());
    }
    let registry = engine.registry();
    let is_unknown = |name: &&str| {
        registry.backend(name).is_none()
            && reserved_name(name).is_none()
            && !is_plugin_file(engine, name)
            && !is_loadable(name)
    };
    let isolated = || named.iter().filter(|(_, word)| word != "in_process").map(|(name, _)| name.as_str());
    for own in [Some(backend), origin.name()].into_iter().flatten() {
        let mut similar = isolated().filter(|name| nearest(own, [*name]).is_some());
        if let Some(near) = similar.find(is_unknown) {
            return Err(Reason::new(ReasonCode::PolicyInvalid).message(format!(
                "`{ISOLATION}` ({}) isolates `{near}`, which no backend has as its name; did you mean `{own}`? Correct the name, or add \
                 `{own}: in_process` if `{near}` is another backend",
                set.source
            )));
        }
    }
    Ok(())
}

/// Whether `plugins.load` or a directory of `plugins.directories` contains a plugin file of this name, with or without `lib` and the
/// extension. The name of its backend is not known before its code runs.
fn is_plugin_file(engine: &Engine, name: &str) -> bool {
    let has_name = |path: &Path| {
        let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        Origin::File(path).is_named(name) || stem == name || stem.strip_prefix("lib") == Some(name)
    };
    let listed = |key: &str| match engine.setting(key).map(|set| set.value) {
        Some(SettingValue::Texts(paths)) => paths,
        _ => Vec::new(),
    };
    listed("plugins.load").iter().any(|path| has_name(Path::new(path)))
        || listed("plugins.directories").iter().any(|folder| {
            let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
            entries.take(MAX_PLUGIN_FILES).any(|entry| has_name(&entry.path()))
        })
}

/// Whether the policy isolates any backend.
pub fn any_isolated(engine: &Engine) -> bool {
    match engine.setting(ISOLATION).map(|set| set.value) {
        Some(SettingValue::WordByName(word, named)) if !is_worker() => {
            word != "in_process" || named.iter().any(|(_, word)| word != "in_process")
        }
        _ => false,
    }
}

/// The worker options of the policy. `program` overrides `worker.program`, which must be writable only by this user or root.
pub fn options(engine: &Engine, program: Option<PathBuf>) -> Result<WorkerOptions, Reason> {
    let text = |key: &str| engine.setting(key).map(|set| set.value.to_string()).unwrap_or_default();
    let seconds = |key: &str| match engine.setting(key).map(|set| set.value) {
        Some(SettingValue::Float(seconds)) => Duration::try_from_secs_f64(seconds).ok(),
        _ => None,
    };
    let mebibytes = |key: &str| match engine.setting(key).map(|set| set.value) {
        Some(SettingValue::Int(count)) => {
            u64::try_from(count).ok().and_then(|count| count.checked_mul(1 << 20))
        }
        _ => None,
    };
    let stated = text("worker.program");
    let mut options = match (program, OWN_PROGRAM.get()) {
        (Some(program), _) => WorkerOptions::new(program),
        (None, Some(own)) if stated == DEFAULT_PROGRAM => own.options(),
        (None, _) => WorkerOptions::new(find_program(Path::new(&stated))?),
    };
    if let Some(bytes) = mebibytes("worker.arena_mb").and_then(|bytes| usize::try_from(bytes).ok()) {
        options.arena_bytes = bytes;
    }
    let limit = mebibytes("worker.arena_limit_mb").and_then(|bytes| usize::try_from(bytes).ok());
    options.arena_limit = limit.unwrap_or(options.arena_limit).max(options.arena_bytes);
    options.deadline = seconds("worker.deadline_seconds").unwrap_or(options.deadline);
    options.start_deadline = seconds("worker.start_deadline_seconds").unwrap_or(options.start_deadline);
    options.memory_limit = mebibytes("worker.memory_limit_mb").filter(|bytes| *bytes > 0);
    let cgroup = text("worker.cgroup");
    options.cgroup = (cgroup != "none" && !cgroup.is_empty()).then(|| cgroup.into());
    options.sandbox = Sandbox::of(engine);
    let source = engine.setting(ISOLATION).map_or_else(|| "default".to_owned(), |set| set.source.to_string());
    options.telemetry = Some(engine.telemetry());
    options.runs_in = format!("a worker process ({ISOLATION}: {source})");
    Ok(options)
}

/// Finds a program by its path, or by its name in the folder of this executable and in `PATH`.
fn find_program(program: &Path) -> Result<PathBuf, Reason> {
    let own = std::env::current_exe().ok().and_then(|own| own.parent().map(Path::to_owned));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = own.into_iter().chain(std::env::split_paths(&path)).collect();
    files::trusted_program(program, folders.iter().map(|folder| folder.as_os_str())).map_err(|why| {
        Reason::new(ReasonCode::WorkerUnavailable).message(format!("cannot run `worker.program`: {why}"))
    })
}
