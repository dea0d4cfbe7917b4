//! The monitor: records behind a lock for writers; atomics and an immutable view for readers.
//!
//! A change is published in this order: view, atomics, generation. A reader that sees the new generation therefore sees the new
//! view, and a decision cached under an older generation is never used as a current one.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;

use super::circuit::{Admission, Transition};
use super::clock::{Clock, SystemClock};
use super::config::HealthConfig;
use super::degradation::{Degradation, DegradationLevel, HealthInputs, LevelChange};
use super::permit::{Failure, Permit, Refusal, RefusalScope, Subject};
use super::registry::{Key, Record, Registry, circuit_config};
use super::report::CircuitReport;
use super::view::{CircuitStatus, Totals, View};
use lz_core::failure::{Cause, Severity};
use lz_core::fork::{Mutex, MutexGuard};
use lz_perfdb::HealthState;

/// Numbers of kernels, backends and devices, for computing shares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InstalledCounts {
    /// Kernels that are registered.
    pub kernels: u32,
    /// Backends that are registered.
    pub backends: u32,
    /// Devices in use.
    pub devices: u32,
}

/// A change that selection must observe.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// A circuit changed its state.
    Circuit {
        /// The kind of circuit.
        scope: RefusalScope,
        /// The kernel, backend or device.
        name: String,
        /// Before.
        from: HealthState,
        /// After.
        to: HealthState,
        /// The text of the latest error.
        last_error: String,
    },
    /// The reliability penalty of a kernel changed.
    Weight {
        /// The kernel.
        name: String,
    },
    /// The degradation level changed.
    Level(LevelChange),
}

/// Counters since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Failures of kernels.
    pub failures: u64,
    /// Failures caused by the caller; no circuit counts them.
    pub caller_failures: u64,
    /// Failures for lack of memory or another limited resource; no circuit counts them.
    pub capacity_failures: u64,
    /// Failures of a dependency of a kernel; only circuits of backends count them.
    pub environment_failures: u64,
    /// Circuits that opened.
    pub openings: u64,
    /// Circuits that closed again.
    pub closings: u64,
    /// Probes that were granted.
    pub probes: u64,
    /// Refused calls.
    pub refusals: u64,
    /// Failures that were not recorded because the table was full.
    pub untracked: u64,
    /// Internal faults of the engine.
    pub engine_faults: u64,
}

impl Counters {
    fn of_cause(&mut self, cause: Cause) -> &mut u64 {
        match cause {
            Cause::Caller => &mut self.caller_failures,
            Cause::Capacity => &mut self.capacity_failures,
            Cause::Environment => &mut self.environment_failures,
            Cause::Kernel => &mut self.failures,
        }
    }
}

/// The current health.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Summary {
    /// Circuits with records.
    pub tracked: u32,
    /// Circuits that are not closed.
    pub blocking: u32,
    /// The inputs of the health score.
    pub health_inputs: HealthInputs,
    /// The health score, from 0 to 100.
    pub score: f64,
    /// The current level.
    pub level: DegradationLevel,
    /// Counters since the start.
    pub counters: Counters,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub registry: Registry,
    population: InstalledCounts,
    /// Times of internal faults of the engine, oldest first.
    faults: VecDeque<Duration>,
    counters: Counters,
}

type Listener = Box<dyn Fn(&Change, u64) + Send + Sync>;

/// Circuit breakers of kernels, backends and devices, and the degradation level.
pub struct Health {
    config: ArcSwap<HealthConfig>,
    pub(crate) clock: Arc<dyn Clock>,
    /// Upper half: number of records; lower half: number of circuits that are not closed.
    record_counts: AtomicU64,
    /// When the next timed transition is due, in nanoseconds of the clock; `u64::MAX` for never.
    due: AtomicU64,
    generation: AtomicU64,
    refusals: AtomicU64,
    view: ArcSwap<View>,
    state: Mutex<State>,
    degradation: Degradation,
    listener: OnceLock<Listener>,
}

impl fmt::Debug for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Health").field("summary", &self.summary()).finish_non_exhaustive()
    }
}

impl Default for Health {
    fn default() -> Self {
        Health::new(HealthConfig::default(), Arc::new(SystemClock::default()))
    }
}

impl Health {
    /// Without any records.
    pub fn new(config: HealthConfig, clock: Arc<dyn Clock>) -> Health {
        Health {
            config: ArcSwap::from_pointee(config),
            clock,
            record_counts: AtomicU64::new(0),
            due: AtomicU64::new(u64::MAX),
            generation: AtomicU64::new(0),
            refusals: AtomicU64::new(0),
            view: ArcSwap::from_pointee(View::default()),
            state: Mutex::new(State::default()),
            degradation: Degradation::new(config.degradation),
            listener: OnceLock::new(),
        }
    }

    /// The current configuration.
    pub fn config(&self) -> HealthConfig {
        **self.config.load()
    }

    /// Replaces the configuration of circuits and penalties. Records stay; the degradation thresholds are fixed at
    /// construction.
    pub fn configure(&self, config: HealthConfig) {
        self.config.store(Arc::new(config));
    }

    /// Sets the listener that receives every change with its generation. It runs on the thread that caused the change, without
    /// locks held. Only the first listener is kept; returns whether this was it.
    pub fn on_change(&self, listener: impl Fn(&Change, u64) + Send + Sync + 'static) -> bool {
        self.listener.set(Box::new(listener)).is_ok()
    }

    /// Whether every circuit is closed: one atomic load. If so, no other check is needed before a call.
    pub fn all_closed(&self) -> bool {
        self.record_counts.load(Ordering::Acquire) & u64::from(u32::MAX) == 0
    }

    /// Whether there are no records: one atomic load. If so, a success need not be recorded.
    pub fn has_no_records(&self) -> bool {
        self.record_counts.load(Ordering::Acquire) == 0
    }

    /// The published view of all records.
    #[cfg(test)]
    pub(super) fn view(&self) -> Arc<View> {
        self.view.load_full()
    }

    /// Increases with every change that selection can observe.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The degradation level: one atomic load.
    pub fn level(&self) -> DegradationLevel {
        self.degradation.level()
    }

    /// Whether [`Health::poll`] has something to do. One atomic load while nothing is pending.
    pub fn poll_due(&self) -> bool {
        let due = self.due.load(Ordering::Acquire);
        due != u64::MAX && self.clock.elapsed() >= Duration::from_nanos(due)
    }

    /// Performs timed transitions: open circuits become half-open, probes time out, the level recovers. Returns whether anything
    /// changed. Does nothing if another thread holds the lock.
    pub fn poll(&self) -> bool {
        if !self.poll_due() {
            return false;
        }
        let Some(guard) = self.state.try_lock() else { return false };
        self.apply(guard, |health, state, now, changes| {
            let config = health.config();
            for key in state.registry.due(now, &config) {
                if let Some(record) = state.registry.get_mut(&key) {
                    let transition = record.circuit.poll(now, circuit_config(&key, &config));
                    apply_transition(state, &key, transition, changes);
                }
            }
        })
    }

    /// The status of a kernel's circuits, for the filter and for explanations. Claims no probe.
    pub fn circuit_status(&self, subject: &Subject<'_>) -> CircuitStatus {
        if self.all_closed() {
            return CircuitStatus::Closed;
        }
        self.view.load().circuit_status(subject, self.clock.elapsed())
    }

    /// The score penalty of a kernel for failures. It changes only together with the generation.
    pub fn reliability_penalty(&self, subject: &Subject<'_>) -> f64 {
        if self.has_no_records() {
            return 0.0;
        }
        self.view.load().penalty(subject, &self.config.load().penalty)
    }

    /// The last recorded error of a kernel in this bucket; otherwise of its backend, or of the kernel in other
    /// buckets.
    pub fn last_failure(&self, subject: &Subject<'_>) -> Option<String> {
        if self.has_no_records() {
            return None;
        }
        self.view.load().last_failure(subject)
    }

    /// Whether there is a record of a kernel, its backend or any device.
    pub(crate) fn has_failure_record(&self, kernel: &str, backend: &str) -> bool {
        self.view.load().has_failure_record(kernel, backend)
    }

    /// Requests a permit for a call; claims a probe if a circuit is half-open.
    pub fn admit<'h>(&'h self, subject: Subject<'h>) -> Result<Permit<'h>, Refusal> {
        if self.all_closed() {
            return Ok(Permit::new(self, subject, None, None));
        }
        let circuit_status = self.view.load().circuit_status(&subject, self.clock.elapsed());
        let result = match circuit_status {
            CircuitStatus::Closed => Ok(Permit::new(self, subject, None, None)),
            CircuitStatus::Refused(refusal) => Err(refusal),
            CircuitStatus::Probing => self.admit_probe(subject),
        };
        if result.is_err() {
            self.refusals.fetch_add(1, Ordering::Relaxed);
        }
        result
    }

    fn admit_probe<'h>(&'h self, subject: Subject<'h>) -> Result<Permit<'h>, Refusal> {
        let mut outcome = Ok((None, None));
        self.apply(self.lock(), |health, state, now, changes| {
            outcome = health.claim(state, &subject, now, changes);
        });
        let (kernel_probe, backend_probe) = outcome?;
        Ok(Permit::new(self, subject, kernel_probe, backend_probe))
    }

    /// Checks the backend first: a kernel's probe would be wasted if the backend refuses.
    fn claim(
        &self,
        state: &mut State,
        subject: &Subject<'_>,
        now: Duration,
        changes: &mut Vec<Change>,
    ) -> Result<(Option<u64>, Option<u64>), Refusal> {
        let whole = self.config();
        let mut probes = [None, None];
        let keys = [backend_key(subject), kernel_key(subject)];
        for (position, (key, scope)) in
            keys.iter().zip([RefusalScope::Backend, RefusalScope::Kernel]).enumerate()
        {
            let config = circuit_config(key, &whole);
            let record = match scope {
                RefusalScope::Backend => state.registry.backend_mut(subject),
                _ => state.registry.kernel_mut(subject),
            };
            let Some(record) = record else { continue };
            let transition = record.circuit.poll(now, config);
            let verdict = record.circuit.admit(now, config);
            apply_transition(state, key, transition, changes);
            match verdict {
                Admission::Pass => {}
                Admission::Probe { period } => {
                    state.counters.probes += 1;
                    probes[position] = Some(period);
                }
                Admission::Refuse { retry_at } => {
                    if let (Some(period), Some(backend)) = (probes[0], state.registry.backend_mut(subject)) {
                        backend.circuit.abandoned(period);
                        state.counters.probes = state.counters.probes.saturating_sub(1);
                    }
                    return Err(refusal(state, key, scope, retry_at, now));
                }
            }
        }
        Ok((probes[1], probes[0]))
    }

    pub(super) fn record_success(
        &self,
        subject: &Subject<'_>,
        kernel_probe: Option<u64>,
        backend_probe: Option<u64>,
    ) {
        if self.has_no_records() {
            return;
        }
        // What is probed has a record.
        if !self.view.load().has_record(subject) {
            return;
        }
        self.apply(self.lock(), |health, state, now, changes| {
            let config = health.config();
            if let Some(record) = state.registry.kernel_mut(subject) {
                record.imported = false;
                let transition = record.circuit.succeeded(kernel_probe, now, &config.kernel);
                apply_transition(state, &kernel_key(subject), transition, changes);
            }
            if let Some(record) = state.registry.backend_mut(subject) {
                record.imported = false;
                let transition = record.circuit.succeeded(backend_probe, now, &config.backend);
                apply_transition(state, &backend_key(subject), transition, changes);
            }
        });
    }

    pub(super) fn record_failure(
        &self,
        subject: &Subject<'_>,
        failure: Failure<'_>,
        kernel_probe: Option<u64>,
        backend_probe: Option<u64>,
    ) {
        self.apply(self.lock(), |health, state, now, changes| {
            let config = health.config();
            let message = failure.message;
            *state.counters.of_cause(failure.cause) += 1;
            if failure.blames_kernel() {
                let key = kernel_key(subject);
                match state.registry.entry(&key, subject.kernel_version, now, config.max_circuits) {
                    Some(record) => {
                        // After a device failure this kernel is the first suspect.
                        let tripped = failure.trial || failure.severity == Severity::Device;
                        let transition = if tripped {
                            record.circuit.trip(message, now, &config.kernel)
                        } else {
                            record.circuit.failed(kernel_probe, message, now, &config.kernel)
                        };
                        apply_transition(state, &key, transition, changes);
                    }
                    None => state.counters.untracked += 1,
                }
            } else if let (Some(period), Some(record)) = (kernel_probe, state.registry.kernel_mut(subject)) {
                record.circuit.abandoned(period);
            }
            if failure.blames_backend() {
                let key = backend_key(subject);
                let record = state.registry.entry(&key, subject.backend_version, now, usize::MAX);
                if let Some(record) = record {
                    let transition = record.circuit.failed(backend_probe, message, now, &config.backend);
                    apply_transition(state, &key, transition, changes);
                }
            } else if let (Some(period), Some(record)) = (backend_probe, state.registry.backend_mut(subject))
            {
                // The failure says nothing about the backend.
                record.circuit.abandoned(period);
            }
            if failure.severity == Severity::Device {
                let key = Key::Device(subject.device.to_owned());
                if let Some(record) = state.registry.entry(&key, "", now, usize::MAX) {
                    let transition = record.circuit.lose(message);
                    apply_transition(state, &key, transition, changes);
                }
            }
        });
    }

    pub(super) fn record_abandoned(
        &self,
        subject: &Subject<'_>,
        kernel_probe: Option<u64>,
        backend_probe: Option<u64>,
    ) {
        if kernel_probe.is_none() && backend_probe.is_none() {
            return;
        }
        self.apply(self.lock(), |_, state, _, _| {
            if let (Some(period), Some(record)) = (kernel_probe, state.registry.kernel_mut(subject)) {
                record.circuit.abandoned(period);
            }
            if let (Some(period), Some(record)) = (backend_probe, state.registry.backend_mut(subject)) {
                record.circuit.abandoned(period);
            }
        });
    }

    /// Sets the numbers of kernels, backends and devices.
    pub fn set_population(&self, population: InstalledCounts) {
        self.apply(self.lock(), |_, state, _, _| state.population = population);
    }

    /// Records an internal fault of the engine: a panic in selection, a snapshot that could not be built.
    pub fn record_engine_fault(&self, what: &str) {
        tracing::error!(target: "lz::health", what, "internal engine fault");
        self.apply(self.lock(), |_, state, now, _| {
            const MAX_FAULTS: usize = 64;
            state.counters.engine_faults += 1;
            if state.faults.len() == MAX_FAULTS {
                state.faults.pop_front();
            }
            state.faults.push_back(now);
        });
    }

    /// Opens the circuit of a kernel in this bucket until it is reset, because the kernel returned a wrong result. Returns whether it
    /// was not quarantined before.
    pub(crate) fn quarantine(&self, subject: &Subject<'_>, message: &str) -> bool {
        let mut is_new = false;
        self.apply(self.lock(), |health, state, now, changes| {
            state.counters.failures += 1;
            let key = kernel_key(subject);
            let max_circuits = health.config().max_circuits;
            match state.registry.entry(&key, subject.kernel_version, now, max_circuits) {
                Some(record) => {
                    let transition = record.circuit.quarantine(message);
                    is_new = transition != Transition::None;
                    apply_transition(state, &key, transition, changes);
                }
                None => state.counters.untracked += 1,
            }
        });
        is_new
    }

    /// Removes the record of a kernel in one bucket after a successful trial.
    pub(crate) fn forgive(&self, subject: &Subject<'_>) {
        if self.view.load().has_record(subject) {
            let forgiven = kernel_key(subject);
            self.reset(|key| *key == forgiven);
        }
    }

    /// All circuits with records, ordered by scope and name.
    pub fn circuits(&self) -> Vec<CircuitReport> {
        let now = self.clock.elapsed();
        let state = self.lock();
        let mut records: Vec<(Key, &Record)> = state.registry.records().collect();
        records.sort_by(|(a, _), (b, _)| a.cmp(b));
        records.into_iter().map(|(key, record)| CircuitReport::of(&key, record, now)).collect()
    }

    /// Removes the records of all kernels and backends. Lost devices stay lost.
    pub fn reset_all(&self) {
        self.reset(|key| !matches!(key, Key::Device(_)));
    }

    /// Removes the records of a kernel in all buckets.
    pub fn reset_kernel(&self, kernel: &str) {
        self.reset(|key| matches!(key, Key::Kernel(name, _) if name == kernel));
    }

    /// Removes the record of a backend.
    pub fn reset_backend(&self, backend: &str) {
        self.reset(|key| matches!(key, Key::Backend(name) if name == backend));
    }

    /// Removes the records of a kernel or backend, or of all of them.
    pub fn reset_named(&self, name: Option<&str>) {
        match name {
            Some(name) => {
                self.reset_kernel(name);
                self.reset_backend(name);
            }
            None => self.reset_all(),
        }
    }

    /// Whether the circuit of a kernel or backend is not closed.
    pub fn refuses_any(&self) -> bool {
        let state = self.lock();
        state.registry.records().any(|(key, record)| {
            !matches!(key, Key::Device(_)) && record.circuit.state() != HealthState::Closed
        })
    }

    /// Marks a lost device as working after its context was recreated. The only way to recover a lost device.
    pub fn device_recovered(&self, uuid: &str) {
        self.reset(|key| matches!(key, Key::Device(name) if name == uuid));
    }

    fn reset(&self, chosen: impl Fn(&Key) -> bool) {
        self.apply(self.lock(), |_, state, _, changes| {
            let keys: Vec<Key> =
                state.registry.records().map(|(key, _)| key).filter(|key| chosen(key)).collect();
            for key in keys {
                let from = state.registry.get_mut(&key).map(|record| record.circuit.state());
                state.registry.forgive(&key);
                if let Some(from) = from.filter(|from| *from != HealthState::Closed) {
                    let (scope, name) = named(&key);
                    let last_error = "reset".to_owned();
                    changes.push(Change::Circuit { scope, name, from, to: HealthState::Closed, last_error });
                } else {
                    changes.push(Change::Weight { name: named(&key).1 });
                }
            }
        });
    }

    /// The current health.
    pub fn summary(&self) -> Summary {
        let state = self.lock();
        let record_counts = self.record_counts.load(Ordering::Acquire);
        let health_inputs = health_inputs(&state);
        Summary {
            tracked: (record_counts >> 32) as u32,
            blocking: record_counts as u32,
            health_inputs,
            score: health_inputs.score(),
            level: self.level(),
            counters: Counters { refusals: self.refusals.load(Ordering::Relaxed), ..state.counters },
        }
    }

    /// How many times a level was entered since the start.
    pub fn times_entered(&self, level: DegradationLevel) -> u64 {
        self.degradation.times_entered(level)
    }

    /// Every change leaves the records consistent, so a poisoned lock is safe to use.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Runs a change under the lock, publishes the result, and notifies the listener after unlocking.
    pub(super) fn apply(
        &self,
        mut state: MutexGuard<'_, State>,
        change: impl FnOnce(&Health, &mut State, Duration, &mut Vec<Change>),
    ) -> bool {
        let now = self.clock.elapsed();
        let mut changes = Vec::new();
        change(self, &mut state, now, &mut changes);

        let window = self.config.load().degradation.fault_window;
        while state.faults.front().is_some_and(|fault| now >= fault.saturating_add(window)) {
            state.faults.pop_front();
        }
        if let Some(step) = self.degradation.assess(health_inputs(&state).score(), now) {
            changes.push(Change::Level(step));
        }
        for change in &changes {
            if let Change::Circuit { to, .. } = change {
                state.counters.openings += u64::from(*to == HealthState::Open);
                state.counters.closings += u64::from(*to == HealthState::Closed);
            }
        }
        if !changes.is_empty() {
            self.view.store(Arc::new(View::of(&state.registry)));
        }
        let totals = Totals::of(&state.registry, &self.config());
        self.record_counts
            .store(u64::from(totals.tracked) << 32 | u64::from(totals.blocking), Ordering::Release);
        let expiry = state.faults.front().map(|fault| fault.saturating_add(window));
        let due = [totals.due_at, self.degradation.due_at(), expiry].into_iter().flatten().min();
        let due = due.map_or(u64::MAX, |due| u64::try_from(due.as_nanos()).unwrap_or(u64::MAX));
        self.due.store(due, Ordering::Release);
        if changes.is_empty() {
            return false;
        }
        let generation = self.generation.fetch_add(1, Ordering::AcqRel) + 1;
        drop(state);
        for change in &changes {
            log(change);
            if let Some(listener) = self.listener.get() {
                listener(change, generation);
            }
        }
        true
    }
}

fn kernel_key(subject: &Subject<'_>) -> Key {
    Key::Kernel(subject.kernel.to_owned(), subject.bucket.into())
}

fn backend_key(subject: &Subject<'_>) -> Key {
    Key::Backend(subject.backend.to_owned())
}

pub(super) fn named(key: &Key) -> (RefusalScope, String) {
    match key {
        Key::Kernel(kernel, _) => (RefusalScope::Kernel, kernel.clone()),
        Key::Backend(name) => (RefusalScope::Backend, name.clone()),
        Key::Device(uuid) => (RefusalScope::Device, uuid.clone()),
    }
}

fn apply_transition(state: &mut State, key: &Key, transition: Transition, changes: &mut Vec<Change>) {
    let (scope, name) = named(key);
    match transition {
        Transition::None => {}
        Transition::Weight => changes.push(Change::Weight { name }),
        Transition::Forgiven => {
            state.registry.forgive(key);
            changes.push(Change::Weight { name });
        }
        Transition::State { from, to } => {
            let last_error = state.registry.get_mut(key).map(|record| record.circuit.last_error().to_owned());
            changes.push(Change::Circuit {
                scope,
                name,
                from,
                to,
                last_error: last_error.unwrap_or_default(),
            });
        }
    }
}

fn refusal(
    state: &mut State,
    key: &Key,
    scope: RefusalScope,
    retry_at: Option<Duration>,
    now: Duration,
) -> Refusal {
    let record: Option<&mut Record> = state.registry.get_mut(key);
    let (failures, last_error, opened_at_once) = record
        .map(|Record { circuit, .. }| {
            (circuit.failures(), circuit.last_error().to_owned(), circuit.opened_at_once())
        })
        .unwrap_or_default();
    let retry_in = retry_at.map(|at| at.saturating_sub(now));
    Refusal { scope, name: named(key).1, failures, last_error, retry_in, opened_at_once }
}

fn health_inputs(state: &State) -> HealthInputs {
    let not_closed = |record: &Record| record.circuit.state() != HealthState::Closed;
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let registry = &state.registry;
    HealthInputs {
        kernels: state.population.kernels,
        kernels_troubled: count(
            registry.kernels.values().filter(|buckets| buckets.values().any(not_closed)).count(),
        ),
        backends: state.population.backends,
        backends_troubled: count(registry.backends.values().filter(|record| not_closed(record)).count()),
        devices: state.population.devices,
        devices_lost: count(registry.devices.values().filter(|record| not_closed(record)).count()),
        engine_faults: count(state.faults.len()),
    }
}

fn log(change: &Change) {
    match change {
        Change::Circuit { scope: RefusalScope::Device, name, to: HealthState::Open, last_error, .. } => {
            tracing::error!(target: "lz::health", device = %name, error = %last_error, "device context lost: no kernel can run on it in this process");
        }
        Change::Circuit { scope, name, to: HealthState::Open, last_error, .. } => {
            tracing::warn!(target: "lz::health", ?scope, %name, error = %last_error, "circuit opened");
        }
        Change::Circuit { scope, name, to, .. } => {
            tracing::info!(target: "lz::health", ?scope, %name, state = %to, "circuit changed")
        }
        Change::Weight { name } => {
            tracing::debug!(target: "lz::health", kernel = %name, "reliability penalty changed")
        }
        // `Degradation` logs its own changes.
        Change::Level(_) => {}
    }
}
