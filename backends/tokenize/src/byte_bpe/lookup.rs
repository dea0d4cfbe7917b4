//! Looks up the tokens of pieces, many at a time, so that cache misses overlap: keys and hashes first, then the word cache, then the
//! vocabulary for words that are not cached, then merges for words that are not tokens.

use super::ByteBpe;
use super::merge_group::{self, Group};
use super::short_words::Found;
use super::word_cache::{self, Cached, MAX_SHORT_BYTES, WordCache};
use crate::memory::{self, OutOfMemory};
use crate::phrase_cache::SLACK;

/// Number of pieces that are looked up together.
pub const MAX_PIECES: usize = 256;

/// Room for the tokens of longer pieces that is kept between calls.
const MAX_LONG_TOKENS: usize = 1 << 16;

/// A piece that waits for its lookup.
#[derive(Clone, Copy)]
struct QueuedPiece {
    start: usize,
    end: usize,
    /// The key of a short piece and its hash; the key of a longer piece is 0.
    key: u128,
    hash: u64,
    cached: Cached,
}

/// A short piece that is not cached, and its tokens.
#[derive(Clone, Copy)]
struct Missing {
    /// Its index in the queue.
    index: usize,
    count: usize,
    tokens: [u32; MAX_SHORT_BYTES],
}

impl Missing {
    #[inline(always)]
    fn push(&mut self, token: u32) {
        self.tokens[self.count] = token;
        self.count += 1;
    }
}

/// Pieces that wait for their lookup, and working memory.
pub struct Queue {
    pieces: Vec<QueuedPiece>,
    missing: Vec<Missing>,
    /// Indices in `missing` of pieces that are not tokens.
    unmerged: Vec<usize>,
    group: Group,
    /// The tokens of a longer piece.
    long: Vec<i32>,
}

impl Queue {
    /// An empty queue.
    pub fn new() -> Result<Queue, OutOfMemory> {
        Ok(Queue {
            pieces: memory::with_capacity(MAX_PIECES)?,
            missing: memory::with_capacity(MAX_PIECES)?,
            unmerged: memory::with_capacity(MAX_PIECES)?,
            group: Group::new()?,
            long: Vec::new(),
        })
    }

    /// Adds a piece, for which there is room. Returns whether the queue is full.
    #[inline(always)]
    pub fn push(&mut self, start: usize, end: usize) -> bool {
        self.pieces.push(QueuedPiece { start, end, key: 0, hash: 0, cached: Cached::default() });
        self.pieces.len() == MAX_PIECES
    }

    /// Removes all pieces.
    #[inline(always)]
    pub fn clear(&mut self) {
        self.pieces.clear();
    }

    /// Computes the keys of the short pieces, and loads their sets of the word cache.
    #[inline(never)]
    fn hash(&mut self, text: &[u8], words: &WordCache) {
        for piece in &mut self.pieces {
            if piece.end - piece.start <= MAX_SHORT_BYTES {
                piece.key = word_cache::key(text, piece.start, piece.end);
                piece.hash = word_cache::mix(piece.key);
                words.prefetch(piece.hash);
            }
        }
    }

    /// Finds the short pieces that are not cached.
    #[inline(never)]
    fn find_missing(&mut self, words: &WordCache, mut each: impl FnMut(u64)) {
        self.missing.clear();
        for (index, piece) in self.pieces.iter_mut().enumerate() {
            let (found, cached) = words.find(piece.key, piece.hash);
            piece.cached = cached;
            // A longer piece has no key.
            if !found && piece.key != 0 {
                each(piece.hash);
                self.missing.push(Missing { index, count: 0, tokens: [0; MAX_SHORT_BYTES] });
            }
        }
    }
}

impl ByteBpe {
    /// Appends the tokens of the queued pieces, which are consecutive, and empties the queue. There is room for one token per byte, and
    /// [`SLACK`].
    #[inline(never)]
    pub fn look_up(
        &self,
        text: &[u8],
        queue: &mut Queue,
        words: &mut WordCache,
        ids: &mut Vec<i32>,
    ) -> Result<(), OutOfMemory> {
        words.limit();
        queue.hash(text, words);
        queue.find_missing(words, |hash| self.short_words.prefetch(hash));
        if !queue.missing.is_empty() {
            self.compute_missing(text, queue)?;
        }
        self.append_tokens(text, queue, words, ids)?;
        for missing in &queue.missing {
            let QueuedPiece { key, hash, .. } = queue.pieces[missing.index];
            words.insert(key, hash, &missing.tokens[..missing.count])?;
        }
        queue.clear();
        Ok(())
    }

    /// Appends the tokens of all pieces. Short ones are in the word cache or missing.
    #[inline(never)]
    fn append_tokens(
        &self,
        text: &[u8],
        Queue { pieces, missing, long, .. }: &mut Queue,
        words: &mut WordCache,
        ids: &mut Vec<i32>,
    ) -> Result<(), OutOfMemory> {
        let (Some(first), Some(last)) = (pieces.first(), pieces.last()) else { return Ok(()) };
        let mut length = ids.len();
        ids.resize(length + last.end - first.start + SLACK, 0);
        let mut missing = missing.iter();
        let mut next = missing.next();
        for (index, piece) in pieces.iter().enumerate() {
            let out = &mut ids[length..];
            length += if let Some(found) = next.filter(|missing| missing.index == index) {
                next = missing.next();
                for (to, token) in out.iter_mut().zip(&found.tokens[..found.count]) {
                    *to = *token as i32;
                }
                found.count
            } else if piece.key != 0 {
                words.copy(piece.cached, out)
            } else {
                let piece = &text[piece.start..piece.end];
                long.clear();
                memory::reserve(long, piece.len())?;
                words.long(piece, long, |tokens| self.piece(piece, tokens))?;
                out[..long.len()].copy_from_slice(long);
                long.len()
            };
        }
        ids.truncate(length);
        if long.capacity() > MAX_LONG_TOKENS {
            *long = Vec::new();
        }
        Ok(())
    }

    /// Computes the tokens of the short pieces that are not cached.
    fn compute_missing(&self, text: &[u8], queue: &mut Queue) -> Result<(), OutOfMemory> {
        let Queue { pieces, missing, unmerged, group, .. } = queue;
        let bytes_of = |missing: &Missing| &text[pieces[missing.index].start..pieces[missing.index].end];
        unmerged.clear();
        for (index, missing) in missing.iter_mut().enumerate() {
            let QueuedPiece { key, hash, .. } = pieces[missing.index];
            let id = match self.short_words.find(key, hash) {
                Found::Id(id) => Some(id),
                Found::Absent => None,
                Found::Unknown => self.vocabulary.find(bytes_of(missing)),
            };
            match id {
                Some(id) => missing.push(id),
                None => unmerged.push(index),
            }
        }
        if self.last_bytes.is_some() {
            // Pieces with a marked last byte are merged one by one.
            for &index in &*unmerged {
                let mut tokens = memory::with_capacity(MAX_SHORT_BYTES)?;
                self.merge(bytes_of(&missing[index]), &mut tokens)?;
                tokens.iter().for_each(|token| missing[index].push(*token));
            }
            return Ok(());
        }
        for indices in unmerged.chunks(merge_group::MAX_PIECES) {
            let mut bytes: [&[u8]; merge_group::MAX_PIECES] = [&[]; merge_group::MAX_PIECES];
            for (bytes, index) in bytes.iter_mut().zip(indices) {
                *bytes = bytes_of(&missing[*index]);
            }
            let pieces = bytes[..indices.len()].iter().copied();
            self.merges.merge_group(group, pieces, |piece, token| missing[indices[piece]].push(token));
        }
        Ok(())
    }
}

const _: () = assert!(MAX_SHORT_BYTES <= merge_group::MAX_BYTES);
