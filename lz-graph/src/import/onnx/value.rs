//! Values of names during import: tensors of the graph, and integers that are known as sizes.

use lz_core::DType;

use crate::dim::Dim;
use crate::graph::NodeId;

/// The value of a name.
#[derive(Clone, Debug)]
pub enum Value {
    /// A tensor that the graph computes.
    Tensor(NodeId),
    /// Integers or bools that depend only on sizes.
    Sizes(Sizes),
}

/// A tensor of integers or bools (0 and 1) without dimensions, or with one.
#[derive(Clone, Debug, PartialEq)]
pub struct Sizes {
    /// The elements.
    pub dims: Vec<Dim>,
    /// Whether it has no dimension.
    pub scalar: bool,
    /// The element type: i64, i32 or bool.
    pub dtype: DType,
}

impl From<NodeId> for Value {
    fn from(node: NodeId) -> Value {
        Value::Tensor(node)
    }
}

impl Sizes {
    /// A vector of i64.
    pub fn vector(dims: Vec<Dim>) -> Sizes {
        Sizes { dims, scalar: false, dtype: DType::I64 }
    }

    /// An i64 without dimensions.
    pub fn scalar(dim: Dim) -> Sizes {
        Sizes { dims: vec![dim], scalar: true, dtype: DType::I64 }
    }

    /// The elements, if none depends on symbols.
    pub fn numbers(&self) -> Option<Vec<i64>> {
        self.dims.iter().map(Dim::constant).collect()
    }
}
