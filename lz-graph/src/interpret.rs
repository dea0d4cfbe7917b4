//! The interpreted executor: one node after the other, each result in memory of its own.
//!
//! For debugging, validation and constant folding: every call is validated and dispatched by the engine as if it were made alone.

use std::sync::Arc;

use lz_core::args::{Arg, OutArg};
use lz_core::check::{self, OutputSpec};
use lz_core::expr::Value;
use lz_core::{Tensor, TensorView};
use lz_engine::{Engine, dynamic};

use crate::error::GraphError;
use crate::graph::{Graph, Node, NodeId, NodeKind, Param, View};
use crate::sizes::{self, InputShape};
use crate::strided::Strided;

/// The result of a node: a tensor and the view of it.
#[derive(Debug, Clone)]
struct Computed {
    tensor: Arc<Tensor>,
    view: Strided,
}

impl Computed {
    fn dense(tensor: Tensor) -> Option<Computed> {
        let view = Strided::dense(tensor.shape(), tensor.dtype())?;
        Some(Computed { tensor: Arc::new(tensor), view })
    }

    fn view(&self) -> TensorView<'_> {
        let size = self.view.layout.dtype.size() as isize;
        let data = self.tensor.view().as_ptr().wrapping_offset(self.view.offset as isize * size);
        // SAFETY: `Strided::view` keeps every element inside the tensor, which is borrowed with `self`.
        unsafe { TensorView::from_raw(data, self.view.layout) }
    }
}

/// Runs a graph; returns its outputs as dense tensors. Tensors of mutable inputs are copied: use a session to change them in place.
pub fn run(engine: &Engine, graph: &Graph, inputs: &[TensorView<'_>]) -> Result<Vec<Tensor>, GraphError> {
    run_observed(engine, graph, inputs, &mut |_, _| ())
}

/// As [`run`]; `observe` sees every result.
pub fn run_observed(
    engine: &Engine,
    graph: &Graph,
    inputs: &[TensorView<'_>],
    observe: &mut dyn FnMut(NodeId, &TensorView<'_>),
) -> Result<Vec<Tensor>, GraphError> {
    let shapes: Vec<InputShape> = inputs
        .iter()
        .map(|input| InputShape { shape: input.shape().to_vec(), dtype: input.dtype() })
        .collect();
    let values = sizes::bind(graph, &shapes)?;
    let mut interpreter = Interpreter { engine, graph, values, inputs, results: Vec::new() };
    for id in graph.ids() {
        let results = interpreter.node(graph.node(id))?;
        if let Some(Some(first)) = results.first() {
            observe(id, &first.view());
        }
        interpreter.results.push(results);
    }
    graph.outputs.iter().map(|output| copy(&interpreter.result(output.node)?.view())).collect()
}

/// A dense copy.
pub(crate) fn copy(view: &TensorView<'_>) -> Result<Tensor, GraphError> {
    let mut tensor = Tensor::zeros(view.shape(), view.dtype()).map_err(|reason| allocation(&reason))?;
    {
        let (from, mut to) = (view.bits(), tensor.view_mut());
        let mut to = to.bits_mut();
        for index in lz_core::tensor::Indices::new(view.shape()) {
            to.set_int(&index, from.int_at(&index));
        }
    }
    Ok(tensor)
}

fn allocation(reason: &lz_core::Reason) -> GraphError {
    GraphError::input("", format!("a result cannot be allocated: {reason}"))
}

struct Interpreter<'a> {
    engine: &'a Engine,
    graph: &'a Graph,
    values: Vec<i64>,
    inputs: &'a [TensorView<'a>],
    /// Per node its outputs, then, for a call, its inputs that were changed in place.
    results: Vec<Vec<Option<Computed>>>,
}

impl Interpreter<'_> {
    fn result(&self, id: NodeId) -> Result<&Computed, GraphError> {
        let first = self.results.get(id.index()).and_then(|results| results.iter().flatten().next());
        first.ok_or_else(|| self.missing(id))
    }

    fn missing(&self, id: NodeId) -> GraphError {
        GraphError::Invalid { stage: "interpretation", findings: vec![format!("{id} has no result")] }
    }

    fn node(&self, node: &Node) -> Result<Vec<Option<Computed>>, GraphError> {
        let one = |computed: Computed| Ok(vec![Some(computed)]);
        match &node.kind {
            NodeKind::Input(index) => one(self.dense(copy(&self.inputs[*index])?)?),
            NodeKind::Constant(index) => {
                let view = self.graph.constants[*index].view();
                if !view.device().is_host() {
                    let finding =
                        format!("a constant is on {}, which the interpreter cannot read", view.device());
                    return Err(GraphError::Invalid { stage: "interpretation", findings: vec![finding] });
                }
                one(self.dense(copy(&view)?)?)
            }
            NodeKind::Sizes(dims) => {
                let numbers = dims
                    .iter()
                    .map(|dim| sizes::evaluate(dim, &self.values))
                    .collect::<Result<Vec<_>, _>>()?;
                let shape = sizes::shape(&node.shape, &self.values)?;
                one(self.dense(Tensor::from_slice(&numbers, &shape).map_err(|reason| allocation(&reason))?)?)
            }
            NodeKind::View(view) => one(self.view(node, view)?),
            NodeKind::Concat(axis) => one(self.concat(node, *axis)?),
            NodeKind::Projection(output) | NodeKind::Written(output) => {
                let call = node.input(0).ok_or_else(|| self.missing(NodeId(0)))?;
                let operation = self.graph.node(call).call().map(|call| call.operation);
                let outputs = operation.map_or(0, |operation| operation.schema().outputs.len());
                let index = match node.kind {
                    NodeKind::Written(input) => outputs + input,
                    _ => *output,
                };
                let found = self.results[call.index()].get(index).cloned().flatten();
                one(found.ok_or_else(|| self.missing(call))?)
            }
            NodeKind::Call(_) => self.call(node),
        }
    }

    fn dense(&self, tensor: Tensor) -> Result<Computed, GraphError> {
        Computed::dense(tensor).ok_or_else(|| self.missing(NodeId(0)))
    }

    fn input(&self, node: &Node, index: usize) -> Result<&Computed, GraphError> {
        self.result(node.input(index).ok_or_else(|| self.missing(NodeId(0)))?)
    }

    fn view(&self, node: &Node, view: &View) -> Result<Computed, GraphError> {
        let input = self.input(node, 0)?;
        let shape = sizes::shape(&node.shape, &self.values)?;
        let start = match view {
            View::Slice { start, .. } => sizes::evaluate(start, &self.values)?,
            _ => 0,
        };
        if let Some(view) = input.view.view(view, &shape, start) {
            return Ok(Computed { tensor: input.tensor.clone(), view });
        }
        let dense = self.dense(copy(&input.view())?)?;
        match dense.view.view(view, &shape, start) {
            Some(view) => Ok(Computed { tensor: dense.tensor, view }),
            None => Err(GraphError::input(
                "",
                format!("{}: {:?} cannot become {shape:?}", node.origin, input.view.layout.shape),
            )),
        }
    }

    fn concat(&self, node: &Node, axis: usize) -> Result<Computed, GraphError> {
        let shape = sizes::shape(&node.shape, &self.values)?;
        let mut result = Tensor::zeros(&shape, node.dtype).map_err(|reason| allocation(&reason))?;
        let mut start = 0;
        for index in 0..node.inputs.len() {
            let part = self.input(node, index)?.view();
            let (from, mut to) = (part.bits(), result.view_mut());
            let mut to = to.bits_mut();
            for position in lz_core::tensor::Indices::new(part.shape()) {
                let mut target = position.to_vec();
                target[axis] += start;
                to.set_int(&target, from.int_at(&position));
            }
            start += part.shape()[axis];
        }
        self.dense(result)
    }

    fn call(&self, node: &Node) -> Result<Vec<Option<Computed>>, GraphError> {
        let NodeKind::Call(call) = &node.kind else { return Ok(Vec::new()) };
        let schema = call.operation.schema();
        let failed = |error| GraphError::run(&node.origin, error);
        let mut written: Vec<Option<Tensor>> = Vec::new();
        for (index, about) in schema.inputs.iter().enumerate() {
            written.push(match node.input(index).filter(|_| about.read_write) {
                Some(input) => Some(copy(&self.result(input)?.view())?),
                None => None,
            });
        }
        let mut results = Vec::new();
        {
            let mut args: Vec<Arg<'_>> = Vec::new();
            for (index, changed) in written.iter_mut().enumerate() {
                args.push(match (node.input(index), changed) {
                    (_, Some(changed)) => Arg::TensorMut(changed.view_mut()),
                    (Some(input), None) => Arg::Tensor(self.result(input)?.view()),
                    (None, None) => Arg::Absent,
                });
            }
            for param in &call.params {
                args.push(param_value(param.as_ref(), &self.values)?.map_or(Arg::Absent, Arg::Value));
            }
            let bound = check::check_call(schema, &args, None).map_err(failed)?;
            let specs = check::infer_outputs(schema, &bound).map_err(|reason| GraphError::Call {
                operation: schema.name.clone(),
                origin: node.origin.clone(),
                reasons: vec![reason],
            })?;
            let mut outputs = Vec::new();
            for spec in &specs {
                outputs.push(match spec {
                    OutputSpec::Tensor(sizes, dtype) => {
                        Some(Tensor::zeros(sizes, *dtype).map_err(|reason| allocation(&reason))?)
                    }
                    OutputSpec::Absent => None,
                    OutputSpec::Dynamic(_) | OutputSpec::Text => {
                        let message = "an output whose size only the kernel knows cannot be part of a graph";
                        return Err(GraphError::import(&node.origin, message));
                    }
                });
            }
            let mut out_args: Vec<OutArg<'_>> = outputs
                .iter_mut()
                .map(|output| {
                    output.as_mut().map_or(OutArg::Absent, |tensor| OutArg::Tensor(tensor.view_mut()))
                })
                .collect();
            dynamic::call_into(self.engine, call.operation, &mut args, &mut out_args).map_err(failed)?;
            drop(out_args);
            for output in outputs {
                results.push(output.map(|tensor| self.dense(tensor)).transpose()?);
            }
        }
        for changed in written {
            results.push(changed.map(|tensor| self.dense(tensor)).transpose()?);
        }
        Ok(results)
    }
}

/// A param for these symbol values; `None` for its default.
pub(crate) fn param_value(param: Option<&Param>, values: &[i64]) -> Result<Option<Value>, GraphError> {
    Ok(match param {
        None => None,
        Some(Param::Int(dim)) => Some(Value::Int(sizes::evaluate(dim, values)?)),
        Some(Param::Float(value)) => Some(Value::Float(*value)),
        Some(Param::Bool(value)) => Some(Value::Bool(*value)),
        Some(Param::Enum(case)) => Some(Value::Enum(*case)),
    })
}

#[cfg(test)]
mod tests {
    use lz_core::DType;

    use super::*;
    use crate::build::Builder;
    use crate::dim::Dim;
    use crate::testing::engine;

    /// softmax(relu(x W + b)) over a symbolic number of rows, with a transposed view on the way.
    fn small() -> Graph {
        let mut build = Builder::new();
        let rows = build.graph_mut().symbol("rows", 0, i64::MAX);
        let x = build.input("x", vec![Dim::from(rows), Dim::from(3)], DType::F32);
        let weight: Vec<f32> = (0..6).map(|value| value as f32 - 2.0).collect();
        let weight = build.owned(Tensor::from_slice(&weight, &[3, 2]).unwrap());
        let bias = build.owned(Tensor::from_slice(&[1.0f32, -1.0], &[2]).unwrap());
        let product = build.matmul(x, weight).unwrap();
        let sum = build.binary("add", product, bias).unwrap();
        let relu = build.activation("relu", sum, None).unwrap();
        let turned = build.transpose(relu, 0, 1).unwrap();
        let result = build.softmax(turned, 0, false).unwrap();
        build.output("result", result);
        build.finish().unwrap()
    }

    #[test]
    fn graph_is_printed_node_by_node() {
        insta::assert_snapshot!(small());
    }

    #[test]
    fn graph_computes_any_number_of_rows() {
        let graph = small();
        for rows in [0usize, 1, 4] {
            let data: Vec<f32> = (0..rows * 3).map(|value| (value as f32 * 0.7).sin()).collect();
            let x = TensorView::from_slice(&data, &[rows as i64, 3]).unwrap();
            let result = run(&engine(), &graph, &[x]).unwrap().remove(0);
            assert_eq!(result.shape(), [2, rows as i64]);
            for row in 0..rows {
                let dot = |column: usize| -> f32 {
                    (0..3).map(|k| data[row * 3 + k] * ((k * 2 + column) as f32 - 2.0)).sum()
                };
                let values = [(dot(0) + 1.0).max(0.0), (dot(1) - 1.0).max(0.0)];
                let sum: f32 = values.iter().map(|value| value.exp()).sum();
                for (column, value) in values.iter().enumerate() {
                    let found = result.view().at(&[column as i64, row as i64]);
                    assert!((found - f64::from(value.exp() / sum)).abs() < 1e-6, "{found}");
                }
            }
        }
    }

    #[test]
    fn inputs_that_do_not_fit_are_refused() {
        let graph = small();
        let data = [0f32; 8];
        let wrong = TensorView::from_slice(&data, &[2, 4]).unwrap();
        let error = run(&engine(), &graph, &[wrong]).unwrap_err();
        assert_eq!(error.to_string(), "input `x`: size 1 is 4, expected 3 (3)");
        let error = run(&engine(), &graph, &[]).unwrap_err();
        assert_eq!(error.to_string(), "0 inputs were given, expected 1: x");
    }
}
