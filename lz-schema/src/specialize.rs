//! Resolves `specializes`: completes the schema of a special operation with what it inherits from the general one.
//!
//! The result is an ordinary schema without the replaced axes, so that no later stage depends on specialization. Everything
//! inherited has the span of the general operation's name in the special file: errors point into the file that is being read.

use crate::diagnostics::{Code, Sink, listed, nearest};
use crate::model::{Axis, Operation, Specialization};
use crate::raw::language::{RawAxis, RawInput, RawOperation, RawOutput, RawSpecializes, RawValues};
use crate::raw::{Expression, Named, RawCases, Read};
use crate::source::{Node, Scalar, Span, Spanned, Value};

/// Keys of a schema that a specialization states itself; the others are inherited.
const OWN: [&str; 8] =
    ["operation", "version", "summary", "doc", "aliases", "specializes", "axes", "workloads"];

/// Keys of an axis that a specialization may state: none of them affects calls.
const OWN_AXIS: [&str; 3] = ["fuzz", "models", "doc"];

/// The schema of a special operation with everything it inherits; `None` if it has errors.
pub(crate) fn resolve(
    root: &Node,
    special: &RawOperation,
    (general_root, general): (&Node, &Operation),
    sink: &mut Sink,
) -> Option<(RawOperation, Specialization)> {
    let specializes = special.specializes.as_ref()?;
    let span = specializes.operation.as_ref()?.span;
    report_inherited_keys(root, special, &general.name, sink);
    let equal = equal_axes(specializes, general, sink)?;
    // The general schema was validated, so reading it again reports nothing.
    let mut merged = RawOperation::read(&relocated(general_root, span), &mut Sink::new(sink.source.clone()))?;
    let replaced = |name: &str| equal.iter().any(|(axis, _)| axis == name);
    if let Some(axes) = &mut merged.axes {
        axes.entries.retain(|entry| !replaced(&entry.name.value));
        override_axes(axes, special.axes.as_ref(), &general.name, sink);
    }
    if let Some(constraints) = &mut merged.constraints {
        constraints.value.retain(|constraint| {
            let check = constraint.check.as_ref();
            !check.is_some_and(|check| {
                equal.iter().any(|(axis, _)| names(&check.text).any(|(_, name)| name == axis))
            })
        });
    }
    for (axis, by) in &equal {
        rename(&mut merged, &|expression| expression.text = renamed(&expression.text, axis, by));
    }
    merged.span = special.span;
    merged.operation = special.operation.clone();
    merged.version = special.version.clone();
    merged.summary = special.summary.clone();
    merged.doc = special.doc.clone();
    merged.aliases = special.aliases.clone();
    merged.workloads = special.workloads.clone();
    merged.definition = None;
    Some((merged, Specialization { operation: general.name.clone(), equal }))
}

/// Reports an operation that cannot be specialized: it does not exist, or is a specialization itself.
pub(crate) fn report_no_general<'a>(
    name: &Spanned<String>,
    is_special: bool,
    known: impl Iterator<Item = &'a str>,
    sink: &mut Sink,
) {
    if is_special {
        let message = format!("`{}` is a specialization itself", name.value);
        sink.error(Code::SpecializationChain, name.span, message)
            .note("specialize the operation that it specializes, with the axes of both");
        return;
    }
    let near = nearest(&name.value, known);
    sink.error(Code::UnknownGeneral, name.span, format!("operation `{}` does not exist", name.value))
        .suggest(near);
}

fn report_inherited_keys(root: &Node, special: &RawOperation, general: &str, sink: &mut Sink) {
    let Value::Mapping(entries) = &root.value else { return };
    for (key, _) in entries {
        if let Value::Scalar(Scalar { text, .. }) = &key.value
            && special.keys.contains(&text.as_str())
            && !OWN.contains(&text.as_str())
        {
            sink.error(Code::InheritedKey, key.span, format!("`{text}` is inherited from `{general}`"))
                .note(format!("a specialization states only {}", listed(OWN)));
        }
    }
}

/// The replaced axes, each with the axis that replaces it; `None` if an entry of `where` is invalid.
fn equal_axes(
    specializes: &RawSpecializes,
    general: &Operation,
    sink: &mut Sink,
) -> Option<Vec<(String, String)>> {
    let given = specializes.where_.as_ref()?;
    if given.entries.is_empty() {
        sink.error(Code::Empty, given.span, "`where` is empty")
            .note("name at least one axis and the axis that it is equal to: `{ kv_heads: heads }`");
        return None;
    }
    let mut equal = Vec::new();
    for entry in &given.entries {
        let by = entry.value.as_ref()?;
        let axes = (axis(&entry.name, general, sink), axis(by, general, sink));
        let (Some(replaced), Some(kept)) = axes else { continue };
        let problem = if replaced.name == kept.name {
            Some(format!("axis `{}` is equal to itself", kept.name))
        } else if given.entries.iter().any(|other| other.name.value == kept.name) {
            Some(format!("axis `{}` is replaced by another axis", kept.name))
        } else {
            [replaced, kept].into_iter().find_map(|axis| {
                let what = match axis {
                    Axis { pack: true, .. } => "a pack",
                    Axis { dynamic: true, .. } => "dynamic",
                    Axis { value: Some(_), .. } => "fixed",
                    _ => return None,
                };
                Some(format!("axis `{}` of `{}` is {what}", axis.name, general.name))
            })
        };
        match problem {
            Some(message) => {
                sink.error(Code::UnequalAxes, by.span, message)
                    .note("`where` replaces an axis by another one of the general operation, each a single dimension of an input");
            }
            None => equal.push((replaced.name.clone(), kept.name.clone())),
        }
    }
    (equal.len() == given.entries.len()).then_some(equal)
}

/// The axis of the general operation with this name.
fn axis<'a>(name: &Spanned<String>, general: &'a Operation, sink: &mut Sink) -> Option<&'a Axis> {
    let found = general.axes.iter().find(|axis| axis.name == name.value);
    if found.is_none() {
        let near = nearest(&name.value, general.axes.iter().map(|axis| axis.name.as_str()));
        let message = format!("`{}` has no axis `{}`", general.name, name.value);
        sink.error(Code::UndefinedAxis, name.span, message).suggest(near);
    }
    found
}

/// Takes over the sizes for tests and documentation that the specialization states for inherited axes.
fn override_axes(axes: &mut Named<RawAxis>, given: Option<&Named<RawAxis>>, general: &str, sink: &mut Sink) {
    for entry in given.iter().flat_map(|named| &named.entries) {
        let Some(inherited) = axes.entries.iter_mut().find(|axis| axis.name.value == entry.name.value) else {
            let near = nearest(&entry.name.value, axes.entries.iter().map(|axis| axis.name.value.as_str()));
            let message = format!("the specialization has no axis `{}`", entry.name.value);
            sink.error(Code::UndefinedAxis, entry.name.span, message)
                .suggest(near.map(str::to_owned))
                .note(format!("its axes are those of `{general}` that `where` does not replace"));
            continue;
        };
        let (Some(own), Some(axis)) = (&entry.value, &mut inherited.value) else { continue };
        for key in own.keys.iter().filter(|key| !OWN_AXIS.contains(key)) {
            let message = format!("`{key}` of axis `{}` is inherited from `{general}`", entry.name.value);
            sink.error(Code::InheritedKey, entry.name.span, message)
                .note(format!("a specialization states only {} of an axis", listed(OWN_AXIS)));
        }
        axis.fuzz = own.fuzz.clone().or(axis.fuzz.take());
        axis.models = own.models.clone().or(axis.models.take());
        axis.doc = own.doc.clone().or(axis.doc.take());
        inherited.name.span = entry.name.span;
    }
}

/// A tree whose nodes all have this span.
fn relocated(node: &Node, span: Span) -> Node {
    let value = match &node.value {
        Value::Scalar(scalar) => Value::Scalar(Scalar { verbatim_at: None, ..scalar.clone() }),
        Value::Sequence(items) => Value::Sequence(items.iter().map(|item| relocated(item, span)).collect()),
        Value::Mapping(entries) => Value::Mapping(
            entries.iter().map(|(key, value)| (relocated(key, span), relocated(value, span))).collect(),
        ),
        Value::Alias => Value::Alias,
    };
    Node { value, span }
}

/// Applies a change to every expression over axes, except those of constraints.
fn rename(schema: &mut RawOperation, change: &dyn Fn(&mut Expression)) {
    let shapes = |shape: &mut Option<RawCases<Spanned<Vec<Expression>>>>| match shape {
        Some(RawCases::One(dims)) => dims.value.iter_mut().for_each(change),
        Some(RawCases::By { cases, .. }) => {
            let cases = cases.entries.iter_mut().filter_map(|case| case.value.as_mut());
            cases.flat_map(|dims| &mut dims.value).for_each(change);
        }
        None => {}
    };
    for RawInput { shape, values, .. } in entries(&mut schema.inputs) {
        shapes(shape);
        if let Some(RawValues {
            index_into,
            between,
            indptr_of,
            indptr_within,
            partition_of,
            score_mod,
            ..
        }) = values
        {
            [index_into, indptr_of, indptr_within, partition_of, score_mod]
                .into_iter()
                .flatten()
                .for_each(change);
            between.iter_mut().flat_map(|between| &mut between.value).for_each(change);
        }
    }
    for param in entries(&mut schema.params) {
        param.default.iter_mut().for_each(change);
    }
    for RawOutput { shape, when, .. } in entries(&mut schema.outputs) {
        shapes(shape);
        when.iter_mut().for_each(change);
    }
}

fn entries<T>(named: &mut Option<Named<T>>) -> impl Iterator<Item = &mut T> {
    named.iter_mut().flat_map(|named| &mut named.entries).filter_map(|entry| entry.value.as_mut())
}

/// The names in an expression, each with its offset. Quoted cases are skipped.
fn names(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
    let mut rest = 0;
    std::iter::from_fn(move || {
        while let Some(first) = text.get(rest..).and_then(|text| text.chars().next()) {
            let start = rest;
            if first == '"' || first == '\'' {
                let length = text[start + 1..].find(first).map_or(text.len() - start, |end| end + 2);
                rest = start + length;
            } else if is_part(first) {
                let end = text[start..].find(|c| !is_part(c)).map_or(text.len(), |length| start + length);
                rest = end;
                return Some((start, &text[start..end]));
            } else {
                rest = start + first.len_utf8();
            }
        }
        None
    })
}

/// An expression with another name for a variable.
fn renamed(text: &str, from: &str, to: &str) -> String {
    let mut result = String::with_capacity(text.len());
    let mut copied = 0;
    for (start, name) in names(text).filter(|(_, name)| *name == from) {
        result.push_str(&text[copied..start]);
        result.push_str(to);
        copied = start + name.len();
    }
    result.push_str(&text[copied..]);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_names_outside_quotes_are_renamed() {
        let renamed = |text| renamed(text, "kv_heads", "heads");
        assert_eq!(renamed("heads % max(kv_heads, 1) == kv_heads"), "heads % max(heads, 1) == heads");
        assert_eq!(renamed("kv_heads_2 + x.kv_heads + nkv_heads"), "kv_heads_2 + x.kv_heads + nkv_heads");
        assert_eq!(
            renamed("layout == \"kv_heads\" or é == 'kv_heads"),
            "layout == \"kv_heads\" or é == 'kv_heads"
        );
        assert_eq!(renamed("rows..."), "rows...");
        assert_eq!(renamed(""), "");
    }
}
