//! Tokenizers that normalize a text, pretokenize it into words, and encode each word with a model. WordPiece, unigram and
//! SentencePiece-style BPE differ only in the model.

mod char_bpe;
mod decoder;
mod model;
mod normalizer;
mod pretokenizer;
mod trie;
mod unigram;
mod word_piece;

use std::sync::atomic::{AtomicBool, Ordering};

use lz_core::fork::Mutex;
use lz_core::{KernelError, Reason, ReasonCode};
use lz_ops::tokenizer::Tokenizer;
use serde_json::Value;

pub use self::char_bpe::CharBpe;
use self::decoder::Decoder;
use self::model::{Model, Piece};
use self::normalizer::{NormalizedText, Normalizer};
use self::pretokenizer::Pretokenizer;
pub use self::unigram::Unigram;
pub use self::word_piece::WordPiece;
use crate::added_tokens::{AddedTokenSplitter, Segment};
use crate::byte_bpe::word_cache::{self, WordCache};
use crate::coder::{Coder, Encoded, EqualityTest, encode_by_definition};
use crate::definition::{self, Post, declined};
use crate::long_text;
use crate::memory::{self, OutOfMemory};
use crate::phrase_cache::PhraseCache;

/// Maximum total bytes of a vocabulary, so that trie nodes have 24-bit indices.
const MAX_VOCABULARY_BYTES: usize = 1 << 24;

/// Thread states with larger text buffers are freed instead of pooled.
const MAX_POOLED_BYTES: usize = 1 << 24;

/// The tokenizer of one definition with a word model.
pub struct WordTokenizer<M: Model> {
    added: Option<AddedTokenSplitter>,
    normalizer: Normalizer,
    pretokenizer: Pretokenizer,
    model: M,
    decoder: Decoder,
    before: Vec<u32>,
    after: Vec<u32>,
    /// Thread states that no thread uses at the moment. A call takes one and returns it.
    state_pool: Mutex<Vec<ThreadState<M>>>,
}

/// The caches and buffers that one thread uses during a call.
struct ThreadState<M: Model> {
    cache: WordCache,
    phrases: PhraseCache,
    normalized: NormalizedText,
    pieces: Vec<Piece>,
    scratch: M::Scratch,
}

/// The parts of a state that encode normalized text.
type Buffers<'a, M> =
    (&'a mut WordCache, &'a mut PhraseCache, &'a mut Vec<Piece>, &'a mut <M as Model>::Scratch);

impl<M: Model> ThreadState<M> {
    fn new() -> Result<ThreadState<M>, OutOfMemory> {
        Ok(ThreadState {
            cache: WordCache::new()?,
            phrases: PhraseCache::default(),
            normalized: NormalizedText::default(),
            pieces: Vec::new(),
            scratch: M::Scratch::default(),
        })
    }
}

impl<M: Model> Coder for WordTokenizer<M> {
    const OFFSETS: bool = true;
    const DECODES: bool = true;
    const MODEL: Option<&'static str> = Some(M::KIND);
    const EQUALITY_TEST: EqualityTest = EqualityTest::Texts;

    fn build(_: &Tokenizer, definition: &Value) -> Result<WordTokenizer<M>, Reason> {
        let (model, vocabulary) = M::read(&definition["model"])?;
        if vocabulary.iter().map(|(token, _)| token.len()).sum::<usize>() >= MAX_VOCABULARY_BYTES {
            let required = format!("a vocabulary of less than {MAX_VOCABULARY_BYTES} bytes in total");
            return Err(model::unsupported_model(&required, "a larger vocabulary"));
        }
        let (pretokenizer, spaces) =
            Pretokenizer::new(&definition["pre_tokenizer"], model.splits_at_spaces())?;
        let normalizer = Normalizer::new(&definition["normalizer"], spaces)?;
        let added = definition::added_tokens(definition)?;
        if let Some(token) = added.iter().find(|token| token.normalized || token.content.is_empty()) {
            let required = "added tokens that are not empty and have `normalized` false";
            return Err(declined(ReasonCode::AddedTokensMismatch, required, format!("{:?}", token.content)));
        }
        let mut post = Post::default();
        post.read(&definition["post_processor"])?;
        if post.trim_offsets.is_some() {
            let required = "a post-processor without `trim_offsets`";
            return Err(declined(ReasonCode::SpecialTokensMismatch, required, "`trim_offsets` true"));
        }
        Ok(WordTokenizer {
            decoder: Decoder::new(&definition["decoder"], &vocabulary, &added)?,
            added: AddedTokenSplitter::new(added)?,
            normalizer,
            pretokenizer,
            model,
            before: post.before,
            after: post.after,
            state_pool: Mutex::default(),
        })
    }

    fn encode(
        &self,
        tokenizer: &Tokenizer,
        texts: &[&str],
        special: bool,
        out: &mut Encoded,
    ) -> Result<(), KernelError> {
        let mut state = self.take_state()?;
        memory::reserve(&mut out.ends, texts.len())?;
        for text in texts {
            let before = (out.ids.len(), out.offsets.as_ref().map(Vec::len));
            if self.encode_one(text, special, &mut state, out)? {
                out.end_text();
                continue;
            }
            out.ids.truncate(before.0);
            if let (Some(offsets), Some(length)) = (&mut out.offsets, before.1) {
                offsets.truncate(length);
            }
            encode_by_definition(tokenizer, text, special, out)?;
        }
        if state.normalized.text.capacity() <= MAX_POOLED_BYTES {
            self.state_pool.lock().push(state);
        }
        Ok(())
    }

    fn decode(&self, _: &Tokenizer, ids: &[u32], skip_special: bool) -> Result<String, KernelError> {
        Ok(self.decoder.decode(ids, skip_special)?)
    }
}

impl<M: Model> WordTokenizer<M> {
    /// A state that no other thread uses.
    fn take_state(&self) -> Result<ThreadState<M>, OutOfMemory> {
        let pooled = self.state_pool.lock().pop();
        pooled.map_or_else(ThreadState::new, Ok)
    }

    /// Appends the tokens of a text. Returns false if the definition must encode it.
    fn encode_one(
        &self,
        text: &str,
        special: bool,
        state: &mut ThreadState<M>,
        out: &mut Encoded,
    ) -> Result<bool, OutOfMemory> {
        if special {
            out.reserve(self.before.len())?;
            self.before.iter().for_each(|id| out.push(*id, 0, 0));
        }
        let mut supported = self.normalizer.supports(text);
        match &self.added {
            _ if text.is_empty() || !supported => {}
            None => supported = self.plain(text, 0, state, out)?,
            Some(splitter) => splitter.try_for_each(text, |segment| {
                match segment {
                    _ if !supported => {}
                    Segment::Text { start, end } => {
                        supported = self.plain(&text[start..end], start, state, out)?;
                    }
                    Segment::Token { id, start, end } => {
                        out.reserve(1)?;
                        out.push(id, start, end);
                    }
                }
                Ok::<(), OutOfMemory>(())
            })?,
        }
        if special {
            out.reserve(self.after.len())?;
            self.after.iter().for_each(|id| out.push(*id, 0, 0));
        }
        Ok(supported)
    }

    /// Appends the tokens of a text without added tokens at offset `base`. Returns false if the definition must encode it.
    fn plain(
        &self,
        text: &str,
        base: usize,
        state: &mut ThreadState<M>,
        out: &mut Encoded,
    ) -> Result<bool, OutOfMemory> {
        let ThreadState { cache, phrases, normalized, pieces, scratch } = state;
        // One byte is reserved for a prepended space.
        normalized.text.clear();
        normalized.source_ranges = out.offsets.is_some().then(Vec::new);
        normalized.reserve(text.len() + 1)?;
        normalized.text.push(b' ');
        normalized.source_ranges.iter_mut().for_each(|source_ranges| source_ranges.push((0, 0)));
        if !self.normalizer.append(text, normalized)? {
            return Ok(false);
        }
        let mut from = self.normalizer.finish(1, normalized);
        if self.pretokenizer.prepends(base == 0) && normalized.text[from..].first() != Some(&b' ') {
            from = normalized.prepend(from);
        }
        let bytes = normalized.text.as_slice();
        if let Some(source_ranges) = &normalized.source_ranges {
            let (mut supported, mut result) = (true, Ok(()));
            self.pretokenizer.for_each(bytes, from, |start, end| {
                if result.is_err() {
                    return;
                }
                let Ok(word) = std::str::from_utf8(&bytes[start..end]) else { return supported = false };
                pieces.clear();
                result = memory::reserve(pieces, word.len())
                    .and_then(|()| self.model.tokenize_word(word, scratch, pieces))
                    .and_then(|()| out.reserve(pieces.len()));
                if result.is_err() {
                    return;
                }
                for piece in pieces.iter() {
                    let of = |offset: u32| source_ranges[start + offset as usize];
                    let (first, last) = (of(piece.start), of(piece.end - 1));
                    out.push(piece.id, base + first.0 as usize, base + last.1 as usize);
                }
            });
            return result.map(|()| supported);
        }
        let may_end = |position: usize| self.pretokenizer.may_end(bytes, position);
        let Some(bounds) = long_text::parts(from, bytes.len(), may_end) else {
            return self.part(bytes, from, (cache, phrases, pieces, scratch), &mut out.ids);
        };
        let supported = AtomicBool::new(true);
        long_text::encode(&bounds, &mut out.ids, |start, end, ids| {
            let mut state = self.take_state()?;
            let ThreadState { cache, phrases, pieces, scratch, .. } = &mut state;
            if !self.part(&bytes[..end], start, (cache, phrases, pieces, scratch), ids)? {
                supported.store(false, Ordering::Relaxed);
            }
            self.state_pool.lock().push(state);
            Ok(())
        })?;
        Ok(supported.into_inner())
    }

    /// Appends the tokens of a normalized text from `from` on. Returns false if the definition must encode it.
    fn part(
        &self,
        bytes: &[u8],
        from: usize,
        (cache, phrases, pieces, scratch): Buffers<'_, M>,
        ids: &mut Vec<i32>,
    ) -> Result<bool, OutOfMemory> {
        let mut supported = true;
        let may_end = |position: usize| self.pretokenizer.may_end(bytes, position);
        phrases.encode(bytes, from, ids, may_end, |from, last, ids| {
            let mut result = Ok(());
            self.pretokenizer.for_each(&bytes[..last], from, |start, end| {
                if result.is_err() {
                    return;
                }
                let mut compute = |tokens: &mut Vec<u32>| {
                    match std::str::from_utf8(&bytes[start..end]) {
                        Ok(word) => {
                            pieces.clear();
                            memory::reserve(pieces, word.len())?;
                            self.model.tokenize_word(word, scratch, pieces)?;
                            tokens.extend(pieces.iter().map(|piece| piece.id));
                        }
                        Err(_) => supported = false,
                    }
                    Ok(())
                };
                result = if end - start <= word_cache::MAX_SHORT_BYTES {
                    cache.short(word_cache::key(bytes, start, end), ids, &mut compute)
                } else {
                    cache.limit();
                    cache.long(&bytes[start..end], ids, &mut compute)
                };
            });
            result.map(|()| supported)
        })?;
        Ok(supported)
    }
}
