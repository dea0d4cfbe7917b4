//! What an engine keeps on disk: measurements that it decides by, and the health of its kernels.
//!
//! The database is an adviser: nothing here can fail a call, and nothing here runs inside one. Health is written in the
//! background shortly after it changes, and once more when the engine goes.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use lz_schema::policy::SettingValue;

use super::{Engine, Shared};
use crate::evidence::{Evidence, StoredEvidence};
use crate::health::{CircuitReport, Health, RefusalScope};
use crate::policy::layer::Layer;
use crate::selection::devices::{Devices, host};
use crate::selection::snapshot::{Parts, World};
use lz_core::device::{DeviceSpec, Environment, Platform};
use lz_perfdb::collect_crashes;
use lz_perfdb::{ClosedReason, DropReason, Filter, HealthScope, Mode, PerfDb};

/// How long changes of health are collected before they are written.
const COLLECT: Duration = Duration::from_millis(200);

/// How long a database that another process holds is left alone before it is tried again: at first, and at most.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_LAST: Duration = Duration::from_secs(10);

/// The database of an engine.
#[derive(Debug)]
pub(crate) struct Keeper {
    torch: String,
    state: Mutex<State>,
    /// The process in which a thread is about to write; 0 for none. A forked child has not got the thread.
    saving: AtomicU32,
    /// The process in which a thread waits for a database that another process holds; 0 for none.
    retrying: AtomicU32,
    engine: OnceLock<Weak<Shared>>,
}

#[derive(Debug, Default)]
struct State {
    path: Option<PathBuf>,
    db: Option<Arc<PerfDb>>,
    use_environment: bool,
}

impl Keeper {
    pub fn new(torch: String) -> Keeper {
        Keeper {
            torch,
            state: Mutex::default(),
            saving: AtomicU32::new(0),
            retrying: AtomicU32::new(0),
            engine: OnceLock::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn db(&self) -> Option<Arc<PerfDb>> {
        self.state().db.clone()
    }

    fn save(&self, health: &Health) -> Result<(), DropReason> {
        match self.db() {
            Some(db) => db.save_health(&health.export(&host().uuid)),
            None => Ok(()),
        }
    }
}

/// `~` at the start of a path is the home directory; without one the path is taken as it stands.
fn expanded(path: &str) -> PathBuf {
    match (path.strip_prefix("~/"), std::env::home_dir()) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => PathBuf::from(path),
    }
}

impl Shared {
    /// Sets who keeps things on disk. Only the first is taken.
    pub(super) fn keep_with(self: &Arc<Shared>, keeper: Keeper) -> bool {
        let _ = keeper.engine.set(Arc::downgrade(self));
        self.keeper.set(Arc::new(keeper)).is_ok()
    }

    /// Opens, changes or closes the database as settings say.
    pub(super) fn keep(&self, layer: &Layer) {
        let Some(keeper) = self.keeper.get() else { return };
        let value = |key: &str| layer.value(key).map(|sourced| sourced.value);
        let on = |key: &str| value(key) == Some(SettingValue::Bool(true));
        let path = match value("perfdb.path") {
            Some(SettingValue::Text(path)) if on("perfdb.enabled") => Some(expanded(&path)),
            _ => None,
        };
        let use_environment = on("perf_environment.use_nvml");
        {
            let mut state = keeper.state();
            if state.path == path && state.use_environment == use_environment {
                return;
            }
            state.use_environment = use_environment;
            if state.path != path {
                state.db = path.as_ref().map(|path| Arc::new(PerfDb::open(path).db));
                state.path = path;
            }
        }
        self.read_kept();
    }

    /// Tries a database again that another process holds, elsewhere and until it can be read; then what it knows is read.
    fn retry_later(keeper: &Arc<Keeper>) {
        let process = std::process::id();
        if keeper.retrying.swap(process, Ordering::AcqRel) == process {
            return;
        }
        let keeper = Arc::clone(keeper);
        let wait = move || {
            let mut pause = RETRY_FIRST;
            loop {
                std::thread::sleep(pause);
                pause = (pause * 2).min(RETRY_LAST);
                let shared = keeper.engine.get().and_then(Weak::upgrade);
                let (Some(shared), Some(db)) = (shared, keeper.db()) else { break };
                if !db.retry() {
                    keeper.retrying.store(0, Ordering::Release);
                    shared.read_kept();
                    return;
                }
            }
            keeper.retrying.store(0, Ordering::Release);
        };
        let _ = std::thread::Builder::new().name("lz-perfdb".to_owned()).spawn(wait);
    }

    /// Reads what the database knows about the kernels that there are.
    pub(super) fn read_kept(&self) {
        let Some(keeper) = self.keeper.get() else { return };
        let (db, use_environment) = {
            let state = keeper.state();
            (state.db.clone(), state.use_environment)
        };
        let Some(db) = db else {
            // Taking evidence away cannot fail.
            self.change(|parts| Ok(parts.evidence.is_some().then(|| Parts { evidence: None, ..parts }))).ok();
            return;
        };
        let world = self.published.load();
        let environment = |device: &DeviceSpec| {
            if use_environment { lz_device::read_environment(device) } else { Environment::default() }
        };
        let operations: Vec<&str> = world
            .registry
            .operations()
            .filter(|info| world.registry.kernels_of(info).next().is_some())
            .map(|info| info.name.as_ref())
            .collect();
        let devices = devices_of(&world);
        // Backends register one after the other, and most databases of a first day are empty.
        let evidence = if db.count(&Filter::default()) == 0 {
            StoredEvidence::default()
        } else {
            StoredEvidence::load(&db, devices, operations.iter().copied(), &keeper.torch, environment)
        };
        let evidence: Option<Arc<dyn Evidence>> =
            if evidence.is_empty() { None } else { Some(Arc::new(evidence)) };
        let change = |parts: Parts| {
            Ok((evidence.is_some() || parts.evidence.is_some()).then(|| Parts { evidence, ..parts }))
        };
        self.change(change).ok();
        let uuid = &host().uuid;
        collect_crashes(&db, world.health.clock.unix_seconds(), world.health.config().kernel.max_backoff);
        world.health.import(&db.load_health(Some(uuid)), uuid, |scope, name| match scope {
            HealthScope::Kernel => world.registry.kernel(name).map(|entry| entry.spec.version.clone()),
            HealthScope::Backend => world.registry.backend(name).map(|backend| backend.version.clone()),
        });
        if db.is_busy() {
            Self::retry_later(keeper);
        }
    }

    /// Health has changed: writes it, a little later and elsewhere.
    pub(super) fn keep_health(&self) {
        let Some(keeper) = self.keeper.get().filter(|keeper| keeper.db().is_some()) else { return };
        let process = std::process::id();
        if keeper.saving.swap(process, Ordering::AcqRel) == process {
            return;
        }
        let (keeper, health) = (Arc::clone(keeper), Arc::clone(&self.published.load().health));
        let write = move || {
            std::thread::sleep(COLLECT);
            keeper.saving.store(0, Ordering::Release);
            // What is dropped is counted and said by the database itself.
            let _ = keeper.save(&health);
        };
        let _ = std::thread::Builder::new().name("lz-health".to_owned()).spawn(write);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(keeper) = self.keeper.get() {
            let _ = keeper.save(&self.published.load().health);
        }
    }
}

/// The host, and the other devices when a kernel is for one of them: looking for those loads drivers.
fn devices_of(world: &World) -> Vec<&DeviceSpec> {
    let host_only = world.registry.kernels().all(|entry| entry.spec.platform == Platform::Cpu);
    match &world.devices {
        Devices::Imagined(device) => vec![device],
        Devices::Found if host_only => vec![host()],
        Devices::Found => {
            let others = crate::selection::devices::found().devices.iter();
            std::iter::once(host())
                .chain(others.filter(|device| device.platform() != Platform::Cpu))
                .collect()
        }
    }
}

impl Engine {
    /// The database of measurements and health, when there is one.
    pub fn perfdb(&self) -> Option<Arc<PerfDb>> {
        self.shared.keeper.get()?.db()
    }

    /// What is wrong with `perfdb.path` if it names a file that is not a performance database; such a file is left as it is.
    pub fn foreign_perfdb(&self) -> Option<String> {
        let db = self.perfdb()?;
        match db.status().mode {
            Mode::Closed(
                reason @ (ClosedReason::NotADatabase { .. } | ClosedReason::ForeignDatabase { .. }),
            ) => Some(format!(
                "perfdb.path: {}: {reason}; measurements and health are not kept",
                db.path().display()
            )),
            _ => None,
        }
    }

    /// Uses a database that is open already, for an engine that was not opened from settings. Says whether it was taken: an
    /// engine that keeps things already goes on as it did.
    pub fn attach_perfdb(&self, db: Arc<PerfDb>, torch: &str) -> bool {
        let keeper = Keeper::new(torch.to_owned());
        {
            let mut state = keeper.state();
            state.path = Some(Path::new(db.path()).to_owned());
            state.db = Some(db);
            state.use_environment = true;
        }
        let taken = self.shared.keep_with(keeper);
        if taken {
            self.shared.read_kept();
        }
        taken
    }

    /// Reads measurements anew, after tuning or an import.
    pub fn refresh_evidence(&self) {
        self.shared.read_kept();
    }

    /// Writes the health of kernels now.
    pub fn save_health(&self) -> Result<(), DropReason> {
        match self.shared.keeper.get() {
            Some(keeper) => keeper.save(&self.health()),
            None => Ok(()),
        }
    }

    /// Every circuit that has something to remember: those of this process, then those that are stored and not used here.
    pub fn circuits(&self) -> Vec<CircuitReport> {
        let health = self.health();
        let mut all = health.circuits();
        let now = health.clock.unix_seconds();
        let rows =
            self.perfdb().map(|db| db.load_health(Some(Engine::health_identity()))).unwrap_or_default();
        for row in rows {
            let stored = CircuitReport::of_row(&row, now);
            if !all.iter().any(|known| known.is_same(&stored)) {
                all.push(stored);
            }
        }
        all
    }

    /// Forgets the failures of a kernel or backend, or of all of them: here and in the database. Says how many circuits were
    /// forgotten. Other processes that run keep what they know.
    pub fn reset_kernel(&self, name: Option<&str>) -> Result<usize, DropReason> {
        let chosen = |report: &CircuitReport| {
            report.scope != RefusalScope::Device && name.is_none_or(|name| report.name == name)
        };
        let count = self.circuits().into_iter().filter(chosen).count();
        let health = self.health();
        match name {
            Some(name) => {
                health.reset_kernel(name);
                health.reset_backend(name);
            }
            None => health.reset_all(),
        }
        if let Some(db) = self.perfdb() {
            db.delete_health(Engine::health_identity(), name)?;
            db.clear_trials(name)?;
        }
        Ok(count)
    }

    /// Under which machine's name health is kept: circuits are a kernel's and a shape's, whichever device they were seen on.
    pub(crate) fn health_identity() -> &'static str {
        &host().uuid
    }

    /// The version of torch that measurements are kept under.
    pub(crate) fn torch(&self) -> &str {
        self.shared.keeper.get().map_or("", |keeper| &keeper.torch)
    }
}
