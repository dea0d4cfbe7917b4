//! The suite of `lz-perfdb`.

mod faults;
mod fleet;
mod fork;
mod store;
mod support;
