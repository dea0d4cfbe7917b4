//! A schema with mistakes: its diagnostics are the compile error.

lz_macros::operation!("misspelled.yaml");

fn main() {}
