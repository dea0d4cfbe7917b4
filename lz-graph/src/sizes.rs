//! Symbol values of one run, from the shapes of its inputs.

use crate::dim::Dim;
use crate::error::GraphError;
use crate::graph::Graph;
use lz_core::DType;

/// Sizes and dtype of one input of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputShape {
    /// Sizes.
    pub shape: Vec<i64>,
    /// Element type.
    pub dtype: DType,
}

/// The value of every symbol. Fails if an input does not fit the graph, a size is outside its range, or two sizes differ that must
/// be equal.
pub fn bind(graph: &Graph, inputs: &[InputShape]) -> Result<Vec<i64>, GraphError> {
    if inputs.len() != graph.inputs.len() {
        let names: Vec<&str> = graph.inputs.iter().map(|input| input.name.as_str()).collect();
        let message = format!(
            "{} inputs were given, expected {}: {}",
            inputs.len(),
            graph.inputs.len(),
            names.join(", ")
        );
        return Err(GraphError::input("", message));
    }
    let mut values: Vec<Option<i64>> = vec![None; graph.symbols.len()];
    for (given, about) in inputs.iter().zip(&graph.inputs) {
        let node = graph.node(about.node);
        if given.dtype != node.dtype {
            let (found, expected) = (given.dtype.long_name(), node.dtype.long_name());
            return Err(GraphError::input(&about.name, format!("dtype is {found}, expected {expected}")));
        }
        if given.shape.len() != node.shape.len() {
            let message = format!("shape is {:?}, expected {:?}", given.shape, node.shape);
            return Err(GraphError::input(&about.name, message));
        }
        for (&size, dim) in given.shape.iter().zip(&node.shape) {
            if let Some(symbol) = dim.symbol()
                && let Some(value @ None) = values.get_mut(symbol.0 as usize)
            {
                *value = Some(size);
            }
        }
    }
    let values = graph.symbols.iter().zip(values).map(|(symbol, value)| match value {
        Some(value) if (symbol.min..=symbol.max).contains(&value) => Ok(value),
        Some(value) => {
            let limit =
                if symbol.max == i64::MAX { String::new() } else { format!(" and at most {}", symbol.max) };
            let message = format!("`{}` is {value}, but must be at least {}{limit}", symbol.name, symbol.min);
            Err(GraphError::input("", message))
        }
        None => {
            let message = format!("no input determines the size `{}`", symbol.name);
            Err(GraphError::input("", message))
        }
    });
    let values: Vec<i64> = values.collect::<Result<_, _>>()?;
    for (given, about) in inputs.iter().zip(&graph.inputs) {
        for (dimension, (&size, dim)) in given.shape.iter().zip(&graph.node(about.node).shape).enumerate() {
            let expected = evaluate(dim, &values)?;
            if size != expected {
                let message =
                    format!("size {dimension} is {size}, expected {expected} ({})", named(dim, graph));
                return Err(GraphError::input(&about.name, message));
            }
        }
    }
    for check in &graph.checks {
        let (left, right) = (evaluate(&check.left, &values)?, evaluate(&check.right, &values)?);
        if left != right {
            let message = format!(
                "{left} ({}) must equal {right} ({}): {}",
                named(&check.left, graph),
                named(&check.right, graph),
                check.because
            );
            return Err(GraphError::input("", message));
        }
    }
    Ok(values)
}

/// A size for these symbol values.
pub fn evaluate(dim: &Dim, values: &[i64]) -> Result<i64, GraphError> {
    dim.eval(values).map_err(|error| GraphError::input("", format!("size {dim} cannot be computed: {error}")))
}

/// All sizes of a shape, none negative.
pub fn shape(dims: &[Dim], values: &[i64]) -> Result<Vec<i64>, GraphError> {
    let sizes = dims.iter().map(|dim| match evaluate(dim, values)? {
        size if size < 0 => Err(GraphError::input("", format!("size {dim} is {size}"))),
        size => Ok(size),
    });
    sizes.collect()
}

fn named(dim: &Dim, graph: &Graph) -> String {
    let mut text = dim.to_string();
    for (index, symbol) in graph.symbols.iter().enumerate().rev() {
        text = text.replace(&format!("s{index}"), &symbol.name);
    }
    text
}
