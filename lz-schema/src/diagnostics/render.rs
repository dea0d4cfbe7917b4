//! Diagnostics as text, in the form that compilers have taught people to read.

use annotate_snippets::{AnnotationKind, Element, Group, Level, Renderer, Snippet};

use super::{Diagnostic, Label, Report};

/// Renders all mistakes, one empty line between them, and the closing line.
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

/// One snippet a file: the primary label's file first.
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
            let annotations = labels.iter().map(|(index, label)| {
                let kind = if *index == 0 { AnnotationKind::Primary } else { AnnotationKind::Context };
                let text = label_text(diagnostic, *index, label);
                kind.span(label.span.start..label.span.end).label((!text.is_empty()).then_some(text))
            });
            Snippet::source(source.text.as_str())
                .line_start(1)
                .path(source.path.as_str())
                .fold(true)
                .annotations(annotations)
                .into()
        })
        .collect()
}

fn label_text(diagnostic: &Diagnostic, index: usize, label: &Label) -> String {
    match &diagnostic.suggestion {
        Some(suggestion) if index == 0 && label.text.is_empty() => format!("did you mean `{suggestion}`?"),
        Some(suggestion) if index == 0 => format!("{}; did you mean `{suggestion}`?", label.text),
        _ => label.text.clone(),
    }
}
