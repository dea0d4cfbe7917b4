//! Backends in a process of their own. The host ([`host`]) starts a worker, lends it tensors through shared memory
//! ([`memory`], [`arena`]), and calls its kernels through a ring of descriptors ([`protocol`], [`message`]); the worker
//! ([`serve`]) runs them. Whatever the worker does, the host goes on: a crash, a hang, a kill for memory and an answer that
//! makes no sense are failures of the call that was running, with a reason of its own each.
//!
//! What an operator sets ([`settings`]) decides which plugins ([`plugins`]) run so.
//!
//! Nothing here knows an operation: arguments cross as the dynamic ones that every kernel takes.

pub mod arena;
pub mod host;
pub mod memory;
pub mod message;
pub mod plugins;
mod process;
pub mod program;
pub mod protocol;
mod remote;
pub mod serve;
pub mod settings;
mod slot;
mod tensor;
pub mod wire;

pub use host::{Worker, WorkerOptions};
pub use tensor::SharedTensor;
