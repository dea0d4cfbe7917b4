//! Walks a model: inputs, constants, nodes in order, functions inlined, outputs.

use std::collections::HashMap;
use std::sync::Arc;

use lz_core::DType;
use lz_core::tensor::MAX_RANK;

use super::constants::Files;
use super::inline::resolve;
use super::model::{
    Attribute, Function, Graph as ModelGraph, GraphValue, MAX_NODES, Model, Node, Size, ValueKind,
    domain_name, opset_version,
};
use super::op::{Op, tensor};
use super::tensor::DataType;
use super::value::Value;
use super::{Options, ops, sizes};
use crate::build::Builder;
use crate::dim::{Dim, Symbol};
use crate::error::GraphError;
use crate::graph::{ConstantData, Graph, NodeId, Origin};

/// Limit of the terms of the product of a shape's sizes: a model could square a size again and again.
const MAX_TERMS: usize = 100_000;

/// The import of one model.
pub struct Importer<'m> {
    path: String,
    pub(super) build: Builder,
    files: Files,
    functions: HashMap<(&'m str, &'m str, &'m str), &'m Function>,
    symbols: HashMap<String, Symbol>,
    pub(super) scopes: Vec<Scope>,
    nodes: usize,
}

/// The values of names.
#[derive(Default)]
pub(super) struct Scope {
    pub(super) values: HashMap<String, Value>,
    /// Whether names of the enclosing scopes are visible: in branches, not in functions.
    pub(super) open: bool,
}

/// What the nodes of a graph or function see besides values.
#[derive(Clone, Copy)]
pub(super) struct Environment<'m> {
    pub(super) opsets: &'m [(String, i64)],
    /// Attributes of the call of the function that is inlined.
    pub(super) attributes: &'m [Attribute],
    pub(super) defaults: &'m [Attribute],
}

impl<'m> Importer<'m> {
    pub fn new(path: &str, files: Files, model: &'m Model<'_>) -> Importer<'m> {
        let functions = model.functions.iter().map(|function| {
            ((domain_name(&function.domain), function.name.as_str(), function.overload.as_str()), function)
        });
        Importer {
            path: path.to_owned(),
            build: Builder::new(),
            files,
            functions: functions.collect(),
            symbols: HashMap::new(),
            scopes: vec![Scope::default()],
            nodes: 0,
        }
    }

    pub fn run(mut self, model: &'m Model<'_>, options: &Options) -> Result<Graph, GraphError> {
        self.constants(&model.graph)?;
        for input in &model.graph.inputs {
            // A constant of the same name is the default value of an input; it counts as a constant.
            if self.scopes[0].values.contains_key(&input.name) {
                continue;
            }
            self.build.at(Origin { name: input.name.clone(), ..Origin::default() });
            let node = match options.constants.get(&input.name) {
                Some(value) => {
                    let data = ConstantData::Owned(Arc::new(value.clone()));
                    self.build.constant(&input.name, data)
                }
                None => self.input(input)?,
            };
            self.define(&input.name, node.into())?;
        }
        let environment = Environment { opsets: &model.opsets, attributes: &[], defaults: &[] };
        self.nodes(&model.graph.nodes, environment)?;
        for output in &model.graph.outputs {
            self.output(output)?;
        }
        self.build.finish()
    }

    fn file_error(&self, message: String) -> GraphError {
        GraphError::File { path: self.path.clone(), message }
    }

    pub(super) fn define(&mut self, name: &str, value: Value) -> Result<(), GraphError> {
        let Some(scope) = self.scopes.last_mut() else { return Ok(()) };
        match scope.values.insert(name.to_owned(), value) {
            None => Ok(()),
            Some(_) => Err(self.file_error(format!("the value `{name}` is defined twice"))),
        }
    }

    pub(super) fn lookup(&self, name: &str) -> Option<&Value> {
        for scope in self.scopes.iter().rev() {
            if let Some(value) = scope.values.get(name) {
                return Some(value);
            }
            if !scope.open {
                return None;
            }
        }
        None
    }

    pub(super) fn constants(&mut self, graph: &ModelGraph<'_>) -> Result<(), GraphError> {
        if graph.sparse_initializers > 0 {
            return Err(self.file_error("sparse constants are not supported".to_owned()));
        }
        for tensor in &graph.initializers {
            self.build.at(Origin { name: tensor.name.clone(), ..Origin::default() });
            let data = self
                .files
                .constant(tensor)
                .map_err(|message| self.file_error(format!("constant `{}`: {message}", tensor.name)))?;
            let node = self.build.constant(&tensor.name, data);
            self.define(&tensor.name, node.into())?;
        }
        Ok(())
    }

    fn input(&mut self, input: &GraphValue) -> Result<NodeId, GraphError> {
        let dtype = self.dtype(input)?;
        let Some(sizes) = &input.shape else {
            return Err(self.build.error("the number of dimensions of this input is unknown"));
        };
        if sizes.len() > MAX_RANK {
            let message = format!("{} dimensions, at most {MAX_RANK} are supported", sizes.len());
            return Err(self.build.error(message));
        }
        let mut shape = Vec::with_capacity(sizes.len());
        for (index, size) in sizes.iter().enumerate() {
            shape.push(match size {
                Size::Number(size) if *size >= 0 => Dim::from(*size),
                Size::Number(size) => return Err(self.build.error(format!("a dimension of size {size}"))),
                Size::Name(name) => self.symbol(name).into(),
                Size::Unknown => self.new_symbol(&format!("{}.{index}", input.name)).into(),
            });
        }
        Ok(self.build.input(&input.name, shape, dtype))
    }

    fn dtype(&self, value: &GraphValue) -> Result<DType, GraphError> {
        if value.kind != ValueKind::Tensor {
            return Err(self
                .build
                .error(format!("a value of kind {:?}, expected a dense tensor", value.kind)));
        }
        let code = value.element_code;
        let unknown = || self.build.error(format!("{code} is no element type"));
        let data_type = DataType::from_code(code).ok_or_else(unknown)?;
        data_type
            .dtype()
            .ok_or_else(|| self.build.error(format!("tensors of {data_type:?} are not supported")))
    }

    fn symbol(&mut self, name: &str) -> Symbol {
        if let Some(symbol) = self.symbols.get(name) {
            return *symbol;
        }
        let symbol = self.new_symbol(name);
        self.symbols.insert(name.to_owned(), symbol);
        symbol
    }

    fn new_symbol(&mut self, name: &str) -> Symbol {
        self.build.graph_mut().symbol(name, 0, i64::MAX)
    }

    fn output(&mut self, output: &GraphValue) -> Result<(), GraphError> {
        let Some(value) = self.lookup(&output.name).cloned() else {
            return Err(self.file_error(format!("no node computes the output `{}`", output.name)));
        };
        self.build.at(Origin { name: output.name.clone(), ..Origin::default() });
        let node = tensor(&mut self.build, value)?;
        if output.kind == ValueKind::Tensor && output.element_code != 0 {
            let (declared, found) = (self.dtype(output)?, self.build.dtype(node));
            if declared != found {
                let message =
                    format!("the output is declared as {}, found {}", declared.name(), found.name());
                return Err(self.build.error(message));
            }
        }
        self.build.output(&output.name, node);
        Ok(())
    }

    pub(super) fn nodes(
        &mut self,
        nodes: &'m [Node],
        environment: Environment<'m>,
    ) -> Result<(), GraphError> {
        for node in nodes {
            self.nodes += 1;
            if self.nodes > MAX_NODES {
                return Err(self.file_error(format!("functions expand to more than {MAX_NODES} nodes")));
            }
            let origin = origin(node);
            self.build.at(origin.clone());
            let version = opset_version(environment.opsets, &node.domain);
            self.node(node, environment, version)
                .map_err(|error| with_opset(error, &origin, node, version))?;
        }
        Ok(())
    }

    fn node(
        &mut self,
        node: &'m Node,
        environment: Environment<'m>,
        version: Option<i64>,
    ) -> Result<(), GraphError> {
        let mut inputs = Vec::with_capacity(node.inputs.len());
        for name in &node.inputs {
            inputs.push(match (name.is_empty(), self.lookup(name)) {
                (true, _) => None,
                (false, Some(value)) => Some(value.clone()),
                (false, None) => {
                    return Err(self
                        .build
                        .error(format!("the input `{name}` is not defined before the node")));
                }
            });
        }
        let key = (domain_name(&node.domain), node.op_type.as_str(), node.overload.as_str());
        if let Some(function) = self.functions.get(&key).copied() {
            let outputs = self.function(function, node, inputs, environment)?;
            return self.define_outputs(node, outputs);
        }
        if key.0.is_empty() && node.op_type == "If" {
            let outputs = self.branch(node, inputs, environment)?;
            return self.define_outputs(node, outputs);
        }
        let Some(version) = version else {
            return Err(self
                .build
                .error(format!("the model does not import the opset of `{}`", node.domain)));
        };
        let Some(handler) = ops::find(key.0, key.1) else {
            return Err(self.build.error(ops::why_refused(key.0, key.1)));
        };
        let resolved = resolve(node, environment).map_err(|message| self.build.error(message))?;
        let node = resolved.as_ref().unwrap_or(node);
        let mut op = Op::new(&mut self.build, node, inputs, version);
        let folded = if key.0.is_empty() { sizes::fold(&mut op)? } else { None };
        let outputs = match folded {
            Some(outputs) => outputs,
            None => {
                let outputs = handler(&mut op)?;
                op.check_read()?;
                outputs
            }
        };
        self.define_outputs(node, outputs)
    }

    fn define_outputs(&mut self, node: &Node, outputs: Vec<Value>) -> Result<(), GraphError> {
        for (index, name) in node.outputs.iter().enumerate().filter(|(_, name)| !name.is_empty()) {
            let Some(value) = outputs.get(index) else {
                return Err(self.build.error(format!("output {index} (`{name}`) is not supported")));
            };
            self.check_size(value)?;
            self.define(name, value.clone())?;
        }
        Ok(())
    }

    /// Refuses shapes that no tensor can have, and sizes that grow without limit.
    fn check_size(&self, value: &Value) -> Result<(), GraphError> {
        let dims = match value {
            Value::Tensor(node) => self.build.shape(*node),
            Value::Sizes(sizes) => return self.check_terms(&sizes.dims),
        };
        if dims.len() > MAX_RANK {
            let message =
                format!("a result with {} dimensions, at most {MAX_RANK} are supported", dims.len());
            return Err(self.build.error(message));
        }
        if let Some(size) = dims.iter().filter_map(Dim::constant).find(|size| *size < 0) {
            return Err(self.build.error(format!("a result with a dimension of size {size}")));
        }
        self.check_terms(dims)
    }

    fn check_terms(&self, dims: &[Dim]) -> Result<(), GraphError> {
        let terms = dims.iter().fold(1usize, |product, dim| product.saturating_mul(dim.term_count().max(1)));
        let largest = dims.iter().map(Dim::term_count).max().unwrap_or(0);
        if largest > 64 || (dims.len() <= MAX_RANK && terms > MAX_TERMS) {
            return Err(self.build.error("a size is too complex an expression"));
        }
        Ok(())
    }
}

/// Where a node came from; nodes without a name have the name of their first output.
fn origin(node: &Node) -> Origin {
    let name = if node.name.is_empty() {
        node.outputs.first().cloned().unwrap_or_default()
    } else {
        node.name.clone()
    };
    let domain = domain_name(&node.domain);
    let operator =
        if domain.is_empty() { node.op_type.clone() } else { format!("{domain}.{}", node.op_type) };
    Origin { name, operator, source: String::new() }
}

/// Adds domain and opset to an error of this node.
fn with_opset(error: GraphError, at: &Origin, node: &Node, version: Option<i64>) -> GraphError {
    match error {
        GraphError::Import { origin, message } if *origin == *at => {
            let domain = if domain_name(&node.domain).is_empty() { "ai.onnx" } else { &node.domain };
            let opset = version.map_or_else(String::new, |version| format!(" opset {version}"));
            GraphError::Import { origin, message: format!("{message} ({domain}{opset})") }
        }
        other => other,
    }
}
