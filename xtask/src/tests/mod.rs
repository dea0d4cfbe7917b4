//! Tests of the repository as a whole.

mod documents;
mod freshness;
mod layers;
mod links;
mod macros;
mod packages;
mod reasons;
mod scenarios;
mod targets;
mod wording;
