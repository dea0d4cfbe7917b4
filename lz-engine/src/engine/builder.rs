//! An engine as its operator set it up: a file, the environment, calls, in this order, later over earlier.
//!
//! Everything is read and checked before anything acts; what is wrong is an error with the whole diagnostic and no engine.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Engine;
use super::persistence::Keeper;
use super::settings::unreadable;
use crate::health::{Clock, Health, HealthConfig, SystemClock};
use crate::policy::env;
use crate::policy::file::{Document, PolicyText, Vocabulary, wrong};
use crate::policy::layer::Given;
use crate::reload::{DEBOUNCE, Outcome, Reload, WatchError, watch};
use lz_core::error::Error;
use lz_core::operation::OperationInfo;
use lz_core::reason::{Reason, ReasonCode};

/// The file that is read when nobody names one, if it is there.
const FILE: &str = "layerzero.yaml";

/// What an engine is opened with.
#[derive(Debug)]
pub struct EngineBuilder {
    config: Option<PathBuf>,
    variables: Vec<(OsString, OsString)>,
    look_around: bool,
    calls: Vec<(String, Given)>,
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
            look_around: false,
            calls: Vec::new(),
            operations: Vec::new(),
            clock: Arc::new(SystemClock::default()),
            torch: String::new(),
            warn: |warning| eprintln!("layerzero: {warning}"),
        }
    }
}

impl EngineBuilder {
    /// Without a file, variables or calls.
    pub fn new() -> EngineBuilder {
        EngineBuilder::default()
    }

    /// With the variables of this process; without `LAYERZERO_CONFIG`, `layerzero.yaml` in the working directory is read if it
    /// is there.
    #[must_use]
    pub fn from_environment(mut self) -> EngineBuilder {
        self.variables = std::env::vars_os().collect();
        self.look_around = true;
        self
    }

    /// With these variables in place of the process's own.
    #[must_use]
    pub fn variables(mut self, variables: impl IntoIterator<Item = (String, String)>) -> EngineBuilder {
        self.variables = variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        self
    }

    /// With somebody else to tell what is suspicious and no mistake: by default it is written to the error stream.
    #[must_use]
    pub fn warn(mut self, warn: fn(&str)) -> EngineBuilder {
        self.warn = warn;
        self
    }

    /// With this file, whatever `LAYERZERO_CONFIG` says.
    #[must_use]
    pub fn config(mut self, path: impl Into<PathBuf>) -> EngineBuilder {
        self.config = Some(path.into());
        self
    }

    /// With a setting, over file and environment.
    #[must_use]
    pub fn set(mut self, key: &str, value: Given) -> EngineBuilder {
        self.calls.push((key.to_owned(), value));
        self
    }

    /// With operations: their names in files and variables are then checked.
    #[must_use]
    pub fn operations(
        mut self,
        operations: impl IntoIterator<Item = &'static OperationInfo>,
    ) -> EngineBuilder {
        self.operations.extend(operations);
        self
    }

    /// With a clock for circuits.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> EngineBuilder {
        self.clock = clock;
        self
    }

    /// With the version of torch, which measurements depend on.
    #[must_use]
    pub fn torch(mut self, version: &str) -> EngineBuilder {
        version.clone_into(&mut self.torch);
        self
    }

    /// Opens it.
    pub fn open(self) -> Result<Engine, Error> {
        let vocabulary = Vocabulary::new(self.operations.iter().copied());
        let environment =
            env::read(self.variables, &vocabulary).map_err(|report| wrong("the environment", &report))?;
        for warning in &environment.warnings {
            tracing::warn!("{}", warning.message);
            (self.warn)(&warning.message);
        }
        let named = self.config.or_else(|| environment.config.as_ref().map(PathBuf::from));
        let document = match named {
            Some(path) => read(&path)?.document(&vocabulary)?,
            None if self.look_around => match found()? {
                Some(text) => text.document(&vocabulary)?,
                None => Document::built_in(),
            },
            None => Document::built_in(),
        };
        check_profile(&environment, &document)?;
        let engine = Engine::with_health(Arc::new(Health::new(HealthConfig::default(), self.clock)));
        engine.register_operations(self.operations)?;
        // Settings are laid in one after the other; only the last of these acts on files.
        engine.settings().load(document);
        engine.settings().set_environment(&environment);
        engine.shared.keep_with(Keeper::new(self.torch));
        engine.configure(self.calls)?;
        if let Some(problem) = engine.foreign_perfdb() {
            (self.warn)(&problem);
        }
        Ok(engine)
    }
}

/// Files and calls are checked where they are read; a variable names a profile of a file that was not read then.
fn check_profile(environment: &env::Environment, document: &Document) -> Result<(), Error> {
    match environment.layer.stated_setting("profile").map(ToString::to_string) {
        Some(name) if name != "none" && !document.profiles.contains_key(&name) => {
            let known = lz_schema::diagnostics::listed(document.profiles.keys().map(String::as_str));
            let message =
                format!("there is no profile `{name}` (LAYERZERO_PROFILE); the profiles are {known}");
            let reasons = vec![Reason::new(ReasonCode::PolicyInvalid).message(message.clone())];
            Err(Error::Configuration { subject: "the environment".to_owned(), message, reasons })
        }
        _ => Ok(()),
    }
}

fn read(path: &Path) -> Result<PolicyText, Error> {
    PolicyText::read(path).map_err(|error| unreadable(path, &error))
}

/// The file of the working directory, if there is one. Nobody has named it, so it must be under this user's control: whoever
/// may write into a shared folder could otherwise set up the programs that others run there.
fn found() -> Result<Option<PolicyText>, Error> {
    let path = Path::new(FILE);
    // Only a file that is not there means that nobody wants anything; one that cannot be read was meant to be.
    if std::fs::symlink_metadata(path).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
        return Ok(None);
    }
    let text = read(path)?;
    text.check_trust()?;
    Ok(Some(text))
}

impl Engine {
    /// What an engine can be opened with.
    pub fn builder() -> EngineBuilder {
        EngineBuilder::new()
    }

    /// An engine as this process's environment says: `LAYERZERO_CONFIG`, then the other variables.
    pub fn open() -> Result<Engine, Error> {
        EngineBuilder::new().from_environment().open()
    }

    /// Watches a policy file and keeps this engine's settings equal to it until the guard is dropped. A file that is wrong
    /// changes nothing; `told` hears of every change and what became of it.
    pub fn watch_config(
        &self,
        path: &Path,
        told: impl FnMut(Outcome) + Send + 'static,
    ) -> Result<Reload, WatchError> {
        watch(path, DEBOUNCE, self.settings().clone(), self.vocabulary(), told)
    }
}
