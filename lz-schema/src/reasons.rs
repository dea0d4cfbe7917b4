//! The reason codes in `schemas/reasons.yaml`, the source for all languages and the documentation.

use std::sync::Arc;

use crate::diagnostics::{Code, Report, Sink, nearest};
use crate::raw::language::{RawReason, RawReasons};
use crate::raw::{NamedEntry, Read};
use crate::source::{self, Source};

/// All reasons for which a call is rejected or a kernel is not selected.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reasons {
    /// Version of the list.
    pub version: u32,
    /// The codes, in the order of the file.
    pub codes: Vec<ReasonDef>,
}

/// One reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReasonDef {
    /// The stable code, `AXIS_MISMATCH`.
    pub code: String,
    /// Its category, from a fixed list.
    pub category: String,
    /// What happened, one sentence.
    pub sentence: String,
    /// What to do, one sentence; may be empty.
    pub help: String,
    /// Its fields, from a fixed list.
    pub fields: Vec<String>,
}

impl Reasons {
    /// Parses and validates the file, and reports all errors.
    pub fn load(path: &str, text: &str) -> Result<Reasons, Report> {
        let source = Arc::new(Source::new(path, text));
        let mut sink = Sink::new(Arc::clone(&source));
        let (root, issues) = source::parse(&source);
        sink.report_yaml(&issues, "schemas");
        let reasons =
            root.and_then(|root| RawReasons::read(&root, &mut sink)).map(|raw| check(&raw, &mut sink));
        match reasons {
            Some(reasons) if sink.diagnostics.is_empty() => Ok(reasons),
            _ => Err(Report::of_one(sink.diagnostics, &source.path)),
        }
    }

    /// The reason with this code.
    pub fn get(&self, code: &str) -> Option<&ReasonDef> {
        self.codes.iter().find(|reason| reason.code == code)
    }

    /// The most similar code.
    pub fn nearest(&self, code: &str) -> Option<&str> {
        nearest(code, self.codes.iter().map(|reason| reason.code.as_str()))
    }
}

fn check(raw: &RawReasons, sink: &mut Sink) -> Reasons {
    let mut version = 0;
    if let Some(written) = &raw.version {
        match u32::try_from(written.value) {
            Ok(read) if read >= 1 => version = read,
            _ => _ = sink.error(Code::BadNumber, written.span, "a version must be an integer >= 1"),
        }
    }
    let entries = raw.reasons.iter().flat_map(|named| &named.entries);
    Reasons { version, codes: entries.filter_map(|entry| reason(entry, sink)).collect() }
}

fn reason(entry: &NamedEntry<RawReason>, sink: &mut Sink) -> Option<ReasonDef> {
    let code = &entry.name.value;
    let spelled = code.starts_with(|first: char| first.is_ascii_uppercase())
        && code.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
    if !spelled {
        sink.error(Code::BadName, entry.name.span, format!("`{code}` is not a valid reason code"))
            .note("expected a capital letter, then capital letters, digits and underscores: `AXIS_MISMATCH`");
    }
    let raw = entry.value.as_ref()?;
    let fields = raw.fields.as_ref()?;
    for (at, field) in fields.value.iter().enumerate() {
        if let Some(earlier) = fields.value.iter().take(at).find(|earlier| earlier.value == field.value) {
            sink.error(Code::RepeatedItem, field.span, format!("duplicate entry `{}`", field.value.0))
                .also(earlier.span, "first entry here");
        }
    }
    Some(ReasonDef {
        code: code.clone(),
        category: raw.category.as_ref()?.value.0.to_owned(),
        sentence: raw.sentence.as_ref()?.value.clone(),
        help: raw.help.as_ref().map(|help| help.value.clone()).unwrap_or_default(),
        fields: fields.value.iter().map(|field| field.value.0.to_owned()).collect(),
    })
}
