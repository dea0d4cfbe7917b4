//! The skip list: cases of the suite that are not checked, with a reason for each.
//!
//! The list is closed: an entry that matches nothing is an error, like a case that is not covered.

use crate::case::SkipReason;
use lz_schema::source::{Node, Source, Value, parse};
use std::fmt;

/// A skipped part of the suite, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skip {
    /// Covered forms, operators, or patterns of case names, where `*` matches any text.
    pub covers: Vec<String>,
    /// The operator of the case patterns; empty for forms and operators.
    pub operator: String,
    /// Index of the node's output; 0 for whole cases.
    pub output: usize,
    /// The reason.
    pub reason: String,
    /// Line of the entry in the list.
    pub line: usize,
}

/// The whole list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Skips {
    /// Cases that are not a single operator call on tensors.
    pub forms: Vec<Skip>,
    /// Operators without a mapping.
    pub operators: Vec<Skip>,
    /// Cases of mapped operators.
    pub cases: Vec<Skip>,
    /// Outputs of cases that run, but are not compared.
    pub outputs: Vec<Skip>,
}

/// Why the list could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkipListError {
    /// Line number, from 1.
    pub line: usize,
    /// The problem.
    pub message: String,
}

impl fmt::Display for SkipListError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "line {} of the skip list: {}", self.line, self.message)
    }
}

impl std::error::Error for SkipListError {}

/// The name of a form in the list.
pub fn form_name(reason: &SkipReason) -> &'static str {
    match reason {
        SkipReason::Expanded => "expanded",
        SkipReason::NodeCount { .. } => "several_nodes",
        SkipReason::LocalFunctions => "local_functions",
        SkipReason::NotATensor { .. } => "not_a_tensor",
    }
}

impl Skips {
    /// The entry for a form.
    pub fn form(&self, reason: &SkipReason) -> Option<&Skip> {
        let name = form_name(reason);
        self.forms.iter().find(|skip| skip.covers.iter().any(|form| form == name))
    }

    /// The entry for an operator without a mapping.
    pub fn operator(&self, operator: &str) -> Option<&Skip> {
        self.operators.iter().find(|skip| skip.covers.iter().any(|listed| listed == operator))
    }

    /// The entry for a case of a mapped operator.
    pub fn case(&self, operator: &str, name: &str) -> Option<&Skip> {
        self.cases.iter().find(|skip| skip.names(operator, name))
    }

    /// The entry for an output of a case that runs.
    pub fn output(&self, operator: &str, name: &str, output: usize) -> Option<&Skip> {
        self.outputs.iter().find(|skip| skip.output == output && skip.names(operator, name))
    }
}

impl Skip {
    fn names(&self, operator: &str, name: &str) -> bool {
        self.operator == operator && self.covers.iter().any(|pattern| matches(pattern, name))
    }
}

/// Whether a name matches a pattern in which `*` matches any text, including none.
pub fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, rest)) => name.strip_prefix(start).is_some_and(|name| {
            let ends = name.char_indices().map(|(end, _)| end).chain([name.len()]);
            ends.into_iter().any(|end| name.get(end..).is_some_and(|name| matches(rest, name)))
        }),
    }
}

/// Parses the list.
pub fn read_skips(text: &str) -> Result<Skips, SkipListError> {
    let source = Source::new("skips.yaml", text);
    let (root, issues) = parse(&source);
    if let Some(issue) = issues.first() {
        let (line, _) = source.position(issue.span.start);
        return Err(SkipListError { line, message: format!("{:?}", issue.value) });
    }
    let reader = Reader { source: &source };
    let mut skips = Skips::default();
    let root = root.ok_or(SkipListError { line: 1, message: "the list is empty".to_owned() })?;
    for (key, value) in reader.mapping(&root)? {
        let (target, covers, keys): (_, _, &[&str]) = match reader.text(key)? {
            "forms" => (&mut skips.forms, "forms", &["forms", "reason"]),
            "operators" => (&mut skips.operators, "operators", &["operators", "reason"]),
            "cases" => (&mut skips.cases, "names", &["operator", "names", "reason"]),
            "outputs_not_compared" => {
                (&mut skips.outputs, "names", &["operator", "output", "names", "reason"])
            }
            other => return Err(reader.error(key, format!("`{other}` is not a section"))),
        };
        for entry in reader.sequence(value)? {
            target.push(reader.skip(entry, covers, keys)?);
        }
    }
    Ok(skips)
}

struct Reader<'s> {
    source: &'s Source,
}

impl Reader<'_> {
    fn error(&self, node: &Node, message: String) -> SkipListError {
        SkipListError { line: self.source.position(node.span.start).0, message }
    }

    fn mapping<'n>(&self, node: &'n Node) -> Result<&'n [(Node, Node)], SkipListError> {
        match &node.value {
            Value::Mapping(entries) => Ok(entries),
            _ => Err(self.error(node, "expected a mapping".to_owned())),
        }
    }

    fn sequence<'n>(&self, node: &'n Node) -> Result<&'n [Node], SkipListError> {
        match &node.value {
            Value::Sequence(items) => Ok(items),
            _ => Err(self.error(node, "expected a list".to_owned())),
        }
    }

    fn text<'n>(&self, node: &'n Node) -> Result<&'n str, SkipListError> {
        match &node.value {
            Value::Scalar(scalar) if !scalar.text.is_empty() => Ok(&scalar.text),
            _ => Err(self.error(node, "expected a non-empty text".to_owned())),
        }
    }

    /// One entry: exactly the keys of its section, each once.
    fn skip(&self, entry: &Node, covers: &str, keys: &[&str]) -> Result<Skip, SkipListError> {
        let given = self.mapping(entry)?;
        for (key, _) in given {
            let name = self.text(key)?;
            if !keys.contains(&name) {
                return Err(self.error(key, format!("`{name}` is not a key here")));
            }
        }
        for required in keys {
            let count = given.iter().filter(|(key, _)| self.text(key) == Ok(required)).count();
            if count != 1 {
                return Err(self.error(entry, format!("`{required}` is given {count} times")));
            }
        }
        let value =
            |name: &str| given.iter().find(|(key, _)| self.text(key) == Ok(name)).map(|(_, value)| value);
        let mut skip = Skip {
            covers: Vec::new(),
            operator: String::new(),
            output: 0,
            reason: String::new(),
            line: self.source.position(entry.span.start).0,
        };
        if let Some(items) = value(covers) {
            for item in self.sequence(items)? {
                skip.covers.push(self.text(item)?.to_owned());
            }
        }
        if let Some(operator) = value("operator") {
            skip.operator = self.text(operator)?.to_owned();
        }
        if let Some(output) = value("output") {
            let text = self.text(output)?;
            skip.output =
                text.parse().map_err(|_| self.error(output, format!("`{text}` is not a number")))?;
        }
        if let Some(reason) = value("reason") {
            skip.reason = self.text(reason)?.to_owned();
        }
        Ok(skip)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_names() {
        assert!(matches("test_cast", "test_cast") && !matches("test_cast", "test_castlike"));
        assert!(matches("test_*_no_*", "test_cast_no_saturate") && matches("*", ""));
        assert!(matches("a*b*b", "abxb") && !matches("a*b*b", "ab") && !matches("a*", "ba"));
    }

    #[test]
    fn entries_are_parsed_and_errors_have_a_line() {
        let text = "operators:\n  - { operators: [Abs, ai.onnx.ml.Binarizer], reason: Not ours. }\ncases:\n  - operator: Cast\n    names: [test_cast_*]\n    reason: Wraps.\n";
        let skips = read_skips(text).unwrap();
        assert_eq!(skips.operator("ai.onnx.ml.Binarizer").map(|skip| skip.line), Some(2));
        assert_eq!(skips.case("Cast", "test_cast_x").map(|skip| skip.reason.as_str()), Some("Wraps."));
        assert_eq!(skips.case("CastLike", "test_cast_x"), None);
        let fails =
            |text: &str, expected: &str| assert_eq!(read_skips(text).unwrap_err().to_string(), expected);
        fails("others: []", "line 1 of the skip list: `others` is not a section");
        fails("forms:\n  - { forms: [expanded] }", "line 2 of the skip list: `reason` is given 0 times");
        fails("forms:\n  - { why: x }", "line 2 of the skip list: `why` is not a key here");
    }
}
