//! ONNX models: an imported graph is valid, survives saving, and passes keep what it computes.

use std::sync::OnceLock;

use lz_engine::Engine;
use lz_graph::artifact::{self, Artifact};
use lz_graph::import::onnx::{Options, from_bytes};
use lz_graph::{Graph, passes, validate};

use super::artifact::round_trip;
use super::files;

/// Elements of a tensor up to which a graph is run; larger ones only take longer.
const MAX_ELEMENTS: i64 = 4096;
/// Nodes up to which a graph is run.
const MAX_NODES: usize = 64;

pub fn run(input: &[u8]) -> bool {
    let graph = match from_bytes(input, &Options::default()) {
        Ok(graph) => graph,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return false;
        }
    };
    let valid = |graph: &Graph, phase| {
        let findings = validate::graph(graph, phase);
        validate::Validation::Normal.check(&findings).unwrap_or_else(|error| panic!("{error}\n{graph}"));
    };
    valid(&graph, validate::Phase::Import);
    let printed = graph.to_string();
    let before = graph.clone();
    let mut optimized = graph;
    let small = before.nodes.len() <= MAX_NODES && before.nodes.iter().all(is_small);
    match passes::optimize(&mut optimized, &passes::Options::default()) {
        Ok(_) => valid(&optimized, validate::Phase::Passes),
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return false;
        }
    }
    if small && let Err(error) = passes::verify(&before, &optimized, engine(), passes::Tolerance::Rounding) {
        // Sizes that no attempt satisfies, and values that kernels refuse, are errors of the run, not of passes.
        let differs = error.to_string();
        assert!(!differs.contains("verification of passes"), "{differs}\n{printed}\n{optimized}");
    }
    let path = files::path("onnx.lz");
    let saved = Artifact {
        imported_nodes: optimized.nodes.len(),
        graph: optimized,
        rewrites: Vec::new(),
        decisions: None,
        layerzero: String::new(),
    };
    artifact::save(&path, &saved).unwrap_or_else(|error| panic!("{error}"));
    assert!(round_trip(&path), "a saved graph cannot be loaded");
    true
}

/// Whether all sizes are small numbers; symbols are small in the comparison.
fn is_small(node: &lz_graph::Node) -> bool {
    let sizes = node.shape.iter().map(|size| size.constant().unwrap_or(8));
    sizes
        .into_iter()
        .try_fold(1i64, |elements, size| elements.checked_mul(size.max(1)))
        .is_some_and(|all| all <= MAX_ELEMENTS)
}

fn engine() -> &'static Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    ENGINE.get_or_init(|| {
        let references = lz_test_kernels::runnable().iter().filter(|entry| entry.spec.reference).cloned();
        Engine::with_kernels(references).unwrap_or_else(|error| panic!("{error}"))
    })
}
