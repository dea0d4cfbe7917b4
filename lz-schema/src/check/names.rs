//! Validates names: spelling, duplicates, and keywords of the generated languages.

use std::collections::HashMap;

use super::Checker;
use super::symbols::{AxisSymbol, ParamSymbol, TypeSymbol};
use crate::diagnostics::Code;
use crate::expr::Type;
use crate::raw::Named;
use crate::raw::language::{RawOperation, RawParam, TypeWord};
use crate::source::{Span, Spanned};

/// Keywords of Rust, Python and C++. One merged list, so that a name that is valid in one binding is valid in all.
#[rustfmt::skip]
const KEYWORDS: &[&str] = &[
    "abstract", "alignas", "alignof", "and", "and_eq", "as", "asm", "assert", "async", "auto", "await", "become",
    "bitand", "bitor", "bool", "box", "break", "case", "catch", "char", "class", "compl", "concept", "const",
    "const_cast", "consteval", "constexpr", "constinit", "continue", "crate", "decltype", "def", "default", "del",
    "delete", "do", "double", "dyn", "elif", "else", "enum", "except", "explicit", "export", "extern", "false",
    "final", "finally", "float", "fn", "for", "friend", "from", "gen", "global", "goto", "if", "impl", "import",
    "in", "inline", "int", "is", "lambda", "let", "long", "loop", "macro", "match", "mod", "move", "mut",
    "mutable", "namespace", "new", "noexcept", "nonlocal", "not", "not_eq", "nullptr", "operator", "or", "or_eq",
    "override", "pass", "priv", "private", "protected", "pub", "public", "raise", "ref", "register",
    "reinterpret_cast", "requires", "return", "self", "short", "signed", "sizeof", "static", "static_assert",
    "static_cast", "struct", "super", "switch", "template", "this", "thread_local", "throw", "trait", "true",
    "try", "type", "typedef", "typeid", "typename", "typeof", "union", "unsafe", "unsigned", "unsized", "use",
    "using", "virtual", "void", "volatile", "wchar_t", "where", "while", "with", "xor", "xor_eq", "yield",
];

/// Reserved words of the schema language: functions of expressions, and keys that occur next to user-defined names. Functions that were
/// added later (`exp`, `log`, `tanh`) are free: a call is recognized by its parenthesis.
const WORDS: &[&str] = &["ceil_div", "min", "max", "abs", "sqrt", "given", "by"];

/// Whether a name consists of words of lower-case letters, digits and underscores, joined by dots.
pub(crate) fn is_dotted_name(name: &str) -> bool {
    name.split('.').all(is_snake)
}

/// Whether an axis, input, parameter or output may have this name: correctly spelled and not reserved.
pub fn is_free_name(name: &str) -> bool {
    is_snake(name) && !KEYWORDS.contains(&name) && !WORDS.contains(&name)
}

fn is_snake(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

fn is_variable(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_uppercase())
        && name.chars().all(|c| c.is_ascii_alphanumeric())
}

fn is_case(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_alphabetic())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// A suggestion for a misspelled name: `head_dim` for `HeadDim` and `head-dim`.
fn to_snake(name: &str) -> Option<String> {
    let mut snake = String::new();
    for character in name.chars() {
        if character.is_ascii_uppercase() && !snake.is_empty() && !snake.ends_with('_') {
            snake.push('_');
        }
        match character {
            '-' | ' ' | '.' => snake.push('_'),
            other => snake.push(other.to_ascii_lowercase()),
        }
    }
    (is_snake(&snake) && snake != name).then_some(snake)
}

impl Checker<'_> {
    /// Checks the spelling of all names, and that the names of axes, inputs, params and outputs are distinct.
    pub(super) fn names(&mut self, raw: &RawOperation) {
        let mut taken: HashMap<String, (&'static str, Span)> = HashMap::new();
        for entry in raw.axes.iter().flat_map(|named| &named.entries) {
            self.claim(&mut taken, "an axis", &entry.name);
            let flag = |flag: Option<&Spanned<bool>>| flag.is_some_and(|flag| flag.value);
            let axis = entry.value.as_ref();
            self.symbols.axes.push(AxisSymbol {
                name: entry.name.value.clone(),
                span: entry.name.span,
                pack: flag(axis.and_then(|axis| axis.pack.as_ref())),
                dynamic: flag(axis.and_then(|axis| axis.dynamic.as_ref())),
                fixed: axis.is_some_and(|axis| axis.value.is_some()),
                broken: axis.is_none_or(|axis| {
                    let broken = |key, read: bool| axis.keys.contains(&key) && !read;
                    broken("pack", axis.pack.is_some())
                        || broken("dynamic", axis.dynamic.is_some())
                        || broken("value", axis.value.is_some())
                }),
                used: None,
            });
        }
        for entry in raw.inputs.iter().flat_map(|named| &named.entries) {
            self.claim(&mut taken, "an input", &entry.name);
            let optional = entry.value.as_ref().and_then(|input| input.optional.as_ref());
            if optional.is_some_and(|optional| optional.value) {
                self.symbols.given.push(entry.name.value.clone());
            } else {
                self.symbols.required.push(entry.name.value.clone());
            }
        }
        for entry in raw.params.iter().flat_map(|named| &named.entries) {
            self.claim(&mut taken, "a parameter", &entry.name);
            let ty = entry.value.as_ref().and_then(expression_type);
            self.symbols.params.push(ParamSymbol {
                name: entry.name.value.clone(),
                span: entry.name.span,
                ty,
                is_statistic: entry.value.as_ref().is_some_and(|param| param.statistic.is_some()),
            });
        }
        for entry in raw.outputs.iter().flat_map(|named| &named.entries) {
            self.claim(&mut taken, "an output", &entry.name);
        }
        for values in
            raw.params.iter().flat_map(|named| &named.entries).filter_map(|entry| entry.value.as_ref())
        {
            for case in values.values.iter().flat_map(|values| &values.value) {
                self.case(&taken, case);
            }
        }
        for entry in raw.types.iter().flat_map(|named| &named.entries) {
            if !is_variable(&entry.name.value) {
                let message = format!("`{}` is not a valid name of a dtype variable", entry.name.value);
                self.sink
                    .error(Code::BadName, entry.name.span, message)
                    .note("expected a capital letter, then letters and digits: `T`, `TIndex`");
            }
            self.symbols.types.push(TypeSymbol {
                name: entry.name.value.clone(),
                span: entry.name.span,
                used_by_input: false,
                used_by_output: None,
            });
        }
        for named in raw.workloads.iter().flat_map(|named: &Named<_>| &named.entries) {
            self.spelling("a workload", &named.name);
        }
    }

    fn claim(
        &mut self,
        taken: &mut HashMap<String, (&'static str, Span)>,
        what: &'static str,
        name: &Spanned<String>,
    ) {
        if !self.spelling(what, name) {
            return;
        }
        match taken.get(&name.value) {
            Some((other, span)) => {
                let bare = what.split(' ').next_back().unwrap_or(what);
                let message = format!("{bare} `{}` has the name of {other}", name.value);
                self.sink
                    .error(Code::NameClash, name.span, message)
                    .also(*span, "first used here")
                    .note("axes, inputs, params and outputs share one namespace");
            }
            None => {
                taken.insert(name.value.clone(), (what, name.span));
            }
        }
    }

    fn spelling(&mut self, what: &str, name: &Spanned<String>) -> bool {
        let text = &name.value;
        if !is_snake(text) {
            self.sink
                .error(Code::BadName, name.span, format!("`{text}` is not a valid name"))
                .suggest(to_snake(text))
                .note("expected a lower-case letter, then lower-case letters, digits and underscores");
            return false;
        }
        if KEYWORDS.contains(&text.as_str()) {
            self.sink
                .error(Code::ReservedName, name.span, format!("`{text}` cannot be the name of {what}"))
                .label("a keyword of Rust, Python or C++");
            return false;
        }
        if WORDS.contains(&text.as_str()) {
            self.sink
                .error(Code::ReservedName, name.span, format!("`{text}` cannot be the name of {what}"))
                .label("a reserved word of the schema language");
            return false;
        }
        true
    }

    fn case(&mut self, taken: &HashMap<String, (&'static str, Span)>, case: &Spanned<String>) {
        let text = case.value.as_str();
        if !is_case(text) {
            self.sink
                .error(Code::BadName, case.span, format!("`{text}` is not a valid case name"))
                .note("expected a letter, then letters, digits and underscores");
        } else if WORDS.contains(&text)
            || ["self", "Self", "true", "false", "and", "or", "not", "in", "if", "else"].contains(&text)
        {
            self.sink
                .error(Code::ReservedName, case.span, format!("`{text}` cannot be the name of a case"))
                .label("a reserved word of the schema language");
        } else if let Some((other, span)) = taken.get(text) {
            let message = format!("case `{text}` has the name of {other}");
            self.sink
                .error(Code::NameClash, case.span, message)
                .also(*span, "first used here")
                .note("a bare name in an expression would be ambiguous");
        }
    }
}

/// The type of the parameter in expressions, if the declaration is complete.
fn expression_type(raw: &RawParam) -> Option<Type> {
    Some(match raw.type_.as_ref()?.value {
        TypeWord::Int => Type::Int,
        TypeWord::F32 | TypeWord::F64 => Type::Float,
        TypeWord::Bool => Type::Bool,
        TypeWord::Enum => Type::enumeration(raw.values.as_ref()?.value.iter().map(|case| case.value.clone())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keywords_are_sorted() {
        assert!(KEYWORDS.is_sorted());
    }

    #[test]
    fn spelling_of_names_is_validated() {
        assert!(is_dotted_name("attention.mla.decode"));
        assert!(!is_dotted_name("attention..decode") && !is_dotted_name("Attention") && !is_dotted_name(""));
        assert_eq!(to_snake("HeadDim").as_deref(), Some("head_dim"));
        assert_eq!(to_snake("head-dim").as_deref(), Some("head_dim"));
        assert_eq!(to_snake("1x"), None);
    }
}
