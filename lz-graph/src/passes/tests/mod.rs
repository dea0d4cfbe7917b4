//! Tests of all passes: snapshots before and after, equal values, and graphs in which a pass must find nothing.

mod attention;
mod layers;
mod models;
mod random;
mod rotary;
mod simple;

use lz_core::{DType, Tensor};

use super::{Options, Report, Tolerance, optimize, verify};
use crate::build::Builder;
use crate::dim::Dim;
use crate::error::GraphError;
use crate::graph::{Graph, NodeId};
use crate::testing::engine;

type Built = Result<NodeId, GraphError>;

/// A graph with one output.
fn graph(make: impl FnOnce(&mut Builder) -> Built) -> Graph {
    let mut build = Builder::new();
    let result = make(&mut build).unwrap();
    build.output("result", result);
    build.finish().unwrap()
}

/// The graph after all passes (except the disabled ones); values are compared.
fn optimized(before: &Graph, disabled: &[&str]) -> (Graph, Report) {
    let engine = engine();
    let mut after = before.clone();
    let disabled = disabled.iter().map(|name| (*name).to_owned()).collect();
    let report = optimize(&mut after, &Options { disabled, engine: Some(&engine) }).unwrap();
    assert!(!report.stopped, "no fixed point:\n{after}");
    if let Err(error) = verify(before, &after, &engine, Tolerance::Rounding) {
        panic!("{error}\nbefore:\n{before}\nafter:\n{after}");
    }
    (after, report)
}

/// Both graphs and what passes did, for snapshots.
fn both(before: &Graph) -> String {
    let (after, report) = optimized(before, &[]);
    let counts: Vec<String> = report.counts().iter().map(|(name, count)| format!("{name} {count}")).collect();
    format!("{before}\n\n{}\n\n{after}", counts.join(", "))
}

/// The operations that are called, in order.
fn calls(graph: &Graph) -> Vec<String> {
    graph.nodes.iter().filter_map(|node| node.call()).map(|call| call.operation.name.to_string()).collect()
}

fn dims(sizes: &[i64]) -> Vec<Dim> {
    sizes.iter().copied().map(Dim::from).collect()
}

fn x(build: &mut Builder, sizes: &[i64]) -> NodeId {
    build.input("x", dims(sizes), DType::F32)
}

/// A constant with different, small elements.
fn weights(build: &mut Builder, sizes: &[i64]) -> NodeId {
    weights_of(build, sizes, DType::F32, 0)
}

fn weights_of(build: &mut Builder, sizes: &[i64], dtype: DType, seed: i64) -> NodeId {
    let mut tensor = Tensor::zeros(sizes, dtype).unwrap();
    let mut view = tensor.view_mut();
    for (position, index) in lz_core::tensor::Indices::new(sizes).enumerate() {
        view.set(&index, ((position as i64 * 37 + seed * 11 + 5) % 23 - 11) as f64 / 16.0);
    }
    build.owned(tensor)
}
