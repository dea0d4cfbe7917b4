//! All operations: generated types, validation and dispatch, and a hand-written reference implementation of each.
//!
//! Each operation is a function that takes an engine and its arguments; [`OPERATIONS`] lists all of them.
//!
//! ```
//! use lz_core::TensorView;
//! use lz_ops::{NormRms, norm_rms, reference_engine};
//!
//! let engine = reference_engine();
//! let (x, weight) = ([3.0f32, 4.0], [2.0f32, 1.0]);
//! let args = NormRms::new(TensorView::from_slice(&x, &[1, 2])?)
//!     .weight(TensorView::from_slice(&weight, &[2])?)
//!     .eps(1e-6);
//! let result = norm_rms(&engine, args)?;
//! let output = result.output.view();
//! assert!((output.at(&[0, 0]) - 1.697056).abs() < 1e-5);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! An engine with a configuration is created by its builder. Settings are checked when it is opened:
//!
//! ```
//! use lz_engine::Engine;
//! use lz_engine::policy::layer::SettingInput;
//!
//! let engine = Engine::builder()
//!     .operations(lz_ops::OPERATIONS)
//!     .set("deterministic", SettingInput::Bool(true))
//!     .set("perfdb.enabled", SettingInput::Bool(false))
//!     .open()?;
//! engine.register(lz_ops::reference_kernels::kernels())?;
//! assert!(engine.config().iter().any(|entry| entry.key == "deterministic" && entry.value == "true"));
//!
//! let error = Engine::builder().set("determinstic", SettingInput::Bool(true)).open().unwrap_err();
//! assert!(error.to_string().contains("did you mean `deterministic`?"));
//! # Ok::<(), lz_core::Error>(())
//! ```

#[rustfmt::skip]
mod generated;

pub use generated::*;

pub mod reference;
pub mod tokenizer;

use lz_engine::Engine;

/// An engine with the reference kernels of all operations.
pub fn reference_engine() -> Engine {
    let engine = Engine::new();
    if let Err(error) = engine.register(generated::reference_kernels::kernels()) {
        // The tests of this crate register the same entries.
        unreachable!("the reference kernels match their operations: {error}");
    }
    engine
}
