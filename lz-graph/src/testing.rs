//! Shared by this crate's tests.

use lz_engine::Engine;

/// An engine with every reference.
pub fn engine() -> Engine {
    let engine = Engine::new();
    engine.register(lz_ops::reference_kernels::kernels()).unwrap();
    engine.register(lz_primitives::reference_kernels()).unwrap();
    engine
}
