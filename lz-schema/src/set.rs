//! Loads a set of operations, or a single one: text in, model or report out. Does no I/O.

use std::collections::HashMap;
use std::sync::Arc;

use crate::check;
use crate::diagnostics::{Code, Diagnostic, Report, Sink};
use crate::model::Operation;
use crate::raw::Read;
use crate::raw::language::RawOperation;
use crate::reasons::Reasons;
use crate::source::{self, Node, Source, Span, Spanned};
use crate::specialize;

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
        let files: Vec<Parsed> =
            files.into_iter().map(|(path, text)| Parsed::new(path.as_ref(), text.as_ref(), true)).collect();
        let (operations, mut diagnostics) = check_all(&files, reasons);
        diagnostics.extend(name_collisions(&files));
        diagnostics.extend(dequantization_mismatches(&files, &operations));
        if !diagnostics.is_empty() {
            return Err(Report::of_set(diagnostics, files.len()));
        }
        let mut operations: Vec<Operation> = operations.into_iter().flatten().collect();
        operations.sort_by(|left, right| left.name.cmp(&right.name));
        Ok(SchemaSet { operations })
    }

    /// The operation with this name.
    pub fn get(&self, name: &str) -> Option<&Operation> {
        self.operations.iter().find(|operation| operation.name == name)
    }
}

/// Parses and validates one operation for run-time registration or a macro, with any path. It cannot be a specialization.
pub fn load_one(path: &str, text: &str, reasons: &Reasons) -> Result<Operation, Report> {
    load_one_of(path, text, reasons, |_| None::<(&str, &str)>)
}

/// [`load_one`] for an operation that may be a specialization: `find` returns path and text of its general operation.
pub fn load_one_of<Path: AsRef<str>, Text: AsRef<str>>(
    path: &str,
    text: &str,
    reasons: &Reasons,
    find: impl FnOnce(&str) -> Option<(Path, Text)>,
) -> Result<Operation, Report> {
    let mut files = vec![Parsed::new(path, text, false)];
    let general = files[0].general().and_then(|name| find(&name.value));
    files.extend(general.map(|(path, text)| Parsed::new(path.as_ref(), text.as_ref(), false)));
    let (mut operations, mut diagnostics) = check_all(&files, reasons);
    diagnostics.extend(name_collisions(&files));
    match operations.swap_remove(0) {
        Some(operation) if diagnostics.is_empty() => Ok(operation),
        _ => Err(Report::of_one(diagnostics, &files[0].source.path)),
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

/// A file that was parsed, but not validated.
struct Parsed {
    source: Arc<Source>,
    root: Option<Node>,
    /// Its sections, even if the file has errors.
    raw: Option<RawOperation>,
    diagnostics: Vec<Diagnostic>,
}

impl Parsed {
    fn new(path: &str, text: &str, path_decides: bool) -> Parsed {
        let source = Arc::new(Source::new(path, text));
        let mut sink = Sink::new(Arc::clone(&source));
        let (root, issues) = source::parse(&source);
        sink.report_yaml(&issues, "schemas");
        let raw = root.as_ref().and_then(|root| RawOperation::read(root, &mut sink));
        let name = raw.as_ref().and_then(|raw| raw.operation.as_ref());
        if let (true, Some(name), Some(expected)) = (path_decides, name, name_of_path(path))
            && name.value != expected
        {
            let message =
                format!("the path of the file implies `{expected}`, but it defines `{}`", name.value);
            sink.error(Code::PathDisagrees, name.span, message).suggest(Some(expected));
        }
        Parsed { source, root, raw, diagnostics: sink.diagnostics }
    }

    fn name(&self) -> Option<&Spanned<String>> {
        self.raw.as_ref()?.operation.as_ref()
    }

    fn aliases(&self) -> impl Iterator<Item = &Spanned<String>> {
        let aliases = self.raw.iter().flat_map(|raw| &raw.aliases);
        aliases.flat_map(|named| &named.entries).map(|entry| &entry.name)
    }

    fn is_special(&self) -> bool {
        self.raw.as_ref().is_some_and(|raw| raw.keys.contains(&"specializes"))
    }

    /// The name of the general operation of a specialization.
    fn general(&self) -> Option<&Spanned<String>> {
        self.raw.as_ref()?.specializes.as_ref()?.operation.as_ref()
    }
}

/// Validates all files: the operation of each one without errors, and the errors of all.
fn check_all(files: &[Parsed], reasons: &Reasons) -> (Vec<Option<Operation>>, Vec<Diagnostic>) {
    let mut operations: Vec<Option<Operation>> = vec![None; files.len()];
    let mut diagnostics = Vec::new();
    // Specializations last: they inherit from validated operations.
    for special in [false, true] {
        for (index, file) in files.iter().enumerate().filter(|(_, file)| file.is_special() == special) {
            let mut sink = Sink::new(Arc::clone(&file.source));
            sink.diagnostics.clone_from(&file.diagnostics);
            operations[index] = match &file.raw {
                Some(_) if special => specialization(file, files, &operations, reasons, &mut sink),
                Some(raw) => check::operation(raw, reasons, &mut sink),
                None => None,
            };
            diagnostics.append(&mut sink.diagnostics);
        }
    }
    (operations, diagnostics)
}

fn specialization(
    file: &Parsed,
    files: &[Parsed],
    operations: &[Option<Operation>],
    reasons: &Reasons,
    sink: &mut Sink,
) -> Option<Operation> {
    let name = file.general()?;
    let is_it = |file: &Parsed| file.name().is_some_and(|own| own.value == name.value);
    let general = files.iter().position(is_it).filter(|at| !files[*at].is_special());
    let Some(at) = general else {
        let known = files.iter().filter(|file| !file.is_special()).filter_map(Parsed::name);
        let is_special = files.iter().any(is_it);
        specialize::report_no_general(name, is_special, known.map(|name| name.value.as_str()), sink);
        return None;
    };
    // Without an operation the general file has errors, which are reported there.
    let general = (files[at].root.as_ref()?, operations[at].as_ref()?);
    let (merged, relation) = specialize::resolve(file.root.as_ref()?, file.raw.as_ref()?, general, sink)?;
    let mut operation = check::operation(&merged, reasons, sink)?;
    operation.digest = check::digest(&format!("{}{}", file.source.text, general.1.digest));
    operation.specializes = Some(relation);
    Some(operation)
}

/// Errors between files: relations of quantized operations to operations that do not exist or do not fit.
fn dequantization_mismatches(files: &[Parsed], operations: &[Option<Operation>]) -> Vec<Diagnostic> {
    let mut diagnostics = Vec::new();
    let find = |name: &str| operations.iter().flatten().find(|operation| operation.name == name);
    for (file, operation) in files.iter().zip(operations) {
        let raw = file.raw.as_ref().and_then(|raw| raw.dequantizes.as_ref());
        let (Some(raw), Some(operation)) = (raw, operation) else { continue };
        let mut sink = Sink::new(Arc::clone(&file.source));
        check::report_mismatch(raw, operation, find, &mut sink);
        diagnostics.append(&mut sink.diagnostics);
    }
    diagnostics
}

/// Errors between files: names that collide.
fn name_collisions(files: &[Parsed]) -> Vec<Diagnostic> {
    let mut diagnostics = Vec::new();
    let mut names: HashMap<&str, (&Parsed, Span)> = HashMap::new();
    let mut flat: HashMap<String, (&Parsed, &Spanned<String>)> = HashMap::new();
    for file in files {
        let Some(name) = file.name() else { continue };
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
        for alias in file.aliases() {
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
