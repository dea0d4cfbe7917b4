//! The suite of `lz-perfdb`.

mod faults;
mod fleet;
mod fork;
mod reads;
mod store;
mod support;
