//! A page for people: live decisions, operations, measurements, health, policy and lockfiles of one engine.
//!
//! [`serve`] starts a server on a loopback address; its URL contains a random token, and nothing listens unless it is called.
//! [`report`] writes the same content as one file that needs no server. Both read the engine through `data`, which returns
//! plain JSON. The server registers its URL in a folder that only its user can read, so that [`processes`] finds it.
//!
//! Never runs a kernel, and never changes settings, measurements or health. Never depends on bindings.

mod access;
mod assets;
mod call;
mod data;
mod live;
mod probe;
mod registration;
mod report;
mod routes;
mod server;

pub use data::{Source, bucket_text};
pub use registration::{Process, processes};
pub use report::report;
pub use server::{Server, serve};
