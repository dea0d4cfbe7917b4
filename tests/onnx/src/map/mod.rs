//! Maps ONNX nodes to calls of LayerZero operations: one file per operator family.
//!
//! A mapping may reshape, use strides, slice and pad its inputs, and it may call an operation once per slice;
//! it never computes a result itself. A node that no operation supports is [`MapError::Unsupported`], and
//! must be in the skip list. Nothing here accesses the expected outputs or compares results.

mod activation;
mod arguments;
mod attention;
mod cache;
mod embedding;
mod linear;
mod norm;
mod quantization;
mod rotary;
mod sequences;
mod tensors;

use crate::case::{Case, DataSet};
use crate::model::Node;
use crate::tensor::NamedTensor;
use arguments::Arguments;
use lz_core::{Error, Reason};
use lz_engine::Engine;
use std::fmt;

/// A run of a node, mapped to calls of one operation.
pub struct MappedCall {
    /// The operation's name in the catalog.
    pub operation: &'static str,
    run: Box<Run>,
}

/// Makes the calls and collects their outputs.
type Run = dyn Fn(&Engine) -> Result<Vec<MappedOutput>, MapError>;

/// The value of one output of the node.
pub struct MappedOutput {
    /// Index of the node's output.
    pub output: usize,
    /// Its value, in ONNX form.
    pub tensor: NamedTensor,
}

/// Why a node could not be mapped, or gave no result.
#[derive(Debug)]
pub enum MapError {
    /// No operation supports the node.
    Unsupported {
        /// The reason.
        reason: String,
    },
    /// A tensor could not be created: the mapping or the case is wrong.
    Tensor(Reason),
    /// The call was rejected or failed.
    Call(Error),
}

/// Maps a node and its inputs to at least one call.
type Mapper = fn(&Arguments<'_>) -> Result<Vec<MappedCall>, MapError>;

/// Every mapped operator, with its domain.
const MAPPERS: [(&str, &str, Mapper); 16] = [
    ("", "Attention", attention::attention),
    ("", "Cast", quantization::cast),
    ("", "CastLike", quantization::cast_like),
    ("", "DequantizeLinear", quantization::dequantize_linear),
    ("", "Gather", embedding::gather),
    ("", "Gelu", activation::gelu),
    ("", "Gemm", linear::gemm),
    ("", "LayerNormalization", norm::layer_normalization),
    ("", "MatMul", linear::matmul),
    ("", "QuantizeLinear", quantization::quantize_linear),
    ("", "RMSNormalization", norm::rms_normalization),
    ("", "Relu", activation::relu),
    ("", "RotaryEmbedding", rotary::rotary_embedding),
    ("", "Swish", activation::swish),
    ("", "TensorScatter", cache::tensor_scatter),
    ("ai.onnx.preview", "FlexAttention", attention::flex_attention),
];

/// The mapped operators, by the names that the skip list uses.
pub fn mapped_operators() -> impl Iterator<Item = String> {
    MAPPERS.iter().map(|&(domain, op_type, _)| operator_name(domain, op_type))
}

/// An operator as named in the skip list: with its domain, unless that is the default one.
pub fn operator_name(domain: &str, op_type: &str) -> String {
    if matches!(domain, "" | "ai.onnx") { op_type.to_owned() } else { format!("{domain}.{op_type}") }
}

/// Whether the node's operator is mapped.
pub fn is_mapped(node: &Node) -> bool {
    mapper(node).is_some()
}

/// Maps one run of a case; an operator without a mapping is unsupported too.
pub fn map_case(case: &Case, data_set: &DataSet) -> Result<Vec<MappedCall>, MapError> {
    match mapper(&case.node) {
        Some(mapper) => mapper(&Arguments::new(&case.node, &data_set.inputs)),
        None => Err(unsupported("the operator has no mapping")),
    }
}

fn mapper(node: &Node) -> Option<Mapper> {
    let wanted = operator_name(&node.domain, &node.op_type);
    MAPPERS
        .iter()
        .find(|(domain, op_type, _)| operator_name(domain, op_type) == wanted)
        .map(|&(_, _, mapper)| mapper)
}

impl MappedCall {
    fn new(
        operation: &'static str,
        run: impl Fn(&Engine) -> Result<Vec<MappedOutput>, MapError> + 'static,
    ) -> Self {
        Self { operation, run: Box::new(run) }
    }

    /// Runs the call with the kernel that the engine selects.
    pub fn run(&self, engine: &Engine) -> Result<Vec<MappedOutput>, MapError> {
        (self.run)(engine)
    }
}

fn unsupported(reason: impl Into<String>) -> MapError {
    MapError::Unsupported { reason: reason.into() }
}

impl From<Reason> for MapError {
    fn from(reason: Reason) -> Self {
        Self::Tensor(reason)
    }
}

impl From<Error> for MapError {
    fn from(error: Error) -> Self {
        Self::Call(error)
    }
}

impl fmt::Display for MapError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsupported { reason } => write!(formatter, "not supported by any operation: {reason}"),
            Self::Tensor(reason) => write!(formatter, "cannot create a tensor: {reason}"),
            Self::Call(error) => error.fmt(formatter),
        }
    }
}

impl std::error::Error for MapError {}
