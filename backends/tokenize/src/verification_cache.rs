//! Caches the outcomes of the code point comparison by digest of the definition, so that a tokenizer that is loaded again is not
//! compared again.

use std::any::TypeId;
use std::sync::LazyLock;

use dashmap::DashMap;
use lz_core::fork;
use lz_core::{Handle, Reason};
use lz_ops::tokenizer::Tokenizer;

use crate::coder::Coder;

type Outcomes = DashMap<([u8; 32], TypeId), Result<(), Reason>>;

static OUTCOMES: LazyLock<Outcomes> = LazyLock::new(DashMap::new);

/// Maximum number of outcomes; the cache is cleared beyond it.
const MAX_OUTCOMES: usize = 1024;

/// The cached outcome for a candidate and a tokenizer.
pub fn get<C: Coder>(tokenizer: &Tokenizer) -> Option<Result<(), Reason>> {
    let _inside = fork::hold();
    OUTCOMES.get(&(tokenizer.digest(), TypeId::of::<C>())).map(|outcome| outcome.clone())
}

/// Caches an outcome.
pub fn insert<C: Coder>(tokenizer: &Tokenizer, outcome: &Result<(), Reason>) {
    let _inside = fork::hold();
    if OUTCOMES.len() >= MAX_OUTCOMES {
        OUTCOMES.clear();
    }
    OUTCOMES.insert((tokenizer.digest(), TypeId::of::<C>()), outcome.clone());
}
