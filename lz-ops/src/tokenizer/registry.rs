//! A registry of live tokenizers, held by weak references. Selection contexts contain 60 bits of a digest; kernels look up the tokenizer
//! by these bits to decide whether they support it.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

use lz_core::context::digest_bits;

use super::{Shared, Tokenizer};

type Table = HashMap<u64, Vec<Weak<Shared>>>;

static ALIVE: Mutex<Option<Table>> = Mutex::new(None);

fn alive() -> MutexGuard<'static, Option<Table>> {
    ALIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers a tokenizer and removes entries of dropped ones.
pub(super) fn register(tokenizer: &Tokenizer) {
    let mut guard = alive();
    let table = guard.get_or_insert_default();
    table.retain(|_, list| {
        list.retain(|weak| weak.strong_count() > 0);
        !list.is_empty()
    });
    table.entry(digest_bits(&tokenizer.shared.digest)).or_default().push(tokenizer.downgrade());
}

/// The live tokenizer whose digest has these bits; `None` if several digests share them.
pub(super) fn find(bits: u64) -> Option<Tokenizer> {
    let guard = alive();
    let mut found = guard.as_ref()?.get(&bits)?.iter().filter_map(Weak::upgrade);
    let first = found.next()?;
    found.all(|other| other.digest == first.digest).then_some(Tokenizer { shared: first })
}
