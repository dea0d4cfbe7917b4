//! Renders diagnostics as text in the style of rustc.

use std::ops::Range;

use annotate_snippets::{AnnotationKind, Element, Group, Level, Renderer, Snippet};

use super::{Diagnostic, Label, Report};
use crate::source::Source;

/// Context lines before and after the labeled lines.
const CONTEXT_LINES: usize = 3;

/// The maximum number of bytes of a file that are rendered for one error.
const MAX_SHOWN: usize = 1 << 14;

/// Renders all errors, separated by empty lines, and the closing line.
pub(super) fn report(report: &Report) -> String {
    let renderer = Renderer::plain();
    let mut text = String::new();
    for diagnostic in &report.diagnostics {
        text.push_str(&renderer.render(&[group(diagnostic)]));
        text.push_str("\n\n");
    }
    text.push_str(&report.closing);
    text.push('\n');
    text
}

fn group(diagnostic: &Diagnostic) -> Group<'_> {
    let title = Level::ERROR.primary_title(diagnostic.message.as_str()).id(diagnostic.code.id());
    let mut group = Group::with_title(title).elements(snippets(diagnostic));
    for note in &diagnostic.notes {
        group = group.element(Level::NOTE.message(note.as_str()));
    }
    group
}

/// One snippet per file, the file of the primary label first.
fn snippets(diagnostic: &Diagnostic) -> Vec<Element<'_>> {
    let mut files: Vec<Vec<(usize, &Label)>> = Vec::new();
    for (index, label) in diagnostic.labels.iter().enumerate() {
        match files.iter_mut().find(|file| file[0].1.source.path == label.source.path) {
            Some(file) => file.push((index, label)),
            None => files.push(vec![(index, label)]),
        }
    }
    files
        .into_iter()
        .map(|labels| {
            let source = &labels[0].1.source;
            let window = window(source, &labels);
            let annotations = labels.iter().map(|(index, label)| {
                let kind = if *index == 0 { AnnotationKind::Primary } else { AnnotationKind::Context };
                let text = label_text(diagnostic, *index, label);
                let within = |offset: usize| offset.clamp(window.start, window.end) - window.start;
                kind.span(within(label.span.start)..within(label.span.end))
                    .label((!text.is_empty()).then_some(text))
            });
            Snippet::source(source.text.get(window.clone()).unwrap_or_default())
                .line_start(source.line(window.start) + 1)
                .path(source.path.as_str())
                .fold(true)
                .annotations(annotations)
                .into()
        })
        .collect()
}

/// The labeled lines with their context. The renderer scans all of its input for every error, so it gets only this window. If
/// the lines are too long, the window contains only the beginning of the first label.
fn window(source: &Source, labels: &[(usize, &Label)]) -> Range<usize> {
    let first = labels.iter().map(|(_, label)| label.span.start).min().unwrap_or(0);
    let last = labels.iter().map(|(_, label)| label.span.end).max().unwrap_or(first);
    let start = source.line_start(source.line(first).saturating_sub(CONTEXT_LINES));
    let end = source.line_start(source.line(last) + CONTEXT_LINES + 1);
    if end - start <= MAX_SHOWN {
        return start..end;
    }
    let at = labels.first().map_or(first, |(_, label)| label.span.start).min(source.text.len());
    let line = source.line(at);
    let start =
        source.line_start(line).max(source.text.floor_char_boundary(at.saturating_sub(MAX_SHOWN / 4)));
    let end = source.line_start(line + 1).min(source.text.floor_char_boundary(at + MAX_SHOWN / 4));
    start..end.max(start)
}

fn label_text(diagnostic: &Diagnostic, index: usize, label: &Label) -> String {
    match &diagnostic.suggestion {
        Some(suggestion) if index == 0 && label.text.is_empty() => format!("did you mean `{suggestion}`?"),
        Some(suggestion) if index == 0 => format!("{}; did you mean `{suggestion}`?", label.text),
        _ => label.text.clone(),
    }
}
