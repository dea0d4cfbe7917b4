//! Compares a graph before and after passes: both run with the same random inputs.

use lz_core::{DType, Tensor, TensorView};
use lz_engine::Engine;

use super::Tolerance;
use crate::error::GraphError;
use crate::graph::Graph;
use crate::{interpret, sizes};

/// Small sizes of symbols, one set per attempt: symbols that must be equal, and symbols that differ.
const ATTEMPTS: [[i64; 2]; 3] = [[3, 0], [2, 1], [5, 0]];

/// Runs both graphs with small random inputs and compares their outputs. Fails with every difference; a graph whose conditions on sizes
/// no attempt satisfies fails as well, because nothing was compared.
pub fn verify(
    before: &Graph,
    after: &Graph,
    engine: &Engine,
    tolerance: Tolerance,
) -> Result<(), GraphError> {
    let mut compared = false;
    let mut last = None;
    for (seed, [base, step]) in ATTEMPTS.iter().enumerate() {
        let values: Vec<i64> = before
            .symbols
            .iter()
            .enumerate()
            .map(|(index, symbol)| (base + step * index as i64).clamp(symbol.min, symbol.max))
            .collect();
        let inputs = match random_inputs(before, &values, seed as u64) {
            Ok(inputs) => inputs,
            Err(error) => {
                last = Some(error);
                continue;
            }
        };
        let views: Vec<TensorView<'_>> = inputs.iter().map(Tensor::view).collect();
        let expected = match interpret::run(engine, before, &views) {
            Ok(expected) => expected,
            Err(error) => {
                last = Some(error);
                continue;
            }
        };
        compared = true;
        let found = interpret::run(engine, after, &views)?;
        let findings = differences(before, &expected, &found, tolerance);
        if !findings.is_empty() {
            return Err(GraphError::Invalid { stage: "verification of passes", findings });
        }
    }
    match last {
        Some(error) if !compared => Err(error),
        _ => Ok(()),
    }
}

/// Inputs with small values: floats from -1 to 1, integers 0 and 1 (which are valid indices of anything that is not empty).
pub(super) fn random_inputs(graph: &Graph, values: &[i64], seed: u64) -> Result<Vec<Tensor>, GraphError> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(0x1234_5678_9ABC_DEF1);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut inputs = Vec::with_capacity(graph.inputs.len());
    for input in &graph.inputs {
        let node = graph.node(input.node);
        let shape = sizes::shape(&node.shape, values)?;
        let mut tensor = Tensor::zeros(&shape, node.dtype)
            .map_err(|reason| GraphError::input(&input.name, reason.to_string()))?;
        let is_float = matches!(node.dtype, DType::F64 | DType::F32 | DType::F16 | DType::BF16);
        let mut view = tensor.view_mut();
        for index in lz_core::tensor::Indices::new(&shape) {
            let random = next() >> 11;
            if is_float {
                view.set(&index, random as f64 / (1u64 << 52) as f64 - 1.0);
            } else {
                view.set_int(&index, (random & 1) as i64);
            }
        }
        inputs.push(tensor);
    }
    Ok(inputs)
}

fn differences(graph: &Graph, expected: &[Tensor], found: &[Tensor], tolerance: Tolerance) -> Vec<String> {
    let mut findings = Vec::new();
    for ((expected, found), output) in expected.iter().zip(found).zip(&graph.outputs) {
        if expected.shape() != found.shape() || expected.dtype() != found.dtype() {
            findings.push(format!("output `{}` has another shape or dtype", output.name));
            continue;
        }
        let allowed = match (tolerance, expected.dtype()) {
            (Tolerance::Exact, _) => 0.0,
            (_, DType::F64) => 1e-6,
            (_, DType::F32) => 1e-4,
            (_, DType::F16) => 1e-2,
            (_, DType::BF16) => 6e-2,
            _ => 0.0,
        };
        let (a, b) = (expected.view(), found.view());
        // Roundings of sums are relative to the largest element.
        let largest = lz_core::tensor::Indices::new(a.shape())
            .map(|index| a.at(&index).abs())
            .filter(|value| value.is_finite())
            .fold(1.0, f64::max);
        let differs = |x: f64, y: f64| match (x.is_nan(), y.is_nan()) {
            (true, true) => false,
            // Equal infinities have no difference that could be compared.
            (false, false) => x != y && (x - y).abs() > allowed * largest,
            _ => true,
        };
        let first = lz_core::tensor::Indices::new(a.shape()).find(|index| differs(a.at(index), b.at(index)));
        if let Some(index) = first {
            let (x, y) = (a.at(&index), b.at(&index));
            findings.push(format!("output `{}` at {:?} is {y}, expected {x}", output.name, &index[..]));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::Builder;

    #[test]
    fn equal_infinities_do_not_differ_and_others_do() {
        let mut builder = Builder::new();
        let input = builder.input("x", vec![2.into()], DType::F32);
        builder.output("y", input);
        let graph = builder.finish().unwrap();
        let tensor = |values: [f32; 2]| vec![Tensor::from_slice(&values, &[2]).unwrap()];
        let found = |a, b| differences(&graph, &tensor(a), &tensor(b), Tolerance::Rounding).len();
        let infinity = f32::INFINITY;
        assert_eq!(found([infinity, 1.0], [infinity, 1.0]), 0);
        assert_eq!(found([-infinity, f32::NAN], [-infinity, f32::NAN]), 0);
        assert_eq!(found([infinity, 1.0], [-infinity, 1.0]), 1);
        assert_eq!(found([infinity, 1.0], [3.0, 1.0]), 1);
        assert_eq!(found([1.0, 1.0], [1.0, f32::NAN]), 1);
    }
}
