//! Texts and the tokenizer that they are drawn for.

use std::sync::{Arc, OnceLock};

use lz_core::Handle;
use lz_ops::tokenizer::Tokenizer;

use crate::random::Random;

const DEFINITION: &[u8] = include_bytes!("../../../lz-ops/tests/data/byte_level_bpe.json");

/// Pieces of texts: words, spaces, other scripts, characters of several bytes, control characters.
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

/// A batch of texts, empty ones among them.
pub fn texts(random: &mut Random, count: i64) -> Vec<String> {
    (0..count)
        .map(|_| {
            let pieces = random.below(9);
            (0..pieces).map(|_| PIECES[random.below(PIECES.len())]).collect()
        })
        .collect()
}

/// The tokenizer of every drawn call: byte-level BPE with a few merges, special tokens and a post-processor.
pub fn tokenizer() -> Arc<dyn Handle> {
    static TOKENIZER: OnceLock<Arc<Tokenizer>> = OnceLock::new();
    let shared = TOKENIZER.get_or_init(|| match Tokenizer::from_json(DEFINITION) {
        Ok(tokenizer) => Arc::new(tokenizer),
        Err(error) => panic!("the tests' own tokenizer cannot be read: {error}"),
    });
    Arc::clone(shared) as Arc<dyn Handle>
}
