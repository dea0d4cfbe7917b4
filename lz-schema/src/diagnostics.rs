//! Diagnostics as data: a code, a message, labeled spans, notes and a suggestion.
//!
//! The only severity is error: code is generated only from schemas without errors. Rendering is in `render`.

mod codes;
mod render;

use std::sync::Arc;

pub use codes::Code;

use crate::source::{self, Source, Span, Spanned, YamlIssue};

/// The maximum number of errors in a report; further ones are counted. Bounds the size of a report on a malformed file.
pub const MAX_REPORTED: usize = 50;

/// The maximum number of characters of a message, note or label; longer texts are truncated.
const MAX_TEXT: usize = 2000;

/// The maximum length, in bytes, of a name for which suggestions are searched. The edit distance has quadratic cost.
const MAX_SUGGESTED: usize = 100;

/// One error.
#[derive(Debug, Clone)]
pub struct Diagnostic {
    /// The stable error code.
    pub code: Code,
    /// The message, without a final period.
    pub message: String,
    /// The locations; the first label is the primary one.
    pub labels: Vec<Label>,
    /// Additional explanations.
    pub notes: Vec<String>,
    /// A replacement for the text at the primary label.
    pub suggestion: Option<String>,
}

/// A location in a file with a text.
#[derive(Debug, Clone)]
pub struct Label {
    /// The file.
    pub source: Arc<Source>,
    /// The span in the file.
    pub span: Span,
    /// The text; may be empty.
    pub text: String,
}

impl Diagnostic {
    /// An error at a span.
    pub fn new(code: Code, source: &Arc<Source>, span: Span, message: impl Into<String>) -> Diagnostic {
        let primary = Label { source: Arc::clone(source), span, text: String::new() };
        Diagnostic {
            code,
            message: message.into(),
            labels: vec![primary],
            notes: Vec::new(),
            suggestion: None,
        }
    }

    /// Sets the text of the primary label.
    pub fn label(&mut self, text: impl Into<String>) -> &mut Diagnostic {
        if let Some(primary) = self.labels.first_mut() {
            primary.text = text.into();
        }
        self
    }

    /// Adds a label in the same file.
    pub fn also(&mut self, span: Span, text: impl Into<String>) -> &mut Diagnostic {
        if let Some(source) = self.labels.first().map(|label| Arc::clone(&label.source)) {
            self.labels.push(Label { source, span, text: text.into() });
        }
        self
    }

    /// Adds a label in another file.
    pub fn also_in(&mut self, source: &Arc<Source>, span: Span, text: impl Into<String>) -> &mut Diagnostic {
        self.labels.push(Label { source: Arc::clone(source), span, text: text.into() });
        self
    }

    /// Adds a note.
    pub fn note(&mut self, text: impl Into<String>) -> &mut Diagnostic {
        self.notes.push(text.into());
        self
    }

    /// Sets the suggestion.
    pub fn suggest(&mut self, suggestion: Option<impl Into<String>>) -> &mut Diagnostic {
        self.suggestion = suggestion.map(Into::into);
        self
    }

    fn sort_key(&self) -> (&str, usize, Code) {
        self.labels
            .first()
            .map_or(("", 0, self.code), |label| (&label.source.path, label.span.start, self.code))
    }
}

/// Collects the errors of one file while it is parsed and validated.
#[derive(Debug)]
pub struct Sink {
    /// The file.
    pub source: Arc<Source>,
    /// The errors so far.
    pub diagnostics: Vec<Diagnostic>,
    /// The name of the entry that is being read; errors about missing keys point to it.
    pub(crate) owner: Option<Span>,
}

impl Sink {
    /// Creates an empty sink for a file.
    pub fn new(source: Arc<Source>) -> Sink {
        Sink { source, diagnostics: Vec::new(), owner: None }
    }

    /// Adds an error and returns it, so that labels and notes can be added.
    pub fn error(&mut self, code: Code, span: Span, message: impl Into<String>) -> &mut Diagnostic {
        let diagnostic = Diagnostic::new(code, &self.source, span, message);
        self.diagnostics.push(diagnostic);
        let last = self.diagnostics.len() - 1;
        &mut self.diagnostics[last]
    }

    /// The candidate most similar to `name`; `None` if the report is full.
    pub fn nearest<'a>(&self, name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
        if self.is_full() { None } else { nearest(name, candidates) }
    }

    /// Whether the report is full. Expensive details are not computed for further errors, which are only counted.
    pub fn is_full(&self) -> bool {
        self.diagnostics.len() >= MAX_REPORTED
    }

    /// Adds the issues of a YAML file as errors; `files` names the kind of file in messages.
    pub fn report_yaml(&mut self, issues: &[Spanned<YamlIssue>], files: &str) {
        for issue in issues {
            match &issue.value {
                YamlIssue::Syntax(text) => {
                    self.error(Code::YamlSyntax, issue.span, format!("invalid YAML: {text}"));
                }
                YamlIssue::Empty => {
                    self.error(Code::Empty, issue.span, "the file is empty");
                }
                YamlIssue::Unsupported(what) => {
                    self.error(Code::YamlFeature, issue.span, format!("{files} must not use {what}"));
                }
                YamlIssue::TooDeep => {
                    let message =
                        format!("lists and mappings are nested deeper than {} levels", source::MAX_DEPTH);
                    self.error(Code::YamlFeature, issue.span, message);
                }
                YamlIssue::CutAtComma => {
                    let text = self.source.slice(issue.span).to_owned();
                    self.error(Code::CutAtComma, issue.span, "YAML splits this value at its comma")
                        .note(format!("inside braces an expression with a comma needs quotes: \"{text}\""));
                }
            }
        }
    }
}

/// The errors of all files, sorted by path and line.
#[derive(Debug, Clone)]
pub struct Report {
    /// The errors.
    pub diagnostics: Vec<Diagnostic>,
    /// The last line of the rendered report.
    pub closing: String,
}

impl Report {
    /// A report on a set of files; `files` is the number of files read.
    pub fn of_set(mut diagnostics: Vec<Diagnostic>, files: usize) -> Report {
        diagnostics.sort_by(|left, right| left.sort_key().cmp(&right.sort_key()));
        let errors = count(diagnostics.len(), "error");
        let mut paths: Vec<&str> = diagnostics.iter().map(|diagnostic| diagnostic.sort_key().0).collect();
        paths.dedup();
        let closing =
            format!("{errors} in {} of {}; nothing was generated", paths.len(), count(files, "schema"));
        Report::bounded(diagnostics, closing)
    }

    /// A report on a single file.
    pub fn of_one(mut diagnostics: Vec<Diagnostic>, path: &str) -> Report {
        diagnostics.sort_by(|left, right| left.sort_key().cmp(&right.sort_key()));
        let closing = format!("{} in {path}", count(diagnostics.len(), "error"));
        Report::bounded(diagnostics, closing)
    }

    /// Truncates the list of errors and their texts.
    fn bounded(mut diagnostics: Vec<Diagnostic>, mut closing: String) -> Report {
        if let Some(more) = diagnostics.len().checked_sub(MAX_REPORTED).filter(|more| *more > 0) {
            diagnostics.truncate(MAX_REPORTED);
            closing = format!("… and {more} more\n{closing}");
        }
        for diagnostic in &mut diagnostics {
            shorten(&mut diagnostic.message);
            diagnostic.notes.iter_mut().for_each(shorten);
            diagnostic.labels.iter_mut().for_each(|label| shorten(&mut label.text));
        }
        Report { diagnostics, closing }
    }

    /// Renders the report as plain text without colors.
    pub fn render(&self) -> String {
        render::report(self)
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.render())
    }
}

impl std::error::Error for Report {}

fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// Truncates a text to [`MAX_TEXT`] characters.
fn shorten(text: &mut String) {
    if let Some((end, _)) = text.char_indices().nth(MAX_TEXT) {
        text.truncate(end);
        text.push('…');
    }
}

/// The candidate with the smallest edit distance to `name`, if it is small enough for a suggestion.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if name.len() > MAX_SUGGESTED {
        return None;
    }
    let folded = name.to_lowercase();
    let length = name.chars().count();
    let limit = (length / 3).max(1);
    candidates
        .into_iter()
        // The edit distance is at least the difference in length; this excludes most candidates cheaply.
        .filter(|candidate| *candidate != name && candidate.chars().count().abs_diff(length) <= limit)
        .map(|candidate| (strsim::damerau_levenshtein(&folded, &candidate.to_lowercase()), candidate))
        .filter(|(distance, candidate)| *distance <= limit && *distance < candidate.chars().count())
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// `a, b and c`, each in backticks.
pub fn listed<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let quoted: Vec<String> = names.into_iter().map(|name| format!("`{name}`")).collect();
    match quoted.split_last() {
        None => "nothing".to_owned(),
        Some((only, [])) => only.clone(),
        Some((last, rest)) => format!("{} and {last}", rest.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_similar_names_are_suggested() {
        assert_eq!(nearest("head", ["tokens", "heads"]), Some("heads"));
        assert_eq!(nearest("head_dims", ["dim", "head_dim"]), Some("head_dim"));
        assert_eq!(nearest("BF16", ["f16", "bf16"]), Some("bf16"));
        assert_eq!(nearest("x", ["y"]), None);
        assert_eq!(nearest("tokens", ["hidden"]), None);
    }

    #[test]
    fn report_is_bounded_in_errors_and_length() {
        let source = Arc::new(Source::new("a.yaml", &"x".repeat(100)));
        let mut sink = Sink::new(source);
        for _ in 0..MAX_REPORTED + 7 {
            sink.error(Code::UnknownKey, Span::new(0, 1), "é".repeat(5000)).note("n".repeat(5000));
        }
        assert_eq!(sink.nearest("head", ["heads"]), None, "a full report searches no suggestions");
        let report = Report::of_one(sink.diagnostics, "a.yaml");
        assert_eq!(report.diagnostics.len(), MAX_REPORTED);
        let text = report.render();
        assert!(text.ends_with("… and 7 more\n57 errors in a.yaml\n"), "{text}");
        // A message and a note of two bytes per character, and what surrounds them.
        assert!(text.len() < MAX_REPORTED * 5 * MAX_TEXT, "{}", text.len());
    }

    #[test]
    fn lists_are_joined_with_and() {
        assert_eq!(listed(["a"]), "`a`");
        assert_eq!(listed(["a", "b", "c"]), "`a`, `b` and `c`");
    }
}
