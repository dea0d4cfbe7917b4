//! The ONNX backend node tests, as plain Rust values and as calls of LayerZero operations.
//!
//! A case of the suite is a folder with a model of one node, its input tensors and the expected outputs.
//! [`wire`] reads the protobuf encoding and is independent of ONNX, [`tensor`] and [`model`] read the ONNX
//! messages, [`case`] the file layout of the suite. Only [`map`] depends on the operations and only
//! [`kernels`] on the kernels; [`compare`] compares results and [`skips`] reads `skips.yaml`, which lists
//! everything that is not mapped.

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
