//! The suite of `lz-core`.

mod check_call;
mod check_fast;
mod descriptors;
