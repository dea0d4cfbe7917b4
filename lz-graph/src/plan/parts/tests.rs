use std::sync::Arc;

use lz_core::{DType, Tensor, TensorView};
use lz_engine::Engine;
use lz_engine::evidence::{Evidence, EvidenceQuery, KernelEvidence, Measured};

use crate::build::{Builder, ParamValue};
use crate::compiled::Options;
use crate::dim::Dim;
use crate::graph::{Graph, NodeId};
use crate::plan::{Parts, Plan};
use crate::session::Session;
use crate::sizes::InputShape;
use crate::testing::engine;
use crate::{CompiledModel, RunInput};

/// Times of all kernels by operation, in nanoseconds.
struct Times(Vec<(&'static str, f64)>, Vec<(String, String)>);

impl Evidence for Times {
    fn findings(&self, question: &EvidenceQuery<'_>, visit: &mut dyn FnMut(&KernelEvidence<'_>)) {
        let Some((_, time)) = self.0.iter().find(|(name, _)| *name == &*question.operation.name) else {
            return;
        };
        for (kernel, version) in &self.1 {
            let measured = Measured { median_ns: *time, samples: 40, age_seconds: 0, confidence: 0.95 };
            visit(&KernelEvidence { kernel, version, capabilities_hash: "", measured });
        }
    }
}

fn measured(times: &[(&'static str, f64)]) -> Engine {
    let engine = engine();
    let kernels = engine
        .registry()
        .kernels()
        .map(|entry| (entry.spec.id.clone(), entry.spec.version.clone()))
        .collect();
    engine.set_evidence(Some(Arc::new(Times(times.to_vec(), kernels))));
    engine
}

fn weight(build: &mut Builder, shape: &[i64], seed: f32) -> NodeId {
    let elements = shape.iter().product::<i64>();
    let data: Vec<f32> = (0..elements).map(|index| (index as f32 * 0.37 + seed).sin()).collect();
    build.owned(Tensor::from_slice(&data, shape).unwrap())
}

/// One call of a fused operation; `x` is [rows, 6].
fn graph(operation: &str, weights: &[&[i64]], params: &[(&str, ParamValue<'_>)]) -> Graph {
    let mut build = Builder::new();
    let rows = Dim::from(build.graph_mut().symbol("rows", 0, 64));
    let x = build.input("x", vec![rows, Dim::from(6)], DType::F32);
    let mut inputs = vec![Some(x)];
    for (index, shape) in weights.iter().enumerate() {
        inputs.push(Some(weight(&mut build, shape, index as f32)));
    }
    let y = build.call(operation, &inputs, params).unwrap();
    build.output("y", y);
    build.finish().unwrap()
}

fn gated() -> Graph {
    let silu = ("activation", ParamValue::from("silu"));
    graph("mlp.fused", &[&[10, 6], &[10, 6], &[3, 10]], &[silu])
}

fn image() -> Graph {
    let mut build = Builder::new();
    let x = build.input("x", [1, 2, 5, 5].map(Dim::from).to_vec(), DType::F32);
    let kernel = weight(&mut build, &[2, 2, 3, 3], 0.2);
    let bias = weight(&mut build, &[2], 0.5);
    let [top, left, bottom, right] =
        ["pad_top", "pad_left", "pad_bottom", "pad_right"].map(|name| (name, ParamValue::from(1i64)));
    let params = [top, left, bottom, right, ("activation", ParamValue::from("relu"))];
    let y = build.call("primitive.conv2d", &[Some(x), Some(kernel), Some(bias), Some(x)], &params).unwrap();
    build.output("y", y);
    build.finish().unwrap()
}

fn compiled(engine: &Engine, graph: Graph) -> CompiledModel {
    CompiledModel::new(engine, graph, &Options { optimize: false, ..Options::default() }).unwrap()
}

fn operations(plan: &Plan) -> Vec<&str> {
    plan.steps.iter().map(|step| &*step.operation.name).collect()
}

fn run(session: &Session, shape: &[i64]) -> Vec<f32> {
    let data: Vec<f32> =
        (0..shape.iter().product::<i64>()).map(|index| (index as f32 * 0.71).cos()).collect();
    let result = session.run(vec![RunInput::Read(TensorView::from_slice(&data, shape).unwrap())]).unwrap();
    result[0].view().as_slice::<f32>().unwrap().to_vec()
}

const SLOW: [(&str, f64); 4] = [
    ("mlp.fused", 90_000.0),
    ("mlp.linear", 20_000.0),
    ("primitive.binary", 5_000.0),
    ("primitive.activation", 1_000.0),
];

#[test]
fn measured_parts_replace_a_slower_fused_call() {
    let engine = measured(&SLOW);
    let model = compiled(&engine, gated());
    let shapes = [InputShape { shape: vec![4, 6], dtype: DType::F32 }];
    let plan = model.session().plan_for(&shapes).unwrap();
    assert_eq!(operations(&plan), ["mlp.linear", "mlp.linear", "primitive.binary", "mlp.linear"]);
    let rejected = &plan.steps[3].rejected[0];
    assert_eq!(
        (rejected.what, rejected.cost_ns, rejected.chosen_ns, rejected.measured),
        ("one fused call", 90e3, 65e3, true)
    );
    let text = model.explain(&shapes).unwrap();
    assert!(
        text.contains(
            "; rejected: one fused call (reference.mlp.fused), 90.0 µs instead of 65.0 µs (measured)"
        ),
        "{text}"
    );
}

#[test]
fn a_fused_call_that_is_faster_than_its_parts_stays() {
    let engine = measured(&[("mlp.fused", 60_000.0), SLOW[1], SLOW[2], SLOW[3]]);
    let model = compiled(&engine, gated());
    let shapes = [InputShape { shape: vec![4, 6], dtype: DType::F32 }];
    let plan = model.session().plan_for(&shapes).unwrap();
    assert_eq!((operations(&plan), plan.lifetimes.len()), (vec!["mlp.fused"], 0));
    let text = model.explain(&shapes).unwrap();
    assert!(text.contains("; rejected: its parts (reference.mlp.linear + "), "{text}");
    assert!(text.contains(", 65.0 µs instead of 60.0 µs (measured)"), "{text}");
}

#[test]
fn without_all_measurements_nothing_is_split() {
    for (missing, _) in &SLOW[..3] {
        let times: Vec<_> = SLOW.into_iter().filter(|(name, _)| name != missing).collect();
        let model = compiled(&measured(&times), gated());
        let plan = model.session().plan_for(&[InputShape { shape: vec![4, 6], dtype: DType::F32 }]).unwrap();
        assert_eq!(operations(&plan), ["mlp.fused"], "without a time of {missing}");
        assert!(plan.steps[0].rejected.is_empty());
    }
}

#[test]
fn a_locked_operation_is_not_split() {
    let engine = measured(&SLOW);
    engine.lock("mlp.fused", "reference.mlp.fused").unwrap();
    let model = compiled(&engine, gated());
    let plan = model.session().plan_for(&[InputShape { shape: vec![4, 6], dtype: DType::F32 }]).unwrap();
    assert_eq!(operations(&plan), ["mlp.fused"]);
}

/// Every fused operation with parts gives the same values split, for sizes with and without rows.
#[test]
fn parts_compute_what_the_fused_call_does() {
    let linear = |activation: &str| {
        graph("mlp.linear", &[&[3, 6], &[3]], &[("activation", ParamValue::from(activation))])
    };
    let product = |operation: &str, params: &[(&str, ParamValue<'_>)]| {
        let mut build = Builder::new();
        let rows = Dim::from(build.graph_mut().symbol("rows", 0, 64));
        let x = build.input("x", vec![rows, Dim::from(6)], DType::F32);
        let up = build.unary("exp", x).unwrap();
        let y = build.call(operation, &[Some(x), Some(up)], params).unwrap();
        build.output("y", y);
        build.finish().unwrap()
    };
    let cases: Vec<(Graph, usize)> = vec![
        (gated(), 4),
        (linear("relu"), 2),
        (linear("silu"), 2),
        (linear("gelu"), 2),
        (linear("gelu_tanh"), 2),
        (linear("none"), 1),
        (product("activation.silu_mul", &[]), 3),
        (product("activation.gelu_mul", &[("approximate", ParamValue::from("tanh"))]), 3),
        (image(), 3),
    ];
    for (graph, steps) in cases {
        let text = graph.to_string();
        let fused = Session::new(engine(), graph.clone()).split(Parts::Never);
        let split = Session::new(engine(), graph.clone()).split(Parts::Always);
        for rows in [0, 1, 5] {
            let shape = if graph.symbols.is_empty() { vec![1, 2, 5, 5] } else { vec![rows, 6] };
            let (expected, found) = (run(&fused, &shape), run(&split, &shape));
            assert_eq!(expected.len(), found.len());
            for (a, b) in expected.iter().zip(&found) {
                assert!((a - b).abs() <= 1e-5 * a.abs().max(1.0), "{a} {b}: {text}");
            }
            let empty = rows == 0 && !graph.symbols.is_empty();
            let plan = split.plan_for(&[InputShape { shape, dtype: DType::F32 }]).unwrap();
            assert_eq!(plan.steps.len(), if empty { 0 } else { steps }, "{text}: {:?}", operations(&plan));
        }
    }
}
