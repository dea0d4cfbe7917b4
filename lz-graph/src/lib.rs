//! The graph runtime: import, graph, passes, selection, memory plan, program, session.
//!
//! Every stage is a function from one printable value to the next. *Architecture invariant:* this crate runs kernels only through an
//! [`lz_engine::Engine`]; it contains no kernel and depends on no backend.

pub mod artifact;
pub mod build;
pub mod catalog;
pub mod compiled;
pub mod device;
pub mod dim;
pub mod error;
mod execute;
pub mod graph;
pub mod import;
pub mod infer;
pub mod interpret;
mod mapped;
pub mod memory;
mod origin;
pub mod passes;
pub mod plan;
pub mod prepared;
mod print;
pub mod quantize;
pub mod session;
pub mod sizes;
mod strided;
#[cfg(test)]
mod testing;
pub mod validate;

pub use compiled::{CompiledModel, LoadOptions, Options};
pub use dim::{Dim, Symbol};
pub use error::GraphError;
pub use graph::{Graph, Node, NodeId, NodeKind};
pub use session::{OnChange, RunInput, Session};
