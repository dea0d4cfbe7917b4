//! Writing to and compacting a paged KV cache.

mod append;
pub mod compact;

pub(crate) use append::AppendRows;
pub(crate) use compact::CompactPages;
