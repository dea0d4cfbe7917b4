//! Tests of the repository as a whole.

mod documents;
mod freshness;
mod house;
mod macros;
mod scenarios;
