//! Finds the pieces of well-known expressions in 64 bytes of text at a time: the classes of all bytes become bit masks, and bit operations
//! on them set one bit for each position at which a piece begins. No branch depends on a single piece except for contractions. The classes
//! of characters that are not ASCII come from a table; all bytes of such a character have its bits.
//!
//! A block begins at a piece. Positions whose meaning depends on bytes after the block or on characters of other classes are left to
//! another splitter.

use super::char_blocks::{CharMasks, CharTable};
use super::contraction;
#[cfg(target_arch = "x86_64")]
use crate::cpu_features::has_avx512;

/// Bytes of a block.
pub const WIDTH: usize = 64;

/// The classes of the bytes of a block, one bit for each.
#[derive(Debug, PartialEq, Eq)]
struct Block {
    letters: u64,
    uppercase: u64,
    digits: u64,
    /// Whitespace, line breaks included.
    whitespace: u64,
    line_breaks: u64,
    /// The space character.
    spaces: u64,
    apostrophes: u64,
    slashes: u64,
    /// Control characters, whitespace included.
    controls: u64,
    non_ascii: u64,
    /// The second bit of each byte: the first byte of a character that is not ASCII has it, the others do not.
    second_bits: u64,
}

/// How the expressions differ in ASCII text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// Maximum number of digits of a piece: 1 or 3.
    pub digits: usize,
    /// Whether digits are isolated first, so that the whitespace before them is one piece, and control characters do not belong to symbols.
    pub isolates_digits: bool,
    /// Whether an uppercase letter after a lowercase one begins a piece, and slashes belong to the line breaks after symbols.
    pub cased: bool,
    pub contractions: Contractions,
}

/// What contractions (`'s`, `'re`, …) are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contractions {
    /// Nothing special.
    None,
    /// A piece each.
    Pieces,
    /// The ends of the words before them.
    Suffixes,
}

impl Rules {
    /// The rules of `cl100k` and Llama 3, and of Qwen, which has one digit per piece.
    pub const fn cl100k(digits: usize) -> Rules {
        Rules { digits, isolates_digits: false, cased: false, contractions: Contractions::Pieces }
    }

    /// The rules of `o200k`.
    pub const O200K: Rules =
        Rules { digits: 3, isolates_digits: false, cased: true, contractions: Contractions::Suffixes };

    /// The rules of several expressions, each of which splits the pieces of the one before it; `None` if they are not known.
    pub fn of_expressions(expressions: &[&str]) -> Option<Rules> {
        match expressions {
            [super::DEEPSEEK_NUMBERS, super::DEEPSEEK_HAN, super::DEEPSEEK] => Some(Rules {
                digits: 3,
                isolates_digits: true,
                cased: false,
                contractions: Contractions::None,
            }),
            [super::TEKKEN] => Some(Rules { digits: 1, contractions: Contractions::None, ..Rules::O200K }),
            _ => None,
        }
    }
}

/// The positions of a block at which pieces begin, one bit for each.
#[derive(Debug, Default)]
struct Starts {
    /// As if there were no contractions.
    starts: u64,
    /// The apostrophes at which contractions can begin.
    apostrophes: u64,
    /// The positions, up to some position, for which `starts` is known.
    certain: u64,
}

/// What receives the pieces of a text, in order.
pub trait Sink {
    /// Adds one piece.
    fn piece(&mut self, start: usize, end: usize);

    /// Adds the pieces from `start` on of a block: bit i of `ends` is set if a piece ends at `block + i`. At least one is.
    #[inline(always)]
    fn block(&mut self, mut start: usize, block: usize, mut ends: u64) {
        while ends != 0 {
            let end = block + ends.trailing_zeros() as usize;
            self.piece(start, end);
            start = end;
            ends &= ends - 1;
        }
    }

    /// The same, called where there is AVX-512.
    ///
    /// # Safety
    ///
    /// [`has_avx512`].
    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi1,bmi2,popcnt")]
    unsafe fn block_avx512(&mut self, start: usize, block: usize, ends: u64) {
        self.block(start, block, ends);
    }
}

impl<F: FnMut(usize, usize)> Sink for F {
    #[inline(always)]
    fn piece(&mut self, start: usize, end: usize) {
        self(start, end);
    }
}

/// A part of a text, between two positions at which pieces begin, and how it is split.
#[derive(Clone, Copy)]
pub struct Part<'a> {
    pub text: &'a [u8],
    pub start: usize,
    pub end: usize,
    pub rules: Rules,
}

/// Adds every piece of a part. `others` adds at least one piece from a position on, and returns the end of the last one.
#[inline(always)]
pub fn walk<S: Sink>(part: Part<'_>, others: impl Fn(usize, &mut S) -> usize, sink: &mut S) {
    #[cfg(target_arch = "x86_64")]
    if has_avx512() {
        // SAFETY: the processor has these instructions.
        return unsafe { walk_avx512(part, others, sink) };
    }
    let table = CharTable::get(part.rules);
    walk_by(part, |bytes| Block::of(bytes).starts(bytes, part.rules, table), others, S::block, sink);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi1,bmi2,popcnt")]
fn walk_avx512<S: Sink>(part: Part<'_>, others: impl Fn(usize, &mut S) -> usize, sink: &mut S) {
    let table = CharTable::get(part.rules);
    let starts_of = |bytes: &[u8; WIDTH]| Block::of_avx512(bytes).starts(bytes, part.rules, table);
    // SAFETY: this function is only called where there is AVX-512.
    let add_block = |sink: &mut S, start, block, ends| unsafe { sink.block_avx512(start, block, ends) };
    walk_by(part, starts_of, others, add_block, sink);
}

#[inline(always)]
fn walk_by<S: Sink>(
    Part { text, mut start, end, rules }: Part<'_>,
    starts_of: impl Fn(&[u8; WIDTH]) -> Starts,
    others: impl Fn(usize, &mut S) -> usize,
    add_block: impl Fn(&mut S, usize, usize, u64),
    sink: &mut S,
) {
    while start < end {
        let block = start;
        let mut starts = match text[block..].first_chunk() {
            Some(bytes) => starts_of(bytes).with_contractions(text, block, rules),
            None => 0,
        };
        if end - block < WIDTH - 1 {
            starts &= (2 << (end - block)) - 1;
        }
        if starts == 0 {
            start = others(start, sink);
            debug_assert!(start > block && start <= end);
        } else {
            add_block(sink, block, block, starts);
            start = block + starts.ilog2() as usize;
        }
    }
}

impl Starts {
    /// The starts after the first certain position, with contractions.
    #[inline(always)]
    fn with_contractions(self, text: &[u8], block: usize, rules: Rules) -> u64 {
        let Starts { mut starts, apostrophes, certain } = self;
        if apostrophes == 0 {
            return starts & certain & !1;
        }
        let (mut rest, mut after) = (apostrophes, 0);
        while rest != 0 {
            let position = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            let length = contraction(text, block + position, true);
            let is_suffix = rules.contractions == Contractions::Suffixes;
            // A contraction right after another one belongs to no word.
            if length == 0 || is_suffix && position == after {
                continue;
            }
            after = position + length;
            if is_suffix {
                let within = ((1u64 << length) - 1) << position;
                starts &= !within;
            }
            starts |= 1u64.checked_shl(after as u32).unwrap_or(0);
        }
        starts & certain & !1
    }
}

impl Block {
    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn of_avx512(bytes: &[u8; WIDTH]) -> Block {
        use std::arch::x86_64::{
            __m512i, _mm512_add_epi8, _mm512_cmpeq_epi8_mask, _mm512_cmplt_epu8_mask, _mm512_loadu_si512,
            _mm512_movepi8_mask, _mm512_or_si512, _mm512_set1_epi8, _mm512_sub_epi8,
        };
        // SAFETY: the load reads the 64 bytes behind the reference.
        let text = unsafe { _mm512_loadu_si512(bytes.as_ptr().cast::<__m512i>()) };
        let all = |byte: u8| _mm512_set1_epi8(byte as i8);
        let within = |text: __m512i, first: u8, count: u8| {
            _mm512_cmplt_epu8_mask(_mm512_sub_epi8(text, all(first)), all(count))
        };
        let equal = |byte: u8| _mm512_cmpeq_epi8_mask(text, all(byte));
        let spaces = equal(b' ');
        Block {
            letters: within(_mm512_or_si512(text, all(0x20)), b'a', 26),
            uppercase: within(text, b'A', 26),
            digits: within(text, b'0', 10),
            whitespace: within(text, b'\t', 5) | spaces,
            line_breaks: equal(b'\n') | equal(b'\r'),
            spaces,
            apostrophes: equal(b'\''),
            slashes: equal(b'/'),
            controls: within(text, 0, 0x20) | equal(0x7f),
            non_ascii: _mm512_movepi8_mask(text),
            second_bits: _mm512_movepi8_mask(_mm512_add_epi8(text, text)),
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn of(bytes: &[u8; WIDTH]) -> Block {
        use std::arch::x86_64::{
            __m128i, _mm_add_epi8, _mm_cmpeq_epi8, _mm_cmplt_epi8, _mm_loadu_si128, _mm_movemask_epi8,
            _mm_or_si128, _mm_set1_epi8,
        };
        let mut block = Block::EMPTY;
        for (bytes, shift) in bytes.as_chunks::<16>().0.iter().zip([0, 16, 32, 48]) {
            // SAFETY: SSE2 is part of every x86-64, and the load reads the 16 bytes behind the reference.
            unsafe {
                let text = _mm_loadu_si128(bytes.as_ptr().cast::<__m128i>());
                // Shifts the first byte of a range to the minimum signed byte; then one comparison finds the range.
                let within = |text: __m128i, first: u8, count: u8| {
                    let shifted = _mm_add_epi8(text, _mm_set1_epi8(0x80u8.wrapping_sub(first) as i8));
                    _mm_cmplt_epi8(shifted, _mm_set1_epi8((0x80 + count) as i8))
                };
                let equal = |byte: u8| _mm_cmpeq_epi8(text, _mm_set1_epi8(byte as i8));
                let mask = |bytes: __m128i| u64::from(_mm_movemask_epi8(bytes) as u16) << shift;
                let lowercase = _mm_or_si128(text, _mm_set1_epi8(0x20));
                let space = equal(b' ');
                block.letters |= mask(within(lowercase, b'a', 26));
                block.uppercase |= mask(within(text, b'A', 26));
                block.digits |= mask(within(text, b'0', 10));
                block.whitespace |= mask(_mm_or_si128(within(text, b'\t', 5), space));
                block.line_breaks |= mask(_mm_or_si128(equal(b'\n'), equal(b'\r')));
                block.spaces |= mask(space);
                block.apostrophes |= mask(equal(b'\''));
                block.slashes |= mask(equal(b'/'));
                block.controls |= mask(_mm_or_si128(within(text, 0, 0x20), equal(0x7f)));
                block.non_ascii |= mask(text);
                block.second_bits |= mask(_mm_add_epi8(text, text));
            }
        }
        block
    }

    #[cfg(not(target_arch = "x86_64"))]
    #[inline(always)]
    fn of(bytes: &[u8; WIDTH]) -> Block {
        Block::byte_by_byte(bytes)
    }

    const EMPTY: Block = Block {
        letters: 0,
        uppercase: 0,
        digits: 0,
        whitespace: 0,
        line_breaks: 0,
        spaces: 0,
        apostrophes: 0,
        slashes: 0,
        controls: 0,
        non_ascii: 0,
        second_bits: 0,
    };

    /// The definition, for other architectures and for tests.
    #[cfg(any(test, not(target_arch = "x86_64")))]
    fn byte_by_byte(bytes: &[u8; WIDTH]) -> Block {
        let mut block = Block::EMPTY;
        for (position, &byte) in bytes.iter().enumerate() {
            let bit = |is: bool| u64::from(is) << position;
            block.letters |= bit(byte.is_ascii_alphabetic());
            block.uppercase |= bit(byte.is_ascii_uppercase());
            block.digits |= bit(byte.is_ascii_digit());
            block.whitespace |= bit(matches!(byte, b'\t'..=b'\r' | b' '));
            block.line_breaks |= bit(matches!(byte, b'\n' | b'\r'));
            block.spaces |= bit(byte == b' ');
            block.apostrophes |= bit(byte == b'\'');
            block.slashes |= bit(byte == b'/');
            block.controls |= bit(byte.is_ascii_control());
            block.non_ascii |= bit(byte >= 0x80);
            block.second_bits |= bit(byte & 0x40 != 0);
        }
        block
    }

    /// The positions at which pieces begin.
    #[inline(always)]
    fn starts(&self, bytes: &[u8; WIDTH], rules: Rules, table: &CharTable) -> Starts {
        let &Block {
            letters,
            uppercase,
            digits,
            whitespace,
            line_breaks,
            spaces,
            apostrophes,
            slashes,
            controls,
            non_ascii,
            second_bits,
        } = self;
        let first_bytes = non_ascii & second_bits;
        let others = if non_ascii != 0 { table.masks(bytes, first_bytes) } else { CharMasks::default() };
        let controls = if rules.isolates_digits { controls & !whitespace } else { 0 };
        let unknown = others.unknown | controls;
        // What begins after this many bytes is unknown.
        let length = unknown.trailing_zeros();
        let known = u64::MAX.checked_shr(WIDTH as u32 - length).unwrap_or(0);
        let letters = (letters | others.letters) & known;
        let (digits, whitespace, non_ascii) = (digits & known, whitespace & known, non_ascii & known);
        let (line_breaks, spaces) = (line_breaks & known, spaces & known);
        let symbols = known & !(letters | digits | whitespace);
        let blanks = whitespace & !line_breaks;

        // Line breaks after symbols belong to their piece; the addition carries over all of them to the byte after them.
        let attached = line_breaks & symbols << 1;
        let after_attached = line_breaks.wrapping_add(attached) & !line_breaks;
        let runs = whitespace & !(whitespace << 1) & !attached;
        // The last blank before another character begins a piece: it belongs to a word or to symbols, or it stands alone.
        let mut last_blanks = blanks & !(whitespace >> 1) & known >> 1;
        if rules.isolates_digits {
            last_blanks &= !((digits | others.isolated) >> 1);
        }
        // After the last line break of a run.
        let blanks_after_break = blanks & line_breaks << 1;
        // A space belongs to the symbols after it.
        let symbol_runs = symbols & !(symbols << 1) & !(spaces << 1);
        // A single symbol without a space belongs to the word after it. All other symbols do not.
        let mut other_symbols = symbols & (symbols << 1 | spaces << 1);
        if non_ascii != 0 {
            // The last byte of a symbol has the bit of the first one.
            other_symbols &= !others.continuations;
            other_symbols |= other_symbols << 1 & others.continuations;
            other_symbols |= other_symbols << 1 & others.continuations;
        }
        let mut words = letters & !(letters << 1) & (line_breaks | digits | other_symbols) << 1;
        if rules.isolates_digits && non_ascii != 0 {
            words |= isolated_words(letters, symbols, other_symbols, non_ascii, others.isolated & known);
        }
        let numbers = if rules.digits == 1 { digits } else { every_third(digits) };
        let mut starts =
            runs | last_blanks | blanks_after_break | after_attached | symbol_runs | words | numbers;
        if rules.cased {
            let uppercase = (uppercase | others.uppercase) & known;
            starts |= uppercase & (letters & !uppercase) << 1;
        }

        let mut certain = known;
        // Another line break may follow the blanks: they belong to the piece of the line breaks then.
        let after_blanks = blanks.wrapping_add(blanks_after_break) & !blanks;
        if after_blanks & line_breaks != 0 {
            certain &= below(blanks_after_break);
        }
        // Whitespace may continue after the block.
        let open = (whitespace << ((WIDTH as u32 - length) % WIDTH as u32)).leading_ones();
        if open != 0 {
            certain &= up_to(1u64.wrapping_shl(length.wrapping_sub(open)));
        }
        if rules.cased {
            // A slash after the line breaks of symbols belongs to their piece, unlike other symbols.
            let slashes = slashes & after_attached;
            if slashes != 0 {
                certain &= below(slashes);
            }
        }
        let apostrophes = match rules.contractions {
            Contractions::None => 0,
            Contractions::Pieces => apostrophes & (starts | 1),
            Contractions::Suffixes => apostrophes & letters << 1,
        };
        Starts { starts, apostrophes: apostrophes & certain, certain }
    }
}

/// The words that begin at other letters than ASCII, where digits are isolated: isolated letters are separated from others. Only an ASCII
/// symbol belongs to the word after it, and only with ASCII letters.
#[inline(always)]
fn isolated_words(letters: u64, symbols: u64, other_symbols: u64, non_ascii: u64, isolated: u64) -> u64 {
    let after_isolated = isolated & !(isolated << 1) | letters & !isolated & isolated << 1;
    let after_symbols = letters & (non_ascii & symbols << 1 | (non_ascii & symbols) << 1);
    // ASCII letters after a symbol that belongs to them: the addition carries over all of them to the byte after them.
    let ascii_letters = letters & !non_ascii;
    let prefixed = ascii_letters & (symbols & !other_symbols & !non_ascii) << 1;
    let after_prefixed = ascii_letters.wrapping_add(prefixed) & letters & non_ascii;
    after_isolated | after_symbols | after_prefixed
}

/// The first digit of each run, and every third after it.
#[inline(always)]
fn every_third(digits: u64) -> u64 {
    let fourth = digits & digits << 1 & digits << 2 & digits << 3;
    let mut starts = digits & !(digits << 1);
    let mut next = starts << 3 & fourth;
    while next != 0 {
        starts |= next;
        next = next << 3 & fourth;
    }
    starts
}

/// The bits below the lowest one of a mask that is not 0.
#[inline(always)]
fn below(mask: u64) -> u64 {
    (mask & mask.wrapping_neg()).wrapping_sub(1)
}

/// The same and the lowest one.
#[inline(always)]
fn up_to(mask: u64) -> u64 {
    mask ^ mask.wrapping_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_classified_at_every_position() {
        for byte in 0..=255 {
            for position in 0..WIDTH {
                let mut bytes = [b'x'; WIDTH];
                bytes[position] = byte;
                let expected = Block::byte_by_byte(&bytes);
                assert_eq!(Block::of(&bytes), expected, "{byte} at {position}");
                #[cfg(target_arch = "x86_64")]
                if has_avx512() {
                    // SAFETY: the processor has these instructions.
                    assert_eq!(unsafe { Block::of_avx512(&bytes) }, expected, "{byte} at {position}");
                }
            }
        }
    }

    #[test]
    fn pieces_begin_where_they_should() {
        let starts_by = |rules: Rules, text: &str| {
            let mut bytes = [b'x'; WIDTH];
            bytes[..text.len()].copy_from_slice(text.as_bytes());
            let starts = Block::of(&bytes)
                .starts(&bytes, rules, CharTable::get(rules))
                .with_contractions(&bytes, 0, rules);
            (0..WIDTH).filter(|position| starts >> position & 1 != 0).collect::<Vec<_>>()
        };
        let starts = |text: &str| starts_by(Rules::cl100k(3), text);
        let cased = |text: &str| starts_by(Rules::O200K, text);
        assert_eq!(starts("one two  (three(four.\n\n  12345 ab"), [3, 7, 8, 10, 15, 20, 23, 24, 25, 28, 30]);
        assert_eq!(starts("he can't'vex go"), [2, 6, 8, 11, 12]);
        assert_eq!(cased("he can't'vex go"), [2, 8, 12]);
        assert_eq!(cased("isHTTPServer we'lL'd'Re"), [2, 12, 18, 23]);
        // A slash after a line break may belong to the symbols before it.
        assert_eq!(cased("a();\n/ b"), [1]);
        assert_eq!(starts("a();\n/ b"), [1, 5, 6]);
        // The run of blanks ends with a line break.
        assert_eq!(starts("a b\n  \n  c"), [1, 3]);
        assert_eq!(starts("one tw\u{f6} three"), [3, 8]);
        // Numbers and whitespace that are not ASCII are unknown.
        assert_eq!(starts("one two\u{a0}three four"), [3]);
        // A single symbol belongs to the word after it.
        assert_eq!(starts("a «b» c«« d —e"), [1, 4, 5, 7, 9, 13, 15, 19]);
        assert_eq!(cased("éÉa ßÀ"), [2, 5, 8]);
    }

    #[test]
    fn isolated_letters_are_separated() {
        let rules = Rules::of_expressions(&[
            super::super::DEEPSEEK_NUMBERS,
            super::super::DEEPSEEK_HAN,
            super::super::DEEPSEEK,
        ])
        .unwrap();
        let starts = |text: &str| {
            let mut bytes = [b'x'; WIDTH];
            bytes[..text.len()].copy_from_slice(text.as_bytes());
            let starts = Block::of(&bytes).starts(&bytes, rules, CharTable::get(rules));
            let starts = starts.with_contractions(&bytes, 0, rules);
            (0..WIDTH).filter(|position| starts >> position & 1 != 0).collect::<Vec<_>>()
        };
        assert_eq!(starts("a漢字b 漢  漢"), [1, 7, 8, 9, 12, 14, 17]);
        // Only an ASCII symbol belongs to the word after it, and only with ASCII letters.
        assert_eq!(starts("a (b (é (bé «b"), [1, 3, 4, 6, 8, 10, 13, 16]);
        assert_eq!(starts("a(b(é(bé«b"), [1, 3, 4, 6, 8, 10, 12]);
    }
}
