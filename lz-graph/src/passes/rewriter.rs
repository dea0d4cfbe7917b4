//! Replaces nodes of a graph and keeps use counts up to date.

use std::sync::Arc;

use lz_engine::Engine;

use super::{Rewrite, Tolerance};
use crate::build::Builder;
use crate::error::GraphError;
use crate::graph::{Graph, Node, NodeId, NodeKind, Origin};

/// A graph while a pass runs.
pub struct Rewriter<'a> {
    build: Builder,
    /// Uses by nodes that an output needs; 0 for nodes that are not part of the graph any more.
    uses: Vec<u32>,
    /// Replaced nodes' origins and the new nodes' names.
    done: Vec<(Vec<Arc<Origin>>, String)>,
    engine: Option<&'a Engine>,
}

impl<'a> Rewriter<'a> {
    /// For a graph in normal form.
    pub fn new(graph: Graph, engine: Option<&'a Engine>) -> Rewriter<'a> {
        let uses = graph.use_counts();
        Rewriter { build: Builder::continuing(graph), uses, done: Vec::new(), engine }
    }

    /// The graph and the replacements.
    pub fn finish(self, pass: &'static str, tolerance: Tolerance) -> (Graph, Vec<Rewrite>) {
        let rewrites = self.done.into_iter();
        let rewrites = rewrites.map(|(replaced, by)| Rewrite { pass, replaced, by, tolerance }).collect();
        let mut graph = self.build.into_graph();
        // A replaced node must not count as a reader that a change in place has to wait for.
        for index in 0..graph.nodes.len() {
            let id = NodeId(index as u32);
            let is_used = self.uses.get(index).is_some_and(|uses| *uses > 0);
            if !is_used && graph.written_inputs(id).is_empty() {
                graph.nodes[index].inputs.fill(None);
            }
        }
        (graph, rewrites)
    }

    /// The graph.
    pub fn graph(&self) -> &Graph {
        self.build.graph()
    }

    /// A node.
    pub fn node(&self, id: NodeId) -> &Node {
        self.build.graph().node(id)
    }

    /// The engine that computes constants.
    pub fn engine(&self) -> Option<&'a Engine> {
        self.engine
    }

    /// The number of uses; 0 if the node is not part of the graph any more.
    pub fn uses(&self, id: NodeId) -> u32 {
        self.uses.get(id.index()).copied().unwrap_or(0)
    }

    /// Calls `visit` for every node that was there before and is still part of the graph, in topological order.
    pub fn each(&mut self, mut visit: impl FnMut(&mut Rewriter<'a>, NodeId)) {
        for id in self.graph().ids() {
            if self.uses(id) > 0 {
                visit(self, id);
            }
        }
    }

    /// Whether nothing but the root and the interior uses the interior nodes, so that they disappear with the root.
    pub fn contains_all_uses(&self, root: NodeId, interior: &[NodeId]) -> bool {
        let mut inside: Vec<NodeId> = interior.to_vec();
        inside.push(root);
        inside.sort_unstable();
        inside.dedup();
        inside.iter().filter(|id| **id != root).all(|id| {
            let users = inside.iter().flat_map(|user| self.node(*user).inputs.iter().flatten());
            users.filter(|input| *input == id).count() == self.uses(*id) as usize
        })
    }

    /// Replaces `old` by what `make` builds, if it succeeds and gives the same shape and dtype. `interior` are the nodes that the new one
    /// makes superfluous, for the report.
    pub fn rewrite(
        &mut self,
        old: NodeId,
        interior: &[NodeId],
        make: impl FnOnce(&mut Builder) -> Result<Option<NodeId>, GraphError>,
    ) -> bool {
        let (nodes, constants) = (self.graph().nodes.len(), self.graph().constants.len());
        let checks = self.graph().checks.len();
        self.build.at_node(old);
        let (shape, dtype) = (self.node(old).shape.clone(), self.node(old).dtype);
        let made = make(&mut self.build).ok().flatten();
        let made = made.filter(|new| self.node(*new).dtype == dtype && self.node(*new).shape == shape);
        let Some(new) = made.filter(|new| *new != old && !self.has_other_results(old)) else {
            let graph = self.build.graph_mut();
            graph.nodes.truncate(nodes);
            graph.constants.truncate(constants);
            graph.checks.truncate(checks);
            return false;
        };
        let mut replaced = vec![self.node(old).origin.clone()];
        replaced.extend(interior.iter().map(|id| self.node(*id).origin.clone()));
        replaced.dedup();
        let by = name(self.node(new));
        self.done.push((replaced, by));
        self.redirect(old, new);
        true
    }

    /// Whether something uses a second output or a changed input of a call: only the call itself has those.
    fn has_other_results(&self, id: NodeId) -> bool {
        let nodes = self.graph().nodes.iter();
        let mut results =
            nodes.filter(|node| matches!(node.kind, NodeKind::Projection(_) | NodeKind::Written(_)));
        results.any(|node| node.input(0) == Some(id))
    }

    fn redirect(&mut self, old: NodeId, new: NodeId) {
        self.uses.resize(self.graph().nodes.len(), 0);
        let moved = self.uses[old.index()];
        // First the new node's inputs, so that nothing that both use is released in between.
        self.acquire(new);
        self.build.graph_mut().replace_uses(old, new);
        self.uses[new.index()] += moved;
        self.uses[old.index()] = 0;
        self.release_inputs(old);
    }

    /// Counts the uses that a node makes, if it was not part of the graph before.
    fn acquire(&mut self, id: NodeId) {
        let mut pending = if self.uses[id.index()] == 0 { vec![id] } else { Vec::new() };
        while let Some(id) = pending.pop() {
            for input in self.node(id).inputs.clone().into_iter().flatten() {
                if self.uses[input.index()] == 0 {
                    pending.push(input);
                }
                self.uses[input.index()] += 1;
            }
        }
    }

    fn release_inputs(&mut self, id: NodeId) {
        let mut pending = vec![id];
        while let Some(id) = pending.pop() {
            for input in self.node(id).inputs.clone().into_iter().flatten() {
                let count = &mut self.uses[input.index()];
                *count = count.saturating_sub(1);
                if *count == 0 && self.graph().written_inputs(input).is_empty() {
                    pending.push(input);
                }
            }
        }
    }
}

/// A node's operation or kind, for reports.
fn name(node: &Node) -> String {
    match &node.kind {
        NodeKind::Call(call) => call.operation.name.to_string(),
        NodeKind::View(_) => "view".to_owned(),
        NodeKind::Constant(_) => "constant".to_owned(),
        NodeKind::Concat(_) => "concat".to_owned(),
        NodeKind::Input(_) => "input".to_owned(),
        NodeKind::Sizes(_) => "sizes".to_owned(),
        NodeKind::Projection(_) | NodeKind::Written(_) => "output".to_owned(),
    }
}
