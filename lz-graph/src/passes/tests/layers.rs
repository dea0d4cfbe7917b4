//! Norms, gated blocks, residual sums, joined projections.

use super::*;

/// The spellings of RMS norm.
#[derive(Clone, Copy)]
pub(super) enum Rms {
    /// `weight * (x * rsqrt(mean(x²) + eps))`.
    Plain,
    /// In f32, rounded before the weight (Llama).
    WeightAfterCast,
    /// In f32 with `1 + weight`, rounded at the end (Gemma).
    OffsetBeforeCast,
    /// `x / sqrt(...)`.
    Quotient,
    /// `x / (sqrt(mean(x²)) + eps)`: another function.
    EpsAfterRoot,
}

pub(super) fn rms(build: &mut Builder, x: NodeId, weight: NodeId, form: Rms) -> Built {
    let dtype = build.dtype(x);
    let last = build.rank(x) - 1;
    let wide = build.cast(x, DType::F32)?;
    let squares = build.binary_scalar("pow", wide, 2.0, false)?;
    let mean = build.reduce("mean", squares, &[last], true)?;
    if let Rms::EpsAfterRoot = form {
        let root = build.unary("square_root", mean)?;
        let sum = build.binary_scalar("add", root, 1e-5, false)?;
        let normalized = build.binary("div", wide, sum)?;
        return build.binary("mul", weight, normalized);
    }
    let sum = build.binary_scalar("add", mean, 1e-5, false)?;
    if let Rms::Quotient = form {
        let root = build.unary("square_root", sum)?;
        let normalized = build.binary("div", wide, root)?;
        return build.binary("mul", normalized, weight);
    }
    let inverse = build.unary("rsqrt", sum)?;
    let normalized = build.binary("mul", wide, inverse)?;
    match form {
        Rms::OffsetBeforeCast => {
            let weight = build.cast(weight, DType::F32)?;
            let weight = build.binary_scalar("add", weight, 1.0, true)?;
            let product = build.binary("mul", normalized, weight)?;
            build.cast(product, dtype)
        }
        _ => {
            let rounded = build.cast(normalized, dtype)?;
            build.binary("mul", weight, rounded)
        }
    }
}

fn rms_graph(dtype: DType, form: Rms) -> Graph {
    graph(|build| {
        let rows = Dim::from(build.graph_mut().symbol("rows", 0, i64::MAX));
        let x = build.input("x", vec![Dim::from(2), rows, Dim::from(6)], dtype);
        let weight = build.input("weight", dims(&[6]), dtype);
        rms(build, x, weight, form)
    })
}

#[test]
fn rms_norms_are_found_in_every_spelling() {
    insta::assert_snapshot!(both(&rms_graph(DType::BF16, Rms::WeightAfterCast)));
    for (dtype, form) in [
        (DType::F32, Rms::Plain),
        (DType::F32, Rms::Quotient),
        (DType::F32, Rms::OffsetBeforeCast),
        (DType::BF16, Rms::OffsetBeforeCast),
    ] {
        let (after, _) = optimized(&rms_graph(dtype, form), &[]);
        assert_eq!(calls(&after), ["norm.rms"], "{after}");
        assert_eq!(
            after.to_string().contains("weight_offset=1"),
            matches!(form, Rms::OffsetBeforeCast),
            "{after}"
        );
    }
}

#[test]
fn eps_outside_of_the_root_is_no_rms_norm() {
    let (after, _) = optimized(&rms_graph(DType::F32, Rms::EpsAfterRoot), &[]);
    assert!(!calls(&after).contains(&"norm.rms".to_owned()), "{after}");
}

#[test]
fn a_mean_over_another_dimension_is_no_rms_norm() {
    // The mean over the last dimension of a square matrix, broadcast along the wrong one.
    let before = graph(|build| {
        let a = x(build, &[4, 4]);
        let squares = build.unary("square", a)?;
        let mean = build.reduce("mean", squares, &[1], false)?;
        let sum = build.binary_scalar("add", mean, 1e-5, false)?;
        let inverse = build.unary("rsqrt", sum)?;
        build.binary("mul", a, inverse)
    });
    assert_eq!(optimized(&before, &[]).1.counts(), []);
}

#[test]
fn a_used_root_mean_square_prevents_the_norm() {
    let before = graph(|build| {
        let a = x(build, &[3, 4]);
        let squares = build.unary("square", a)?;
        let mean = build.reduce("mean", squares, &[1], true)?;
        let sum = build.binary_scalar("add", mean, 1e-5, false)?;
        let inverse = build.unary("rsqrt", sum)?;
        build.output("inverse", inverse);
        build.binary("mul", a, inverse)
    });
    assert_eq!(optimized(&before, &[]).1.counts(), []);
}

#[test]
fn layer_norms_that_are_written_out_are_found() {
    let before = graph(|build| {
        let a = x(build, &[2, 3, 6]);
        let mean = build.reduce("mean", a, &[2], true)?;
        let centered = build.binary("sub", a, mean)?;
        let squares = build.binary("mul", centered, centered)?;
        let variance = build.reduce("mean", squares, &[2], true)?;
        let sum = build.binary_scalar("add", variance, 1e-5, false)?;
        let root = build.unary("square_root", sum)?;
        let normalized = build.binary("div", centered, root)?;
        let (weight, bias) =
            (build.input("w", dims(&[6]), DType::F32), build.input("b", dims(&[6]), DType::F32));
        let scaled = build.binary("mul", normalized, weight)?;
        build.binary("add", scaled, bias)
    });
    insta::assert_snapshot!(both(&before));
}

/// A gated feed-forward block.
fn gated(build: &mut Builder, a: NodeId, bias: bool) -> Built {
    let gate = weights_of(build, &[5, 4], DType::F32, 1);
    let up = weights_of(build, &[5, 4], DType::F32, 2);
    let down = weights_of(build, &[4, 5], DType::F32, 3);
    let bias = if bias { Some(weights(build, &[5])) } else { None };
    let gate = build.linear(a, gate, None)?;
    let activated = build.activation("silu", gate, None)?;
    let up = build.linear(a, up, bias)?;
    let product = build.binary("mul", activated, up)?;
    build.linear(product, down, None)
}

#[test]
fn gated_blocks_are_one_call() {
    let before = graph(|build| {
        let a = x(build, &[2, 3, 4]);
        gated(build, a, false)
    });
    let (after, _) = optimized(&before, &[]);
    assert_eq!(calls(&after), ["mlp.fused"], "{after}");
}

#[test]
fn gated_blocks_with_biases_keep_their_layers() {
    let before = graph(|build| {
        let a = x(build, &[2, 30, 4]);
        gated(build, a, true)
    });
    let (after, _) = optimized(&before, &[]);
    assert_eq!(calls(&after), ["mlp.linear", "mlp.linear", "activation.silu_mul", "mlp.linear"], "{after}");
}

/// Two sublayers of a decoder layer with residual sums.
fn decoder_layer(build: &mut Builder) -> Built {
    let rows = Dim::from(build.graph_mut().symbol("rows", 1, i64::MAX));
    let x = build.input("x", vec![rows, Dim::from(4)], DType::F32);
    let mut stream = x;
    for seed in 0..2 {
        let weight = weights_of(build, &[4], DType::F32, seed);
        let normalized = rms(build, stream, weight, Rms::Plain)?;
        let square = weights_of(build, &[4, 4], DType::F32, seed + 5);
        let layer = build.linear(normalized, square, None)?;
        stream = build.binary("add", stream, layer)?;
    }
    let weight = weights_of(build, &[4], DType::F32, 9);
    rms(build, stream, weight, Rms::Plain)
}

#[test]
fn residual_sums_join_the_next_norm() {
    insta::assert_snapshot!(both(&graph(decoder_layer)));
}

#[test]
fn projections_of_few_rows_are_joined() {
    let project = |rows: i64| {
        graph(|build| {
            let a = x(build, &[1, rows, 4]);
            let mut parts = Vec::new();
            for seed in 0..3 {
                let weight = weights_of(build, &[6 - 2 * (seed % 2), 4], DType::F32, seed);
                let bias = weights_of(build, &[6 - 2 * (seed % 2)], DType::F32, seed);
                let layer = build.linear(a, weight, Some(bias))?;
                parts.push(build.unary("exp", layer)?);
            }
            build.concat(&parts, 2)
        })
    };
    insta::assert_snapshot!(both(&project(1)));
    let (after, _) = optimized(&project(64), &[]);
    assert_eq!(calls(&after).iter().filter(|name| *name == "mlp.linear").count(), 3, "{after}");
}

/// The sum of a norm is used by a node that also uses both addends: overwriting one of them would lose it.
#[test]
fn addends_that_are_used_again_are_not_overwritten() {
    let before = graph(|build| {
        let a = x(build, &[3, 4]);
        let (left, right) = (build.unary("exp", a)?, build.unary("tanh", a)?);
        let sum = build.binary("add", left, right)?;
        let weight = weights(build, &[4]);
        let normalized = rms(build, sum, weight, Rms::Plain)?;
        let all = build.concat(&[sum, normalized, left, right], 0)?;
        Ok(all)
    });
    let (after, _) = optimized(&before, &[]);
    assert!(calls(&after).contains(&"norm.rms".to_owned()), "{after}");
    assert!(!calls(&after).contains(&"norm.rms.add".to_owned()), "{after}");
}
