//! Every code point in the contexts that splitters and normalizers see, for candidates that bring Unicode tables of their own.
//!
//! Two libraries that are right by different versions of Unicode give other tokens for a few hundred characters, which no sample of
//! texts finds. All code points of the assigned planes are tried, the unassigned ones too: another version assigns some of them.

use std::fmt::Write as _;
use std::sync::OnceLock;

use lz_core::{KernelError, Reason};
use lz_ops::tokenizer::Tokenizer;

use crate::coder::{Coder, Encoded, encode_by_definition};
use crate::native::vocabulary::hash;
use crate::proof::different;

/// Code points of a text. A text is encoded at once; a text that differs is tried again by single code points.
const PER_TEXT: u32 = 128;

/// Large blocks of characters of one kind: ideographs, Hangul, and scripts with thousands of letters. They are tried in two contexts,
/// which tell letters, numbers, marks, spaces and punctuation apart.
const UNIFORM: [(u32, u32); 10] = [
    (0x3400, 0x4dbf),
    (0x4e00, 0x9fff),
    (0xa000, 0xa48f),
    (0xac00, 0xd7a3),
    (0xe000, 0xf8ff),
    (0x12000, 0x143ff),
    (0x16800, 0x16a3f),
    (0x17000, 0x18dff),
    (0x20000, 0x3ffff),
    (0xe1000, 0x10_ffff),
];

/// Blocks in the order in which they are tried. The last one is tried in steps of 256: nothing in it is assigned, or all is private.
const BLOCKS: [(u32, u32, u32); 3] = [(0, 0x3ffff, 1), (0xe0000, 0xe0fff, 1), (0xe1000, 0x10_ffff, 256)];

/// The definition's answers for one tokenizer, as hashes of ids.
#[derive(Default)]
pub struct Answers(OnceLock<Vec<OnceLock<Option<u64>>>>);

/// The texts, in order.
fn starts() -> impl Iterator<Item = (u32, u32, u32)> {
    BLOCKS.into_iter().flat_map(|(first, last, step)| {
        (first..=last).step_by((PER_TEXT * step) as usize).map(move |start| (start, last, step))
    })
}

/// One text, from its first code point.
fn text((start, last, step): (u32, u32, u32)) -> String {
    let mut text = String::new();
    let points = (start..=last).step_by(step as usize).take(PER_TEXT as usize);
    points.filter_map(char::from_u32).for_each(|point| contexts(point, &mut text));
    text
}

/// Adds a code point in its contexts: alone, between letters of each case, digits, punctuation and spaces, at the start and the end of
/// words and lines, after an apostrophe, repeated, and with a combining mark.
fn contexts(c: char, text: &mut String) {
    let uniform = UNIFORM.iter().any(|(first, last)| (*first..=*last).contains(&(c as u32)));
    let written = if uniform {
        write!(text, "a{c}1{c} ")
    } else {
        write!(text, " {c} a{c}b A{c}b a{c}B 1{c}2 .{c}! '{c} x'{c}s {c}{c}{c}{c}  {c}\u{301}b\n{c}\n\n{c}  ")
    };
    // Writing to a string cannot fail.
    debug_assert!(written.is_ok());
}

/// Tries a candidate on all texts; the reason if it differs from the definition on any. The work is shared by all cores.
pub fn try_all<C: Coder>(coder: &C, tokenizer: &Tokenizer, answers: &Answers) -> Result<(), Reason> {
    let texts: Vec<(u32, u32, u32)> = starts().collect();
    let answers = answers.0.get_or_init(|| texts.iter().map(|_| OnceLock::new()).collect());
    let first: OnceLock<Reason> = OnceLock::new();
    lz_pool::for_each(texts.len(), &|number: usize| {
        if first.get().is_some() {
            return;
        }
        let text = text(texts[number]);
        let wanted = *answers[number].get_or_init(|| {
            let wanted = ids(|out| encode_by_definition(tokenizer, &text, false, out)).ok()?;
            Some(digest(&wanted))
        });
        // A text on which the definition itself fails proves nothing.
        let Some(wanted) = wanted else { return };
        let found = ids(|out| coder.encode(tokenizer, &[&text], false, out));
        let reason = match found {
            Ok(found) if digest(&found) == wanted => return,
            Ok(_) => culprit(coder, tokenizer, texts[number]),
            Err(error) => error.reason,
        };
        // Another thread may have found a difference at the same time.
        let _ = first.set(reason);
    });
    first.into_inner().map_or(Ok(()), Err)
}

/// Names the first code point of a text on which a candidate differs.
fn culprit<C: Coder>(coder: &C, tokenizer: &Tokenizer, (start, last, step): (u32, u32, u32)) -> Reason {
    let points = (start..=last).step_by(step as usize).take(PER_TEXT as usize);
    for point in points.filter_map(char::from_u32) {
        let mut text = String::new();
        contexts(point, &mut text);
        let wanted = ids(|out| encode_by_definition(tokenizer, &text, false, out));
        let found = ids(|out| coder.encode(tokenizer, &[&text], false, out));
        if let (Ok(wanted), Ok(found)) = (wanted, found)
            && wanted != found
        {
            let name = format!("text with U+{:04X}", point as u32);
            return different(&name, &format!("{} tokens", found.len()), &format!("{} tokens", wanted.len()));
        }
    }
    different("code points together", "other tokens", "the definition's tokens")
}

fn ids(encode: impl FnOnce(&mut Encoded) -> Result<(), KernelError>) -> Result<Vec<i32>, KernelError> {
    let mut encoded = Encoded::default();
    encode(&mut encoded)?;
    Ok(encoded.ids)
}

fn digest(ids: &[i32]) -> u64 {
    let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    hash(&bytes)
}
