//! Backends in a process of their own. The host ([`host`]) starts a worker, lends it tensors through shared memory
//! ([`memory`], [`arena`]), and calls its kernels through a ring of descriptors ([`protocol`], [`message`]); the worker
//! ([`serve`]) runs them. The host treats a worker as hostile: what it reads from shared memory is copied, then checked, then
//! used, and what it relies on lies in memory of its own. A crash, a hang, a kill for memory and an answer that makes no sense
//! are failures of the call that was running, with a reason of its own each.
//!
//! A worker belongs to the process that started it: a forked child starts its own.
//!
//! What an operator sets ([`settings`]) decides which plugins ([`plugins`]) run so.
//!
//! Nothing here knows an operation: arguments cross as the dynamic ones that every kernel takes.

pub mod arena;
mod ending;
mod failure;
mod fork;
pub mod host;
pub mod memory;
pub mod message;
mod options;
mod patience;
pub mod plugins;
mod process;
pub mod program;
pub mod protocol;
mod remote;
mod running;
pub mod serve;
pub mod settings;
mod slot;
mod slots;
mod supervisor;
mod tensor;
pub mod wire;

pub use host::Worker;
pub use options::WorkerOptions;
pub use patience::set_interrupt_check;
pub use tensor::SharedTensor;
