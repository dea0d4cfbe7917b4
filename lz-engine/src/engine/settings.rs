//! What an operator and a caller can change while the engine runs: settings, locks, and what holds for one thread.
//!
//! Settings are laid over each other, later over earlier: a file, the environment, calls. What a thread lays over all of
//! them ends with its guard.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lz_schema::policy::SettingValue;

use super::{Engine, Shared};
use crate::health::HealthConfig;
use crate::policy::file::{Document, PolicyText, Vocabulary, wrong};
use crate::policy::layer::{Given, Layer, NotASetting};
use crate::policy::overlay::Overlay;
use crate::policy::stack::{ConfigEntry, PolicyStack, entries};
use crate::policy::{Sourced, generations};
use crate::selection::devices;
use crate::selection::snapshot::Parts;
use crate::selection::thread_scope::{self, PolicyScope};
use crate::telemetry::{Watch, Watching};
use lz_core::error::Error;
use lz_core::reason::{Reason, ReasonCode};

impl From<NotASetting> for Error {
    fn from(error: NotASetting) -> Error {
        let reason = Reason::new(ReasonCode::PolicyInvalid).message(error.message.clone());
        Error::Configuration { subject: error.key, message: error.message, reasons: vec![reason] }
    }
}

impl Engine {
    /// The layers that its policy is made of. A policy that was set whole is replaced by the first change of a layer.
    pub fn settings(&self) -> &PolicyStack {
        self.shared.operator.get_or_init(|| {
            let shared = Arc::downgrade(&self.shared);
            let ground = self.health().config();
            PolicyStack::new(move |layer| {
                if let Some(shared) = shared.upgrade() {
                    match generations::table(layer) {
                        Some(Ok(table)) => devices::describe_by(table),
                        Some(Err(error)) => tracing::warn!(%error, "gpu_generations is not used"),
                        None => {}
                    }
                    shared.apply(layer);
                    shared.published.load().health.configure(health_of(layer, ground));
                    shared.keep(layer);
                }
            })
        })
    }

    /// Sets values by their keys, all or none of them.
    pub fn configure(&self, values: impl IntoIterator<Item = (String, Given)>) -> Result<(), Error> {
        Ok(self.settings().configure(values, "lz.configure")?)
    }

    /// Reads a policy file. One that is wrong changes nothing, and the error is the whole diagnostic.
    pub fn load_config(&self, path: &Path) -> Result<(), Error> {
        let text = PolicyText::read(path).map_err(|error| unreadable(path, &error))?;
        self.settings().load(text.document(&self.vocabulary())?);
        Ok(())
    }

    /// The same for a text; `path` names it in messages and in provenance.
    pub fn load_config_text(&self, path: &str, text: &str) -> Result<(), Error> {
        let document =
            Document::read(path, text, &self.vocabulary()).map_err(|report| wrong(path, &report))?;
        self.settings().load(document);
        Ok(())
    }

    /// The operations that a policy may speak of.
    pub fn vocabulary(&self) -> Vocabulary {
        Vocabulary::new(self.registry().operations())
    }

    /// Locks an operation or alias to a kernel, in place of an earlier lock on it. Whether the kernel can run a call is said
    /// by the call; that there is no such operation is said here.
    pub fn lock(&self, operation: &str, kernel: &str) -> Result<(), Error> {
        self.check_operation(operation)?;
        self.settings().lock(operation, kernel, "lz.lock");
        Ok(())
    }

    /// Ends a lock, whoever made it.
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
        let names = registry.operations().map(|info| info.name.as_ref());
        let near = lz_schema::diagnostics::nearest(operation, names);
        let tail = near.map_or_else(String::new, |near| format!("; did you mean `{near}`?"));
        let message = format!("no operation or alias is called `{operation}`{tail}");
        let reasons = vec![Reason::new(ReasonCode::OperationUnknown).message(message.clone())];
        Err(Error::Configuration { subject: operation.to_owned(), message, reasons })
    }

    /// Lays something over the policy for this thread's calls until the guard is dropped. Guards nest.
    pub fn scope(&self, overlay: Overlay) -> Result<PolicyScope, Error> {
        let shown = overlay.whole();
        let (mode, layer) = overlay.split();
        let engine = self.shared.published.load().watching.engine;
        thread_scope::lay(engine, mode, layer, shown).map_err(|_| {
            let message = "this process has made more different scopes than can be told apart".to_owned();
            let reasons = vec![Reason::new(ReasonCode::PolicyInvalid).message(message.clone())];
            Error::Configuration { subject: "scope".to_owned(), message, reasons }
        })
    }

    /// Prefers backends or kernels for this thread's calls until the guard is dropped.
    pub fn prefer(&self, patterns: &[String]) -> Result<PolicyScope, Error> {
        self.scope(Overlay::new().prefer(patterns))
    }

    /// Runs references only for this thread's calls until the guard is dropped.
    pub fn disabled(&self) -> Result<PolicyScope, Error> {
        self.scope(Overlay::new().disabled())
    }

    /// Every value with where it came from, as this thread sees it.
    pub fn config(&self) -> Vec<ConfigEntry> {
        entries(&self.effective())
    }

    /// The value of one setting and where it came from; `None` when there is no such setting.
    pub fn setting(&self, key: &str) -> Option<Sourced<SettingValue>> {
        self.effective().value(key)
    }

    fn effective(&self) -> Layer {
        let mut layer = self.settings().effective();
        layer.lay(&thread_scope::shown_over(self.shared.published.load().watching.engine));
        layer
    }
}

impl Shared {
    /// Puts settings into force: those that selection reads, and those that say what is observed.
    fn apply(&self, layer: &Layer) {
        let policy = layer.policy();
        let watch = watch_of(layer);
        let change = |parts: Parts| {
            if *parts.policy == policy && parts.watching.by_settings == watch {
                return Ok(None);
            }
            let watching = Watching { by_settings: watch, ..parts.watching };
            let policy = if *parts.policy == policy { parts.policy } else { Arc::new(policy) };
            Ok(Some(Parts { policy, watching, ..parts }))
        };
        // Nothing above fails.
        self.change(change).ok();
    }
}

/// The numbers of circuits as settings say them; what they do not say stays as the engine began.
fn health_of(layer: &Layer, ground: HealthConfig) -> HealthConfig {
    let mut kernel = ground.kernel;
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
    HealthConfig { kernel, ..ground }
}

fn watch_of(layer: &Layer) -> Watch {
    let on =
        |key: &str| matches!(layer.value(key).map(|sourced| sourced.value), Some(SettingValue::Bool(true)));
    let verbose = on("verbose");
    Watch {
        spans: verbose,
        log: verbose || on("log_selections"),
        verbose,
        synchronise: on("debug"),
        time_every: u32::from(on("enable_profiling")),
    }
}

pub(super) fn unreadable(path: &Path, error: &std::io::Error) -> Error {
    let message = format!("cannot be read: {error}");
    let reasons =
        vec![Reason::new(ReasonCode::PolicyInvalid).message(format!("{} {message}", path.display()))];
    Error::Configuration { subject: path.display().to_string(), message, reasons }
}
