//! Byte-level BPE of our own: splitters written by hand, words remembered with their tokens, merges in near-linear time.

pub mod cache;
pub mod merge;
mod pairs;
pub mod split;
pub mod vocabulary;
mod window;

use std::sync::{Mutex, PoisonError};

use lz_core::{KernelError, Reason, ReasonCode};
use lz_ops::tokenizer::Tokenizer;
use serde_json::Value;

use self::cache::Cache;
use self::merge::{MOST_IDS, MOST_PAIRS, Merges, Pair};
use self::split::Pattern;
use self::vocabulary::Vocabulary;
use crate::coder::{Coder, Encoded, Trial, encode_by_definition};
use crate::definition::{self, ByteLevelBpe, TrimOffsets};
use crate::frame::{Frame, Part};
use crate::phrases::Phrases;

/// Byte-level BPE for one tokenizer.
pub struct Native {
    frame: Frame,
    pattern: Pattern,
    trim_offsets: Option<TrimOffsets>,
    merges: Merges,
    vocabulary: Vocabulary,
    /// What each id becomes when it is decoded; the model's ids and the added ones.
    decoded: Vocabulary,
    special: Vec<u32>,
    /// What is remembered, each with whoever encodes just now.
    memories: Mutex<Vec<Memory>>,
}

/// What one thread remembers.
#[derive(Default)]
struct Memory {
    words: Cache,
    phrases: Phrases,
}

impl Coder for Native {
    const OFFSETS: bool = true;
    const DECODES: bool = true;
    const MODEL: Option<&'static str> = Some(definition::BYTE_BPE);
    const TRIAL: Trial = Trial::Texts;

    fn build(_: &Tokenizer, definition: &Value) -> Result<Native, Reason> {
        Native::new(definition::byte_level_bpe(definition)?)
    }

    fn encode(
        &self,
        tokenizer: &Tokenizer,
        texts: &[&str],
        special: bool,
        out: &mut Encoded,
    ) -> Result<(), KernelError> {
        let mut memory = self.memories().pop().unwrap_or_default();
        for text in texts {
            self.encode_one(tokenizer, text, special, &mut memory, out)?;
        }
        self.memories().push(memory);
        Ok(())
    }

    fn decode(&self, _: &Tokenizer, ids: &[u32], skip_special: bool) -> Result<String, KernelError> {
        let mut bytes = Vec::with_capacity(ids.len() * 4);
        for id in ids {
            if !(skip_special && self.special.binary_search(id).is_ok()) {
                bytes.extend_from_slice(self.decoded.bytes_of(*id));
            }
        }
        Ok(match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        })
    }
}

impl Native {
    fn memories(&self) -> std::sync::MutexGuard<'_, Vec<Memory>> {
        self.memories.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn new(definition: ByteLevelBpe) -> Result<Native, Reason> {
        let tokens = definition.token_bytes();
        let merges = merges_of(&definition, &tokens)?;
        let pairs = last_pairs(&tokens, &merges);
        let mut vocabulary = Vocabulary::new(&tokens);
        for ((id, token), pair) in (0..).zip(&tokens).zip(&pairs) {
            // What a piece of exactly its bytes becomes: a token always if merges are ignored, else if merging arrives at it.
            let merged = token.len() == 1 || pair.is_some_and(|pair| merges.token(pair.rank) == id);
            if !token.is_empty() && (definition.ignores_merges || merged) {
                vocabulary.index(id);
            }
        }
        // Where a token comes to be, nothing across its ends was joined before, so what is inside was joined as if it stood alone: it
        // always comes from the same pair. All other pairs that would make it are never met, and there are several times as many.
        let merges = merges.with(&pairs.into_iter().flatten().collect::<Vec<_>>());
        let decoded = decoded_of(&definition);
        let mut special: Vec<u32> =
            definition.added.iter().filter(|added| added.special).map(|added| added.id).collect();
        special.sort_unstable();
        Ok(Native {
            frame: Frame::new(&definition)?,
            pattern: definition.pattern,
            trim_offsets: definition.trim_offsets,
            merges,
            vocabulary,
            decoded,
            special,
            memories: Mutex::default(),
        })
    }

    fn encode_one(
        &self,
        tokenizer: &Tokenizer,
        text: &str,
        special: bool,
        memory: &mut Memory,
        out: &mut Encoded,
    ) -> Result<(), KernelError> {
        if out.offsets.is_none() {
            self.frame.encode(text, special, &mut out.ids, |part, ids| self.plain(part, memory, ids));
            out.end_text();
            return Ok(());
        }
        if !self.frame.keeps_places(text) {
            // Offsets through a text that was changed are the definition's own art.
            return encode_by_definition(tokenizer, text, special, out);
        }
        let first = out.ids.len();
        if special {
            self.frame.before.iter().for_each(|id| out.push(*id, 0, 0));
        }
        self.frame.for_each(text, |part| match part {
            Part::Plain { text, start } => self.with_offsets(text, start, first, out),
            Part::Token { id, text, start } => {
                let blank = |character: &char| *character == 'Ġ' || character.is_whitespace();
                let leading = text.chars().take_while(blank).count();
                let trailing = text.chars().rev().take_while(blank).count();
                let is_first = out.ids.len() == first;
                let (start, end) = self.trimmed((start, start + text.len()), leading, trailing, is_first);
                out.push(id, start, end);
            }
        });
        if special {
            self.frame.after.iter().for_each(|id| out.push(*id, 0, 0));
        }
        out.end_text();
        Ok(())
    }

    #[inline]
    fn plain(&self, text: &str, memory: &mut Memory, ids: &mut Vec<i32>) {
        let Memory { words, phrases } = memory;
        let begins = |place: usize| Pattern::begins_piece(text, place);
        phrases.encode(text.as_bytes(), 0, ids, begins, |start, end, ids| {
            self.words(text, start, end, words, ids);
            true
        });
    }

    /// Adds the tokens of a text between two places at which pieces begin.
    fn words(&self, text: &str, start: usize, end: usize, words: &mut Cache, ids: &mut Vec<i32>) {
        let bytes = text.as_bytes();
        self.pattern.between(text, start, end, |start, end| {
            if end - start <= cache::SHORT {
                let key = cache::key(bytes, start, end);
                words.short(key, ids, |tokens| self.piece(&bytes[start..end], tokens));
            } else {
                let piece = &bytes[start..end];
                words.long(piece, ids, |tokens| self.piece(piece, tokens));
            }
        });
    }

    /// The tokens of a piece that nobody remembers.
    #[inline(never)]
    fn piece(&self, piece: &[u8], tokens: &mut Vec<u32>) {
        match self.vocabulary.find(piece) {
            Some(id) => tokens.push(id),
            None => self.merges.merge(piece, tokens),
        }
    }

    /// Text without added tokens; `base` is where it begins, `first` how many ids there were before the caller's text.
    fn with_offsets(&self, text: &str, base: usize, first: usize, out: &mut Encoded) {
        let mut tokens = Vec::new();
        self.pattern.for_each(text, |start, end| {
            tokens.clear();
            self.piece(&text.as_bytes()[start..end], &mut tokens);
            let mut place = start;
            for &id in &tokens {
                let bytes = self.vocabulary.bytes_of(id);
                // A token that holds part of a character came from all of it.
                let begin = text.floor_char_boundary(place);
                place += bytes.len();
                let range = (base + begin, base + text.ceil_char_boundary(place));
                let leading = bytes.iter().take_while(|byte| **byte == b' ').count();
                let trailing = bytes.iter().rev().take_while(|byte| **byte == b' ').count();
                let (begin, end) = self.trimmed(range, leading, trailing, out.ids.len() == first);
                out.push(id, begin, end);
            }
        });
    }

    /// Leaves the spaces of a token out of its range, if the definition does.
    fn trimmed(
        &self,
        (start, end): (usize, usize),
        leading: usize,
        trailing: usize,
        is_first: bool,
    ) -> (usize, usize) {
        let Some(trim) = self.trim_offsets else { return (start, end) };
        let kept = (is_first || start == 0) && trim.keeps_first && leading == 1;
        let start = if kept { start } else { (start + leading).min(end) };
        let end = if end >= trailing { (end - trailing).max(start) } else { end };
        (start, end)
    }
}

fn merges_of(definition: &ByteLevelBpe, tokens: &[Vec<u8>]) -> Result<Merges, Reason> {
    let ids: rustc_hash::FxHashMap<&str, u32> =
        definition.vocabulary.iter().map(|(token, id)| (token.as_str(), *id)).collect();
    if tokens.len() > MOST_IDS || definition.merges.len() > MOST_PAIRS {
        return Err(Reason::new(ReasonCode::TokenizerModelUnsupported)
            .argument("tokenizer")
            .required(format!("at most {MOST_IDS} ids and {MOST_PAIRS} merges"))
            .found(format!("{} and {}", tokens.len(), definition.merges.len())));
    }
    let incomplete = |what: String| {
        Reason::new(ReasonCode::VocabHashMismatch)
            .argument("tokenizer")
            .required("a token for every byte and for what every merge makes")
            .found(what)
    };
    let mut bytes = [u32::MAX; 256];
    for (id, token) in (0..).zip(tokens) {
        if let [byte] = token.as_slice() {
            bytes[usize::from(*byte)] = id;
        }
    }
    if let Some(byte) = bytes.iter().position(|id| *id == u32::MAX) {
        return Err(incomplete(format!("none for byte {byte}")));
    }
    let mut joined = String::new();
    let pair = |(left, right): &(String, String)| {
        joined.clear();
        joined.push_str(left);
        joined.push_str(right);
        let id =
            |token: &str| ids.get(token).copied().ok_or_else(|| incomplete(format!("none for {token:?}")));
        Ok((id(left)?, id(right)?, id(&joined)?))
    };
    let pairs: Vec<(u32, u32, u32)> = definition.merges.iter().map(pair).collect::<Result<_, Reason>>()?;
    Ok(Merges::new(bytes, &pairs))
}

/// The first token, if any, that merging its own bytes does not arrive at; `tokens` are those of the definition that are not added.
pub fn unreachable(definition: &ByteLevelBpe, tokens: &[Vec<u8>]) -> Result<Option<usize>, Reason> {
    let merges = merges_of(definition, &definition.token_bytes())?;
    let pairs = last_pairs(tokens, &merges);
    let arrives = |id: usize, pair: &Option<Pair>| {
        tokens[id].len() < 2 || pair.is_some_and(|pair| merges.token(pair.rank) as usize == id)
    };
    Ok(pairs.iter().enumerate().position(|(id, pair)| !arrives(id, pair)))
}

/// For each token, the pair that it comes from when its bytes are merged; `None` where they do not become one token.
fn last_pairs(tokens: &[Vec<u8>], merges: &Merges) -> Vec<Option<Pair>> {
    const STRIDE: usize = 4096;
    let chunks: Vec<Mutex<Vec<Option<Pair>>>> = tokens.chunks(STRIDE).map(|_| Mutex::default()).collect();
    lz_pool::for_each(chunks.len(), &|chunk: usize| {
        let own = tokens[chunk * STRIDE..].iter().take(STRIDE);
        let found = own.map(|token| merges.last_pair(token)).collect();
        *chunks[chunk].lock().unwrap_or_else(PoisonError::into_inner) = found;
    });
    chunks.into_iter().flat_map(|chunk| chunk.into_inner().unwrap_or_else(PoisonError::into_inner)).collect()
}

/// What ids become when they are decoded: tokens of the byte alphabet their bytes, others their own text.
fn decoded_of(definition: &ByteLevelBpe) -> Vocabulary {
    let model = definition.vocabulary.iter().map(|(token, id)| (token, *id));
    let all = model.chain(definition.added.iter().map(|added| (&added.content, added.id)));
    let size = all.clone().map(|(_, id)| id as usize + 1).max().unwrap_or(0);
    let mut bytes = vec![Vec::new(); size];
    for (token, id) in all {
        bytes[id as usize] = crate::alphabet::bytes_of(token).unwrap_or_else(|| token.as_bytes().to_vec());
    }
    Vocabulary::new(&bytes)
}
