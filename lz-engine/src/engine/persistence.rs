//! Persistence: stored measurements that selection uses, and the stored health of kernels.
//!
//! No call waits for the database or fails because of it. Health is written in the background shortly after it changes, and
//! once more when the engine is dropped.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use lz_schema::policy::SettingValue;

use super::{Engine, Shared};
use crate::evidence::{Evidence, StoredEvidence};
use crate::health::{CircuitReport, Health, RefusalScope};
use crate::policy::layer::Layer;
use crate::selection::devices::{Devices, host};
use crate::selection::snapshot::{Snapshot, SnapshotParts};
use lz_core::device::{DeviceSpec, Environment, Platform};
use lz_core::fork::Mutex;
use lz_perfdb::collect_crashes;
use lz_perfdb::{ClosedReason, DropReason, Filter, HealthScope, Mode, Options, PerfDb, fleet_file};

/// Delay between a change of health and writing it, so that changes are batched.
const SAVE_DELAY: Duration = Duration::from_millis(200);

/// Initial and maximum delay before a database that another process has locked is tried again.
const INITIAL_RETRY_DELAY: Duration = Duration::from_millis(100);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(10);

/// How often the database is read for resets by other processes, while a circuit is not closed.
const RESET_INTERVAL: Duration = Duration::from_secs(1);

/// The PerfDB connection of an engine.
#[derive(Debug)]
pub(crate) struct Persistence {
    torch: String,
    state: Mutex<State>,
    /// The process in which a save is scheduled; 0 for none. A pid, because a forked child does not have the thread.
    saving: AtomicU32,
    /// The process in which a thread retries a locked database; 0 for none.
    retrying: AtomicU32,
    /// The process in which a thread waits for resets by other processes; 0 for none.
    watching: AtomicU32,
    /// Ids of the stored resets that this process has applied or that precede it; `None` before they were first read.
    applied_resets: Mutex<Option<HashSet<String>>>,
    engine: OnceLock<Weak<Shared>>,
}

#[derive(Debug, Default)]
struct State {
    path: Option<PathBuf>,
    db: Option<Arc<PerfDb>>,
    use_environment: bool,
}

impl Persistence {
    pub fn new(torch: String) -> Persistence {
        Persistence {
            torch,
            state: Mutex::default(),
            saving: AtomicU32::new(0),
            retrying: AtomicU32::new(0),
            watching: AtomicU32::new(0),
            applied_resets: Mutex::default(),
            engine: OnceLock::new(),
        }
    }

    fn db(&self) -> Option<Arc<PerfDb>> {
        self.state.lock().db.clone()
    }

    /// The current environment of a device; unknown if `perf_environment.use_nvml` is off.
    fn environment(&self, device: &DeviceSpec) -> Environment {
        let is_read = self.state.lock().use_environment;
        if is_read { lz_device::read_environment(device) } else { Environment::default() }
    }

    fn save(&self, health: &Health) -> Result<(), DropReason> {
        let Some(db) = self.db() else { return Ok(()) };
        // First, so that circuits which another process has reset are not stored again.
        self.apply_resets(&db, health);
        db.save_health(&health.export(&host().uuid))
    }

    /// Resets the circuits that another process has reset since the last call. Resets that precede the first call only deleted rows.
    fn apply_resets(&self, db: &PerfDb, health: &Health) {
        let Some(resets) = db.resets(&host().uuid) else { return };
        let ids = resets.iter().map(|reset| reset.id.clone()).collect();
        let applied = self.applied_resets.lock().replace(ids);
        let Some(applied) = applied else { return };
        for reset in resets.iter().filter(|reset| !applied.contains(&reset.id)) {
            health.reset_named(reset.name.as_deref());
        }
    }
}

/// Expands a leading `~/` to the home directory, if there is one.
pub(crate) fn expanded(path: &str) -> PathBuf {
    match (path.strip_prefix("~/"), std::env::home_dir()) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => PathBuf::from(path),
    }
}

/// The measurements of other machines, if there are any. The file is opened at each load, because `pull` replaces it.
fn open_fleet(database: &Path) -> Option<PerfDb> {
    let path = fleet_file(database);
    path.is_file().then(|| PerfDb::open_with(path, Options { read_only: true, ..Options::default() }).db)
}

impl Shared {
    /// Attaches the persistence. Only the first call has an effect.
    pub(super) fn attach_persistence(self: &Arc<Shared>, persistence: Persistence) -> bool {
        let _ = persistence.engine.set(Arc::downgrade(self));
        self.persistence.set(Arc::new(persistence)).is_ok()
    }

    /// Opens, replaces or closes the database according to the settings.
    pub(super) fn configure_persistence(&self, layer: &Layer) {
        let Some(persistence) = self.persistence.get() else { return };
        let value = |key: &str| layer.value(key).map(|sourced| sourced.value);
        let on = |key: &str| value(key) == Some(SettingValue::Bool(true));
        let path = match value("perfdb.path") {
            Some(SettingValue::Text(path)) if on("perfdb.enabled") => Some(expanded(&path)),
            _ => None,
        };
        let use_environment = on("perf_environment.use_nvml");
        let is_same_path = {
            let mut state = persistence.state.lock();
            if state.path == path && state.use_environment == use_environment {
                return;
            }
            state.use_environment = use_environment;
            state.path == path
        };
        if !is_same_path {
            // Opened without the lock, which a forked child would inherit locked.
            let db = path.as_ref().map(|path| Arc::new(PerfDb::open(path).db));
            *persistence.applied_resets.lock() = None;
            let mut state = persistence.state.lock();
            (state.path, state.db) = (path, db);
        }
        self.load_persisted();
    }

    /// Retries a locked database on a background thread until it can be read, then loads it.
    fn retry_later(persistence: &Arc<Persistence>) {
        let process = std::process::id();
        if persistence.retrying.swap(process, Ordering::AcqRel) == process {
            return;
        }
        let persistence = Arc::clone(persistence);
        let wait = move || {
            let mut pause = INITIAL_RETRY_DELAY;
            loop {
                std::thread::sleep(pause);
                pause = (pause * 2).min(MAX_RETRY_DELAY);
                let shared = persistence.engine.get().and_then(Weak::upgrade);
                let (Some(shared), Some(db)) = (shared, persistence.db()) else { break };
                if !db.retry() {
                    persistence.retrying.store(0, Ordering::Release);
                    shared.load_persisted();
                    return;
                }
            }
            persistence.retrying.store(0, Ordering::Release);
        };
        let _ = std::thread::Builder::new().name("lz-perfdb".to_owned()).spawn(wait);
    }

    /// Loads measurements and health of the registered kernels from the database.
    pub(super) fn load_persisted(&self) {
        let Some(persistence) = self.persistence.get() else { return };
        let Some(db) = persistence.db() else {
            // Removing evidence cannot fail.
            self.change(|parts| {
                Ok(parts.evidence.is_some().then(|| SnapshotParts { evidence: None, ..parts }))
            })
            .ok();
            return;
        };
        let snapshot = self.published.load();
        let environment = |device: &DeviceSpec| persistence.environment(device);
        let operations: Vec<&str> = snapshot
            .registry
            .operations()
            .filter(|info| snapshot.registry.kernels_of(info).next().is_some())
            .map(|info| info.name.as_ref())
            .collect();
        let devices = devices_of(&snapshot);
        // Backends register one after the other, and a new database is empty: skip the query.
        let names = operations.iter().copied();
        let mut evidence = if db.count(&Filter::default()) == 0 {
            StoredEvidence::default()
        } else {
            StoredEvidence::load(&db, devices.iter().copied(), names.clone(), &persistence.torch, environment)
        };
        if let Some(fleet) = open_fleet(db.path()) {
            let fleet = StoredEvidence::load_fleet(&fleet, devices, names, &persistence.torch, environment);
            evidence = evidence.with_fleet(fleet);
        }
        let evidence: Option<Arc<dyn Evidence>> =
            if evidence.is_empty() { None } else { Some(Arc::new(evidence)) };
        let change = |parts: SnapshotParts| {
            Ok((evidence.is_some() || parts.evidence.is_some()).then(|| SnapshotParts { evidence, ..parts }))
        };
        self.change(change).ok();
        let uuid = &host().uuid;
        persistence.apply_resets(&db, &snapshot.health);
        collect_crashes(
            &db,
            snapshot.health.clock.unix_seconds(),
            snapshot.health.config().kernel.max_backoff,
        );
        snapshot.health.import(&db.load_health(Some(uuid)), uuid, |scope, name| match scope {
            HealthScope::Kernel => snapshot.registry.kernel(name).map(|entry| entry.spec.version.clone()),
            HealthScope::Backend => snapshot.registry.backend(name).map(|backend| backend.version.clone()),
        });
        if db.is_busy() {
            Self::retry_later(persistence);
        }
        Self::watch_resets(persistence, &snapshot.health);
    }

    /// Waits for resets by other processes on a background thread, while a circuit of this process is not closed.
    fn watch_resets(persistence: &Arc<Persistence>, health: &Health) {
        let process = std::process::id();
        if !health.refuses_any() || persistence.watching.swap(process, Ordering::AcqRel) == process {
            return;
        }
        let persistence = Arc::clone(persistence);
        let wait = move || {
            loop {
                std::thread::sleep(RESET_INTERVAL);
                let shared = persistence.engine.get().and_then(Weak::upgrade);
                let (Some(shared), Some(db)) = (shared, persistence.db()) else { break };
                let health = Arc::clone(&shared.published.load().health);
                persistence.apply_resets(&db, &health);
                if !health.refuses_any() {
                    persistence.watching.store(0, Ordering::Release);
                    // A circuit may have opened in between.
                    return Self::watch_resets(&persistence, &health);
                }
            }
            persistence.watching.store(0, Ordering::Release);
        };
        let _ = std::thread::Builder::new().name("lz-resets".to_owned()).spawn(wait);
    }

    /// Schedules a background write of changed health.
    pub(super) fn persist_health(&self) {
        let Some(persistence) = self.persistence.get().filter(|persistence| persistence.db().is_some())
        else {
            return;
        };
        Self::watch_resets(persistence, &self.published.load().health);
        let process = std::process::id();
        if persistence.saving.swap(process, Ordering::AcqRel) == process {
            return;
        }
        let (persistence, health) = (Arc::clone(persistence), Arc::clone(&self.published.load().health));
        let write = move || {
            std::thread::sleep(SAVE_DELAY);
            persistence.saving.store(0, Ordering::Release);
            // The database counts and logs dropped writes.
            let _ = persistence.save(&health);
        };
        let _ = std::thread::Builder::new().name("lz-health".to_owned()).spawn(write);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let snapshot = self.published.load();
        // An engine with a simulated device has the id of the engine that it was made from.
        if snapshot.devices.are_real() {
            crate::log::require(snapshot.observation.engine, crate::log::Levels::OFF);
        }
        if let Some(persistence) = self.persistence.get() {
            let _ = persistence.save(&self.published.load().health);
        }
    }
}

/// The host, plus the other devices if a kernel targets one of them: detecting those loads drivers.
fn devices_of(snapshot: &Snapshot) -> Vec<&DeviceSpec> {
    let host_only = snapshot.registry.kernels().all(|entry| entry.spec.platform == Platform::Cpu);
    match &snapshot.devices {
        Devices::Simulated(device) => vec![device],
        Devices::Detected if host_only => vec![host()],
        Devices::Detected => {
            let others = crate::selection::devices::detected().devices.iter();
            std::iter::once(host())
                .chain(others.filter(|device| device.platform() != Platform::Cpu))
                .collect()
        }
    }
}

impl Engine {
    /// The database of measurements and health, if one is open.
    pub fn perfdb(&self) -> Option<Arc<PerfDb>> {
        self.shared.persistence.get()?.db()
    }

    /// The current environment of a device as measurements record it: temperature, memory pressure and power.
    pub(crate) fn environment(&self, device: &DeviceSpec) -> Environment {
        let persistence = self.shared.persistence.get();
        persistence.map_or_else(Environment::default, |persistence| persistence.environment(device))
    }

    /// Describes the problem if `perfdb.path` names a file that is not a performance database; such a file is not modified.
    pub fn foreign_perfdb(&self) -> Option<String> {
        let db = self.perfdb()?;
        match db.status().mode {
            Mode::Closed(
                reason @ (ClosedReason::NotADatabase { .. } | ClosedReason::ForeignDatabase { .. }),
            ) => Some(format!(
                "perfdb.path: {}: {reason}; measurements and health are not stored",
                db.path().display()
            )),
            _ => None,
        }
    }

    /// Uses an open database, for an engine that was not opened from settings. Returns whether it was attached: an engine that
    /// has a database keeps it.
    pub fn attach_perfdb(&self, db: Arc<PerfDb>, torch: &str) -> bool {
        let persistence = Persistence::new(torch.to_owned());
        {
            let mut state = persistence.state.lock();
            state.path = Some(Path::new(db.path()).to_owned());
            state.db = Some(db);
            state.use_environment = true;
        }
        let taken = self.shared.attach_persistence(persistence);
        if taken {
            self.shared.load_persisted();
        }
        taken
    }

    /// Reloads measurements, after tuning or an import.
    pub fn refresh_evidence(&self) {
        self.shared.load_persisted();
    }

    /// Writes the health of kernels now.
    pub fn save_health(&self) -> Result<(), DropReason> {
        match self.shared.persistence.get() {
            Some(persistence) => persistence.save(&self.health()),
            None => Ok(()),
        }
    }

    /// All circuits with recorded failures: those of this process, then stored ones that this process does not use.
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

    /// Resets the circuits of a kernel or backend, or all, in this process and in the database. Returns how many were reset. Other
    /// running processes that use the database reset theirs within about a second.
    pub fn reset_kernel(&self, name: Option<&str>) -> Result<usize, DropReason> {
        let chosen = |report: &CircuitReport| {
            report.scope != RefusalScope::Device && name.is_none_or(|name| report.name == name)
        };
        let count = self.circuits().into_iter().filter(chosen).count();
        let health = self.health();
        health.reset_named(name);
        if let Some(db) = self.perfdb() {
            db.reset_health(Engine::health_identity(), name)?;
            db.clear_trials(name)?;
            if let Some(persistence) = self.shared.persistence.get() {
                // Applied here as well, so that it is not applied later to new failures.
                persistence.apply_resets(&db, &health);
            }
        }
        Ok(count)
    }

    /// The machine id that health is stored under: circuits are per kernel and shape bucket, not per device.
    pub(crate) fn health_identity() -> &'static str {
        &host().uuid
    }

    /// The torch version that measurements are stored under.
    pub(crate) fn torch(&self) -> &str {
        self.shared.persistence.get().map_or("", |persistence| &persistence.torch)
    }
}
