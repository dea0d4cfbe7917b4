//! The suite of `lz-perfdb`.

mod faults;
mod fork;
mod store;
mod support;
