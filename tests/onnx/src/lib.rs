//! The ONNX backend node tests, as plain Rust values and as calls of our operations.
//!
//! A case of the suite is a folder with a model of one node and the tensors that go in and must come out. [`wire`] knows
//! the protobuf encoding and nothing of ONNX, [`tensor`] and [`model`] know the ONNX messages, [`case`] knows how the suite
//! lays out its files. [`map`] alone knows our operations and [`kernels`] alone knows who runs them; [`compare`] judges
//! results and [`skips`] reads `skips.yaml`, which accounts for everything that is not mapped.

pub mod case;
pub mod compare;
pub mod error;
pub mod kernels;
pub mod map;
pub mod model;
pub mod number;
pub mod skips;
pub mod tensor;
pub mod wire;

pub use case::{Case, DataSet, LoadedCase, SkipReason, data_directory, list_cases, load_case};
pub use error::{Problem, ReadError};
pub use model::{Attribute, AttributeValue, Model, Node};
pub use tensor::{DataType, NamedTensor, TensorData};
