//! Outcomes of the trial on all code points, by the digest of the definition, so that a tokenizer that is read again is not tried again.

use std::any::TypeId;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lz_core::{Handle, Reason};
use lz_ops::tokenizer::Tokenizer;

use crate::coder::Coder;

type Verdicts = HashMap<([u8; 32], TypeId), Result<(), Reason>>;

static VERDICTS: Mutex<Option<Verdicts>> = Mutex::new(None);

/// More outcomes than this are forgotten together.
const MAX_VERDICTS: usize = 1024;

fn verdicts() -> MutexGuard<'static, Option<Verdicts>> {
    VERDICTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The outcome for a candidate and a tokenizer, if it is known.
pub fn of<C: Coder>(tokenizer: &Tokenizer) -> Option<Result<(), Reason>> {
    verdicts().as_ref()?.get(&(tokenizer.digest(), TypeId::of::<C>())).cloned()
}

/// Keeps an outcome.
pub fn remember<C: Coder>(tokenizer: &Tokenizer, verdict: &Result<(), Reason>) {
    let mut guard = verdicts();
    let known = guard.get_or_insert_default();
    if known.len() >= MAX_VERDICTS {
        known.clear();
    }
    known.insert((tokenizer.digest(), TypeId::of::<C>()), verdict.clone());
}
