//! Layers of whole models, written out as Transformers does.

use super::layers::{Rms, rms};
use super::*;

/// Sizes of the decoder layer.
const HIDDEN: i64 = 16;
const HEADS: i64 = 4;
const KV_HEADS: i64 = 2;
const HEAD_DIM: i64 = 4;

/// `[batch, length, heads * head_dim]` as `[batch, heads, length, head_dim]`.
fn split(build: &mut Builder, x: NodeId, heads: i64) -> Built {
    let mut shape = build.shape(x).to_vec();
    shape.pop();
    shape.extend([Dim::from(heads), Dim::from(HEAD_DIM)]);
    let x = build.reshape(x, shape)?;
    build.transpose(x, 1, 2)
}

/// Cosines and sines of `inv_freq @ positions`, each frequency twice.
fn angles(build: &mut Builder, length: &Dim, dtype: DType) -> Result<(NodeId, NodeId), GraphError> {
    let positions = build.arange(Dim::from(0), 1, length.clone(), DType::I64)?;
    let positions = build.reshape(positions, vec![Dim::from(1), Dim::from(1), length.clone()])?;
    let positions = build.cast(positions, DType::F32)?;
    let frequencies = weights(build, &[HEAD_DIM / 2]);
    let frequencies = build.reshape(frequencies, dims(&[1, HEAD_DIM / 2, 1]))?;
    let angles = build.matmul(frequencies, positions)?;
    let angles = build.transpose(angles, 1, 2)?;
    let doubled = build.concat(&[angles, angles], 2)?;
    let mut table = |function| -> Built {
        let values = build.unary(function, doubled)?;
        let values = build.binary_scalar("mul", values, 1.0, false)?;
        let values = build.cast(values, dtype)?;
        build.unsqueeze(values, 1)
    };
    Ok((table("cos")?, table("sin")?))
}

fn rotate(build: &mut Builder, x: NodeId, (cos, sin): (NodeId, NodeId)) -> Built {
    let half = Dim::from(HEAD_DIM / 2);
    let low = build.slice(x, 3, Dim::from(0), half.clone(), 1)?;
    let high = build.slice(x, 3, half.clone(), half, 1)?;
    let negated = build.unary("neg", high)?;
    let turned = build.concat(&[negated, low], 3)?;
    let (straight, turned) = (build.binary("mul", x, cos)?, build.binary("mul", turned, sin)?);
    build.binary("add", straight, turned)
}

fn repeat(build: &mut Builder, x: NodeId) -> Built {
    let mut shape = build.shape(x).to_vec();
    let five = build.unsqueeze(x, 2)?;
    let mut expanded = build.shape(five).to_vec();
    expanded[2] = Dim::from(HEADS / KV_HEADS);
    let five = build.expand(five, &expanded)?;
    shape[1] = Dim::from(HEADS);
    build.reshape(five, shape)
}

/// A Llama layer with eager attention.
fn llama(build: &mut Builder, dtype: DType) -> Built {
    let batch = Dim::from(build.graph_mut().symbol("batch", 1, i64::MAX));
    let length = Dim::from(build.graph_mut().symbol("length", 1, i64::MAX));
    let x = build.input("x", vec![batch.clone(), length.clone(), Dim::from(HIDDEN)], dtype);
    let table = angles(build, &length, dtype)?;
    let mut seed = 0;
    let mut linear = |build: &mut Builder, x: NodeId, from: i64, to: i64| -> Built {
        seed += 1;
        let weight = weights_of(build, &[to, from], dtype, seed);
        build.linear(x, weight, None)
    };
    let weight = weights_of(build, &[HIDDEN], dtype, 50);
    let normalized = rms(build, x, weight, Rms::WeightAfterCast)?;
    let q = linear(build, normalized, HIDDEN, HEADS * HEAD_DIM)?;
    let k = linear(build, normalized, HIDDEN, KV_HEADS * HEAD_DIM)?;
    let v = linear(build, normalized, HIDDEN, KV_HEADS * HEAD_DIM)?;
    let (q, k, v) = (split(build, q, HEADS)?, split(build, k, KV_HEADS)?, split(build, v, KV_HEADS)?);
    let (q, k) = (rotate(build, q, table)?, rotate(build, k, table)?);
    let (k, v) = (repeat(build, k)?, repeat(build, v)?);
    let turned = build.transpose(k, 2, 3)?;
    let scores = build.matmul(q, turned)?;
    let scores = build.binary_scalar("mul", scores, 0.5, false)?;
    let visible = super::attention::causal(build, &length, false)?;
    let (zero, least) = (build.scalar(0.0, dtype)?, build.scalar(f64::from(f32::MIN) * 0.99, dtype)?);
    let mask = build.select_where(visible, zero, least)?;
    let mask_shape = vec![Dim::from(1), Dim::from(1), length.clone(), length.clone()];
    let mask = build.reshape(mask, mask_shape)?;
    let scores = build.binary("add", scores, mask)?;
    let scores = build.cast(scores, DType::F32)?;
    let probabilities = build.softmax(scores, 3, false)?;
    let probabilities = build.cast(probabilities, dtype)?;
    let attended = build.matmul(probabilities, v)?;
    let attended = build.transpose(attended, 1, 2)?;
    let attended = build.reshape(attended, vec![batch, length, Dim::from(HEADS * HEAD_DIM)])?;
    let attended = linear(build, attended, HEADS * HEAD_DIM, HIDDEN)?;
    let stream = build.binary("add", x, attended)?;
    let weight = weights_of(build, &[HIDDEN], dtype, 51);
    let normalized = rms(build, stream, weight, Rms::WeightAfterCast)?;
    let gate = linear(build, normalized, HIDDEN, 24)?;
    let sigmoid = build.activation("sigmoid", gate, None)?;
    let gate = build.binary("mul", gate, sigmoid)?;
    let up = linear(build, normalized, HIDDEN, 24)?;
    let product = build.binary("mul", gate, up)?;
    let down = linear(build, product, 24, HIDDEN)?;
    build.binary("add", stream, down)
}

#[test]
fn decoder_layer_is_fused() {
    let (after, _) = optimized(&graph(|build| llama(build, DType::F32)), &[]);
    insta::assert_snapshot!(after);
    let (after, _) = optimized(&graph(|build| llama(build, DType::BF16)), &[]);
    assert!(calls(&after).contains(&"norm.rms.add".to_owned()), "{after}");
    assert!(calls(&after).contains(&"attention.gqa.prefill".to_owned()), "{after}");
}

/// An encoder layer with biases, a padding mask, layer norms that are written out, and GELU.
fn bert(build: &mut Builder) -> Built {
    let batch = Dim::from(build.graph_mut().symbol("batch", 1, i64::MAX));
    let length = Dim::from(build.graph_mut().symbol("length", 1, i64::MAX));
    let x = build.input("x", vec![batch.clone(), length.clone(), Dim::from(HIDDEN)], DType::F32);
    let padding = build.input("padding", vec![batch.clone(), length.clone()], DType::I64);
    let mut seed = 0;
    let mut linear = |build: &mut Builder, x: NodeId, from: i64, to: i64| -> Built {
        seed += 1;
        let weight = weights_of(build, &[to, from], DType::F32, seed);
        let bias = weights_of(build, &[to], DType::F32, seed);
        // `addmm`: a transpose, a product and a sum.
        let turned = build.transpose(weight, 0, 1)?;
        let product = build.matmul(x, turned)?;
        build.binary("add", bias, product)
    };
    let q = linear(build, x, HIDDEN, HIDDEN)?;
    let k = linear(build, x, HIDDEN, HIDDEN)?;
    let v = linear(build, x, HIDDEN, HIDDEN)?;
    let (q, k, v) = (split(build, q, HEADS)?, split(build, k, HEADS)?, split(build, v, HEADS)?);
    let turned = build.transpose(k, 2, 3)?;
    let scores = build.matmul(q, turned)?;
    let scores = build.binary_scalar("div", scores, 2.0, false)?;
    let mask = build.cast(padding, DType::F32)?;
    let mask = build.reshape(mask, vec![batch.clone(), Dim::from(1), Dim::from(1), length.clone()])?;
    let mask = build.binary_scalar("sub", mask, 1.0, true)?;
    let mask = build.binary_scalar("mul", mask, -10_000.0, false)?;
    let scores = build.binary("add", scores, mask)?;
    let probabilities = build.softmax(scores, 3, false)?;
    let attended = build.matmul(probabilities, v)?;
    let attended = build.transpose(attended, 1, 2)?;
    let attended = build.reshape(attended, vec![batch, length, Dim::from(HIDDEN)])?;
    let attended = linear(build, attended, HIDDEN, HIDDEN)?;
    let stream = build.binary("add", attended, x)?;
    let stream = layer_norm(build, stream)?;
    let inner = linear(build, stream, HIDDEN, 24)?;
    let inner = super::simple::gelu(build, inner, true)?;
    let outer = linear(build, inner, 24, HIDDEN)?;
    let stream = build.binary("add", outer, stream)?;
    layer_norm(build, stream)
}

fn layer_norm(build: &mut Builder, x: NodeId) -> Built {
    let mean = build.reduce("mean", x, &[2], true)?;
    let centered = build.binary("sub", x, mean)?;
    let squares = build.binary_scalar("pow", centered, 2.0, false)?;
    let variance = build.reduce("mean", squares, &[2], true)?;
    let sum = build.binary_scalar("add", variance, 1e-5, false)?;
    let root = build.unary("square_root", sum)?;
    let normalized = build.binary("div", centered, root)?;
    let (weight, bias) =
        (weights_of(build, &[HIDDEN], DType::F32, 7), weights_of(build, &[HIDDEN], DType::F32, 8));
    let scaled = build.binary("mul", normalized, weight)?;
    build.binary("add", scaled, bias)
}

#[test]
fn encoder_layer_is_fused() {
    let (after, _) = optimized(&graph(bert), &[]);
    insta::assert_snapshot!(after);
}
