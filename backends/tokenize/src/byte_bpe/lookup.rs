//! Looks up the tokens of pieces, many at a time, so that cache misses overlap. Most pieces are words of the vocabulary: one probe
//! without a branch finds their id. The other pieces are looked up in the word cache, those that are not cached are merged, and the tokens
//! of both are inserted between the ids of the vocabulary words. These steps take more pieces at a time than the first one.

use std::ops::Range;

use super::ByteBpe;
use super::merge_group::{self, Group};
use super::short_words::ShortWords;
use super::word_cache::{self, LONG_KEY, MAX_SHORT_BYTES, PART, Tokens, WordCache};
#[cfg(target_arch = "x86_64")]
use crate::cpu_features::has_avx512;
use crate::memory::{self, OutOfMemory};
use crate::phrase_cache::SLACK;
use crate::split::Sink;

/// Pieces are looked up together when there are at least this many.
const FULL: usize = 192;

/// Maximum number of queued pieces: fewer than [`FULL`], and those of one block.
const MAX_PIECES: usize = 256;

/// Room for the positions of queued pieces: whole vectors are stored behind the last one.
const POSITIONS: usize = MAX_PIECES + 32;

/// Room for the tokens of longer pieces that is kept between calls.
const MAX_LONG_TOKENS: usize = 1 << 16;

/// Ids that are copied at once: vocabulary words between other pieces are rarely more, so that the branch on their number is predicted.
const GROUP: usize = 32;

/// Maximum number of vocabulary words between two calls of [`ByteBpe::resolve`].
const MAX_WORDS: usize = 4096;

/// Maximum number of other pieces. Many are resolved together: only one in four is not cached, and sixteen of these are merged together.
const MAX_PENDING: usize = 1024;

/// Entries of [`Queue::recent`].
const RECENT: usize = 2048;

/// A piece that is not a short word of the vocabulary.
#[derive(Clone, Copy)]
struct Pending {
    key: u128,
    hash: u64,
    start: u32,
    end: u32,
    /// Number of vocabulary words before it.
    words_before: usize,
}

/// Bytes that are not cached: a short piece, or a part of a piece, and their tokens.
#[derive(Clone, Copy)]
struct Merged {
    /// [`LONG_KEY`] for a longer piece, [`LONG_PART`] for a longer part of one.
    key: u128,
    hash: u64,
    start: u32,
    end: u32,
    /// The position of the first token in [`Queue::merged_tokens`], and the number of tokens.
    first: u32,
    count: u32,
    /// The tokens of short bytes once they are cached.
    tokens: Tokens,
}

impl Merged {
    /// The positions of the tokens in [`Queue::merged_tokens`].
    #[inline(always)]
    fn range(&self) -> Range<usize> {
        self.first as usize..(self.first + self.count) as usize
    }
}

/// Longer pieces are merged as a whole, so that the memory for parts is bounded.
const MAX_CUT_BYTES: usize = 1 << 14;

/// The key of a part that is not short. Neither pieces nor short parts have it.
const LONG_PART: u128 = LONG_KEY - 1;

/// A part of a pending piece between two positions that no token crosses: cached, or an index in [`Queue::merged`].
#[derive(Clone, Copy)]
enum Part {
    Cached(Tokens),
    Merged(u32),
}

/// A pending piece that consists of several parts, or of one that is not short.
#[derive(Clone, Copy)]
struct Composite {
    /// Its index among the pending pieces.
    index: u32,
    /// The number of its parts in [`Queue::parts`].
    parts: u32,
    hash: u64,
}

/// Pieces that wait for their lookup, and working memory.
pub struct Queue {
    /// Where each piece starts and ends, relative to `origin`.
    starts: Box<[u32; POSITIONS]>,
    ends: Box<[u32; POSITIONS]>,
    origin: usize,
    /// Number of queued pieces.
    count: usize,
    /// The key of each piece, and its hash.
    keys: Box<[u128; MAX_PIECES]>,
    hashes: Box<[u64; MAX_PIECES]>,
    /// The indices of the queued pieces that are not vocabulary words, and the number of vocabulary words before each.
    others: Box<[(u32, u32); MAX_PIECES]>,
    /// The ids of the vocabulary words that were found, in order.
    words: Box<[i32; MAX_WORDS + GROUP]>,
    /// Their number.
    found: usize,
    /// The other pieces, in order.
    pending: Vec<Pending>,
    /// The tokens of each pending piece. Those that are not in place are in `long` for longer pieces, and in the word cache for short ones.
    tokens: Box<[Tokens; MAX_PENDING]>,
    /// The pending pieces that are not cached.
    missing: Box<[u32; MAX_PENDING]>,
    merged: Vec<Merged>,
    merged_tokens: Vec<i32>,
    /// For some bits of a hash: the last one in `merged` that has them. Others may have had them before, also in earlier calls.
    recent: Box<[u32; RECENT]>,
    /// Pending pieces that are one of `merged`, and its index there.
    simple: Vec<(u32, u32)>,
    composites: Vec<Composite>,
    parts: Vec<Part>,
    /// Indices in `merged` of those that are not in the vocabulary: short ones, and longer ones that are merged in groups.
    unmerged: [Vec<u32>; 2],
    group: Group,
    /// The tokens of longer pieces.
    long: Vec<i32>,
}

impl Queue {
    /// An empty queue.
    pub fn new() -> Result<Queue, OutOfMemory> {
        Ok(Queue {
            starts: memory::array(0)?,
            ends: memory::array(0)?,
            origin: 0,
            count: 0,
            keys: memory::array(LONG_KEY)?,
            hashes: memory::array(0)?,
            others: memory::array((0, 0))?,
            words: memory::array(0)?,
            found: 0,
            pending: memory::with_capacity(MAX_PENDING)?,
            tokens: memory::array(Tokens::NONE)?,
            missing: memory::array(0)?,
            merged: Vec::new(),
            merged_tokens: Vec::new(),
            recent: memory::array(0)?,
            simple: memory::with_capacity(MAX_PENDING)?,
            composites: memory::with_capacity(MAX_PENDING)?,
            parts: Vec::new(),
            unmerged: [Vec::new(), Vec::new()],
            group: Group::new()?,
            long: Vec::new(),
        })
    }

    /// Prepares an empty queue for pieces of the text from `origin` on, at most [`MAX_RANGE`] bytes.
    pub fn begin(&mut self, origin: usize) {
        (self.origin, self.count, self.found) = (origin, 0, 0);
        self.pending.clear();
    }

    /// Adds a piece. Returns whether the queue is full.
    #[inline(always)]
    fn push(&mut self, start: usize, end: usize) -> bool {
        let index = self.count % MAX_PIECES;
        self.starts[index] = (start - self.origin) as u32;
        self.ends[index] = (end - self.origin) as u32;
        self.count += 1;
        self.count >= FULL
    }

    /// Adds the pieces of a block as [`Sink::block`] does, without a loop over pieces. Returns whether the queue is full.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi1,bmi2,popcnt")]
    fn push_block(&mut self, start: usize, block: usize, ends: u64) -> bool {
        use std::arch::x86_64::{
            __m512i, _mm512_add_epi32, _mm512_maskz_compress_epi32, _mm512_set1_epi32, _mm512_setr_epi32,
            _mm512_storeu_si512,
        };
        const LANES: u32 = 16;
        let mut count = self.count % MAX_PIECES;
        self.starts[count] = (start - self.origin) as u32;
        let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        let mut positions = _mm512_add_epi32(_mm512_set1_epi32((block - self.origin) as i32), lanes);
        for quarter in [ends, ends >> LANES, ends >> (2 * LANES), ends >> (3 * LANES)] {
            let found = _mm512_maskz_compress_epi32(quarter as u16, positions);
            // Each piece ends where the next one starts.
            let (starts, ends) = (&raw mut self.starts[count + 1], &raw mut self.ends[count]);
            // SAFETY: fewer than `MAX_PIECES` pieces are before this block, which has at most 64. Behind them there is room for a vector.
            unsafe {
                _mm512_storeu_si512(starts.cast::<__m512i>(), found);
                _mm512_storeu_si512(ends.cast::<__m512i>(), found);
            }
            count += (quarter as u16).count_ones() as usize;
            positions = _mm512_add_epi32(positions, _mm512_set1_epi32(LANES as i32));
        }
        self.count = count;
        count >= FULL
    }

    /// The bytes of a pending piece.
    #[inline(always)]
    fn piece<'a>(&self, text: &'a [u8], pending: Pending) -> &'a [u8] {
        &text[self.origin + pending.start as usize..self.origin + pending.end as usize]
    }

    /// Separates the queued pieces into vocabulary words and pending ones, and empties the queue.
    fn separate(&mut self, text: &[u8], vocabulary: &ShortWords) {
        let others = self.find_words(text, vocabulary);
        for &(index, words_before) in &self.others[..others] {
            let index = index as usize;
            self.pending.push(Pending {
                key: self.keys[index],
                hash: self.hashes[index],
                start: self.starts[index],
                end: self.ends[index],
                words_before: words_before as usize,
            });
        }
        self.count = 0;
    }

    /// Appends the ids of vocabulary words to `words`, and the other pieces to `others`. Returns the number of those.
    fn find_words(&mut self, text: &[u8], vocabulary: &ShortWords) -> usize {
        #[cfg(target_arch = "x86_64")]
        if has_avx512() {
            // SAFETY: the processor has these instructions.
            return unsafe { self.find_words_avx512(text, vocabulary) };
        }
        self.compute_keys(text, vocabulary);
        self.find_words_by(|key, hash| vocabulary.find(key, hash))
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,bmi1,bmi2,popcnt")]
    fn find_words_avx512(&mut self, text: &[u8], vocabulary: &ShortWords) -> usize {
        let last = self.starts[..self.count].iter().max().copied().unwrap_or(0);
        if self.origin + last as usize + 16 <= text.len() {
            // SAFETY: there are 16 bytes from the last start on.
            unsafe { self.compute_keys_avx512(text, vocabulary) };
        } else {
            self.compute_keys(text, vocabulary);
        }
        self.find_words_by(|key, hash| vocabulary.find_avx512(key, hash))
    }

    /// [`Queue::compute_keys`] for eight pieces at a time.
    ///
    /// # Safety
    ///
    /// There are 16 bytes of text from the start of each piece on.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,bmi1,bmi2,popcnt")]
    unsafe fn compute_keys_avx512(&mut self, text: &[u8], vocabulary: &ShortWords) {
        use std::arch::x86_64::*;
        const LANES: usize = 8;
        let all = |value: u64| _mm512_set1_epi64(value as i64);
        let text = text[self.origin..].as_ptr();
        // Lanes behind the last piece are copies of the first one.
        let last = self.count.next_multiple_of(LANES);
        let (start, end) = (self.starts[0], self.ends[0]);
        self.starts[self.count..last].fill(start);
        self.ends[self.count..last].fill(end);
        // Each key fills two lanes.
        let offset = _mm512_setr_epi64(0, 64, 0, 64, 0, 64, 0, 64);
        for first in (0..last).step_by(LANES) {
            // SAFETY: the arrays have room for whole vectors, and the caller says that there are 16 bytes from each start on.
            unsafe {
                let start = _mm256_loadu_si256(self.starts.as_ptr().add(first).cast());
                let end = _mm256_loadu_si256(self.ends.as_ptr().add(first).cast());
                let length = _mm256_min_epu32(
                    _mm256_sub_epi32(end, start),
                    _mm256_set1_epi32(MAX_SHORT_BYTES as i32 + 1),
                );
                let length = _mm512_cvtepu32_epi64(length);
                let mut four = |first: usize, pairs: __m512i| {
                    let window = |index: usize| {
                        _mm_loadu_si128(text.add(self.starts[first + index] as usize).cast::<__m128i>())
                    };
                    let windows = _mm512_castsi128_si512(window(0));
                    let windows = _mm512_inserti32x4::<1>(windows, window(1));
                    let windows = _mm512_inserti32x4::<2>(windows, window(2));
                    let windows = _mm512_inserti32x4::<3>(windows, window(3));
                    let length = _mm512_permutexvar_epi64(pairs, length);
                    let bits =
                        _mm512_sub_epi64(_mm512_max_epu64(_mm512_slli_epi64::<3>(length), offset), offset);
                    // Shifts by 64 and more give zeros.
                    let beyond = _mm512_sllv_epi64(all(u64::MAX), bits);
                    let tag = _mm512_maskz_slli_epi64::<56>(0b1010_1010, length);
                    let key = _mm512_or_si512(_mm512_andnot_si512(beyond, windows), tag);
                    let long = _mm512_cmpgt_epu64_mask(length, all(MAX_SHORT_BYTES as u64));
                    let key = _mm512_mask_mov_epi64(key, long, all(u64::MAX));
                    _mm512_storeu_si512(self.keys.as_mut_ptr().add(first).cast(), key);
                    word_cache::mix_avx512(key)
                };
                let low = four(first, _mm512_setr_epi64(0, 0, 1, 1, 2, 2, 3, 3));
                let high = four(first + 4, _mm512_setr_epi64(4, 4, 5, 5, 6, 6, 7, 7));
                let hash = _mm512_permutex2var_epi64(low, _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14), high);
                _mm512_storeu_si512(self.hashes.as_mut_ptr().add(first).cast(), hash);
            }
            for hash in &self.hashes[first..first + LANES] {
                vocabulary.prefetch(*hash);
            }
        }
    }

    /// Computes the key and the hash of each queued piece and loads its bucket of the vocabulary.
    #[inline(always)]
    fn compute_keys(&mut self, text: &[u8], vocabulary: &ShortWords) {
        let queued =
            self.starts[..self.count].iter().zip(&*self.ends).zip(&mut *self.keys).zip(&mut *self.hashes);
        for (((start, end), key), hash) in queued {
            *key = word_cache::any_key(text, self.origin + *start as usize, self.origin + *end as usize);
            *hash = word_cache::mix(*key);
            vocabulary.prefetch(*hash);
        }
    }

    #[inline(always)]
    fn find_words_by(&mut self, find: impl Fn(u128, u64) -> (bool, u32)) -> usize {
        let (first, mut found) = (self.found, 0);
        let words = &mut self.words[first..first + MAX_PIECES];
        for (index, (key, hash)) in self.keys[..self.count].iter().zip(&*self.hashes).enumerate() {
            let (is_word, id) = find(*key, *hash);
            words[found % MAX_PIECES] = id as i32;
            self.others[(index - found) % MAX_PIECES] = (index as u32, (first + found) as u32);
            found += usize::from(is_word);
        }
        self.found += found;
        self.count - found
    }
}

/// Maximum bytes of a range of text whose pieces are queued.
pub const MAX_RANGE: usize = u32::MAX as usize;

/// Queues pieces, and appends their tokens when the queue is full.
pub struct Pieces<'a> {
    pub bpe: &'a ByteBpe,
    pub text: &'a [u8],
    pub queue: &'a mut Queue,
    pub words: &'a mut WordCache,
    pub ids: &'a mut Vec<i32>,
    /// The first error. Pieces after it are dropped.
    pub result: Result<(), OutOfMemory>,
}

impl Pieces<'_> {
    /// Appends the tokens of the queued pieces.
    pub fn flush(&mut self) {
        self.look_up();
        self.resolve();
    }

    /// Finds the queued pieces in the vocabulary. Appends tokens if the queue has no room for the results of the next ones.
    #[inline(never)]
    fn look_up(&mut self) {
        self.queue.separate(self.text, &self.bpe.short_words);
        let Queue { found, pending, .. } = &*self.queue;
        if *found > MAX_WORDS - MAX_PIECES || pending.len() > MAX_PENDING - MAX_PIECES {
            self.resolve();
        }
    }

    /// Appends the tokens of the pieces that were looked up.
    fn resolve(&mut self) {
        if self.result.is_ok() {
            self.result = self.bpe.resolve(self.text, self.queue, self.words, self.ids);
        }
        self.queue.found = 0;
        self.queue.pending.clear();
    }
}

impl Sink for Pieces<'_> {
    #[inline(always)]
    fn piece(&mut self, start: usize, end: usize) {
        if self.queue.push(start, end) {
            self.look_up();
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi1,bmi2,popcnt")]
    unsafe fn block_avx512(&mut self, start: usize, block: usize, ends: u64) {
        if self.queue.push_block(start, block, ends) {
            self.look_up();
        }
    }
}

impl ByteBpe {
    /// Appends the tokens of all pieces that were looked up. There is room for one token per byte, and [`SLACK`].
    #[inline(never)]
    fn resolve(
        &self,
        text: &[u8],
        queue: &mut Queue,
        words: &mut WordCache,
        ids: &mut Vec<i32>,
    ) -> Result<(), OutOfMemory> {
        if queue.pending.is_empty() {
            ids.extend_from_slice(&queue.words[..queue.found]);
        } else {
            words.limit();
            let count = self.find_pending(text, queue, words)?;
            queue.append_tokens(queue.found + count, words, ids);
        }
        Ok(())
    }

    /// Finds or computes the tokens of the pending pieces. Returns their number.
    fn find_pending(
        &self,
        text: &[u8],
        queue: &mut Queue,
        words: &mut WordCache,
    ) -> Result<usize, OutOfMemory> {
        for pending in &queue.pending {
            words.prefetch(pending.hash);
        }
        let mut missing = 0;
        for (position, (pending, tokens)) in queue.pending.iter().zip(&mut *queue.tokens).enumerate() {
            let (found, cached) = words.find(pending.key, pending.hash);
            *tokens = cached;
            queue.missing[missing % MAX_PENDING] = position as u32;
            missing += usize::from(!found);
        }
        if missing != 0 {
            self.find_missing(text, queue, missing, words)?;
        }
        Ok(queue.tokens[..queue.pending.len()].iter().map(|tokens| tokens.count()).sum())
    }

    /// Computes and caches the tokens of the pending pieces that are not cached.
    #[inline(never)]
    fn find_missing(
        &self,
        text: &[u8],
        queue: &mut Queue,
        missing: usize,
        words: &mut WordCache,
    ) -> Result<(), OutOfMemory> {
        queue.clear_missing();
        for position in 0..missing {
            let index = queue.missing[position] as usize;
            let pending = queue.pending[index];
            if pending.key == LONG_KEY {
                let (piece, start) = (queue.piece(text, pending), queue.long.len());
                memory::reserve(&mut queue.long, piece.len())?;
                match words.find_long(piece, &mut queue.long) {
                    Ok(()) => queue.tokens[index] = Tokens::new(&queue.long[start..], start),
                    Err(hash) => self.add_parts(text, queue, words, index, hash)?,
                }
            } else {
                let Pending { key, hash, start, end, .. } = pending;
                let merged = queue.add_merged(key, hash, start..end)?;
                queue.simple.push((index as u32, merged));
            }
        }
        self.merge_missing(text, queue)?;
        queue.insert_missing(text, words)
    }

    /// Adds the parts of a longer piece that is not cached.
    fn add_parts(
        &self,
        text: &[u8],
        queue: &mut Queue,
        words: &WordCache,
        index: usize,
        hash: u64,
    ) -> Result<(), OutOfMemory> {
        let pending = queue.pending[index];
        let piece = queue.piece(text, pending);
        let (mut start, before) = (0, queue.parts.len());
        while start < piece.len() {
            let boundaries = self.boundaries.as_ref().filter(|_| piece.len() <= MAX_CUT_BYTES);
            let next = boundaries.and_then(|boundaries| boundaries.next(piece, start));
            let end = next.unwrap_or(piece.len());
            let range = pending.start + start as u32..pending.start + end as u32;
            let part = if end - start > MAX_SHORT_BYTES {
                let key = if end - start == piece.len() { LONG_KEY } else { LONG_PART };
                Part::Merged(queue.push_merged(key, 0, range)?)
            } else {
                let origin = queue.origin + pending.start as usize;
                let key = word_cache::any_key(text, origin + start, origin + end) | PART;
                let hash = word_cache::mix(key);
                match words.find(key, hash) {
                    (true, tokens) => Part::Cached(tokens),
                    (false, _) => Part::Merged(queue.add_merged(key, hash, range)?),
                }
            };
            memory::reserve(&mut queue.parts, 1)?;
            queue.parts.push(part);
            start = end;
        }
        let parts = (queue.parts.len() - before) as u32;
        queue.composites.push(Composite { index: index as u32, parts, hash });
        Ok(())
    }

    /// Computes the tokens of the bytes that are not cached.
    fn merge_missing(&self, text: &[u8], queue: &mut Queue) -> Result<(), OutOfMemory> {
        let Queue { origin, merged, merged_tokens, unmerged, group, .. } = queue;
        let bytes_of =
            |merged: &Merged| &text[*origin + merged.start as usize..*origin + merged.end as usize];
        for unmerged in &mut *unmerged {
            unmerged.clear();
            memory::reserve(unmerged, merged.len())?;
        }
        for (index, merged) in merged.iter_mut().enumerate() {
            let bytes = bytes_of(merged);
            // A part that is not the whole piece is no piece, so it does not become a token of the vocabulary.
            let may_be_word =
                merged.key == LONG_KEY || merged.key & PART == 0 && self.short_words.overflowed(merged.hash);
            let word = if may_be_word { self.vocabulary.find(bytes) } else { None };
            let is_grouped = self.last_bytes.is_none() && bytes.len() <= merge_group::MAX_BYTES;
            if word.is_none() && is_grouped {
                unmerged[usize::from(bytes.len() >= merge_group::HALF)].push(index as u32);
                continue;
            }
            merged.first = merged_tokens.len() as u32;
            memory::reserve(merged_tokens, bytes.len())?;
            match word {
                Some(id) => merged_tokens.push(id as i32),
                None => {
                    let mut tokens = memory::with_capacity(bytes.len())?;
                    self.merge(bytes, &mut tokens)?;
                    merged_tokens.extend(tokens.iter().map(|token| *token as i32));
                }
            }
            merged.count = merged_tokens.len() as u32 - merged.first;
        }
        for indices in unmerged.iter().flat_map(|indices| indices.chunks(merge_group::MAX_PIECES)) {
            let mut bytes: [&[u8]; merge_group::MAX_PIECES] = [&[]; merge_group::MAX_PIECES];
            for (bytes, index) in bytes.iter_mut().zip(indices) {
                *bytes = bytes_of(&merged[*index as usize]);
            }
            let (mut first, mut counts) = (merged_tokens.len() as u32, [0; merge_group::MAX_PIECES]);
            self.merges.merge_group(group, &bytes[..indices.len()], merged_tokens, &mut counts)?;
            for (index, count) in indices.iter().zip(counts) {
                let merged = &mut merged[*index as usize];
                (merged.first, merged.count) = (first, count);
                first += count;
            }
        }
        Ok(())
    }
}

impl Queue {
    /// Forgets the pieces that were not cached.
    fn clear_missing(&mut self) {
        self.merged.clear();
        self.merged_tokens.clear();
        self.simple.clear();
        self.composites.clear();
        self.parts.clear();
        self.long.clear();
        if self.long.capacity() > MAX_LONG_TOKENS {
            self.long = Vec::new();
        }
    }

    /// Adds bytes that are not cached, unless they were added before: new words often occur again soon. Returns their index.
    #[inline(always)]
    fn add_merged(&mut self, key: u128, hash: u64, range: Range<u32>) -> Result<u32, OutOfMemory> {
        let recent = (hash >> 32) as usize % RECENT;
        let index = self.recent[recent];
        match self.merged.get(index as usize) {
            Some(merged) if merged.key == key => Ok(index),
            _ => {
                let index = self.push_merged(key, hash, range)?;
                self.recent[recent] = index;
                Ok(index)
            }
        }
    }

    #[inline(always)]
    fn push_merged(&mut self, key: u128, hash: u64, range: Range<u32>) -> Result<u32, OutOfMemory> {
        memory::reserve(&mut self.merged, 1)?;
        self.merged.push(Merged {
            key,
            hash,
            start: range.start,
            end: range.end,
            first: 0,
            count: 0,
            tokens: Tokens::NONE,
        });
        Ok(self.merged.len() as u32 - 1)
    }

    /// Caches the tokens of the pieces and parts that were not cached.
    fn insert_missing(&mut self, text: &[u8], words: &mut WordCache) -> Result<(), OutOfMemory> {
        let Queue { pending, origin, tokens, merged, merged_tokens, long, .. } = self;
        for merged in merged.iter_mut().filter(|merged| merged.key < LONG_PART) {
            merged.tokens = words.insert(merged.key, merged.hash, &merged_tokens[merged.range()])?;
        }
        for &(index, position) in &self.simple {
            tokens[index as usize] = merged[position as usize].tokens;
        }
        let mut parts = self.parts.iter();
        for composite in &self.composites {
            let (Pending { start, end, .. }, first) = (pending[composite.index as usize], long.len());
            let piece = &text[*origin + start as usize..*origin + end as usize];
            memory::reserve(long, piece.len() + SLACK)?;
            for part in parts.by_ref().take(composite.parts as usize) {
                match part {
                    Part::Cached(tokens) => words.append(*tokens, long),
                    Part::Merged(index) => {
                        long.extend_from_slice(&merged_tokens[merged[*index as usize].range()]);
                    }
                }
            }
            words.insert_long(piece, composite.hash, &long[first..])?;
            tokens[composite.index as usize] = Tokens::new(&long[first..], first);
        }
        Ok(())
    }

    /// Appends the ids of vocabulary words and the tokens of pending pieces in order, `count` in total.
    #[inline(never)]
    fn append_tokens(&self, count: usize, words: &WordCache, ids: &mut Vec<i32>) {
        let first = ids.len();
        ids.resize(first + count + SLACK, 0);
        let out = &mut ids[first..];
        let (mut length, mut copied) = (0, 0);
        for (pending, tokens) in self.pending.iter().zip(&*self.tokens) {
            let before = pending.words_before;
            copy_groups(&mut out[length..], &self.words[copied..], before - copied);
            length += before - copied;
            copied = before;
            let out = &mut out[length..];
            length += tokens.count();
            if tokens.are_inline() {
                // Without a branch on their number.
                tokens.write(out);
            } else if pending.key == LONG_KEY {
                out[..tokens.count()].copy_from_slice(&self.long[tokens.elsewhere()]);
            } else {
                words.write_spilled(*tokens, out);
            }
        }
        copy_groups(&mut out[length..], &self.words[copied..], self.found - copied);
        debug_assert_eq!(length + self.found - copied, count);
        ids.truncate(first + count);
    }
}

/// Copies `count` ids, rounded up to whole groups.
#[inline(always)]
fn copy_groups(to: &mut [i32], from: &[i32], count: usize) {
    let groups = count.div_ceil(GROUP);
    for (to, from) in to.as_chunks_mut::<GROUP>().0.iter_mut().zip(from.as_chunks::<GROUP>().0).take(groups) {
        *to = *from;
    }
}

const _: () = assert!(MAX_SHORT_BYTES < merge_group::HALF && GROUP <= SLACK);

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::byte_alphabet::character_of;
    use crate::byte_bpe::ThreadCaches;
    use crate::definition;

    /// A tokenizer with merges over a few letters. If it ignores merges, it has tokens that no merges produce, some of them long.
    fn tokenizer(ignores_merges: bool) -> ByteBpe {
        let mut tokens: Vec<String> = (0..=255).map(|byte| character_of(byte).to_string()).collect();
        let mut merges = Vec::new();
        let mut known = ["a", "b", "c", "Ġ"].map(str::to_owned).to_vec();
        for step in 0..80usize {
            let (left, right) = (&known[step * 7 % known.len()], &known[step * 5 % known.len()]);
            let text = [left.as_str(), right].concat();
            if text.len() <= 24
                && !tokens.contains(&text)
                && !text.chars().skip(1).any(|character| character == 'Ġ')
            {
                merges.push(json!([left, right]));
                tokens.push(text.clone());
                known.push(text);
            }
        }
        if ignores_merges {
            tokens.extend([15, 16, 30, 31, 97].map(|length| "cab".repeat(33)[..length].to_owned()));
        }
        let vocabulary: serde_json::Map<String, serde_json::Value> =
            tokens.into_iter().zip(0..).map(|(token, id)| (token, json!(id))).collect();
        let definition = json!({
            "model": {"type": "BPE", "vocab": vocabulary, "merges": merges, "ignore_merges": ignores_merges},
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
            "decoder": {"type": "ByteLevel"},
        });
        ByteBpe::new(definition::byte_level_bpe(&definition).unwrap()).unwrap()
    }

    fn tokenizers() -> &'static [ByteBpe; 2] {
        static TOKENIZERS: OnceLock<[ByteBpe; 2]> = OnceLock::new();
        TOKENIZERS.get_or_init(|| [tokenizer(false), tokenizer(true)])
    }

    /// Compares the tokens of a text with those of each piece alone.
    fn check(bpe: &ByteBpe, text: &str) {
        let mut expected = Vec::new();
        bpe.splitter.for_each(text, |start, end| {
            expected.reserve(end - start);
            bpe.piece(&text.as_bytes()[start..end], &mut expected).unwrap();
        });
        let expected: Vec<i32> = expected.into_iter().map(|token| token as i32).collect();
        let ThreadCaches { mut words, mut queue, .. } = ThreadCaches::new().unwrap();
        // The second time the pieces are cached.
        for _ in 0..2 {
            let mut ids = vec![-1];
            memory::reserve(&mut ids, text.len() + SLACK).unwrap();
            bpe.words(text, 0, text.len(), &mut words, &mut queue, &mut ids).unwrap();
            assert!(ids[1..] == expected, "{text}");
        }
        let mut ids = Vec::new();
        bpe.one_by_one(text, 0, text.len(), &mut ids).unwrap();
        assert!(ids == expected, "{text}");
    }

    /// The expression is parsed once: proptest would parse a text for each word.
    fn word() -> impl Strategy<Value = String> {
        prop::string::string_regex("[abc]{0,40}|(cab){1,33}|[abcé世]{1,12}|[0-9 \n]{1,3}|🎉").unwrap()
    }

    proptest! {
        #[test]
        fn queued_pieces_have_the_tokens_of_each_alone(
            words in prop::collection::vec(word(), 0..600),
        ) {
            for bpe in tokenizers() {
                check(bpe, &words.join(" "));
            }
        }
    }

    #[test]
    fn texts_with_more_pieces_than_there_is_room_for_are_resolved_in_parts() {
        // Words of the vocabulary, and others that occur several times at different distances.
        let vocabulary = "a1".repeat(2 * MAX_WORDS);
        let others: String =
            (0..4 * MAX_PENDING).map(|number| format!(" cb{}", number * number % 1999)).collect();
        let both: String = (0..MAX_WORDS).map(|number| format!(" a ab{}c", number % 700)).collect();
        for bpe in tokenizers() {
            for text in [&vocabulary, &others, &both] {
                check(bpe, text);
            }
        }
    }
}
