//! What holds of the repository as a whole.

mod documents;
mod freshness;
mod layers;
mod macros;
mod scenarios;
