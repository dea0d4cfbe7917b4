//! Every operation of the catalogue: generated types, checks and dispatch, and the hand-written reference of each.
//!
//! `lz_ops::norm_rms(&engine, NormRms::new(x).weight(w))` is the way in; [`OPERATIONS`] lists them all.

#[rustfmt::skip]
mod generated;

pub use generated::*;

pub mod reference;
pub mod tokenizer;

use lz_engine::Engine;

/// An engine that knows the reference of every operation.
pub fn reference_engine() -> Engine {
    let engine = Engine::new();
    if let Err(error) = engine.register(generated::reference_kernels::kernels()) {
        // The same entries are registered by the tests of this crate.
        unreachable!("the reference kernels fit their operations: {error}");
    }
    engine
}
