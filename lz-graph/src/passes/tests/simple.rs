//! Views, identities, folding, products, activations, convolutions.

use super::*;
use crate::build::ParamValue;

#[test]
fn views_of_views_are_one_view() {
    let before = graph(|build| {
        let a = x(build, &[2, 3, 4]);
        let flat = build.reshape(a, dims(&[6, 4]))?;
        let flat = build.reshape(flat, dims(&[24]))?;
        let back = build.reshape(flat, dims(&[2, 3, 4]))?;
        let turned = build.permute(back, &[2, 0, 1])?;
        let turned = build.permute(turned, &[1, 2, 0])?;
        let part = build.slice(turned, 1, Dim::from(1), Dim::from(2), 1)?;
        let part = build.slice(part, 1, Dim::from(1), Dim::from(1), 1)?;
        let wide = build.expand(part, &dims(&[2, 3, 4]))?;
        let wide = build.expand(wide, &dims(&[5, 2, 3, 4]))?;
        build.unary("exp", wide)
    });
    insta::assert_snapshot!(both(&before));
}

#[test]
fn slices_of_a_concatenation_are_its_parts() {
    let before = graph(|build| {
        let a = x(build, &[2, 3]);
        let b = build.unary("exp", a)?;
        let joined = build.concat(&[a, b], 1)?;
        let second = build.slice(joined, 1, Dim::from(3), Dim::from(3), 1)?;
        let crossing = build.slice(joined, 1, Dim::from(2), Dim::from(3), 1)?;
        let low = build.slice(second, 1, Dim::from(0), Dim::from(1), 1)?;
        let high = build.slice(second, 1, Dim::from(1), Dim::from(2), 1)?;
        let again = build.concat(&[low, high], 1)?;
        build.binary("add", again, crossing)
    });
    insta::assert_snapshot!(both(&before));
}

#[test]
fn inexact_casts_stay() {
    let before = graph(|build| {
        let a = x(build, &[4]);
        let narrow = build.cast(a, DType::BF16)?;
        build.cast(narrow, DType::F32)
    });
    assert_eq!(calls(&optimized(&before, &[]).0), ["primitive.cast", "primitive.cast"]);
    let before = graph(|build| {
        let a = build.input("x", dims(&[4]), DType::BF16);
        let wide = build.cast(a, DType::F32)?;
        let back = build.cast(wide, DType::BF16)?;
        build.unary("exp", back)
    });
    assert_eq!(calls(&optimized(&before, &[]).0), ["primitive.unary"]);
}

#[test]
fn equal_nodes_are_computed_once() {
    let before = graph(|build| {
        let a = x(build, &[4]);
        let (first, second) = (build.unary("exp", a)?, build.unary("exp", a)?);
        let other = build.unary("tanh", a)?;
        let sum = build.binary("add", first, second)?;
        build.binary("div", sum, other)
    });
    assert_eq!(optimized(&before, &[]).1.counts(), [("common", 1)]);
}

#[test]
fn neutral_numbers_disappear() {
    let before = graph(|build| {
        let a = x(build, &[4]);
        let same = build.binary_scalar("mul", a, 1.0, false)?;
        let same = build.binary_scalar("add", same, 0.0, true)?;
        let same = build.binary_scalar("div", same, 1.0, false)?;
        let reciprocal = build.binary_scalar("div", same, 1.0, true)?;
        build.binary_scalar("sub", reciprocal, 0.0, true)
    });
    let (after, report) = optimized(&before, &[]);
    assert_eq!(report.counts(), [("identities", 3)]);
    assert_eq!(calls(&after), ["primitive.binary_scalar", "primitive.binary_scalar"]);
}

#[test]
fn constants_are_computed_before() {
    let before = graph(|build| {
        let a = x(build, &[2, 3]);
        let w = weights(build, &[3, 2]);
        let w = build.transpose(w, 0, 1)?;
        let w = build.unary("exp", w)?;
        let w = build.binary_scalar("add", w, 1.0, false)?;
        build.binary("mul", a, w)
    });
    insta::assert_snapshot!(both(&before));
}

#[test]
fn large_results_are_not_folded() {
    let before = graph(|build| {
        let a = x(build, &[1024, 1024]);
        let one = build.scalar(2.0, DType::F32)?;
        let wide = build.expand(one, &dims(&[1024, 1024]))?;
        let wide = build.unary("exp", wide)?;
        build.binary("mul", a, wide)
    });
    let engine = engine();
    let mut after = before.clone();
    let report = optimize(&mut after, &Options { disabled: vec![], engine: Some(&engine) }).unwrap();
    assert_eq!(report.counts(), []);
}

#[test]
fn products_absorb_factors_and_biases() {
    let before = graph(|build| {
        let rows = Dim::from(build.graph_mut().symbol("rows", 0, i64::MAX));
        let a = build.input("a", vec![Dim::from(2), rows, Dim::from(4)], DType::F32);
        let b = build.input("b", dims(&[2, 4, 3]), DType::F32);
        let scaled = build.binary_scalar("div", a, 4.0, false)?;
        let product = build.matmul(scaled, b)?;
        let product = build.binary_scalar("mul", product, 3.0, false)?;
        let bias = weights(build, &[3]);
        build.binary("add", bias, product)
    });
    insta::assert_snapshot!(both(&before));
}

#[test]
fn factors_of_shared_products_stay() {
    let before = graph(|build| {
        let a = build.input("a", dims(&[2, 4]), DType::F32);
        let b = build.input("b", dims(&[4, 3]), DType::F32);
        let product = build.matmul(a, b)?;
        let scaled = build.binary_scalar("mul", product, 3.0, false)?;
        build.binary("mul", scaled, product)
    });
    assert_eq!(optimized(&before, &[]).1.counts(), []);
}

#[test]
fn constant_matrices_become_weights() {
    let before = graph(|build| {
        let a = x(build, &[2, 3, 4]);
        let stored = weights(build, &[5, 4]);
        let turned = build.transpose(stored, 0, 1)?;
        let first = build.matmul(a, turned)?;
        let bias = weights(build, &[5]);
        let first = build.binary("add", first, bias)?;
        let first = build.activation("relu", first, None)?;
        // Stored the other way, as Conv1D does.
        let plain = weights(build, &[5, 6]);
        let second = build.matmul(first, plain)?;
        build.activation("gelu_tanh", second, None)
    });
    insta::assert_snapshot!(both(&before));
}

#[test]
fn activations_of_shared_layers_stay() {
    let before = graph(|build| {
        let a = x(build, &[2, 4]);
        let w = weights(build, &[5, 4]);
        let layer = build.linear(a, w, None)?;
        let activated = build.activation("relu", layer, None)?;
        build.binary("sub", activated, layer)
    });
    assert_eq!(calls(&optimized(&before, &[]).0), ["mlp.linear", "primitive.activation", "primitive.binary"]);
}

/// `0.5 x (1 + erf(x / √2))` in the given order of factors.
pub(super) fn gelu(build: &mut Builder, a: NodeId, half_last: bool) -> Built {
    let inner = build.binary_scalar("div", a, std::f64::consts::SQRT_2, false)?;
    let erf = build.unary("erf", inner)?;
    let sum = build.binary_scalar("add", erf, 1.0, true)?;
    if half_last {
        let product = build.binary("mul", a, sum)?;
        return build.binary_scalar("mul", product, 0.5, false);
    }
    let half = build.binary_scalar("mul", a, 0.5, false)?;
    build.binary("mul", sum, half)
}

/// The eight nodes that the tanh form is written in.
fn gelu_tanh(build: &mut Builder, a: NodeId, cubic: f64) -> Built {
    let cube = build.binary_scalar("pow", a, 3.0, false)?;
    let scaled = build.binary_scalar("mul", cube, cubic, false)?;
    let sum = build.binary("add", a, scaled)?;
    let inner = build.binary_scalar("mul", sum, (2.0 / std::f64::consts::PI).sqrt(), false)?;
    let tanh = build.unary("tanh", inner)?;
    let one = build.binary_scalar("add", tanh, 1.0, false)?;
    let half = build.binary_scalar("mul", a, 0.5, false)?;
    build.binary("mul", half, one)
}

#[test]
fn activations_that_are_written_out_are_found() {
    for half_last in [false, true] {
        let before = graph(|build| {
            let a = x(build, &[7]);
            gelu(build, a, half_last)
        });
        let (after, _) = optimized(&before, &[]);
        assert_eq!(calls(&after), ["primitive.activation"], "{after}");
    }
    let before = graph(|build| {
        let a = x(build, &[7]);
        gelu_tanh(build, a, 0.044715)
    });
    insta::assert_snapshot!(both(&before));
    let before = graph(|build| {
        let a = x(build, &[7]);
        let sigmoid = build.activation("sigmoid", a, None)?;
        build.binary("mul", sigmoid, a)
    });
    assert_eq!(calls(&optimized(&before, &[]).0), ["primitive.activation"]);
    let before = graph(|build| {
        let a = x(build, &[7]);
        let steep = build.binary_scalar("mul", a, 1.702, false)?;
        let sigmoid = build.activation("sigmoid", steep, None)?;
        build.binary("mul", a, sigmoid)
    });
    assert_eq!(calls(&optimized(&before, &[]).0), ["activation.silu"]);
}

#[test]
fn other_constants_are_no_gelu() {
    let before = graph(|build| {
        let a = x(build, &[7]);
        gelu_tanh(build, a, 0.045)
    });
    let (after, report) = optimized(&before, &[]);
    assert_eq!(report.counts(), [], "{after}");
}

#[test]
fn used_intermediate_results_prevent_a_fusion() {
    let before = graph(|build| {
        let a = x(build, &[7]);
        let sigmoid = build.activation("sigmoid", a, None)?;
        let product = build.binary("mul", sigmoid, a)?;
        build.binary("sub", product, sigmoid)
    });
    assert_eq!(optimized(&before, &[]).1.counts(), []);
}

#[test]
fn softmax_that_is_written_out_is_found_on_the_last_dimension_only() {
    for axis in [0, 1] {
        let before = graph(|build| {
            let a = x(build, &[3, 4]);
            let most = build.reduce("maximum", a, &[axis], true)?;
            let shifted = build.binary("sub", a, most)?;
            let exp = build.unary("exp", shifted)?;
            let sum = build.reduce("sum", exp, &[axis], true)?;
            build.binary("div", exp, sum)
        });
        let (after, _) = optimized(&before, &[]);
        assert_eq!(calls(&after) == ["primitive.softmax"], axis == 1, "{after}");
    }
}

#[test]
fn convolutions_take_batch_norms() {
    let before = graph(|build| {
        let a = x(build, &[2, 3, 5, 5]);
        let w = weights(build, &[4, 3, 3, 3]);
        let params = [("stride_h", ParamValue::from(2)), ("pad_top", ParamValue::from(1))];
        let conv = build.call("primitive.conv2d", &[Some(a), Some(w), None], &params)?;
        let channel = |build: &mut Builder, seed| {
            let values = weights_of(build, &[4], DType::F32, seed);
            build.reshape(values, dims(&[4, 1, 1]))
        };
        let (mean, scale, shift) = (channel(build, 1)?, channel(build, 2)?, channel(build, 3)?);
        let centered = build.binary("sub", conv, mean)?;
        let scaled = build.binary("mul", centered, scale)?;
        let shifted = build.binary("add", shift, scaled)?;
        build.activation("relu", shifted, None)
    });
    insta::assert_snapshot!(both(&before));
}

/// A block of a residual network; the addend is the input, or another convolution of it.
fn residual_block(build: &mut Builder, downsampled: bool) -> Built {
    let a = x(build, &[1, 3, 4, 4]);
    let (first, second) = (weights(build, &[3, 3, 1, 1]), weights_of(build, &[3, 3, 1, 1], DType::F32, 4));
    let conv = build.call("primitive.conv2d", &[Some(a), Some(first), None], &[])?;
    let shift = weights(build, &[3]);
    let shift = build.reshape(shift, dims(&[3, 1, 1]))?;
    let conv = build.binary("add", conv, shift)?;
    let other = match downsampled {
        true => build.call("primitive.conv2d", &[Some(a), Some(second), None], &[])?,
        false => a,
    };
    let sum = build.binary("add", other, conv)?;
    build.activation("relu", sum, None)
}

#[test]
fn convolutions_take_residuals() {
    insta::assert_snapshot!(both(&graph(|build| residual_block(build, false))));
    let (after, _) = optimized(&graph(|build| residual_block(build, true)), &[]);
    assert_eq!(calls(&after), ["primitive.conv2d", "primitive.conv2d"], "{after}");
}

#[test]
fn a_convolution_that_is_used_again_keeps_its_result() {
    let before = graph(|build| {
        let a = x(build, &[1, 3, 4, 4]);
        let w = weights(build, &[3, 3, 1, 1]);
        let conv = build.call("primitive.conv2d", &[Some(a), Some(w), None], &[])?;
        let sum = build.binary("add", conv, a)?;
        build.binary("mul", sum, conv)
    });
    let (after, _) = optimized(&before, &[]);
    assert_eq!(calls(&after), ["primitive.conv2d", "primitive.binary", "primitive.binary"], "{after}");
}

#[test]
fn a_factor_after_a_residual_stays() {
    let before = graph(|build| {
        let a = x(build, &[1, 3, 4, 4]);
        let w = weights(build, &[3, 3, 1, 1]);
        let conv = build.call("primitive.conv2d", &[Some(a), Some(w), None], &[])?;
        let sum = build.binary("add", conv, a)?;
        let factor = weights(build, &[3]);
        let factor = build.reshape(factor, dims(&[3, 1, 1]))?;
        build.binary("mul", sum, factor)
    });
    let (after, _) = optimized(&before, &[]);
    assert_eq!(calls(&after), ["primitive.conv2d", "primitive.binary"], "{after}");
}

#[test]
fn a_factor_per_column_is_no_batch_norm() {
    let before = graph(|build| {
        let a = x(build, &[1, 3, 4, 4]);
        let w = weights(build, &[4, 3, 1, 1]);
        let conv = build.call("primitive.conv2d", &[Some(a), Some(w), None], &[])?;
        let columns = weights(build, &[4]);
        build.binary("mul", conv, columns)
    });
    assert_eq!(optimized(&before, &[]).1.counts(), []);
}

#[test]
fn unknown_passes_are_refused() {
    let mut one = graph(|build| Ok(x(build, &[1])));
    let options = Options { disabled: vec!["fusion".to_owned()], engine: None };
    let error = optimize(&mut one, &options).unwrap_err().to_string();
    assert!(error.contains("there is no pass `fusion`; expected one of views, "), "{error}");
}

#[test]
fn a_disabled_pass_does_nothing() {
    let before = graph(|build| {
        let a = x(build, &[7]);
        gelu(build, a, false)
    });
    assert_eq!(optimized(&before, &["activations"]).1.counts(), []);
}
