//! Attributes and inputs of a node, for the mappings.

use super::{MapError, unsupported};
use crate::model::{AttributeValue, Node};
use crate::tensor::NamedTensor;

/// The attributes and inputs of one run of a node.
pub struct Arguments<'c> {
    node: &'c Node,
    inputs: &'c [Option<NamedTensor>],
}

impl<'c> Arguments<'c> {
    /// From a node and the tensors of a data set.
    pub fn new(node: &'c Node, inputs: &'c [Option<NamedTensor>]) -> Self {
        Self { node, inputs }
    }

    /// Rejects a node with attributes or inputs that the mapping does not handle: ignoring them would test
    /// something else.
    pub fn only(&self, attributes: &[&str], inputs: usize) -> Result<(), MapError> {
        let unknown = self.node.attributes.iter().find(|given| !attributes.contains(&given.name.as_str()));
        if let Some(attribute) = unknown {
            return Err(unsupported(format!("the attribute `{}`", attribute.name)));
        }
        match self.inputs.iter().skip(inputs).flatten().next() {
            Some(input) => Err(unsupported(format!("the input `{}`", input.name))),
            None => Ok(()),
        }
    }

    /// A required input.
    pub fn input(&self, index: usize) -> Result<&'c NamedTensor, MapError> {
        self.optional(index).ok_or_else(|| unsupported(format!("input {index} is missing")))
    }

    /// An optional input.
    pub fn optional(&self, index: usize) -> Option<&'c NamedTensor> {
        self.inputs.get(index).and_then(Option::as_ref)
    }

    /// Whether the node has an output.
    pub fn has_output(&self, output: usize) -> bool {
        self.node.outputs.get(output).is_some_and(|name| !name.is_empty())
    }

    /// An integer attribute or its default.
    pub fn int(&self, name: &str, default: i64) -> Result<i64, MapError> {
        Ok(self.given(name, AttributeValue::as_int)?.unwrap_or(default))
    }

    /// A float attribute, if given.
    pub fn float(&self, name: &str) -> Result<Option<f32>, MapError> {
        self.given(name, AttributeValue::as_float)
    }

    /// A text attribute or its default.
    pub fn text(&self, name: &str, default: &'c str) -> Result<&'c str, MapError> {
        Ok(self.given(name, AttributeValue::as_text)?.unwrap_or(default))
    }

    /// The attribute `axis` or its default, normalized for a shape of this rank.
    pub fn axis(&self, default: i64, rank: usize) -> Result<usize, MapError> {
        let axis = self.int("axis", default)?;
        let counted = if axis < 0 { axis + rank as i64 } else { axis };
        usize::try_from(counted)
            .ok()
            .filter(|&axis| axis < rank)
            .ok_or_else(|| unsupported(format!("axis {axis} of {rank} dimensions")))
    }

    fn given<T>(
        &self,
        name: &str,
        read: impl FnOnce(&'c AttributeValue) -> Option<T>,
    ) -> Result<Option<T>, MapError> {
        match self.node.attribute(name) {
            None => Ok(None),
            Some(value) => match read(value) {
                Some(value) => Ok(Some(value)),
                None => Err(unsupported(format!("the attribute `{name}` has an unexpected type"))),
            },
        }
    }
}
