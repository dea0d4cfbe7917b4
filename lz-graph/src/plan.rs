//! The plan of a graph for given sizes: a flat list of calls, each with its kernel, and where every tensor lies.
//!
//! A plan contains no memory. Views cost nothing; a tensor is copied only where strides cannot express a view, or where every fast
//! kernel needs dense inputs; `Step::copy` records why.

mod choose;
mod parts;
mod select;
mod waves;

use lz_core::context::Context;
use lz_core::expr::Value;
use lz_core::{DType, OperationInfo, PreparedInput};
use lz_engine::{Engine, Pinned};

pub use parts::Parts;
pub(crate) use select::prepare_inputs;
pub use select::{HostKernels, Selector};
pub use waves::Grouping;

use crate::error::GraphError;
use crate::graph::{Graph, Node, NodeId, NodeKind, View};
use crate::interpret::param_value;
use crate::memory::{self, Lifetime, Placement};
use crate::prepared::PreparedConstants;
use crate::sizes;
use crate::strided::Strided;

/// The memory of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// An input of the run.
    Input(usize),
    /// A constant of the graph.
    Constant(usize),
    /// Sizes, stored in the plan.
    Sizes(usize),
    /// A buffer of the arena.
    Arena(usize),
    /// An output of the run.
    Output(usize),
}

/// A tensor of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Location {
    /// Its memory.
    pub source: Source,
    /// Which part of it.
    pub view: Strided,
}

impl Location {
    /// The number of elements.
    fn elements(&self) -> u64 {
        self.view.layout.elements().unwrap_or(0).max(0) as u64
    }
}

/// An argument of a step.
#[derive(Debug, Clone, Copy)]
pub enum StepArg {
    /// A tensor that is read.
    Read(Location),
    /// A tensor that is changed in place.
    Write(Location),
    /// A param; `None` for its default or an absent input.
    Param(Option<Value>),
}

/// Why a step copies a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyReason {
    /// Strides cannot express a reshape.
    Reshape,
    /// A part of a concatenation.
    Concat,
    /// The fast kernels of the next step need dense inputs.
    DenseInput,
    /// A result of the graph that is a view, an input or a constant.
    Output,
}

impl CopyReason {
    /// Its name for `explain`.
    pub fn name(self) -> &'static str {
        match self {
            CopyReason::Reshape => "reshape",
            CopyReason::Concat => "concat",
            CopyReason::DenseInput => "dense input",
            CopyReason::Output => "output",
        }
    }
}

/// Another way to compute a step that was planned too and would take longer.
#[derive(Debug, Clone, PartialEq)]
pub struct Rejected {
    /// What differs.
    pub what: &'static str,
    /// Its kernel.
    pub kernel: String,
    /// Its time and that of what was chosen instead, copies included, in nanoseconds.
    pub cost_ns: f64,
    /// The time of what was chosen.
    pub chosen_ns: f64,
    /// Whether both times were measured; otherwise they are estimated from bytes.
    pub measured: bool,
}

/// One call.
#[derive(Debug)]
pub struct Step<K = Pinned> {
    /// The node that it computes.
    pub node: NodeId,
    /// The operation.
    pub operation: &'static OperationInfo,
    /// Inputs, then params.
    pub args: Vec<StepArg>,
    /// One per output of the operation.
    pub outputs: Vec<Option<Location>>,
    /// The kernel.
    pub pinned: K,
    /// What it was selected for.
    pub context: Context,
    /// Set if the step only copies.
    pub copy: Option<CopyReason>,
    /// What else was considered.
    pub rejected: Vec<Rejected>,
    /// Per input the constant in the layout of the kernel, where it reads it faster.
    pub prepared: Vec<Option<PreparedInput>>,
}

impl<K> Step<K> {
    /// Every tensor that it reads or writes.
    pub fn tensors(&self) -> impl Iterator<Item = &Location> {
        let args = self.args.iter().filter_map(|arg| match arg {
            StepArg::Read(location) | StepArg::Write(location) => Some(location),
            StepArg::Param(_) => None,
        });
        args.chain(self.outputs.iter().flatten())
    }

    /// Bytes that it reads and writes.
    pub fn bytes(&self) -> u64 {
        self.tensors().map(|one| one.elements() * one.view.layout.dtype.size() as u64).sum()
    }
}

/// A graph for given sizes.
#[derive(Debug)]
pub struct Plan<K = Pinned> {
    /// The value of every symbol.
    pub values: Vec<i64>,
    /// Calls, in order.
    pub steps: Vec<Step<K>>,
    /// Groups of consecutive steps that may run at the same time, as the index after the last one; empty if steps run one by one.
    pub waves: Vec<usize>,
    /// Buffers of the arena; first and last use are counted in waves, or in steps if there are none.
    pub lifetimes: Vec<Lifetime>,
    /// Their offsets.
    pub placement: Placement,
    /// Tensors of sizes.
    pub tables: Vec<Vec<i64>>,
    /// Sizes and dtype of every output.
    pub outputs: Vec<(Vec<i64>, DType)>,
}

/// Plans a normalized graph. `alignment` has the alignment of each input's address in bytes.
pub fn plan(engine: &Engine, graph: &Graph, values: &[i64], alignment: &[usize]) -> Result<Plan, GraphError> {
    plan_with(engine, graph, values, alignment, &PreparedConstants::default())
}

/// As [`plan`], with constants that earlier plans prepared.
pub fn plan_with(
    engine: &Engine,
    graph: &Graph,
    values: &[i64],
    alignment: &[usize],
    prepared: &PreparedConstants,
) -> Result<Plan, GraphError> {
    plan_by(&HostKernels { engine }, graph, values, alignment, prepared)
}

/// The same plan for several threads: steps that do not depend on each other are grouped into waves as far as `grouping` allows.
pub fn grouped(plan: Plan, grouping: Grouping) -> Plan {
    waves::group(plan, grouping)
}

/// As [`plan_with`], for the device and the kernels of a selector.
pub fn plan_by<S: Selector>(
    selector: &S,
    graph: &Graph,
    values: &[i64],
    alignment: &[usize],
    prepared: &PreparedConstants,
) -> Result<Plan<S::Kernel>, GraphError> {
    plan_split(selector, graph, values, alignment, prepared, Parts::default())
}

/// As [`plan_by`], with another rule for which fused operations are split into their parts.
pub fn plan_split<S: Selector>(
    selector: &S,
    graph: &Graph,
    values: &[i64],
    alignment: &[usize],
    prepared: &PreparedConstants,
    parts: Parts,
) -> Result<Plan<S::Kernel>, GraphError> {
    let mut planner = Planner {
        selector,
        graph,
        values,
        alignment,
        prepared,
        parts,
        locations: Vec::with_capacity(graph.nodes.len()),
        steps: Vec::new(),
        buffers: Vec::new(),
        tables: Vec::new(),
        destinations: destinations(graph),
    };
    for id in graph.ids() {
        let locations = planner.node(id)?;
        planner.locations.push(locations);
    }
    planner.finish()
}

/// Per node the output of the graph that it can compute directly.
fn destinations(graph: &Graph) -> Vec<Option<usize>> {
    let mut destinations = vec![None; graph.nodes.len()];
    for (index, output) in graph.outputs.iter().enumerate() {
        let computed = matches!(
            graph.node(output.node).kind,
            NodeKind::Call(_) | NodeKind::Projection(_) | NodeKind::Concat(_)
        );
        if computed && destinations[output.node.index()].is_none() {
            destinations[output.node.index()] = Some(index);
        }
    }
    destinations
}

/// When buffers of these sizes are in use; `time` is when a step runs.
fn lifetimes<K>(steps: &[Step<K>], buffers: &[usize], time: impl Fn(usize) -> usize) -> Vec<Lifetime> {
    let mut lifetimes: Vec<Option<Lifetime>> = vec![None; buffers.len()];
    for (index, step) in steps.iter().enumerate() {
        let time = time(index);
        for location in step.tensors() {
            if let Source::Arena(buffer) = location.source {
                let bytes = buffers[buffer];
                let lifetime = lifetimes[buffer].get_or_insert(Lifetime { bytes, first: time, last: time });
                lifetime.first = lifetime.first.min(time);
                lifetime.last = lifetime.last.max(time);
            }
        }
    }
    // A buffer that no step uses (a result without elements that nothing reads) needs no memory.
    lifetimes.into_iter().map(|one| one.unwrap_or(Lifetime { bytes: 0, first: 0, last: 0 })).collect()
}

struct Planner<'a, S: Selector> {
    selector: &'a S,
    graph: &'a Graph,
    values: &'a [i64],
    alignment: &'a [usize],
    prepared: &'a PreparedConstants,
    parts: Parts,
    /// Per node its outputs, then, for a call, its inputs that were changed in place.
    locations: Vec<Vec<Option<Location>>>,
    steps: Vec<Step<S::Kernel>>,
    /// Sizes in bytes of the arena's buffers.
    buffers: Vec<usize>,
    tables: Vec<Vec<i64>>,
    destinations: Vec<Option<usize>>,
}

impl<S: Selector> Planner<'_, S> {
    fn finish(mut self) -> Result<Plan<S::Kernel>, GraphError> {
        let mut outputs = Vec::new();
        for (index, output) in self.graph.outputs.iter().enumerate() {
            let node = self.graph.node(output.node);
            let shape = sizes::shape(&node.shape, self.values)?;
            let from = self.location(output.node)?;
            if from.source != Source::Output(index) {
                let to = Location { source: Source::Output(index), view: self.dense(&shape, node)? };
                self.copy(output.node, from, to, CopyReason::Output)?;
            }
            outputs.push((shape, node.dtype));
        }
        let lifetimes = lifetimes(&self.steps, &self.buffers, |step| step);
        let placement = memory::place(&lifetimes);
        Ok(Plan {
            values: self.values.to_vec(),
            steps: self.steps,
            waves: Vec::new(),
            lifetimes,
            placement,
            tables: self.tables,
            outputs,
        })
    }

    fn invalid(&self, node: &Node, message: impl std::fmt::Display) -> GraphError {
        GraphError::Invalid { stage: "planning", findings: vec![format!("{}: {message}", node.origin)] }
    }

    fn location(&self, id: NodeId) -> Result<Location, GraphError> {
        let found = self.locations.get(id.index()).and_then(|all| all.iter().flatten().next());
        found.copied().ok_or_else(|| self.invalid(self.graph.node(id), "has no result"))
    }

    fn dense(&self, shape: &[i64], node: &Node) -> Result<Strided, GraphError> {
        Strided::dense(shape, node.dtype)
            .map(|view| self.placed(view))
            .ok_or_else(|| self.invalid(node, format!("shape {shape:?} is too large")))
    }

    /// The same view on the plan's device: all tensors of a plan are there.
    fn placed(&self, mut view: Strided) -> Strided {
        view.layout.device = self.selector.device();
        view
    }

    /// A new buffer of the arena, or the output that the node computes directly.
    fn allocate(&mut self, view: Strided, destination: Option<usize>) -> Location {
        let source = match destination {
            Some(output) => Source::Output(output),
            None => {
                let elements = view.layout.elements().unwrap_or(0).max(0) as usize;
                self.buffers.push(elements * view.layout.dtype.size());
                Source::Arena(self.buffers.len() - 1)
            }
        };
        Location { source, view }
    }

    fn node(&mut self, id: NodeId) -> Result<Vec<Option<Location>>, GraphError> {
        let graph = self.graph;
        let node = graph.node(id);
        let shape = sizes::shape(&node.shape, self.values)?;
        let location = match &node.kind {
            NodeKind::Call(_) => return self.call(id, node),
            NodeKind::Input(index) => {
                Location { source: Source::Input(*index), view: self.dense(&shape, node)? }
            }
            NodeKind::Constant(index) => {
                let layout = *graph.constants[*index].view().layout();
                if !layout.device.is_host() && self.selector.device().is_host() {
                    let message =
                        format!("a constant is on {}, but the graph is planned for the host", layout.device);
                    return Err(self.invalid(node, message));
                }
                let view = self.placed(Strided { layout, offset: 0 });
                Location { source: Source::Constant(*index), view }
            }
            NodeKind::Sizes(dims) => {
                let table =
                    dims.iter().map(|dim| sizes::evaluate(dim, self.values)).collect::<Result<_, _>>()?;
                self.tables.push(table);
                Location { source: Source::Sizes(self.tables.len() - 1), view: self.dense(&shape, node)? }
            }
            NodeKind::View(view) => self.view(id, node, view, &shape)?,
            NodeKind::Concat(axis) => self.concat(id, node, *axis, &shape)?,
            NodeKind::Projection(index) | NodeKind::Written(index) => {
                let call = node.input(0).ok_or_else(|| self.invalid(node, "has no call"))?;
                let outputs = match (&node.kind, graph.node(call).call()) {
                    (NodeKind::Written(_), Some(call)) => call.operation.schema().outputs.len(),
                    _ => 0,
                };
                let found = self.locations[call.index()].get(outputs + index).copied().flatten();
                found.ok_or_else(|| self.invalid(node, "the call has no such result"))?
            }
        };
        Ok(vec![Some(location)])
    }

    fn view(&mut self, id: NodeId, node: &Node, view: &View, shape: &[i64]) -> Result<Location, GraphError> {
        let input = node.input(0).ok_or_else(|| self.invalid(node, "has no input"))?;
        let from = self.location(input)?;
        let start = match view {
            View::Slice { start, .. } => sizes::evaluate(start, self.values)?,
            _ => 0,
        };
        if let Some(view) = from.view.view(view, shape, start) {
            return Ok(Location { view, ..from });
        }
        let sizes = from.view.layout.shape;
        let copied = self.materialize(id, from, CopyReason::Reshape)?;
        match copied.view.view(view, shape, start) {
            Some(view) => Ok(Location { view, ..copied }),
            None => Err(self.invalid(node, format!("{sizes:?} cannot become {shape:?}"))),
        }
    }

    fn concat(
        &mut self,
        id: NodeId,
        node: &Node,
        axis: usize,
        shape: &[i64],
    ) -> Result<Location, GraphError> {
        let dense = self.dense(shape, node)?;
        let whole = self.allocate(dense, self.destinations[id.index()]);
        let mut start = 0;
        for input in node.inputs.iter().flatten() {
            let from = self.location(*input)?;
            let sizes = from.view.layout.shape;
            let part = View::Slice { axis, start: start.into(), step: 1 };
            let Some(view) = whole.view.view(&part, &sizes, start) else {
                return Err(self.invalid(node, format!("{sizes:?} is no part of {shape:?}")));
            };
            start += sizes.get(axis).copied().unwrap_or(0);
            self.copy(id, from, Location { view, ..whole }, CopyReason::Concat)?;
        }
        Ok(whole)
    }

    /// A dense copy in the arena.
    fn materialize(&mut self, id: NodeId, from: Location, why: CopyReason) -> Result<Location, GraphError> {
        let node = self.graph.node(id);
        let dense = Strided::dense(&from.view.layout.shape, from.view.layout.dtype)
            .map(|view| self.placed(view))
            .ok_or_else(|| self.invalid(node, "a copy is too large"))?;
        let to = self.allocate(dense, None);
        self.copy(id, from, to, why)?;
        Ok(to)
    }

    fn copy(&mut self, id: NodeId, from: Location, to: Location, why: CopyReason) -> Result<(), GraphError> {
        if to.view.layout.elements() == Some(0) {
            return Ok(());
        }
        let args = vec![StepArg::Read(from)];
        let mut step = self.select(id, *lz_primitives::COPY, args, vec![Some(to)])?;
        step.copy = Some(why);
        self.steps.push(step);
        Ok(())
    }

    fn call(&mut self, id: NodeId, node: &Node) -> Result<Vec<Option<Location>>, GraphError> {
        let NodeKind::Call(call) = &node.kind else { return Ok(Vec::new()) };
        let schema = call.operation.schema();
        let mut args = Vec::with_capacity(schema.inputs.len() + schema.params.len());
        let mut written = Vec::new();
        for (index, about) in schema.inputs.iter().enumerate() {
            let location = node.input(index).map(|input| self.location(input)).transpose()?;
            if let (Some(location), Some(input), true) = (location, node.input(index), about.read_write) {
                self.check_writable(node, input, location.source)?;
            }
            written.push(location.filter(|_| about.read_write));
            args.push(match location {
                Some(location) if about.read_write => StepArg::Write(location),
                Some(location) => StepArg::Read(location),
                None => StepArg::Param(None),
            });
        }
        for param in &call.params {
            args.push(StepArg::Param(param_value(param.as_ref(), self.values)?));
        }
        let types = self.output_types(node, call.operation, &args)?;
        let destinations: Vec<Option<usize>> = self.output_destinations(id, types.len());
        let mut outputs = Vec::with_capacity(types.len());
        for (view, destination) in types.into_iter().zip(destinations) {
            outputs.push(view.map(|view| self.allocate(view, destination)));
        }
        let copies = self.steps.len();
        let mut step = self.select_with_copies(id, call.operation, args.clone(), outputs.clone())?;
        // Without elements there is nothing to compute.
        let empty = |location: &Location| location.view.layout.elements() == Some(0);
        let computes = outputs.is_empty() || !outputs.iter().flatten().all(empty);
        if computes && !self.split(id, &mut step, &args, copies)? {
            step.prepared = self.prepare(&step)?;
            self.steps.push(step);
        }
        outputs.extend(written);
        Ok(outputs)
    }

    /// A call changes only intermediate results and mutable inputs in place, and no value that the graph returns.
    fn check_writable(&self, node: &Node, written: NodeId, source: Source) -> Result<(), GraphError> {
        let root = self.graph.root(written);
        let returned = self.graph.outputs.iter().any(|output| self.graph.root(output.node) == root);
        let writable = match source {
            Source::Input(index) => self.graph.inputs[index].mutable,
            Source::Arena(_) | Source::Output(_) => !returned,
            Source::Constant(_) | Source::Sizes(_) => false,
        };
        if writable {
            return Ok(());
        }
        let message =
            format!("changes {written} in place, which is an input, a constant or a result of the graph");
        Err(self.invalid(node, message))
    }

    /// Per output of a call the output of the graph that it can be written to.
    fn output_destinations(&self, id: NodeId, outputs: usize) -> Vec<Option<usize>> {
        let mut found = vec![None; outputs];
        if let Some(first) = found.first_mut() {
            *first = self.destinations[id.index()];
        }
        for later in self.graph.ids().skip(id.index() + 1) {
            let node = self.graph.node(later);
            if let NodeKind::Projection(output) = node.kind
                && node.input(0) == Some(id)
                && let Some(slot) = found.get_mut(output)
                && slot.is_none()
            {
                *slot = self.destinations[later.index()];
            }
        }
        found
    }
}
