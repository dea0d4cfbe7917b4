//! Kernels behind a C ABI. [`abi`] has the structures that cross it, `generated` one argument structure an operation, and
//! [`native`] runs a kernel that is a table of C functions,
//! and [`loader`] loads such kernels from shared libraries.
//!
//! The same structures serve native plugins, kernels written in C++ and callers in C++: what an operation looks like in
//! memory is said once. Nothing here selects; a native kernel is registered like any other.

pub mod abi;
pub mod loader;
pub mod native;
mod operation;

/// One structure of arguments and one of outputs for each operation.
#[rustfmt::skip]
pub mod generated;
