//! What holds of the repository as a whole.

mod freshness;
mod house;
mod macros;
