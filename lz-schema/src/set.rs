//! Loads a set of operations, or a single one: text in, model or report out. Does no I/O.

use std::collections::HashMap;
use std::sync::Arc;

use crate::check;
use crate::diagnostics::{Code, Diagnostic, Report, Sink};
use crate::model::Operation;
use crate::raw::Read;
use crate::raw::language::RawOperation;
use crate::reasons::Reasons;
use crate::source::{self, Source, Span, Spanned};

/// A set of validated operations, sorted by name.
#[derive(Debug, Clone, Default)]
pub struct SchemaSet {
    /// The operations.
    pub operations: Vec<Operation>,
}

impl SchemaSet {
    /// Parses and validates files, each given as path and text, and reports the errors of all files.
    ///
    /// The part of a path after `ops/` must match the name of its operation.
    pub fn load<Path: AsRef<str>, Text: AsRef<str>>(
        files: impl IntoIterator<Item = (Path, Text)>,
        reasons: &Reasons,
    ) -> Result<SchemaSet, Report> {
        let mut read: Vec<ReadFile> = Vec::new();
        for (path, text) in files {
            read.push(read_file(path.as_ref(), text.as_ref(), reasons, true));
        }
        let files = read.len();
        let mut diagnostics = name_collisions(&read);
        let mut operations = Vec::with_capacity(files);
        for file in read {
            diagnostics.extend(file.diagnostics);
            operations.extend(file.operation);
        }
        if !diagnostics.is_empty() {
            return Err(Report::of_set(diagnostics, files));
        }
        operations.sort_by(|left, right| left.name.cmp(&right.name));
        Ok(SchemaSet { operations })
    }

    /// The operation with this name.
    pub fn get(&self, name: &str) -> Option<&Operation> {
        self.operations.iter().find(|operation| operation.name == name)
    }
}

/// Parses and validates one operation for run-time registration or a macro, with any path.
pub fn load_one(path: &str, text: &str, reasons: &Reasons) -> Result<Operation, Report> {
    let file = read_file(path, text, reasons, false);
    let mut diagnostics = name_collisions(std::slice::from_ref(&file));
    diagnostics.extend(file.diagnostics);
    match file.operation {
        Some(operation) if diagnostics.is_empty() => Ok(operation),
        _ => Err(Report::of_one(diagnostics, &file.source.path)),
    }
}

/// The operation name for a path: the part after `ops/`, with dots for slashes.
pub fn name_of_path(path: &str) -> Option<String> {
    let path = path.replace('\\', "/");
    let inside = match path.strip_prefix("ops/") {
        Some(inside) => inside,
        None => path.split_once("/ops/")?.1,
    };
    let stem = inside.strip_suffix(".yaml").or_else(|| inside.strip_suffix(".yml"))?;
    Some(stem.replace('/', "."))
}

struct ReadFile {
    source: Arc<Source>,
    /// The name and aliases with their spans, even if the file has errors.
    name: Option<Spanned<String>>,
    aliases: Vec<Spanned<String>>,
    operation: Option<Operation>,
    diagnostics: Vec<Diagnostic>,
}

fn read_file(path: &str, text: &str, reasons: &Reasons, path_decides: bool) -> ReadFile {
    let source = Arc::new(Source::new(path, text));
    let mut sink = Sink::new(Arc::clone(&source));
    let (root, issues) = source::parse(&source);
    sink.report_yaml(&issues, "schemas");
    let raw = root.and_then(|root| RawOperation::read(&root, &mut sink));
    let name = raw.as_ref().and_then(|raw| raw.operation.clone());
    let aliases = raw.iter().flat_map(|raw| &raw.aliases).flat_map(|named| &named.entries);
    let aliases = aliases.map(|entry| entry.name.clone()).collect();
    if let (true, Some(name), Some(expected)) = (path_decides, &name, name_of_path(path))
        && name.value != expected
    {
        let message = format!("the path of the file implies `{expected}`, but it defines `{}`", name.value);
        sink.error(Code::PathDisagrees, name.span, message).suggest(Some(expected));
    }
    let operation = raw.and_then(|raw| check::operation(&raw, reasons, &mut sink));
    ReadFile { source, name, aliases, operation, diagnostics: sink.diagnostics }
}

/// Errors between files: names that collide.
fn name_collisions(files: &[ReadFile]) -> Vec<Diagnostic> {
    let mut diagnostics = Vec::new();
    let mut names: HashMap<&str, (&ReadFile, Span)> = HashMap::new();
    let mut flat: HashMap<String, (&ReadFile, &Spanned<String>)> = HashMap::new();
    for file in files {
        let Some(name) = &file.name else { continue };
        if let Some((other, span)) = names.get(name.value.as_str()) {
            let message = format!("operation `{}` is defined twice", name.value);
            let mut diagnostic = Diagnostic::new(Code::DuplicateOperation, &file.source, name.span, message);
            diagnostic.also_in(&other.source, *span, "first defined here");
            diagnostics.push(diagnostic);
            continue;
        }
        names.insert(&name.value, (file, name.span));
        let function = name.value.replace('.', "_");
        if let Some((other, earlier)) = flat.insert(function.clone(), (file, name)) {
            let message =
                format!("`{}` and `{}` would both be the function `{function}`", earlier.value, name.value);
            let mut diagnostic = Diagnostic::new(Code::NameClash, &file.source, name.span, message);
            diagnostic.also_in(&other.source, earlier.span, "the other operation");
            diagnostics.push(diagnostic);
        }
    }
    for file in files {
        for alias in &file.aliases {
            let Some((other, span)) = names.get(alias.value.as_str()) else { continue };
            let message = format!("alias `{}` has the name of an operation", alias.value);
            let mut diagnostic = Diagnostic::new(Code::AliasIsOperation, &file.source, alias.span, message);
            diagnostic.also_in(&other.source, *span, "the operation");
            diagnostics.push(diagnostic);
        }
    }
    diagnostics
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_determine_names() {
        assert_eq!(name_of_path("schemas/ops/norm/rms.yaml").as_deref(), Some("norm.rms"));
        assert_eq!(
            name_of_path("schemas/ops/attention/mla/decode.paged.yaml").as_deref(),
            Some("attention.mla.decode.paged")
        );
        assert_eq!(name_of_path("ops/quantize.yaml").as_deref(), Some("quantize"));
        assert_eq!(name_of_path("my_op.yaml"), None);
    }
}
