//! Caches the outcomes of the code point comparison by digest of the definition, so that a tokenizer that is loaded again is not
//! compared again.

use std::any::TypeId;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lz_core::{Handle, Reason};
use lz_ops::tokenizer::Tokenizer;

use crate::coder::Coder;

type Outcomes = HashMap<([u8; 32], TypeId), Result<(), Reason>>;

static OUTCOMES: Mutex<Option<Outcomes>> = Mutex::new(None);

/// Maximum number of outcomes; the cache is cleared beyond it.
const MAX_OUTCOMES: usize = 1024;

fn outcomes() -> MutexGuard<'static, Option<Outcomes>> {
    OUTCOMES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The cached outcome for a candidate and a tokenizer.
pub fn get<C: Coder>(tokenizer: &Tokenizer) -> Option<Result<(), Reason>> {
    outcomes().as_ref()?.get(&(tokenizer.digest(), TypeId::of::<C>())).cloned()
}

/// Caches an outcome.
pub fn insert<C: Coder>(tokenizer: &Tokenizer, outcome: &Result<(), Reason>) {
    let mut guard = outcomes();
    let cache = guard.get_or_insert_default();
    if cache.len() >= MAX_OUTCOMES {
        cache.clear();
    }
    cache.insert((tokenizer.digest(), TypeId::of::<C>()), outcome.clone());
}
