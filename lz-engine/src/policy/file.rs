//! Reads a policy file, checks it against the registered operations, and converts it to layers.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use lz_schema::diagnostics::{Code, Report, Sink};
use lz_schema::policy::{self as language, NAMING_CODE, PolicyFile};
use lz_schema::source::{Source, Span};

use super::layer::{Layer, list_key};
use super::rules;
use super::{ListEntry, Lock, Pattern, Provenance, WithSource};
use lz_core::descriptor::Catalog;
use lz_core::error::Error;
use lz_core::operation::OperationInfo;
use lz_core::reason::{Reason, ReasonCode};
use lz_files::{MAX_TEXT_BYTES, RegularFile, Untrusted};

/// The built-in profiles; a file may redefine them.
const BUILT_IN: &str = include_str!("profiles.yaml");

/// The text of a policy file, and whether only this user or root could have written it.
#[derive(Debug, Clone)]
pub struct PolicyText {
    /// The path, as messages and provenance show it.
    pub path: String,
    /// The text.
    pub text: String,
    trust: Result<(), Untrusted>,
}

impl PolicyText {
    /// Reads a regular file of bounded size.
    pub fn read(path: &Path) -> std::io::Result<PolicyText> {
        let mut file = RegularFile::open(path)?;
        let text = file.text(MAX_TEXT_BYTES)?;
        Ok(PolicyText { path: path.display().to_string(), text, trust: file.check_trust() })
    }

    /// Rejects a file that another user could have written.
    pub fn check_trust(&self) -> Result<(), Error> {
        let untrusted = |why: &Untrusted| {
            let message = format!(
                "a file that was not named explicitly, or that names programs or plugins, must be writable by this user only: {why}"
            );
            let reasons = vec![Reason::new(ReasonCode::PolicyInvalid).message(message.clone())];
            Error::Configuration { subject: self.path.clone(), message, reasons }
        };
        match &self.trust {
            Ok(()) => Ok(()),
            Err(why) => Err(untrusted(why)),
        }
    }

    /// The checked policy. Programs and plugins are only accepted from a trusted file.
    pub fn document(&self, vocabulary: &Vocabulary) -> Result<Document, Error> {
        let document = Document::read(&self.path, &self.text, vocabulary)
            .map_err(|report| wrong(&self.path, &report))?;
        if document.names_code() {
            self.check_trust()?;
        }
        Ok(document)
    }
}

/// The error for an invalid policy: the whole diagnostic.
pub(crate) fn wrong(path: &str, report: &Report) -> Error {
    let reasons = report.diagnostics.iter();
    let reasons = reasons.map(|one| Reason::new(ReasonCode::PolicyInvalid).message(one.message.clone()));
    Error::Configuration { subject: path.to_owned(), message: report.to_string(), reasons: reasons.collect() }
}

/// A checked file.
#[derive(Debug, Clone, Default)]
pub struct Document {
    /// Everything outside profiles.
    pub layer: Layer,
    /// Its profiles and the built-in ones.
    pub profiles: BTreeMap<String, Layer>,
    /// What has no effect, and why.
    pub warnings: Vec<String>,
}

/// The operations that a policy may name. If empty, names of operations are not checked.
#[derive(Debug, Clone, Default)]
pub struct Vocabulary {
    pub(super) operations: Vec<&'static OperationInfo>,
}

impl Vocabulary {
    /// Of these operations.
    pub fn new(operations: impl IntoIterator<Item = &'static OperationInfo>) -> Vocabulary {
        Vocabulary { operations: operations.into_iter().collect() }
    }

    pub(super) fn catalog(&self) -> Catalog<'static> {
        Catalog::new(self.operations.iter().map(|info| info.schema()))
    }
}

impl Document {
    /// Reads a file; `path` names it in messages and in provenance.
    pub fn read(path: &str, text: &str, vocabulary: &Vocabulary) -> Result<Document, Report> {
        let mut document = Document::built_in();
        let mut sink = Sink::new(Arc::new(Source::new(path, text)));
        if let Some(file) = language::read(&mut sink) {
            document.layer = layer(&file, None, vocabulary, &mut sink, &mut document.warnings);
            for (name, profile) in &file.profiles {
                let profile =
                    layer(profile, Some(&name.value), vocabulary, &mut sink, &mut document.warnings);
                document.profiles.insert(name.value.clone(), profile);
            }
            document.named_profile(&file, &mut sink);
        }
        if sink.diagnostics.is_empty() { Ok(document) } else { Err(Report::of_one(sink.diagnostics, path)) }
    }

    /// The built-in profiles, without a file.
    pub fn built_in() -> Document {
        let mut document = Document::default();
        let mut sink = Sink::new(Arc::new(Source::new("built-in", BUILT_IN)));
        if let Some(file) = language::read(&mut sink) {
            for (name, profile) in &file.profiles {
                let (none, mut warnings) = (Vocabulary::default(), Vec::new());
                let profile = layer(profile, Some(&name.value), &none, &mut sink, &mut warnings);
                document.profiles.insert(name.value.clone(), profile);
            }
        }
        document
    }

    /// Whether it, or one of its profiles, names a program or library.
    fn names_code(&self) -> bool {
        let stated = |layer: &Layer| NAMING_CODE.iter().any(|key| layer.stated_setting(key).is_some());
        stated(&self.layer) || self.profiles.values().any(stated)
    }

    fn named_profile(&self, file: &PolicyFile, sink: &mut Sink) {
        for given in file.settings.iter().filter(|given| given.setting.key == "profile") {
            let name = given.value.to_string();
            if name != "none" && !self.profiles.contains_key(&name) {
                let near = lz_schema::diagnostics::nearest(&name, self.profiles.keys().map(String::as_str));
                let known = lz_schema::diagnostics::listed(self.profiles.keys().map(String::as_str));
                sink.error(Code::UnknownProfile, given.span, format!("unknown profile `{name}`"))
                    .suggest(near)
                    .note(format!("known profiles: {known}"));
            }
        }
    }
}

fn layer(
    file: &PolicyFile,
    profile: Option<&str>,
    vocabulary: &Vocabulary,
    sink: &mut Sink,
    warnings: &mut Vec<String>,
) -> Layer {
    let mut layer = Layer::new();
    for (key, why) in &file.ignored {
        let source = provenance(sink, key.span, profile);
        warnings.push(format!("`{}` ({source}) has no effect: {why}", key.value));
    }
    for given in &file.settings {
        let source = provenance(sink, given.span, profile);
        layer.settings.insert(given.setting.key, WithSource { value: given.value.clone(), source });
    }
    for (operation, kernel) in &file.locks {
        rules::check_operation(operation, vocabulary, sink);
        rules::check_kernel(&kernel.value, kernel.span, sink);
        layer.locks.push(Lock {
            operation: Pattern::new(&operation.value),
            kernel: kernel.value.clone(),
            condition: None,
            source: provenance(sink, kernel.span, profile),
        });
    }
    for (list, pattern) in &file.lists {
        rules::check_pattern(&pattern.value, pattern.span, sink);
        let entry = ListEntry {
            kernels: Pattern::new(&pattern.value),
            operations: Pattern::any(),
            source: provenance(sink, pattern.span, profile),
        };
        let key = list_key(*list);
        match layer.lists.iter_mut().find(|(known, _)| *known == key) {
            Some((_, entries)) => entries.push(entry),
            None => layer.lists.push((key, vec![entry])),
        }
    }
    for rule in &file.rules {
        let source = provenance(sink, rule.span, profile);
        if let Some(operation) = rule.operation.as_ref().filter(|_| rule.is_lenient)
            && !rules::is_known_operation(&operation.value, vocabulary)
        {
            let near = sink.nearest(operation.value.trim_end_matches('*'), vocabulary.catalog().names());
            let tail = near.map_or_else(String::new, |near| format!("; did you mean `{near}`?"));
            let name = operation.value.trim_end_matches('*');
            warnings.push(format!(
                "`kernels` ({source}) names the unknown operation `{name}` and is ignored there{tail}"
            ));
            continue;
        }
        layer.rules.extend(rules::rule(rule, source, vocabulary, sink));
    }
    layer
}

/// `layerzero.yaml:14`, with the profile if there is one.
fn provenance(sink: &Sink, span: Span, profile: Option<&str>) -> Provenance {
    let (line, _) = sink.source.position(span.start);
    let location = format!("{}:{line}", sink.source.path);
    Provenance::new(match profile {
        Some(profile) => format!("{location} (profile {profile})"),
        None => location,
    })
}
