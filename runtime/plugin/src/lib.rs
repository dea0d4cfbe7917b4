//! The plugin C ABI. [`abi`] has its common structures, `generated` the argument and output structures of each operation, [`native`]
//! runs a kernel behind a C vtable, [`loader`] loads plugins from shared libraries, and [`signing`] signs and verifies files.
//!
//! The same structures serve native plugins, kernels written in C++ and callers in C++: the memory layout of an operation is defined
//! once. Nothing here selects kernels; a native kernel is registered like any other.

pub mod abi;
pub mod loader;
pub mod native;
mod operation;
pub mod signing;

/// One structure of arguments and one of outputs for each operation.
#[rustfmt::skip]
pub mod generated;
