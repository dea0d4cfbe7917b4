//! The functions of the schemas on single numbers: floats in f64, integers in i64.

use lz_core::DType;

use crate::functions::{
    ActivationFunction, BinaryFunction, BinaryIntFunction, CompareFunction, UnaryFunction, UnaryIntFunction,
};

/// `primitive.unary`.
#[inline]
pub fn unary(function: UnaryFunction, x: f64) -> f64 {
    match function {
        UnaryFunction::Neg => -x,
        UnaryFunction::Abs => x.abs(),
        UnaryFunction::Sign => f64::from(i8::from(x > 0.0) - i8::from(x < 0.0)),
        UnaryFunction::Exp => x.exp(),
        UnaryFunction::Exp2 => x.exp2(),
        UnaryFunction::Expm1 => x.exp_m1(),
        UnaryFunction::Log => x.ln(),
        UnaryFunction::Log2 => x.log2(),
        UnaryFunction::Log10 => x.log10(),
        UnaryFunction::Log1p => x.ln_1p(),
        UnaryFunction::Sqrt => x.sqrt(),
        UnaryFunction::Rsqrt => 1.0 / x.sqrt(),
        UnaryFunction::Reciprocal => 1.0 / x,
        UnaryFunction::Square => x * x,
        UnaryFunction::Sin => x.sin(),
        UnaryFunction::Cos => x.cos(),
        UnaryFunction::Tan => x.tan(),
        UnaryFunction::Asin => x.asin(),
        UnaryFunction::Acos => x.acos(),
        UnaryFunction::Atan => x.atan(),
        UnaryFunction::Sinh => x.sinh(),
        UnaryFunction::Cosh => x.cosh(),
        UnaryFunction::Tanh => x.tanh(),
        UnaryFunction::Asinh => libm::asinh(x),
        UnaryFunction::Acosh => libm::acosh(x),
        UnaryFunction::Atanh => libm::atanh(x),
        UnaryFunction::Erf => libm::erf(x),
        UnaryFunction::Floor => x.floor(),
        UnaryFunction::Ceil => x.ceil(),
        UnaryFunction::Round => x.round_ties_even(),
        UnaryFunction::Trunc => x.trunc(),
    }
}

/// `primitive.activation`.
pub fn activation(function: ActivationFunction, alpha: f64, beta: f64, x: f64) -> f64 {
    match function {
        ActivationFunction::Relu => maximum(x, 0.0),
        ActivationFunction::Sigmoid => sigmoid(x),
        ActivationFunction::Silu => at_minus_infinity_zero(x, sigmoid(x)),
        ActivationFunction::Gelu => {
            at_minus_infinity_zero(x, 0.5 * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2))
        }
        ActivationFunction::GeluTanh => {
            let y = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            at_minus_infinity_zero(x, sigmoid(2.0 * y))
        }
        ActivationFunction::Softplus => {
            if alpha * x > beta {
                x
            } else {
                softplus(alpha * x) / alpha
            }
        }
        ActivationFunction::Mish => at_minus_infinity_zero(x, softplus(x).tanh()),
        ActivationFunction::Hardsigmoid => hardsigmoid(alpha, beta, x),
        ActivationFunction::Hardswish => at_minus_infinity_zero(x, hardsigmoid(alpha, beta, x)),
        ActivationFunction::Elu => beta * if x > 0.0 { x } else { alpha * x.exp_m1() },
        ActivationFunction::Celu => {
            if x > 0.0 {
                x + minimum(0.0, alpha * (x / alpha).exp_m1())
            } else {
                minimum(0.0, alpha * (x / alpha).exp_m1())
            }
        }
        ActivationFunction::Selu => {
            1.050_700_987_355_480_5 * if x > 0.0 { x } else { 1.673_263_242_354_377_2 * x.exp_m1() }
        }
        ActivationFunction::LeakyRelu => {
            if x > 0.0 {
                x
            } else {
                alpha * x
            }
        }
        ActivationFunction::Clamp => minimum(maximum(x, alpha), beta),
        ActivationFunction::LogSigmoid => -softplus(-x),
        ActivationFunction::Softsign => {
            if x.is_infinite() {
                x.signum()
            } else {
                x / (1.0 + x.abs())
            }
        }
    }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `log(1 + exp(x))` without overflow.
fn softplus(x: f64) -> f64 {
    if x.is_nan() { x } else { x.max(0.0) + (-x.abs()).exp().ln_1p() }
}

fn hardsigmoid(alpha: f64, beta: f64, x: f64) -> f64 {
    minimum(maximum(alpha * x + beta, 0.0), 1.0)
}

/// `x * factor` where the factor vanishes faster than x grows.
fn at_minus_infinity_zero(x: f64, factor: f64) -> f64 {
    if x.is_infinite() && factor == 0.0 { 0.0 } else { x * factor }
}

/// The smaller number; NaN if either is.
#[inline]
pub fn minimum(a: f64, b: f64) -> f64 {
    if a < b || a.is_nan() { a } else { b }
}

/// The larger number; NaN if either is.
#[inline]
pub fn maximum(a: f64, b: f64) -> f64 {
    if a > b || a.is_nan() { a } else { b }
}

/// `primitive.binary`.
#[inline]
pub fn binary(function: BinaryFunction, a: f64, b: f64) -> f64 {
    match function {
        BinaryFunction::Add => a + b,
        BinaryFunction::Sub => a - b,
        BinaryFunction::Mul => a * b,
        BinaryFunction::Div => a / b,
        BinaryFunction::Pow => a.powf(b),
        BinaryFunction::Minimum => minimum(a, b),
        BinaryFunction::Maximum => maximum(a, b),
        BinaryFunction::Mod => modulo(a, b),
        BinaryFunction::Fmod => a % b,
        BinaryFunction::FloorDivide => floor_divide(a, b),
        BinaryFunction::TruncDivide => (a / b).trunc(),
        BinaryFunction::Atan2 => a.atan2(b),
    }
}

fn modulo(a: f64, b: f64) -> f64 {
    let rest = a % b;
    if rest != 0.0 && (b < 0.0) != (rest < 0.0) { rest + b } else { rest }
}

/// The floor of the exact quotient: the quotient of a multiple of `b` needs no rounding up to the next integer.
fn floor_divide(a: f64, b: f64) -> f64 {
    if b == 0.0 {
        return a / b;
    }
    let rest = a % b;
    let mut quotient = (a - rest) / b;
    if rest != 0.0 && (b < 0.0) != (rest < 0.0) {
        quotient -= 1.0;
    }
    if quotient == 0.0 {
        return 0f64.copysign(a / b);
    }
    let floor = quotient.floor();
    if quotient - floor > 0.5 { floor + 1.0 } else { floor }
}

/// The low bits of an integer, as a dtype stores them; whether it differs from 0 for bool.
#[inline(always)]
pub fn wrap(dtype: DType, value: i64) -> i64 {
    match dtype {
        DType::I32 => i64::from(value as i32),
        DType::I16 => i64::from(value as i16),
        DType::I8 => i64::from(value as i8),
        DType::U8 => i64::from(value as u8),
        DType::Bool => i64::from(value != 0),
        _ => value,
    }
}

/// A float as an integer dtype, as `primitive.cast` defines it.
#[inline]
pub fn float_to_int(dtype: DType, value: f64) -> i64 {
    match dtype {
        DType::Bool => i64::from(value != 0.0),
        DType::I64 => {
            let fits = value > -9_223_372_036_854_775_809.0 && value < 9_223_372_036_854_775_808.0;
            if fits { value as i64 } else { i64::MIN }
        }
        _ => {
            let fits = value > -2_147_483_649.0 && value < 2_147_483_648.0;
            wrap(dtype, i64::from(if fits { value as i32 } else { i32::MIN }))
        }
    }
}

/// `primitive.unary_int`, before the result is wrapped.
#[inline]
pub fn unary_int(function: UnaryIntFunction, dtype: DType, x: i64) -> i64 {
    match function {
        UnaryIntFunction::Neg => x.wrapping_neg(),
        UnaryIntFunction::Abs => x.wrapping_abs(),
        UnaryIntFunction::Sign => x.signum(),
        UnaryIntFunction::BitwiseNot if dtype == DType::Bool => i64::from(x == 0),
        UnaryIntFunction::BitwiseNot => !x,
        UnaryIntFunction::LogicalNot => i64::from(x == 0),
    }
}

/// `primitive.binary_int`, before the result is wrapped; `None` for a division by zero.
#[inline]
pub fn binary_int(function: BinaryIntFunction, dtype: DType, a: i64, b: i64) -> Option<i64> {
    let width = i64::try_from(dtype.size() * 8).unwrap_or(64);
    Some(match function {
        BinaryIntFunction::Add => a.wrapping_add(b),
        BinaryIntFunction::Sub => a.wrapping_sub(b),
        BinaryIntFunction::Mul => a.wrapping_mul(b),
        BinaryIntFunction::FloorDivide => {
            let rest = a.checked_rem(b).or((b == -1).then_some(0))?;
            a.wrapping_div(b) - i64::from(rest != 0 && (rest < 0) != (b < 0))
        }
        BinaryIntFunction::TruncDivide if b == 0 => return None,
        BinaryIntFunction::TruncDivide => a.wrapping_div(b),
        BinaryIntFunction::Mod | BinaryIntFunction::Fmod if b == 0 => return None,
        BinaryIntFunction::Mod => {
            let rest = a.wrapping_rem(b);
            if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest }
        }
        BinaryIntFunction::Fmod => a.wrapping_rem(b),
        BinaryIntFunction::Minimum => a.min(b),
        BinaryIntFunction::Maximum => a.max(b),
        BinaryIntFunction::Pow => power(a, b),
        BinaryIntFunction::BitwiseAnd => a & b,
        BinaryIntFunction::BitwiseOr => a | b,
        BinaryIntFunction::BitwiseXor => a ^ b,
        BinaryIntFunction::ShiftLeft if (0..width).contains(&b) => a.wrapping_shl(b as u32),
        BinaryIntFunction::ShiftLeft => 0,
        BinaryIntFunction::ShiftRight => a >> if (0..width).contains(&b) { b } else { 63 },
    })
}

fn power(base: i64, exponent: i64) -> i64 {
    if exponent < 0 {
        return match base {
            1 => 1,
            -1 => 1 - 2 * (exponent & 1),
            _ => 0,
        };
    }
    let (mut result, mut square, mut rest) = (1i64, base, exponent);
    while rest > 0 {
        if rest & 1 == 1 {
            result = result.wrapping_mul(square);
        }
        square = square.wrapping_mul(square);
        rest >>= 1;
    }
    result
}

/// `primitive.compare`.
#[inline(always)]
pub fn compare<T: PartialOrd>(function: CompareFunction, a: T, b: T) -> bool {
    match function {
        CompareFunction::Eq => a == b,
        CompareFunction::Ne => a != b,
        CompareFunction::Lt => a < b,
        CompareFunction::Le => a <= b,
        CompareFunction::Gt => a > b,
        CompareFunction::Ge => a >= b,
    }
}

/// Compares an integer with a float exactly, although the integer may not fit into f64.
#[inline]
pub fn compare_exactly(function: CompareFunction, a: i64, b: f64) -> bool {
    if b.is_nan() {
        return function == CompareFunction::Ne;
    }
    // Beyond the range of i64, the float decides alone.
    if b >= 9_223_372_036_854_775_808.0 {
        return matches!(function, CompareFunction::Ne | CompareFunction::Lt | CompareFunction::Le);
    }
    if b < -9_223_372_036_854_775_808.0 {
        return matches!(function, CompareFunction::Ne | CompareFunction::Gt | CompareFunction::Ge);
    }
    let floor = b.floor();
    let fraction = b != floor;
    let order = a.cmp(&(floor as i64)).then(if fraction {
        std::cmp::Ordering::Less
    } else {
        std::cmp::Ordering::Equal
    });
    compare(function, order as i8, 0)
}
