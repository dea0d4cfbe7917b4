//! Finds the pieces of the `cl100k` expressions in 64 bytes of ASCII at a time: the classes of all bytes become bit masks, and bit
//! operations on them set one bit for each position at which a piece begins. No branch depends on a single piece.
//!
//! A block begins at a piece. Positions whose meaning depends on bytes after the block, on characters that are not ASCII or on
//! contractions are left to the splitter of single pieces.

use super::PieceEnd;

/// Bytes of a block.
const WIDTH: usize = 64;

/// The classes of the bytes of a block, one bit for each.
#[derive(Debug, PartialEq, Eq)]
struct Block {
    letters: u64,
    digits: u64,
    /// Whitespace, line breaks included.
    whitespace: u64,
    line_breaks: u64,
    /// The space character.
    spaces: u64,
    apostrophes: u64,
    non_ascii: u64,
}

/// Calls `each` with the start and end of every piece between two positions at which pieces begin. A piece has up to `digits` digits, 1
/// or 3; `single` finds the same pieces one by one.
#[inline(always)]
pub fn walk(
    text: &[u8],
    mut start: usize,
    last: usize,
    digits: usize,
    single: &impl PieceEnd,
    each: &mut impl FnMut(usize, usize),
) {
    while start < last {
        let block = start;
        let mut starts = Block::at(text, block).map_or(0, |block| block.starts(digits));
        if last - block < WIDTH - 1 {
            starts &= (2 << (last - block)) - 1;
        }
        if starts == 0 {
            let end = single.end(start);
            debug_assert!(end > start && end <= last);
            each(start, end);
            start = end;
        }
        while starts != 0 {
            let end = block + starts.trailing_zeros() as usize;
            each(start, end);
            start = end;
            starts &= starts - 1;
        }
    }
}

impl Block {
    /// The block at a position; `None` if fewer than [`WIDTH`] bytes are left or its first characters are not ASCII.
    #[inline(always)]
    fn at(text: &[u8], position: usize) -> Option<Block> {
        let bytes: &[u8; WIDTH] = text.get(position..position + WIDTH)?.try_into().ok()?;
        if (bytes[0] | bytes[1]) >= 0x80 { None } else { Some(Block::of(bytes)) }
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
                block.digits |= mask(within(text, b'0', 10));
                block.whitespace |= mask(_mm_or_si128(within(text, b'\t', 5), space));
                block.line_breaks |= mask(_mm_or_si128(equal(b'\n'), equal(b'\r')));
                block.spaces |= mask(space);
                block.apostrophes |= mask(equal(b'\''));
                block.non_ascii |= mask(text);
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
        digits: 0,
        whitespace: 0,
        line_breaks: 0,
        spaces: 0,
        apostrophes: 0,
        non_ascii: 0,
    };

    /// The definition, for other architectures and for tests.
    #[cfg(any(test, not(target_arch = "x86_64")))]
    fn byte_by_byte(bytes: &[u8; WIDTH]) -> Block {
        let mut block = Block::EMPTY;
        for (position, &byte) in bytes.iter().enumerate() {
            let bit = |is: bool| u64::from(is) << position;
            block.letters |= bit(byte.is_ascii_alphabetic());
            block.digits |= bit(byte.is_ascii_digit());
            block.whitespace |= bit(matches!(byte, b'\t'..=b'\r' | b' '));
            block.line_breaks |= bit(matches!(byte, b'\n' | b'\r'));
            block.spaces |= bit(byte == b' ');
            block.apostrophes |= bit(byte == b'\'');
            block.non_ascii |= bit(byte >= 0x80);
        }
        block
    }

    /// The positions after the first at which pieces certainly begin, up to some position: all of them before it are included.
    #[inline(always)]
    fn starts(&self, max_digits: usize) -> u64 {
        let &Block { letters, digits, whitespace, line_breaks, spaces, apostrophes, non_ascii } = self;
        // What begins after this many bytes is unknown.
        let length = non_ascii.trailing_zeros();
        let ascii = u64::MAX.checked_shr(WIDTH as u32 - length).unwrap_or(0);
        let (letters, digits, whitespace) = (letters & ascii, digits & ascii, whitespace & ascii);
        let (line_breaks, spaces) = (line_breaks & ascii, spaces & ascii);
        let symbols = ascii & !(letters | digits | whitespace);
        let blanks = whitespace & !line_breaks;

        // Line breaks after symbols belong to their piece; the addition carries over all of them to the byte after them.
        let attached = line_breaks & symbols << 1;
        let after_attached = line_breaks.wrapping_add(attached) & !line_breaks;
        let runs = whitespace & !(whitespace << 1) & !attached;
        // The last blank before another character begins a piece: it belongs to a word or to symbols, or it stands alone.
        let last_blanks = blanks & !(whitespace >> 1) & ascii >> 1;
        // After the last line break of a run.
        let blanks_after_break = blanks & line_breaks << 1;
        // A space belongs to the symbols after it.
        let symbol_runs = symbols & !(symbols << 1) & !(spaces << 1);
        // A single symbol without a space belongs to the word after it. All other symbols do not.
        let other_symbols = symbols & (symbols << 1 | spaces << 1);
        let words = letters & !(letters << 1) & (line_breaks | digits | other_symbols) << 1;
        let numbers = if max_digits == 1 { digits } else { every_third(digits) };
        let starts = runs | last_blanks | blanks_after_break | after_attached | symbol_runs | words | numbers;

        let mut certain = ascii;
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
        let contractions = apostrophes & (starts | 1) & letters >> 1;
        if contractions != 0 {
            certain &= up_to(contractions);
        }
        starts & certain & !1
    }
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
                assert_eq!(Block::of(&bytes), Block::byte_by_byte(&bytes), "{byte} at {position}");
            }
        }
    }

    #[test]
    fn pieces_begin_where_they_should() {
        let starts = |text: &str| {
            let mut bytes = [b'x'; WIDTH];
            bytes[..text.len()].copy_from_slice(text.as_bytes());
            let starts = Block::of(&bytes).starts(3);
            (0..WIDTH).filter(|position| starts >> position & 1 != 0).collect::<Vec<_>>()
        };
        assert_eq!(starts("one two  (three(four.\n\n  12345 ab"), [3, 7, 8, 10, 15, 20, 23, 24, 25, 28, 30]);
        // What follows an apostrophe may be a contraction.
        assert_eq!(starts("he can't go"), [2, 6]);
        // The run of blanks ends with a line break.
        assert_eq!(starts("a b\n  \n  c"), [1, 3]);
        assert_eq!(starts("one tw\u{f6} three"), [3]);
    }
}
