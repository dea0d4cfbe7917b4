//! Texts and tokenizers of drawn calls.

use std::sync::{Arc, OnceLock};

use lz_core::Handle;
use lz_ops::tokenizer::Tokenizer;

use crate::random::Random;

/// One of each kind that some kernel supports; most cases use the first: byte-level BPE with a few merges,
/// special tokens and a post-processor.
const DEFINITIONS: [&[u8]; 5] = [
    include_bytes!("../../../lz-ops/tests/data/byte_level_bpe.json"),
    include_bytes!("../../../lz-ops/tests/data/word_piece.json"),
    include_bytes!("../../../lz-ops/tests/data/unigram.json"),
    include_bytes!("../../../lz-ops/tests/data/char_bpe.json"),
    include_bytes!("../../../lz-ops/tests/data/sentencepiece.json"),
];

/// Fragments of texts: words, spaces, other scripts, multi-byte characters, control characters.
const PIECES: [&str; 20] = [
    "the",
    " quick",
    "  ",
    "\n",
    "Straße",
    " 東京",
    "👩‍🚀",
    "e\u{301}",
    "don't",
    "123",
    " 4.5",
    "\t",
    "",
    "ä",
    "#!",
    "\u{0}",
    "<|end|>",
    "<tool>",
    "hello world",
    " world",
];

/// A batch of texts, including empty ones.
pub fn texts(random: &mut Random, count: i64) -> Vec<String> {
    (0..count)
        .map(|_| {
            let pieces = random.below(9);
            (0..pieces).map(|_| PIECES[random.below(PIECES.len())]).collect()
        })
        .collect()
}

/// The tokenizer of a drawn call: the first one in half of the cases.
pub fn tokenizer(random: &mut Random) -> Arc<dyn Handle> {
    let others = DEFINITIONS.len() - 1;
    nth_tokenizer(if random.one_in(2) { 0 } else { 1 + random.below(others) })
}

/// The tokenizer of a workload.
pub fn default_tokenizer() -> Arc<dyn Handle> {
    nth_tokenizer(0)
}

fn nth_tokenizer(number: usize) -> Arc<dyn Handle> {
    static TOKENIZERS: OnceLock<[Arc<Tokenizer>; DEFINITIONS.len()]> = OnceLock::new();
    let shared = TOKENIZERS.get_or_init(|| {
        DEFINITIONS.map(|definition| match Tokenizer::from_json(definition) {
            Ok(tokenizer) => Arc::new(tokenizer),
            Err(error) => panic!("cannot load a test tokenizer: {error}"),
        })
    });
    Arc::clone(&shared[number]) as Arc<dyn Handle>
}
