//! Property tests and conformance of every operation, drawn from its schema.
//!
//! One engine draws calls over the schema as data: valid ones ([`valid`]), ones with exactly one thing wrong ([`broken`]) and
//! ones with anything wrong ([`wild`]). [`suite`] holds the checks to them, [`values`] the kernels. What is generated is a thin
//! typed layer that says which operation a test is about.
//!
//! A case is its number: `LZ_CASE=17 cargo test -p lz-conformance norm_rms::tests::metadata` runs one alone. `LZ_CASES_METADATA`
//! and `LZ_CASES_VALUES` set how many are run.

pub mod assign;
pub mod broken;
pub mod call;
pub mod compare;
pub mod coverage;
pub mod fill;
pub mod memory;
pub mod mutants;
pub mod random;
pub mod strategy;
mod subject;
pub mod suite;
pub mod take;
pub mod text;
pub mod valid;
pub mod values;
pub mod wild;
pub mod workload;

/// Every operation under test.
#[rustfmt::skip]
pub mod generated;
