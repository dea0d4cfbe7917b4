//! Looks up the tokens of pieces, many at a time, so that cache misses overlap. Most pieces are words of the vocabulary: one probe
//! without a branch finds their id. The other pieces are looked up in the word cache, those that are not cached are merged, and the tokens
//! of both are inserted between the ids of the vocabulary words.

use super::ByteBpe;
use super::merge_group::{self, Group};
use super::short_words::ShortWords;
use super::word_cache::{self, LONG_KEY, MAX_SHORT_BYTES, Tokens, WordCache};
#[cfg(target_arch = "x86_64")]
use crate::cpu_features::has_avx512;
use crate::memory::{self, OutOfMemory};
use crate::phrase_cache::SLACK;

/// Number of pieces that are looked up together.
const MAX_PIECES: usize = 256;

/// Room for the tokens of longer pieces that is kept between calls.
const MAX_LONG_TOKENS: usize = 1 << 16;

/// Ids that are copied at once: vocabulary words between other pieces are rarely more, so that the branch on their number is predicted.
const GROUP: usize = 32;

/// A piece that waits for its lookup: its position in the text.
#[derive(Clone, Copy)]
struct Span {
    start: usize,
    end: usize,
}

impl Span {
    fn of(self, text: &[u8]) -> &[u8] {
        &text[self.start..self.end]
    }
}

/// A piece that is not a short word of the vocabulary.
#[derive(Clone, Copy)]
struct Pending {
    /// Its index in the queue.
    index: u32,
    /// Number of vocabulary words before it in the queue.
    words_before: u32,
}

/// A short piece that is not cached, and its tokens.
#[derive(Clone, Copy)]
struct Merged {
    /// Its index in the queue, and among the pending pieces.
    index: usize,
    pending: usize,
    count: usize,
    tokens: [i32; MAX_SHORT_BYTES + 1],
}

impl Merged {
    #[inline(always)]
    fn push(&mut self, token: u32) {
        self.tokens[self.count % (MAX_SHORT_BYTES + 1)] = token as i32;
        self.count += 1;
    }
}

/// Pieces that wait for their lookup, and working memory.
pub struct Queue {
    spans: Box<[Span; MAX_PIECES]>,
    /// Number of queued pieces.
    count: usize,
    /// The key of each piece, and its hash.
    keys: Box<[u128; MAX_PIECES]>,
    hashes: Box<[u64; MAX_PIECES]>,
    /// The ids of the vocabulary words among the pieces, in order.
    words: Box<[i32; MAX_PIECES + GROUP]>,
    /// The other pieces, in order.
    pending: Box<[Pending; MAX_PIECES]>,
    /// The tokens of each pending piece. Those that are not in place are in `long` for longer pieces, and in the word cache for short ones.
    tokens: Box<[Tokens; MAX_PIECES]>,
    /// The pending pieces that are not cached.
    missing: Box<[u32; MAX_PIECES]>,
    merged: Vec<Merged>,
    /// Indices in `merged` of pieces that are not in the vocabulary.
    unmerged: Vec<usize>,
    group: Group,
    /// The tokens of longer pieces.
    long: Vec<i32>,
}

impl Queue {
    /// An empty queue.
    pub fn new() -> Result<Queue, OutOfMemory> {
        Ok(Queue {
            spans: memory::array(Span { start: 0, end: 0 })?,
            count: 0,
            keys: memory::array(LONG_KEY)?,
            hashes: memory::array(0)?,
            words: memory::array(0)?,
            pending: memory::array(Pending { index: 0, words_before: 0 })?,
            tokens: memory::array(Tokens::NONE)?,
            missing: memory::array(0)?,
            merged: memory::with_capacity(MAX_PIECES)?,
            unmerged: memory::with_capacity(MAX_PIECES)?,
            group: Group::new()?,
            long: Vec::new(),
        })
    }

    /// Adds a piece. Returns whether the queue is full; then there is no room for another piece.
    #[inline(always)]
    pub fn push(&mut self, start: usize, end: usize) -> bool {
        self.spans[self.count % MAX_PIECES] = Span { start, end };
        self.count += 1;
        self.count == MAX_PIECES
    }

    /// Removes all pieces.
    #[inline(always)]
    pub fn clear(&mut self) {
        self.count = 0;
    }

    /// Computes the keys of the pieces and loads their buckets of the vocabulary.
    #[inline(never)]
    fn compute_keys(&mut self, text: &[u8], vocabulary: &ShortWords) {
        let queued = self.spans[..self.count].iter().zip(&mut *self.keys).zip(&mut *self.hashes);
        for ((span, key), hash) in queued {
            *key = word_cache::any_key(text, span.start, span.end);
            *hash = word_cache::mix(*key);
            vocabulary.prefetch(*hash);
        }
    }

    /// Separates the pieces into vocabulary words, whose ids are in `words`, and `pending` ones. Returns the number of both.
    fn find_words(&mut self, vocabulary: &ShortWords) -> (usize, usize) {
        #[cfg(target_arch = "x86_64")]
        if has_avx512() {
            // SAFETY: the processor has these instructions.
            return unsafe { self.find_words_avx512(vocabulary) };
        }
        self.find_words_by(|key, hash| vocabulary.find(key, hash))
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi1,bmi2")]
    fn find_words_avx512(&mut self, vocabulary: &ShortWords) -> (usize, usize) {
        self.find_words_by(|key, hash| vocabulary.find_avx512(key, hash))
    }

    #[inline(always)]
    fn find_words_by(&mut self, find: impl Fn(u128, u64) -> (bool, u32)) -> (usize, usize) {
        let mut words = 0;
        for (index, (key, hash)) in self.keys[..self.count].iter().zip(&*self.hashes).enumerate() {
            let (found, id) = find(*key, *hash);
            self.words[words % MAX_PIECES] = id as i32;
            let pending = Pending { index: index as u32, words_before: words as u32 };
            self.pending[(index - words) % MAX_PIECES] = pending;
            words += usize::from(found);
        }
        (words, self.count - words)
    }
}

impl ByteBpe {
    /// Appends the tokens of the queued pieces and empties the queue. There is room for one token per byte, and [`SLACK`].
    #[inline(never)]
    pub fn look_up(
        &self,
        text: &[u8],
        queue: &mut Queue,
        words: &mut WordCache,
        ids: &mut Vec<i32>,
    ) -> Result<(), OutOfMemory> {
        queue.compute_keys(text, &self.short_words);
        let (found, pending) = queue.find_words(&self.short_words);
        if pending == 0 {
            ids.extend_from_slice(&queue.words[..found]);
        } else {
            words.limit();
            let count = found + self.find_pending(text, queue, pending, words)?;
            queue.append_tokens(found, pending, count, words, ids);
        }
        queue.clear();
        Ok(())
    }

    /// Finds or computes the tokens of the pending pieces. Returns their number.
    fn find_pending(
        &self,
        text: &[u8],
        queue: &mut Queue,
        pending: usize,
        words: &mut WordCache,
    ) -> Result<usize, OutOfMemory> {
        for pending in &queue.pending[..pending] {
            words.prefetch(queue.hashes[pending.index as usize]);
        }
        let mut missing = 0;
        for (position, (pending, tokens)) in
            queue.pending[..pending].iter().zip(&mut *queue.tokens).enumerate()
        {
            let index = pending.index as usize;
            let (found, cached) = words.find(queue.keys[index], queue.hashes[index]);
            *tokens = cached;
            queue.missing[missing % MAX_PIECES] = position as u32;
            missing += usize::from(!found);
        }
        if missing != 0 {
            self.find_missing(text, queue, missing, words)?;
        }
        Ok(queue.tokens[..pending].iter().map(|tokens| tokens.count()).sum())
    }

    /// Computes the tokens of the pending pieces that are not cached, and caches those of short ones.
    #[inline(never)]
    fn find_missing(
        &self,
        text: &[u8],
        queue: &mut Queue,
        missing: usize,
        words: &mut WordCache,
    ) -> Result<(), OutOfMemory> {
        queue.merged.clear();
        queue.long.clear();
        if queue.long.capacity() > MAX_LONG_TOKENS {
            queue.long = Vec::new();
        }
        for pending in &queue.missing[..missing] {
            let pending = *pending as usize;
            let index = queue.pending[pending].index as usize;
            if queue.keys[index] == LONG_KEY {
                let (piece, start) = (queue.spans[index].of(text), queue.long.len());
                memory::reserve(&mut queue.long, piece.len())?;
                words.long(piece, &mut queue.long, |tokens| self.piece(piece, tokens))?;
                queue.tokens[pending] = Tokens::new(&queue.long[start..], start);
            } else {
                queue.merged.push(Merged { index, pending, count: 0, tokens: [0; MAX_SHORT_BYTES + 1] });
            }
        }
        self.merge_pending(text, queue)?;
        for merged in &queue.merged {
            let (key, hash) = (queue.keys[merged.index], queue.hashes[merged.index]);
            queue.tokens[merged.pending] = words.insert(key, hash, &merged.tokens[..merged.count])?;
        }
        Ok(())
    }

    /// Computes the tokens of the short pieces that are not cached.
    fn merge_pending(&self, text: &[u8], queue: &mut Queue) -> Result<(), OutOfMemory> {
        let Queue { spans, hashes, merged, unmerged, group, .. } = queue;
        let bytes_of = |merged: &Merged| spans[merged.index].of(text);
        unmerged.clear();
        for (index, merged) in merged.iter_mut().enumerate() {
            let overflowed = self.short_words.overflowed(hashes[merged.index]);
            match if overflowed { self.vocabulary.find(bytes_of(merged)) } else { None } {
                Some(id) => merged.push(id),
                None => unmerged.push(index),
            }
        }
        if self.last_bytes.is_some() {
            // Pieces with a marked last byte are merged one by one.
            for &index in &*unmerged {
                let mut tokens = memory::with_capacity(MAX_SHORT_BYTES)?;
                self.merge(bytes_of(&merged[index]), &mut tokens)?;
                tokens.iter().for_each(|token| merged[index].push(*token));
            }
            return Ok(());
        }
        for indices in unmerged.chunks(merge_group::MAX_PIECES) {
            let mut bytes: [&[u8]; merge_group::MAX_PIECES] = [&[]; merge_group::MAX_PIECES];
            for (bytes, index) in bytes.iter_mut().zip(indices) {
                *bytes = bytes_of(&merged[*index]);
            }
            let pieces = bytes[..indices.len()].iter().copied();
            self.merges.merge_group(group, pieces, |piece, token| merged[indices[piece]].push(token));
        }
        Ok(())
    }
}

impl Queue {
    /// Appends the ids of `found` vocabulary words and the tokens of `pending` pieces in order, `count` in total.
    #[inline(never)]
    fn append_tokens(
        &self,
        found: usize,
        pending: usize,
        count: usize,
        words: &WordCache,
        ids: &mut Vec<i32>,
    ) {
        let first = ids.len();
        ids.resize(first + count + SLACK, 0);
        let out = &mut ids[first..];
        let (mut length, mut copied) = (0, 0);
        for (pending, tokens) in self.pending[..pending].iter().zip(&*self.tokens) {
            let before = pending.words_before as usize;
            copy_groups(&mut out[length..], &self.words[copied..], before - copied);
            length += before - copied;
            copied = before;
            let out = &mut out[length..];
            length += tokens.count();
            if tokens.are_inline() {
                // Without a branch on their number.
                tokens.write(out);
            } else if self.keys[pending.index as usize] == LONG_KEY {
                out[..tokens.count()].copy_from_slice(&self.long[tokens.elsewhere()]);
            } else {
                words.write_spilled(*tokens, out);
            }
        }
        copy_groups(&mut out[length..], &self.words[copied..], found - copied);
        debug_assert_eq!(length + found - copied, count);
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

const _: () = assert!(MAX_SHORT_BYTES <= merge_group::MAX_BYTES && GROUP <= SLACK);

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

    proptest! {
        #[test]
        fn queued_pieces_have_the_tokens_of_each_alone(
            words in prop::collection::vec("[abc]{0,40}|(cab){1,33}|[abcé世]{1,12}|[0-9 \n]{1,3}|🎉", 0..600),
        ) {
            let text = words.join(" ");
            static TOKENIZERS: OnceLock<[ByteBpe; 2]> = OnceLock::new();
            for bpe in TOKENIZERS.get_or_init(|| [tokenizer(false), tokenizer(true)]) {
                let mut expected = Vec::new();
                bpe.splitter.for_each(&text, |start, end| {
                    expected.reserve(end - start);
                    bpe.piece(&text.as_bytes()[start..end], &mut expected).unwrap();
                });
                let expected: Vec<i32> = expected.into_iter().map(|token| token as i32).collect();
                let ThreadCaches { mut words, mut queue, .. } = ThreadCaches::new().unwrap();
                // The second time the pieces are cached.
                for _ in 0..2 {
                    let mut ids = vec![-1];
                    memory::reserve(&mut ids, text.len() + SLACK).unwrap();
                    bpe.words(&text, 0, text.len(), &mut words, &mut queue, &mut ids).unwrap();
                    prop_assert_eq!(&ids[1..], &expected);
                }
            }
        }
    }
}
