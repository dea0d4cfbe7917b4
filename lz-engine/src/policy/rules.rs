//! Rules of a file: the two forms as one condition, checked against the operations that a rule is about.

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

/// A rule as selection reads it; `None` after a mistake, which is in the sink.
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
    check_conditions(raw, &parts, &about(&operations, vocabulary), sink);
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

/// The operations that a pattern is about, by name or alias.
fn about(pattern: &Pattern, vocabulary: &Vocabulary) -> Vec<&'static OperationInfo> {
    let matches = |info: &&&'static OperationInfo| {
        pattern.matches(&info.name)
            || (pattern.as_str() != "*"
                && info.schema().aliases.iter().any(|alias| pattern.matches(&alias.name)))
    };
    vocabulary.operations.iter().filter(matches).copied().collect()
}

/// A condition must make sense for one of the operations at least; otherwise the mistakes of the one that it fits best are shown.
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
            // An operation that has the names was meant rather than one that has not, and of those that have not, one that
            // has names that are spelled nearly so.
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
        // Nothing is known to check the names against, but what cannot be parsed never makes sense.
        let mut errors = Vec::new();
        for (at, part) in parts.iter().enumerate() {
            errors.extend(expr::parse(&part.text).err().map(|error| (at, error)));
        }
        best = Some(errors);
    }
    for (at, error) in best.unwrap_or_default() {
        let (Some(condition), Some(part)) = (raw.conditions.get(at), parts.get(at)) else { continue };
        let (start, end) = part.place(error.span.start, error.span.end);
        let span = match condition {
            RawCondition::Text(text) => text.place(start, end),
            // The name stands before the comparison; everything else was written as the value.
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
        let span = filter.place(error.span.start, error.span.end);
        sink.error(code_of(&error.kind), span, message_of(&error.kind))
            .suggest(error.kind.suggestion())
            .note("a filter is about a kernel's own properties");
    }
}

/// The name of an operation or alias, or a pattern that some match.
pub(super) fn check_operation(name: &Spanned<String>, vocabulary: &Vocabulary, sink: &mut Sink) {
    if vocabulary.operations.is_empty() {
        return;
    }
    let pattern = Pattern::new(&name.value);
    if !about(&pattern, vocabulary).is_empty() {
        return;
    }
    if pattern.is_exact() {
        let near = sink.nearest(&name.value, vocabulary.catalogue().names());
        sink.error(Code::UnknownOperation, name.span, format!("no operation or alias is called `{pattern}`"))
            .suggest(near);
    } else {
        sink.error(Code::UnknownOperation, name.span, format!("no operation or alias matches `{pattern}`"));
    }
}

/// A pattern of kernels or backends.
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

/// The id of one kernel.
pub(super) fn check_kernel(kernel: &str, span: Span, sink: &mut Sink) {
    if kernel.contains('*') {
        sink.error(Code::BadPattern, span, format!("`{kernel}` is a pattern, but one kernel is needed here"))
            .note("`allow` and `prefer` take patterns");
        return;
    }
    check_pattern(kernel, span, sink);
}
