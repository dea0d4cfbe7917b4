//! Lexer: text to tokens.

use super::ast::Span;
use super::error::{ExprError, ExprErrorKind};

/// One word, number or sign of the text, with its span.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Token {
    pub kind: TokenKind,
    pub span: Span,
}

/// The kind of a token. Integers are stored as magnitudes, because `i64::MIN` fits only with its sign.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum TokenKind {
    Int(u64),
    Float(f64),
    Text(String),
    Name(String),
    And,
    Or,
    Not,
    In,
    If,
    Else,
    True,
    False,
    Plus,
    Minus,
    Star,
    Slash,
    SlashSlash,
    Percent,
    EqualEqual,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    OpenParenthesis,
    CloseParenthesis,
    OpenBracket,
    CloseBracket,
    Comma,
    End,
}

/// All tokens of the text, followed by `End`.
pub(super) fn tokenize(text: &str) -> Result<Vec<Token>, ExprError> {
    let mut tokens = Vec::new();
    let mut start = 0;
    while let Some(first) = rest(text, start).chars().next() {
        if first.is_whitespace() {
            start += first.len_utf8();
            continue;
        }
        let (kind, length) = token(text, start, first)?;
        let span = Span::new(start, start + length);
        tokens.push(Token { kind, span });
        start = span.end;
    }
    tokens.push(Token { kind: TokenKind::End, span: Span::new(text.len(), text.len()) });
    Ok(tokens)
}

fn rest(text: &str, start: usize) -> &str {
    text.get(start..).unwrap_or("")
}

fn token(text: &str, start: usize, first: char) -> Result<(TokenKind, usize), ExprError> {
    let rest = rest(text, start);
    match first {
        '0'..='9' => number(rest, start),
        'a'..='z' | 'A'..='Z' | '_' => Ok(word(rest)),
        '"' | '\'' => string(rest, start, first),
        _ => sign(rest).map_err(|kind| {
            let length = match kind {
                ExprErrorKind::ForeignOperator { found, .. } => found.len(),
                _ => first.len_utf8(),
            };
            ExprError { kind, span: Span::new(start, start + length) }
        }),
    }
}

fn is_word_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Reads a name or keyword. A dot is part of the name if a letter or underscore follows.
fn word(rest: &str) -> (TokenKind, usize) {
    let bytes = rest.as_bytes();
    let mut length = 0;
    while let Some(&byte) = bytes.get(length) {
        let dot_inside = byte == b'.'
            && bytes.get(length + 1).is_some_and(|next| next.is_ascii_alphabetic() || *next == b'_');
        if !is_word_byte(byte) && !dot_inside {
            break;
        }
        length += 1;
    }
    let word = rest.get(..length).unwrap_or("");
    let kind = match word {
        "and" | "AND" => TokenKind::And,
        "or" | "OR" => TokenKind::Or,
        "not" | "NOT" => TokenKind::Not,
        "in" | "IN" => TokenKind::In,
        "if" | "IF" => TokenKind::If,
        "else" | "ELSE" => TokenKind::Else,
        "true" | "TRUE" => TokenKind::True,
        "false" | "FALSE" => TokenKind::False,
        _ => TokenKind::Name(word.to_owned()),
    };
    (kind, length)
}

/// Reads `12`, `0.5`, `1e-5` or `2.5E+3`. Following letters, digits or dots make the whole word an error, so that `12abc` is not
/// read as two tokens.
fn number(rest: &str, start: usize) -> Result<(TokenKind, usize), ExprError> {
    let bytes = rest.as_bytes();
    let mut length = 0;
    while let Some(&byte) = bytes.get(length) {
        let sign_of_exponent = matches!(byte, b'+' | b'-')
            && length > 0
            && matches!(bytes.get(length - 1), Some(b'e' | b'E'))
            && bytes.get(length + 1).is_some_and(u8::is_ascii_digit);
        if !is_word_byte(byte) && byte != b'.' && !sign_of_exponent {
            break;
        }
        length += 1;
    }
    let written = rest.get(..length).unwrap_or("");
    let error = |kind| Err(ExprError { kind, span: Span::new(start, start + length) });
    if written.bytes().all(|byte| byte.is_ascii_digit()) {
        return match written.parse() {
            Ok(magnitude) => Ok((TokenKind::Int(magnitude), length)),
            Err(_) => error(ExprErrorKind::NumberTooLarge { text: written.to_owned() }),
        };
    }
    match written.parse::<f64>() {
        Ok(value) if is_float_literal(written) && value.is_finite() => Ok((TokenKind::Float(value), length)),
        Ok(_) if is_float_literal(written) => {
            error(ExprErrorKind::NumberTooLarge { text: written.to_owned() })
        }
        _ => error(ExprErrorKind::BadNumber { text: written.to_owned() }),
    }
}

/// Whether a text is digits, then a point with digits, an exponent with digits, or both. Stricter than Rust, which accepts `1.`.
fn is_float_literal(written: &str) -> bool {
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let (mantissa, exponent) = match written.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (written, None),
    };
    let mantissa_fits = match mantissa.split_once('.') {
        Some((whole, fraction)) => digits(whole) && digits(fraction),
        None => digits(mantissa),
    };
    mantissa_fits
        && exponent.is_none_or(|exponent| digits(exponent.strip_prefix(['+', '-']).unwrap_or(exponent)))
}

/// Reads a case in single or double quotes. There are no escapes, because a case contains no quotes.
fn string(rest: &str, start: usize, quote: char) -> Result<(TokenKind, usize), ExprError> {
    match rest.get(1..).and_then(|inside| inside.split_once(quote)) {
        Some((inside, _)) => Ok((TokenKind::Text(inside.to_owned()), inside.len() + 2)),
        None => Err(ExprError {
            kind: ExprErrorKind::UnterminatedString,
            span: Span::new(start, start + rest.len()),
        }),
    }
}

fn sign(rest: &str) -> Result<(TokenKind, usize), ExprErrorKind> {
    const SIGNS: [(&str, TokenKind); 17] = [
        ("//", TokenKind::SlashSlash),
        ("==", TokenKind::EqualEqual),
        ("!=", TokenKind::NotEqual),
        ("<=", TokenKind::LessEqual),
        (">=", TokenKind::GreaterEqual),
        ("<", TokenKind::Less),
        (">", TokenKind::Greater),
        ("+", TokenKind::Plus),
        ("-", TokenKind::Minus),
        ("*", TokenKind::Star),
        ("/", TokenKind::Slash),
        ("%", TokenKind::Percent),
        ("(", TokenKind::OpenParenthesis),
        (")", TokenKind::CloseParenthesis),
        ("[", TokenKind::OpenBracket),
        ("]", TokenKind::CloseBracket),
        (",", TokenKind::Comma),
    ];
    // The longer spelling comes first, because the first that matches is reported.
    const FOREIGN: [(&str, &str); 6] =
        [("&&", "and"), ("||", "or"), ("!", "not"), ("=>", ">="), ("=<", "<="), ("=", "==")];
    if let Some((spelling, kind)) = SIGNS.iter().find(|(spelling, _)| rest.starts_with(spelling)) {
        return Ok((kind.clone(), spelling.len()));
    }
    if let Some((found, instead)) = FOREIGN.iter().find(|(found, _)| rest.starts_with(found)) {
        return Err(ExprErrorKind::ForeignOperator { found, instead });
    }
    Err(ExprErrorKind::UnexpectedCharacter { character: rest.chars().next().unwrap_or(' ') })
}
