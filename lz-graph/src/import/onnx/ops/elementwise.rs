//! Arithmetic, comparison and logic of single elements, with broadcasting. ONNX never promotes: operands have one type.

use lz_core::DType;

use super::super::model::AttributeValue;
use super::super::op::{Handler, Op, Outputs, one};
use super::quantization::converted;
use crate::dim::Dim;
use crate::error::GraphError;
use crate::graph::NodeId;

pub const OPERATORS: &[(&str, Handler)] = &[
    ("Abs", |op| unary(op, "absolute")),
    ("Acos", |op| unary(op, "acos")),
    ("Acosh", |op| unary(op, "acosh")),
    ("Add", |op| binary(op, "add", "add")),
    ("And", |op| binary(op, "", "bitwise_and")),
    ("Asin", |op| unary(op, "asin")),
    ("Asinh", |op| unary(op, "asinh")),
    ("Atan", |op| unary(op, "atan")),
    ("Atanh", |op| unary(op, "atanh")),
    ("BitShift", bit_shift),
    ("BitwiseAnd", |op| binary(op, "", "bitwise_and")),
    ("BitwiseNot", |op| unary(op, "bitwise_not")),
    ("BitwiseOr", |op| binary(op, "", "bitwise_or")),
    ("BitwiseXor", |op| binary(op, "", "bitwise_xor")),
    ("Cast", cast),
    ("CastLike", cast_like),
    ("Ceil", |op| unary(op, "ceil")),
    ("Cos", |op| unary(op, "cos")),
    ("Cosh", |op| unary(op, "cosh")),
    ("Div", |op| binary(op, "div", "trunc_divide")),
    ("Equal", |op| compare(op, "eq")),
    ("Erf", |op| unary(op, "erf")),
    ("Exp", |op| unary(op, "exp")),
    ("Floor", |op| unary(op, "floor")),
    ("Greater", |op| compare(op, "gt")),
    ("GreaterOrEqual", |op| compare(op, "ge")),
    ("IsInf", is_inf),
    ("IsNaN", is_nan),
    ("Less", |op| compare(op, "lt")),
    ("LessOrEqual", |op| compare(op, "le")),
    ("Log", |op| unary(op, "log")),
    ("Max", |op| variadic(op, "maximum")),
    ("Mean", mean),
    ("Min", |op| variadic(op, "minimum")),
    ("Mod", modulo),
    ("Mul", |op| binary(op, "mul", "mul")),
    ("Neg", |op| unary(op, "neg")),
    ("Not", |op| unary(op, "logical_not")),
    ("Or", |op| binary(op, "", "bitwise_or")),
    ("Pow", pow),
    ("Reciprocal", |op| unary(op, "reciprocal")),
    ("Round", |op| unary(op, "round")),
    ("Sign", |op| unary(op, "sign")),
    ("Sin", |op| unary(op, "sin")),
    ("Sinh", |op| unary(op, "sinh")),
    ("Sqrt", |op| unary(op, "square_root")),
    ("Sub", |op| binary(op, "sub", "sub")),
    ("Sum", |op| variadic(op, "add")),
    ("Tan", |op| unary(op, "tan")),
    ("Tanh", |op| unary(op, "tanh")),
    ("Where", select),
    ("Xor", |op| binary(op, "", "bitwise_xor")),
];

fn unary(op: &mut Op<'_>, function: &str) -> Outputs {
    let x = op.x(0)?;
    one(op.build.unary(function, x)?)
}

/// Two operands of one type.
fn operands(op: &mut Op<'_>) -> Result<(NodeId, NodeId), GraphError> {
    let (a, mut b) = (op.x(0)?, op.x(1)?);
    if op.opset < 7 {
        b = aligned(op, a, b)?;
    }
    let (left, right) = (op.build.dtype(a), op.build.dtype(b));
    if left != right {
        return Err(op.error(format!("operands of {} and {}, expected one type", left.name(), right.name())));
    }
    Ok((a, b))
}

/// Before opset 7, `axis` is the dimension of `a` that the first dimension of `b` stands for.
fn aligned(op: &mut Op<'_>, a: NodeId, b: NodeId) -> Result<NodeId, GraphError> {
    let broadcasts = op.flag("broadcast", false)?;
    let (rank, own) = (op.build.rank(a), op.build.rank(b));
    let Some(axis) = op.attribute("axis").and_then(AttributeValue::as_int) else { return Ok(b) };
    let axis = op.build.axis(a, axis)?;
    if !broadcasts || axis + own > rank {
        return Err(op.error(format!("{own} dimensions cannot be broadcast from dimension {axis} of {rank}")));
    }
    let mut shape = op.build.shape(b).to_vec();
    shape.resize(rank - axis, Dim::from(1));
    op.build.reshape(b, shape)
}

/// A function that has another name for integers; an empty name is no function of floats.
fn binary(op: &mut Op<'_>, float: &str, int: &str) -> Outputs {
    let (a, b) = operands(op)?;
    let function = if op.build.dtype(a).is_float() { float } else { int };
    if function.is_empty() {
        let dtype = op.build.dtype(a).name();
        return Err(op.error(format!("operands of {dtype}, expected integers or bools")));
    }
    one(op.build.binary(function, a, b)?)
}

fn compare(op: &mut Op<'_>, function: &str) -> Outputs {
    let (a, b) = operands(op)?;
    one(op.build.compare(function, a, b)?)
}

fn joined(op: &mut Op<'_>, function: &str) -> Result<NodeId, GraphError> {
    let mut result = op.x(0)?;
    for index in 1..op.count() {
        let next = op.x(index)?;
        if op.build.dtype(next) != op.build.dtype(result) {
            return Err(op.error("operands of different types"));
        }
        result = op.build.binary(function, result, next)?;
    }
    Ok(result)
}

fn variadic(op: &mut Op<'_>, function: &str) -> Outputs {
    one(joined(op, function)?)
}

fn mean(op: &mut Op<'_>) -> Outputs {
    let sum = joined(op, "add")?;
    let count = op.count() as f64;
    one(op.build.binary_scalar("div", sum, count, false)?)
}

fn bit_shift(op: &mut Op<'_>) -> Outputs {
    let function = match op.text("direction", "")? {
        "LEFT" => "shift_left",
        "RIGHT" => "shift_right",
        other => return Err(op.error(format!("direction is `{other}`, expected LEFT or RIGHT"))),
    };
    binary(op, "", function)
}

fn modulo(op: &mut Op<'_>) -> Outputs {
    let function = if op.flag("fmod", false)? { "fmod" } else { "mod" };
    binary(op, function, function)
}

/// The result has the type of the base; the exponent may have another one.
fn pow(op: &mut Op<'_>) -> Outputs {
    let base = op.x(0)?;
    let mut exponent = op.x(1)?;
    if op.opset < 7 {
        exponent = aligned(op, base, exponent)?;
    }
    let (to, of) = (op.build.dtype(base), op.build.dtype(exponent));
    let common = if of.is_float() && !to.is_float() { of } else { to };
    let (base, exponent) = (op.build.cast(base, common)?, op.build.cast(exponent, common)?);
    let power = op.build.binary("pow", base, exponent)?;
    one(op.build.cast(power, to)?)
}

fn select(op: &mut Op<'_>) -> Outputs {
    let (condition, a, b) = (op.x(0)?, op.x(1)?, op.x(2)?);
    one(op.build.select_where(condition, a, b)?)
}

fn is_nan(op: &mut Op<'_>) -> Outputs {
    let x = op.x(0)?;
    one(op.build.call("primitive.test", &[Some(x)], &[("function", "is_nan".into())])?)
}

fn is_inf(op: &mut Op<'_>) -> Outputs {
    let x = op.x(0)?;
    let result = match (op.flag("detect_positive", true)?, op.flag("detect_negative", true)?) {
        (true, true) => op.build.call("primitive.test", &[Some(x)], &[("function", "is_inf".into())])?,
        (true, false) => op.build.compare_scalar("eq", x, f64::INFINITY)?,
        (false, true) => op.build.compare_scalar("eq", x, f64::NEG_INFINITY)?,
        (false, false) => {
            let shape = op.build.shape(x).to_vec();
            op.build.full(&shape, 0.0, DType::Bool)?
        }
    };
    one(result)
}

fn cast(op: &mut Op<'_>) -> Outputs {
    let Some(to) = op.dtype_attribute("to")? else { return Err(op.error("the attribute `to` is missing")) };
    convert(op, to)
}

fn cast_like(op: &mut Op<'_>) -> Outputs {
    let like = op.x(1)?;
    let to = op.build.dtype(like);
    convert(op, to)
}

fn convert(op: &mut Op<'_>, to: DType) -> Outputs {
    let x = op.x(0)?;
    // The rounding of powers of two, which no conversion supports.
    op.attribute("round_mode");
    if !op.flag("saturate", true)? {
        return Err(op.error("conversions without saturation are not supported"));
    }
    one(converted(op, x, to)?)
}
