//! Normalizers. Context-free characters are mapped with tables that are built on demand from the definition's own normalizer; all other
//! characters are passed to the definition's normalizer.

use std::sync::OnceLock;

use lz_core::{Reason, ReasonCode};
use regex_syntax::hir::{Class, HirKind};
use rustc_hash::FxHashMap;
use serde_json::Value;
use tokenizers::{NormalizedString, Normalizer as _, NormalizerWrapper};
use unicode_normalization_alignments::UnicodeNormalization;
use unicode_normalization_alignments::char::canonical_combining_class;

use crate::definition::{declined, flag, kind, shown};
use crate::memory::{self, OutOfMemory};

/// The normalizer of one tokenizer.
pub struct Normalizer {
    /// The steps that map single characters or small clusters.
    local: Option<NormalizerWrapper>,
    /// Texts that contain one of these strings are left to the definition.
    unsupported_texts: Vec<String>,
    /// Steps on the whole text, applied after `local`.
    steps: Vec<Step>,
    spaces: Spaces,
    /// The mapping of each ASCII character to one byte, if it has one.
    ascii: [Option<u8>; 128],
    /// The mappings of all characters in pages of 256, built on demand.
    pages: Box<[OnceLock<Box<[u64; 256]>>]>,
}

/// How the model represents spaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spaces {
    /// As spaces.
    Plain,
    /// As U+2581 (metaspace). Here they stay spaces, so that words stay short.
    Metaspace,
    /// As U+2581, and all whitespace counts as spaces.
    MetaspaceAnyWhitespace,
}

/// A normalization step on a whole text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    StripLeft,
    StripRight,
    /// Removes spaces at both ends.
    Trim,
    /// Replaces runs of spaces by one space.
    Collapse,
    /// Prepends a space.
    Prepend,
}

/// The normalized text, and a cache of normalized clusters.
#[derive(Default)]
pub struct NormalizedText {
    /// The text.
    pub text: Vec<u8>,
    /// The range of the original text that each byte came from, if offsets are requested.
    pub source_ranges: Option<Vec<(u32, u32)>>,
    cluster_cache: FxHashMap<Box<str>, Box<str>>,
}

/// Maximum number of cached clusters.
const MAX_CACHED_CLUSTERS: usize = 1 << 14;

// The mapping of a character: up to seven bytes with their count in the top byte, or one of the following.
/// More than seven bytes.
const LONG: u64 = 0x80 << 56;
/// Depends on adjacent characters.
const CONTEXT_DEPENDENT: u64 = 0x81 << 56;
/// Left to the definition.
const UNSUPPORTED: u64 = 0x82 << 56;
/// How models write spaces.
const METASPACE: char = '\u{2581}';

impl Normalizer {
    /// From the normalizer of a definition, or the reason why it is not supported.
    pub fn new(value: &Value, spaces: Spaces) -> Result<Normalizer, Reason> {
        let wrong = |part: &Value| {
            let required = "a normalizer that maps characters, then optional steps on spaces";
            declined(ReasonCode::NormalizerMismatch, required, shown(part))
        };
        let single = std::slice::from_ref(value);
        let parts = match kind(value) {
            "none" if value.is_null() => &[],
            "Sequence" => value["normalizers"].as_array().map(Vec::as_slice).ok_or_else(|| wrong(value))?,
            _ => single,
        };
        let (mut unsupported_texts, mut local, mut steps) = (Vec::new(), Vec::new(), Vec::new());
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
                    // Spaces stay spaces here.
                    (Some(" "), _, Some("\u{2581}")) if spaces == Spaces::Metaspace => {}
                    (_, Some(" {2,}"), Some(" " | "\u{2581}")) if spaces != Spaces::Plain => {
                        steps.push(Step::Collapse)
                    }
                    (_, Some("^ +| +$"), Some("")) if spaces != Spaces::Plain => steps.push(Step::Trim),
                    (Some(text), _, _) if local.is_empty() && steps.is_empty() && !text.is_empty() => {
                        unsupported_texts.push(text.to_owned());
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
        let mut normalizer =
            Normalizer { local, unsupported_texts, steps, spaces, ascii: [None; 128], pages };
        for byte in 0..128 {
            let mapping = normalizer.mapping(char::from(byte));
            normalizer.ascii[usize::from(byte)] = (mapping >> 56 == 1).then_some(mapping as u8);
        }
        Ok(normalizer)
    }

    /// Normalizes a text with the definition's normalizer, without the steps on the whole text.
    fn normalize_by_definition(&self, text: &str) -> Option<String> {
        let Some(local) = &self.local else { return Some(text.to_owned()) };
        let mut normalized = NormalizedString::from(text);
        local.normalize(&mut normalized).ok()?;
        Some(normalized.get().to_owned())
    }

    /// Replaces whitespace if the model does; `None` if the text contains U+2581.
    fn normalize_spaces(&self, text: String) -> Option<String> {
        match self.spaces {
            Spaces::Plain => Some(text),
            _ if text.contains(METASPACE) => None,
            Spaces::Metaspace => Some(text),
            Spaces::MetaspaceAnyWhitespace => Some(text.replace(char::is_whitespace, " ")),
        }
    }

    #[inline]
    fn mapping(&self, character: char) -> u64 {
        let number = character as usize;
        let page = self.pages[number >> 8].get_or_init(|| self.build_page(number >> 8));
        page[number & 255]
    }

    #[cold]
    fn build_page(&self, page: usize) -> Box<[u64; 256]> {
        let mut entries = Box::new([UNSUPPORTED; 256]);
        for (number, entry) in (page as u32 * 256..).zip(entries.iter_mut()) {
            let Some(character) = char::from_u32(number) else { continue };
            let alone = character.to_string();
            *entry = match self.normalize_by_definition(&alone).and_then(|text| self.normalize_spaces(text)) {
                Some(_) if self.local.is_some() && !is_context_free(character) => CONTEXT_DEPENDENT,
                Some(text) if text.len() > 7 => LONG,
                Some(text) => packed(text.as_bytes()),
                None => UNSUPPORTED,
            };
        }
        entries
    }

    /// Whether this normalizer can handle a text; otherwise the definition must.
    pub fn supports(&self, text: &str) -> bool {
        self.unsupported_texts.iter().all(|unsupported| !text.contains(unsupported.as_str()))
    }

    /// Appends a text, normalized without the steps on the whole text. Returns false if the definition must handle it; then the content of
    /// `normalized` is unspecified.
    pub fn append(&self, text: &str, normalized: &mut NormalizedText) -> Result<bool, OutOfMemory> {
        let bytes = text.as_bytes();
        if self.local.is_none() && self.spaces == Spaces::Metaspace && normalized.source_ranges.is_none() {
            normalized.reserve(bytes.len())?;
            normalized.text.extend_from_slice(bytes);
            return Ok(!text.contains(METASPACE));
        }
        let mut position = 0;
        while position < bytes.len() {
            // The last character of the run may combine with the next one.
            let run = bytes[position..].iter().take_while(|byte| byte.is_ascii() && **byte != b'\r').count();
            let certain = if position + run < bytes.len() { run.saturating_sub(1) } else { run };
            if certain > 0 {
                if !self.append_ascii(bytes, position, certain, normalized)? {
                    return Ok(false);
                }
                position += certain;
                continue;
            }
            let Some(character) = text[position..].chars().next() else { return Ok(true) };
            let (mapping, end) = (self.mapping(character), position + character.len_utf8());
            let joined = mapping == CONTEXT_DEPENDENT
                || text[end..].chars().next().is_some_and(|next| self.mapping(next) == CONTEXT_DEPENDENT);
            if mapping == UNSUPPORTED {
                return Ok(false);
            } else if joined {
                let end = self.cluster_end(text, position);
                if !self.append_cluster(&text[position..end], normalized)? {
                    return Ok(false);
                }
                position = end;
            } else {
                if !self.append_one(character, mapping, position, normalized)? {
                    return Ok(false);
                }
                position = end;
            }
        }
        Ok(true)
    }

    #[inline]
    fn append_ascii(
        &self,
        bytes: &[u8],
        position: usize,
        count: usize,
        normalized: &mut NormalizedText,
    ) -> Result<bool, OutOfMemory> {
        for (number, part) in bytes[position..position + count].chunks(16).enumerate() {
            let (mut mapped, mut all) = ([0; 16], normalized.source_ranges.is_none());
            for (to, byte) in mapped.iter_mut().zip(part) {
                let mapping = self.ascii[usize::from(*byte & 127)];
                all &= mapping.is_some();
                *to = mapping.unwrap_or(0);
            }
            if all {
                normalized.reserve(part.len())?;
                normalized.text.extend_from_slice(&mapped[..part.len()]);
                continue;
            }
            for (position, byte) in (position + number * 16..).zip(part) {
                let character = char::from(*byte);
                if !self.append_one(character, self.mapping(character), position, normalized)? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Appends the mapping of a context-free character.
    fn append_one(
        &self,
        character: char,
        mapping: u64,
        position: usize,
        normalized: &mut NormalizedText,
    ) -> Result<bool, OutOfMemory> {
        let before = normalized.text.len();
        if mapping == LONG {
            let Some(text) = self
                .normalize_by_definition(&character.to_string())
                .and_then(|text| self.normalize_spaces(text))
            else {
                return Ok(false);
            };
            normalized.reserve(text.len())?;
            normalized.text.extend_from_slice(text.as_bytes());
        } else {
            normalized.reserve(size_of::<u64>())?;
            normalized.text.extend_from_slice(&mapping.to_le_bytes()[..(mapping >> 56) as usize]);
        }
        if let Some(source_ranges) = &mut normalized.source_ranges {
            let range = (position as u32, (position + character.len_utf8()) as u32);
            // Some normalizers change the offsets of adjacent characters when one is removed.
            if normalized.text.len() == before && self.spaces != Spaces::Plain {
                return Ok(false);
            }
            source_ranges.resize(normalized.text.len(), range);
        }
        Ok(true)
    }

    /// The end of a cluster: between two context-free characters.
    fn cluster_end(&self, text: &str, start: usize) -> usize {
        let mut alone = false;
        for (position, character) in text[start..].char_indices() {
            let joined = self.mapping(character) == CONTEXT_DEPENDENT;
            if alone && !joined && position > 0 {
                return start + position;
            }
            // The first character is in the cluster because the next one may combine with it.
            alone = !joined && position > 0;
        }
        text.len()
    }

    /// Appends a cluster of characters that may combine with each other.
    fn append_cluster(&self, text: &str, normalized: &mut NormalizedText) -> Result<bool, OutOfMemory> {
        if normalized.source_ranges.is_some() {
            return Ok(false);
        }
        if let Some(cached) = normalized.cluster_cache.get(text) {
            memory::reserve(&mut normalized.text, cached.len())?;
            normalized.text.extend_from_slice(cached.as_bytes());
            return Ok(true);
        }
        if text.contains(METASPACE) && self.spaces != Spaces::Plain {
            return Ok(false);
        }
        let Some(cluster) =
            self.normalize_by_definition(text).and_then(|cluster| self.normalize_spaces(cluster))
        else {
            return Ok(false);
        };
        normalized.reserve(cluster.len())?;
        normalized.text.extend_from_slice(cluster.as_bytes());
        if normalized.cluster_cache.len() < MAX_CACHED_CLUSTERS && text.len() < 64 {
            normalized.cluster_cache.insert(text.into(), cluster.into());
        }
        Ok(true)
    }

    /// Applies the steps on the whole text, which begins at `from`. Returns its new start.
    pub fn finish(&self, from: usize, normalized: &mut NormalizedText) -> usize {
        let mut from = from;
        for step in &self.steps {
            match step {
                Step::StripLeft => {
                    let text = String::from_utf8_lossy(&normalized.text[from..]);
                    from += text.len() - text.trim_start().len();
                }
                Step::StripRight => {
                    let text = String::from_utf8_lossy(&normalized.text[from..]);
                    let end = from + text.trim_end().len();
                    normalized.truncate(end);
                }
                Step::Trim => {
                    let spaces = normalized.text[from..].iter().take_while(|byte| **byte == b' ').count();
                    from += spaces;
                    let end = normalized.text[from..].iter().rposition(|byte| *byte != b' ');
                    normalized.truncate(end.map_or(from, |last| from + last + 1));
                }
                Step::Collapse => normalized.collapse(from),
                Step::Prepend => from = normalized.prepend(from),
            }
        }
        if self.spaces == Spaces::MetaspaceAnyWhitespace {
            normalized.collapse(from);
            if normalized.text[from..].first() == Some(&b' ') {
                from += 1;
            }
            if normalized.text[from..].last() == Some(&b' ') {
                normalized.truncate(normalized.text.len() - 1);
            }
            // The space before a word has the range of the word's first character.
            if let Some(source_ranges) = &mut normalized.source_ranges {
                for position in
                    (from..source_ranges.len()).filter(|position| normalized.text[*position] == b' ')
                {
                    source_ranges[position] = source_ranges[position + 1];
                }
            }
        }
        from
    }
}

impl NormalizedText {
    /// Makes room for more bytes and their ranges.
    #[inline]
    pub fn reserve(&mut self, bytes: usize) -> Result<(), OutOfMemory> {
        memory::reserve(&mut self.text, bytes)?;
        self.source_ranges.as_mut().map_or(Ok(()), |source_ranges| memory::reserve(source_ranges, bytes))
    }

    fn truncate(&mut self, length: usize) {
        self.text.truncate(length);
        if let Some(source_ranges) = &mut self.source_ranges {
            source_ranges.truncate(length);
        }
    }

    /// Replaces runs of spaces by their last space.
    fn collapse(&mut self, from: usize) {
        let mut to = from;
        for position in from..self.text.len() {
            if self.text[position] == b' ' && self.text.get(position + 1) == Some(&b' ') {
                continue;
            }
            self.text[to] = self.text[position];
            if let Some(source_ranges) = &mut self.source_ranges {
                source_ranges[to] = source_ranges[position];
            }
            to += 1;
        }
        self.truncate(to);
    }

    /// Prepends a space to the text at `from`, in the byte reserved for it. An empty text stays empty.
    pub fn prepend(&mut self, from: usize) -> usize {
        if from == self.text.len() || from == 0 {
            return from;
        }
        self.text[from - 1] = b' ';
        if let Some(source_ranges) = &mut self.source_ranges {
            source_ranges[from - 1] = source_ranges[from];
        }
        from - 1
    }
}

fn packed(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word) | (bytes.len() as u64) << 56
}

/// Whether a character is normalized independently of adjacent context-free characters: they do not combine, and there is a grapheme
/// boundary between them.
fn is_context_free(character: char) -> bool {
    static ALONE: OnceLock<Box<[bool]>> = OnceLock::new();
    let alone = ALONE.get_or_init(|| {
        let mut table = vec![false; 0x11_0000].into_boxed_slice();
        let pattern = r"[[\p{L}\p{N}\p{P}\p{S}\p{Z}]--[\p{GCB=CN}\p{GCB=EX}\p{GCB=PP}\p{GCB=SM}\p{GCB=L}\p{GCB=V}\p{GCB=T}\p{GCB=RI}\p{GCB=ZWJ}]]";
        let parsed = regex_syntax::parse(pattern).map(regex_syntax::hir::Hir::into_kind);
        let Ok(HirKind::Class(Class::Unicode(ranges))) = parsed else {
            unreachable!("the pattern is a character class");
        };
        for range in ranges.ranges() {
            table[range.start() as usize..=range.end() as usize].fill(true);
        }
        table
    });
    let is = |character: char| alone[character as usize] && canonical_combining_class(character) == 0;
    let begins = std::iter::once(character).nfkd().next().map(|(first, _)| first);
    match character {
        // `\r\n` is one grapheme.
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
