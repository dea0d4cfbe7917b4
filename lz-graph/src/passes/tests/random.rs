//! Random graphs of primitives: passes keep their values.

use proptest::prelude::*;

use super::*;

/// One step: which function, which earlier results, a number.
type Step = (u8, u8, u8, i8);

/// Appends a node that uses earlier ones; all of them have shape `[rows, 4, 4]` or a view of it.
fn step(
    build: &mut Builder,
    known: &mut Vec<NodeId>,
    (kind, first, second, number): Step,
) -> Result<(), GraphError> {
    let a = known[usize::from(first) % known.len()];
    let b = known[usize::from(second) % known.len()];
    let value = f64::from(number) / 4.0;
    let rows = build.shape(known[0])[0].clone();
    let whole = vec![rows.clone(), Dim::from(4), Dim::from(4)];
    let node = match kind % 16 {
        0 => build.binary("add", a, b)?,
        1 => build.binary("mul", a, b)?,
        2 => build.binary_scalar("mul", a, value, false)?,
        3 => build.binary_scalar("add", a, value, true)?,
        4 => build.unary("tanh", a)?,
        5 => build.activation("sigmoid", a, None)?,
        6 => build.transpose(a, 1, 2)?,
        7 => {
            let flat = build.reshape(a, vec![rows, Dim::from(16)])?;
            build.reshape(flat, whole)?
        }
        8 => build.matmul(a, b)?,
        9 => {
            let weight = weights_of(build, &[4, 4], DType::F32, i64::from(number));
            build.matmul(a, weight)?
        }
        10 => build.softmax(a, usize::from(second % 2) + 1, false)?,
        11 => {
            let low = build.slice(a, 2, Dim::from(0), Dim::from(2), 1)?;
            let high = build.slice(b, 2, Dim::from(2), Dim::from(2), 1)?;
            build.concat(&[low, high], 2)?
        }
        12 => {
            let squares = build.unary("square", a)?;
            let mean = build.reduce("mean", squares, &[usize::from(second % 2) + 1], true)?;
            let sum = build.binary_scalar("add", mean, 0.5, false)?;
            let inverse = build.unary("rsqrt", sum)?;
            build.binary("mul", a, inverse)?
        }
        13 => {
            let bias = weights_of(build, &[4], DType::F32, i64::from(number));
            build.binary("add", a, bias)?
        }
        14 => {
            let mean = build.reduce("mean", a, &[2], true)?;
            build.binary("sub", a, mean)?
        }
        _ => build.activation("relu", a, None)?,
    };
    known.push(node);
    Ok(())
}

/// The largest value of any node. Functions of large values amplify roundings, which says nothing about passes.
fn largest(graph: &Graph) -> f64 {
    let inputs = super::super::verify::random_inputs(graph, &[5], 1).unwrap();
    let views: Vec<_> = inputs.iter().map(Tensor::view).collect();
    let mut largest = 0f64;
    let mut observe = |_, view: &lz_core::TensorView<'_>| {
        for index in lz_core::tensor::Indices::new(view.shape()) {
            largest = largest.max(view.at(&index).abs());
        }
    };
    crate::interpret::run_observed(&engine(), graph, &views, &mut observe).unwrap();
    largest
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn passes_keep_values(steps in proptest::collection::vec(any::<Step>(), 1..14), outputs in 1usize..3) {
        let mut build = Builder::new();
        let rows = Dim::from(build.graph_mut().symbol("rows", 1, i64::MAX));
        let x = build.input("x", vec![rows, Dim::from(4), Dim::from(4)], DType::F32);
        let mut known = vec![x];
        for one in steps {
            step(&mut build, &mut known, one).unwrap();
        }
        for (index, node) in known.iter().rev().take(outputs).enumerate() {
            build.output(&format!("result{index}"), *node);
        }
        let before = build.finish().unwrap();
        prop_assume!(largest(&before) < 50.0);
        optimized(&before, &[]);
    }
}
