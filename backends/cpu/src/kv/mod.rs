//! Writing to and compacting a paged KV cache.

mod append;
pub mod compact;
mod rope_append;

pub(crate) use append::AppendRows;
pub(crate) use compact::CompactPages;
pub(crate) use rope_append::RopeAppendRows;
