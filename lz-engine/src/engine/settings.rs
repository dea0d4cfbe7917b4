//! Run-time control: settings, locks, and scopes of one thread.
//!
//! Settings come in layers, later over earlier: file, environment, calls. The overlay of a thread is on top and ends with its
//! guard.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lz_schema::policy::SettingValue;

use super::{Engine, Shared};
use crate::health::HealthConfig;
use crate::log::{self, Levels, Severity};
use crate::policy::file::{Document, PolicyText, Vocabulary, wrong};
use crate::policy::layer::{Layer, NotASetting, SettingInput};
use crate::policy::overlay::Overlay;
use crate::policy::stack::{ConfigEntry, PolicyStack, entries};
use crate::policy::unknown::{UnknownName, unknown_names};
use crate::policy::{WithSource, generations};
use crate::selection::devices;
use crate::selection::snapshot::SnapshotParts;
use crate::selection::thread_scope::{self, PolicyScope};
use crate::telemetry::{Observation, ObserveOptions};
use lz_core::error::Error;
use lz_core::reason::{Reason, ReasonCode};

impl From<NotASetting> for Error {
    fn from(error: NotASetting) -> Error {
        let reason = Reason::new(ReasonCode::PolicyInvalid).message(error.message.clone());
        Error::Configuration { subject: error.key, message: error.message, reasons: vec![reason] }
    }
}

impl Engine {
    /// The layers of the policy. A policy set with [`Engine::set_policy`] is replaced by the first change of a layer.
    pub fn settings(&self) -> &PolicyStack {
        self.shared.operator.get_or_init(|| {
            let shared = Arc::downgrade(&self.shared);
            let base = self.health().config();
            PolicyStack::new(move |layer| {
                if let Some(shared) = shared.upgrade() {
                    match generations::table(layer) {
                        Some(Ok(table)) => devices::set_generation_table(table),
                        Some(Err(error)) => tracing::warn!(target: "lz::config", %error, "gpu_generations is invalid and ignored"),
                        None => {}
                    }
                    shared.apply(layer);
                    shared.warn_about_names(layer);
                    shared.published.load().health.configure(health_of(layer, base));
                    shared.configure_persistence(layer);
                }
            })
        })
    }

    /// Sets values by key: all of them or, on error, none.
    pub fn configure(&self, values: impl IntoIterator<Item = (String, SettingInput)>) -> Result<(), Error> {
        Ok(self.settings().configure(values, "lz.configure")?)
    }

    /// Loads a policy file. An invalid file changes nothing, and the error is the whole diagnostic.
    pub fn load_config(&self, path: &Path) -> Result<(), Error> {
        let text = PolicyText::read(path).map_err(|error| unreadable(path, &error))?;
        let document = text.document(&self.vocabulary())?;
        document.warnings.iter().for_each(|warning| log::warn_once(warning));
        self.settings().load(document);
        Ok(())
    }

    /// Loads a policy text; `path` is its name in messages and provenance.
    pub fn load_config_text(&self, path: &str, text: &str) -> Result<(), Error> {
        let document =
            Document::read(path, text, &self.vocabulary()).map_err(|report| wrong(path, &report))?;
        self.settings().load(document);
        Ok(())
    }

    /// The operations that a policy may name.
    pub fn vocabulary(&self) -> Vocabulary {
        Vocabulary::new(self.registry().operations())
    }

    /// Locks an operation or alias to a kernel, replacing an earlier lock. An unknown operation is an error here; an unsuitable
    /// kernel is an error of the call.
    pub fn lock(&self, operation: &str, kernel: &str) -> Result<(), Error> {
        self.check_operation(operation)?;
        self.settings().lock(operation, kernel, "lz.lock");
        Ok(())
    }

    /// Removes a lock, whatever its source.
    pub fn unlock(&self, operation: &str) -> Result<(), Error> {
        self.check_operation(operation)?;
        self.settings().unlock(operation);
        Ok(())
    }

    fn check_operation(&self, operation: &str) -> Result<(), Error> {
        let registry = self.registry();
        let pattern = crate::policy::Pattern::new(operation);
        let known = registry.operations().any(|info| pattern.matches(&info.name))
            || !registry.alias(operation).is_empty()
            || registry.operations().next().is_none();
        if known {
            return Ok(());
        }
        Err(registry.unknown_operation(operation))
    }

    /// Applies an overlay to the policy for this thread's calls until the guard is dropped. Guards nest.
    pub fn scope(&self, overlay: Overlay) -> Result<PolicyScope, Error> {
        let shown = overlay.as_layer();
        let (mode, layer) = overlay.split();
        let engine = self.shared.published.load().observation.engine;
        thread_scope::push_overlay(engine, mode, layer, shown).map_err(|_| {
            let message = "this process has used up the ids for distinct scopes".to_owned();
            let reasons = vec![Reason::new(ReasonCode::PolicyInvalid).message(message.clone())];
            Error::Configuration { subject: "scope".to_owned(), message, reasons }
        })
    }

    /// Prefers backends or kernels for this thread's calls until the guard is dropped.
    pub fn prefer(&self, patterns: &[String]) -> Result<PolicyScope, Error> {
        self.scope(Overlay::new().prefer(patterns))
    }

    /// Allows only reference kernels for this thread's calls until the guard is dropped.
    pub fn disabled(&self) -> Result<PolicyScope, Error> {
        self.scope(Overlay::new().disabled())
    }

    /// The kernels and backends that the policy names and that match nothing registered. Kernels of backends that are not
    /// installed are left out.
    pub fn unknown_names(&self) -> Vec<UnknownName> {
        unknown_names(&self.settings().effective(), &self.registry())
    }

    /// All settings with their sources, as this thread sees them.
    pub fn config(&self) -> Vec<ConfigEntry> {
        entries(&self.effective())
    }

    /// A setting and its source; `None` if there is no such setting.
    pub fn setting(&self, key: &str) -> Option<WithSource<SettingValue>> {
        self.effective().value(key)
    }

    fn effective(&self) -> Layer {
        let mut layer = self.settings().effective();
        layer.merge(&thread_scope::shown_over(self.shared.published.load().observation.engine));
        layer
    }
}

impl Shared {
    /// Warns once about each name of the policy that matches nothing although its backend is registered, or that resembles
    /// something registered. Others may belong to a backend that is loaded later.
    pub(super) fn warn_about_names(&self, layer: &Layer) {
        let snapshot = self.published.load();
        if snapshot.registry.kernels().next().is_some() {
            let names = unknown_names(layer, &snapshot.registry).into_iter();
            names
                .filter(|name| name.backend_registered || name.near.is_some())
                .for_each(|name| log::warn_once(&name.to_string()));
        }
    }

    /// Applies settings: the policy, and what is observed.
    fn apply(&self, layer: &Layer) {
        let policy = layer.policy();
        let observe = observe_options_of(layer);
        lz_core::check::values::check_device_values(observe.synchronize);
        log::require(self.published.load().observation.engine, log_levels_of(layer));
        self.observer.enable_tuner(is_on(layer, "perfdb.auto_tune") && is_on(layer, "perfdb.enabled"));
        let change = |parts: SnapshotParts| {
            if *parts.policy == policy && parts.observation.by_settings == observe {
                return Ok(None);
            }
            let observation = Observation { by_settings: observe, ..parts.observation };
            let policy = if *parts.policy == policy { parts.policy } else { Arc::new(policy) };
            Ok(Some(SnapshotParts { policy, observation, ..parts }))
        };
        // `change` returns no error.
        self.change(change).ok();
    }
}

/// The circuit-breaker configuration from settings; unset values keep the base.
fn health_of(layer: &Layer, base: HealthConfig) -> HealthConfig {
    let mut kernel = base.kernel;
    let number = |key: &str| match layer.stated_setting(key) {
        Some(SettingValue::Int(value)) => Some(u64::try_from(*value).unwrap_or(0)),
        _ => None,
    };
    let small = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    if let Some(failures) = number("circuit_breaker.failure_threshold") {
        kernel.failure_threshold = small(failures);
    }
    if let Some(successes) = number("circuit_breaker.success_threshold") {
        kernel.success_threshold = small(successes);
    }
    if let Some(milliseconds) = number("circuit_breaker.timeout_ms") {
        kernel.base_backoff = Duration::from_millis(milliseconds);
        kernel.max_backoff = kernel.max_backoff.max(kernel.base_backoff);
    }
    if let Some(probes) = number("circuit_breaker.half_open_max_calls") {
        kernel.max_probes = small(probes);
    }
    HealthConfig { kernel, ..base }
}

fn is_on(layer: &Layer, key: &str) -> bool {
    matches!(layer.value(key).map(|sourced| sourced.value), Some(SettingValue::Bool(true)))
}

/// The log levels that the settings require: the lines that a setting turns on are also printed.
fn log_levels_of(layer: &Layer) -> Levels {
    if is_on(layer, "verbose") {
        Levels::all(Severity::Info)
    } else if is_on(layer, "log_selections") {
        Levels::OFF.with("select", Severity::Info)
    } else {
        Levels::OFF
    }
}

/// One call in how many is verified; 0 for none.
fn verify_every_of(layer: &Layer) -> u32 {
    let value = |key: &str| layer.value(key).map(|sourced| sourced.value);
    let Some(SettingValue::Text(word)) = value("verify") else { return 0 };
    match (word.as_str(), value("verify_share")) {
        ("all", _) => 1,
        ("sampled", Some(SettingValue::Float(share))) if share > 0.0 => {
            (1.0 / share).round().clamp(1.0, f64::from(u32::MAX - 1)) as u32
        }
        _ => 0,
    }
}

fn observe_options_of(layer: &Layer) -> ObserveOptions {
    let on = |key: &str| is_on(layer, key);
    let verbose = on("verbose");
    let sample_every = match layer.value("telemetry.sample_every").map(|sourced| sourced.value) {
        Some(SettingValue::Int(every)) => u32::try_from(every).unwrap_or(u32::MAX),
        _ => 0,
    };
    ObserveOptions {
        spans: verbose,
        log: verbose || on("log_selections"),
        verbose,
        synchronize: on("debug"),
        time_every: if on("enable_profiling") { 1 } else { sample_every },
        record: false,
        annotate: on("telemetry.torch_ranges"),
        verify_every: verify_every_of(layer),
        watch: match layer.value("watchdog_seconds").map(|sourced| sourced.value) {
            Some(SettingValue::Float(seconds)) if seconds > 0.0 => Duration::try_from_secs_f64(seconds).ok(),
            _ => None,
        },
    }
}

pub(super) fn unreadable(path: &Path, error: &std::io::Error) -> Error {
    let message = format!("cannot be read: {error}");
    let reasons =
        vec![Reason::new(ReasonCode::PolicyInvalid).message(format!("{} {message}", path.display()))];
    Error::Configuration { subject: path.display().to_string(), message, reasons }
}
