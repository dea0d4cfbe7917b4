//! Tokenisation: several libraries and some of our own, each a kernel for those tokenizers for which it is proven
//! equal to the definition. Nothing here knows Python or C++.
//!
//! `definition` reads a `tokenizer.json` for its structure; `native` is our own byte-level BPE, `words` our own
//! WordPiece, unigrams and SentencePiece BPE, `sentencepiece` runs SentencePiece models, `peers` are the others; `proof` compares
//! them with the definition on `probes` and `code_points`, at first and ever after; `kernels` makes them kernels. `phrases` is what our own remember of
//! texts that begin as others did.

mod added;
mod alphabet;
mod code_points;
mod coder;
mod definition;
mod encodings;
mod frame;
mod kernels;
mod native;
mod normal;
mod peers;
mod phrases;
mod probes;
mod proof;
mod sentencepiece;
mod unicode;
mod verdicts;
mod words;

use lz_core::{KernelEntry, Reason};
use lz_ops::tokenizer::Tokenizer;

pub use encodings::{ENCODINGS, encoding, encoding_of_ranks};
pub use kernels::BACKEND;
pub use proof::{Rates, set_rates};

/// Every kernel of this backend, preferred by what was measured (`results/benchmarks.md`). An explicit list: registries that the linker fills
/// vanish in static libraries.
pub fn kernels() -> Vec<KernelEntry> {
    let own = env!("CARGO_PKG_VERSION");
    let mut kernels = kernels::of::<native::Native>("bpe", own, 96);
    kernels.extend(kernels::of::<words::Words<words::WordPiece>>("wordpiece", own, 96));
    kernels.extend(kernels::of::<words::Words<words::Unigram>>("unigram", own, 96));
    kernels.extend(kernels::of::<words::Words<words::CharBpe>>("spm_bpe", own, 96));
    kernels.extend(kernels::of::<sentencepiece::SentencePiece>("sentencepiece", own, 96));
    kernels.extend(kernels::of::<peers::Next>("hf1", "1.0.0-rc.3", 95));
    kernels.extend(kernels::of::<peers::GithubBpe>("github_bpe", "0.2", 60));
    kernels.extend(kernels::of::<peers::Tiktoken>("tiktoken", "0.12", 50));
    kernels.extend(kernels::of::<peers::ByDefinition>("hf", "0.23", 40));
    kernels
}

/// Whether [`prepare`] was called for a tokenizer and has returned.
pub fn is_prepared(tokenizer: &Tokenizer) -> bool {
    proof::is_prepared(tokenizer)
}

/// Builds the kernel that calls for a tokenizer prefer and shows it equal, so that no call has to wait for it. Says why not if none of
/// ours is equal and the next library is not either. Calls do the same by themselves when they first need it.
pub fn prepare(tokenizer: &Tokenizer) -> Result<(), Reason> {
    if proof::is_prepared(tokenizer) {
        return prepare_first(tokenizer);
    }
    proof::sharing_definition(tokenizer, || prepare_first(tokenizer))
}

fn prepare_first(tokenizer: &Tokenizer) -> Result<(), Reason> {
    let own = proof::proven::<native::Native>(tokenizer).map(drop);
    // A tokenizer is of one kind.
    let own = own.or_else(|_| proof::proven::<words::Words<words::WordPiece>>(tokenizer).map(drop));
    let own = own.or_else(|_| proof::proven::<words::Words<words::Unigram>>(tokenizer).map(drop));
    let own = own.or_else(|_| proof::proven::<words::Words<words::CharBpe>>(tokenizer).map(drop));
    let own = own.or_else(|_| proof::proven::<sentencepiece::SentencePiece>(tokenizer).map(drop));
    own.or_else(|_| proof::proven::<peers::Next>(tokenizer).map(drop))
}
