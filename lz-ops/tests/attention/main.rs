//! Attention references: small cases computed by hand, and equalities between operations.
//!
//! `support::Problem` is one attention problem in plain vectors. Its `expected` is the oracle: the formula of
//! the schemas with plain exponentials, independent of the references.

mod cross;
mod decode;
mod latent;
mod masks;
mod merge;
mod prefill;
mod ragged;
mod sparse;
mod specialization;
mod support;
