//! Prints what a node of a compiled graph costs beyond its kernel; with `--json` one object per line.
//!
//! A chain of elementwise operations on four elements is run as a graph, and the same kernels are called directly with the same
//! sizes, interleaved. The difference per node is the cost of the executor.

use std::time::Instant;

use lz_core::args::{Arg, OutArg};
use lz_core::expr::Value;
use lz_core::kernel::run::{Run, Scratch};
use lz_core::{DType, KernelEntry, Tensor, TensorMut, TensorView};
use lz_engine::Engine;
use lz_graph::build::Builder;
use lz_graph::sizes::InputShape;
use lz_graph::{Dim, RunInput, Session};

const NODES: usize = 512;
const ROUNDS: usize = 400;
const ELEMENTS: i64 = 4;

fn session() -> Session {
    let mut build = Builder::new();
    let mut node = build.input("x", vec![Dim::from(ELEMENTS)], DType::F32);
    for _ in 0..NODES {
        node = build.unary("neg", node).unwrap();
    }
    build.output("result", node);
    let engine = Engine::new();
    engine.register(lz_primitives::reference_kernels()).unwrap();
    engine.register(lz_cpu::primitive_kernels()).unwrap();
    Session::new(engine, build.finish().unwrap())
}

/// The kernel that the graph's plan calls, and its param.
fn planned(session: &Session) -> (KernelEntry, Value) {
    let shapes = [InputShape { shape: vec![ELEMENTS], dtype: DType::F32 }];
    let plan = session.plan_for(&shapes).unwrap();
    assert_eq!(plan.steps.len(), NODES, "every node is a step");
    let lz_graph::plan::StepArg::Param(Some(function)) = plan.steps[0].args[1] else {
        panic!("the second argument is the function");
    };
    (plan.steps[0].pinned.entry().clone(), function)
}

/// Nanoseconds per node: the whole graph, and the kernels alone.
fn measure() -> (f64, f64) {
    let session = session();
    let (entry, function) = planned(&session);
    let data = [0.5f32, -1.0, 2.0, 3.0];
    let mut result = Tensor::zeros(&[ELEMENTS], DType::F32).unwrap();
    let (mut graph, mut kernels) = (f64::INFINITY, f64::INFINITY);
    let mut scratch = Scratch::default();
    for _ in 0..ROUNDS {
        let x = TensorView::from_slice(&data, &[ELEMENTS]).unwrap();
        let start = Instant::now();
        let mut outputs: [TensorMut<'_>; 1] = [result.view_mut()];
        session.run_into(vec![RunInput::Read(x)], &mut outputs).unwrap();
        graph = graph.min(start.elapsed().as_nanos() as f64);

        let mut args = [Arg::Tensor(x), Arg::Value(function)];
        let mut outputs = [OutArg::Tensor(result.view_mut())];
        let start = Instant::now();
        for _ in 0..NODES {
            let mut run = Run::new(&mut scratch, 0);
            entry.kernel.run(&mut args, &mut outputs, &mut run).unwrap();
        }
        kernels = kernels.min(start.elapsed().as_nanos() as f64);
    }
    (graph / NODES as f64, kernels / NODES as f64)
}

fn main() {
    let (graph, kernels) = measure();
    if std::env::args().any(|argument| argument == "--json") {
        let row = serde_json::json!({
            "part": "nodes", "nodes": NODES, "ns_per_node": graph, "ns_per_kernel": kernels, "ns_beyond_kernel": graph - kernels,
        });
        println!("{row}");
    } else {
        println!(
            "{graph:.1} ns per node, {kernels:.1} ns of them in the kernel: {:.1} ns beyond it",
            graph - kernels
        );
    }
}
