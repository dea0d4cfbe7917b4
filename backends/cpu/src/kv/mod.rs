//! Writing to and compacting a paged KV cache.

mod append;
mod compact;

pub(crate) use append::AppendRows;
pub(crate) use compact::CompactPages;
