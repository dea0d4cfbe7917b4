//! ONNX nodes as calls of our operations: one file a family of operators.
//!
//! A mapping may reshape, view with strides, slice and pad what goes in, and it may call an operation once for each slice;
//! it never computes a result itself. What an operation cannot be asked for is [`MapError::Unstatable`], and the skip list
//! has to say so too. Nothing here looks at the expected outputs or judges results.

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

/// A node's run, stated as calls of one operation.
pub struct Statement {
    /// The operation's name in the catalogue.
    pub operation: &'static str,
    run: Box<Run>,
}

/// Makes the calls and gathers what they give.
type Run = dyn Fn(&Engine) -> Result<Vec<Produced>, MapError>;

/// What a statement gives for one output of the node.
pub struct Produced {
    /// Which output of the node.
    pub output: usize,
    /// Its value, in the form that ONNX gives it.
    pub tensor: NamedTensor,
}

/// Why a statement could not be made, or gave no result.
#[derive(Debug)]
pub enum MapError {
    /// No operation of ours can be asked for what the node says.
    Unstatable {
        /// What stands in the way.
        why: String,
    },
    /// A tensor could not be built: the mapping or the case is wrong.
    Tensor(Reason),
    /// The call was refused or failed.
    Call(Error),
}

/// Turns a node and what goes into it into statements, at least one.
type Mapper = fn(&Arguments<'_>) -> Result<Vec<Statement>, MapError>;

/// Every operator that some operation of ours can state, with its domain.
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

/// The operators that are mapped, by the names that the skip list uses.
pub fn mapped_operators() -> impl Iterator<Item = String> {
    MAPPERS.iter().map(|&(domain, op_type, _)| operator_name(domain, op_type))
}

/// An operator as the skip list names it: with its domain, unless that is the standard one.
pub fn operator_name(domain: &str, op_type: &str) -> String {
    if matches!(domain, "" | "ai.onnx") { op_type.to_owned() } else { format!("{domain}.{op_type}") }
}

/// Whether the node's operator has a mapping.
pub fn is_mapped(node: &Node) -> bool {
    mapper(node).is_some()
}

/// States one run of a case; an operator without a mapping is unstatable too.
pub fn state(case: &Case, data_set: &DataSet) -> Result<Vec<Statement>, MapError> {
    match mapper(&case.node) {
        Some(mapper) => mapper(&Arguments::new(&case.node, &data_set.inputs)),
        None => Err(unstatable("the operator has no mapping")),
    }
}

fn mapper(node: &Node) -> Option<Mapper> {
    let wanted = operator_name(&node.domain, &node.op_type);
    MAPPERS
        .iter()
        .find(|(domain, op_type, _)| operator_name(domain, op_type) == wanted)
        .map(|&(_, _, mapper)| mapper)
}

impl Statement {
    fn new(
        operation: &'static str,
        run: impl Fn(&Engine) -> Result<Vec<Produced>, MapError> + 'static,
    ) -> Self {
        Self { operation, run: Box::new(run) }
    }

    /// Runs it with the kernel that the engine chooses.
    pub fn run(&self, engine: &Engine) -> Result<Vec<Produced>, MapError> {
        (self.run)(engine)
    }
}

fn unstatable(why: impl Into<String>) -> MapError {
    MapError::Unstatable { why: why.into() }
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
            Self::Unstatable { why } => write!(formatter, "no operation can state it: {why}"),
            Self::Tensor(reason) => write!(formatter, "a tensor could not be built: {reason}"),
            Self::Call(error) => error.fmt(formatter),
        }
    }
}

impl std::error::Error for MapError {}
