//! `CompiledGraph`: a compiled model of the process's engine.

use std::collections::HashMap;
use std::path::PathBuf;

use lz_core::tensor::{Dims, advise_huge_pages};
use lz_core::{DType, TensorMut};
use lz_graph::compiled::{MissingKernels, NanPolicy, PlannedCall};
use lz_graph::graph::NodeKind;
use lz_graph::quantize::{self, Format};
use lz_graph::sizes::InputShape;
use lz_graph::validate::Validation;
use lz_graph::{CompiledModel, Graph, GraphError, LoadOptions, OnChange, Options, RunInput};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};

use super::builder::PythonMemory;
use super::device;
use super::raise_graph;
use super::size::to_python;
use crate::engine::engine;
use crate::error::validation_error;
use crate::tensor::{BorrowGuard, BorrowedTensor, Kind, Problem, describe_contiguous, numpy, torch};
use lz_core::tensor::Device;
use lz_core::{Reason, ReasonCode};

/// Name, dtype and shape of an input or output.
type InputRow<'a, 'py> = (&'a str, &'static str, Vec<Bound<'py, PyAny>>);

/// A linear layer: name, shape, bytes before and after, error, and why it was kept.
type LayerRow<'a> = (&'a str, [i64; 2], [usize; 2], Option<f64>, Option<&'static str>);

/// Outputs of at least this many bytes are worth the system call that asks for huge pages: allocators return them to the system, so that
/// every run gets new memory and pays a fault for each page of it.
const MIN_ADVISED: usize = 4 << 20;

/// A graph that runs. Threads may share it.
#[pyclass(name = "CompiledGraph", module = "layerzero._native", frozen)]
pub struct CompiledGraph {
    model: CompiledModel,
}

/// The case of an option, by name.
fn case<T>(option: &str, name: &str, known: &[&str], find: impl Fn(&str) -> Option<T>) -> PyResult<T> {
    find(name).ok_or_else(|| {
        let known = known.iter().map(|one| format!("'{one}'")).collect::<Vec<_>>().join(", ");
        PyValueError::new_err(format!("{option} is '{name}', expected one of {known}"))
    })
}

fn on_change(name: &str) -> PyResult<OnChange> {
    case("on_change", name, &["replan", "refuse"], OnChange::from_name)
}

fn nan_policy(name: &str) -> PyResult<NanPolicy> {
    case("nan", name, &["allow", "refuse"], NanPolicy::from_name)
}

/// How weights are quantized: the format (`int8`, `int4`), the size of groups of inputs with a scale of their own (0 for all), whether
/// inputs of layers are quantized as well, whether weights are included that other operations use, and whether they are laid out in panels.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Quantization {
    weights: String,
    group: i64,
    int8_activations: bool,
    tied: bool,
    panels: bool,
}

impl Quantization {
    fn options(&self) -> PyResult<quantize::Options> {
        let format = case("weights", &self.weights, &["int8", "int4"], Format::from_name)?;
        let (activations, tied, panels) = (self.int8_activations, self.tied, self.panels);
        Ok(quantize::Options { format, group: self.group, activations, tied, panels })
    }
}

/// The options of `lz.compile`.
pub fn options(
    optimize: bool,
    disabled_passes: Vec<String>,
    validation: &str,
    nan: &str,
    change: &str,
    quantization: Option<Quantization>,
) -> PyResult<Options> {
    let validation = case("validation", validation, &["none", "normal", "strict"], Validation::from_name)?;
    Ok(Options {
        optimize,
        disabled_passes,
        validation,
        nan: nan_policy(nan)?,
        on_change: on_change(change)?,
        quantization: quantization.map(|quantization| quantization.options()).transpose()?,
    })
}

impl CompiledGraph {
    /// Compiles a graph.
    pub fn new(py: Python<'_>, graph: Graph, options: &Options) -> PyResult<CompiledGraph> {
        CompiledGraph::made(py, |engine| CompiledModel::new(engine, graph, options))
    }

    fn made(
        py: Python<'_>,
        make: impl FnOnce(&lz_engine::Engine) -> Result<CompiledModel, GraphError> + Send,
    ) -> PyResult<CompiledGraph> {
        let engine = engine()?;
        let model = py.detach(|| make(engine)).map_err(|error| raise_graph(py, &error))?;
        Ok(CompiledGraph { model })
    }

    fn shapes(&self, shapes: Vec<Vec<i64>>) -> Vec<InputShape> {
        let graph = self.model.graph();
        let inputs = shapes.into_iter().zip(&graph.inputs);
        inputs.map(|(shape, input)| InputShape { shape, dtype: graph.node(input.node).dtype }).collect()
    }

    /// The calls of the device's plans for these sizes for which the engine selects kernels.
    fn device_calls(
        &self,
        py: Python<'_>,
        sizes: Vec<Vec<Vec<i64>>>,
        device: &str,
        selects: bool,
    ) -> PyResult<Vec<PlannedCall>> {
        let sizes: Vec<Vec<InputShape>> = sizes.into_iter().map(|shapes| self.shapes(shapes)).collect();
        device::calls(py, &self.model, &sizes, device, selects)
    }

    fn problem(&self, py: Python<'_>, index: usize, problem: Problem) -> PyErr {
        match problem {
            Problem::Python(error) => error,
            Problem::Reason(reason) => {
                let name = self.model.graph().inputs.get(index).map_or("", |input| input.name.as_str());
                validation_error(py, "graph", reason.argument(name))
            }
        }
    }
}

#[pymethods]
impl CompiledGraph {
    /// Compiles an ONNX model: a path, or its bytes.
    #[staticmethod]
    #[pyo3(signature = (
        model, optimize = true, disabled_passes = Vec::new(), validation = "normal", nan = "allow", on_change = "replan",
        quantization = None
    ))]
    #[expect(clippy::too_many_arguments, reason = "keywords of a Python function")]
    fn from_onnx(
        py: Python<'_>,
        model: &Bound<'_, PyAny>,
        optimize: bool,
        disabled_passes: Vec<String>,
        validation: &str,
        nan: &str,
        on_change: &str,
        quantization: Option<Quantization>,
    ) -> PyResult<CompiledGraph> {
        let options = options(optimize, disabled_passes, validation, nan, on_change, quantization)?;
        if let Ok(bytes) = model.cast::<PyBytes>() {
            let bytes = bytes.as_bytes();
            return CompiledGraph::made(py, |engine| CompiledModel::from_onnx_bytes(engine, bytes, &options));
        }
        let path: PathBuf = model.extract()?;
        CompiledGraph::made(py, |engine| CompiledModel::from_onnx(engine, &path, &options))
    }

    /// Loads a model that `save` wrote.
    #[staticmethod]
    #[pyo3(signature = (path, verify = false, missing_kernels = "replan", nan = "allow", on_change = "replan"))]
    fn load(
        py: Python<'_>,
        path: PathBuf,
        verify: bool,
        missing_kernels: &str,
        nan: &str,
        on_change: &str,
    ) -> PyResult<CompiledGraph> {
        let missing =
            case("missing_kernels", missing_kernels, &["replan", "refuse"], MissingKernels::from_name)?;
        let (nan, on_change) = (nan_policy(nan)?, self::on_change(on_change)?);
        let options = LoadOptions { verify, missing_kernels: missing, nan, on_change };
        CompiledGraph::made(py, |engine| CompiledModel::load(engine, &path, &options))
    }

    /// Writes the graph, its constants and the decisions so far into one file.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        py.detach(|| self.model.save(&path)).map_err(|error| raise_graph(py, &error))
    }

    /// The decisions of all cached plans, as the text of a lockfile.
    fn freeze(&self, py: Python<'_>) -> PyResult<String> {
        self.model.freeze().map(|lockfile| lockfile.text()).map_err(|error| raise_graph(py, &error))
    }

    /// How the decisions of all cached plans differ from the text of a lockfile.
    fn verify_decisions(&self, py: Python<'_>, text: &str) -> PyResult<Vec<String>> {
        let expected = lz_engine::table::Lockfile::read("lockfile", text)
            .map_err(|error| crate::error::raise(py, &lz_core::Error::from(error)))?;
        self.model.verify_decisions(&expected).map_err(|error| raise_graph(py, &error))
    }

    /// What validators found: phase, severity, validator and message.
    #[getter]
    fn findings(&self) -> Vec<(&'static str, &'static str, &'static str, String)> {
        let findings = self.model.findings().iter();
        findings
            .map(|one| (one.phase.name(), one.severity.name(), one.validator, one.message.clone()))
            .collect()
    }

    /// The stages of the compilation and their seconds.
    #[getter]
    fn stages(&self) -> Vec<(&'static str, f64)> {
        self.model.stages().iter().map(|stage| (stage.name, stage.time.as_secs_f64())).collect()
    }

    /// Everything about the model for inputs of these shapes, as text.
    fn explain(&self, py: Python<'_>, shapes: Vec<Vec<i64>>) -> PyResult<String> {
        let shapes = self.shapes(shapes);
        py.detach(|| self.model.explain(&shapes)).map_err(|error| raise_graph(py, &error))
    }

    /// Measures the kernels of every step for inputs of these shapes: a dict per different step.
    #[pyo3(signature = (shapes, samples = 20))]
    fn tune<'py>(
        &self,
        py: Python<'py>,
        shapes: Vec<Vec<i64>>,
        samples: u32,
    ) -> PyResult<Vec<Bound<'py, PyDict>>> {
        use lz_engine::tune::{Outcome, TuneOptions};
        use std::ops::ControlFlow;
        let shapes = self.shapes(shapes);
        let options = TuneOptions { max_samples: samples.max(1), ..TuneOptions::default() };
        // Ctrl-C stops the measurement; finished measurements are stored.
        let mut report = |_: &lz_engine::tune::Progress<'_>| match py.check_signals() {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        };
        let tuned =
            self.model.tune(&shapes, &options, &mut report).map_err(|error| raise_graph(py, &error))?;
        let mut all = Vec::with_capacity(tuned.len());
        for step in tuned {
            let entry = PyDict::new(py);
            entry.set_item("operation", step.operation)?;
            entry.set_item("source", &step.origin)?;
            entry.set_item("steps", step.steps)?;
            entry.set_item("selected", &step.selected)?;
            entry.set_item("best", step.result.best())?;
            entry.set_item("kept", matches!(step.result.kept, Some(Ok(()))))?;
            let kernels = PyList::empty(py);
            for (kernel, outcome) in &step.result.kernels {
                let median = match outcome {
                    Outcome::Measured(timing) => Some(timing.median_ns),
                    _ => None,
                };
                kernels.append((kernel, outcome.state(), median))?;
            }
            entry.set_item("kernels", kernels)?;
            all.push(entry);
        }
        Ok(all)
    }

    /// Runs the graph. Outputs are tensors of the library of the first input.
    fn run<'py>(&self, py: Python<'py>, inputs: Vec<Bound<'py, PyAny>>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let mut borrowed = Vec::with_capacity(inputs.len());
        for (index, input) in inputs.iter().enumerate() {
            let tensor = BorrowedTensor::new(input.as_borrowed());
            borrowed.push(tensor.map_err(|problem| self.problem(py, index, problem))?);
        }
        let graph = self.model.graph();
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
        let types = self.model.session().output_types(&shapes).map_err(|error| raise_graph(py, &error))?;
        let like = inputs.first();
        let mut results = Vec::with_capacity(types.len());
        let mut outputs: Vec<TensorMut<'static>> = Vec::with_capacity(types.len());
        let mut guards = Vec::with_capacity(types.len());
        for (shape, dtype) in &types {
            let mut tensor = TensorMut::empty();
            let mut guard = BorrowGuard::EMPTY;
            results.push(allocate(py, like, shape, *dtype, &mut tensor, &mut guard)?);
            let bytes = tensor.elements().max(0) as usize * dtype.size();
            if bytes >= MIN_ADVISED {
                // SAFETY: the dense memory of a new tensor of the host.
                unsafe { advise_huge_pages(tensor.address() as *mut u8, bytes) };
            }
            outputs.push(tensor);
            guards.push(guard);
        }
        let result = py.detach(|| self.model.run_into(run_inputs, &mut outputs));
        result.map_err(|error| raise_graph(py, &error))?;
        Ok(results)
    }

    /// The names of the inputs, in order.
    #[getter]
    fn inputs(&self) -> Vec<&str> {
        self.model.graph().inputs.iter().map(|input| input.name.as_str()).collect()
    }

    /// Name, dtype and shape of every input.
    #[getter]
    fn input_types<'py>(&self, py: Python<'py>) -> PyResult<Vec<InputRow<'_, 'py>>> {
        let graph = self.model.graph();
        let inputs = graph.inputs.iter().map(|input| {
            let node = graph.node(input.node);
            let shape = node.shape.iter().map(|dim| to_python(py, dim)).collect::<PyResult<_>>()?;
            Ok((input.name.as_str(), node.dtype.long_name(), shape))
        });
        inputs.collect()
    }

    /// The shapes of the inputs for these values of symbols, by name; the others get 1, or the smallest value that they may have.
    fn shapes_for(&self, py: Python<'_>, sizes: HashMap<String, i64>) -> PyResult<Vec<Vec<i64>>> {
        let graph = self.model.graph();
        if let Some(unknown) =
            sizes.keys().find(|name| graph.symbols.iter().all(|symbol| symbol.name != **name))
        {
            let known: Vec<&str> = graph.symbols.iter().map(|symbol| symbol.name.as_str()).collect();
            let message = format!("there is no size `{unknown}`; expected one of {}", known.join(", "));
            return Err(PyValueError::new_err(message));
        }
        let value = |symbol: &lz_graph::graph::SymbolInfo| {
            sizes.get(&symbol.name).copied().unwrap_or(symbol.min.max(1))
        };
        let values: Vec<i64> = graph.symbols.iter().map(value).collect();
        let shape = |input: &lz_graph::graph::InputInfo| {
            lz_graph::sizes::shape(&graph.node(input.node).shape, &values)
        };
        let shapes = graph.inputs.iter().map(shape).collect::<Result<_, _>>();
        shapes.map_err(|error| raise_graph(py, &error))
    }

    /// The names of the outputs, in order.
    #[getter]
    fn outputs(&self) -> Vec<&str> {
        self.model.graph().outputs.iter().map(|output| output.name.as_str()).collect()
    }

    /// The graph, one line per node.
    #[getter]
    fn text(&self) -> String {
        self.model.graph().to_string()
    }

    /// What the passes replaced, in order.
    #[getter]
    fn rewrites(&self) -> Vec<String> {
        self.model.rewrites().to_vec()
    }

    /// Linear layers after quantization: name, shape, bytes before and after, error (`None` if the layer was kept), and why it was kept.
    #[getter]
    fn quantized_layers(&self) -> Vec<LayerRow<'_>> {
        let layers = self.model.quantized_layers().iter();
        layers.map(|layer| (layer.name.as_str(), layer.shape, layer.bytes, layer.error, layer.kept)).collect()
    }

    /// The number of plans that are kept: one per combination of sizes that ran lately.
    #[getter]
    fn cached_plans(&self) -> usize {
        self.model.session().cached_plans()
    }

    /// The plan for an executor in Python, for inputs of these shapes on a device: steps with their kernels and tensors, the offsets of
    /// buffers in the arena, and tables of sizes.
    #[pyo3(signature = (shapes, device, selects = true, compiles = true))]
    fn device_plan<'py>(
        &self,
        py: Python<'py>,
        shapes: Vec<Vec<i64>>,
        device: &str,
        selects: bool,
        compiles: bool,
    ) -> PyResult<Bound<'py, PyDict>> {
        device::plan(py, &self.model, &self.shapes(shapes), device, selects, compiles)
    }

    /// The decisions of the device's plans for these sizes, as the text of a lockfile.
    #[pyo3(signature = (sizes, device, selects = true))]
    fn device_freeze(
        &self,
        py: Python<'_>,
        sizes: Vec<Vec<Vec<i64>>>,
        device: &str,
        selects: bool,
    ) -> PyResult<String> {
        let calls = self.device_calls(py, sizes, device, selects)?;
        self.model
            .freeze_calls(&calls)
            .map(|lockfile| lockfile.text())
            .map_err(|error| raise_graph(py, &error))
    }

    /// How the decisions of the device's plans for these sizes differ from the text of a lockfile.
    #[pyo3(signature = (text, sizes, device, selects = true))]
    fn device_verify(
        &self,
        py: Python<'_>,
        text: &str,
        sizes: Vec<Vec<Vec<i64>>>,
        device: &str,
        selects: bool,
    ) -> PyResult<Vec<String>> {
        let expected = lz_engine::table::Lockfile::read("lockfile", text)
            .map_err(|error| crate::error::raise(py, &lz_core::Error::from(error)))?;
        let calls = self.device_calls(py, sizes, device, selects)?;
        self.model.verify_calls(&expected, &calls).map_err(|error| raise_graph(py, &error))
    }

    /// Writes the graph with copies of its constants of a device, by index, and the decisions of the device's plans for these sizes.
    #[pyo3(signature = (path, constants, sizes, device, selects = true))]
    fn device_save<'py>(
        &self,
        py: Python<'py>,
        path: PathBuf,
        constants: HashMap<usize, Bound<'py, PyAny>>,
        sizes: Vec<Vec<Vec<i64>>>,
        device: &str,
        selects: bool,
    ) -> PyResult<()> {
        let calls = self.device_calls(py, sizes, device, selects)?;
        let mut host = HashMap::with_capacity(constants.len());
        for (index, tensor) in constants {
            let name = self.model.graph().constants.get(index).map_or("", |constant| constant.name.as_str());
            host.insert(index, PythonMemory::borrow(py, name, tensor, false)?);
        }
        py.detach(|| self.model.save_with(&path, host, &calls)).map_err(|error| raise_graph(py, &error))
    }

    /// Name, dtype, sizes, strides, address and whether it is in host memory, of every constant.
    #[getter]
    fn constants(&self) -> Vec<device::ConstantRow> {
        device::constants(self.model.graph())
    }

    /// The memory of a constant of the host whose elements are dense in some order of its dimensions.
    fn constant_bytes<'py>(&self, py: Python<'py>, index: usize) -> PyResult<Bound<'py, PyBytes>> {
        device::constant_bytes(py, self.model.graph(), index)
    }

    /// Whether the graph changes an input in place, for every input.
    #[getter]
    fn mutable_inputs(&self) -> Vec<bool> {
        self.model.graph().inputs.iter().map(|input| input.mutable).collect()
    }

    /// Changes whenever policy, registry or health change: plans of an earlier one are stale.
    #[getter]
    fn generation(&self) -> u64 {
        self.model.session().engine().generation()
    }

    /// The plan for inputs of these shapes: a dict with `steps`, `arena_bytes`, `live_bytes`, `constant_bytes` and `nodes`.
    fn plan<'py>(&self, py: Python<'py>, shapes: Vec<Vec<i64>>) -> PyResult<Bound<'py, PyDict>> {
        let graph = self.model.graph();
        let given = self.shapes(shapes);
        let plan = self.model.session().plan_for(&given).map_err(|error| raise_graph(py, &error))?;
        let steps = PyList::empty(py);
        for (index, step) in plan.steps.iter().enumerate() {
            let node = graph.node(step.node);
            let entry = PyDict::new(py);
            // Steps with the same number run at the same time.
            let wave = plan.waves.iter().position(|end| index < *end).unwrap_or(index);
            entry.set_item("wave", wave)?;
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
        result.set_item("imported_nodes", self.model.imported_nodes())?;
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
