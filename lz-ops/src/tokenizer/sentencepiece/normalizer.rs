//! Normalization before segmentation: user-defined pieces are unchanged, the charsmap replaces characters, runs of spaces are collapsed,
//! the dummy prefix is added, and spaces become U+2581.

use super::charsmap::CharsMap;
use super::proto::NormalizerProto;
use super::trie::Trie;

/// The normalizer of a model.
pub struct Normalizer {
    rules: Option<CharsMap>,
    add_dummy_prefix: bool,
    remove_extra_whitespaces: bool,
    space: &'static [u8],
    whitespace_as_suffix: bool,
}

/// The leading spaces of a text that the decoder removes.
#[derive(Clone, Copy)]
pub struct LeadingSpaces {
    /// The dummy prefix.
    pub one: bool,
    /// All leading spaces.
    pub all: bool,
}

impl LeadingSpaces {
    pub fn any(self) -> bool {
        self.one || self.all
    }
}

/// A normalized text and, if requested, the original offset of each byte.
struct Output<'a> {
    text: Vec<u8>,
    original: Option<&'a mut Vec<usize>>,
}

impl Output<'_> {
    fn push(&mut self, bytes: &[u8], from: usize) {
        self.text.extend_from_slice(bytes);
        if let Some(original) = &mut self.original {
            original.resize(self.text.len(), from);
        }
    }
}

impl Normalizer {
    /// From the normalizer spec of a model.
    pub fn new(spec: &NormalizerProto<'_>, whitespace_as_suffix: bool) -> Result<Normalizer, String> {
        Ok(Normalizer {
            rules: if spec.charsmap.is_empty() { None } else { Some(CharsMap::parse(spec.charsmap)?) },
            add_dummy_prefix: spec.add_dummy_prefix,
            remove_extra_whitespaces: spec.remove_extra_whitespaces,
            space: if spec.escape_whitespaces { "\u{2581}".as_bytes() } else { b" " },
            whitespace_as_suffix,
        })
    }

    /// Normalizes a text. `original` receives the original offset of each byte of the result and of its end.
    pub fn normalize(
        &self,
        user_defined: &Trie,
        text: &[u8],
        mut original: Option<&mut Vec<usize>>,
    ) -> Vec<u8> {
        if let Some(original) = &mut original {
            original.clear();
        }
        let mut read = 0;
        if self.remove_extra_whitespaces {
            while let (b" ", length) = self.prefix(user_defined, &text[read..]) {
                read += length;
            }
        }
        if read == text.len() {
            return Vec::new();
        }
        let mut out = Output { text: Vec::with_capacity(text.len() + text.len() / 2), original };
        if self.add_dummy_prefix && !self.whitespace_as_suffix {
            out.push(self.space, read);
        }
        let mut after_space = self.remove_extra_whitespaces;
        while read < text.len() {
            let (mut replaced, length) = self.prefix(user_defined, &text[read..]);
            while let [b' ', rest @ ..] = replaced
                && after_space
            {
                replaced = rest;
            }
            if !replaced.is_empty() {
                for (number, part) in replaced.split(|byte| *byte == b' ').enumerate() {
                    if number > 0 {
                        out.push(self.space, read);
                    }
                    out.push(part, read);
                }
                after_space = replaced.ends_with(b" ");
            }
            read += length;
            after_space &= self.remove_extra_whitespaces;
        }
        if self.remove_extra_whitespaces {
            while out.text.ends_with(self.space) {
                let length = out.text.len() - self.space.len();
                out.text.truncate(length);
                if let Some(original) = &mut out.original {
                    read = original[length];
                    original.truncate(length);
                }
            }
        }
        if self.add_dummy_prefix && self.whitespace_as_suffix {
            out.push(self.space, read);
        }
        if let Some(original) = out.original {
            original.push(read);
        }
        out.text
    }

    /// The leading spaces of a text that the decoder removes.
    pub fn stripped_leading_spaces(&self) -> LeadingSpaces {
        LeadingSpaces { one: self.add_dummy_prefix, all: self.remove_extra_whitespaces }
    }

    /// Normalizes the first character, rule match or user-defined piece of a text. Returns the result and the number of bytes consumed.
    fn prefix<'t>(&'t self, user_defined: &Trie, text: &'t [u8]) -> (&'t [u8], usize) {
        if let Some(length) = user_defined.longest(text) {
            return (&text[..length], length);
        }
        if let Some((length, replacement)) = self.rules.as_ref().and_then(|rules| rules.replace(text)) {
            return (replacement, length);
        }
        match valid_character(text) {
            Some(length) => (&text[..length], length),
            None if text.is_empty() => (&[], 0),
            None => ("\u{fffd}".as_bytes(), 1),
        }
    }
}

/// The length of the first character, if it is valid UTF-8.
pub fn valid_character(text: &[u8]) -> Option<usize> {
    let first = text.get(..4).unwrap_or(text);
    let valid = first.utf8_chunks().next()?.valid();
    valid.chars().next().map(char::len_utf8)
}
