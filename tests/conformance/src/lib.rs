//! Property tests and conformance tests of every operation, drawn from its schema.
//!
//! Calls are drawn from the schema as data: valid ones ([`valid`]), ones with exactly one fault ([`broken`])
//! and ones with arbitrary faults ([`wild`]). [`suite`] tests validation, [`values`] checks the kernels
//! against the reference, [`promises`] what kernels declare. The generated code is a thin typed layer that binds tests to operations.
//!
//! A case is identified by its number: `LZ_CASE=17 cargo test -p lz-conformance norm_rms::tests::metadata`
//! runs a single one. `LZ_CASES_METADATA` and `LZ_CASES_VALUES` set the number of cases.

pub mod assign;
pub mod broken;
pub mod call;
pub mod coverage;
pub mod fill;
pub mod memory;
pub mod mutants;
pub mod parts;
pub mod primitives;
pub mod promises;
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
