//! The attention references: tiny cases worked out by hand, and what must hold between the operations.
//!
//! `support::Problem` is one attention problem in plain numbers. Its `expected` is the oracle: the formula of the schemas
//! with bare exponentials, written without any part of the references.

mod cross;
mod decode;
mod latent;
mod masks;
mod merge;
mod prefill;
mod ragged;
mod sparse;
mod support;
