//! Activations, and softmax along a dimension.

use lz_core::DType;

use super::super::op::{Handler, Op, Outputs, one};
use crate::dim::Dim;
use crate::error::GraphError;
use crate::graph::NodeId;

pub const OPERATORS: &[(&str, Handler)] = &[
    ("Celu", |op| with_constants(op, "celu", &[("alpha", 1.0)])),
    ("Clip", clip),
    ("Elu", |op| with_constants(op, "elu", &[("alpha", 1.0)])),
    ("Gelu", gelu),
    ("HardSigmoid", |op| with_constants(op, "hardsigmoid", &[("alpha", 0.2), ("beta", 0.5)])),
    ("HardSwish", |op| plain(op, "hardswish")),
    ("Hardmax", hardmax),
    ("LeakyRelu", |op| with_constants(op, "leaky_relu", &[("alpha", 0.01)])),
    ("LogSoftmax", |op| softmax(op, true)),
    ("Mish", |op| plain(op, "mish")),
    ("PRelu", p_relu),
    ("Relu", relu),
    ("Selu", selu),
    ("Shrink", shrink),
    ("Sigmoid", |op| plain(op, "sigmoid")),
    ("Softmax", |op| softmax(op, false)),
    ("Softplus", softplus),
    ("Softsign", |op| plain(op, "softsign")),
    ("Swish", |op| swish(op, 1.0)),
    ("ThresholdedRelu", thresholded_relu),
];

pub const MICROSOFT: &[(&str, Handler)] =
    &[("FastGelu", fast_gelu), ("Gelu", |op| plain(op, "gelu")), ("QuickGelu", |op| swish(op, 1.702))];

fn plain(op: &mut Op<'_>, function: &str) -> Outputs {
    let x = op.x(0)?;
    one(op.build.activation(function, x, None)?)
}

/// An activation with one or two constants from attributes; the second one defaults to 1.
fn with_constants(op: &mut Op<'_>, function: &str, names: &[(&str, f64)]) -> Outputs {
    let x = op.x(0)?;
    let mut constants = [1.0; 2];
    for (slot, (name, default)) in constants.iter_mut().zip(names) {
        *slot = op.float(name, *default)?;
    }
    one(op.build.activation(function, x, Some((constants[0], constants[1])))?)
}

fn relu(op: &mut Op<'_>) -> Outputs {
    let x = op.x(0)?;
    if op.build.dtype(x).is_float() {
        return one(op.build.activation("relu", x, None)?);
    }
    one(op.build.binary_scalar("maximum", x, 0.0, false)?)
}

/// The ONNX definition has no threshold above which the function is the identity.
fn softplus(op: &mut Op<'_>) -> Outputs {
    let x = op.x(0)?;
    one(op.build.activation("softplus", x, Some((1.0, 1e30)))?)
}

fn gelu(op: &mut Op<'_>) -> Outputs {
    match op.text("approximate", "none")? {
        "none" => plain(op, "gelu"),
        "tanh" => plain(op, "gelu_tanh"),
        other => Err(op.error(format!("approximate is `{other}`, expected none or tanh"))),
    }
}

fn fast_gelu(op: &mut Op<'_>) -> Outputs {
    let mut x = op.x(0)?;
    if let Some(bias) = op.maybe(1)? {
        x = op.build.binary("add", x, bias)?;
    }
    one(op.build.activation("gelu_tanh", x, None)?)
}

/// `x sigmoid(alpha x)`.
fn swish(op: &mut Op<'_>, default: f64) -> Outputs {
    let alpha = op.float("alpha", default)?;
    let x = op.x(0)?;
    if alpha == 1.0 {
        return one(op.build.activation("silu", x, None)?);
    }
    if matches!(op.build.dtype(x), DType::F32 | DType::F16 | DType::BF16) {
        return one(op.build.call("activation.silu", &[Some(x)], &[("alpha", alpha.into())])?);
    }
    let scaled = op.build.binary_scalar("mul", x, alpha, false)?;
    let gate = op.build.activation("sigmoid", scaled, None)?;
    one(op.build.binary("mul", x, gate)?)
}

/// `gamma x` for x > 0, else `gamma alpha (exp(x) - 1)`: `elu` with both constants.
fn selu(op: &mut Op<'_>) -> Outputs {
    let x = op.x(0)?;
    let alpha = op.float("alpha", 1.6732631921768188)?;
    let gamma = op.float("gamma", 1.0507010221481323)?;
    one(op.build.activation("elu", x, Some((alpha, gamma)))?)
}

fn p_relu(op: &mut Op<'_>) -> Outputs {
    let (x, mut slope) = (op.x(0)?, op.x(1)?);
    // Before opset 7 a slope with one dimension is per channel.
    if op.opset < 7 && op.build.rank(slope) == 1 && op.build.rank(x) > 1 {
        let mut shape = op.build.shape(slope).to_vec();
        shape.resize(op.build.rank(x) - 1, Dim::from(1));
        slope = op.build.reshape(slope, shape)?;
    }
    let scaled = op.build.binary("mul", x, slope)?;
    let negative = op.build.compare_scalar("lt", x, 0.0)?;
    one(op.build.select_where(negative, scaled, x)?)
}

fn thresholded_relu(op: &mut Op<'_>) -> Outputs {
    let x = op.x(0)?;
    let alpha = op.float("alpha", 1.0)?;
    let dtype = op.build.dtype(x);
    let (above, zero) = (op.build.compare_scalar("gt", x, alpha)?, op.build.scalar(0.0, dtype)?);
    one(op.build.select_where(above, x, zero)?)
}

fn shrink(op: &mut Op<'_>) -> Outputs {
    let x = op.x(0)?;
    let (bias, limit) = (op.float("bias", 0.0)?, op.float("lambd", 0.5)?);
    let dtype = op.build.dtype(x);
    let zero = op.build.scalar(0.0, dtype)?;
    let (below, above) =
        (op.build.compare_scalar("lt", x, -limit)?, op.build.compare_scalar("gt", x, limit)?);
    let (raised, lowered) =
        (op.build.binary_scalar("add", x, bias, false)?, op.build.binary_scalar("sub", x, bias, false)?);
    let rest = op.build.select_where(above, lowered, zero)?;
    one(op.build.select_where(below, raised, rest)?)
}

/// Bounds are attributes before opset 11, inputs afterwards; each may be absent.
fn clip(op: &mut Op<'_>) -> Outputs {
    let x = op.x(0)?;
    let dtype = op.build.dtype(x);
    let mut result = x;
    if op.opset < 11 {
        for (name, function) in [("min", "maximum"), ("max", "minimum")] {
            if let Some(bound) = op.maybe_float(name)? {
                result = op.build.binary_scalar(function, result, bound, false)?;
            }
        }
        return one(result);
    }
    let (low, high) = (op.scalar(1), op.scalar(2));
    if let (Some(low), Some(high)) = (low, high)
        && matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
    {
        return one(op.build.activation("clamp", x, Some((low, high)))?);
    }
    for (index, function) in [(1, "maximum"), (2, "minimum")] {
        if let Some(bound) = op.maybe(index)? {
            result = op.build.binary(function, result, bound)?;
        }
    }
    one(result)
}

/// Before opset 13 all dimensions from `axis` on are one.
fn softmax(op: &mut Op<'_>, log: bool) -> Outputs {
    let x = op.x(0)?;
    if op.opset >= 13 {
        let axis = op.axis(-1, x)?;
        return one(op.build.softmax(x, axis, log)?);
    }
    let shape = op.build.shape(x).to_vec();
    let matrix = flattened(op, x)?;
    let result = op.build.softmax(matrix, 1, log)?;
    one(op.build.reshape(result, shape)?)
}

/// As a matrix: the dimensions before `axis` (by default 1), and the others.
fn flattened(op: &mut Op<'_>, x: NodeId) -> Result<NodeId, GraphError> {
    let axis = op.axis(1, x)?;
    let shape = op.build.shape(x);
    let matrix = vec![Dim::product(&shape[..axis]), Dim::product(&shape[axis..])];
    op.build.reshape(x, matrix)
}

/// 1 at the first largest element along a dimension, else 0.
fn hardmax(op: &mut Op<'_>) -> Outputs {
    let x = op.x(0)?;
    let shape = op.build.shape(x).to_vec();
    let (rows, axis) = if op.opset >= 13 { (x, op.axis(-1, x)?) } else { (flattened(op, x)?, 1) };
    let dtype = op.build.dtype(x);
    let largest = op.build.arg_reduce("argmax", rows, axis, true, false)?;
    let size = op.build.shape(rows)[axis].clone();
    let positions = op.build.arange(Dim::from(0), 1, size.clone(), DType::I64)?;
    let mut column = vec![Dim::from(1); op.build.rank(rows)];
    column[axis] = size;
    let positions = op.build.reshape(positions, column)?;
    let hot = op.build.compare("eq", positions, largest)?;
    let hot = op.build.cast(hot, dtype)?;
    one(op.build.reshape(hot, shape)?)
}
