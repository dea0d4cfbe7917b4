//! Pretokenizers: hand-written splitters that find the same pieces as the well-known regular expressions, and splitters that are compiled
//! from an expression (`expression`, `program`, `automaton`) or combined from several (`stages`).
//!
//! Each well-known expression matches at every position, so the pieces cover the text without gaps. The tests compare every splitter with
//! the expression. Nothing here depends on vocabularies.

mod ascii_block;
mod ascii_window;
mod automaton;
mod char_blocks;
mod char_sets;
#[cfg(test)]
mod compiled_tests;
mod expression;
mod program;
mod stages;

use self::ascii_block::Part;
pub use self::ascii_block::{Rules, Sink};
use self::ascii_window::{AsciiWindow, contraction_may_follow};
pub use self::char_sets::Text;
pub use self::stages::{Splitter, Stage, Stages};
use crate::unicode::{Classes, LETTER, LOWER, MARK, NEWLINE, NUMBER, OTHER_LETTER, SPACE, UPPER};

/// The split expression of a tokenizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// GPT-2, also the default of `ByteLevel`.
    Gpt2,
    /// `cl100k`, Llama 3 and Qwen, which differ in the number of digits per piece.
    Cl100k {
        /// Maximum number of digits per piece.
        digits: u8,
    },
    /// `o200k`.
    O200k,
}

/// The expression of GPT-2.
pub const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// The expression of `cl100k` and Llama 3.
pub const CL100K: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The expression of Qwen.
pub const QWEN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The expression of `o200k`.
pub const O200K: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The expressions of DeepSeek V3, each of which splits the pieces of the one before it.
pub const DEEPSEEK_NUMBERS: &str = r"\p{N}{1,3}";
pub const DEEPSEEK_HAN: &str = "[一-龥\u{3040}-ゟ゠-ヿ]+";
pub const DEEPSEEK: &str = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+";
/// The expression of Mistral's `tekken`.
pub const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

impl Pattern {
    /// The splitter that is equivalent to an expression, if there is one.
    pub fn of_expression(expression: &str) -> Option<Pattern> {
        match expression {
            GPT2 => Some(Pattern::Gpt2),
            CL100K => Some(Pattern::Cl100k { digits: 3 }),
            QWEN => Some(Pattern::Cl100k { digits: 1 }),
            O200K => Some(Pattern::O200k),
            _ => None,
        }
    }

    /// The equivalent expression.
    pub fn expression(self) -> &'static str {
        match self {
            Pattern::Gpt2 => GPT2,
            Pattern::Cl100k { digits: 1 } => QWEN,
            Pattern::Cl100k { .. } => CL100K,
            Pattern::O200k => O200K,
        }
    }

    /// Calls `each` with the start and end of every piece of a text, in order.
    #[inline]
    pub fn for_each(self, text: &str, mut each: impl FnMut(usize, usize)) {
        self.between(text, 0, text.len(), &mut each);
    }

    /// The same for the pieces between two positions at which pieces begin.
    #[inline]
    pub fn between(self, text: &str, start: usize, end: usize, sink: &mut impl Sink) {
        let text = text.as_bytes();
        let classes = Classes::get();
        match self {
            Pattern::Gpt2 => walk(start, end, &Gpt2 { text, classes }, sink),
            Pattern::Cl100k { digits } => {
                let digits = usize::from(digits);
                let single = Cl100k { text, classes, digits };
                // The masks of other architectures are computed byte by byte, which is slower.
                match digits {
                    1 | 3 if cfg!(target_arch = "x86_64") => {
                        let part = Part { text, start, end, rules: Rules::cl100k(digits) };
                        walk_blocks(part, &single, sink);
                    }
                    _ => walk(start, end, &single, sink),
                }
            }
            Pattern::O200k if cfg!(target_arch = "x86_64") => {
                let part = Part { text, start, end, rules: Rules::O200K };
                walk_blocks(part, &O200k { text, classes }, sink);
            }
            Pattern::O200k => walk(start, end, &O200k { text, classes }, sink),
        }
    }

    /// Whether a piece begins at a position regardless of the text before it: every expression attaches a space to the letter after it.
    #[inline]
    pub fn begins_piece(text: &str, position: usize) -> bool {
        let text = text.as_bytes();
        text[position] == b' ' && Classes::get().at(text, position + 1).0 & LETTER != 0
    }
}

/// A hand-written splitter for one text.
trait PieceEnd {
    /// The end of the piece that begins at `start`, which is inside the text.
    fn end(&self, start: usize) -> usize;
}

#[inline(always)]
fn walk(mut start: usize, last: usize, splitter: &impl PieceEnd, sink: &mut impl Sink) {
    while start < last {
        let end = splitter.end(start);
        // Every expression matches at least one byte, so the loop ends.
        debug_assert!(end > start && end <= last);
        sink.piece(start, end);
        start = end;
    }
}

#[inline(always)]
fn one_piece(start: usize, splitter: &impl PieceEnd, sink: &mut impl Sink) -> usize {
    let end = splitter.end(start);
    sink.piece(start, end);
    end
}

/// The same in blocks of ASCII; the splitter finds the pieces between them one by one.
#[inline(always)]
fn walk_blocks(part: Part<'_>, splitter: &impl PieceEnd, sink: &mut impl Sink) {
    ascii_block::walk(part, |start, sink| one_piece(start, splitter, sink), sink);
}

/// The end of the run of characters for which `within` holds.
#[inline]
fn run(text: &[u8], classes: &Classes, mut position: usize, within: impl Fn(u8) -> bool) -> usize {
    loop {
        let (class, length) = classes.at(text, position);
        if length == 0 || !within(class) {
            return position;
        }
        position += length;
    }
}

fn is_symbol(class: u8) -> bool {
    class & (SPACE | LETTER | NUMBER) == 0
}

/// The end of whitespace from `start`: `\s+(?!\S)|\s+`, which leaves the last character to the next piece.
fn space_end(text: &[u8], classes: &Classes, start: usize) -> usize {
    let (mut position, mut last) = (start, start);
    loop {
        let (class, length) = classes.at(text, position);
        if length == 0 {
            return position;
        }
        if class & SPACE == 0 {
            return if last > start { last } else { position };
        }
        last = position;
        position += length;
    }
}

/// The same with `\s*[\r\n]+` before it: up to the last line break, if there is one.
fn space_or_lines_end(text: &[u8], classes: &Classes, start: usize) -> usize {
    let (mut position, mut after_break) = (start, None);
    loop {
        let (class, length) = classes.at(text, position);
        if class & SPACE == 0 {
            break;
        }
        position += length;
        if class & NEWLINE != 0 {
            after_break = Some(position);
        }
    }
    after_break.unwrap_or_else(|| space_end(text, classes, start))
}

/// The length of the contraction (`'s`, `'re`, …) at `position`; 0 if there is none. With `any_case`, `ſ` matches s.
fn contraction(text: &[u8], position: usize, any_case: bool) -> usize {
    let Some((b'\'', rest)) = text.get(position..).and_then(<[u8]>::split_first).map(|(a, b)| (*a, b)) else {
        return 0;
    };
    let fold = |byte: u8| if any_case { byte.to_ascii_lowercase() } else { byte };
    let second = rest.get(1).map(|byte| fold(*byte));
    match rest.first().map(|byte| fold(*byte)) {
        Some(b's' | b't' | b'm' | b'd') => 2,
        Some(b'r' | b'v') if second == Some(b'e') => 3,
        Some(b'l') if second == Some(b'l') => 3,
        Some(0xc5) if any_case && rest.get(1) == Some(&0xbf) => 3,
        _ => 0,
    }
}

struct Gpt2<'a> {
    text: &'a [u8],
    classes: &'a Classes,
}

impl PieceEnd for Gpt2<'_> {
    #[inline(always)]
    fn end(&self, start: usize) -> usize {
        let text = self.text;
        let first = text[start];
        if let Some(window) = AsciiWindow::at(text, start) {
            let skip = usize::from(first == b' ');
            let letters = window.letters(skip);
            if letters.length > 0 && letters.closed {
                return start + skip + letters.length;
            }
        }
        let quoted = contraction(text, start, false);
        if quoted > 0 {
            return start + quoted;
        }
        let (own, length) = self.classes.at(text, start);
        let (class, begin) = if first == b' ' {
            let (next, _) = self.classes.at(text, start + length);
            if start + length == text.len() || next & SPACE != 0 {
                return space_end(text, self.classes, start);
            }
            (next, start + length)
        } else {
            (own, start)
        };
        if class & LETTER != 0 {
            run(text, self.classes, begin, |class| class & LETTER != 0)
        } else if class & NUMBER != 0 {
            run(text, self.classes, begin, |class| class & NUMBER != 0)
        } else if class & SPACE != 0 {
            space_end(text, self.classes, start)
        } else {
            run(text, self.classes, begin, is_symbol)
        }
    }
}

/// Whether an ASCII character may be the prefix of a word: `[^\r\n\p{L}\p{N}]`.
#[inline(always)]
fn may_precede_word(byte: u8) -> bool {
    const TABLE: [bool; 256] = {
        let mut table = [false; 256];
        let mut byte = 0u8;
        while byte < 0x80 {
            table[byte as usize] = !byte.is_ascii_alphanumeric() && byte != b'\r' && byte != b'\n';
            byte += 1;
        }
        table
    };
    TABLE[usize::from(byte)]
}

struct Cl100k<'a> {
    text: &'a [u8],
    classes: &'a Classes,
    digits: usize,
}

impl PieceEnd for Cl100k<'_> {
    #[inline(always)]
    fn end(&self, start: usize) -> usize {
        let text = self.text;
        let first = text[start];
        if let Some(window) = AsciiWindow::at(text, start) {
            let skip = usize::from(may_precede_word(first) && first != b'\'');
            let letters = window.letters(skip);
            if letters.length > 0 && letters.closed {
                return start + skip + letters.length;
            }
        }
        let quoted = contraction(text, start, true);
        if quoted > 0 {
            return start + quoted;
        }
        let (class, length) = self.classes.at(text, start);
        if class & LETTER != 0 {
            return run(text, self.classes, start, |class| class & LETTER != 0);
        }
        if class & NUMBER != 0 {
            return digits_end(text, self.classes, start, self.digits);
        }
        let (next, _) = self.classes.at(text, start + length);
        if class & NEWLINE == 0 && next & LETTER != 0 {
            return run(text, self.classes, start + length, |class| class & LETTER != 0);
        }
        symbols_end(text, self.classes, start, (class, length), next, false)
    }
}

/// `\p{N}{1,max}`.
fn digits_end(text: &[u8], classes: &Classes, start: usize, max: usize) -> usize {
    let mut position = start;
    for _ in 0..max {
        let (class, length) = classes.at(text, position);
        if class & NUMBER == 0 {
            break;
        }
        position += length;
    }
    position
}

/// ` ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+` for a character that is neither letter nor number; with `slashes`, `/` counts as
/// a line break.
fn symbols_end(
    text: &[u8],
    classes: &Classes,
    start: usize,
    (class, length): (u8, usize),
    next: u8,
    slashes: bool,
) -> usize {
    let symbol_follows = text[start] == b' ' && start + length < text.len() && is_symbol(next);
    if !symbol_follows && !is_symbol(class) {
        return space_or_lines_end(text, classes, start);
    }
    let mut position = run(text, classes, start + length, is_symbol);
    while let Some(byte) = text.get(position)
        && (matches!(byte, b'\r' | b'\n') || slashes && *byte == b'/')
    {
        position += 1;
    }
    position
}

struct O200k<'a> {
    text: &'a [u8],
    classes: &'a Classes,
}

const UPPER_PART: u8 = UPPER | OTHER_LETTER | MARK;
const LOWER_PART: u8 = LOWER | OTHER_LETTER | MARK;

impl O200k<'_> {
    /// The end of `[upper]*[lower]+`.
    fn ends_lower(&self, start: usize) -> Option<usize> {
        let (mut position, mut after_both) = (start, None);
        loop {
            let (class, length) = self.classes.at(self.text, position);
            if class & UPPER_PART == 0 {
                if class & LOWER != 0 {
                    return Some(run(self.text, self.classes, position, |class| class & LOWER_PART != 0));
                }
                // Backtracks: a character in both classes may match the second.
                return after_both;
            }
            position += length;
            if class & LOWER_PART != 0 {
                after_both = Some(position);
            }
        }
    }

    /// The end of `[upper]+[lower]*` after [`O200k::ends_lower`] has failed: only uppercase is left.
    fn ends_upper(&self, start: usize) -> Option<usize> {
        let end = run(self.text, self.classes, start, |class| class & UPPER_PART != 0);
        (end > start).then_some(end)
    }

    fn word(&self, start: usize) -> Option<usize> {
        let (class, length) = self.classes.at(self.text, start);
        let prefix = (class & (NEWLINE | LETTER | NUMBER) == 0).then_some(start + length);
        let bare = (class & (LETTER | MARK) != 0).then_some(start);
        let found = prefix
            .and_then(|inner| self.ends_lower(inner))
            .or_else(|| bare.and_then(|inner| self.ends_lower(inner)))
            .or_else(|| prefix.and_then(|inner| self.ends_upper(inner)))
            .or_else(|| bare.and_then(|inner| self.ends_upper(inner)));
        found.map(|end| end + contraction(self.text, end, true))
    }
}

impl PieceEnd for O200k<'_> {
    #[inline(always)]
    fn end(&self, start: usize) -> usize {
        let text = self.text;
        let first = text[start];
        if let Some(window) = AsciiWindow::at(text, start) {
            let skip = usize::from(may_precede_word(first));
            let word = window.cased_word(skip);
            if word.length > 0 && word.closed {
                let end = start + skip + word.length;
                return if contraction_may_follow(text, end) {
                    end + contraction(text, end, true)
                } else {
                    end
                };
            }
        }
        let (class, length) = self.classes.at(text, start);
        if class & NUMBER != 0 {
            return digits_end(text, self.classes, start, 3);
        }
        if let Some(end) = self.word(start) {
            return end;
        }
        let (next, _) = self.classes.at(text, start + length);
        symbols_end(text, self.classes, start, (class, length), next, true)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use proptest::prelude::*;

    use super::*;

    const PATTERNS: [Pattern; 4] =
        [Pattern::Gpt2, Pattern::Cl100k { digits: 3 }, Pattern::Cl100k { digits: 1 }, Pattern::O200k];

    /// The compiled expressions of [`PATTERNS`].
    fn expressions() -> &'static [fancy_regex::Regex] {
        static EXPRESSIONS: OnceLock<Vec<fancy_regex::Regex>> = OnceLock::new();
        EXPRESSIONS.get_or_init(|| {
            PATTERNS.iter().map(|pattern| fancy_regex::Regex::new(pattern.expression()).unwrap()).collect()
        })
    }

    fn by_expression(expression: &fancy_regex::Regex, text: &str) -> Vec<(usize, usize)> {
        let found = expression.find_iter(text).map(|found| found.unwrap());
        found.map(|found| (found.start(), found.end())).collect()
    }

    fn by_splitter(pattern: Pattern, text: &str) -> Vec<(usize, usize)> {
        let mut pieces = Vec::new();
        pattern.for_each(text, |start, end| pieces.push((start, end)));
        pieces
    }

    fn check(text: &str) {
        for (pattern, expression) in PATTERNS.into_iter().zip(expressions()) {
            let expected = by_expression(expression, text);
            let shown = |pieces: &[(usize, usize)]| {
                pieces.iter().map(|&(start, end)| text[start..end].to_owned()).collect::<Vec<_>>()
            };
            let found = by_splitter(pattern, text);
            assert_eq!(shown(&found), shown(&expected), "{pattern:?} of {text:?}");
            for position in (0..text.len()).filter(|position| Pattern::begins_piece(text, *position)) {
                assert!(
                    found.iter().any(|piece| piece.0 == position),
                    "{pattern:?} of {text:?} at {position}"
                );
            }
        }
    }

    #[test]
    fn edge_cases_split_like_their_expression() {
        for text in [
            "",
            "a",
            " a",
            "  a",
            "   ",
            "\n\n  \n x",
            " \r\n\t y",
            "It's she'LL DON'T 'ſ'S we've 'r 'l",
            "HTTPServer CamelCASE XMLHttp aB ABc",
            "1234567 12 ½²３４",
            "x=1;/*y*/\n//z\r\n/",
            "!!!\n/\n/ a",
            "e\u{301}E\u{301} \u{301}a \u{301}\u{301}",
            "ʰAʰB ʰ AʰB ǅa aǅ",
            "日本語のテキスト、です。 東京",
            "👩‍🚀👍🏽 🇩🇪",
            "\u{a0}\u{a0}a\u{2003}b\u{3000}",
            "averyveryveryverylongwordthatdoesnotfit intoonewindowofbytes",
            "'s't 'd' re'VE",
            "don't\u{301}t",
            "straße ÄÖÜ äöü Ωmega",
        ] {
            check(text);
        }
    }

    fn texts() -> impl Strategy<Value = String> {
        let piece = prop_oneof![
            Just(" ".to_owned()),
            Just(" a".to_owned()),
            Just("\n".to_owned()),
            Just("\r".to_owned()),
            Just("'".to_owned()),
            Just("/".to_owned()),
            Just("s".to_owned()),
            Just("LL".to_owned()),
            Just("ſ".to_owned()),
            Just("1".to_owned()),
            Just("½".to_owned()),
            Just("A".to_owned()),
            Just("é".to_owned()),
            Just("É".to_owned()),
            Just("ʰ".to_owned()),
            Just("ǅ".to_owned()),
            Just("\u{301}".to_owned()),
            Just("漢".to_owned()),
            Just("!".to_owned()),
            Just("\u{a0}".to_owned()),
            Just("👍".to_owned()),
            Just("\u{0}".to_owned()),
            "[a-z]{1,20}",
            "[A-Za-z']{1,9}",
            any::<char>().prop_map(String::from),
        ];
        prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]
        #[test]
        fn random_texts_split_like_their_expression(text in texts()) {
            check(&text);
        }

        #[test]
        fn random_ascii_texts_split_like_their_expression(text in "([ \n\r\t\u{b}'(.aelstA0]|[a-z]{1,12}| [a-z]{1,9}|[0-9]{1,9}|\n {1,8}){20,150}") {
            check(&text);
        }

        #[test]
        fn mostly_ascii_texts_split_like_their_expression(text in super::compiled_tests::mostly_ascii()) {
            check(&text);
        }

        #[test]
        fn texts_of_many_scripts_split_like_their_expression(text in super::compiled_tests::many_scripts()) {
            check(&text);
        }

        #[test]
        fn random_ascii_texts_with_other_characters_split_like_their_expression(text in "([ \n\r'(.as0]{1,60}[éſ\u{a0}\u{3000}漢½]?){1,8}") {
            check(&text);
        }
    }
}
