//! Rules of a file: both syntaxes become one condition, checked against the operations that the rule applies to.

use lz_schema::diagnostics::{Code, Sink};
use lz_schema::expr::{self, ExprError, Type};
use lz_schema::policy::{List, RawAction, RawCondition, RawRule};
use lz_schema::raw::Expression;
use lz_schema::source::{Span, Spanned};

use super::file::Vocabulary;
use super::{Action, Pattern, Provenance, Rule};
use lz_core::expression_names::Names;
use lz_core::expression_spelling::{Spelled, code_of, message_of, spell};
use lz_core::operation::OperationInfo;

/// The rule for selection; `None` after an error, which is in the sink.
pub(super) fn rule(
    raw: &RawRule,
    source: Provenance,
    vocabulary: &Vocabulary,
    sink: &mut Sink,
) -> Option<Rule> {
    let before = sink.diagnostics.len();
    if let Some(operation) = &raw.operation {
        check_operation(operation, vocabulary, sink);
    }
    let operations = raw.operation.as_ref().map_or_else(Pattern::any, |text| Pattern::new(&text.value));
    let parts: Vec<Spelled> = raw
        .conditions
        .iter()
        .map(|condition| match condition {
            RawCondition::Text(text) => spell(&text.text),
            RawCondition::Match { text, .. } => spell(text),
        })
        .collect();
    check_conditions(raw, &parts, &matching_operations(&operations, vocabulary), sink);
    let actions = raw.actions.iter().map(|raw| action(raw, sink)).collect();
    if sink.diagnostics.len() > before {
        return None;
    }
    let condition = match parts.as_slice() {
        [] => None,
        [only] => Some(only.text.clone()),
        several => {
            let several: Vec<String> = several.iter().map(|part| format!("({})", part.text)).collect();
            Some(several.join(" and "))
        }
    };
    let name = raw.name.as_ref().map_or_else(String::new, |name| name.value.clone());
    Some(Rule { name, operations, condition, actions, source })
}

/// The operations that a pattern matches, by name or alias.
fn matching_operations(pattern: &Pattern, vocabulary: &Vocabulary) -> Vec<&'static OperationInfo> {
    let matches = |info: &&&'static OperationInfo| {
        pattern.matches(&info.name)
            || (pattern.as_str() != "*"
                && info.schema().aliases.iter().any(|alias| pattern.matches(&alias.name)))
    };
    vocabulary.operations.iter().filter(matches).copied().collect()
}

/// A condition must be valid for at least one of the operations; otherwise the errors for the best match are reported.
fn check_conditions(
    raw: &RawRule,
    parts: &[Spelled],
    operations: &[&'static OperationInfo],
    sink: &mut Sink,
) {
    let mut best: Option<Vec<(usize, ExprError)>> = None;
    for info in operations {
        let names = Names::of_policy(info);
        let mut errors = Vec::new();
        for (at, part) in parts.iter().enumerate() {
            if let Err(found) = expr::check_expecting(&part.text, &names, &Type::Bool) {
                errors.extend(found.into_iter().map(|error| (at, error)));
            }
        }
        if errors.is_empty() {
            return;
        }
        let weight = |errors: &[(usize, ExprError)]| {
            // Best match: the fewest unknown names without a similar name, then the fewest unknown names, then the fewest errors.
            let unknown = |error: &&ExprError| code_of(&error.kind) == Code::UndefinedName;
            let unknown: Vec<&ExprError> = errors.iter().map(|(_, error)| error).filter(unknown).collect();
            let far = unknown.iter().filter(|error| error.kind.suggestion().is_none()).count();
            (far, unknown.len(), errors.len())
        };
        if best.as_ref().is_none_or(|best| weight(&errors) < weight(best)) {
            best = Some(errors);
        }
    }
    if operations.is_empty() {
        // Without operations names cannot be checked, but syntax can.
        let mut errors = Vec::new();
        for (at, part) in parts.iter().enumerate() {
            errors.extend(expr::parse(&part.text).err().map(|error| (at, error)));
        }
        best = Some(errors);
    }
    for (at, error) in best.unwrap_or_default() {
        let (Some(condition), Some(part)) = (raw.conditions.get(at), parts.get(at)) else { continue };
        let (start, end) = part.original_span(error.span.start, error.span.end);
        let span = match condition {
            RawCondition::Text(text) => text.span_of(start, end),
            // An undefined name is in the key; all other errors are in the value.
            RawCondition::Match { key, value, .. } => {
                if code_of(&error.kind) == Code::UndefinedName {
                    key.span
                } else {
                    *value
                }
            }
        };
        sink.error(code_of(&error.kind), span, message_of(&error.kind)).suggest(error.kind.suggestion());
    }
}

fn action(raw: &Spanned<RawAction>, sink: &mut Sink) -> Action {
    match &raw.value {
        RawAction::List(list, pattern) => {
            check_pattern(pattern, raw.span, sink);
            let pattern = Pattern::new(pattern);
            match list {
                List::Allow => Action::Allow(pattern),
                List::Deny => Action::Deny(pattern),
                List::Prefer => Action::Prefer(pattern),
                List::Avoid => Action::Avoid(pattern),
            }
        }
        RawAction::Lock(kernel) => {
            check_kernel(kernel, raw.span, sink);
            Action::Lock(kernel.clone())
        }
        RawAction::Override(kernel) => {
            check_kernel(kernel, raw.span, sink);
            Action::Override(kernel.clone())
        }
        RawAction::Boost(pattern, points) => {
            check_pattern(pattern, raw.span, sink);
            Action::Boost(Pattern::new(pattern), *points)
        }
        RawAction::Filter(filter) => {
            check_filter(filter, sink);
            Action::Filter(filter.text.clone())
        }
    }
}

fn check_filter(filter: &Expression, sink: &mut Sink) {
    let Err(errors) = expr::check_expecting(&filter.text, &Names::of_kernel(), &Type::Bool) else { return };
    for error in errors {
        let span = filter.span_of(error.span.start, error.span.end);
        sink.error(code_of(&error.kind), span, message_of(&error.kind))
            .suggest(error.kind.suggestion())
            .note("a filter may only use properties of the kernel");
    }
}

/// Whether an operation or alias matches; without operations every name counts as known.
pub(super) fn is_known_operation(name: &str, vocabulary: &Vocabulary) -> bool {
    vocabulary.operations.is_empty() || !matching_operations(&Pattern::new(name), vocabulary).is_empty()
}

/// Checks that an operation or alias matches.
pub(super) fn check_operation(name: &Spanned<String>, vocabulary: &Vocabulary, sink: &mut Sink) {
    if vocabulary.operations.is_empty() {
        return;
    }
    let pattern = Pattern::new(&name.value);
    if !matching_operations(&pattern, vocabulary).is_empty() {
        return;
    }
    if pattern.is_exact() {
        let near = sink.nearest(&name.value, vocabulary.catalog().names());
        sink.error(Code::UnknownOperation, name.span, format!("unknown operation or alias `{pattern}`"))
            .suggest(near);
    } else {
        sink.error(Code::UnknownOperation, name.span, format!("no operation or alias matches `{pattern}`"));
    }
}

/// Checks a pattern of kernels or backends.
pub(super) fn check_pattern(pattern: &str, span: Span, sink: &mut Sink) {
    let fits =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '*' | '@' | '/' | ':' | '+');
    if !pattern.chars().all(fits) {
        sink.error(
            Code::BadPattern,
            span,
            format!("`{pattern}` is not a kernel, a backend or a pattern of them"),
        )
        .note("letters, digits, `.`, `_`, `-`, and `*` for any text");
    }
}

/// Checks a kernel id.
pub(super) fn check_kernel(kernel: &str, span: Span, sink: &mut Sink) {
    if kernel.contains('*') {
        sink.error(
            Code::BadPattern,
            span,
            format!("`{kernel}` is a pattern, but a single kernel id is required here"),
        )
        .note("`allow` and `prefer` take patterns");
        return;
    }
    check_pattern(kernel, span, sink);
}
