//! What is around the encoding proper of a byte-level tokenizer: added tokens, normalisation, the space before a text, and the
//! ids that the post-processor puts around it. Nothing here knows how plain text becomes ids.

use std::borrow::Cow;

use lz_core::{Reason, ReasonCode};

use crate::added::{Cutter, Segment};
use crate::definition::ByteLevelBpe;
use crate::normal;

/// The frame of one tokenizer.
pub struct Frame {
    nfc: bool,
    prefix_space: bool,
    /// Added tokens that are looked for before normalisation, and after it.
    raw: Option<Cutter>,
    normalized: Option<Cutter>,
    /// Ids that are put before a text.
    pub before: Vec<u32>,
    /// Ids that are put after a text.
    pub after: Vec<u32>,
}

/// A part of a text, after normalisation. Where it begins is said in the text before it, so it means something only if the
/// text was not changed.
pub enum Part<'a> {
    /// Text to be encoded.
    Plain {
        /// It.
        text: &'a str,
        /// Where it begins.
        start: usize,
    },
    /// An added token.
    Token {
        /// Its id.
        id: u32,
        /// What it was cut out as, white space that belongs to it included.
        text: &'a str,
        /// Where it begins.
        start: usize,
    },
}

impl Frame {
    /// From a definition, or why its added tokens cannot be looked for.
    pub fn new(definition: &ByteLevelBpe) -> Result<Frame, Reason> {
        let unfit = |text: &str| text.is_empty() || definition.nfc && !normal::is_normal(text);
        if let Some(added) = definition.added.iter().find(|added| unfit(&added.content)) {
            return Err(Reason::new(ReasonCode::AddedTokensMismatch)
                .argument("tokenizer")
                .required("added tokens with a text in normal form")
                .found(format!("{:?}", added.content)));
        }
        let (normalized, raw) = definition.added.iter().cloned().partition(|added| added.normalized);
        Ok(Frame {
            nfc: definition.nfc,
            prefix_space: definition.prefix_space,
            raw: Cutter::new(raw)?,
            normalized: Cutter::new(normalized)?,
            before: definition.before.clone(),
            after: definition.after.clone(),
        })
    }

    /// Whether parts of this text are where they were in the caller's.
    pub fn keeps_places(&self, text: &str) -> bool {
        !self.prefix_space && (!self.nfc || normal::is_normal(text))
    }

    /// Adds the ids of a text; `plain` adds those of a part without added tokens.
    #[inline]
    pub fn encode(
        &self,
        text: &str,
        special: bool,
        ids: &mut Vec<i32>,
        mut plain: impl FnMut(&str, &mut Vec<i32>),
    ) {
        if special {
            ids.extend(self.before.iter().map(|id| *id as i32));
        }
        self.for_each(text, |part| match part {
            Part::Plain { text, .. } => plain(text, ids),
            Part::Token { id, .. } => ids.push(id as i32),
        });
        if special {
            ids.extend(self.after.iter().map(|id| *id as i32));
        }
    }

    /// Calls `each` with the parts of a text, in order.
    #[inline]
    pub fn for_each(&self, text: &str, mut each: impl FnMut(Part<'_>)) {
        match &self.raw {
            None if text.is_empty() => {}
            None => self.normalize(text, 0, &mut each),
            Some(cutter) => cutter.for_each(text, |segment| match segment {
                Segment::Text { start, end } => self.normalize(&text[start..end], start, &mut each),
                Segment::Token { id, start, end } => each(Part::Token { id, text: &text[start..end], start }),
            }),
        }
    }

    fn normalize(&self, text: &str, base: usize, each: &mut impl FnMut(Part<'_>)) {
        let text = if self.nfc { normal::normalized(text) } else { Cow::Borrowed(text) };
        match &self.normalized {
            None => self.plain(&text, base, each),
            Some(cutter) => cutter.for_each(&text, |segment| match segment {
                Segment::Text { start, end } => self.plain(&text[start..end], base + start, each),
                Segment::Token { id, start, end } => {
                    each(Part::Token { id, text: &text[start..end], start: base + start });
                }
            }),
        }
    }

    fn plain(&self, text: &str, start: usize, each: &mut impl FnMut(Part<'_>)) {
        if self.prefix_space && !text.starts_with(' ') {
            each(Part::Plain { text: &format!(" {text}"), start });
        } else {
            each(Part::Plain { text, start });
        }
    }
}
