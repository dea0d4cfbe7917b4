//! Local functions and branches: their nodes become part of the graph.

use std::collections::HashMap;

use super::importer::{Environment, Importer, Scope};
use super::model::{Attribute, AttributeValue, Function, Node};
use super::op::Op;
use super::value::Value;
use crate::error::GraphError;

/// Nesting limit of calls of local functions and of branches.
const MAX_CALLS: usize = 32;

impl<'m> Importer<'m> {
    /// The outputs of a local function, whose nodes are imported in a scope of their own.
    pub(super) fn function(
        &mut self,
        function: &'m Function,
        node: &'m Node,
        inputs: Vec<Option<Value>>,
        environment: Environment<'m>,
    ) -> Result<Vec<Value>, GraphError> {
        let references =
            node.attributes.iter().any(|given| matches!(given.value, AttributeValue::Reference(_)));
        if references && !environment.attributes.is_empty() {
            return Err(self
                .build
                .error("attributes that are passed on through several functions are not supported"));
        }
        if inputs.len() > function.inputs.len() {
            let message = format!("{} inputs, but the function has {}", inputs.len(), function.inputs.len());
            return Err(self.build.error(message));
        }
        self.enter(false)?;
        for (name, value) in function.inputs.iter().zip(inputs) {
            if let Some(value) = value {
                self.define(name, value)?;
            }
        }
        let opsets = if function.opsets.is_empty() { environment.opsets } else { &function.opsets };
        let inner = Environment { opsets, attributes: &node.attributes, defaults: &function.defaults };
        self.nodes(&function.nodes, inner)?;
        let outputs = self.results(function.outputs.iter());
        self.scopes.pop();
        outputs
    }

    /// The outputs of a branch of `If` whose condition is known.
    pub(super) fn branch(
        &mut self,
        node: &'m Node,
        inputs: Vec<Option<Value>>,
        environment: Environment<'m>,
    ) -> Result<Vec<Value>, GraphError> {
        let condition = Op::new(&mut self.build, node, inputs, 0).scalar(0);
        let Some(condition) = condition else {
            return Err(self.build.error("control flow is not supported unless its condition is a constant"));
        };
        let name = if condition != 0.0 { "then_branch" } else { "else_branch" };
        let Some(AttributeValue::Graph(graph)) = node.attribute(name) else {
            return Err(self.build.error(format!("the graph `{name}` is missing")));
        };
        self.enter(true)?;
        self.constants(graph)?;
        self.nodes(&graph.nodes, environment)?;
        let outputs = self.results(graph.outputs.iter().map(|output| &output.name));
        self.scopes.pop();
        outputs
    }

    fn enter(&mut self, open: bool) -> Result<(), GraphError> {
        if self.scopes.len() > MAX_CALLS {
            return Err(self
                .build
                .error(format!("functions call each other more than {MAX_CALLS} levels deep")));
        }
        self.scopes.push(Scope { values: HashMap::new(), open });
        Ok(())
    }

    fn results<'n>(&self, names: impl Iterator<Item = &'n String>) -> Result<Vec<Value>, GraphError> {
        let value = |name: &'n String| {
            let missing = || self.build.error(format!("no node computes `{name}`"));
            self.lookup(name).cloned().ok_or_else(missing)
        };
        names.map(value).collect()
    }
}

/// The node with the attributes of the function's call in place of references; `None` if it has no references.
pub(super) fn resolve(node: &Node, environment: Environment<'_>) -> Result<Option<Node>, String> {
    if !node.attributes.iter().any(|attribute| matches!(attribute.value, AttributeValue::Reference(_))) {
        return Ok(None);
    }
    let mut resolved = node.clone();
    resolved.attributes.clear();
    for attribute in &node.attributes {
        let AttributeValue::Reference(reference) = &attribute.value else {
            resolved.attributes.push(attribute.clone());
            continue;
        };
        let given = environment.attributes.iter().chain(environment.defaults);
        match given.into_iter().find(|given| given.name == *reference).map(|given| &given.value) {
            Some(AttributeValue::Reference(_)) => {
                return Err(format!("the attribute `{reference}` is a reference"));
            }
            Some(value) => {
                resolved.attributes.push(Attribute { name: attribute.name.clone(), value: value.clone() });
            }
            // An optional attribute that the call does not give.
            None => {}
        }
    }
    Ok(Some(resolved))
}
