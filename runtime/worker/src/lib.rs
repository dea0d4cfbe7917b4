//! Backends in worker processes. The host ([`host`]) spawns a worker, passes tensors through shared memory ([`memory`], [`arena`]), and
//! calls its kernels through a ring buffer of slots ([`protocol`], [`message`]). The worker ([`serve`]) runs them.
//!
//! The host treats a worker as untrusted: data in shared memory is copied, then validated, then used, and the host's own bookkeeping is
//! in private memory. A crash, a hang, an out-of-memory kill and an invalid answer each fail the running call with their own reason
//! code.
//!
//! A worker belongs to the process that spawned it: a forked child spawns its own.
//!
//! The policy ([`settings`]) determines which plugins ([`plugins`]) run in workers.
//!
//! Nothing here depends on specific operations: arguments are passed as dynamic arguments.

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
