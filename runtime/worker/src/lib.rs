//! Backends in worker processes. The host ([`host`]) spawns a worker, passes tensors through shared memory ([`memory`], [`arena`]), and
//! calls its kernels through a ring buffer of slots ([`protocol`], [`message`]). The worker ([`serve`]) runs them.
//!
//! The host treats a worker as untrusted: data in shared memory is copied, then validated, then used, and the host's own bookkeeping is
//! in private memory. A crash, a hang, an out-of-memory kill and an invalid answer each fail the running call with their own reason
//! code.
//!
//! A worker belongs to the process that spawned it: a forked child spawns its own.
//!
//! Once it has loaded its backend, a worker confines itself ([`sandbox`]).
//!
//! The policy ([`settings`]) determines which plugins ([`plugins`]) run in workers.
//!
//! Nothing here depends on specific operations: arguments are passed as dynamic arguments.

pub mod arena;
mod failure;
mod fork;
mod handoff;
pub mod handshake;
pub mod host;
pub mod memory;
pub mod message;
mod options;
pub mod plugins;
mod process;
pub mod program;
pub mod protocol;
mod remote_kernel;
mod running_worker;
pub mod sandbox;
mod seccomp;
pub mod serve;
pub mod settings;
mod slot;
mod slots;
mod supervisor;
mod sync;
mod tensor;
mod termination;
mod wait;
pub mod wire;
mod worker_state;

pub use host::{WeakWorker, Worker};
pub use options::WorkerOptions;
pub use sandbox::Sandbox;
pub use tensor::SharedTensor;
pub use wait::set_interrupt_check;
