//! Parses YAML to a tree with spans.
//!
//! This is the only file that uses the YAML crate. It does not depend on the schema language: it preserves duplicate keys, order
//! and the quoting of scalars, so that later stages can report all errors of a file at once. Schemas use plain YAML: anchors,
//! aliases, tags and multiple documents are reported as errors.

use serde_saphyr::granit_parser::{Event, Parser, ScalarStyle, Span as YamlSpan, StructureStyle};

/// A file: its path for messages, and its text with normalized line ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Path for messages, with forward slashes.
    pub path: String,
    /// The whole text; every line ends in `\n`.
    pub text: String,
    /// The offset of each line, so that looking up a line does not scan the text.
    lines: Vec<usize>,
}

impl Source {
    /// Creates a source with normalized line ends, so that spans and digests do not depend on the checkout.
    pub fn new(path: impl Into<String>, text: &str) -> Source {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let text = text.replace("\r\n", "\n").replace('\r', "\n");
        let lines = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        Source { path: path.into().replace('\\', "/"), text, lines }
    }

    /// The text that a span covers; empty if the span is not inside the file.
    pub fn slice(&self, span: Span) -> &str {
        self.text.get(span.start..span.end).unwrap_or("")
    }

    /// Line and column (both from 1, columns in characters) of a byte offset.
    pub fn position(&self, offset: usize) -> (usize, usize) {
        let offset = if self.text.is_char_boundary(offset) { offset } else { self.text.len() };
        let line = self.line(offset);
        let before = self.text.get(self.line_start(line)..offset);
        (line + 1, before.map_or(0, |text| text.chars().count()) + 1)
    }

    /// The number, from 0, of the line that an offset is in.
    pub fn line(&self, offset: usize) -> usize {
        self.lines.partition_point(|start| *start <= offset).saturating_sub(1)
    }

    /// The offset of a line, numbered from 0; the end of the text for lines after the last.
    pub fn line_start(&self, line: usize) -> usize {
        self.lines.get(line).copied().unwrap_or(self.text.len())
    }
}

/// A range of bytes in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Span {
    /// First byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
}

impl Span {
    /// The range from `start` up to `end`.
    pub const fn new(start: usize, end: usize) -> Span {
        Span { start, end }
    }

    /// The smallest range that covers both.
    pub fn to(self, other: Span) -> Span {
        Span { start: self.start.min(other.start), end: self.end.max(other.end) }
    }
}

/// A value with its span.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Spanned<T> {
    /// The value.
    pub value: T,
    /// Its span.
    pub span: Span,
}

impl<T> Spanned<T> {
    /// Pairs a value with its span.
    pub const fn new(value: T, span: Span) -> Spanned<T> {
        Spanned { value, span }
    }
}

/// One value of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// Its value.
    pub value: Value,
    /// Its span.
    pub span: Span,
}

/// The kinds of YAML values.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A scalar; numbers and bools are not distinguished from text here.
    Scalar(Scalar),
    /// A list.
    Sequence(Vec<Node>),
    /// Keys and values in the order of the file, duplicates included.
    Mapping(Vec<(Node, Node)>),
    /// An alias, which has been reported and must not be reported again.
    Alias,
}

/// A single value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scalar {
    /// The text after YAML's escapes.
    pub text: String,
    /// Written without quotes.
    pub plain: bool,
    /// Byte offset of the text in the file, if the file contains it verbatim; expression spans are then exact.
    pub verbatim_at: Option<usize>,
}

impl Scalar {
    /// Whether this is a YAML null: an unquoted empty text, `~` or `null`.
    pub fn is_null(&self) -> bool {
        self.plain && matches!(self.text.as_str(), "" | "~" | "null" | "Null" | "NULL")
    }
}

/// A syntax error, or a YAML feature that schemas must not use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum YamlIssue {
    /// The text is not YAML; nothing after it was read.
    Syntax(String),
    /// The file contains no value.
    Empty,
    /// A tag, an anchor, an alias or a second document.
    Unsupported(&'static str),
    /// A plain value inside `{ }` was split at a comma inside its parentheses.
    CutAtComma,
    /// Nesting deeper than [`MAX_DEPTH`]; nothing after it was read.
    TooDeep,
}

/// Maximum nesting depth of lists and mappings. Bounds the recursion of tree traversals.
pub const MAX_DEPTH: usize = 128;

/// Maximum length, in bytes, of an expression that is joined from pieces. Bounds the cost of copying.
const MAX_JOINED: usize = 4096;

/// Parses a file. Returns the issues, and the tree unless the syntax is invalid.
pub fn parse(source: &Source) -> (Option<Node>, Vec<Spanned<YamlIssue>>) {
    let mut builder = Builder { source, open: Vec::new(), root: None, issues: Vec::new(), documents: 0 };
    for event in Parser::new_from_str(&source.text) {
        match event {
            Ok((event, span)) => {
                let span = builder.span(&span);
                builder.take(event, span);
                if builder.open.len() > MAX_DEPTH {
                    builder.issue(YamlIssue::TooDeep, one_character(&source.text, span.start));
                    return (None, builder.issues);
                }
            }
            Err(error) => {
                let at = error.marker().byte_offset().unwrap_or(source.text.len());
                let text = error.info();
                builder.issue(YamlIssue::Syntax(text), one_character(&source.text, at));
                return (None, builder.issues);
            }
        }
    }
    if builder.root.is_none() {
        builder.issue(YamlIssue::Empty, Span::new(0, 0));
    }
    (builder.root, builder.issues)
}

/// The span of the character at an offset, or of the last character of the text, so that there is text to underline.
fn one_character(text: &str, at: usize) -> Span {
    let mut start = at.min(text.len());
    while !text.is_char_boundary(start) {
        start -= 1;
    }
    let width = text.get(start..).and_then(|rest| rest.chars().next()).map_or(0, char::len_utf8);
    Span::new(start, start + width)
}

/// A collection that is not yet closed.
struct Open {
    start: usize,
    flow: bool,
    mapping: bool,
    children: Vec<Node>,
}

struct Builder<'a> {
    source: &'a Source,
    open: Vec<Open>,
    root: Option<Node>,
    issues: Vec<Spanned<YamlIssue>>,
    documents: usize,
}

impl Builder<'_> {
    fn span(&self, span: &YamlSpan) -> Span {
        let length = self.source.text.len();
        let start = span.start.byte_offset().unwrap_or(0).min(length);
        let end = span.end.byte_offset().unwrap_or(start).clamp(start, length);
        Span::new(start, end)
    }

    fn issue(&mut self, issue: YamlIssue, span: Span) {
        self.issues.push(Spanned::new(issue, span));
    }

    fn take(&mut self, event: Event<'_>, span: Span) {
        match event {
            Event::DocumentStart(..) => {
                self.documents += 1;
                if self.documents == 2 {
                    self.issue(YamlIssue::Unsupported("several documents"), span);
                }
            }
            Event::Alias(_) | Event::UnresolvedAlias(_) => {
                self.issue(YamlIssue::Unsupported("aliases"), span);
                self.add(Node { value: Value::Alias, span });
            }
            Event::Scalar(text, style, anchor, tag) => {
                self.properties(anchor, tag.is_some(), span);
                let node = self.scalar(text.into_owned(), style, span);
                self.add(node);
            }
            Event::SequenceStart(style, anchor, tag) => {
                self.properties(anchor, tag.is_some(), span);
                self.begin(span.start, style, false);
            }
            Event::MappingStart(style, anchor, tag) => {
                self.properties(anchor, tag.is_some(), span);
                self.begin(span.start, style, true);
            }
            Event::SequenceEnd | Event::MappingEnd => self.end(span),
            _ => {}
        }
    }

    fn properties(&mut self, anchor: usize, tag: bool, span: Span) {
        for (present, mark, what) in [(anchor != 0, '&', "anchors"), (tag, '!', "tags")] {
            if present {
                // The tag or anchor precedes the value, with only other tags or anchors between.
                let before = self.source.text.get(..span.start).unwrap_or("");
                let start = before.rfind(mark).unwrap_or(span.start);
                self.issue(YamlIssue::Unsupported(what), Span::new(start, span.end));
            }
        }
    }

    fn scalar(&self, text: String, style: ScalarStyle, span: Span) -> Node {
        let written = self.source.slice(span);
        // Block scalars end in white space, which should not be underlined.
        let trimmed = Span::new(span.start, span.start + written.trim_end().len());
        let plain = matches!(style, ScalarStyle::Plain);
        let verbatim_at = match self.source.slice(trimmed) {
            written if written == text => Some(trimmed.start),
            written if !plain && written.get(1..written.len().saturating_sub(1)) == Some(&text) => {
                Some(trimmed.start + 1)
            }
            _ => None,
        };
        Node { value: Value::Scalar(Scalar { text, plain, verbatim_at }), span: trimmed }
    }

    fn begin(&mut self, start: usize, style: StructureStyle, mapping: bool) {
        let flow = matches!(style, StructureStyle::Flow);
        self.open.push(Open { start, flow, mapping, children: Vec::new() });
    }

    fn end(&mut self, span: Span) {
        let Some(open) = self.open.pop() else { return };
        // A block collection "ends" where the next token starts; its text ends with its last child.
        let end = match open.children.last() {
            Some(child) if !open.flow => child.span.end,
            _ => span.end,
        };
        let span = Span::new(open.start, end.max(open.start));
        let value = if open.mapping {
            self.mapping(open.flow, open.children)
        } else if open.flow {
            Value::Sequence(self.join_split_expressions(open.children))
        } else {
            Value::Sequence(open.children)
        };
        self.add(Node { value, span });
    }

    fn mapping(&mut self, flow: bool, children: Vec<Node>) -> Value {
        let mut entries: Vec<(Node, Node)> = Vec::with_capacity(children.len() / 2);
        let mut children = children.into_iter();
        while let (Some(key), Some(value)) = (children.next(), children.next()) {
            let piece = flow && matches!(&value.value, Value::Scalar(scalar) if scalar.is_null());
            if piece
                && let Some((_, cut)) = entries.last_mut().filter(|(_, value)| open_parentheses(value) > 0)
            {
                // The rest of the split value is not a key. Skip it, so that only one error is reported.
                let whole = cut.span.to(key.span);
                let first = self.issues.last().is_none_or(|issue| issue.span.start != whole.start);
                match (first, self.issues.last_mut()) {
                    (false, Some(issue)) => issue.span = whole,
                    _ => self.issues.push(Spanned::new(YamlIssue::CutAtComma, whole)),
                }
                cut.span = whole;
                if let Value::Scalar(scalar) = &mut cut.value
                    && whole.end - whole.start <= MAX_JOINED
                {
                    scalar.text = self.source.slice(whole).to_owned();
                }
                continue;
            }
            entries.push((key, value));
        }
        Value::Mapping(entries)
    }

    /// Joins the pieces of a call: YAML splits `[ceil_div(m, r), k]` at every comma.
    fn join_split_expressions(&self, children: Vec<Node>) -> Vec<Node> {
        let mut joined: Vec<Node> = Vec::with_capacity(children.len());
        for child in children {
            match joined.last_mut() {
                Some(last)
                    if last.span.end - last.span.start <= MAX_JOINED
                        && open_parentheses(last) > 0
                        && is_plain(&child) =>
                {
                    last.span = last.span.to(child.span);
                    let text = self.source.slice(last.span).to_owned();
                    let verbatim_at = Some(last.span.start);
                    last.value = Value::Scalar(Scalar { text, plain: true, verbatim_at });
                }
                _ => joined.push(child),
            }
        }
        joined
    }

    fn add(&mut self, node: Node) {
        match self.open.last_mut() {
            Some(open) => open.children.push(node),
            None if self.root.is_none() => self.root = Some(node),
            None => {}
        }
    }
}

fn is_plain(node: &Node) -> bool {
    matches!(&node.value, Value::Scalar(scalar) if scalar.plain)
}

fn open_parentheses(node: &Node) -> usize {
    match &node.value {
        Value::Scalar(scalar) if scalar.plain => {
            let open = scalar.text.matches('(').count();
            open.saturating_sub(scalar.text.matches(')').count())
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One line per value: its path in the tree and the text of its span.
    fn spans(text: &str) -> String {
        let source = Source::new("a.yaml", text);
        let (root, issues) = parse(&source);
        let mut lines = Vec::new();
        if let Some(root) = &root {
            walk(&source, "", root, &mut lines);
        }
        lines.extend(issues.iter().map(|issue| format!("{:?} {:?}", issue.value, source.slice(issue.span))));
        lines.join("\n")
    }

    fn walk(source: &Source, path: &str, node: &Node, lines: &mut Vec<String>) {
        lines.push(format!("{path}/ {:?}", source.slice(node.span)));
        match &node.value {
            Value::Alias => {}
            Value::Scalar(scalar) => {
                if let Some(at) = scalar.verbatim_at {
                    assert_eq!(source.text.get(at..at + scalar.text.len()), Some(scalar.text.as_str()));
                }
            }
            Value::Sequence(items) => {
                for (index, item) in items.iter().enumerate() {
                    walk(source, &format!("{path}/{index}"), item, lines);
                }
            }
            Value::Mapping(entries) => {
                for (key, value) in entries {
                    walk(source, &format!("{path}/{}", source.slice(key.span)), value, lines);
                }
            }
        }
    }

    #[test]
    fn spans_are_exact() {
        insta::assert_snapshot!(spans("a:  { b: [x + 1, 'y', \"z\"] }\r\nc: |\r\n  one\r\n  twö\r\nd:\r\n  - 1\r\n  - é\r\n"), @r#"
        / "a:  { b: [x + 1, 'y', \"z\"] }\nc: |\n  one\n  twö\nd:\n  - 1\n  - é"
        /a/ "{ b: [x + 1, 'y', \"z\"] }"
        /a/b/ "[x + 1, 'y', \"z\"]"
        /a/b/0/ "x + 1"
        /a/b/1/ "'y'"
        /a/b/2/ "\"z\""
        /c/ "one\n  twö"
        /d/ "- 1\n  - é"
        /d/0/ "1"
        /d/1/ "é"
        "#);
    }

    #[test]
    fn expression_with_commas_in_a_list_is_joined() {
        insta::assert_snapshot!(spans("[ceil_div(m, r) + 1, min(a, b, c), d]"), @r#"
        / "[ceil_div(m, r) + 1, min(a, b, c), d]"
        /0/ "ceil_div(m, r) + 1"
        /1/ "min(a, b, c)"
        /2/ "d"
        "#);
    }

    #[test]
    fn expression_split_in_a_mapping_is_one_error() {
        insta::assert_snapshot!(spans("{ a: min(b, c, d), e: f }"), @r#"
        / "{ a: min(b, c, d), e: f }"
        /a/ "min(b, c, d)"
        /e/ "f"
        CutAtComma "min(b, c, d)"
        "#);
    }

    #[test]
    fn unsupported_yaml_features_are_reported() {
        insta::assert_snapshot!(spans("a: &x 1\nb: *x\nc: !t 2\n"), @r#"
        / "a: &x 1\nb: *x\nc: !t 2"
        /a/ "1"
        /b/ "*x"
        /c/ "2"
        Unsupported("anchors") "&x 1"
        Unsupported("aliases") "*x"
        Unsupported("tags") "!t 2"
        "#);
        insta::assert_snapshot!(spans("a: 1\n---\nb: 2\n"), @r#"
        / "a: 1"
        /a/ "1"
        Unsupported("several documents") "---"
        "#);
        insta::assert_snapshot!(spans("a: [1\nb: 2\n"), @r#"Syntax("illegal placement of ':' indicator") ":""#);
        insta::assert_snapshot!(spans("# nothing\n"), @r#"Empty """#);
    }

    #[test]
    fn positions_count_characters() {
        let source = Source::new("a", "é: 1\nb: 2\n");
        assert_eq!(source.position(0), (1, 1));
        assert_eq!(source.position(4), (1, 4));
        assert_eq!(source.position(6), (2, 1));
        assert_eq!(source.position(999), (3, 1));
    }
}
