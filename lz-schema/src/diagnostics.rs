//! What is wrong with a schema, as data: a code, a message, places, notes and a suggestion.
//!
//! There is one severity, error: a schema is right, or nothing is made of it. Rendering is in `render`;
//! nothing here knows what the messages are about.

mod codes;
mod render;

use std::sync::Arc;

pub use codes::Code;

use crate::source::{Source, Span};

/// The most mistakes that a report shows. The rest is counted: a file of nonsense must not become a text of many megabytes.
pub const MAX_REPORTED: usize = 50;

/// The most characters of a message, a note or a label; longer names and values of a file are cut.
const MAX_TEXT: usize = 1000;

/// The longest name, in bytes, that suggestions are looked for: comparing two names costs the product of their lengths.
const MAX_SUGGESTED: usize = 100;

/// One mistake.
#[derive(Debug, Clone)]
pub struct Diagnostic {
    /// What is wrong, as a stable code.
    pub code: Code,
    /// What is wrong, as a sentence without a full stop.
    pub message: String,
    /// Where it is wrong; the first label is the primary one.
    pub labels: Vec<Label>,
    /// Further sentences.
    pub notes: Vec<String>,
    /// The text that was probably meant instead of the primary label's.
    pub suggestion: Option<String>,
}

/// A place in a file, and what there is to say about it.
#[derive(Debug, Clone)]
pub struct Label {
    /// The file.
    pub source: Arc<Source>,
    /// The place.
    pub span: Span,
    /// What there is to say; may be empty.
    pub text: String,
}

impl Diagnostic {
    /// A mistake at a place.
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

    /// Says something beside the underlined text.
    pub fn label(&mut self, text: impl Into<String>) -> &mut Diagnostic {
        if let Some(primary) = self.labels.first_mut() {
            primary.text = text.into();
        }
        self
    }

    /// Points at another place of the same file.
    pub fn also(&mut self, span: Span, text: impl Into<String>) -> &mut Diagnostic {
        if let Some(source) = self.labels.first().map(|label| Arc::clone(&label.source)) {
            self.labels.push(Label { source, span, text: text.into() });
        }
        self
    }

    /// Points at a place of another file.
    pub fn also_in(&mut self, source: &Arc<Source>, span: Span, text: impl Into<String>) -> &mut Diagnostic {
        self.labels.push(Label { source: Arc::clone(source), span, text: text.into() });
        self
    }

    /// Adds a sentence below.
    pub fn note(&mut self, text: impl Into<String>) -> &mut Diagnostic {
        self.notes.push(text.into());
        self
    }

    /// Says what was probably meant, if anything is near.
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

/// Collects the mistakes of one file while it is read and checked.
#[derive(Debug)]
pub struct Sink {
    /// The file.
    pub source: Arc<Source>,
    /// What was found so far.
    pub diagnostics: Vec<Diagnostic>,
    /// The name of the entry that is being read: what a missing key is missing for.
    pub(crate) owner: Option<Span>,
}

impl Sink {
    /// An empty collection for a file.
    pub fn new(source: Arc<Source>) -> Sink {
        Sink { source, diagnostics: Vec::new(), owner: None }
    }

    /// Adds a mistake and hands it back, so that labels and notes can be added to it.
    pub fn error(&mut self, code: Code, span: Span, message: impl Into<String>) -> &mut Diagnostic {
        let diagnostic = Diagnostic::new(code, &self.source, span, message);
        self.diagnostics.push(diagnostic);
        let last = self.diagnostics.len() - 1;
        &mut self.diagnostics[last]
    }

    /// The candidate that is spelled most like `name`; nothing once there are more mistakes than a report shows.
    pub fn nearest<'a>(&self, name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
        if self.is_full() { None } else { nearest(name, candidates) }
    }

    /// Whether there are as many mistakes as a report shows: what costs time to say is not said of further ones.
    pub fn is_full(&self) -> bool {
        self.diagnostics.len() >= MAX_REPORTED
    }
}

/// All mistakes of all files, in the order of path and line.
#[derive(Debug, Clone)]
pub struct Report {
    /// The mistakes.
    pub diagnostics: Vec<Diagnostic>,
    /// The line that ends the text.
    pub closing: String,
}

impl Report {
    /// Sorts the mistakes of a set of files; `files` is how many were read.
    pub fn of_set(mut diagnostics: Vec<Diagnostic>, files: usize) -> Report {
        diagnostics.sort_by(|left, right| left.sort_key().cmp(&right.sort_key()));
        let errors = count(diagnostics.len(), "error");
        let mut paths: Vec<&str> = diagnostics.iter().map(|diagnostic| diagnostic.sort_key().0).collect();
        paths.dedup();
        let closing =
            format!("{errors} in {} of {}; nothing was generated", paths.len(), count(files, "schema"));
        Report::bounded(diagnostics, closing)
    }

    /// Sorts the mistakes of a single file.
    pub fn of_one(mut diagnostics: Vec<Diagnostic>, path: &str) -> Report {
        diagnostics.sort_by(|left, right| left.sort_key().cmp(&right.sort_key()));
        let closing = format!("{} in {path}", count(diagnostics.len(), "error"));
        Report::bounded(diagnostics, closing)
    }

    /// Keeps what a person can read: the first mistakes, each with texts of bounded length.
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

    /// The text for people, without colours.
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

/// Cuts a text that is too long to be read.
fn shorten(text: &mut String) {
    if let Some((end, _)) = text.char_indices().nth(MAX_TEXT) {
        text.truncate(end);
        text.push('…');
    }
}

/// The candidate that is spelled most like `name`, if one is near enough to be meant.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if name.len() > MAX_SUGGESTED {
        return None;
    }
    let folded = name.to_lowercase();
    let length = name.chars().count();
    let limit = (length / 3).max(1);
    candidates
        .into_iter()
        // Names whose lengths differ by more than the limit cannot be within it; most candidates end here.
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
    fn near_names_are_found_and_far_ones_are_not() {
        assert_eq!(nearest("head", ["tokens", "heads"]), Some("heads"));
        assert_eq!(nearest("head_dims", ["dim", "head_dim"]), Some("head_dim"));
        assert_eq!(nearest("BF16", ["f16", "bf16"]), Some("bf16"));
        assert_eq!(nearest("x", ["y"]), None);
        assert_eq!(nearest("tokens", ["hidden"]), None);
    }

    #[test]
    fn a_report_is_bounded_in_mistakes_and_in_length() {
        let source = Arc::new(Source::new("a.yaml", &"x".repeat(100)));
        let mut sink = Sink::new(source);
        for _ in 0..MAX_REPORTED + 7 {
            sink.error(Code::UnknownKey, Span::new(0, 1), "é".repeat(5000)).note("n".repeat(5000));
        }
        assert_eq!(sink.nearest("head", ["heads"]), None, "nobody reads it any more");
        let report = Report::of_one(sink.diagnostics, "a.yaml");
        assert_eq!(report.diagnostics.len(), MAX_REPORTED);
        let text = report.render();
        assert!(text.ends_with("… and 7 more\n57 errors in a.yaml\n"), "{text}");
        assert!(text.len() < MAX_REPORTED * 5000, "{}", text.len());
    }

    #[test]
    fn lists_read_as_english() {
        assert_eq!(listed(["a"]), "`a`");
        assert_eq!(listed(["a", "b", "c"]), "`a`, `b` and `c`");
    }
}
