//! Normalisers, learnt from the definition's own: what becomes of a character where nothing around it matters, and the definition
//! itself for the rest.

use std::sync::OnceLock;

use lz_core::{Reason, ReasonCode};
use regex_syntax::hir::{Class, HirKind};
use rustc_hash::FxHashMap;
use serde_json::Value;
use tokenizers::{NormalizedString, Normalizer as _, NormalizerWrapper};
use unicode_normalization_alignments::UnicodeNormalization;
use unicode_normalization_alignments::char::canonical_combining_class;

use crate::definition::{declined, flag, kind, shown};

/// The normaliser of one tokenizer.
pub struct Normal {
    /// What works on a character, or on few neighbours, at a time.
    local: Option<NormalizerWrapper>,
    /// Texts that hold one of these are not understood here.
    rare: Vec<String>,
    /// What is done to the whole after that.
    steps: Vec<Step>,
    spaces: Spaces,
    /// What each ASCII character becomes, if that is one byte.
    ascii: [Option<u8>; 128],
    pages: Box<[OnceLock<Box<[u64; 256]>>]>,
}

/// What spaces mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spaces {
    /// Themselves.
    Plain,
    /// The model writes them as U+2581; here they stay what they are, so that words stay short.
    Written,
    /// The same, and all white space is alike.
    Alike,
}

/// Something that is done to a whole text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    StripLeft,
    StripRight,
    /// Spaces at both ends are taken away.
    Trim,
    /// Several spaces become one.
    Collapse,
    /// A space is put before it.
    Prepend,
}

/// A text that is being made, and what is remembered of others.
#[derive(Default)]
pub struct Draft {
    /// It.
    pub text: Vec<u8>,
    /// Where each of its bytes came from, if that is asked for.
    pub places: Option<Vec<(u32, u32)>>,
    known: FxHashMap<Box<str>, Box<str>>,
}

/// Characters whose neighbours matter, remembered up to so many.
const MOST_KNOWN: usize = 1 << 14;

// What becomes of a character: up to seven bytes and how many there are, or one of these.
const LONG: u64 = 0x80 << 56;
/// Its neighbours matter.
const JOINED: u64 = 0x81 << 56;
/// It is not understood here.
const ODD: u64 = 0x82 << 56;
/// How the model writes spaces.
const MARK: char = '\u{2581}';

impl Normal {
    /// From a definition's normaliser, or why it is none that is understood.
    pub fn new(value: &Value, spaces: Spaces) -> Result<Normal, Reason> {
        let wrong = |part: &Value| {
            declined(ReasonCode::NormalizerMismatch, "a normaliser of characters", shown(part))
        };
        let single = std::slice::from_ref(value);
        let parts = match kind(value) {
            "none" if value.is_null() => &[],
            "Sequence" => value["normalizers"].as_array().map(Vec::as_slice).ok_or_else(|| wrong(value))?,
            _ => single,
        };
        let (mut rare, mut local, mut steps) = (Vec::new(), Vec::new(), Vec::new());
        for part in parts {
            let (pattern, content) = (&part["pattern"], part["content"].as_str());
            match kind(part) {
                "BertNormalizer" | "Lowercase" | "NFC" | "NFD" | "NFKC" | "NFKD" | "StripAccents" | "Nmt"
                | "Precompiled"
                    if steps.is_empty() =>
                {
                    local.push(part.clone());
                }
                "Strip" => {
                    steps.extend(flag(part, "strip_left", true).then_some(Step::StripLeft));
                    steps.extend(flag(part, "strip_right", true).then_some(Step::StripRight));
                }
                "Prepend" if spaces != Spaces::Plain && part["prepend"] == "\u{2581}" => {
                    steps.push(Step::Prepend)
                }
                "Replace" => match (pattern["String"].as_str(), pattern["Regex"].as_str(), content) {
                    // They are written so later anyway.
                    (Some(" "), _, Some("\u{2581}")) if spaces == Spaces::Written => {}
                    (_, Some(" {2,}"), Some(" " | "\u{2581}")) if spaces != Spaces::Plain => {
                        steps.push(Step::Collapse)
                    }
                    (_, Some("^ +| +$"), Some("")) if spaces != Spaces::Plain => steps.push(Step::Trim),
                    (Some(text), _, _) if local.is_empty() && steps.is_empty() && !text.is_empty() => {
                        rare.push(text.to_owned());
                    }
                    _ => return Err(wrong(part)),
                },
                _ => return Err(wrong(part)),
            }
        }
        let local = match local.is_empty() {
            true => None,
            false => {
                let whole = serde_json::json!({"type": "Sequence", "normalizers": local});
                Some(serde_json::from_value(whole).map_err(|_| wrong(value))?)
            }
        };
        let pages = (0..0x1100).map(|_| OnceLock::new()).collect();
        let mut made = Normal { local, rare, steps, spaces, ascii: [None; 128], pages };
        for byte in 0..128 {
            let becomes = made.becomes(char::from(byte));
            made.ascii[usize::from(byte)] = (becomes >> 56 == 1).then_some(becomes as u8);
        }
        Ok(made)
    }

    /// What the definition's normaliser makes of a text, steps left out.
    fn defined(&self, text: &str) -> Option<String> {
        let Some(local) = &self.local else { return Some(text.to_owned()) };
        let mut normalized = NormalizedString::from(text);
        local.normalize(&mut normalized).ok()?;
        Some(normalized.get().to_owned())
    }

    /// As words have it.
    fn spaced(&self, text: String) -> Option<String> {
        match self.spaces {
            Spaces::Plain => Some(text),
            _ if text.contains(MARK) => None,
            Spaces::Written => Some(text),
            Spaces::Alike => Some(text.replace(char::is_whitespace, " ")),
        }
    }

    #[inline]
    fn becomes(&self, character: char) -> u64 {
        let number = character as usize;
        let page = self.pages[number >> 8].get_or_init(|| self.learn(number >> 8));
        page[number & 255]
    }

    #[cold]
    fn learn(&self, page: usize) -> Box<[u64; 256]> {
        let mut entries = Box::new([ODD; 256]);
        for (number, entry) in (page as u32 * 256..).zip(entries.iter_mut()) {
            let Some(character) = char::from_u32(number) else { continue };
            let alone = character.to_string();
            *entry = match self.defined(&alone).and_then(|text| self.spaced(text)) {
                Some(_) if self.local.is_some() && !stands_alone(character) => JOINED,
                Some(text) if text.len() > 7 => LONG,
                Some(text) => packed(text.as_bytes()),
                None => ODD,
            };
        }
        entries
    }

    /// Whether some text needs more than this.
    pub fn understands(&self, text: &str) -> bool {
        self.rare.iter().all(|rare| !text.contains(rare.as_str()))
    }

    /// Adds what a text becomes; false if that is not understood, with something or nothing added. Steps are left out.
    pub fn append(&self, text: &str, draft: &mut Draft) -> bool {
        let bytes = text.as_bytes();
        if self.local.is_none() && self.spaces == Spaces::Written && draft.places.is_none() {
            draft.text.extend_from_slice(bytes);
            return !text.contains(MARK);
        }
        let mut place = 0;
        while place < bytes.len() {
            // The last character of the run may be joined with what follows.
            let run = bytes[place..].iter().take_while(|byte| byte.is_ascii() && **byte != b'\r').count();
            let certain = if place + run < bytes.len() { run.saturating_sub(1) } else { run };
            if certain > 0 {
                if !self.append_ascii(bytes, place, certain, draft) {
                    return false;
                }
                place += certain;
                continue;
            }
            let Some(character) = text[place..].chars().next() else { return true };
            let (becomes, end) = (self.becomes(character), place + character.len_utf8());
            let joined = becomes == JOINED
                || text[end..].chars().next().is_some_and(|next| self.becomes(next) == JOINED);
            if becomes == ODD {
                return false;
            } else if joined {
                let end = self.joined_end(text, place);
                if !self.append_joined(&text[place..end], draft) {
                    return false;
                }
                place = end;
            } else {
                if !self.append_one(character, becomes, place, draft) {
                    return false;
                }
                place = end;
            }
        }
        true
    }

    #[inline]
    fn append_ascii(&self, bytes: &[u8], place: usize, count: usize, draft: &mut Draft) -> bool {
        for (number, part) in bytes[place..place + count].chunks(16).enumerate() {
            let (mut made, mut all) = ([0; 16], draft.places.is_none());
            for (to, byte) in made.iter_mut().zip(part) {
                let becomes = self.ascii[usize::from(*byte & 127)];
                all &= becomes.is_some();
                *to = becomes.unwrap_or(0);
            }
            if all {
                draft.text.extend_from_slice(&made[..part.len()]);
                continue;
            }
            for (place, byte) in (place + number * 16..).zip(part) {
                let character = char::from(*byte);
                if !self.append_one(character, self.becomes(character), place, draft) {
                    return false;
                }
            }
        }
        true
    }

    /// Adds what a character becomes that stands alone.
    fn append_one(&self, character: char, becomes: u64, place: usize, draft: &mut Draft) -> bool {
        let before = draft.text.len();
        if becomes == LONG {
            let Some(text) = self.defined(&character.to_string()).and_then(|text| self.spaced(text)) else {
                return false;
            };
            draft.text.extend_from_slice(text.as_bytes());
        } else {
            draft.text.extend_from_slice(&becomes.to_le_bytes()[..(becomes >> 56) as usize]);
        }
        if let Some(places) = &mut draft.places {
            let range = (place as u32, (place + character.len_utf8()) as u32);
            // Where a character vanishes, some normalisers say that its neighbours came from elsewhere.
            if draft.text.len() == before && self.spaces != Spaces::Plain {
                return false;
            }
            places.resize(draft.text.len(), range);
        }
        true
    }

    /// Where characters end that may be joined with each other: between two that stand alone.
    fn joined_end(&self, text: &str, start: usize) -> usize {
        let mut alone = false;
        for (place, character) in text[start..].char_indices() {
            let joined = self.becomes(character) == JOINED;
            if alone && !joined && place > 0 {
                return start + place;
            }
            // The first one is there because of what follows.
            alone = !joined && place > 0;
        }
        text.len()
    }

    /// Adds what characters become whose neighbours matter.
    fn append_joined(&self, text: &str, draft: &mut Draft) -> bool {
        if draft.places.is_some() {
            return false;
        }
        if let Some(known) = draft.known.get(text) {
            draft.text.extend_from_slice(known.as_bytes());
            return true;
        }
        if text.contains(MARK) && self.spaces != Spaces::Plain {
            return false;
        }
        let Some(made) = self.defined(text).and_then(|made| self.spaced(made)) else { return false };
        draft.text.extend_from_slice(made.as_bytes());
        if draft.known.len() < MOST_KNOWN && text.len() < 64 {
            draft.known.insert(text.into(), made.into());
        }
        true
    }

    /// Takes the steps that concern the whole text, which begins at `from`. Returns where it begins then.
    pub fn finish(&self, from: usize, draft: &mut Draft) -> usize {
        let mut from = from;
        for step in &self.steps {
            match step {
                Step::StripLeft => {
                    let text = String::from_utf8_lossy(&draft.text[from..]);
                    from += text.len() - text.trim_start().len();
                }
                Step::StripRight => {
                    let text = String::from_utf8_lossy(&draft.text[from..]);
                    let kept = from + text.trim_end().len();
                    draft.truncate(kept);
                }
                Step::Trim => {
                    let spaces = draft.text[from..].iter().take_while(|byte| **byte == b' ').count();
                    from += spaces;
                    let kept = draft.text[from..].iter().rposition(|byte| *byte != b' ');
                    draft.truncate(kept.map_or(from, |last| from + last + 1));
                }
                Step::Collapse => draft.collapse(from),
                Step::Prepend => from = draft.prepend(from),
            }
        }
        if self.spaces == Spaces::Alike {
            draft.collapse(from);
            if draft.text[from..].first() == Some(&b' ') {
                from += 1;
            }
            if draft.text[from..].last() == Some(&b' ') {
                draft.truncate(draft.text.len() - 1);
            }
            // A word's space is one that is put before it.
            if let Some(places) = &mut draft.places {
                for place in (from..places.len()).filter(|place| draft.text[*place] == b' ') {
                    places[place] = places[place + 1];
                }
            }
        }
        from
    }
}

impl Draft {
    fn truncate(&mut self, length: usize) {
        self.text.truncate(length);
        if let Some(places) = &mut self.places {
            places.truncate(length);
        }
    }

    /// Of several spaces the last one is kept.
    fn collapse(&mut self, from: usize) {
        let mut to = from;
        for place in from..self.text.len() {
            if self.text[place] == b' ' && self.text.get(place + 1) == Some(&b' ') {
                continue;
            }
            self.text[to] = self.text[place];
            if let Some(places) = &mut self.places {
                places[to] = places[place];
            }
            to += 1;
        }
        self.truncate(to);
    }

    /// Puts a space before what begins at `from`, where one byte was left for it. Nothing stays nothing.
    pub fn prepend(&mut self, from: usize) -> usize {
        if from == self.text.len() || from == 0 {
            return from;
        }
        self.text[from - 1] = b' ';
        if let Some(places) = &mut self.places {
            places[from - 1] = places[from];
        }
        from - 1
    }
}

fn packed(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word) | (bytes.len() as u64) << 56
}

/// Whether nothing becomes of two such characters side by side that does not become of each alone: neither combines with the other, and
/// a grapheme ends between them.
fn stands_alone(character: char) -> bool {
    static ALONE: OnceLock<Box<[bool]>> = OnceLock::new();
    let alone = ALONE.get_or_init(|| {
        let mut table = vec![false; 0x11_0000].into_boxed_slice();
        let pattern = r"[[\p{L}\p{N}\p{P}\p{S}\p{Z}]--[\p{GCB=CN}\p{GCB=EX}\p{GCB=PP}\p{GCB=SM}\p{GCB=L}\p{GCB=V}\p{GCB=T}\p{GCB=RI}\p{GCB=ZWJ}]]";
        let parsed = regex_syntax::parse(pattern).map(regex_syntax::hir::Hir::into_kind);
        let Ok(HirKind::Class(Class::Unicode(ranges))) = parsed else {
            unreachable!("it is a class");
        };
        for range in ranges.ranges() {
            table[range.start() as usize..=range.end() as usize].fill(true);
        }
        table
    });
    let is = |character: char| alone[character as usize] && canonical_combining_class(character) == 0;
    let begins = std::iter::once(character).nfkd().next().map(|(first, _)| first);
    match character {
        // A line's end may be two characters.
        '\r' => false,
        '\0'..='\x7f' => true,
        _ => {
            is(character)
                && begins.is_some_and(|first| {
                    is(first) || first.is_ascii() || ('\u{1100}'..'\u{1160}').contains(&first)
                })
        }
    }
}
