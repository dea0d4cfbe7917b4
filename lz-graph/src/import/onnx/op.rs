//! One node during its import: attributes, inputs, and a record of which of them the handler read.

use lz_core::{DType, Tensor};

use super::model::{AttributeValue, Node};
use super::tensor::{DataType, NamedTensor};
use super::value::{Sizes, Value};
use crate::build::Builder;
use crate::dim::Dim;
use crate::error::GraphError;
use crate::graph::{NodeId, NodeKind};

/// The results of a handler, in the order of the operator's outputs.
pub type Outputs = Result<Vec<Value>, GraphError>;

/// Imports one operator.
pub type Handler = fn(&mut Op<'_>) -> Outputs;

/// Integers with more elements stay tensors.
const MAX_KNOWN: i64 = 1024;

/// A node during its import.
pub struct Op<'a> {
    /// The graph.
    pub build: &'a mut Builder,
    /// The opset of the operator's domain.
    pub opset: i64,
    node: &'a Node,
    inputs: Vec<Option<Value>>,
    read_inputs: Vec<bool>,
    read_attributes: Vec<bool>,
}

/// One output.
pub fn one(node: NodeId) -> Outputs {
    Ok(vec![node.into()])
}

impl<'a> Op<'a> {
    pub fn new(build: &'a mut Builder, node: &'a Node, inputs: Vec<Option<Value>>, opset: i64) -> Op<'a> {
        let (read_inputs, read_attributes) = (vec![false; inputs.len()], vec![false; node.attributes.len()]);
        Op { build, opset, node, inputs, read_inputs, read_attributes }
    }

    /// The operator.
    pub fn operator(&self) -> &'a str {
        &self.node.op_type
    }

    /// An error at this node.
    pub fn error(&self, message: impl Into<String>) -> GraphError {
        self.build.error(message)
    }

    /// An error if the handler left something unread.
    pub fn check_read(&self) -> Result<(), GraphError> {
        for (attribute, read) in self.node.attributes.iter().zip(&self.read_attributes) {
            if !read {
                return Err(self.error(format!("the attribute `{}` is not supported", attribute.name)));
            }
        }
        for (index, (value, read)) in self.inputs.iter().zip(&self.read_inputs).enumerate() {
            if value.is_some() && !read {
                let name = self.node.inputs.get(index).map_or("", String::as_str);
                return Err(self.error(format!("input {index} (`{name}`) is not supported")));
            }
        }
        Ok(())
    }

    /// The number of inputs, with omitted ones.
    pub fn count(&self) -> usize {
        self.inputs.len()
    }

    /// Whether an input is given.
    pub fn has(&self, index: usize) -> bool {
        self.inputs.get(index).is_some_and(Option::is_some)
    }

    /// The number of the last output that is used, plus one.
    pub fn output_count(&self) -> usize {
        self.node.outputs.iter().rposition(|name| !name.is_empty()).map_or(0, |last| last + 1)
    }

    /// Whether an output is used.
    pub fn wants(&self, output: usize) -> bool {
        self.node.outputs.get(output).is_some_and(|name| !name.is_empty())
    }

    /// Marks an input as handled.
    pub fn ignore(&mut self, index: usize) {
        if let Some(read) = self.read_inputs.get_mut(index) {
            *read = true;
        }
    }

    /// An input as it is.
    pub fn value(&mut self, index: usize) -> Option<Value> {
        self.ignore(index);
        self.inputs.get(index).cloned().flatten()
    }

    /// An optional input as a tensor.
    pub fn maybe(&mut self, index: usize) -> Result<Option<NodeId>, GraphError> {
        self.value(index).map(|value| tensor(self.build, value)).transpose()
    }

    /// A required input as a tensor.
    pub fn x(&mut self, index: usize) -> Result<NodeId, GraphError> {
        self.maybe(index)?.ok_or_else(|| self.error(format!("input {index} is missing")))
    }

    /// Integers or bools of an input that are known at import; `None` if absent or computed by the graph.
    pub fn known(&mut self, index: usize) -> Option<Sizes> {
        match self.value(index)? {
            Value::Sizes(sizes) => Some(sizes),
            Value::Tensor(node) => known_constant(self.build, node),
        }
    }

    /// Required integers that depend only on sizes.
    pub fn sizes(&mut self, index: usize) -> Result<Vec<Dim>, GraphError> {
        if !self.has(index) {
            return Err(self.error(format!("input {index} is missing")));
        }
        self.known(index).map(|sizes| sizes.dims).ok_or_else(|| {
            self.error(format!(
                "input {index} depends on data; it must be a constant or depend on sizes only"
            ))
        })
    }

    /// Constant integers, if the input is given.
    pub fn numbers(&mut self, index: usize) -> Result<Option<Vec<i64>>, GraphError> {
        if !self.has(index) {
            return Ok(None);
        }
        let dims = self.sizes(index)?;
        let numbers: Option<Vec<i64>> = dims.iter().map(Dim::constant).collect();
        numbers
            .map(Some)
            .ok_or_else(|| self.error(format!("input {index} must be a constant, found {dims:?}")))
    }

    /// The value of a constant input with one element.
    pub fn scalar(&mut self, index: usize) -> Option<f64> {
        match self.value(index)? {
            Value::Sizes(sizes) if sizes.dims.len() == 1 => {
                sizes.dims[0].constant().map(|value| value as f64)
            }
            Value::Sizes(_) => None,
            Value::Tensor(node) => self.build.graph().scalar(node),
        }
    }

    /// The elements of a constant input; `None` if absent or computed by the graph.
    pub fn constant_floats(&mut self, index: usize) -> Option<Vec<f64>> {
        let Some(Value::Tensor(node)) = self.value(index) else { return None };
        let view = self.build.graph().constant(node)?.view();
        (view.rank() <= 1 && view.elements() <= MAX_KNOWN).then(|| {
            (0..view.elements())
                .map(|index| view.at(if view.rank() == 0 { &[] } else { std::slice::from_ref(&index) }))
                .collect()
        })
    }

    /// An attribute of the node.
    pub fn attribute(&mut self, name: &str) -> Option<&'a AttributeValue> {
        let index = self.node.attributes.iter().position(|attribute| attribute.name == name)?;
        self.read_attributes[index] = true;
        Some(&self.node.attributes[index].value)
    }

    fn given<T>(
        &mut self,
        name: &str,
        read: impl FnOnce(&'a AttributeValue) -> Option<T>,
    ) -> Result<Option<T>, GraphError> {
        match self.attribute(name) {
            None => Ok(None),
            Some(value) => match read(value) {
                Some(value) => Ok(Some(value)),
                None => Err(self.error(format!("the attribute `{name}` has an unexpected type"))),
            },
        }
    }

    /// An int attribute or its default.
    pub fn int(&mut self, name: &str, default: i64) -> Result<i64, GraphError> {
        Ok(self.given(name, AttributeValue::as_int)?.unwrap_or(default))
    }

    /// An int attribute that must be 0 or 1.
    pub fn flag(&mut self, name: &str, default: bool) -> Result<bool, GraphError> {
        Ok(self.int(name, i64::from(default))? != 0)
    }

    /// A float attribute, if given.
    pub fn maybe_float(&mut self, name: &str) -> Result<Option<f64>, GraphError> {
        Ok(self.given(name, AttributeValue::as_float)?.map(f64::from))
    }

    /// A float attribute or its default.
    pub fn float(&mut self, name: &str, default: f64) -> Result<f64, GraphError> {
        Ok(self.maybe_float(name)?.unwrap_or(default))
    }

    /// A text attribute or its default.
    pub fn text(&mut self, name: &str, default: &'static str) -> Result<&'a str, GraphError> {
        Ok(self.given(name, AttributeValue::as_text)?.unwrap_or(default))
    }

    /// A list of ints, if given.
    pub fn list(&mut self, name: &str) -> Result<Option<Vec<i64>>, GraphError> {
        Ok(self.given(name, AttributeValue::as_ints)?.map(<[i64]>::to_vec))
    }

    /// A tensor attribute, if given.
    pub fn tensor_attribute(&mut self, name: &str) -> Result<Option<&'a NamedTensor<'static>>, GraphError> {
        self.given(name, |value| match value {
            AttributeValue::Tensor(tensor) => Some(tensor),
            _ => None,
        })
    }

    /// An attribute `axis` or its default, as a dimension of `x`.
    pub fn axis(&mut self, default: i64, x: NodeId) -> Result<usize, GraphError> {
        let axis = self.int("axis", default)?;
        self.build.axis(x, axis)
    }

    /// A dtype attribute, by ONNX code.
    pub fn dtype_attribute(&mut self, name: &str) -> Result<Option<DType>, GraphError> {
        match self.given(name, AttributeValue::as_int)? {
            None => Ok(None),
            Some(code) => self.dtype_of_code(code).map(Some),
        }
    }

    /// The dtype of an ONNX code.
    pub fn dtype_of_code(&self, code: i64) -> Result<DType, GraphError> {
        let Some(data_type) = DataType::from_code(code) else {
            return Err(self.error(format!("{code} is no element type")));
        };
        data_type.dtype().ok_or_else(|| self.error(format!("tensors of {data_type:?} are not supported")))
    }

    /// Axes, from an attribute before opset `since` and from an input afterwards; `None` if not given.
    pub fn axes(&mut self, since: i64, input: usize, rank: usize) -> Result<Option<Vec<usize>>, GraphError> {
        let axes = if self.opset < since { self.list("axes")? } else { self.numbers(input)? };
        let axes = axes.map(|axes| axes.iter().map(|&axis| self.build.axis_of_rank(axis, rank)).collect());
        axes.transpose()
    }
}

/// A value as a tensor of the graph.
pub fn tensor(build: &mut Builder, value: Value) -> Result<NodeId, GraphError> {
    let sizes = match value {
        Value::Tensor(node) => return Ok(node),
        Value::Sizes(sizes) => sizes,
    };
    let Some(numbers) = sizes.numbers() else {
        let node = build.sizes(sizes.dims, sizes.scalar);
        return build.cast(node, sizes.dtype);
    };
    let shape: &[i64] = if sizes.scalar { &[] } else { &[numbers.len() as i64] };
    let mut tensor = Tensor::zeros(shape, sizes.dtype).map_err(|reason| build.error(reason.to_string()))?;
    let mut view = tensor.view_mut();
    for (index, &number) in numbers.iter().enumerate() {
        if sizes.scalar { view.set_int(&[], number) } else { view.set_int(&[index as i64], number) }
    }
    Ok(build.owned(tensor))
}

/// The elements of a small constant of integers or bools.
fn known_constant(build: &Builder, node: NodeId) -> Option<Sizes> {
    if let NodeKind::Sizes(dims) = &build.graph().node(node).kind {
        return Some(Sizes { dims: dims.clone(), scalar: build.rank(node) == 0, dtype: DType::I64 });
    }
    let view = build.graph().constant(node)?.view();
    let dtype = view.dtype();
    if !matches!(dtype, DType::I64 | DType::I32 | DType::Bool)
        || view.rank() > 1
        || view.elements() > MAX_KNOWN
    {
        return None;
    }
    let scalar = view.rank() == 0;
    let at = |index: i64| if scalar { view.int_at(&[]) } else { view.int_at(&[index]) };
    let dims = (0..view.elements()).map(|index| Dim::from(at(index))).collect();
    Some(Sizes { dims, scalar, dtype })
}
