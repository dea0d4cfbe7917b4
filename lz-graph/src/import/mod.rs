//! Front ends that are written in Rust.

pub mod onnx;
