//! The ONNX backend node tests, as plain Rust values.
//!
//! A case of the suite is a folder with a model of one node and the tensors that go in and must come out. This crate
//! reads such folders: [`wire`] knows the protobuf encoding and nothing of ONNX, [`tensor`] and [`model`] know the ONNX
//! messages, [`case`] knows how the suite lays out its files. Nothing here knows an operation of ours or runs anything.

pub mod case;
pub mod error;
pub mod model;
pub mod number;
pub mod tensor;
pub mod wire;

pub use case::{Case, DataSet, LoadedCase, SkipReason, data_directory, list_cases, load_case};
pub use error::{Problem, ReadError};
pub use model::{Attribute, AttributeValue, Model, Node};
pub use tensor::{DataType, NamedTensor, TensorData};
