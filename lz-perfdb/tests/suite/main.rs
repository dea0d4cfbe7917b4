//! The suite of `lz-perfdb`.

mod faults;
mod store;
mod support;
