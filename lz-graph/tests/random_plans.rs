//! Random graphs with native kernels: interpreted and compiled, with and without passes, with one thread and with several, at several
//! sizes, compared with the references; and an independent check of every plan's memory.

use std::collections::HashMap;

use lz_core::tensor::Indices;
use lz_core::{DType, Tensor, TensorView};
use lz_cpu::pool;
use lz_engine::Engine;
use lz_graph::build::Builder;
use lz_graph::passes::{Options, optimize};
use lz_graph::plan::{Grouping, Location, Plan, Source, StepArg, grouped, plan};
use lz_graph::{Dim, Graph, GraphError, NodeId, RunInput, Session, interpret};
use proptest::prelude::*;

const FEATURES: i64 = 64;
const HEADS: i64 = 4;

fn reference_engine() -> Engine {
    let engine = Engine::new();
    engine.register(lz_ops::reference_kernels::kernels()).unwrap();
    engine.register(lz_primitives::reference_kernels()).unwrap();
    engine
}

fn native_engine() -> Engine {
    let engine = reference_engine();
    engine.register(lz_cpu::kernels()).unwrap();
    engine.register(lz_cpu::primitive_kernels()).unwrap();
    engine
}

fn values(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|index| ((index * 37 + seed * 11 + 5) % 101) as f32 / 101.0 - 0.5).collect()
}

fn weight(build: &mut Builder, shape: &[i64], seed: usize) -> NodeId {
    let elements = shape.iter().product::<i64>() as usize;
    let data: Vec<f32> = values(elements, seed).iter().map(|value| value / 4.0).collect();
    build.owned(Tensor::from_slice(&data, shape).unwrap())
}

/// One step: which function, and which earlier results.
type Step = (u8, u8, u8);

/// Appends a node of shape `[rows, FEATURES]` that uses earlier ones.
fn step(build: &mut Builder, known: &[NodeId], (kind, first, second): Step) -> Result<NodeId, GraphError> {
    let a = known[usize::from(first) % known.len()];
    let b = known[usize::from(second) % known.len()];
    let seed = usize::from(second);
    let rows = build.shape(known[0])[0].clone();
    let whole = vec![rows.clone(), Dim::from(FEATURES)];
    let square = [FEATURES, FEATURES];
    match kind % 13 {
        0 => build.binary("add", a, b),
        1 => build.binary("maximum", a, b),
        2 => build.unary("tanh", a),
        // Constant weights, which kernels pack.
        3 => {
            let (weight, bias) = (weight(build, &square, seed), weight(build, &[FEATURES], seed));
            let layer = build.linear(a, weight, Some(bias))?;
            build.activation("relu", layer, None)
        }
        4 => {
            let weight = weight(build, &square, seed);
            build.matmul(a, weight)
        }
        // A gated block.
        5 => {
            let (gate, up) = (weight(build, &[96, FEATURES], seed), weight(build, &[96, FEATURES], seed + 1));
            let down = weight(build, &[FEATURES, 96], seed + 2);
            let gate = build.linear(a, gate, None)?;
            let gate = build.activation("silu", gate, None)?;
            let up = build.linear(a, up, None)?;
            let product = build.binary("mul", gate, up)?;
            build.linear(product, down, None)
        }
        6 => build.softmax(a, 1, false),
        // The halves exchanged.
        7 => {
            let low = build.slice(a, 1, Dim::from(0), Dim::from(FEATURES / 2), 1)?;
            let high = build.slice(b, 1, Dim::from(FEATURES / 2), Dim::from(FEATURES / 2), 1)?;
            build.concat(&[high, low], 1)
        }
        // Reversed rows of features.
        8 => build.slice(a, 1, Dim::from(FEATURES - 1), Dim::from(FEATURES), -1),
        // Heads exchanged with rows and back, through a copy.
        9 => {
            let heads = vec![rows.clone(), Dim::from(HEADS), Dim::from(FEATURES / HEADS)];
            let split = build.reshape(a, heads)?;
            let turned = build.transpose(split, 0, 1)?;
            let flat = build.reshape(turned, vec![rows.times(&Dim::from(FEATURES))])?;
            build.reshape(flat, whole)
        }
        // A norm written out.
        10 => {
            let squares = build.unary("square", a)?;
            let mean = build.reduce("mean", squares, &[1], true)?;
            let sum = build.binary_scalar("add", mean, 1e-3, false)?;
            let inverse = build.unary("rsqrt", sum)?;
            let normal = build.binary("mul", a, inverse)?;
            let weight = weight(build, &[FEATURES], seed);
            build.binary("mul", normal, weight)
        }
        // Attention of the rows, written out.
        11 => {
            let turned = build.transpose(b, 0, 1)?;
            let scores = build.matmul(a, turned)?;
            let scores = build.binary_scalar("mul", scores, 0.125, false)?;
            let weights = build.softmax(scores, 1, false)?;
            build.matmul(weights, b)
        }
        // A residual.
        _ => {
            let weight = weight(build, &square, seed);
            let layer = build.linear(a, weight, None)?;
            build.binary("add", layer, b)
        }
    }
}

fn random_graph(steps: &[Step], outputs: usize) -> Graph {
    let mut build = Builder::new();
    let rows = Dim::from(build.graph_mut().symbol("rows", 0, 128));
    let shape = vec![rows, Dim::from(FEATURES)];
    let mut known = vec![build.input("x", shape.clone(), DType::F32), build.input("y", shape, DType::F32)];
    for one in steps {
        let node = step(&mut build, &known, *one).unwrap();
        known.push(node);
    }
    for (index, node) in known.iter().rev().take(outputs).enumerate() {
        build.output(&format!("result{index}"), *node);
    }
    build.finish().unwrap()
}

/// Runs a plan on the names of buffers instead of numbers: every byte that a step reads must have been written last for the same buffer.
/// It uses neither lifetimes nor how buffers were placed.
fn check_memory(plan: &Plan) -> Result<(), String> {
    let mut owners: Vec<Option<usize>> = vec![None; plan.placement.bytes];
    let bytes_of = |location: &Location, buffer: usize| {
        let layout = location.view.layout;
        let size = layout.dtype.size();
        let base = plan.placement.offsets[buffer] as i64;
        let strides = layout.strides.to_vec();
        let elements: Vec<_> = Indices::new(&layout.shape).collect();
        let starts = elements.into_iter().map(move |index| {
            let offset: i64 = index.iter().zip(&strides).map(|(index, stride)| index * stride).sum();
            base + (location.view.offset + offset) * size as i64
        });
        starts
            .flat_map(move |start| (start..start + size as i64).map(|byte| byte as usize))
            .collect::<Vec<_>>()
    };
    let waves: Vec<usize> = match plan.waves.as_slice() {
        [] => (1..=plan.steps.len()).collect(),
        waves => waves.to_vec(),
    };
    let mut start = 0;
    for end in waves {
        // All steps of a wave may read before any of them writes, and the other way round.
        for (number, step) in plan.steps.iter().enumerate().take(end).skip(start) {
            for arg in &step.args {
                let (StepArg::Read(location) | StepArg::Write(location)) = arg else { continue };
                let Source::Arena(buffer) = location.source else { continue };
                for byte in bytes_of(location, buffer) {
                    if owners.get(byte).copied().flatten() != Some(buffer) {
                        let found = owners.get(byte);
                        return Err(format!(
                            "step {number} reads byte {byte} of buffer {buffer}, which belongs to {found:?}"
                        ));
                    }
                }
            }
        }
        // Per byte the step of this wave that writes it.
        let mut written: HashMap<usize, usize> = HashMap::new();
        for (number, step) in plan.steps.iter().enumerate().take(end).skip(start) {
            let changed = step.args.iter().filter_map(|arg| match arg {
                StepArg::Write(location) => Some(location),
                _ => None,
            });
            for location in step.outputs.iter().flatten().chain(changed) {
                let Source::Arena(buffer) = location.source else { continue };
                for byte in bytes_of(location, buffer) {
                    let Some(owner) = owners.get_mut(byte) else {
                        return Err(format!("step {number} writes byte {byte} outside the arena"));
                    };
                    *owner = Some(buffer);
                    if let Some(other) = written.insert(byte, number) {
                        return Err(format!("steps {other} and {number} write byte {byte}"));
                    }
                }
            }
        }
        // An output must not lie over an input of the same wave.
        for (number, step) in plan.steps.iter().enumerate().take(end).skip(start) {
            for arg in &step.args {
                let StepArg::Read(location) = arg else { continue };
                let Source::Arena(buffer) = location.source else { continue };
                let overwritten = bytes_of(location, buffer).into_iter().find_map(|byte| written.get(&byte));
                if let Some(writer) = overwritten {
                    return Err(format!("step {writer} overwrites an input of step {number}"));
                }
            }
        }
        start = end;
    }
    if start == plan.steps.len() { Ok(()) } else { Err("waves do not cover the steps".to_owned()) }
}

fn run(session: &Session, x: TensorView<'_>, y: TensorView<'_>) -> Vec<Tensor> {
    session.run(vec![RunInput::Read(x), RunInput::Read(y)]).unwrap()
}

fn bytes(results: &[Tensor]) -> Vec<&[u8]> {
    results.iter().map(Tensor::bytes).collect()
}

fn close(found: &[Tensor], expected: &[Tensor]) -> Result<(), TestCaseError> {
    for (found, expected) in found.iter().zip(expected) {
        prop_assert_eq!(found.shape(), expected.shape());
        for index in Indices::new(found.shape()) {
            let (found, expected) = (found.view().at(&index), expected.view().at(&index));
            prop_assert!((found - expected).abs() <= 2e-4 * (1.0 + expected.abs()), "{} {}", found, expected);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn every_execution_gives_the_same_values(
        steps in proptest::collection::vec(any::<Step>(), 1..12),
        outputs in 1usize..4,
        lengths in proptest::collection::vec(0usize..40, 1..3),
    ) {
        let (reference, native) = (reference_engine(), native_engine());
        let graph = random_graph(&steps, outputs);
        let mut optimized = graph.clone();
        optimize(&mut optimized, &Options { engine: Some(&native), ..Options::default() }).unwrap();
        let session = |graph: &Graph| Session::new(native.clone(), graph.clone()).grouped(Grouping::Always);
        let sessions = [session(&graph), session(&optimized)];
        for rows in lengths {
            let (x, y) = (values(rows * FEATURES as usize, 1), values(rows * FEATURES as usize, 2));
            let shape = [rows as i64, FEATURES];
            let x = TensorView::from_slice(&x, &shape).unwrap();
            let y = TensorView::from_slice(&y, &shape).unwrap();
            let expected = interpret::run(&reference, &graph, &[x, y]).unwrap();
            for session in &sessions {
                let interpreted = interpret::run(&native, session.graph(), &[x, y]).unwrap();
                close(&interpreted, &expected)?;
                let one = pool::with_threads(1, || run(session, x, y));
                close(&one, &expected)?;
                // More threads and another run change no bit.
                let several = pool::with_threads(3, || run(session, x, y));
                prop_assert_eq!(bytes(&one), bytes(&several));
                let plan = plan(&native, session.graph(), &[rows as i64], &[64, 64]).unwrap();
                prop_assert_eq!(check_memory(&plan), Ok(()));
                let grouped = waves(&native, session.graph(), rows as i64);
                prop_assert_eq!(check_memory(&grouped), Ok(()));
                prop_assert_eq!(grouped.steps.len(), plan.steps.len());
            }
        }
    }
}

fn waves(engine: &Engine, graph: &Graph, rows: i64) -> Plan {
    grouped(plan(engine, graph, &[rows], &[64, 64]).unwrap(), Grouping::Always)
}

#[test]
fn checker_finds_steps_that_must_not_run_at_the_same_time() {
    let graph = random_graph(&[(2, 0, 0), (2, 1, 0), (2, 2, 0), (0, 3, 4)], 1);
    let mut plan = waves(&native_engine(), &graph, 5);
    assert_eq!((check_memory(&plan), plan.waves.as_slice()), (Ok(()), &[2, 3, 4][..]));
    plan.waves = vec![4];
    assert!(check_memory(&plan).unwrap_err().contains("belongs to"));
    // The first two steps write to the same memory.
    plan.waves = vec![2, 3, 4];
    plan.placement.offsets.fill(0);
    assert!(check_memory(&plan).unwrap_err().contains("write byte"));
}

#[test]
fn checker_finds_a_buffer_that_was_overwritten() {
    let graph = random_graph(&[(2, 0, 0), (2, 1, 0), (0, 2, 3)], 1);
    let mut plan = plan(&native_engine(), &graph, &[5], &[64, 64]).unwrap();
    assert_eq!(check_memory(&plan), Ok(()));
    plan.placement.offsets.fill(0);
    assert!(check_memory(&plan).unwrap_err().contains("belongs to"));
}

/// Whether this processor has the instructions of a kernel that packs weights.
fn is_vectorized() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma");
    // NEON is part of every aarch64.
    #[cfg(not(target_arch = "x86_64"))]
    cfg!(target_arch = "aarch64")
}

#[test]
fn weights_are_packed_once_for_all_sizes() {
    let mut graph = random_graph(&[(3, 0, 0), (5, 2, 0)], 1);
    let native = native_engine();
    optimize(&mut graph, &Options { engine: Some(&native), ..Options::default() }).unwrap();
    let session = Session::new(native, graph);
    let data = values(40 * FEATURES as usize, 1);
    let mut counts = Vec::new();
    for rows in [1i64, 12, 33] {
        let x = TensorView::from_slice(&data[..(rows * FEATURES) as usize], &[rows, FEATURES]).unwrap();
        run(&session, x, x);
        counts.push(session.prepared().count());
    }
    // One linear layer and the three weights of a gated block.
    if is_vectorized() {
        assert_eq!(counts, [4, 4, 4]);
    }
}
