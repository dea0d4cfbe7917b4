//! The section `kernels`: implementations of operations, each with a priority and constraints. Each implementation becomes a
//! rule that adds its priority to the score where its constraints hold.

use super::read::Reader;
use super::{RawAction, RawCondition, RawRule};
use crate::diagnostics::Code;
use crate::source::{Node, Spanned, Value};

/// Reads one group: `operation` and `implementations`.
pub(super) fn read(reader: &mut Reader<'_>, name: &Spanned<String>, group: &Node, rules: &mut Vec<RawRule>) {
    let mut operation = name.clone();
    let mut implementations: Vec<&Node> = Vec::new();
    for (key, value) in reader.entries(group, "a group of `kernels`").unwrap_or_default() {
        match key.value.as_str() {
            "operation" => operation = reader.text(value).unwrap_or(operation),
            "implementations" => implementations = reader.items(value),
            _ => reader.unknown(&key, "a group of `kernels`", vec!["operation", "implementations"]),
        }
    }
    // A family such as `attention` stands for all of its operations.
    if !operation.value.contains(['.', '*']) {
        operation.value.push('*');
    }
    for node in implementations {
        rules.extend(implementation(reader, &operation, node));
    }
}

fn implementation(reader: &mut Reader<'_>, operation: &Spanned<String>, node: &Node) -> Option<RawRule> {
    let mut rule = RawRule {
        span: node.span,
        operation: Some(operation.clone()),
        is_lenient: true,
        ..RawRule::default()
    };
    let (mut kernel, mut priority) = (None, None);
    for (key, value) in reader.entries(node, "an implementation")? {
        match key.value.as_str() {
            "name" => kernel = reader.text(value),
            "priority" => {
                priority = reader.scalar(value, "a number").map(|scalar| (scalar.text.clone(), value.span))
            }
            "dispatch_key" => {
                let text = reader.text(value).map(|text| text.value);
                rule.conditions
                    .extend(text.and_then(|text| device(&text)).map(|text| condition(&key, text, value)));
            }
            "constraints" => {
                for (key, value) in reader.entries(value, "`constraints`").unwrap_or_default() {
                    rule.conditions.extend(constraint(reader, &key, value));
                }
            }
            _ => {
                let known = vec!["name", "dispatch_key", "priority", "constraints"];
                reader.unknown(&key, "an implementation", known);
            }
        }
    }
    let Some(kernel) = kernel else {
        reader.sink.error(Code::MissingKey, node.span, "the implementation has no `name`");
        return None;
    };
    match priority.as_ref().map_or(Ok(0.0), |(text, _)| text.parse::<f64>()) {
        Ok(points) => {
            rule.name = Some(kernel.clone());
            rule.actions.push(Spanned::new(RawAction::Boost(kernel.value, points), kernel.span));
            Some(rule)
        }
        Err(_) => {
            let span = priority.map_or(node.span, |(_, span)| span);
            reader.sink.error(Code::BadNumber, span, "`priority` needs a number");
            None
        }
    }
}

/// The condition of a dispatch key: `any`, a platform, or `cuda_sm80` for a compute capability and later ones.
fn device(key: &str) -> Option<String> {
    match key.strip_prefix("cuda_sm") {
        Some(sm) => Some(format!("platform == cuda and sm >= {sm}")),
        None => (key != "any").then(|| format!("platform == {key}")),
    }
}

fn condition(key: &Spanned<String>, text: String, value: &Node) -> RawCondition {
    RawCondition::Match { key: key.clone(), text, value: value.span }
}

/// The condition of a constraint on the call; `None` for properties of the kernel (`supports_gqa`), which it declares itself.
fn constraint(reader: &mut Reader<'_>, key: &Spanned<String>, value: &Node) -> Option<RawCondition> {
    if key.value == "dtypes" {
        let Value::Sequence(_) = &value.value else {
            reader.sink.error(Code::WrongForm, value.span, "`dtypes` needs a list of dtypes");
            return None;
        };
        let names: Vec<String> = reader.texts(value).into_iter().map(|text| text.value).collect();
        return Some(condition(key, format!("dtype in [{}]", names.join(", ")), value));
    }
    let (name, comparison) = match (key.value.strip_prefix("min_"), key.value.strip_prefix("max_")) {
        (Some(name), _) => (name, ">="),
        (None, Some(name)) => (name, "<="),
        (None, None) => return None,
    };
    let number = reader.scalar(value, "an integer")?.text.clone();
    if number.parse::<i64>().is_err() {
        reader.sink.error(Code::BadNumber, value.span, format!("`{}` needs an integer", key.value));
        return None;
    }
    Some(condition(key, format!("{name} {comparison} {number}"), value))
}
