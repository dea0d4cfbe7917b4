//! There is no such file.

lz_macros::operation!("missing.yaml");

fn main() {}
