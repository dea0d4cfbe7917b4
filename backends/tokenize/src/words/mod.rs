//! Tokenizers of words: texts are normalised, cut into words, and each word is cut into tokens by a model. WordPiece, unigrams and
//! SentencePiece's byte-pair merging differ in the model alone.

mod char_bpe;
mod decode;
mod model;
mod normal;
mod split;
mod trie;
mod unigram;
mod word_piece;

use std::sync::{Mutex, MutexGuard, PoisonError};

use lz_core::{KernelError, Reason, ReasonCode};
use lz_ops::tokenizer::Tokenizer;
use serde_json::Value;

pub use self::char_bpe::CharBpe;
use self::decode::Decode;
use self::model::{Model, Piece};
use self::normal::{Draft, Normal};
use self::split::Split;
pub use self::unigram::Unigram;
pub use self::word_piece::WordPiece;
use crate::added::{Cutter, Segment};
use crate::coder::{Coder, Encoded, Trial, encode_by_definition};
use crate::definition::{self, Post, declined};
use crate::native::cache::{self, Cache};
use crate::phrases::Phrases;

/// Vocabularies of at most so many bytes, so that places in a trie have numbers of 24 bits.
const MOST_BYTES: usize = 1 << 24;

/// What was used for longer texts than this is given back.
const MOST_KEPT: usize = 1 << 24;

/// A tokenizer of words.
pub struct Words<M: Model> {
    added: Option<Cutter>,
    normal: Normal,
    split: Split,
    model: M,
    decode: Decode,
    before: Vec<u32>,
    after: Vec<u32>,
    /// What is worked with, each with whoever encodes just now.
    desks: Mutex<Vec<Desk<M>>>,
}

/// What one thread works with.
struct Desk<M: Model> {
    cache: Cache,
    phrases: Phrases,
    draft: Draft,
    pieces: Vec<Piece>,
    scratch: M::Scratch,
}

impl<M: Model> Coder for Words<M> {
    const OFFSETS: bool = true;
    const DECODES: bool = true;
    const MODEL: Option<&'static str> = Some(M::KIND);
    const TRIAL: Trial = Trial::Texts;

    fn build(_: &Tokenizer, definition: &Value) -> Result<Words<M>, Reason> {
        let (model, vocabulary) = M::read(&definition["model"])?;
        if vocabulary.iter().map(|(token, _)| token.len()).sum::<usize>() >= MOST_BYTES {
            return Err(model::unlike("a vocabulary of fewer bytes", "more"));
        }
        let (split, spaces) = Split::new(&definition["pre_tokenizer"], model.cuts_at_spaces())?;
        let normal = Normal::new(&definition["normalizer"], spaces)?;
        let added = definition::added_tokens(definition)?;
        if let Some(token) = added.iter().find(|token| token.normalized || token.content.is_empty()) {
            let required = "added tokens that are looked for before normalisation";
            return Err(declined(ReasonCode::AddedTokensMismatch, required, format!("{:?}", token.content)));
        }
        let mut post = Post::default();
        post.read(&definition["post_processor"])?;
        if post.trim_offsets.is_some() {
            let required = "offsets as they are";
            return Err(declined(ReasonCode::SpecialTokensMismatch, required, "offsets that are trimmed"));
        }
        Ok(Words {
            decode: Decode::new(&definition["decoder"], &vocabulary, &added)?,
            added: Cutter::new(added)?,
            normal,
            split,
            model,
            before: post.before,
            after: post.after,
            desks: Mutex::default(),
        })
    }

    fn encode(
        &self,
        tokenizer: &Tokenizer,
        texts: &[&str],
        special: bool,
        out: &mut Encoded,
    ) -> Result<(), KernelError> {
        let mut desk = self.desks().pop().unwrap_or_else(|| Desk {
            cache: Cache::default(),
            phrases: Phrases::default(),
            draft: Draft::default(),
            pieces: Vec::new(),
            scratch: M::Scratch::default(),
        });
        for text in texts {
            let before = (out.ids.len(), out.offsets.as_ref().map(Vec::len));
            if self.encode_one(text, special, &mut desk, out) {
                out.end_text();
                continue;
            }
            out.ids.truncate(before.0);
            if let (Some(offsets), Some(length)) = (&mut out.offsets, before.1) {
                offsets.truncate(length);
            }
            encode_by_definition(tokenizer, text, special, out)?;
        }
        if desk.draft.text.capacity() <= MOST_KEPT {
            self.desks().push(desk);
        }
        Ok(())
    }

    fn decode(&self, _: &Tokenizer, ids: &[u32], skip_special: bool) -> Result<String, KernelError> {
        Ok(self.decode.decode(ids, skip_special))
    }
}

impl<M: Model> Words<M> {
    fn desks(&self) -> MutexGuard<'_, Vec<Desk<M>>> {
        self.desks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the tokens of a text; false if it takes the definition to say what they are.
    fn encode_one(&self, text: &str, special: bool, desk: &mut Desk<M>, out: &mut Encoded) -> bool {
        if special {
            self.before.iter().for_each(|id| out.push(*id, 0, 0));
        }
        let mut understood = self.normal.understands(text);
        match &self.added {
            _ if text.is_empty() || !understood => {}
            None => understood = self.plain(text, 0, desk, out),
            Some(cutter) => cutter.for_each(text, |segment| match segment {
                _ if !understood => {}
                Segment::Text { start, end } => understood = self.plain(&text[start..end], start, desk, out),
                Segment::Token { id, start, end } => out.push(id, start, end),
            }),
        }
        if special {
            self.after.iter().for_each(|id| out.push(*id, 0, 0));
        }
        understood
    }

    /// Adds the tokens of a text without added tokens, which begins at `base`.
    fn plain(&self, text: &str, base: usize, desk: &mut Desk<M>, out: &mut Encoded) -> bool {
        let Desk { cache, phrases, draft, pieces, scratch } = desk;
        // Room for a space.
        draft.text.clear();
        draft.text.push(b' ');
        draft.places = out.offsets.is_some().then(|| vec![(0, 0)]);
        if !self.normal.append(text, draft) {
            return false;
        }
        let mut from = self.normal.finish(1, draft);
        if self.split.prepends(base == 0) && draft.text[from..].first() != Some(&b' ') {
            from = draft.prepend(from);
        }
        let bytes = draft.text.as_slice();
        let mut understood = true;
        if let Some(places) = &draft.places {
            self.split.for_each(bytes, from, |start, end| {
                let Ok(word) = std::str::from_utf8(&bytes[start..end]) else { return understood = false };
                pieces.clear();
                self.model.cut(word, scratch, pieces);
                for piece in pieces.iter() {
                    let of = |place: u32| places[start + place as usize];
                    let (first, last) = (of(piece.start), of(piece.end - 1));
                    out.push(piece.id, base + first.0 as usize, base + last.1 as usize);
                }
            });
            return understood;
        }
        let may_end = |place: usize| self.split.may_end(bytes, place);
        phrases.encode(bytes, from, &mut out.ids, may_end, |from, last, ids| {
            self.split.for_each(&bytes[..last], from, |start, end| {
                let mut make = |tokens: &mut Vec<u32>| match std::str::from_utf8(&bytes[start..end]) {
                    Ok(word) => {
                        pieces.clear();
                        self.model.cut(word, scratch, pieces);
                        tokens.extend(pieces.iter().map(|piece| piece.id));
                    }
                    Err(_) => understood = false,
                };
                if end - start <= cache::SHORT {
                    cache.short(cache::key(bytes, start, end), ids, &mut make);
                } else {
                    cache.long(&bytes[start..end], ids, &mut make);
                }
            });
            understood
        });
        understood
    }
}
