//! The environment as a layer: `LAYERZERO_DISABLED`, `_LOCK_*`, `_PREFER`, `_AVOID`, `_VERBOSE`, `_DETERMINISTIC`, `_DEBUG`,
//! `_CONFIG`, `_PROFILE`, `_BACKEND_ISOLATION`. Variables that others read (`_LOG`, `_THREADS`, `_TOKENIZERS`, `_BACKENDS`,
//! `_PRIVATE_INTERFACES`) are checked.
//!
//! Variables are passed in, so that tests do not depend on the process environment.

use std::ffi::OsString;
use std::sync::Arc;

use lz_schema::diagnostics::{Code, Diagnostic, Report, Sink, nearest};
use lz_schema::policy::{List, Setting, SettingValue};
use lz_schema::source::{Source, Span, Spanned};

use super::file::Vocabulary;
use super::layer::Layer;
use super::{WithSource, rules};

const PREFIX: &str = "LAYERZERO_";

/// Boolean variables: the setting that each sets, and the value that `1` stands for.
const SWITCHES: [(&str, &str, bool); 4] = [
    ("LAYERZERO_DISABLED", "enabled", false),
    ("LAYERZERO_VERBOSE", "verbose", true),
    ("LAYERZERO_DETERMINISTIC", "deterministic", true),
    ("LAYERZERO_DEBUG", "debug", true),
];

const OTHER_VARIABLES: [&str; 11] = [
    LOG,
    THREADS,
    TOKENIZERS,
    BACKENDS,
    PRIVATE_INTERFACES,
    "LAYERZERO_PREFER",
    "LAYERZERO_AVOID",
    "LAYERZERO_CONFIG",
    "LAYERZERO_PROFILE",
    "LAYERZERO_LOCK_",
    ISOLATION,
];

const ISOLATION: &str = "LAYERZERO_BACKEND_ISOLATION";
/// Read by the log: levels.
const LOG: &str = crate::log::VARIABLE;
/// Read by the thread pool: number of threads.
const THREADS: &str = "LAYERZERO_THREADS";
/// Read by Python: whether fast tokenizers of transformers are replaced.
const TOKENIZERS: &str = "LAYERZERO_TOKENIZERS";
/// Read by Python: `none` disables installed backends.
const BACKENDS: &str = "LAYERZERO_BACKENDS";
/// Read by Python: whether private interfaces of other packages may be used.
const PRIVATE_INTERFACES: &str = "LAYERZERO_PRIVATE_INTERFACES";
/// Set by the host for worker processes; not used by selection.
const WORKER_PREFIX: &str = "LAYERZERO_WORKER_";

/// The parsed environment.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    /// Settings, locks and lists.
    pub layer: Layer,
    /// The file to read, `LAYERZERO_CONFIG`.
    pub config: Option<String>,
    /// Unknown variables with our prefix. Warnings, because other software may use such names.
    pub warnings: Vec<Diagnostic>,
}

/// Reads variables. Unrelated and empty ones are ignored; a value that is not UTF-8 is an error.
pub fn read(
    variables: impl IntoIterator<Item = (impl Into<OsString>, impl Into<OsString>)>,
    vocabulary: &Vocabulary,
) -> Result<Environment, Report> {
    let mut ours: Vec<(String, String)> = variables
        .into_iter()
        .map(|(name, value)| (lossy(name.into()), lossy(value.into())))
        .filter(|(name, value)| looks_like_ours(name) && !value.trim().is_empty())
        .map(|(name, value)| (name, value.replace(['\n', '\r'], " ")))
        .collect();
    ours.sort();
    // Rendered as a file with one variable per line, so that diagnostics can underline values.
    let text: String = ours.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
    let source = Arc::new(Source::new("environment", &text));
    let mut reader = Reader {
        sink: Sink::new(Arc::clone(&source)),
        environment: Environment::default(),
        vocabulary,
        start: 0,
    };
    for (name, value) in &ours {
        reader.variable(name, value);
        reader.start += name.len() + value.len() + 2;
    }
    if reader.sink.diagnostics.is_empty() {
        Ok(reader.environment)
    } else {
        Err(Report::of_one(reader.sink.diagnostics, "the environment"))
    }
}

/// Lossy conversion; a replacement character in one of our variables is reported as an error.
fn lossy(text: OsString) -> String {
    text.to_string_lossy().into_owned()
}

/// Also matches near misses of our prefix: `LAYER_ZERO_CONFIG`, `layerzero_config`.
fn looks_like_ours(name: &str) -> bool {
    name.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("LAYER"))
        && (name.starts_with(PREFIX) || nearest(name, known_names()).is_some())
}

fn known_names() -> impl Iterator<Item = &'static str> {
    SWITCHES.iter().map(|(known, ..)| *known).chain(OTHER_VARIABLES)
}

struct Reader<'a> {
    sink: Sink,
    environment: Environment,
    vocabulary: &'a Vocabulary,
    /// Offset of the current variable's line.
    start: usize,
}

impl Reader<'_> {
    fn variable(&mut self, name: &str, value: &str) {
        let span = Span::new(self.start + name.len() + 1, self.start + name.len() + 1 + value.len());
        let name_span = Span::new(self.start, self.start + name.len());
        let is_worker = name.starts_with(WORKER_PREFIX);
        if value.contains(char::REPLACEMENT_CHARACTER) && name.starts_with(PREFIX) && !is_worker {
            self.sink.error(Code::BadVariable, span, format!("the value of `{name}` is not valid UTF-8"));
            return;
        }
        if let Some((_, key, meant)) = SWITCHES.iter().find(|(known, ..)| *known == name) {
            let on = match value.trim().to_ascii_lowercase().as_str() {
                "1" | "true" | "yes" | "on" => true,
                "0" | "false" | "no" | "off" => false,
                _ => {
                    self.sink
                        .error(Code::BadVariable, span, format!("`{name}` must be 1 or 0"))
                        .note("`true`, `yes`, `on`, `false`, `no` and `off` are accepted too");
                    return;
                }
            };
            let value = SettingValue::Bool(on == *meant);
            self.environment.layer.settings.insert(key, WithSource::new(value, name));
            return;
        }
        match name {
            "LAYERZERO_PREFER" => self.list(List::Prefer, name, value, span),
            "LAYERZERO_AVOID" => self.list(List::Avoid, name, value, span),
            "LAYERZERO_CONFIG" => self.environment.config = Some(value.trim().to_owned()),
            "LAYERZERO_PROFILE" => {
                let value = SettingValue::Text(value.trim().to_owned());
                self.environment.layer.settings.insert("profile", WithSource::new(value, name));
            }
            ISOLATION => self.isolation(value, span),
            LOG => {
                if let Err(problem) = value.parse::<crate::log::Levels>() {
                    self.bad_value(name, &format!("levels such as `info,select=debug`: {problem}"), span);
                }
            }
            THREADS if value.trim().parse::<usize>().is_ok_and(|threads| threads > 0) => {}
            THREADS => self.bad_value(name, "a whole number from 1", span),
            TOKENIZERS | PRIVATE_INTERFACES if matches!(value.trim(), "0" | "1") => {}
            TOKENIZERS | PRIVATE_INTERFACES => self.bad_value(name, "1 or 0", span),
            BACKENDS if value.trim() == "none" => {}
            BACKENDS => self.bad_value(name, "`none`, or to be unset", span),
            _ if is_worker => {}
            _ => match name.strip_prefix("LAYERZERO_LOCK_") {
                Some(operation) => self.lock(name, operation, value.trim(), name_span, span),
                None => self.unknown(name, name_span),
            },
        }
    }

    fn bad_value(&mut self, name: &str, needs: &str, span: Span) {
        self.sink.error(Code::BadVariable, span, format!("`{name}` needs {needs}"));
    }

    fn list(&mut self, list: List, name: &str, value: &str, span: Span) {
        let names: Vec<String> =
            value.split(',').map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect();
        for name in &names {
            rules::check_pattern(name, span, &mut self.sink);
        }
        self.environment.layer.list(list, &names, name);
    }

    /// `subprocess`, or `torch: subprocess, default: in_process`.
    fn isolation(&mut self, value: &str, span: Span) {
        let Some(setting) = Setting::find("backend_isolation") else { return };
        match setting.parse(value.trim()) {
            Some(value) => {
                self.environment.layer.settings.insert(setting.key, WithSource::new(value, ISOLATION));
            }
            None => {
                let message = format!("`{ISOLATION}` needs {}", setting.needs());
                self.sink
                    .error(Code::BadVariable, span, message)
                    .note("as in `torch: subprocess, default: in_process`");
            }
        }
    }

    /// `LAYERZERO_LOCK_NORM_RMS` locks `norm.rms`; `LAYERZERO_LOCK_ATTENTION` locks every operation below `attention`.
    fn lock(&mut self, name: &str, operation: &str, kernel: &str, name_span: Span, span: Span) {
        rules::check_kernel(kernel, span, &mut self.sink);
        let flat = operation.to_ascii_lowercase();
        let catalog = self.vocabulary.catalog();
        let mut named = catalog.names().find(|known| known.replace('.', "_") == flat).map(str::to_owned);
        if named.is_none() {
            let family = format!("{flat}_");
            let family = catalog.names().find(|known| known.replace('.', "_").starts_with(&family));
            // The dotted form of the family is the prefix of one of its operations.
            named = family.and_then(|known| known.get(..flat.len())).map(|stem| format!("{stem}.*"));
        }
        match named {
            Some(named) => self.environment.layer.lock(&named, kernel, name),
            None if self.vocabulary.operations.is_empty() => {
                self.environment.layer.lock(&flat.replace('_', "."), kernel, name);
            }
            None => {
                let flat_names: Vec<String> =
                    catalog.names().map(|known| known.replace('.', "_").to_ascii_uppercase()).collect();
                let near = nearest(operation, flat_names.iter().map(String::as_str));
                let near = near.map(|near| format!("LAYERZERO_LOCK_{near}"));
                let dotted = Spanned::new(flat, name_span);
                self.sink
                    .error(
                        Code::UnknownOperation,
                        dotted.span,
                        format!("unknown operation, alias or family `{}`", dotted.value),
                    )
                    .suggest(near);
            }
        }
    }

    fn unknown(&mut self, name: &str, span: Span) {
        let near = nearest(name, known_names());
        let message = match near {
            Some(near) => format!("unknown environment variable `{name}`; did you mean `{near}`?"),
            None => format!("unknown environment variable `{name}`"),
        };
        let mut warning = Diagnostic::new(Code::BadVariable, &self.sink.source, span, message);
        warning.suggest(near);
        self.environment.warnings.push(warning);
    }
}
