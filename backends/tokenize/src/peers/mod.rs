//! Other people's libraries as candidates.

mod definition;
mod github_bpe;
mod next;
mod tiktoken;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub use definition::ByDefinition;
pub use github_bpe::GithubBpe;
use lz_core::{Reason, ReasonCode};
pub use next::Next;
pub use tiktoken::Tiktoken;

use crate::definition::ByteLevelBpe;

/// Libraries check what they are given by asserting; a definition that they refuse so is one that they cannot be like.
fn guarded<T>(work: impl FnOnce() -> Result<T, Reason>) -> Result<T, Reason> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(refused(panic_text(&*panic))))
}

fn refused(message: impl Into<String>) -> Reason {
    Reason::new(ReasonCode::TokenizerModelUnsupported).argument("tokenizer").message(message)
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message")
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
