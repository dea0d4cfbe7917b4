//! Other people's libraries as candidates.

mod definition;
mod github_bpe;
mod next;
mod tiktoken;

pub use definition::ByDefinition;
pub use github_bpe::GithubBpe;
use lz_core::{Reason, ReasonCode};
use lz_ops::tokenizer::contained;
pub use next::Next;
pub use tiktoken::Tiktoken;

use crate::definition::ByteLevelBpe;

/// Libraries check what they are given by asserting; a definition that they refuse so is one that they cannot be like.
fn guarded<T>(work: impl FnOnce() -> Result<T, Reason>) -> Result<T, Reason> {
    contained(work).unwrap_or_else(|message| Err(refused(message)))
}

fn refused(message: impl std::fmt::Display) -> Reason {
    let message = format!("the library cannot use this definition: {message}");
    Reason::new(ReasonCode::TokenizerModelUnsupported).argument("tokenizer").message(message)
}

/// The tokens of a model whose ids are its ranks, as those libraries take them: what is merged is known by its id alone. Added
/// tokens are left out; they are cut out before.
fn ranked_tokens(definition: &ByteLevelBpe) -> Result<Vec<Vec<u8>>, Reason> {
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
            "a token of bytes for every id",
            format!("none for {id}"),
        );
    }
    let ids: rustc_hash::FxHashMap<&str, u32> =
        definition.vocabulary.iter().map(|(token, id)| (token.as_str(), *id)).collect();
    let mut last = 0;
    for (left, right) in &definition.merges {
        let made = ids.get(format!("{left}{right}").as_str()).copied().unwrap_or(0);
        if made < last {
            let found = format!("{left:?} and {right:?} make {made} after {last}");
            return wrong(ReasonCode::MergesHashMismatch, "merges in the order of what they make", found);
        }
        last = made;
    }
    Ok(tokens)
}
