//! All operations: generated types, validation and functions, and a hand-written reference implementation of each.
//!
//! Depends on the engine only through [`Dispatch`](lz_core::Dispatch), so that kernel authors do not compile it.
//!
//! Each operation is a function that takes an engine and its arguments; [`OPERATIONS`] lists all of them.
//!
//! ```
//! use lz_core::TensorView;
//! use lz_engine::Engine;
//! use lz_ops::{NormRms, norm_rms, reference_kernels};
//!
//! let engine = Engine::with_kernels(reference_kernels::kernels())?;
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
