//! Saved compiled models: one safetensors file with the graph as metadata and the constants as tensors.
//!
//! The header is JSON, the constants are mapped when the file is loaded, so loading does not depend on their size. Whatever does not fit
//! this process is refused with what differs and what to do: another format, other schemas, a damaged file, changed constants.

mod dims;
mod read;
mod record;
mod write;

#[cfg(test)]
mod tests;

use lz_engine::table::Lockfile;

use crate::error::GraphError;
use crate::graph::Graph;
pub use read::load;
pub use write::save;

/// The version of the format.
pub const FORMAT: u32 = 1;

/// Keys of the file's metadata.
const FORMAT_KEY: &str = "layerzero.format";
const GRAPH_KEY: &str = "layerzero.graph";
const DIGEST_KEY: &str = "layerzero.graph.sha256";
const DECISIONS_KEY: &str = "layerzero.decisions";

/// The content of an artifact.
#[derive(Debug)]
pub struct Artifact {
    /// The graph after passes.
    pub graph: Graph,
    /// The number of nodes before passes.
    pub imported_nodes: usize,
    /// What passes replaced.
    pub rewrites: Vec<String>,
    /// The decisions of the plans that were made before saving; `None` if there was none.
    pub decisions: Option<Lockfile>,
    /// The release that wrote it.
    pub layerzero: String,
}

fn invalid(path: &std::path::Path, message: impl std::fmt::Display) -> GraphError {
    GraphError::Artifact { message: format!("{}: {message}", path.display()) }
}

fn digest(bytes: &[u8]) -> String {
    use sha2::{Digest, Sha256};
    use std::fmt::Write as _;
    let hash = Sha256::digest(bytes);
    hash.iter().fold(String::with_capacity(64), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
