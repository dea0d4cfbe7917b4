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
    ("QLinearMatMul", quantized_matmul),
    ("QuantizeLinear", quantize_linear),
];

/// The smallest and largest value of an integer type.
fn range(op: &Op<'_>, dtype: DType) -> Result<(f64, f64), GraphError> {
    match dtype {
        DType::I8 => Ok((-128.0, 127.0)),
        DType::U8 => Ok((0.0, 255.0)),
        DType::I16 => Ok((-32768.0, 32767.0)),
        DType::U16 => Ok((0.0, 65535.0)),
        other => Err(op.error(format!("quantization to {} is not supported", other.name()))),
    }
}

/// The format of 8-bit floats that `quantize` and `dequantize` have.
fn float_format(dtype: DType) -> Option<&'static str> {
    match dtype {
        DType::F8E4M3 => Some("fp8_e4m3"),
        DType::F8E5M2 => Some("fp8_e5m2"),
        _ => None,
    }
}

/// The formats of codes that `primitive.cast` does not have.
fn code_format(dtype: DType) -> Option<&'static str> {
    if dtype == DType::U16 { Some("uint16") } else { float_format(dtype) }
}

/// Another dtype. 8-bit floats are converted by `quantize` and `dequantize` with a scale of 1, which saturates.
pub fn converted(op: &mut Op<'_>, x: NodeId, to: DType) -> Result<NodeId, GraphError> {
    converted_by(op, x, to, float_format)
}

/// As [`converted`], also for 16-bit codes. Floats must be integers in the range of the codes, because `quantize` rounds and saturates where a
/// cast truncates and wraps around.
fn converted_codes(op: &mut Op<'_>, x: NodeId, to: DType) -> Result<NodeId, GraphError> {
    converted_by(op, x, to, code_format)
}

fn converted_by(
    op: &mut Op<'_>,
    x: NodeId,
    to: DType,
    format_of: fn(DType) -> Option<&'static str>,
) -> Result<NodeId, GraphError> {
    let from = op.build.dtype(x);
    let shape = op.build.shape(x).to_vec();
    let (operation, format) = match (format_of(from), format_of(to)) {
        (Some(format), None) if to.is_float() => ("dequantize", format),
        (None, Some(format)) if from.is_float() => ("quantize", format),
        _ => return op.build.cast(x, to),
    };
    let mut params = vec![("format", format.into()), ("granularity", "tensor".into())];
    if operation == "dequantize" {
        params.push(("output_dtype", to.name().into()));
    }
    let flat = op.build.reshape(x, vec![Dim::from(1), Dim::product(&shape)])?;
    let unit = op.build.scalar(1.0, DType::F32)?;
    let result = op.build.call(operation, &[Some(flat), Some(unit)], &params)?;
    op.build.reshape(result, shape)
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
    if !matches!(dtype, DType::I8 | DType::U8 | DType::I16 | DType::I32) && code_format(dtype).is_none() {
        return Err(op.error(format!("quantized elements of {} are not supported", dtype.name())));
    }
    // The difference is exact in f32, and rounded once.
    let scale = op.build.cast(scale, DType::F32)?;
    let scale = spread(op, scale, x, axis, block)?;
    let mut numbers = converted_codes(op, x, DType::F32)?;
    if let Some(zero) = zero {
        let zero = converted_codes(op, zero, DType::F32)?;
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
    if op.int("precision", 0)? != 0 || !op.flag("saturate", true)? {
        return Err(op.error("a division of another type, or no saturation, is not supported"));
    }
    let to = match (zero, op.int("output_dtype", 0)?) {
        (Some(zero), 0) => op.build.dtype(zero),
        (None, 0) => DType::U8,
        (_, code) => op.dtype_of_code(code)?,
    };
    let x = op.build.cast(x, DType::F32)?;
    let scale = op.build.cast(scale, DType::F32)?;
    let scale = spread(op, scale, x, axis, block)?;
    if float_format(to).is_some() {
        // Zero points of floats are 0.
        let quotient = op.build.binary("div", x, scale)?;
        return one(converted(op, quotient, to)?);
    }
    let zero = match zero {
        None => None,
        Some(zero) => {
            let zero = converted_codes(op, zero, DType::F32)?;
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
    converted_codes(op, limited, to)
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

/// The product is exact in f64: sums of products of 8-bit numbers are far below 2^53.
fn quantized_matmul(op: &mut Op<'_>) -> Outputs {
    let mut factors = [op.x(0)?, op.x(3)?];
    let mut scales = [op.x(1)?, op.x(4)?];
    for (index, (factor, scale)) in factors.iter_mut().zip(&mut scales).enumerate() {
        let zero = op.x(2 + 3 * index)?;
        // One zero point and scale per row of A, or per column of B.
        let column = index == 0 && op.build.rank(zero) == 1 && !op.build.shape(zero)[0].is(1);
        let mut parts = [zero, *scale];
        for part in &mut parts {
            *part = op.build.cast(*part, DType::F64)?;
            if column {
                *part = op.build.unsqueeze(*part, 1)?;
            } else if Dim::product(op.build.shape(*part)).is(1) {
                *part = op.build.reshape(*part, Vec::new())?;
            }
        }
        *factor = op.build.cast(*factor, DType::F64)?;
        *factor = op.build.binary("sub", *factor, parts[0])?;
        *scale = parts[1];
    }
    let (scale, zero) = (op.x(6)?, op.x(7)?);
    let to = op.build.dtype(zero);
    let product = op.build.matmul(factors[0], factors[1])?;
    let product = op.build.binary("mul", product, scales[0])?;
    let product = op.build.binary("mul", product, scales[1])?;
    let (scale, zero) = (op.build.cast(scale, DType::F64)?, op.build.cast(zero, DType::F64)?);
    let scale = op.build.reshape(scale, Vec::new())?;
    let zero = op.build.reshape(zero, Vec::new())?;
    one(quantized(op, product, scale, Some(zero), to)?)
}
