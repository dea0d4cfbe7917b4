//! Compares a candidate that has its own Unicode tables with the definition on every code point, in the contexts that splitters and
//! normalizers distinguish.
//!
//! Two libraries built for different Unicode versions disagree on a few hundred characters, which samples of text do not contain.
//! Unassigned code points of the assigned planes are tested too, because another Unicode version may assign them.

use std::fmt::Write as _;
use std::sync::OnceLock;

use lz_core::{KernelError, Reason};
use lz_ops::tokenizer::Tokenizer;

use crate::coder::{Coder, Encoded, encode_by_definition, not_equal};
use crate::failure::{Failure, next_step};
use crate::vocabulary::hash;

/// Code points per text. A text whose tokens differ is encoded again one code point at a time to find the first difference.
const PER_TEXT: usize = 128;

/// Blocks with many general categories. They are tested first, because libraries mostly differ there.
const VARIED: [(u32, u32); 9] = [
    (0, 0x33ff),
    (0x4dc0, 0x4dff),
    (0xa490, 0xabff),
    (0xd7a4, 0xdfff),
    (0xf900, 0x11fff),
    (0x14400, 0x167ff),
    (0x16a40, 0x16fff),
    (0x18e00, 0x1ffff),
    (0xe0000, 0xe0fff),
];

/// Large blocks with one general category: ideographs, Hangul, private use, and scripts with thousands of letters. They are tested in
/// two contexts, which are enough to distinguish letters, numbers, marks, spaces and punctuation.
const UNIFORM: [(u32, u32); 9] = [
    (0x3400, 0x4dbf),
    (0x4e00, 0x9fff),
    (0xa000, 0xa48f),
    (0xac00, 0xd7a3),
    (0xe000, 0xf8ff),
    (0x12000, 0x143ff),
    (0x16800, 0x16a3f),
    (0x17000, 0x18dff),
    (0x20000, 0x3ffff),
];

/// Unassigned or private use: every 256th code point is tested.
const SAMPLED: (u32, u32) = (0xe1000, 0x10_ffff);

/// Characters of every category that recent Unicode versions added. Their neighborhoods are tested first: a library with other tables
/// differs there and is rejected after a hundredth of the work.
const RECENT: [u32; 14] = [
    0x0897, 0x1acf, 0x1aeb, 0x1b4e, 0x1c89, 0xa7cb, 0x10d40, 0x10ed0, 0x11b60, 0x11bc0, 0x11de0, 0x16ea0,
    0x1e6c0, 0x1fae9,
];

/// The code points of one text.
#[derive(Clone, Copy)]
struct Run {
    first: u32,
    last: u32,
    step: usize,
    varied: bool,
}

impl Run {
    /// All texts, in test order.
    fn all() -> Vec<Run> {
        let mut all = Vec::new();
        let mut add = |(first, last): (u32, u32), step: usize, varied: bool| {
            let starts = (first..=last).step_by(PER_TEXT * step);
            all.extend(starts.map(|first| Run { first, last, step, varied }));
        };
        VARIED.into_iter().for_each(|range| add(range, 1, true));
        UNIFORM.into_iter().for_each(|range| add(range, 1, false));
        add(SAMPLED, 256, false);
        all
    }

    /// The texts that are tested before all others.
    fn recent() -> impl Iterator<Item = Run> {
        let around = |point: u32| Run { first: point - 16, last: point + 31, step: 1, varied: true };
        RECENT.into_iter().map(around)
    }

    fn points(self) -> impl Iterator<Item = char> {
        (self.first..=self.last).step_by(self.step).take(PER_TEXT).filter_map(char::from_u32)
    }

    fn text(self) -> String {
        let mut text = String::new();
        self.points().for_each(|point| self.add(point, &mut text));
        text
    }

    /// Appends a code point in its contexts: alone, between letters of each case, digits, punctuation and spaces, at the start and the
    /// end of words and lines, after an apostrophe, repeated, and with a combining mark.
    fn add(self, c: char, text: &mut String) {
        let written = if self.varied {
            write!(
                text,
                " {c} a{c}b A{c}b a{c}B 1{c}2 .{c}! '{c} x'{c}s {c}{c}{c}{c}  {c}\u{301}b\n{c}\n\n{c}  "
            )
        } else {
            write!(text, "a{c}1{c} ")
        };
        // Writing to a string cannot fail.
        debug_assert!(written.is_ok());
    }
}

/// Hashes of the ids that the definition returns for each text, computed once per tokenizer.
#[derive(Default)]
pub struct ExpectedHashes(OnceLock<Vec<OnceLock<Option<u64>>>>);

/// Compares a candidate with the definition on the neighborhoods of recently assigned characters. Returns the reason of the first
/// difference.
pub fn check_recent<C: Coder>(coder: &C, tokenizer: &Tokenizer) -> Result<(), Reason> {
    for run in Run::recent() {
        let text = run.text();
        let expected = ids(|out| encode_by_definition(tokenizer, &text, false, out));
        let found = ids(|out| coder.encode(tokenizer, &[&text], false, out));
        if let (Ok(expected), Ok(found)) = (expected, found)
            && expected != found
        {
            return Err(first_difference(coder, tokenizer, run));
        }
    }
    Ok(())
}

/// Compares a candidate with the definition on all texts, in parallel. Returns the reason of the first difference.
pub fn check_all<C: Coder>(coder: &C, tokenizer: &Tokenizer, hashes: &ExpectedHashes) -> Result<(), Failure> {
    let runs = Run::all();
    let hashes = hashes.0.get_or_init(|| runs.iter().map(|_| OnceLock::new()).collect());
    let first: OnceLock<Failure> = OnceLock::new();
    lz_pool::for_each(runs.len(), &|number: usize| {
        if first.get().is_some() {
            return;
        }
        if let Err(stopped) = next_step(tokenizer) {
            let _ = first.set(stopped);
            return;
        }
        let text = runs[number].text();
        let expected = *hashes[number].get_or_init(|| {
            let expected = ids(|out| encode_by_definition(tokenizer, &text, false, out)).ok()?;
            Some(digest(&expected))
        });
        // Texts on which the definition itself fails are skipped.
        let Some(expected) = expected else { return };
        let found = ids(|out| coder.encode(tokenizer, &[&text], false, out));
        let reason = match found {
            Ok(found) if digest(&found) == expected => return,
            Ok(_) => first_difference(coder, tokenizer, runs[number]),
            Err(error) => error.reason,
        };
        // Another thread may have set a reason at the same time.
        let _ = first.set(reason.into());
    });
    first.into_inner().map_or(Ok(()), Err)
}

/// Returns a reason that names the first code point of a text on which a candidate differs.
fn first_difference<C: Coder>(coder: &C, tokenizer: &Tokenizer, run: Run) -> Reason {
    for point in run.points() {
        let mut text = String::new();
        run.add(point, &mut text);
        let expected = ids(|out| encode_by_definition(tokenizer, &text, false, out));
        let found = ids(|out| coder.encode(tokenizer, &[&text], false, out));
        if let (Ok(expected), Ok(found)) = (expected, found)
            && expected != found
        {
            let name = format!("text with U+{:04X}", point as u32);
            return not_equal(
                &name,
                &format!("{} tokens", found.len()),
                &format!("{} tokens", expected.len()),
            );
        }
    }
    not_equal("several code points in sequence", "other tokens", "the definition's tokens")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_point_of_the_assigned_planes_is_tested_once() {
        let mut tested: Vec<u32> = Run::all().into_iter().flat_map(Run::points).map(u32::from).collect();
        tested.sort_unstable();
        let expected: Vec<u32> = (0..=0x3ffff)
            .chain(0xe0000..=0xe0fff)
            .chain((0xe1000..=0x10_ffff).step_by(256))
            .filter(|point| char::from_u32(*point).is_some())
            .collect();
        assert!(tested == expected);
    }
}
