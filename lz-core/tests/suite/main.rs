//! The suite of `lz-core`.

mod descriptors;
