//! Quantization with given or computed scales, as arithmetic of f32.

use lz_core::DType;

use super::super::op::{Handler, Op, Outputs, one};
use super::reduce::reduction;
use crate::dim::Dim;
use crate::error::GraphError;
use crate::graph::NodeId;

pub const OPERATORS: &[(&str, Handler)] = &[
    ("DequantizeLinear", dequantize_linear),
    ("DynamicQuantizeLinear", dynamic_quantize_linear),
    ("QuantizeLinear", quantize_linear),
];

/// The smallest and largest value of an integer type.
fn range(op: &Op<'_>, dtype: DType) -> Result<(f64, f64), GraphError> {
    match dtype {
        DType::I8 => Ok((-128.0, 127.0)),
        DType::U8 => Ok((0.0, 255.0)),
        DType::I16 => Ok((-32768.0, 32767.0)),
        other => Err(op.error(format!("quantization to {} is not supported", other.name()))),
    }
}

/// Scales or zero points in a shape that broadcasts to `x`: one for all, one per index of `axis`, or one per block.
fn spread(op: &mut Op<'_>, values: NodeId, x: NodeId, axis: i64, block: i64) -> Result<NodeId, GraphError> {
    let rank = op.build.rank(x);
    if Dim::product(op.build.shape(values)).is(1) && block == 0 {
        return op.build.reshape(values, Vec::new());
    }
    let axis = op.build.axis_of_rank(axis, rank)?;
    if block == 0 {
        let mut shape = vec![Dim::from(1); rank];
        shape[axis] = op.build.shape(x)[axis].clone();
        return op.build.reshape(values, shape);
    }
    if block < 0 || op.build.rank(values) != rank {
        return Err(
            op.error(format!("block_size is {block}, with {} dimensions of scales", op.build.rank(values)))
        );
    }
    let mut wide = op.build.shape(values).to_vec();
    let mut flat = wide.clone();
    let size = op.build.shape(x)[axis].clone();
    wide.insert(axis + 1, Dim::from(block));
    flat[axis] = flat[axis].times(&Dim::from(block));
    let column = op.build.unsqueeze(values, axis + 1)?;
    let repeated = op.build.expand(column, &wide)?;
    let all = op.build.reshape(repeated, flat)?;
    op.build.slice(all, axis, Dim::from(0), size, 1)
}

fn dequantize_linear(op: &mut Op<'_>) -> Outputs {
    let (x, scale) = (op.x(0)?, op.x(1)?);
    let zero = op.maybe(2)?;
    let (axis, block) = (op.int("axis", 1)?, op.int("block_size", 0)?);
    let to = match op.int("output_dtype", 0)? {
        0 => op.build.dtype(scale),
        code => op.dtype_of_code(code)?,
    };
    let dtype = op.build.dtype(x);
    if !matches!(dtype, DType::I8 | DType::U8 | DType::I16 | DType::I32) {
        return Err(op.error(format!("quantized elements of {} are not supported", dtype.name())));
    }
    // The difference is exact in f32, and rounded once.
    let scale = op.build.cast(scale, DType::F32)?;
    let scale = spread(op, scale, x, axis, block)?;
    let mut numbers = op.build.cast(x, DType::F32)?;
    if let Some(zero) = zero {
        let zero = op.build.cast(zero, DType::F32)?;
        let zero = spread(op, zero, x, axis, block)?;
        numbers = op.build.binary("sub", numbers, zero)?;
    }
    let result = op.build.binary("mul", numbers, scale)?;
    one(op.build.cast(result, to)?)
}

fn quantize_linear(op: &mut Op<'_>) -> Outputs {
    let (x, scale) = (op.x(0)?, op.x(1)?);
    let zero = op.maybe(2)?;
    let (axis, block) = (op.int("axis", 1)?, op.int("block_size", 0)?);
    // Concerns 8-bit floats only, which are refused.
    op.attribute("saturate");
    if op.int("precision", 0)? != 0 {
        return Err(op.error("a division of another type is not supported"));
    }
    let to = match (zero, op.int("output_dtype", 0)?) {
        (Some(zero), 0) => op.build.dtype(zero),
        (None, 0) => DType::U8,
        (_, code) => op.dtype_of_code(code)?,
    };
    let x = op.build.cast(x, DType::F32)?;
    let scale = op.build.cast(scale, DType::F32)?;
    let scale = spread(op, scale, x, axis, block)?;
    let zero = match zero {
        None => None,
        Some(zero) => {
            let zero = op.build.cast(zero, DType::F32)?;
            Some(spread(op, zero, x, axis, block)?)
        }
    };
    one(quantized(op, x, scale, zero, to)?)
}

/// `saturate(round(x / scale) + zero)`.
fn quantized(
    op: &mut Op<'_>,
    x: NodeId,
    scale: NodeId,
    zero: Option<NodeId>,
    to: DType,
) -> Result<NodeId, GraphError> {
    let (low, high) = range(op, to)?;
    let quotient = op.build.binary("div", x, scale)?;
    let mut rounded = op.build.unary("round", quotient)?;
    if let Some(zero) = zero {
        rounded = op.build.binary("add", rounded, zero)?;
    }
    let limited = op.build.activation("clamp", rounded, Some((low, high)))?;
    op.build.cast(limited, to)
}

/// The scale covers 0 and all elements.
fn dynamic_quantize_linear(op: &mut Op<'_>) -> Outputs {
    let x = op.x(0)?;
    let axes: Vec<usize> = (0..op.build.rank(x)).collect();
    let build = &mut *op.build;
    let (low, high) =
        (reduction(build, "minimum", x, &axes, false)?, reduction(build, "maximum", x, &axes, false)?);
    let low = build.binary_scalar("minimum", low, 0.0, false)?;
    let high = build.binary_scalar("maximum", high, 0.0, false)?;
    let span = build.binary("sub", high, low)?;
    let scale = build.binary_scalar("div", span, 255.0, false)?;
    let quotient = build.binary("div", low, scale)?;
    let negated = build.unary("neg", quotient)?;
    let limited = build.activation("clamp", negated, Some((0.0, 255.0)))?;
    let zero = build.unary("round", limited)?;
    let y = quantized(op, x, scale, Some(zero), DType::U8)?;
    let zero = op.build.cast(zero, DType::U8)?;
    Ok(vec![y.into(), scale.into(), zero.into()])
}
