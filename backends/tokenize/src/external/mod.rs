//! External libraries as candidates.

mod github_bpe;
mod hf_tokenizers;
mod hf_tokenizers_1;
mod tiktoken;

pub use github_bpe::GithubBpe;
pub use hf_tokenizers::HfTokenizers;
pub use hf_tokenizers_1::HfTokenizers1;
use lz_core::{Reason, ReasonCode};
use lz_ops::tokenizer::catch_panic;
pub use tiktoken::Tiktoken;

use crate::definition::{ByteLevelBpe, declined};
use crate::split::Pattern;

/// Some libraries panic on definitions that they do not support; the panic becomes a reason.
fn catching_panics<T>(work: impl FnOnce() -> Result<T, Reason>) -> Result<T, Reason> {
    catch_panic(work).unwrap_or_else(|message| Err(unsupported(message)))
}

fn unsupported(message: impl std::fmt::Display) -> Reason {
    let message = format!("the library cannot use this definition: {message}");
    Reason::new(ReasonCode::TokenizerModelUnsupported).argument("tokenizer").message(message)
}

/// The hand-written splitter of a definition: libraries are used only with those.
fn known_pattern(definition: &ByteLevelBpe) -> Result<Pattern, Reason> {
    let required = "the split pattern of GPT-2, cl100k, Llama 3, Qwen or o200k";
    let known = definition.splitter.known();
    known.ok_or_else(|| declined(ReasonCode::PretokenizerMismatch, required, "another pretokenizer"))
}

/// The tokens of a model whose ids are its ranks, for libraries that merge by token id. Added tokens are excluded: the pipeline splits
/// them off before.
fn ranked_tokens(definition: &ByteLevelBpe) -> Result<Vec<Vec<u8>>, Reason> {
    if let Some(mark) = &definition.end_mark {
        let required = "no `end_of_word_suffix`";
        return Err(declined(ReasonCode::TokenizerModelUnsupported, required, mark.as_str()));
    }
    let mut tokens = definition.token_bytes();
    let wrong = |code, required: &str, found: String| {
        Err(Reason::new(code).argument("tokenizer").required(required).found(found))
    };
    for added in &definition.added {
        if let Some(token) = tokens.get_mut(added.id as usize) {
            token.clear();
        }
    }
    while tokens.last().is_some_and(Vec::is_empty) {
        tokens.pop();
    }
    if let Some(id) = tokens.iter().position(Vec::is_empty) {
        return wrong(
            ReasonCode::VocabHashMismatch,
            "a byte-level token for every id",
            format!("none for id {id}"),
        );
    }
    let ids: rustc_hash::FxHashMap<&str, u32> =
        definition.vocabulary.iter().map(|(token, id)| (token.as_str(), *id)).collect();
    let mut last = 0;
    for (left, right) in &definition.merges {
        let merged = ids.get(format!("{left}{right}").as_str()).copied().unwrap_or(0);
        if merged < last {
            let found = format!("the merge of {left:?} and {right:?} produces id {merged} after id {last}");
            return wrong(
                ReasonCode::MergesHashMismatch,
                "merges in the order of the ids that they produce",
                found,
            );
        }
        last = merged;
    }
    Ok(tokens)
}
