//! The list of reason codes, `schemas/reasons.yaml`: one truth for every language and the documentation.

use std::sync::Arc;

use crate::diagnostics::{Code, Report, Sink, nearest};
use crate::raw::language::{RawReason, RawReasons};
use crate::raw::{NamedEntry, Read};
use crate::set;
use crate::source::{self, Source};

/// Every reason for which a call is refused or a kernel is not chosen.
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
    /// Which group it belongs to, of a closed list.
    pub category: String,
    /// What has happened, one sentence.
    pub sentence: String,
    /// What to do about it, one sentence; empty where there is nothing to do.
    pub help: String,
    /// What it carries, of a closed list.
    pub fields: Vec<String>,
}

impl Reasons {
    /// Reads the file of reasons, reporting everything that is wrong with it.
    pub fn load(path: &str, text: &str) -> Result<Reasons, Report> {
        let source = Arc::new(Source::new(path, text));
        let mut sink = Sink::new(Arc::clone(&source));
        let (root, issues) = source::parse(&source);
        set::report_yaml(&issues, "schemas", &mut sink);
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

    /// The code that is spelled most like this one.
    pub fn nearest(&self, code: &str) -> Option<&str> {
        nearest(code, self.codes.iter().map(|reason| reason.code.as_str()))
    }
}

fn check(raw: &RawReasons, sink: &mut Sink) -> Reasons {
    let mut version = 0;
    if let Some(written) = &raw.version {
        match u32::try_from(written.value) {
            Ok(read) if read >= 1 => version = read,
            _ => _ = sink.error(Code::BadNumber, written.span, "a version is an integer from 1"),
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
        sink.error(Code::BadName, entry.name.span, format!("`{code}` is not a reason code"))
            .note("a capital letter, then capital letters, digits and underscores: `AXIS_MISMATCH`");
    }
    let raw = entry.value.as_ref()?;
    let fields = raw.fields.as_ref()?;
    for (at, field) in fields.value.iter().enumerate() {
        if let Some(earlier) = fields.value.iter().take(at).find(|earlier| earlier.value == field.value) {
            sink.error(Code::RepeatedItem, field.span, format!("`{}` is in the list twice", field.value.0))
                .also(earlier.span, "first written here");
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
