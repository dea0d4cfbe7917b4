//! The arithmetic of the expression language as plain functions, shared by the interpreter and generated code.
//!
//! Integer overflow is an error. Floats follow IEEE 754 with two exceptions: an infinite result of finite operands is an
//! overflow error, and a NaN result of operands that are not NaN is an error. Infinite and NaN operands propagate.

use std::fmt;

use super::ast::Comparison;

/// Why an evaluation failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EvalError {
    /// The result does not fit into 64 bits.
    Overflow,
    /// A division or remainder by zero.
    DivisionByZero,
    /// The square root of a negative number.
    NegativeSqrt,
    /// The result is NaN, such as infinity minus infinity.
    NotANumber,
    /// The slot does not exist, or its value does not have the declared type.
    BadSlot {
        /// The slot.
        slot: u16,
    },
    /// The program's result does not have the requested type.
    WrongType,
    /// The program was compiled from an invalid tree.
    Malformed,
}

impl fmt::Display for EvalError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EvalError::Overflow => formatter.write_str("the result does not fit into 64 bits"),
            EvalError::DivisionByZero => formatter.write_str("division by zero"),
            EvalError::NegativeSqrt => formatter.write_str("square root of a negative number"),
            EvalError::NotANumber => formatter.write_str("the result is not a number"),
            EvalError::BadSlot { slot } => {
                write!(formatter, "slot {slot} does not contain a value of the declared type")
            }
            EvalError::WrongType => formatter.write_str("the expression does not have the requested type"),
            EvalError::Malformed => formatter.write_str("the program is malformed"),
        }
    }
}

impl std::error::Error for EvalError {}

/// An integer or its error.
pub type IntResult = Result<i64, EvalError>;

/// A float or its error.
pub type FloatResult = Result<f64, EvalError>;

/// The float nearest to an integer; ties go to the even one.
#[inline]
pub fn widen(value: i64) -> f64 {
    value as f64
}

/// `a + b`
#[inline]
pub fn add_int(a: i64, b: i64) -> IntResult {
    a.checked_add(b).ok_or(EvalError::Overflow)
}

/// `a - b`
#[inline]
pub fn subtract_int(a: i64, b: i64) -> IntResult {
    a.checked_sub(b).ok_or(EvalError::Overflow)
}

/// `a * b`
#[inline]
pub fn multiply_int(a: i64, b: i64) -> IntResult {
    a.checked_mul(b).ok_or(EvalError::Overflow)
}

/// `-a`
#[inline]
pub fn negate_int(a: i64) -> IntResult {
    a.checked_neg().ok_or(EvalError::Overflow)
}

/// `abs(a)`
#[inline]
pub fn abs_int(a: i64) -> IntResult {
    a.checked_abs().ok_or(EvalError::Overflow)
}

/// `a // b`: the quotient rounded down.
#[inline]
pub fn floor_divide_int(a: i64, b: i64) -> IntResult {
    if b == 0 {
        return Err(EvalError::DivisionByZero);
    }
    let quotient = a.checked_div(b).ok_or(EvalError::Overflow)?;
    // Truncation rounds up if the signs differ; the quotient cannot be `i64::MIN` in that case.
    let cut_up = a % b != 0 && (a < 0) != (b < 0);
    Ok(quotient - i64::from(cut_up))
}

/// `a % b`: the remainder of the floored quotient; it has the sign of `b`.
#[inline]
pub fn modulo_int(a: i64, b: i64) -> IntResult {
    match b {
        0 => Err(EvalError::DivisionByZero),
        // The only divisor for which the hardware division can overflow.
        -1 => Ok(0),
        _ => {
            let remainder = a % b;
            Ok(if remainder != 0 && (remainder < 0) != (b < 0) { remainder + b } else { remainder })
        }
    }
}

/// `ceil_div(a, b)`: the quotient rounded up.
#[inline]
pub fn ceil_divide_int(a: i64, b: i64) -> IntResult {
    if b == 0 {
        return Err(EvalError::DivisionByZero);
    }
    let quotient = a.checked_div(b).ok_or(EvalError::Overflow)?;
    let cut_down = a % b != 0 && (a < 0) == (b < 0);
    Ok(quotient + i64::from(cut_down))
}

/// The smaller one.
#[inline]
pub fn min_int(a: i64, b: i64) -> i64 {
    a.min(b)
}

/// The larger one.
#[inline]
pub fn max_int(a: i64, b: i64) -> i64 {
    a.max(b)
}

/// Returns a float result, or an error if an overflow or NaN arose in this operation and not in an operand.
#[inline]
fn checked(a: f64, b: f64, result: f64) -> FloatResult {
    if result.is_finite() {
        Ok(result)
    } else if result.is_nan() {
        if a.is_nan() || b.is_nan() { Ok(result) } else { Err(EvalError::NotANumber) }
    } else if a.is_finite() && b.is_finite() {
        Err(EvalError::Overflow)
    } else {
        Ok(result)
    }
}

/// `a + b`
#[inline]
pub fn add_float(a: f64, b: f64) -> FloatResult {
    checked(a, b, a + b)
}

/// `a - b`
#[inline]
pub fn subtract_float(a: f64, b: f64) -> FloatResult {
    checked(a, b, a - b)
}

/// `a * b`
#[inline]
pub fn multiply_float(a: f64, b: f64) -> FloatResult {
    checked(a, b, a * b)
}

/// `a / b`
#[inline]
pub fn divide_float(a: f64, b: f64) -> FloatResult {
    if b == 0.0 {
        return Err(EvalError::DivisionByZero);
    }
    checked(a, b, a / b)
}

/// `a // b`: the quotient rounded down, derived from the exact remainder so that it agrees with `%`.
#[inline]
pub fn floor_divide_float(a: f64, b: f64) -> FloatResult {
    if b == 0.0 {
        return Err(EvalError::DivisionByZero);
    }
    let remainder = a % b;
    let quotient = (a - remainder) / b;
    let lowered = if remainder != 0.0 && (remainder < 0.0) != (b < 0.0) { quotient - 1.0 } else { quotient };
    // `a - remainder` is a multiple of `b` up to rounding, so the quotient is an integer up to rounding. A zero keeps the sign
    // of the exact quotient.
    let whole = if lowered == 0.0 { 0.0_f64.copysign(a / b) } else { lowered.round() };
    checked(a, b, whole)
}

/// `a % b`: the remainder of the floored quotient; it has the sign of `b`, also if it is zero.
#[inline]
pub fn modulo_float(a: f64, b: f64) -> FloatResult {
    if b == 0.0 {
        return Err(EvalError::DivisionByZero);
    }
    let remainder = a % b;
    let result = if remainder == 0.0 {
        0.0_f64.copysign(b)
    } else if (remainder < 0.0) != (b < 0.0) && !remainder.is_nan() {
        remainder + b
    } else {
        remainder
    };
    checked(a, b, result)
}

/// `-a`
#[inline]
pub fn negate_float(a: f64) -> f64 {
    -a
}

/// `abs(a)`
#[inline]
pub fn abs_float(a: f64) -> f64 {
    a.abs()
}

/// `sqrt(a)`
#[inline]
pub fn sqrt_float(a: f64) -> FloatResult {
    if a < 0.0 { Err(EvalError::NegativeSqrt) } else { Ok(a.sqrt()) }
}

/// `exp(a)`
#[inline]
pub fn exp_float(a: f64) -> FloatResult {
    checked(a, a, a.exp())
}

/// `log(a)`, the natural logarithm.
#[inline]
pub fn log_float(a: f64) -> FloatResult {
    checked(a, a, a.ln())
}

/// `tanh(a)`
#[inline]
pub fn tanh_float(a: f64) -> f64 {
    a.tanh()
}

/// The smaller one, the first of equals; NaN if either is NaN.
#[inline]
pub fn min_float(a: f64, b: f64) -> f64 {
    if b.is_nan() || b < a { b } else { a }
}

/// The larger one, the first of equals; NaN if either is NaN.
#[inline]
pub fn max_float(a: f64, b: f64) -> f64 {
    if b.is_nan() || b > a { b } else { a }
}

/// Compares two values. Comparisons with NaN are false, except `!=`.
#[inline]
pub fn compare<Operand: PartialOrd>(operator: Comparison, a: Operand, b: Operand) -> bool {
    match operator {
        Comparison::Equal => a == b,
        Comparison::NotEqual => a != b,
        Comparison::Less => a < b,
        Comparison::LessOrEqual => a <= b,
        Comparison::Greater => a > b,
        Comparison::GreaterOrEqual => a >= b,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Quotients and remainders as Python gives them.
    #[test]
    fn integer_division_rounds_down() {
        for (a, b, quotient, remainder, ceiling) in [
            (7, 2, 3, 1, 4),
            (-7, 2, -4, 1, -3),
            (7, -2, -4, -1, -3),
            (-7, -2, 3, -1, 4),
            (6, 3, 2, 0, 2),
            (-6, 3, -2, 0, -2),
            (0, -5, 0, 0, 0),
            (i64::MAX, 2, i64::MAX / 2, 1, i64::MAX / 2 + 1),
            (i64::MIN, 1, i64::MIN, 0, i64::MIN),
        ] {
            assert_eq!(floor_divide_int(a, b), Ok(quotient), "{a} // {b}");
            assert_eq!(modulo_int(a, b), Ok(remainder), "{a} % {b}");
            assert_eq!(ceil_divide_int(a, b), Ok(ceiling), "ceil_div({a}, {b})");
        }
        assert_eq!(floor_divide_int(i64::MIN, -1), Err(EvalError::Overflow));
        assert_eq!(ceil_divide_int(i64::MIN, -1), Err(EvalError::Overflow));
        assert_eq!(modulo_int(i64::MIN, -1), Ok(0));
        assert_eq!(modulo_int(1, 0), Err(EvalError::DivisionByZero));
    }

    /// Quotients and remainders as Python gives them, signs of zero included.
    #[test]
    fn float_division_rounds_down() {
        for (a, b, quotient, remainder) in [
            (7.5, 2.0, 3.0, 1.5),
            (-7.5, 2.0, -4.0, 0.5),
            (7.5, -2.0, -4.0, -0.5),
            (-7.5, -2.0, 3.0, -1.5),
            (1.0, 0.1, 9.0, 0.09999999999999995),
            (5.0, f64::INFINITY, 0.0, 5.0),
            (-5.0, f64::INFINITY, -1.0, f64::INFINITY),
            (-0.0, 3.0, -0.0, 0.0),
            (6.0, -3.0, -2.0, -0.0),
            (1e300, 7.0, 1.4285714285714286e299, 1.0),
        ] {
            let bits = |result: FloatResult| result.map(f64::to_bits);
            assert_eq!(bits(floor_divide_float(a, b)), bits(Ok(quotient)), "{a} // {b}");
            assert_eq!(bits(modulo_float(a, b)), bits(Ok(remainder)), "{a} % {b}");
        }
        assert_eq!(floor_divide_float(1e308, 1e-10), Err(EvalError::Overflow));
        assert_eq!(modulo_float(f64::INFINITY, 2.0), Err(EvalError::NotANumber));
        assert_eq!(divide_float(1.0, -0.0), Err(EvalError::DivisionByZero));
    }

    #[test]
    fn new_infinities_and_nans_are_errors_and_existing_ones_propagate() {
        assert_eq!(multiply_float(1e308, 10.0), Err(EvalError::Overflow));
        assert_eq!(multiply_float(f64::INFINITY, 10.0), Ok(f64::INFINITY));
        assert_eq!(subtract_float(f64::INFINITY, f64::INFINITY), Err(EvalError::NotANumber));
        assert!(add_float(f64::NAN, 1.0).is_ok_and(f64::is_nan));
        assert!(sqrt_float(f64::NAN).is_ok_and(f64::is_nan));
        assert_eq!(sqrt_float(-1.0), Err(EvalError::NegativeSqrt));
        assert!(min_float(f64::NAN, 1.0).is_nan() && min_float(1.0, f64::NAN).is_nan());
        assert!(max_float(f64::NAN, 1.0).is_nan() && max_float(1.0, f64::NAN).is_nan());
        assert_eq!((min_float(1.0, 2.0), max_float(1.0, 2.0)), (1.0, 2.0));
    }
}
