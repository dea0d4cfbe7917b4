//! The stages of a byte-level tokenizer around the model: added tokens, normalization, prefix space and post-processor. Nothing here
//! depends on how plain text is encoded.

use lz_core::{Reason, ReasonCode};

use crate::added_tokens::{AddedTokenSplitter, Segment};
use crate::definition::ByteLevelBpe;
use crate::memory::{self, OutOfMemory};
use crate::normalization::Normalization;

/// The pipeline of one tokenizer.
pub struct Pipeline {
    normalization: Normalization,
    prefix_space: bool,
    /// Added tokens that are matched in the raw text.
    raw: Option<AddedTokenSplitter>,
    /// Added tokens that are matched in the normalized text.
    normalized: Option<AddedTokenSplitter>,
    /// Ids that the post-processor prepends.
    pub before: Vec<u32>,
    /// Ids that the post-processor appends.
    pub after: Vec<u32>,
}

/// A part of the normalized text. `start` is an offset into the caller's text and is valid only if
/// [`Pipeline::preserves_offsets`].
pub enum Part<'a> {
    /// Text to be encoded.
    Plain {
        /// The text.
        text: &'a str,
        /// Start offset.
        start: usize,
    },
    /// An added token.
    Token {
        /// Token id.
        id: u32,
        /// The matched text, including stripped whitespace.
        text: &'a str,
        /// Start offset.
        start: usize,
    },
}

impl Pipeline {
    /// Builds the pipeline of a definition, or returns why its added tokens are not supported.
    pub fn new(definition: &ByteLevelBpe) -> Result<Pipeline, Reason> {
        let unsupported = |text: &str| text.is_empty() || !definition.normalization.holds(text);
        if let Some(added) = definition.added.iter().find(|added| unsupported(&added.content)) {
            return Err(Reason::new(ReasonCode::AddedTokensMismatch)
                .argument("tokenizer")
                .required("added tokens that are not empty and that the normalizer does not change")
                .found(format!("{:?}", added.content)));
        }
        let (normalized, raw) = definition.added.iter().cloned().partition(|added| added.normalized);
        Ok(Pipeline {
            normalization: definition.normalization.clone(),
            prefix_space: definition.prefix_space,
            raw: AddedTokenSplitter::new(raw)?,
            normalized: AddedTokenSplitter::new(normalized)?,
            before: definition.before.clone(),
            after: definition.after.clone(),
        })
    }

    /// Whether the pipeline leaves this text unchanged, so that offsets of parts are offsets in the caller's text.
    pub fn preserves_offsets(&self, text: &str) -> bool {
        !self.prefix_space && self.normalization.holds(text)
    }

    /// Appends the ids of a text; `plain` makes room for those of a part without added tokens and appends them.
    #[inline]
    pub fn encode(
        &self,
        text: &str,
        special: bool,
        ids: &mut Vec<i32>,
        mut plain: impl FnMut(&str, &mut Vec<i32>) -> Result<(), OutOfMemory>,
    ) -> Result<(), OutOfMemory> {
        if special {
            memory::reserve(ids, self.before.len())?;
            ids.extend(self.before.iter().map(|id| *id as i32));
        }
        self.for_each(text, |part| match part {
            Part::Plain { text, .. } => plain(text, ids),
            Part::Token { id, .. } => {
                memory::reserve(ids, 1)?;
                ids.push(id as i32);
                Ok(())
            }
        })?;
        if special {
            memory::reserve(ids, self.after.len())?;
            ids.extend(self.after.iter().map(|id| *id as i32));
        }
        Ok(())
    }

    /// Calls `each` with the parts of a text, in order, up to the first error.
    #[inline]
    pub fn for_each(
        &self,
        text: &str,
        mut each: impl FnMut(Part<'_>) -> Result<(), OutOfMemory>,
    ) -> Result<(), OutOfMemory> {
        match &self.raw {
            None if text.is_empty() => Ok(()),
            None => self.normalize(text, 0, &mut each),
            Some(splitter) => splitter.try_for_each(text, |segment| match segment {
                Segment::Text { start, end } => self.normalize(&text[start..end], start, &mut each),
                Segment::Token { id, start, end } => each(Part::Token { id, text: &text[start..end], start }),
            }),
        }
    }

    fn normalize(
        &self,
        text: &str,
        base: usize,
        each: &mut impl FnMut(Part<'_>) -> Result<(), OutOfMemory>,
    ) -> Result<(), OutOfMemory> {
        let text = self.normalization.apply(text)?;
        match &self.normalized {
            None => self.plain(&text, base, each),
            Some(splitter) => splitter.try_for_each(&text, |segment| match segment {
                Segment::Text { start, end } => self.plain(&text[start..end], base + start, each),
                Segment::Token { id, start, end } => {
                    each(Part::Token { id, text: &text[start..end], start: base + start })
                }
            }),
        }
    }

    fn plain(
        &self,
        text: &str,
        start: usize,
        each: &mut impl FnMut(Part<'_>) -> Result<(), OutOfMemory>,
    ) -> Result<(), OutOfMemory> {
        if !self.prefix_space || text.starts_with(' ') {
            return each(Part::Plain { text, start });
        }
        let mut spaced = String::new();
        memory::reserve_text(&mut spaced, text.len() + 1)?;
        spaced.push(' ');
        spaced.push_str(text);
        each(Part::Plain { text: &spaced, start })
    }
}
