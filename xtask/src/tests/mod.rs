//! Tests of the repository as a whole.

mod documents;
mod freshness;
mod house;
mod links;
mod macros;
mod scenarios;
mod wording;
