//! Native byte-level BPE: hand-written pretokenizers, a word cache, and merges in O(n log n) on a perfect-hash map of ranks.

mod boundaries;
mod lookup;
pub mod merge;
mod merge_group;
mod pair_ranks;
mod short_words;
pub mod word_cache;

use lz_core::fork::Mutex;
use lz_core::{KernelError, Reason, ReasonCode};
use lz_ops::tokenizer::Tokenizer;
use serde_json::Value;

use self::boundaries::Boundaries;
use self::lookup::{MAX_RANGE, Pieces, Queue};
use self::merge::{MAX_PAIRS, Merges, Pair};
use self::short_words::ShortWords;
use self::word_cache::WordCache;
use crate::byte_alphabet;
use crate::coder::{Coder, Encoded, EqualityTest, encode_by_definition};
use crate::definition::{self, ByteLevelBpe, TrimOffsets};
use crate::long_text;
use crate::memory::{self, OutOfMemory};
use crate::phrase_cache::PhraseCache;
use crate::pipeline::{Part, Pipeline};
use crate::split::Splitter;
use crate::vocabulary::{MAX_IDS, Vocabulary};

/// Byte-level BPE for one tokenizer.
pub struct ByteBpe {
    pipeline: Pipeline,
    splitter: Splitter,
    trim_offsets: Option<TrimOffsets>,
    merges: Merges,
    /// The tokens of the last byte of a piece, if tokens that end a piece are marked.
    last_bytes: LastBytes,
    vocabulary: Vocabulary,
    /// The words of `vocabulary` that pieces can be, for pieces that are not cached.
    short_words: ShortWords,
    /// The positions of a piece that no token crosses, unless tokens that end a piece are marked.
    boundaries: Option<Boundaries>,
    /// The decoded bytes of each id, of the model and of added tokens.
    decoded: Vocabulary,
    /// Sorted ids of special tokens.
    special: Vec<u32>,
    /// Caches that no thread uses at the moment. A call takes one and returns it.
    cache_pool: Mutex<Vec<ThreadCaches>>,
}

/// The caches that one thread uses during a call.
struct ThreadCaches {
    words: WordCache,
    phrases: PhraseCache,
    queue: Queue,
}

impl ThreadCaches {
    fn new() -> Result<ThreadCaches, OutOfMemory> {
        Ok(ThreadCaches { words: WordCache::new()?, phrases: PhraseCache::default(), queue: Queue::new()? })
    }
}

type LastBytes = Option<Box<[u32; 256]>>;

impl Coder for ByteBpe {
    const OFFSETS: bool = true;
    const DECODES: bool = true;
    const MODEL: Option<&'static str> = Some(definition::BYTE_BPE);
    const EQUALITY_TEST: EqualityTest = EqualityTest::Texts;

    fn build(_: &Tokenizer, definition: &Value) -> Result<ByteBpe, Reason> {
        ByteBpe::new(definition::byte_level_bpe(definition)?)
    }

    fn encode(
        &self,
        tokenizer: &Tokenizer,
        texts: &[&str],
        special: bool,
        out: &mut Encoded,
    ) -> Result<(), KernelError> {
        let mut caches = self.take_caches()?;
        memory::reserve(&mut out.ends, texts.len())?;
        for text in texts {
            self.encode_one(tokenizer, text, special, &mut caches, out)?;
        }
        self.cache_pool.lock().push(caches);
        Ok(())
    }

    fn decode(&self, _: &Tokenizer, ids: &[u32], skip_special: bool) -> Result<String, KernelError> {
        let mut bytes = memory::with_capacity(ids.len() * 4)?;
        for id in ids {
            if !(skip_special && self.special.binary_search(id).is_ok()) {
                let token = self.decoded.bytes_of(*id);
                memory::reserve(&mut bytes, token.len())?;
                bytes.extend_from_slice(token);
            }
        }
        Ok(memory::text_of(bytes)?)
    }
}

impl ByteBpe {
    /// Caches that no other thread uses.
    fn take_caches(&self) -> Result<ThreadCaches, OutOfMemory> {
        let pooled = self.cache_pool.lock().pop();
        pooled.map_or_else(ThreadCaches::new, Ok)
    }

    fn new(definition: ByteLevelBpe) -> Result<ByteBpe, Reason> {
        let tokens = definition.token_bytes();
        let (merges, last_bytes) = merges_of(&definition, &tokens)?;
        let pairs = last_pairs(&tokens, &merges, last_bytes.as_deref())?;
        let mut vocabulary = Vocabulary::new(&tokens);
        // A piece equal to a token becomes that token if `ignore_merges` is set or if merging its bytes produces it.
        let is_piece = |((id, token), pair): &((u32, &Vec<u8>), &Option<Pair>)| {
            let merged = match (token.as_slice(), &last_bytes) {
                ([byte], Some(last)) => last[usize::from(*byte)] == *id,
                ([_], None) => true,
                _ => pair.is_some_and(|pair| merges.token(pair.rank) == *id),
            };
            !token.is_empty() && (definition.ignores_merges || merged)
        };
        let pieces: Vec<u32> =
            (0..).zip(&tokens).zip(&pairs).filter(is_piece).map(|((id, _), _)| id).collect();
        pieces.iter().for_each(|id| vocabulary.index(*id));
        let words = pieces.iter().map(|id| (tokens[*id as usize].as_slice(), *id));
        let short_words = ShortWords::new(words, pieces.len())?;
        // When a token is produced, no merge has crossed its ends, so its bytes were merged as if they were alone: the last merge is
        // always the same. The other pairs with the same result never occur and are dropped; there are several times as many.
        // Marked tokens differ from unmarked ones with the same bytes, so their pairs are all kept.
        let merges = match &last_bytes {
            None => merges.reduced_to(&pairs.into_iter().flatten().collect::<Vec<_>>()),
            Some(_) => merges,
        };
        let boundaries = last_bytes.is_none().then(|| Boundaries::new(&tokens));
        let decoded = decoded_of(&definition);
        let mut special: Vec<u32> =
            definition.added.iter().filter(|added| added.special).map(|added| added.id).collect();
        special.sort_unstable();
        Ok(ByteBpe {
            pipeline: Pipeline::new(&definition)?,
            splitter: definition.splitter,
            trim_offsets: definition.trim_offsets,
            merges,
            last_bytes,
            vocabulary,
            short_words,
            boundaries,
            decoded,
            special,
            cache_pool: Mutex::default(),
        })
    }

    fn encode_one(
        &self,
        tokenizer: &Tokenizer,
        text: &str,
        special: bool,
        caches: &mut ThreadCaches,
        out: &mut Encoded,
    ) -> Result<(), KernelError> {
        if out.offsets.is_none() {
            self.pipeline.encode(text, special, &mut out.ids, |part, ids| self.plain(part, caches, ids))?;
            out.end_text();
            return Ok(());
        }
        if !self.pipeline.preserves_offsets(text) {
            // Offsets of changed text are left to the definition.
            return encode_by_definition(tokenizer, text, special, out);
        }
        let first = out.ids.len();
        if special {
            out.reserve(self.pipeline.before.len())?;
            self.pipeline.before.iter().for_each(|id| out.push(*id, 0, 0));
        }
        self.pipeline.for_each(text, |part| match part {
            Part::Plain { text, start } => self.encode_with_offsets(text, start, first, out),
            Part::Token { id, text, start } => {
                let blank = |character: &char| *character == 'Ġ' || character.is_whitespace();
                let leading = text.chars().take_while(blank).count();
                let trailing = text.chars().rev().take_while(blank).count();
                let is_first = out.ids.len() == first;
                let (start, end) = self.trimmed((start, start + text.len()), leading, trailing, is_first);
                out.reserve(1)?;
                out.push(id, start, end);
                Ok(())
            }
        })?;
        if special {
            out.reserve(self.pipeline.after.len())?;
            self.pipeline.after.iter().for_each(|id| out.push(*id, 0, 0));
        }
        out.end_text();
        Ok(())
    }

    #[inline]
    fn plain(&self, text: &str, caches: &mut ThreadCaches, ids: &mut Vec<i32>) -> Result<(), OutOfMemory> {
        let begins = |position: usize| self.splitter.begins_piece(text, position);
        match long_text::parts(0, text.len(), begins) {
            None => self.part(text, 0, text.len(), caches, ids),
            Some(bounds) => long_text::encode(&bounds, ids, |start, end, ids| {
                let mut caches = self.take_caches()?;
                self.part(text, start, end, &mut caches, ids)?;
                self.cache_pool.lock().push(caches);
                Ok(())
            }),
        }
    }

    /// Appends the tokens of a text between two positions at which pieces begin, by phrases.
    #[inline]
    fn part(
        &self,
        text: &str,
        start: usize,
        end: usize,
        caches: &mut ThreadCaches,
        ids: &mut Vec<i32>,
    ) -> Result<(), OutOfMemory> {
        let ThreadCaches { words, phrases, queue } = caches;
        let begins = |position: usize| self.splitter.begins_piece(text, position);
        phrases.encode(&text.as_bytes()[..end], start, ids, begins, |start, end, ids| {
            self.words(text, start, end, words, queue, ids)?;
            Ok(true)
        })
    }

    /// Appends the tokens of a text between two positions at which pieces begin.
    fn words(
        &self,
        text: &str,
        start: usize,
        end: usize,
        words: &mut WordCache,
        queue: &mut Queue,
        ids: &mut Vec<i32>,
    ) -> Result<(), OutOfMemory> {
        if end - start > MAX_RANGE {
            return self.one_by_one(text, start, end, ids);
        }
        queue.begin(start);
        let mut pieces = Pieces { bpe: self, text: text.as_bytes(), queue, words, ids, result: Ok(()) };
        self.splitter.between(text, start, end, &mut pieces);
        pieces.flush();
        pieces.result
    }

    /// Appends the tokens of a range of text whose positions do not fit into the queue, without caches.
    #[cold]
    fn one_by_one(
        &self,
        text: &str,
        start: usize,
        end: usize,
        ids: &mut Vec<i32>,
    ) -> Result<(), OutOfMemory> {
        let (mut tokens, mut result) = (Vec::new(), Ok(()));
        self.splitter.between(text, start, end, &mut |start, end| {
            if result.is_err() {
                return;
            }
            tokens.clear();
            result = memory::reserve(&mut tokens, end - start)
                .and_then(|()| self.piece(&text.as_bytes()[start..end], &mut tokens))
                .and_then(|()| memory::reserve(ids, tokens.len()));
            if result.is_ok() {
                ids.extend(tokens.iter().map(|token| *token as i32));
            }
        });
        result
    }

    /// Computes the tokens of a piece that is not cached.
    #[inline(never)]
    fn piece(&self, piece: &[u8], tokens: &mut Vec<u32>) -> Result<(), OutOfMemory> {
        match self.vocabulary.find(piece) {
            Some(id) => tokens.push(id),
            None => self.merge(piece, tokens)?,
        }
        Ok(())
    }

    /// Computes the tokens of a piece that is not a token.
    fn merge(&self, piece: &[u8], tokens: &mut Vec<u32>) -> Result<(), OutOfMemory> {
        match self.last_bytes.as_deref() {
            None => self.merges.merge(piece, tokens),
            Some(last) => {
                let symbols = self.merges.marked_symbols(piece, last)?;
                self.merges.merge_each(&symbols, |token| tokens.push(token))
            }
        }
    }

    /// Encodes text without added tokens. `base` is its offset, `first` the number of ids before the caller's text.
    fn encode_with_offsets(
        &self,
        text: &str,
        base: usize,
        first: usize,
        out: &mut Encoded,
    ) -> Result<(), OutOfMemory> {
        let (mut tokens, mut result) = (Vec::new(), Ok(()));
        self.splitter.for_each(text, |start, end| {
            if result.is_err() {
                return;
            }
            tokens.clear();
            result = memory::reserve(&mut tokens, end - start)
                .and_then(|()| self.piece(&text.as_bytes()[start..end], &mut tokens))
                .and_then(|()| out.reserve(tokens.len()));
            if result.is_err() {
                return;
            }
            let mut position = start;
            for &id in &tokens {
                let bytes = self.vocabulary.bytes_of(id);
                // The range of a token with part of a character includes the whole character.
                let begin = text.floor_char_boundary(position);
                position += bytes.len();
                let range = (base + begin, base + text.ceil_char_boundary(position));
                let leading = bytes.iter().take_while(|byte| **byte == b' ').count();
                let trailing = bytes.iter().rev().take_while(|byte| **byte == b' ').count();
                let (begin, end) = self.trimmed(range, leading, trailing, out.ids.len() == first);
                out.push(id, begin, end);
            }
        });
        result
    }

    /// Excludes the spaces of a token from its range, if the definition trims offsets.
    fn trimmed(
        &self,
        (start, end): (usize, usize),
        leading: usize,
        trailing: usize,
        is_first: bool,
    ) -> (usize, usize) {
        let Some(trim) = self.trim_offsets else { return (start, end) };
        let keeps_space = (is_first || start == 0) && trim.keeps_first && leading == 1;
        let start = if keeps_space { start } else { (start + leading).min(end) };
        let end = if end >= trailing { (end - trailing).max(start) } else { end };
        (start, end)
    }
}

/// The merges of a definition and, if it marks tokens that end a piece, the tokens of last bytes.
fn merges_of(definition: &ByteLevelBpe, tokens: &[Vec<u8>]) -> Result<(Merges, LastBytes), Reason> {
    let ids: rustc_hash::FxHashMap<&str, u32> =
        definition.vocabulary.iter().map(|(token, id)| (token.as_str(), *id)).collect();
    if tokens.len() > MAX_IDS || definition.merges.len() > MAX_PAIRS {
        return Err(Reason::new(ReasonCode::TokenizerModelUnsupported)
            .argument("tokenizer")
            .required(format!("at most {MAX_IDS} ids and {MAX_PAIRS} merges"))
            .found(format!("{} ids and {} merges", tokens.len(), definition.merges.len())));
    }
    let incomplete = |what: String| {
        Reason::new(ReasonCode::VocabHashMismatch)
            .argument("tokenizer")
            .required("a token for every byte of UTF-8 and for the result of every merge")
            .found(what)
    };
    let byte_tokens = |mark: &str| {
        let mut bytes = [0; 256];
        for (byte, slot) in (0..=255u8).zip(&mut bytes) {
            let token = format!("{}{mark}", byte_alphabet::character_of(byte));
            *slot = match (byte, ids.get(token.as_str())) {
                (_, Some(id)) => *id,
                // No text contains these bytes, so that they need no token. An id that no merge has stands for it.
                (0xc0 | 0xc1 | 0xf5..=0xff, None) => MAX_IDS as u32,
                (_, None) => return Err(incomplete(format!("no token for byte {byte:#04x}, {token:?}"))),
            };
        }
        Ok(bytes)
    };
    let bytes = byte_tokens("")?;
    let last_bytes = definition.end_mark.as_deref().map(byte_tokens).transpose()?.map(Box::new);
    let mut joined = String::new();
    let pair = |(left, right): &(String, String)| {
        joined.clear();
        joined.push_str(left);
        joined.push_str(right);
        let id =
            |token: &str| ids.get(token).copied().ok_or_else(|| incomplete(format!("no token {token:?}")));
        Ok((id(left)?, id(right)?, id(&joined)?))
    };
    let pairs: Vec<(u32, u32, u32)> = definition.merges.iter().map(pair).collect::<Result<_, Reason>>()?;
    Ok((Merges::new(bytes, &pairs), last_bytes))
}

/// The first token, if any, that merging its own bytes does not produce. `tokens` are those of the model without added tokens.
pub fn first_unreachable_token(
    definition: &ByteLevelBpe,
    tokens: &[Vec<u8>],
) -> Result<Option<usize>, Reason> {
    let (merges, last_bytes) = merges_of(definition, &definition.token_bytes())?;
    let pairs = last_pairs(tokens, &merges, last_bytes.as_deref())?;
    let reachable = |id: usize, pair: &Option<Pair>| {
        tokens[id].len() < 2 || pair.is_some_and(|pair| merges.token(pair.rank) as usize == id)
    };
    Ok(pairs.iter().enumerate().position(|(id, pair)| !reachable(id, pair)))
}

/// For each token, the last merge when its bytes are merged as a piece; `None` if they do not become one token.
fn last_pairs(
    tokens: &[Vec<u8>],
    merges: &Merges,
    last: Option<&[u32; 256]>,
) -> Result<Vec<Option<Pair>>, OutOfMemory> {
    const STRIDE: usize = 4096;
    type Chunk = Mutex<Result<Vec<Option<Pair>>, OutOfMemory>>;
    let chunks: Vec<Chunk> = tokens.chunks(STRIDE).map(|_| Mutex::new(Ok(Vec::new()))).collect();
    lz_pool::for_each(chunks.len(), &|chunk: usize| {
        let own = tokens[chunk * STRIDE..].iter().take(STRIDE);
        let found = own.map(|token| merges.last_pair(token, last)).collect();
        *chunks[chunk].lock() = found;
    });
    let mut pairs = Vec::with_capacity(tokens.len());
    for chunk in chunks {
        pairs.extend(chunk.into_inner()?);
    }
    Ok(pairs)
}

/// The decoded bytes of ids: tokens in the byte alphabet decode to their bytes, others to their own text.
fn decoded_of(definition: &ByteLevelBpe) -> Vocabulary {
    let model = definition.vocabulary.iter().map(|(token, id)| (token, *id));
    let all = model.chain(definition.added.iter().map(|added| (&added.content, added.id)));
    let size = all.clone().map(|(_, id)| id as usize + 1).max().unwrap_or(0);
    let mut bytes = vec![Vec::new(); size];
    for (token, id) in all {
        bytes[id as usize] = byte_alphabet::bytes_of(token).unwrap_or_else(|| token.as_bytes().to_vec());
    }
    Vocabulary::new(&bytes)
}
