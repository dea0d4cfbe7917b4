//! Validators: what must hold after each stage, as findings with a severity.
//!
//! A validator reports everything that it finds; [`Validation`] decides which severities stop the compilation.

use std::collections::HashSet;
use std::fmt;

use lz_engine::Engine;

use crate::error::GraphError;
use crate::graph::{Graph, Node, NodeId, NodeKind, View};
use crate::plan::Plan;
use crate::{infer, memory};

/// How serious a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Worth knowing.
    Info,
    /// Suspicious: results are right, but something was probably not intended.
    Warning,
    /// The graph cannot run, or its results would be wrong.
    Error,
}

impl Severity {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Info => "info",
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

/// The stage whose result was validated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// The imported graph.
    Import,
    /// The graph after passes.
    Passes,
    /// The plan for given sizes.
    Plan,
    /// The plan with kernels, before it runs.
    Execution,
}

impl Phase {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Import => "import",
            Phase::Passes => "passes",
            Phase::Plan => "plan",
            Phase::Execution => "execution",
        }
    }
}

/// What a validator found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The stage.
    pub phase: Phase,
    /// How serious it is.
    pub severity: Severity,
    /// The validator: `references`, `types`, `symbols`, `unused`, `passes`, `verification`, `arena`, `kernels`, `decisions`.
    pub validator: &'static str,
    /// What was found, with the node and where it came from.
    pub message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (severity, phase) = (self.severity.name(), self.phase.name());
        write!(f, "{severity} after {phase} ({}): {}", self.validator, self.message)
    }
}

/// Which findings stop the compilation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Validation {
    /// Nothing is validated.
    None,
    /// Errors.
    #[default]
    Normal,
    /// Warnings and errors; every rewrite of a pass is also compared with the reference on random inputs.
    Strict,
}

impl Validation {
    /// The mode with this name.
    pub fn from_name(name: &str) -> Option<Validation> {
        match name {
            "none" => Some(Validation::None),
            "normal" => Some(Validation::Normal),
            "strict" => Some(Validation::Strict),
            _ => None,
        }
    }

    /// Fails if findings are too serious.
    pub fn check(self, findings: &[Finding]) -> Result<(), GraphError> {
        let limit = match self {
            Validation::None => return Ok(()),
            Validation::Normal => Severity::Error,
            Validation::Strict => Severity::Warning,
        };
        let refused: Vec<&Finding> = findings.iter().filter(|finding| finding.severity >= limit).collect();
        match refused.first() {
            None => Ok(()),
            Some(first) => Err(GraphError::Invalid {
                stage: first.phase.name(),
                findings: refused.iter().map(ToString::to_string).collect(),
            }),
        }
    }
}

/// Collects findings of one phase.
struct Findings {
    phase: Phase,
    all: Vec<Finding>,
}

impl Findings {
    fn add(&mut self, severity: Severity, validator: &'static str, message: String) {
        self.all.push(Finding { phase: self.phase, severity, validator, message });
    }

    fn error(&mut self, validator: &'static str, id: NodeId, node: &Node, message: impl fmt::Display) {
        self.add(Severity::Error, validator, format!("{id} ({}): {message}", node.origin));
    }
}

/// Validates a graph in topological order: references, types, symbols, unused inputs.
pub fn graph(graph: &Graph, phase: Phase) -> Vec<Finding> {
    let mut findings = Findings { phase, all: Vec::new() };
    references(graph, &mut findings);
    // The other validators follow references.
    if findings.all.is_empty() {
        types(graph, &mut findings);
        symbols(graph, &mut findings);
        unused(graph, &mut findings);
    }
    findings.all
}

/// Every reference is to an earlier node, an input or a constant that exists, so that there is no cycle.
fn references(graph: &Graph, findings: &mut Findings) {
    for (index, node) in graph.nodes.iter().enumerate() {
        let id = NodeId(index as u32);
        for input in node.inputs.iter().flatten().filter(|input| input.index() >= index) {
            findings.error("references", id, node, format!("uses {input}, which is not computed before it"));
        }
        let required = match &node.kind {
            NodeKind::Input(input) => {
                if graph.inputs.get(*input).is_none_or(|about| about.node != id) {
                    findings.error("references", id, node, format!("is input {input}, which does not exist"));
                }
                0
            }
            NodeKind::Constant(constant) => {
                if *constant >= graph.constants.len() {
                    findings.error(
                        "references",
                        id,
                        node,
                        format!("is constant {constant}, which does not exist"),
                    );
                }
                0
            }
            NodeKind::Sizes(_) => 0,
            NodeKind::Call(call) => {
                let schema = call.operation.schema();
                if node.inputs.len() != schema.inputs.len() || call.params.len() != schema.params.len() {
                    findings.error("references", id, node, "has another number of inputs or params");
                }
                continue;
            }
            NodeKind::Concat(_) if !node.inputs.is_empty() => node.inputs.len(),
            _ => 1,
        };
        if node.inputs.len() != required || node.inputs.iter().any(Option::is_none) {
            findings.error("references", id, node, format!("has {} inputs", node.inputs.len()));
        }
    }
    for output in graph.outputs.iter().filter(|output| output.node.index() >= graph.nodes.len()) {
        let message = format!("output `{}` is {}, which does not exist", output.name, output.node);
        findings.add(Severity::Error, "references", message);
    }
    for (index, input) in graph.inputs.iter().enumerate() {
        let found = graph.nodes.get(input.node.index());
        if !found.is_some_and(|node| matches!(node.kind, NodeKind::Input(own) if own == index)) {
            let message = format!("input `{}` is {}, which is no input", input.name, input.node);
            findings.add(Severity::Error, "references", message);
        }
    }
}

/// Shapes and dtypes are what schemas infer.
fn types(graph: &Graph, findings: &mut Findings) {
    for id in graph.ids() {
        let node = graph.node(id);
        if let Err(message) = node_type(graph, node) {
            findings.error("types", id, node, message);
        }
    }
}

fn node_type(graph: &Graph, node: &Node) -> Result<(), String> {
    let first = node.input(0).map(|input| graph.node(input));
    let same_dtype = || match first.filter(|input| input.dtype != node.dtype) {
        Some(input) => Err(format!("is {}, its input {}", node.dtype.name(), input.dtype.name())),
        None => Ok(()),
    };
    match &node.kind {
        NodeKind::Input(_) => Ok(()),
        NodeKind::Sizes(dims) => {
            let fits = match node.shape.as_slice() {
                [] => dims.len() == 1,
                [only] => only.is(dims.len() as i64),
                _ => false,
            };
            if fits && node.dtype == lz_core::DType::I64 {
                Ok(())
            } else {
                Err("has another shape".to_owned())
            }
        }
        NodeKind::Constant(index) => {
            let view = graph.constants[*index].view();
            let fits = view.dtype() == node.dtype
                && view.shape().len() == node.rank()
                && view.shape().iter().zip(&node.shape).all(|(size, dim)| dim.is(*size));
            if fits { Ok(()) } else { Err(format!("the constant has shape {:?}", view.shape())) }
        }
        NodeKind::Call(_) => call_type(graph, node, 0),
        NodeKind::Projection(output) => match first {
            Some(call) if call.call().is_some() => {
                let found = outputs(graph, call)?.into_iter().nth(*output).flatten();
                same_type(node, found)
            }
            _ => Err("has no call".to_owned()),
        },
        NodeKind::Written(input) => {
            let before = first.filter(|call| call.call().is_some()).and_then(|call| call.input(*input));
            let before = before.map(|id| (graph.node(id).shape.clone(), graph.node(id).dtype));
            same_type(node, before)
        }
        NodeKind::View(view) => {
            same_dtype()?;
            let rank = first.map_or(0, Node::rank);
            let fits = match view {
                View::Reshape => true,
                View::Expand => rank <= node.rank(),
                View::Permute(order) => {
                    let axes: HashSet<usize> = order.iter().copied().collect();
                    order.len() == rank
                        && node.rank() == rank
                        && axes.len() == rank
                        && order.iter().all(|axis| *axis < rank)
                }
                View::Slice { axis, step, .. } => *axis < rank && node.rank() == rank && *step != 0,
            };
            if fits { Ok(()) } else { Err("the view does not fit its input".to_owned()) }
        }
        NodeKind::Concat(axis) => {
            same_dtype()?;
            let parts = || node.inputs.iter().flatten().map(|input| graph.node(*input));
            if *axis < node.rank()
                && parts().all(|part| part.rank() == node.rank() && part.dtype == node.dtype)
            {
                Ok(())
            } else {
                Err("the parts do not fit".to_owned())
            }
        }
    }
}

fn outputs(graph: &Graph, node: &Node) -> Result<Vec<Option<infer::Type>>, String> {
    let Some(call) = node.call() else { return Ok(Vec::new()) };
    let types: Vec<Option<infer::Type>> = node
        .inputs
        .iter()
        .map(|input| input.map(|id| (graph.node(id).shape.clone(), graph.node(id).dtype)))
        .collect();
    infer::outputs(call.operation.schema(), &types, &call.params, &mut Vec::new())
        .map_err(|reasons| reasons.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
}

fn call_type(graph: &Graph, node: &Node, output: usize) -> Result<(), String> {
    let found = outputs(graph, node)?;
    if found.is_empty() || found.iter().all(Option::is_none) {
        return Ok(());
    }
    same_type(node, found.into_iter().skip(output).flatten().next())
}

/// Sizes may be spelled in another way; the plan compares them when they are known.
fn same_type(node: &Node, found: Option<infer::Type>) -> Result<(), String> {
    let Some((shape, dtype)) = found else { return Err("has no result".to_owned()) };
    let differs = |(a, b): (&crate::Dim, &crate::Dim)| a.minus(b).constant().is_some_and(|value| value != 0);
    if dtype != node.dtype || shape.len() != node.rank() || shape.iter().zip(&node.shape).any(differs) {
        let (dtype, own) = (dtype.name(), node.dtype.name());
        return Err(format!("is {own}{:?}, expected {dtype}{shape:?}", node.shape));
    }
    Ok(())
}

/// Every symbol is a size of an input.
fn symbols(graph: &Graph, findings: &mut Findings) {
    let mut determined = HashSet::new();
    for input in &graph.inputs {
        determined.extend(graph.node(input.node).shape.iter().filter_map(crate::Dim::symbol));
    }
    let mut used = HashSet::new();
    for dim in graph.nodes.iter().flat_map(|node| &node.shape) {
        dim.symbols(&mut |symbol| {
            used.insert(symbol);
        });
    }
    for symbol in used {
        match graph.symbols.get(symbol.0 as usize) {
            None => findings.add(Severity::Error, "symbols", format!("s{} does not exist", symbol.0)),
            Some(about) if !determined.contains(&symbol) => {
                let message = format!("no input determines the size `{}`", about.name);
                findings.add(Severity::Error, "symbols", message);
            }
            Some(_) => {}
        }
    }
}

/// Inputs that no result depends on, and nodes that nothing uses.
fn unused(graph: &Graph, findings: &mut Findings) {
    let uses = graph.use_counts();
    for id in graph.ids().filter(|id| uses[id.index()] == 0) {
        let node = graph.node(id);
        match node.kind {
            NodeKind::Input(index) => {
                let message = format!("no result depends on the input `{}`", graph.inputs[index].name);
                findings.add(Severity::Info, "unused", message);
            }
            _ if graph.written_inputs(id).is_empty() => {
                let message = format!("{id} ({}): nothing uses the result", node.origin);
                findings.add(Severity::Warning, "unused", message);
            }
            _ => {}
        }
    }
}

/// Validates a plan: buffers that are needed at the same time do not overlap.
pub fn plan(plan: &Plan) -> Vec<Finding> {
    let mut findings = Findings { phase: Phase::Plan, all: Vec::new() };
    if let Err(message) = memory::check(&plan.lifetimes, &plan.placement) {
        findings.add(Severity::Error, "arena", message.to_string());
    }
    findings.all
}

/// Validates the kernels of a plan: each is registered; references are slow.
pub fn execution(engine: &Engine, graph: &Graph, plan: &Plan) -> Vec<Finding> {
    let mut findings = Findings { phase: Phase::Execution, all: Vec::new() };
    let registry = engine.registry();
    let known: HashSet<&str> = registry.kernels().map(|entry| entry.spec.id.as_str()).collect();
    for step in &plan.steps {
        let (node, spec) = (graph.node(step.node), &step.pinned.entry().spec);
        if !known.contains(spec.id.as_str()) {
            findings.error(
                "kernels",
                step.node,
                node,
                format!("kernel {} is not registered any more", spec.id),
            );
        } else if spec.reference {
            let message = format!("{} ({}): runs the reference {}", step.node, node.origin, spec.id);
            findings.add(Severity::Info, "kernels", message);
        }
    }
    findings.all
}

#[cfg(test)]
mod tests {
    use lz_core::{DType, TensorView};

    use super::*;
    use crate::build::Builder;
    use crate::compiled::{CompiledModel, NanPolicy, Options};
    use crate::dim::Dim;
    use crate::session::RunInput;
    use crate::testing::engine;

    fn small() -> Graph {
        let mut build = Builder::new();
        let rows = Dim::from(build.graph_mut().symbol("rows", 0, 64));
        let x = build.input("x", vec![rows.clone(), Dim::from(4)], DType::F32);
        build.input("unused", vec![Dim::from(4)], DType::F32);
        let y = build.unary("tanh", x).unwrap();
        build.output("y", y);
        build.finish().unwrap()
    }

    fn messages(findings: &[Finding]) -> String {
        findings.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn valid_graph_has_no_findings_but_unused_inputs() {
        let findings = graph(&small(), Phase::Import);
        assert_eq!(
            messages(&findings),
            "info after import (unused): no result depends on the input `unused`"
        );
        assert!(Validation::Strict.check(&findings).is_ok());
    }

    #[test]
    fn every_validator_finds_its_mistake() {
        let check = |change: &dyn Fn(&mut Graph), expected: &str| {
            let mut changed = small();
            change(&mut changed);
            let findings = graph(&changed, Phase::Passes);
            assert!(messages(&findings).contains(expected), "{}", messages(&findings));
            assert!(Validation::Normal.check(&findings).is_err());
            assert!(Validation::None.check(&findings).is_ok());
        };
        fn call(graph: &mut Graph) -> &mut Node {
            graph.nodes.iter_mut().find(|node| node.call().is_some()).unwrap()
        }
        check(&|graph| call(graph).inputs[0] = Some(NodeId(9)), "error after passes (references)");
        check(&|graph| call(graph).dtype = DType::F64, "(types): ");
        check(&|graph| call(graph).shape.clear(), "(types): ");
        check(&|graph| graph.outputs[0].node = NodeId(77), "output `y` is %77, which does not exist");
        check(&|graph| graph.inputs[0].node = NodeId(77), "input `x` is %77, which is no input");
        check(
            &|graph| {
                let symbol = graph.symbol("length", 0, 8);
                graph.nodes[0].shape[1] = Dim::from(symbol).plus(&Dim::from(1));
            },
            "no input determines the size `length`",
        );
    }

    #[test]
    fn warnings_stop_strict_validation_only() {
        let finding = Finding {
            phase: Phase::Passes,
            severity: Severity::Warning,
            validator: "passes",
            message: "m".to_owned(),
        };
        assert!(Validation::Normal.check(std::slice::from_ref(&finding)).is_ok());
        let error = Validation::Strict.check(&[finding]).unwrap_err().to_string();
        assert_eq!(error, "passes: 1 problems\n  warning after passes (passes): m");
    }

    #[test]
    fn strict_validation_verifies_every_pass() {
        let options = Options { validation: Validation::Strict, ..Options::default() };
        let compiled = CompiledModel::new(&engine(), small(), &options).unwrap();
        assert!(compiled.findings().iter().all(|finding| finding.severity == Severity::Info));
    }

    #[test]
    fn nan_is_refused_by_policy() {
        let (x, other) = ([1.0, f32::NAN, 0.0, 0.0], [0.0f32; 4]);
        let inputs = || {
            let view = TensorView::from_slice(&x, &[1, 4]).unwrap();
            vec![RunInput::Read(view), RunInput::Read(TensorView::from_slice(&other, &[4]).unwrap())]
        };
        let allowed = CompiledModel::new(&engine(), small(), &Options::default()).unwrap();
        assert!(allowed.run(inputs()).is_ok());
        let options = Options { nan: NanPolicy::Refuse, ..Options::default() };
        let refused = CompiledModel::new(&engine(), small(), &options).unwrap();
        let error = refused.run(inputs()).unwrap_err().to_string();
        assert_eq!(error, "input `x`: contains NaN, which the NaN policy refuses");
    }
}
