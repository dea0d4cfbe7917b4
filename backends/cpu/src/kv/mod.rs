//! Writing into and compacting a paged cache.

mod append;
mod compact;

pub(crate) use append::AppendRows;
pub(crate) use compact::CompactPages;
