//! Tokenization kernels: native implementations and external libraries. Each is used only for tokenizers for which it is
//! verified equal to the definition. Nothing here depends on Python or C++.
//!
//! - `definition` parses the structure of a `tokenizer.json`; `pipeline` and `added_tokens` are its stages around the model.
//! - `split` has the hand-written pretokenizers of byte-level BPE, `vocabulary` maps ids to bytes and back.
//! - `byte_bpe` is the native byte-level BPE; `words` has the native WordPiece, unigram and SentencePiece-style BPE;
//!   `sentencepiece` runs SentencePiece models; `external` wraps other libraries.
//! - `verification` compares every candidate with the definition on `probe_texts` and `code_points` before its first use, on the
//!   thread of `background`, and on samples of real texts afterwards.
//! - `files` loads every supported format; `batch` truncates, combines and pads rows of ids; `stream` decodes id by id.
//! - `chat` renders conversations with the chat template of a model.
//! - `cpu_features` says which SIMD code may run; `table` has the memory of large hash tables.
//! - `kernels` registers the candidates as kernels; `long_text` splits one text over threads; `phrase_cache` caches the ids of text prefixes.

mod added_tokens;
mod background;
mod batch;
mod byte_alphabet;
mod byte_bpe;
mod chat;
mod code_points;
mod coder;
#[cfg(target_arch = "x86_64")]
mod cpu_features;
mod definition;
mod encodings;
mod external;
mod failure;
mod files;
mod kernels;
mod long_text;
mod memory;
mod nfc;
mod normalization;
mod phrase_cache;
mod pipeline;
mod probe_texts;
mod sentencepiece;
mod split;
mod stream;
mod table;
mod template;
mod unicode;
mod verification;
mod verification_cache;
mod vocabulary;
mod words;

use std::time::{Duration, Instant};

use lz_core::{KernelEntry, Reason};
use lz_ops::tokenizer::Tokenizer;

pub use batch::{Batch, BatchError, BatchOptions, Padding, Rows, Side, Truncation, batch, pad_id};
pub use chat::{ChatError, ChatTemplates};
pub use encodings::{ENCODINGS, encoding, encoding_of_ranks};
pub use files::{VocabularyOptions, from_file, from_tiktoken, from_vocabulary};
pub use kernels::BACKEND;
pub use stream::TextStream;
pub use verification::{Rates, set_rates};

/// All kernels of this backend. Priorities follow the benchmarks (`results/benchmarks.md`). The list is explicit because registries that the
/// linker fills are dropped from static libraries.
pub fn kernels() -> Vec<KernelEntry> {
    let own = env!("CARGO_PKG_VERSION");
    let mut kernels = kernels::of::<byte_bpe::ByteBpe>("bpe", own, 96);
    kernels.extend(kernels::of::<words::WordTokenizer<words::WordPiece>>("wordpiece", own, 96));
    kernels.extend(kernels::of::<words::WordTokenizer<words::Unigram>>("unigram", own, 96));
    kernels.extend(kernels::of::<words::WordTokenizer<words::CharBpe>>("spm_bpe", own, 96));
    kernels.extend(kernels::of::<sentencepiece::SentencePiece>("sentencepiece", own, 96));
    kernels.extend(kernels::of::<external::HfTokenizers1>("hf1", "1.0.0-rc.3", 95));
    kernels.extend(kernels::of::<external::GithubBpe>("github_bpe", "0.2", 60));
    kernels.extend(kernels::of::<external::Tiktoken>("tiktoken", "0.12", 50));
    kernels.extend(kernels::of::<external::HfTokenizers>("hf", "0.23", 40));
    kernels
}

/// Whether the preferred kernel for a tokenizer is verified, or it is known that none is equal to the definition.
pub fn is_prepared(tokenizer: &Tokenizer) -> bool {
    verification::is_prepared(tokenizer)
}

/// Builds and verifies the preferred kernel for a tokenizer, and waits for that. Otherwise the first call starts it in the background,
/// and calls use the definition until it has ended. Returns the reason if neither a native kernel nor `tokenizers` 1.0 is equal to the
/// definition.
pub fn prepare(tokenizer: &Tokenizer) -> Result<(), Reason> {
    verification::prepare(tokenizer, None).unwrap_or(Ok(()))
}

/// Like [`prepare`], and waits for every other verification of the tokenizer that has been requested, at most for `timeout`. Returns
/// whether all have ended.
pub fn wait_verified(tokenizer: &Tokenizer, timeout: Option<Duration>) -> bool {
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    verification::prepare(tokenizer, deadline).is_some() && background::wait_for_all(tokenizer, deadline)
}

/// How far the verification of the preferred kernel of a tokenizer is.
#[derive(Debug, Clone, PartialEq)]
pub enum VerificationState {
    /// No call has requested it.
    NotStarted,
    /// It is running or waits in the queue.
    Running,
    /// The preferred kernel is equal to the definition.
    Verified,
    /// No kernel is equal to the definition, which encodes itself.
    Rejected(Reason),
}

/// How far the verification of the preferred kernel of a tokenizer is. Does not wait.
pub fn verification_state(tokenizer: &Tokenizer) -> VerificationState {
    if !is_prepared(tokenizer) {
        let is_pending = background::is_pending(tokenizer);
        return if is_pending { VerificationState::Running } else { VerificationState::NotStarted };
    }
    prepare(tokenizer).map_or_else(VerificationState::Rejected, |()| VerificationState::Verified)
}

pub use background::{PausedVerification, pause as pause_verification};
