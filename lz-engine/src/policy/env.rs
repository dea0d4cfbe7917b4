//! The environment as a layer: `LAYERZERO_DISABLED`, `_LOCK_*`, `_PREFER`, `_AVOID`, `_VERBOSE`, `_DETERMINISTIC`, `_DEBUG`,
//! `_CONFIG`, `_PROFILE`, `_BACKEND_ISOLATION`. Variables that others read (`_THREADS`, `_TOKENIZERS`, `_BACKENDS`,
//! `_PRIVATE_INTERFACES`) are checked.
//!
//! The variables are given, not looked up, so that a test needs no environment of its own.

use std::ffi::OsString;
use std::sync::Arc;

use lz_schema::diagnostics::{Code, Diagnostic, Report, Sink, nearest};
use lz_schema::policy::{List, Setting, SettingValue};
use lz_schema::source::{Source, Span, Spanned};

use super::file::Vocabulary;
use super::layer::Layer;
use super::{Sourced, rules};

const PREFIX: &str = "LAYERZERO_";

/// Variables that are switches, with the setting that each sets and the value that a 1 means.
const SWITCHES: [(&str, &str, bool); 4] = [
    ("LAYERZERO_DISABLED", "enabled", false),
    ("LAYERZERO_VERBOSE", "verbose", true),
    ("LAYERZERO_DETERMINISTIC", "deterministic", true),
    ("LAYERZERO_DEBUG", "debug", true),
];

const OTHERS: [&str; 10] = [
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
/// Read by the thread pool: how many threads kernels share.
const THREADS: &str = "LAYERZERO_THREADS";
/// Read by Python: whether all fast tokenizers of transformers are replaced.
const TOKENIZERS: &str = "LAYERZERO_TOKENIZERS";
/// Read by Python: `none` leaves installed backends out.
const BACKENDS: &str = "LAYERZERO_BACKENDS";
/// Read by Python: whether interfaces that other packages do not publish may be used.
const PRIVATE_INTERFACES: &str = "LAYERZERO_PRIVATE_INTERFACES";
/// What a host tells a worker process; not for selection.
const WORKER_PREFIX: &str = "LAYERZERO_WORKER_";

/// What the environment says.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    /// Settings, locks and lists.
    pub layer: Layer,
    /// The file to read, `LAYERZERO_CONFIG`.
    pub config: Option<String>,
    /// Variables that look like ours and are not, as diagnostics: a warning, because others may use such names.
    pub warnings: Vec<Diagnostic>,
}

/// Reads variables; those whose names do not look like ours, and empty ones, say nothing. A value that is not UTF-8 is a
/// mistake like any other value that cannot be understood.
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
    // Shown to people as a file with one variable a line, so that mistakes can be underlined as everywhere.
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

/// Text with a replacement character for what is not UTF-8; no variable of ours may hold that character.
fn lossy(text: OsString) -> String {
    text.to_string_lossy().into_owned()
}

/// Also names that were misspelled at their beginning, `LAYER_ZERO_CONFIG` or `layerzero_config`: nobody else's begin so.
fn looks_like_ours(name: &str) -> bool {
    name.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("LAYER"))
        && (name.starts_with(PREFIX) || nearest(name, known_names()).is_some())
}

fn known_names() -> impl Iterator<Item = &'static str> {
    SWITCHES.iter().map(|(known, ..)| *known).chain(OTHERS)
}

struct Reader<'a> {
    sink: Sink,
    environment: Environment,
    vocabulary: &'a Vocabulary,
    /// Where the line of the current variable begins.
    start: usize,
}

impl Reader<'_> {
    fn variable(&mut self, name: &str, value: &str) {
        let place = Span::new(self.start + name.len() + 1, self.start + name.len() + 1 + value.len());
        let name_place = Span::new(self.start, self.start + name.len());
        let is_worker = name.starts_with(WORKER_PREFIX);
        if value.contains(char::REPLACEMENT_CHARACTER) && name.starts_with(PREFIX) && !is_worker {
            self.sink.error(Code::BadVariable, place, format!("the value of `{name}` is not UTF-8 text"));
            return;
        }
        if let Some((_, key, meant)) = SWITCHES.iter().find(|(known, ..)| *known == name) {
            let on = match value.trim().to_ascii_lowercase().as_str() {
                "1" | "true" | "yes" | "on" => true,
                "0" | "false" | "no" | "off" => false,
                _ => {
                    self.sink
                        .error(Code::BadVariable, place, format!("`{name}` is a switch: 1 or 0"))
                        .note("`true`, `yes`, `on`, `false`, `no` and `off` are taken too");
                    return;
                }
            };
            let value = SettingValue::Bool(on == *meant);
            self.environment.layer.settings.insert(key, Sourced::new(value, name));
            return;
        }
        match name {
            "LAYERZERO_PREFER" => self.list(List::Prefer, name, value, place),
            "LAYERZERO_AVOID" => self.list(List::Avoid, name, value, place),
            "LAYERZERO_CONFIG" => self.environment.config = Some(value.trim().to_owned()),
            "LAYERZERO_PROFILE" => {
                let value = SettingValue::Text(value.trim().to_owned());
                self.environment.layer.settings.insert("profile", Sourced::new(value, name));
            }
            ISOLATION => self.isolation(value, place),
            THREADS if value.trim().parse::<usize>().is_ok_and(|threads| threads > 0) => {}
            THREADS => self.bad_value(name, "a whole number from 1", place),
            TOKENIZERS | PRIVATE_INTERFACES if matches!(value.trim(), "0" | "1") => {}
            TOKENIZERS | PRIVATE_INTERFACES => self.bad_value(name, "1 or 0", place),
            BACKENDS if value.trim() == "none" => {}
            BACKENDS => self.bad_value(name, "`none`, or to be unset", place),
            _ if is_worker => {}
            _ => match name.strip_prefix("LAYERZERO_LOCK_") {
                Some(operation) => self.lock(name, operation, value.trim(), name_place, place),
                None => self.unknown(name, name_place),
            },
        }
    }

    fn bad_value(&mut self, name: &str, needs: &str, place: Span) {
        self.sink.error(Code::BadVariable, place, format!("`{name}` needs {needs}"));
    }

    fn list(&mut self, list: List, name: &str, value: &str, place: Span) {
        let names: Vec<String> =
            value.split(',').map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect();
        for name in &names {
            rules::check_pattern(name, place, &mut self.sink);
        }
        self.environment.layer.list(list, &names, name);
    }

    /// `subprocess`, or `torch: subprocess, default: in_process`.
    fn isolation(&mut self, value: &str, place: Span) {
        let Some(setting) = Setting::find("backend_isolation") else { return };
        match setting.parse(value.trim()) {
            Some(value) => {
                self.environment.layer.settings.insert(setting.key, Sourced::new(value, ISOLATION));
            }
            None => {
                let message = format!("`{ISOLATION}` needs {}", setting.needs());
                self.sink
                    .error(Code::BadVariable, place, message)
                    .note("as in `torch: subprocess, default: in_process`");
            }
        }
    }

    /// `LAYERZERO_LOCK_NORM_RMS` locks `norm.rms`; `LAYERZERO_LOCK_ATTENTION` locks every operation below `attention`.
    fn lock(&mut self, name: &str, operation: &str, kernel: &str, name_place: Span, place: Span) {
        rules::check_kernel(kernel, place, &mut self.sink);
        let flat = operation.to_ascii_lowercase();
        let catalogue = self.vocabulary.catalogue();
        let mut named = catalogue.names().find(|known| known.replace('.', "_") == flat).map(str::to_owned);
        if named.is_none() {
            let family = format!("{flat}_");
            let family = catalogue.names().find(|known| known.replace('.', "_").starts_with(&family));
            // The dotted form of the family is as many letters of one of its operations.
            named = family.and_then(|known| known.get(..flat.len())).map(|stem| format!("{stem}.*"));
        }
        match named {
            Some(named) => self.environment.layer.lock(&named, kernel, name),
            None if self.vocabulary.operations.is_empty() => {
                self.environment.layer.lock(&flat.replace('_', "."), kernel, name);
            }
            None => {
                let flat_names: Vec<String> =
                    catalogue.names().map(|known| known.replace('.', "_").to_ascii_uppercase()).collect();
                let near = nearest(operation, flat_names.iter().map(String::as_str));
                let near = near.map(|near| format!("LAYERZERO_LOCK_{near}"));
                let dotted = Spanned::new(flat, name_place);
                self.sink
                    .error(
                        Code::UnknownOperation,
                        dotted.span,
                        format!("no operation, alias or family is called `{}`", dotted.value),
                    )
                    .suggest(near);
            }
        }
    }

    fn unknown(&mut self, name: &str, place: Span) {
        let near = nearest(name, known_names());
        let message = match near {
            Some(near) => format!("nothing reads the environment variable `{name}`; did you mean `{near}`?"),
            None => format!("nothing reads the environment variable `{name}`"),
        };
        let mut warning = Diagnostic::new(Code::BadVariable, &self.sink.source, place, message);
        warning.suggest(near);
        self.environment.warnings.push(warning);
    }
}
