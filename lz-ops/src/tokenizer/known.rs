//! Which tokenizers are alive. Selection sees sixty bits of a digest; whoever must say whether a kernel fits a tokenizer finds
//! the tokenizer by them here. Nothing is kept alive.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

use lz_core::context::digest_bits;

use super::{Shared, Tokenizer};

type Table = HashMap<u64, Vec<Weak<Shared>>>;

static ALIVE: Mutex<Option<Table>> = Mutex::new(None);

fn alive() -> MutexGuard<'static, Option<Table>> {
    ALIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Remembers a new one, and forgets those that are gone.
pub(super) fn remember(tokenizer: &Tokenizer) {
    let mut guard = alive();
    let table = guard.get_or_insert_default();
    table.retain(|_, list| {
        list.retain(|weak| weak.strong_count() > 0);
        !list.is_empty()
    });
    table.entry(digest_bits(&tokenizer.shared.digest)).or_default().push(tokenizer.downgrade());
}

/// The tokenizer whose digest has these bits, if it is alive and the only one that has them.
pub(super) fn find(bits: u64) -> Option<Tokenizer> {
    let guard = alive();
    let mut found = guard.as_ref()?.get(&bits)?.iter().filter_map(Weak::upgrade);
    let first = found.next()?;
    found.all(|other| other.digest == first.digest).then_some(Tokenizer { shared: first })
}
