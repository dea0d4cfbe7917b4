//! Promises of every diagnostic: it has a message and a location inside its file, and can be rendered.

use lz_schema::Report;
use lz_schema::diagnostics::Code;

/// Checks a report on rejected text.
///
/// # Panics
/// If the report breaks a promise.
pub fn check(report: &Report) {
    assert!(!report.diagnostics.is_empty(), "a rejected text has no diagnostic");
    for diagnostic in &report.diagnostics {
        assert!(!diagnostic.message.trim().is_empty(), "{:?} has no message", diagnostic.code);
        assert!(!diagnostic.labels.is_empty(), "{} has no location", diagnostic.message);
        for label in &diagnostic.labels {
            let (text, span) = (&label.source.text, label.span);
            let inside = span.start <= span.end && span.end <= text.len();
            assert!(inside, "{}: {span:?} is outside of {} bytes", diagnostic.message, text.len());
            let whole = text.is_char_boundary(span.start) && text.is_char_boundary(span.end);
            assert!(whole, "{}: {span:?} divides a character", diagnostic.message);
        }
    }
    assert!(report.render().contains("error"), "{report:?}");
}

/// Whether a report consists of this code only.
pub fn is_only(report: &Report, code: Code) -> bool {
    report.diagnostics.iter().all(|diagnostic| diagnostic.code == code)
}
