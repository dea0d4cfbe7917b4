//! The graph: nodes with one result each, symbolic shapes, constants.
//!
//! Calls are operations of the catalog and primitives; views describe the same memory in another way; everything else (inputs,
//! constants, sizes, concatenation) is a kind of node of its own. Broadcasting is explicit: an `Expand` view. Nothing here runs.

use std::sync::Arc;

use lz_core::{DType, OperationInfo, Tensor};

use crate::dim::{Dim, Symbol};
use crate::error::GraphError;
pub use crate::origin::{NodeId, Origin};

/// A param of a call. Ints may depend on sizes.
#[derive(Debug, Clone, PartialEq)]
pub enum Param {
    /// Int.
    Int(Dim),
    /// Float.
    Float(f64),
    /// Bool.
    Bool(bool),
    /// Case of an enum, by index.
    Enum(u32),
}

/// A view: the same elements in another order or selection, without computing anything.
#[derive(Debug, Clone, PartialEq)]
pub enum View {
    /// Other sizes, the same elements in row-major order. A copy is made if strides do not allow it.
    Reshape,
    /// Dimension `i` of the result is dimension `permutation[i]` of the input.
    Permute(Vec<usize>),
    /// Every `step`-th element of one dimension from `start` on. The result's shape has the length.
    Slice {
        /// The dimension.
        axis: usize,
        /// The first element.
        start: Dim,
        /// The distance between elements, not 0; may be negative.
        step: i64,
    },
    /// Repeats dimensions of size 1, and adds leading ones.
    Expand,
}

/// The kind of a node.
#[derive(Debug, Clone)]
pub enum NodeKind {
    /// An input of the graph, by index into [`Graph::inputs`].
    Input(usize),
    /// A constant, by index into [`Graph::constants`].
    Constant(usize),
    /// A tensor of sizes (int64): a scalar if the shape has no dimension.
    Sizes(Vec<Dim>),
    /// A call; its result is the first output that it produces.
    Call(Call),
    /// Another output of a call (the only input), by index into the operation's outputs.
    Projection(usize),
    /// An input of a call (the only input) after the call changed it in place, by index into the operation's inputs.
    Written(usize),
    /// A view of the only input.
    View(View),
    /// All inputs, one after the other along this dimension.
    Concat(usize),
}

/// A call of an operation.
#[derive(Debug, Clone)]
pub struct Call {
    /// The operation.
    pub operation: &'static OperationInfo,
    /// One per param of the schema; `None` means its default.
    pub params: Vec<Option<Param>>,
}

/// One node.
#[derive(Debug, Clone)]
pub struct Node {
    /// Its kind.
    pub kind: NodeKind,
    /// Inputs. For a call one per input of the schema, `None` for an absent optional one.
    pub inputs: Vec<Option<NodeId>>,
    /// Sizes of the result.
    pub shape: Vec<Dim>,
    /// Element type of the result.
    pub dtype: DType,
    /// Where it came from.
    pub origin: Arc<Origin>,
}

impl Node {
    /// The call, if it is one.
    pub fn call(&self) -> Option<&Call> {
        match &self.kind {
            NodeKind::Call(call) => Some(call),
            _ => None,
        }
    }

    /// The view, if it is one.
    pub fn view(&self) -> Option<&View> {
        match &self.kind {
            NodeKind::View(view) => Some(view),
            _ => None,
        }
    }

    /// Whether it calls this operation.
    pub fn calls(&self, operation: &OperationInfo) -> bool {
        self.call().is_some_and(|call| std::ptr::eq(call.operation, operation))
    }

    /// An input that is present.
    pub fn input(&self, index: usize) -> Option<NodeId> {
        self.inputs.get(index).copied().flatten()
    }

    /// The number of dimensions.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }
}

/// A symbol: a size that is known when the graph runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SymbolInfo {
    /// Its name for people.
    pub name: String,
    /// The smallest size that is accepted.
    pub min: i64,
    /// The largest size that is accepted.
    pub max: i64,
}

/// An input of the graph.
#[derive(Debug, Clone)]
pub struct InputInfo {
    /// Its name.
    pub name: String,
    /// Its node.
    pub node: NodeId,
    /// Whether the graph writes to it (a KV cache).
    pub mutable: bool,
}

/// An output of the graph.
#[derive(Debug, Clone)]
pub struct OutputInfo {
    /// Its name.
    pub name: String,
    /// The node whose result it is.
    pub node: NodeId,
}

/// A constant: shared, never written.
#[derive(Debug, Clone)]
pub struct Constant {
    /// Its name in the model; empty for one that a pass made.
    pub name: String,
    /// Its elements.
    pub data: ConstantData,
}

/// The memory of a constant.
#[derive(Debug, Clone)]
pub enum ConstantData {
    /// Owned memory.
    Owned(Arc<Tensor>),
    /// Memory of somebody else that stays valid and unchanged: a mapped file, a framework's parameter.
    Shared(Arc<dyn SharedMemory>),
}

/// Foreign memory of a constant.
pub trait SharedMemory: Send + Sync + std::fmt::Debug {
    /// The tensor.
    fn view(&self) -> lz_core::TensorView<'_>;

    /// Says that the elements are rarely needed from now on. Memory that can be read again from a file may be given back meanwhile.
    fn discard(&self) {}
}

impl Constant {
    /// Its elements.
    pub fn view(&self) -> lz_core::TensorView<'_> {
        match &self.data {
            ConstantData::Owned(tensor) => tensor.view(),
            ConstantData::Shared(memory) => memory.view(),
        }
    }

    /// Says that its elements are rarely needed from now on, because they were rearranged for the kernels that read them.
    pub fn discard(&self) {
        if let ConstantData::Shared(memory) = &self.data {
            memory.discard();
        }
    }
}

/// Two sizes that must be equal when the graph runs.
#[derive(Debug, Clone, PartialEq)]
pub struct SizeCheck {
    /// One size.
    pub left: Dim,
    /// The other one.
    pub right: Dim,
    /// What requires it, for the message.
    pub because: String,
}

/// A graph.
#[derive(Debug, Clone, Default)]
pub struct Graph {
    /// Symbols.
    pub symbols: Vec<SymbolInfo>,
    /// Nodes. Passes append and redirect; [`Graph::normalize`] restores topological order and removes unused nodes.
    pub nodes: Vec<Node>,
    /// Inputs, in call order.
    pub inputs: Vec<InputInfo>,
    /// Outputs, in order.
    pub outputs: Vec<OutputInfo>,
    /// Constants.
    pub constants: Vec<Constant>,
    /// Sizes that are compared at run time.
    pub checks: Vec<SizeCheck>,
}

impl Graph {
    /// A node. Ids of a graph are valid in that graph only.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    /// Appends a node.
    pub fn push(&mut self, node: Node) -> NodeId {
        let id = NodeId(self.nodes.len() as u32);
        self.nodes.push(node);
        id
    }

    /// A new symbol.
    pub fn symbol(&mut self, name: impl Into<String>, min: i64, max: i64) -> Symbol {
        self.symbols.push(SymbolInfo { name: name.into(), min, max });
        Symbol(self.symbols.len() as u32 - 1)
    }

    /// The smallest and the largest size of a symbol.
    pub fn range(&self, symbol: Symbol) -> (i64, i64) {
        self.symbols.get(symbol.0 as usize).map_or((i64::MIN, i64::MAX), |info| (info.min, info.max))
    }

    /// All ids, in order.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = NodeId> + use<> {
        (0..self.nodes.len() as u32).map(NodeId)
    }

    /// The number of uses per node; an output of the graph is a use.
    pub fn use_counts(&self) -> Vec<u32> {
        let mut counts = vec![0u32; self.nodes.len()];
        let inputs = self.nodes.iter().flat_map(|node| node.inputs.iter().flatten());
        for id in inputs.chain(self.outputs.iter().map(|output| &output.node)) {
            counts[id.index()] += 1;
        }
        counts
    }

    /// The nodes that use each node, in order, without the outputs of the graph.
    pub fn users(&self) -> Vec<Vec<NodeId>> {
        let mut users = vec![Vec::new(); self.nodes.len()];
        for id in self.ids() {
            for input in self.node(id).inputs.iter().flatten() {
                users[input.index()].push(id);
            }
        }
        users
    }

    /// Lets every use of `old` use `new` instead.
    pub fn replace_uses(&mut self, old: NodeId, new: NodeId) {
        for node in &mut self.nodes {
            for input in node.inputs.iter_mut().flatten() {
                if *input == old {
                    *input = new;
                }
            }
        }
        for output in &mut self.outputs {
            if output.node == old {
                output.node = new;
            }
        }
    }

    /// Whether the node has a constant value.
    pub fn constant(&self, id: NodeId) -> Option<&Constant> {
        match self.node(id).kind {
            NodeKind::Constant(index) => self.constants.get(index),
            _ => None,
        }
    }

    /// Whether the node has a constant value that can be read here: constants of a device are only passed to its kernels.
    pub fn readable_constant(&self, id: NodeId) -> Option<&Constant> {
        self.constant(id).filter(|constant| constant.view().device().is_host())
    }

    /// The value of a constant with one element.
    pub fn scalar(&self, id: NodeId) -> Option<f64> {
        let view = self.readable_constant(id)?.view();
        let index = [0i64; lz_core::tensor::MAX_RANK];
        (view.elements() == 1).then(|| view.at(&index[..view.rank()]))
    }

    /// Removes unused nodes (except inputs) and constants, and restores topological order. Fails if the graph has a cycle.
    ///
    /// Nodes that change a tensor in place come after every node that reads the tensor's earlier value.
    pub fn normalize(&mut self) -> Result<(), GraphError> {
        let order = self.topological_order()?;
        let mut renumbered = vec![None; self.nodes.len()];
        for (position, id) in order.iter().enumerate() {
            renumbered[id.index()] = Some(NodeId(position as u32));
        }
        let mut nodes: Vec<Option<Node>> = std::mem::take(&mut self.nodes).into_iter().map(Some).collect();
        let renumber = |id: NodeId| renumbered[id.index()].unwrap_or(id);
        for id in &order {
            let Some(mut node) = nodes[id.index()].take() else { continue };
            for input in node.inputs.iter_mut().flatten() {
                *input = renumber(*input);
            }
            self.nodes.push(node);
        }
        for input in &mut self.inputs {
            input.node = renumber(input.node);
        }
        for output in &mut self.outputs {
            output.node = renumber(output.node);
        }
        self.drop_unused_constants();
        Ok(())
    }

    fn drop_unused_constants(&mut self) {
        let mut moved = vec![None; self.constants.len()];
        let mut kept = Vec::new();
        for node in &mut self.nodes {
            if let NodeKind::Constant(index) = &mut node.kind {
                let old = *index;
                *index = *moved[old].get_or_insert_with(|| {
                    kept.push(self.constants[old].clone());
                    kept.len() - 1
                });
            }
        }
        self.constants = kept;
    }

    /// Nodes that an output or an in-place change of a mutable input needs, and all inputs, in an order that respects every edge.
    fn topological_order(&self) -> Result<Vec<NodeId>, GraphError> {
        let before = self.write_after_read();
        let mut order = Vec::with_capacity(self.nodes.len());
        let mut state = vec![Visit::New; self.nodes.len()];
        let roots = self.inputs.iter().map(|input| input.node);
        let roots = roots.chain(self.effects()).chain(self.outputs.iter().map(|output| output.node));
        for root in roots.collect::<Vec<_>>() {
            // An explicit stack: deep graphs must not overflow the thread's.
            let mut stack = vec![(root, 0usize)];
            while let Some((id, next)) = stack.pop() {
                if next == 0 {
                    match state[id.index()] {
                        Visit::Done => continue,
                        Visit::Open => return Err(self.cycle(id)),
                        Visit::New => state[id.index()] = Visit::Open,
                    }
                }
                let node = self.node(id);
                let edges = node.inputs.iter().flatten().chain(&before[id.index()]);
                match edges.copied().nth(next) {
                    Some(input) => {
                        stack.push((id, next + 1));
                        match state[input.index()] {
                            Visit::New => stack.push((input, 0)),
                            Visit::Open => return Err(self.cycle(input)),
                            Visit::Done => {}
                        }
                    }
                    None => {
                        state[id.index()] = Visit::Done;
                        order.push(id);
                    }
                }
            }
        }
        Ok(order)
    }

    fn cycle(&self, id: NodeId) -> GraphError {
        GraphError::Cycle { node: id, origin: self.node(id).origin.clone() }
    }

    /// Calls that change a mutable input of the graph in place: they run even if nothing uses their results.
    fn effects(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.ids().filter(|id| !self.written_inputs(*id).is_empty())
    }

    /// The inputs of a call that it changes in place.
    pub fn written_inputs(&self, id: NodeId) -> Vec<NodeId> {
        let node = self.node(id);
        let Some(call) = node.call() else { return Vec::new() };
        let inputs = call.operation.schema().inputs.iter().zip(&node.inputs);
        inputs.filter(|(about, _)| about.read_write).filter_map(|(_, input)| *input).collect()
    }

    /// Per node: the readers of the tensors that it changes in place, which must run before it. Views share memory, so readers of
    /// every view of the same tensor count.
    fn write_after_read(&self) -> Vec<Vec<NodeId>> {
        let mut before = vec![Vec::new(); self.nodes.len()];
        let writers: Vec<NodeId> = self.effects().collect();
        if writers.is_empty() {
            return before;
        }
        let users = self.users();
        for writer in writers {
            for written in self.written_inputs(writer) {
                let mut aliases = vec![self.root(written)];
                while let Some(alias) = aliases.pop() {
                    for &user in users[alias.index()].iter().filter(|user| **user != writer) {
                        match self.node(user).kind {
                            NodeKind::View(_) => aliases.push(user),
                            _ => before[writer.index()].push(user),
                        }
                    }
                }
            }
        }
        before
    }

    /// The node whose memory a view shares.
    pub fn root(&self, mut id: NodeId) -> NodeId {
        while let (NodeKind::View(_), Some(input)) = (&self.node(id).kind, self.node(id).input(0)) {
            id = input;
        }
        id
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Visit {
    New,
    Open,
    Done,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::Builder;

    /// `norm.rms.add` changes its residual in place after a view of the residual was made.
    #[test]
    fn readers_of_a_view_run_before_the_tensor_is_changed() {
        let mut build = Builder::new();
        let shape = vec![Dim::from(2), Dim::from(4)];
        let x = build.input("x", shape.clone(), DType::F32);
        let y = build.input("y", shape, DType::F32);
        let residual = build.unary("tanh", y).unwrap();
        let turned = build.transpose(residual, 0, 1).unwrap();
        let norm = build.call("norm.rms.add", &[Some(x), Some(residual)], &[]).unwrap();
        let sum = build.written(norm, 1).unwrap();
        // Created after the call, but reads the value from before it.
        let before = build.unary("exp", turned).unwrap();
        for (name, node) in [("norm", norm), ("sum", sum), ("before", before)] {
            build.output(name, node);
        }
        let graph = build.finish().unwrap();
        let position = |function: &str| graph.to_string().lines().position(|line| line.contains(function));
        assert!(position("function=exp") < position("norm.rms.add("), "{graph}");
    }

    #[test]
    fn cycles_are_refused() {
        let mut build = Builder::new();
        let x = build.input("x", vec![Dim::from(4)], DType::F32);
        let first = build.unary("tanh", x).unwrap();
        let second = build.unary("exp", first).unwrap();
        build.output("second", second);
        let mut graph = build.into_graph();
        graph.nodes[first.index()].inputs[0] = Some(second);
        assert!(graph.normalize().unwrap_err().to_string().starts_with("the graph has a cycle through"));
    }
}
