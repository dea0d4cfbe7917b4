//! Mutations for the short form: a fixed sequence for each target. The long form has those of libFuzzer.

use lz_conformance::random::Random;

/// Characters and words that formats give a meaning.
const PIECES: &[&[u8]] = &[
    b"{",
    b"}",
    b"[",
    b"]",
    b"(",
    b")",
    b":",
    b": ",
    b",",
    b"\"",
    b"'",
    b"-",
    b"#",
    b"\n",
    b"\n  ",
    b"\t",
    b"\0",
    b"=",
    b"*",
    b"%",
    b"0",
    b"1",
    b"-1",
    b"2147483648",
    b"9223372036854775807",
    b"18446744073709551615",
    b"1e999",
    b"nan",
    b"null",
    b"true",
    b"~",
    b"\xff\xff\xff\xff",
    b"\x80",
    b"\xc3\xa9",
    b"\xef\xbb\xbf",
    b"\xe2\x80\xa8",
    b"&a ",
    b"*a",
    b"!t ",
    b"---\n",
    b"\r\n",
];

/// A mutation of one of the inputs: its bytes changed, exchanged with those of another, removed or repeated, a few times.
pub fn mutate(inputs: &[(String, Vec<u8>)], random: &mut Random, max_bytes: usize) -> Vec<u8> {
    let mut bytes = random.pick(inputs).map(|(_, bytes)| bytes.clone()).unwrap_or_default();
    for _ in 0..=random.below(3) {
        edit(&mut bytes, inputs, random);
    }
    bytes.truncate(max_bytes);
    bytes
}

fn edit(bytes: &mut Vec<u8>, inputs: &[(String, Vec<u8>)], random: &mut Random) {
    let at = random.below(bytes.len() + 1);
    let longest = if random.one_in(4) { usize::MAX } else { 12 };
    let length = random.below(1 + (bytes.len() - at).min(longest));
    // Most edits keep the form of a text, so that they reach what is checked after parsing.
    match random.below(16) {
        0 => bytes.truncate(at),
        1 => drop(bytes.drain(at..at + length)),
        2 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << random.below(8);
            }
        }
        3 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = random.bits() as u8;
            }
        }
        4 => {
            let piece = bytes[at..at + length].to_vec();
            let to = random.below(bytes.len() + 1);
            bytes.splice(to..to, piece);
        }
        5 => {
            let Some((_, other)) = random.pick(inputs) else { return };
            let from = random.below(other.len() + 1);
            let piece = other[from..from + random.below(other.len() - from + 1)].to_vec();
            bytes.splice(at..at + length, piece);
        }
        6 | 7 => {
            let piece = random.pick(PIECES).copied().unwrap_or_default();
            bytes.splice(at..at + length, piece.iter().copied());
        }
        8 | 9 => edit_line(bytes, at, random),
        10 | 11 => exchange_words(bytes, at, random),
        _ => edit_number(bytes, at, random),
    }
}

/// Removes, repeats or moves a line.
fn edit_line(bytes: &mut Vec<u8>, at: usize, random: &mut Random) {
    let start = bytes[..at].iter().rposition(|byte| *byte == b'\n').map_or(0, |line| line + 1);
    let end = bytes[at..].iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |line| at + line + 1);
    let line = bytes[start..end].to_vec();
    if random.one_in(2) {
        bytes.drain(start..end);
    }
    if random.one_in(2) {
        bytes.splice(start..start, line);
    }
}

/// Copies a word over the next one at a random position.
fn exchange_words(bytes: &mut Vec<u8>, at: usize, random: &mut Random) {
    let word = |bytes: &[u8], from: usize| {
        let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_' || *byte == b'.';
        let start = from + bytes.get(from..)?.iter().position(is_word)?;
        let length = bytes[start..].iter().take_while(|byte| is_word(byte)).count();
        Some(start..start + length)
    };
    let to = random.below(bytes.len() + 1);
    if let (Some(from), Some(to)) = (word(bytes, at), word(bytes, to)) {
        let copy = bytes[from].to_vec();
        bytes.splice(to, copy);
    }
}

/// Changes the next digit.
fn edit_number(bytes: &mut [u8], at: usize, random: &mut Random) {
    if let Some(digit) = bytes[at..].iter_mut().find(|byte| byte.is_ascii_digit()) {
        *digit = b'0' + random.below(10) as u8;
    }
}
