//! `CompiledGraph`: a session of the process's engine.

use lz_core::tensor::Dims;
use lz_core::{DType, TensorMut};
use lz_graph::graph::NodeKind;
use lz_graph::passes::{self, Options, Report};
use lz_graph::quantize::{self, Layer};
use lz_graph::sizes::InputShape;
use lz_graph::{Graph, RunInput, Session};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use super::raise_graph;
use crate::engine::engine;
use crate::error::validation_error;
use crate::tensor::{BorrowGuard, BorrowedTensor, Kind, Problem, describe_contiguous, numpy, torch};
use lz_core::tensor::Device;
use lz_core::{Reason, ReasonCode};

/// A graph that runs. Threads may share it.
#[pyclass(name = "CompiledGraph", module = "layerzero._native", frozen)]
pub struct CompiledGraph {
    session: Session,
    /// The number of nodes before passes.
    imported: usize,
    report: Report,
    /// Linear layers, if weights were quantized.
    layers: Vec<Layer>,
}

impl CompiledGraph {
    /// Runs all passes but the disabled ones, if asked for.
    pub fn new(
        py: Python<'_>,
        mut graph: Graph,
        optimize: bool,
        mut disabled: Vec<String>,
        quantization: Option<quantize::Options>,
    ) -> PyResult<CompiledGraph> {
        let engine = engine()?;
        let imported = graph.nodes.len();
        let mut report = Report::default();
        if quantization.is_some() {
            // There is no gated block with quantized weights: its layers stay layers.
            disabled.push("gated".to_owned());
        }
        if optimize {
            let options = Options { disabled, engine: Some(engine) };
            let optimized = py.detach(|| passes::optimize(&mut graph, &options));
            report = optimized.map_err(|error| raise_graph(py, &error))?;
        }
        let mut layers = Vec::new();
        if let Some(options) = quantization {
            let quantized = py.detach(|| quantize::quantize_weights(&mut graph, engine, &options));
            layers = quantized.map_err(|error| raise_graph(py, &error))?;
        }
        Ok(CompiledGraph { session: Session::new(engine.clone(), graph), imported, report, layers })
    }

    fn problem(&self, py: Python<'_>, index: usize, problem: Problem) -> PyErr {
        match problem {
            Problem::Python(error) => error,
            Problem::Reason(reason) => {
                let name = self.session.graph().inputs.get(index).map_or("", |input| input.name.as_str());
                validation_error(py, "graph", reason.argument(name))
            }
        }
    }
}

#[pymethods]
impl CompiledGraph {
    /// Runs the graph. Outputs are tensors of the library of the first input.
    fn run<'py>(&self, py: Python<'py>, inputs: Vec<Bound<'py, PyAny>>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let mut borrowed = Vec::with_capacity(inputs.len());
        for (index, input) in inputs.iter().enumerate() {
            let tensor = BorrowedTensor::new(input.as_borrowed());
            borrowed.push(tensor.map_err(|problem| self.problem(py, index, problem))?);
        }
        let graph = self.session.graph();
        let mut run_inputs = Vec::with_capacity(borrowed.len());
        for (index, tensor) in borrowed.iter_mut().enumerate() {
            let mutable = graph.inputs.get(index).is_some_and(|input| input.mutable);
            if mutable && tensor.is_read_only() {
                let reason = Reason::new(ReasonCode::ArgumentKind)
                    .argument(&graph.inputs[index].name)
                    .message("a mutable input is read-only memory");
                return Err(validation_error(py, "graph", reason));
            }
            run_inputs.push(if mutable {
                RunInput::Write(tensor.duplicate())
            } else {
                RunInput::Read(tensor.view())
            });
        }
        let shapes: Vec<InputShape> = run_inputs
            .iter()
            .map(|input| InputShape { shape: input.view().shape().to_vec(), dtype: input.view().dtype() })
            .collect();
        let types = self.session.output_types(&shapes).map_err(|error| raise_graph(py, &error))?;
        let like = inputs.first();
        let mut results = Vec::with_capacity(types.len());
        let mut outputs: Vec<TensorMut<'static>> = Vec::with_capacity(types.len());
        let mut guards = Vec::with_capacity(types.len());
        for (shape, dtype) in &types {
            let mut tensor = TensorMut::empty();
            let mut guard = BorrowGuard::EMPTY;
            results.push(allocate(py, like, shape, *dtype, &mut tensor, &mut guard)?);
            outputs.push(tensor);
            guards.push(guard);
        }
        let result = py.detach(|| self.session.run_into(run_inputs, &mut outputs));
        result.map_err(|error| raise_graph(py, &error))?;
        Ok(results)
    }

    /// The names of the inputs, in order.
    #[getter]
    fn inputs(&self) -> Vec<&str> {
        self.session.graph().inputs.iter().map(|input| input.name.as_str()).collect()
    }

    /// The names of the outputs, in order.
    #[getter]
    fn outputs(&self) -> Vec<&str> {
        self.session.graph().outputs.iter().map(|output| output.name.as_str()).collect()
    }

    /// The graph, one line per node.
    #[getter]
    fn text(&self) -> String {
        self.session.graph().to_string()
    }

    /// What the passes replaced, in order.
    #[getter]
    fn rewrites(&self) -> Vec<String> {
        self.report.rewrites.iter().map(ToString::to_string).collect()
    }

    /// Linear layers after quantization: name, shape, bytes before and after, error (`None` if the layer was kept), and why it was kept.
    #[getter]
    fn quantized_layers(&self) -> Vec<(&str, [i64; 2], [usize; 2], Option<f64>, Option<&'static str>)> {
        let layers = self.layers.iter();
        layers.map(|layer| (layer.name.as_str(), layer.shape, layer.bytes, layer.error, layer.kept)).collect()
    }

    /// The number of plans that are kept: one per combination of sizes that ran lately.
    #[getter]
    fn cached_plans(&self) -> usize {
        self.session.cached_plans()
    }

    /// The plan for inputs of these shapes: a dict with `steps`, `arena_bytes`, `live_bytes`, `constant_bytes` and `nodes`.
    fn plan<'py>(&self, py: Python<'py>, shapes: Vec<Vec<i64>>) -> PyResult<Bound<'py, PyDict>> {
        let graph = self.session.graph();
        let given: Vec<InputShape> = shapes
            .into_iter()
            .zip(&graph.inputs)
            .map(|(shape, input)| InputShape { shape, dtype: graph.node(input.node).dtype })
            .collect();
        let plan = self.session.plan_for(&given).map_err(|error| raise_graph(py, &error))?;
        let steps = PyList::empty(py);
        for step in &plan.steps {
            let node = graph.node(step.node);
            let entry = PyDict::new(py);
            entry.set_item("operation", &*step.operation.name)?;
            entry.set_item("kernel", &step.pinned.entry().spec.id)?;
            entry.set_item("node", graph.line(step.node))?;
            entry.set_item("copy", step.copy.map(|reason| reason.name()))?;
            entry.set_item("source", node.origin.to_string())?;
            steps.append(entry)?;
        }
        let result = PyDict::new(py);
        result.set_item("steps", steps)?;
        result.set_item("arena_bytes", plan.placement.bytes)?;
        result.set_item("live_bytes", lz_graph::memory::live_bytes(&plan.lifetimes))?;
        let constants = graph.constants.iter().map(|constant| {
            let view = constant.view();
            view.elements() as usize * view.dtype().size()
        });
        result.set_item("constant_bytes", constants.sum::<usize>())?;
        let computed = |node: &&lz_graph::Node| {
            !matches!(node.kind, NodeKind::Input(_) | NodeKind::Constant(_) | NodeKind::View(_))
        };
        result.set_item("nodes", graph.nodes.iter().filter(computed).count())?;
        result.set_item("imported_nodes", self.imported)?;
        Ok(result)
    }
}

/// Allocates an output with the library of the first input.
fn allocate<'py>(
    py: Python<'py>,
    like: Option<&Bound<'py, PyAny>>,
    shape: &[i64],
    dtype: DType,
    tensor: &mut TensorMut<'_>,
    guard: &mut BorrowGuard,
) -> PyResult<Bound<'py, PyAny>> {
    let failed = |problem: Problem| match problem {
        Problem::Python(error) => error,
        Problem::Reason(reason) => validation_error(py, "graph", *reason),
    };
    let Some(sizes) = Dims::new(shape) else {
        let reason = Reason::new(ReasonCode::RankMismatch).found(format!("{} dimensions", shape.len()));
        return Err(validation_error(py, "graph", reason));
    };
    // SAFETY: the view describes newly allocated memory, which nothing else uses.
    let view = unsafe { tensor.description() };
    if let Some(like) = like {
        let kind = BorrowedTensor::new(like.as_borrowed()).map_err(failed)?.kind();
        if kind == Kind::Torch {
            return torch::allocate(py, &sizes, dtype, like.as_borrowed(), Device::HOST, view, guard)
                .map_err(failed);
        }
    }
    let (object, data) = numpy::allocate(py, &sizes, dtype)?;
    describe_contiguous(view, data, &sizes, dtype, Device::HOST);
    Ok(object)
}
