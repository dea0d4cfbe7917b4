//! Normalization: rows by `norm.layer` and `norm.rms`, images by compositions of them.

use lz_core::DType;

use super::super::op::{Handler, Op, Outputs, one};
use super::reduce::reduction;
use crate::build::Builder;
use crate::dim::Dim;
use crate::error::GraphError;
use crate::graph::NodeId;

pub const OPERATORS: &[(&str, Handler)] = &[
    ("BatchNormalization", batch_normalization),
    ("GroupNormalization", group_normalization),
    ("InstanceNormalization", instance_normalization),
    ("LRN", local_response_normalization),
    ("LayerNormalization", layer_normalization),
    ("LpNormalization", lp_normalization),
    ("MeanVarianceNormalization", mean_variance_normalization),
    ("RMSNormalization", rms_normalization),
    ("SimplifiedLayerNormalization", rms_normalization),
];

pub const MICROSOFT: &[(&str, Handler)] = &[
    ("SimplifiedLayerNormalization", rms_normalization),
    ("SkipLayerNormalization", |op| skip_normalization(op, false)),
    ("SkipSimplifiedLayerNormalization", |op| skip_normalization(op, true)),
];

fn has_kernels(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

/// The dimensions from `axis` on as one.
fn rows(op: &mut Op<'_>, x: NodeId, axis: usize) -> Result<NodeId, GraphError> {
    let shape = op.build.shape(x);
    let mut flat = shape[..axis].to_vec();
    flat.push(Dim::product(&shape[axis..]));
    op.build.reshape(x, flat)
}

/// A weight with one element per feature; `None` if it is broadcast over a row.
fn feature_weight(op: &mut Op<'_>, weight: NodeId, hidden: &Dim) -> Result<Option<NodeId>, GraphError> {
    if Dim::product(op.build.shape(weight)) != *hidden {
        return Ok(None);
    }
    op.build.reshape(weight, vec![hidden.clone()]).map(Some)
}

fn check_stash(op: &mut Op<'_>) -> Result<(), GraphError> {
    // The type of intermediate results. Ours are at least f32.
    match op.int("stash_type", 1)? {
        1 => Ok(()),
        other => Err(op.error(format!("stash_type is {other}, expected 1"))),
    }
}

fn layer_normalization(op: &mut Op<'_>) -> Outputs {
    let (x, weight) = (op.x(0)?, op.x(1)?);
    let bias = op.maybe(2)?;
    let axis = op.axis(-1, x)?;
    let eps = op.float("epsilon", 1e-5)?;
    check_stash(op)?;
    let shape = op.build.shape(x).to_vec();
    if !has_kernels(op.build.dtype(x)) {
        if op.wants(1) || op.wants(2) {
            return Err(op.error("statistics of this dtype are not supported"));
        }
        let axes: Vec<usize> = (axis..shape.len()).collect();
        let normalized = standardized(op.build, x, &axes, eps)?;
        return one(affine(op, normalized, weight, bias)?);
    }
    let flat = rows(op, x, axis)?;
    let hidden = Dim::product(&shape[axis..]);
    let weights = match (feature_weight(op, weight, &hidden)?, bias) {
        (Some(weight), None) => Some((weight, None)),
        (Some(weight), Some(bias)) => feature_weight(op, bias, &hidden)?.map(|bias| (weight, Some(bias))),
        (None, _) => None,
    };
    let stats = op.wants(1) || op.wants(2);
    let params = [("eps", eps.into()), ("return_stats", stats.into())];
    let (inner_weight, inner_bias) = weights.map_or((None, None), |(weight, bias)| (Some(weight), bias));
    let call = op.build.call("norm.layer", &[Some(flat), inner_weight, inner_bias], &params)?;
    let mut result = op.build.reshape(call, shape.clone())?;
    if weights.is_none() {
        result = affine(op, result, weight, bias)?;
    }
    let mut outputs = vec![result.into()];
    if stats {
        let reduced: Vec<Dim> = shape
            .iter()
            .enumerate()
            .map(|(dim, size)| if dim < axis { size.clone() } else { Dim::from(1) })
            .collect();
        for output in [1, 2] {
            let statistic = op.build.projection(call, output)?;
            outputs.push(op.build.reshape(statistic, reduced.clone())?.into());
        }
    }
    Ok(outputs)
}

fn affine(op: &mut Op<'_>, x: NodeId, weight: NodeId, bias: Option<NodeId>) -> Result<NodeId, GraphError> {
    let scaled = op.build.binary("mul", x, weight)?;
    match bias {
        Some(bias) => op.build.binary("add", scaled, bias),
        None => Ok(scaled),
    }
}

/// `(x - mean) / sqrt(variance + eps)` over some dimensions.
fn standardized(build: &mut Builder, x: NodeId, axes: &[usize], eps: f64) -> Result<NodeId, GraphError> {
    let mean = reduction(build, "mean", x, axes, true)?;
    let centered = build.binary("sub", x, mean)?;
    let squares = build.unary("square", centered)?;
    let variance = reduction(build, "mean", squares, axes, true)?;
    let shifted = build.binary_scalar("add", variance, eps, false)?;
    let factor = build.unary("rsqrt", shifted)?;
    build.binary("mul", centered, factor)
}

fn rms_normalization(op: &mut Op<'_>) -> Outputs {
    let (x, weight) = (op.x(0)?, op.x(1)?);
    let axis = op.axis(-1, x)?;
    let eps = op.float("epsilon", 1e-5)?;
    check_stash(op)?;
    one(rms(op, x, weight, axis, eps)?)
}

fn rms(op: &mut Op<'_>, x: NodeId, weight: NodeId, axis: usize, eps: f64) -> Result<NodeId, GraphError> {
    let shape = op.build.shape(x).to_vec();
    if !has_kernels(op.build.dtype(x)) {
        let axes: Vec<usize> = (axis..shape.len()).collect();
        let squares = op.build.unary("square", x)?;
        let mean = reduction(op.build, "mean", squares, &axes, true)?;
        let shifted = op.build.binary_scalar("add", mean, eps, false)?;
        let factor = op.build.unary("rsqrt", shifted)?;
        let normalized = op.build.binary("mul", x, factor)?;
        return op.build.binary("mul", normalized, weight);
    }
    let flat = rows(op, x, axis)?;
    let inner = feature_weight(op, weight, &Dim::product(&shape[axis..]))?;
    let normalized = op.build.call("norm.rms", &[Some(flat), inner], &[("eps", eps.into())])?;
    let normalized = op.build.reshape(normalized, shape)?;
    if inner.is_some() { Ok(normalized) } else { op.build.binary("mul", normalized, weight) }
}

/// The sum of input and residual, normalized; the sum is the fourth output.
fn skip_normalization(op: &mut Op<'_>, simplified: bool) -> Outputs {
    let (x, skip, weight) = (op.x(0)?, op.x(1)?, op.x(2)?);
    let beta = if simplified { None } else { op.maybe(3)? };
    let bias = op.maybe(if simplified { 3 } else { 4 })?;
    let eps = op.float("epsilon", if simplified { 1e-5 } else { 1e-12 })?;
    let mut sum = op.build.binary("add", x, skip)?;
    if let Some(bias) = bias {
        sum = op.build.binary("add", sum, bias)?;
    }
    let axis = op.build.axis(sum, -1)?;
    let result = if simplified {
        rms(op, sum, weight, axis, eps)?
    } else {
        op.build.call("norm.layer", &[Some(sum), Some(weight), beta], &[("eps", eps.into())])?
    };
    if op.wants(1) || op.wants(2) {
        return Err(op.error("statistics are not supported"));
    }
    Ok(vec![result.into(), result.into(), result.into(), sum.into()])
}

/// One value per channel, in the shape that broadcasts to `[batch, channels, ...]`.
fn per_channel(op: &mut Op<'_>, values: NodeId, rank: usize) -> Result<NodeId, GraphError> {
    let mut shape = vec![Dim::product(op.build.shape(values))];
    shape.extend(vec![Dim::from(1); rank.saturating_sub(2)]);
    op.build.reshape(values, shape)
}

/// As one factor and one addend per channel, which are constants in most models.
fn batch_normalization(op: &mut Op<'_>) -> Outputs {
    let (x, scale, bias, mean, variance) = (op.x(0)?, op.x(1)?, op.x(2)?, op.x(3)?, op.x(4)?);
    let eps = op.float("epsilon", 1e-5)?;
    op.attribute("momentum");
    let is_training = op.opset < 7 && !op.flag("is_test", false)?;
    if is_training || op.flag("training_mode", false)? || !op.flag("spatial", true)? {
        return Err(op.error("only inference with statistics per channel is supported"));
    }
    let (dtype, rank) = (op.build.dtype(x), op.build.rank(x));
    let shifted = op.build.binary_scalar("add", variance, eps, false)?;
    let root = op.build.unary("rsqrt", shifted)?;
    let scale = op.build.cast(scale, op.build.dtype(root))?;
    let factor = op.build.binary("mul", scale, root)?;
    let offset = op.build.binary("mul", mean, factor)?;
    let bias = op.build.cast(bias, op.build.dtype(offset))?;
    let addend = op.build.binary("sub", bias, offset)?;
    let (factor, addend) = (op.build.cast(factor, dtype)?, op.build.cast(addend, dtype)?);
    let (factor, addend) = (per_channel(op, factor, rank)?, per_channel(op, addend, rank)?);
    one(affine(op, x, factor, Some(addend))?)
}

/// `[batch, groups, rest]` normalized over `rest`, in the shape of `x`.
fn grouped(op: &mut Op<'_>, x: NodeId, groups: Dim, eps: f64) -> Result<NodeId, GraphError> {
    let shape = op.build.shape(x).to_vec();
    let Some(batch) = shape.first() else { return Err(op.error("the input has no dimensions")) };
    let rest = Dim::product(&shape[1..]).floor_div(&groups);
    let flat = op.build.reshape(x, vec![batch.clone(), groups, rest])?;
    let normalized = if has_kernels(op.build.dtype(x)) {
        op.build.call("norm.layer", &[Some(flat)], &[("eps", eps.into())])?
    } else {
        standardized(op.build, flat, &[2], eps)?
    };
    op.build.reshape(normalized, shape)
}

fn instance_normalization(op: &mut Op<'_>) -> Outputs {
    let (x, scale, bias) = (op.x(0)?, op.x(1)?, op.x(2)?);
    let eps = op.float("epsilon", 1e-5)?;
    let rank = op.build.rank(x);
    let Some(channels) = op.build.shape(x).get(1).cloned() else {
        return Err(op.error("the input has no channels"));
    };
    let normalized = grouped(op, x, channels, eps)?;
    let (scale, bias) = (per_channel(op, scale, rank)?, per_channel(op, bias, rank)?);
    one(affine(op, normalized, scale, Some(bias))?)
}

/// Scale and bias are per group before opset 21, per channel afterwards.
fn group_normalization(op: &mut Op<'_>) -> Outputs {
    let (x, mut scale, mut bias) = (op.x(0)?, op.x(1)?, op.x(2)?);
    let eps = op.float("epsilon", 1e-5)?;
    check_stash(op)?;
    let groups = op.int("num_groups", 0)?;
    if groups < 1 {
        return Err(op.error(format!("num_groups is {groups}, expected at least 1")));
    }
    let rank = op.build.rank(x);
    let Some(channels) = op.build.shape(x).get(1).cloned() else {
        return Err(op.error("the input has no channels"));
    };
    let normalized = grouped(op, x, Dim::from(groups), eps)?;
    if op.opset < 21 {
        let each = channels.floor_div(&Dim::from(groups));
        for values in [&mut scale, &mut bias] {
            let column = op.build.unsqueeze(*values, 1)?;
            let wide = op.build.expand(column, &[Dim::from(groups), each.clone()])?;
            *values = op.build.reshape(wide, vec![channels.clone()])?;
        }
    }
    let (scale, bias) = (per_channel(op, scale, rank)?, per_channel(op, bias, rank)?);
    one(affine(op, normalized, scale, Some(bias))?)
}

fn lp_normalization(op: &mut Op<'_>) -> Outputs {
    let x = op.x(0)?;
    let axis = op.axis(-1, x)?;
    let norm = match op.int("p", 2)? {
        1 => {
            let absolute = op.build.unary("absolute", x)?;
            op.build.reduce("sum", absolute, &[axis], true)?
        }
        2 => {
            let squares = op.build.reduce("sum_squares", x, &[axis], true)?;
            op.build.unary("square_root", squares)?
        }
        other => return Err(op.error(format!("p is {other}, expected 1 or 2"))),
    };
    // A row of zeros stays zero.
    let dtype = op.build.dtype(x);
    let (empty, unit) = (op.build.compare_scalar("eq", norm, 0.0)?, op.build.scalar(1.0, dtype)?);
    let norm = op.build.select_where(empty, unit, norm)?;
    one(op.build.binary("div", x, norm)?)
}

fn mean_variance_normalization(op: &mut Op<'_>) -> Outputs {
    let x = op.x(0)?;
    let axes = op.list("axes")?.unwrap_or_else(|| vec![0, 2, 3]);
    let axes = axes.iter().map(|&axis| op.build.axis(x, axis)).collect::<Result<Vec<_>, _>>()?;
    let mean = op.build.reduce("mean", x, &axes, true)?;
    let centered = op.build.binary("sub", x, mean)?;
    let squares = op.build.unary("square", centered)?;
    let variance = op.build.reduce("mean", squares, &axes, true)?;
    let deviation = op.build.unary("square_root", variance)?;
    let deviation = op.build.binary_scalar("add", deviation, 1e-9, false)?;
    one(op.build.binary("div", centered, deviation)?)
}

/// Sums over windows of channels.
fn local_response_normalization(op: &mut Op<'_>) -> Outputs {
    let x = op.x(0)?;
    let size = op.int("size", 0)?;
    let (alpha, beta, bias) = (op.float("alpha", 1e-4)?, op.float("beta", 0.75)?, op.float("bias", 1.0)?);
    if !(1..=64).contains(&size) || op.build.rank(x) < 2 {
        return Err(op.error(format!("size is {size}, expected 1 to 64 channels")));
    }
    let squares = op.build.unary("square", x)?;
    let mut padding = vec![(Dim::from(0), Dim::from(0)); op.build.rank(x)];
    padding[1] = (Dim::from((size - 1) / 2), Dim::from(size / 2));
    let padded = op.build.pad(squares, &padding, 0.0)?;
    let channels = op.build.shape(x)[1].clone();
    let mut sum = op.build.slice(padded, 1, Dim::from(0), channels.clone(), 1)?;
    for start in 1..size {
        let next = op.build.slice(padded, 1, Dim::from(start), channels.clone(), 1)?;
        sum = op.build.binary("add", sum, next)?;
    }
    let scaled = op.build.binary_scalar("mul", sum, alpha / size as f64, false)?;
    let shifted = op.build.binary_scalar("add", scaled, bias, false)?;
    let divisor = op.build.binary_scalar("pow", shifted, beta, false)?;
    one(op.build.binary("div", x, divisor)?)
}
