//! Constraints of a `Definition`, which are Python expressions, in our own expression language.
//!
//! The two languages share their operators, so this works on tokens: names are replaced, tuples become lists, and
//! what only Python can say makes the whole untranslatable. Whether the result makes sense is for the type checker.

/// What a name of a constraint stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Meaning {
    /// Something that our expressions can read, by the text to put there. It is never absent.
    Readable(String),
    /// A tensor: the sizes of its dimensions as our expressions, and our name if it may be absent.
    Tensor { dims: Vec<String>, given: Option<String> },
    /// An argument whose value our expressions cannot read.
    Opaque,
}

/// What became of a constraint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Translated {
    /// The same in our language, if that can say it.
    pub text: Option<String>,
    /// Whether it reads the value of an argument.
    pub value_dependent: bool,
}

/// Translates a constraint; `meaning` knows the names of the `Definition`.
pub(super) fn translate(text: &str, meaning: &dyn Fn(&str) -> Option<Meaning>) -> Translated {
    let tokens = tokens(text);
    let mut writer = Writer { tokens: &tokens, meaning, at: 0, value_dependent: false, sayable: true };
    let translated = writer.all();
    Translated { text: writer.sayable.then_some(translated), value_dependent: writer.value_dependent }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token<'a> {
    Name(&'a str),
    Number(&'a str),
    Text(&'a str),
    Symbol(&'a str),
}

/// The operators of two characters that must not be cut in two.
const PAIRS: [&str; 9] = ["==", "!=", "<=", ">=", "//", "**", "<<", ">>", ":="];

fn tokens<'a>(text: &'a str) -> Vec<Token<'a>> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let length =
            |more: &dyn Fn(char) -> bool| rest.find(|character| !more(character)).unwrap_or(rest.len());
        let word = |character: char| character.is_alphanumeric() || character == '_';
        let (size, make): (usize, fn(&'a str) -> Token<'a>) = if first.is_alphabetic() || first == '_' {
            (length(&word), Token::Name)
        } else if first.is_ascii_digit() {
            // The dot of a number is followed by a digit; that of `1 .real` is not our business.
            (length(&|character| word(character) || character == '.'), Token::Number)
        } else if first == '\'' || first == '"' {
            let end = rest.char_indices().skip(1).find(|(_, character)| *character == first);
            (end.map_or(rest.len(), |(at, quote)| at + quote.len_utf8()), Token::Text)
        } else if PAIRS.iter().any(|pair| rest.starts_with(pair)) {
            (2, Token::Symbol)
        } else {
            (first.len_utf8(), Token::Symbol)
        };
        let (token, after) = rest.split_at(size);
        tokens.push(make(token));
        rest = after.trim_start();
    }
    tokens
}

struct Writer<'a> {
    tokens: &'a [Token<'a>],
    meaning: &'a dyn Fn(&str) -> Option<Meaning>,
    at: usize,
    value_dependent: bool,
    sayable: bool,
}

impl<'a> Writer<'a> {
    fn peek(&self, ahead: usize) -> Option<Token<'a>> {
        self.tokens.get(self.at + ahead).copied()
    }

    fn all(&mut self) -> String {
        let mut written: Vec<String> = Vec::new();
        // The closing bracket that each open one wants: that of a tuple differs.
        let mut closing: Vec<&str> = Vec::new();
        while let Some(token) = self.peek(0) {
            self.at += 1;
            match token {
                Token::Name("in") => {
                    written.push("in".to_owned());
                    if self.peek(0) == Some(Token::Symbol("(")) {
                        self.at += 1;
                        written.push("[".to_owned());
                        closing.push("]");
                    }
                }
                Token::Name(name) => {
                    let name = self.name(name);
                    written.push(name);
                }
                Token::Number(number) => written.push(number.to_owned()),
                Token::Text(text) => written.push(text.to_owned()),
                Token::Symbol(open @ ("(" | "[")) => {
                    closing.push(if open == "(" { ")" } else { "]" });
                    written.push(open.to_owned());
                }
                Token::Symbol(")" | "]") => written.push(closing.pop().unwrap_or(")").to_owned()),
                // A tuple may end in a comma, a list of ours may not.
                Token::Symbol(",") if matches!(self.peek(0), Some(Token::Symbol(")" | "]"))) => {}
                Token::Symbol(
                    symbol @ ("," | "+" | "-" | "*" | "/" | "//" | "%" | "==" | "!=" | "<" | "<=" | ">"
                    | ">="),
                ) => written.push(symbol.to_owned()),
                Token::Symbol(_) => self.sayable = false,
            }
        }
        let spaced = written.join(" ");
        let pairs = [("( ", "("), (" )", ")"), ("[ ", "["), (" ]", "]"), (" ,", ",")];
        let calls = [("min (", "min("), ("max (", "max("), ("abs (", "abs("), ("sqrt (", "sqrt(")];
        pairs.into_iter().chain(calls).fold(spaced, |text, (loose, tight)| text.replace(loose, tight))
    }

    fn name(&mut self, name: &str) -> String {
        if self.at >= 2 && self.tokens.get(self.at - 2) == Some(&Token::Symbol(".")) {
            self.sayable = false;
            return String::new();
        }
        match (name, self.peek(0), self.peek(1)) {
            ("and" | "or" | "not" | "if" | "else", ..) => return name.to_owned(),
            ("True", ..) => return "true".to_owned(),
            ("False", ..) => return "false".to_owned(),
            ("min" | "max" | "abs", Some(Token::Symbol("(")), _) => return name.to_owned(),
            ("math", Some(Token::Symbol(".")), Some(Token::Name("sqrt"))) => {
                self.at += 2;
                return "sqrt".to_owned();
            }
            _ => {}
        }
        match (self.meaning)(name) {
            Some(Meaning::Readable(text)) => self.absence().map_or(text, |absent| (!absent).to_string()),
            Some(Meaning::Tensor { dims, given }) => self.tensor(&dims, given.as_deref()),
            Some(Meaning::Opaque) => {
                self.value_dependent = true;
                self.sayable = false;
                String::new()
            }
            None => {
                self.sayable = false;
                String::new()
            }
        }
    }

    /// Reads `is None` or `is not None`, and says which.
    fn absence(&mut self) -> Option<bool> {
        let (absent, used) = match (self.peek(0), self.peek(1), self.peek(2)) {
            (Some(Token::Name("is")), Some(Token::Name("None")), _) => (true, 2),
            (Some(Token::Name("is")), Some(Token::Name("not")), Some(Token::Name("None"))) => (false, 3),
            _ => return None,
        };
        self.at += used;
        Some(absent)
    }

    /// A tensor may be asked for a size or for its presence; anything else reads its values.
    fn tensor(&mut self, dims: &[String], given: Option<&str>) -> String {
        if let Some(absent) = self.absence() {
            return match given {
                Some(given) if absent => format!("(not given({given}))"),
                Some(given) => format!("given({given})"),
                None => (!absent).to_string(),
            };
        }
        if self.peek(0) == Some(Token::Symbol("."))
            && self.peek(1) == Some(Token::Name("shape"))
            && self.peek(2) == Some(Token::Symbol("["))
        {
            let (negative, at) = match self.peek(3) {
                Some(Token::Symbol("-")) => (true, 4),
                _ => (false, 3),
            };
            if let (Some(Token::Number(digits)), Some(Token::Symbol("]"))) =
                (self.peek(at), self.peek(at + 1))
            {
                self.at += at + 2;
                let index = digits.parse::<usize>().ok();
                let index =
                    if negative { index.and_then(|back| dims.len().checked_sub(back)) } else { index };
                return match index.and_then(|index| dims.get(index)) {
                    Some(dim) if dim.contains(' ') => format!("({dim})"),
                    Some(dim) => dim.clone(),
                    None => {
                        self.sayable = false;
                        String::new()
                    }
                };
            }
        }
        self.value_dependent = true;
        self.sayable = false;
        String::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> String {
        let meaning = |name: &str| match name {
            "m" | "n" => Some(Meaning::Readable(name.to_owned())),
            "indptr" => Some(Meaning::Tensor { dims: vec!["m + 1".to_owned()], given: None }),
            "mask" => Some(Meaning::Tensor { dims: vec![], given: Some("mask".to_owned()) }),
            "layout" => Some(Meaning::Opaque),
            _ => None,
        };
        let translated = translate(text, &meaning);
        let mark = if translated.value_dependent { " (values)" } else { "" };
        format!("{}{mark}", translated.text.as_deref().unwrap_or("-"))
    }

    #[test]
    fn sizes_are_translated_and_values_are_marked() {
        assert_eq!(said("n == m+1"), "n == m + 1");
        assert_eq!(said("m in (64, 128,) or not (n>0)"), "m in [64, 128] or not (n > 0)");
        assert_eq!(said("1 <= n // m <= 32"), "1 <= n // m <= 32");
        assert_eq!(said("indptr.shape[-1] == n"), "(m + 1) == n");
        assert_eq!(said("mask is None or n > 1"), "(not given(mask)) or n > 1");
        assert_eq!(said("indptr is not None"), "true");
        assert_eq!(said("n is None or n > 0"), "false or n > 0");
        assert_eq!(said("n == indptr[-1].item()"), "- (values)");
        assert_eq!(said("max(indptr) <= n"), "- (values)");
        assert_eq!(said("layout == 'HND'"), "- (values)");
        assert_eq!(said("n ** 2 > m"), "-");
        assert_eq!(said("indptr.shape[7] == n"), "-");
        assert_eq!(said("m.bit_length() > 2"), "-");
        assert_eq!(said("math.sqrt(n) > 1.5"), "sqrt(n) > 1.5");
        assert_eq!(said("what > 'open"), "-");
    }
}
