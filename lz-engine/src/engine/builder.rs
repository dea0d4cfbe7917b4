//! Opens an engine from a file, environment variables and calls; later sources override earlier ones.
//!
//! Everything is read and checked before anything takes effect; an invalid source returns an error with the whole diagnostic.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Engine;
use super::persistence::Persistence;
use super::settings::unreadable;
use crate::health::{Clock, Health, HealthConfig, SystemClock};
use crate::policy::env;
use crate::policy::file::{Document, PolicyText, Vocabulary, wrong};
use crate::policy::layer::SettingInput;
use crate::reload::{DEBOUNCE, Outcome, Reload, WatchError, watch};
use lz_core::error::Error;
use lz_core::operation::OperationInfo;
use lz_core::reason::{Reason, ReasonCode};

/// The file that is read if none is named.
const FILE: &str = "layerzero.yaml";

/// Options for opening an engine.
#[derive(Debug)]
pub struct EngineBuilder {
    config: Option<PathBuf>,
    variables: Vec<(OsString, OsString)>,
    use_default_file: bool,
    calls: Vec<(String, SettingInput)>,
    operations: Vec<&'static OperationInfo>,
    clock: Arc<dyn Clock>,
    torch: String,
    warn: fn(&str),
}

impl Default for EngineBuilder {
    fn default() -> Self {
        EngineBuilder {
            config: None,
            variables: Vec::new(),
            use_default_file: false,
            calls: Vec::new(),
            operations: Vec::new(),
            clock: Arc::new(SystemClock::default()),
            torch: String::new(),
            warn: |warning| eprintln!("layerzero: {warning}"),
        }
    }
}

impl EngineBuilder {
    /// No file, no variables, no settings.
    pub fn new() -> EngineBuilder {
        EngineBuilder::default()
    }

    /// Uses the environment variables of this process; without `LAYERZERO_CONFIG`, `layerzero.yaml` in the working directory is
    /// read if it exists.
    #[must_use]
    pub fn from_environment(mut self) -> EngineBuilder {
        self.variables = std::env::vars_os().collect();
        self.use_default_file = true;
        self
    }

    /// Uses these variables instead of the process environment.
    #[must_use]
    pub fn variables(mut self, variables: impl IntoIterator<Item = (String, String)>) -> EngineBuilder {
        self.variables = variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        self
    }

    /// Sets the receiver of warnings; the default writes to stderr.
    #[must_use]
    pub fn warn(mut self, warn: fn(&str)) -> EngineBuilder {
        self.warn = warn;
        self
    }

    /// Uses this file, regardless of `LAYERZERO_CONFIG`.
    #[must_use]
    pub fn config(mut self, path: impl Into<PathBuf>) -> EngineBuilder {
        self.config = Some(path.into());
        self
    }

    /// Sets a value, overriding file and environment.
    #[must_use]
    pub fn set(mut self, key: &str, value: SettingInput) -> EngineBuilder {
        self.calls.push((key.to_owned(), value));
        self
    }

    /// Registers operations; their names in files and variables are then checked.
    #[must_use]
    pub fn operations(
        mut self,
        operations: impl IntoIterator<Item = &'static OperationInfo>,
    ) -> EngineBuilder {
        self.operations.extend(operations);
        self
    }

    /// Sets the clock of the circuit breakers.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> EngineBuilder {
        self.clock = clock;
        self
    }

    /// Sets the torch version; measurements are stored per version.
    #[must_use]
    pub fn torch(mut self, version: &str) -> EngineBuilder {
        version.clone_into(&mut self.torch);
        self
    }

    /// Opens the engine.
    pub fn open(self) -> Result<Engine, Error> {
        let vocabulary = Vocabulary::new(self.operations.iter().copied());
        let environment =
            env::read(self.variables, &vocabulary).map_err(|report| wrong("the environment", &report))?;
        for warning in &environment.warnings {
            (self.warn)(&warning.message);
        }
        let named = self.config.or_else(|| environment.config.as_ref().map(PathBuf::from));
        let document = match named {
            Some(path) => read(&path)?.document(&vocabulary)?,
            None if self.use_default_file => match default_file()? {
                Some(text) => text.document(&vocabulary)?,
                None => Document::built_in(),
            },
            None => Document::built_in(),
        };
        check_profile(&environment, &document)?;
        document.warnings.iter().for_each(|warning| (self.warn)(warning));
        let engine = Engine::with_health(Arc::new(Health::new(HealthConfig::default(), self.clock)));
        engine.register_operations(self.operations)?;
        // Settings are applied in layers; only the last of these calls opens files.
        engine.settings().load(document);
        engine.settings().set_environment(&environment);
        engine.shared.attach_persistence(Persistence::new(self.torch));
        engine.configure(self.calls)?;
        if let Some(problem) = engine.foreign_perfdb() {
            (self.warn)(&problem);
        }
        Ok(engine)
    }
}

/// Checks the profile that `LAYERZERO_PROFILE` names; files and calls check theirs when they are read.
fn check_profile(environment: &env::Environment, document: &Document) -> Result<(), Error> {
    match environment.layer.stated_setting("profile").map(ToString::to_string) {
        Some(name) if name != "none" && !document.profiles.contains_key(&name) => {
            let known = lz_schema::diagnostics::listed(document.profiles.keys().map(String::as_str));
            let message = format!("unknown profile `{name}` (LAYERZERO_PROFILE); expected one of {known}");
            let reasons = vec![Reason::new(ReasonCode::PolicyInvalid).message(message.clone())];
            Err(Error::Configuration { subject: "the environment".to_owned(), message, reasons })
        }
        _ => Ok(()),
    }
}

fn read(path: &Path) -> Result<PolicyText, Error> {
    PolicyText::read(path).map_err(|error| unreadable(path, &error))
}

/// The configuration file of the working directory, if there is one. It was not named explicitly, so it must be under this user's
/// control: otherwise anyone with write access to a shared directory could configure programs that others run there.
fn default_file() -> Result<Option<PolicyText>, Error> {
    let path = Path::new(FILE);
    // Only a missing file is ignored; an unreadable one is an error.
    if std::fs::symlink_metadata(path).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
        return Ok(None);
    }
    let text = read(path)?;
    text.check_trust()?;
    Ok(Some(text))
}

impl Engine {
    /// Options for opening an engine.
    pub fn builder() -> EngineBuilder {
        EngineBuilder::new()
    }

    /// Opens an engine from `LAYERZERO_CONFIG` and the other environment variables of this process.
    pub fn open() -> Result<Engine, Error> {
        EngineBuilder::new().from_environment().open()
    }

    /// Watches a policy file and applies its settings until the guard is dropped. An invalid file changes nothing; `on_outcome`
    /// receives the outcome of every change.
    pub fn watch_config(
        &self,
        path: &Path,
        on_outcome: impl FnMut(Outcome) + Send + 'static,
    ) -> Result<Reload, WatchError> {
        watch(path, DEBOUNCE, self.settings().clone(), self.vocabulary(), on_outcome)
    }
}
