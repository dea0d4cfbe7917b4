//! A registry of live tokenizers, held by weak references. Selection contexts contain 60 bits of a digest; kernels look up the tokenizer
//! by these bits to decide whether they support it.

use std::sync::{LazyLock, Weak};

use dashmap::DashMap;
use lz_core::context::digest_bits;
use lz_core::fork;

use super::{Shared, Tokenizer};

static ALIVE: LazyLock<DashMap<u64, Vec<Weak<Shared>>>> = LazyLock::new(DashMap::new);

/// Registers a tokenizer and removes entries of dropped ones.
pub(super) fn register(tokenizer: &Tokenizer) {
    let _inside = fork::hold();
    ALIVE.retain(|_, list| {
        list.retain(|weak| weak.strong_count() > 0);
        !list.is_empty()
    });
    ALIVE.entry(digest_bits(&tokenizer.shared.digest)).or_default().push(tokenizer.downgrade());
}

/// The live tokenizer whose digest has these bits; `None` if several digests share them.
pub(super) fn find(bits: u64) -> Option<Tokenizer> {
    let _inside = fork::hold();
    let list = ALIVE.get(&bits)?;
    let mut found = list.iter().filter_map(Weak::upgrade);
    let first = found.next()?;
    found.all(|other| other.digest == first.digest).then_some(Tokenizer { shared: first })
}
