//! The ONNX backend node tests, as plain Rust values and as calls of LayerZero operations.
//!
//! A case of the suite is a folder with a model of one node, its input tensors and the expected outputs.
//! The messages of ONNX are read by the front end of `lz-graph`; [`case`] reads the file layout of the suite. Only [`map`] depends on the operations and only
//! [`kernels`] on the kernels; [`compare`] compares results and [`skips`] reads `skips.yaml`, which lists
//! everything that is not mapped.

pub mod case;
pub mod compare;
pub mod error;
pub mod kernels;
pub mod map;
pub mod number;
pub mod skips;
pub mod tensor;

pub use case::{Case, DataSet, LoadedCase, SkipReason, data_directory, list_cases, load_case};
pub use error::{Problem, ReadError};
pub use lz_graph::import::onnx::model::{self, Attribute, AttributeValue, Model, Node};
pub use lz_graph::import::onnx::read::read_model;
pub use lz_graph::import::onnx::wire;
pub use tensor::{DataType, NamedTensor, TensorData, ToF64};
