//! Expressions of policies and descriptors: normalizes alternative spellings and maps errors to diagnostics.

use lz_schema::DType;
use lz_schema::diagnostics::Code;
use lz_schema::expr::ExprErrorKind;

/// Synonyms.
const NAMES: [(&str, &str); 13] = [
    ("target.sm_version", "sm"),
    ("target.sm", "sm"),
    ("sm_version", "sm"),
    ("target.platform", "platform"),
    ("target.vendor", "vendor"),
    ("target.has_tensor_cores", "has_tensor_cores"),
    ("target.tensor_core_generation", "tensor_core_generation"),
    ("target.memory_gib", "memory_gib"),
    ("target.device_index", "device_index"),
    ("context.deterministic", "deterministic"),
    ("context.capturing", "capturing"),
    ("context.tp_invariant", "tp_invariant"),
    ("context.batch_invariant", "batch_invariant"),
];

/// A normalized expression with a mapping to the original text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spelled {
    /// The expression.
    pub text: String,
    /// Start in the new text, start in the old text, whether the piece is unchanged.
    pieces: Vec<(usize, usize, bool)>,
    original: usize,
}

impl Spelled {
    /// Maps a span of the normalized text to the original.
    pub fn original_span(&self, start: usize, end: usize) -> (usize, usize) {
        let locate = |at: usize, is_end: bool| {
            let index =
                self.pieces.iter().rposition(|(new, _, _)| if is_end { *new < at } else { *new <= at });
            let Some((new, old, same)) = index.and_then(|index| self.pieces.get(index)).copied() else {
                return 0;
            };
            if same {
                return (old + (at - new)).min(self.original);
            }
            let next =
                index.and_then(|index| self.pieces.get(index + 1)).map_or(self.original, |(_, old, _)| *old);
            if is_end { next } else { old }
        };
        let start = locate(start, false);
        (start, locate(end, true).max(start))
    }
}

/// Rewrites long names of dtypes and dotted names of the device and the call.
pub fn spell(text: &str) -> Spelled {
    let mut spelled =
        Spelled { text: String::with_capacity(text.len()), pieces: Vec::new(), original: text.len() };
    let mut rest = text;
    while !rest.is_empty() {
        let at = text.len() - rest.len();
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
        let starts_word = rest.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        let length = match (starts_word, rest.find(|c: char| !is_word(c))) {
            (true, Some(end)) => end,
            (true, None) => rest.len(),
            // A number includes the letters that follow, so that `1e5` is not split.
            (false, _) if rest.starts_with(|c: char| c.is_ascii_digit()) => {
                rest.find(|c: char| !is_word(c)).unwrap_or(rest.len())
            }
            (false, _) => rest.chars().next().map_or(rest.len(), char::len_utf8),
        };
        let (word, after) = rest.split_at(length);
        let other = replacement(word).filter(|_| starts_word);
        spelled.pieces.push((spelled.text.len(), at, other.is_none()));
        spelled.text.push_str(other.unwrap_or(word));
        rest = after;
    }
    spelled
}

fn replacement(word: &str) -> Option<&'static str> {
    if let Some((_, name)) = NAMES.iter().find(|(other, _)| *other == word) {
        return Some(name);
    }
    DType::parse(word).map(DType::name).filter(|name| *name != word)
}

/// The code of a mistake in an expression.
pub fn code_of(kind: &ExprErrorKind) -> Code {
    match kind {
        ExprErrorKind::UnknownName { .. } => Code::UndefinedName,
        ExprErrorKind::UnknownInput { .. } => Code::UndefinedInput,
        ExprErrorKind::UnknownCase { .. } => Code::UnknownCase,
        kind if kind.is_syntax() => Code::BadExpression,
        _ => Code::IllTyped,
    }
}

/// The message without its suggestion, which is shown next to the underlined text.
pub fn message_of(kind: &ExprErrorKind) -> String {
    let text = kind.to_string();
    match text.split_once("; did you mean") {
        Some((sentence, _)) => sentence.to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn synonyms_are_normalized_and_spans_map_back() {
        let text = "target.sm_version >= 80 AND dtype in [float16, f32] and hedas > 1e5";
        let spelled = spell(text);
        assert_eq!(spelled.text, "sm >= 80 AND dtype in [f16, f32] and hedas > 1e5");
        let start = spelled.text.find("hedas").unwrap();
        let (start, end) = spelled.original_span(start, start + 5);
        assert_eq!(&text[start..end], "hedas");
        let start = spelled.text.find("f16").unwrap();
        let (start, end) = spelled.original_span(start, start + 3);
        assert_eq!(&text[start..end], "float16");
        assert_eq!(spelled.original_span(0, spelled.text.len()), (0, text.len()));
    }
}
