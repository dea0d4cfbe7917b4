//! Vectorized functions within a few ulps of f32: range reduction and polynomials with the coefficients of the Cephes library.

use crate::simd::{Simd, exp};

/// Evaluates a polynomial, highest coefficient first.
#[inline(always)]
fn polynomial<S: Simd, const N: usize>(s: S, x: S::F32, coefficients: [f32; N]) -> S::F32 {
    let mut sum = s.splat(coefficients[0]);
    for &coefficient in &coefficients[1..] {
        sum = s.fma(sum, x, s.splat(coefficient));
    }
    sum
}

/// Natural logarithm; -∞ for 0, NaN for negative numbers.
#[inline(always)]
pub(super) fn log<S: Simd>(s: S, x: S::F32) -> S::F32 {
    // Denormals are scaled into the normal range.
    let tiny = s.lt(x, s.splat(f32::MIN_POSITIVE));
    let scaled = s.select(tiny, s.mul(x, s.splat(33_554_432.0)), x);
    let bits = s.to_bits(scaled);
    let exponent = s.to_f32(s.sub_i32(s.shr_i32(bits, 23), s.splat_i32(126)));
    let exponent = s.select(tiny, s.sub(exponent, s.splat(25.0)), exponent);
    let mantissa = s.bitcast_f32(s.or_i32(s.and_i32(bits, s.splat_i32(0x7f_ffff)), s.splat_i32(0x3f00_0000)));
    // The mantissa is in √½ … √2, minus 1.
    let small = s.lt(mantissa, s.splat(std::f32::consts::FRAC_1_SQRT_2));
    let exponent = s.select(small, s.sub(exponent, s.splat(1.0)), exponent);
    let m = s.sub(s.select(small, s.add(mantissa, mantissa), mantissa), s.splat(1.0));
    let square = s.mul(m, m);
    let series = polynomial(
        s,
        m,
        [
            7.037_683_6e-2,
            -1.151_461e-1,
            1.167_699_84e-1,
            -1.242_014_1e-1,
            1.424_932_3e-1,
            -1.666_805_7e-1,
            2.000_071_5e-1,
            -2.499_999_4e-1,
            3.333_333e-1,
        ],
    );
    let rest = s.fma(exponent, s.splat(-2.121_944_4e-4), s.mul(s.mul(series, m), square));
    let rest = s.fma(square, s.splat(-0.5), rest);
    let result = s.fma(exponent, s.splat(0.693_359_4), s.add(m, rest));
    // Infinity and NaN stay as they are; 0 and negative numbers.
    let result = s.select(s.lt(x, s.splat(f32::INFINITY)), result, x);
    let result = s.select(s.lt(s.splat(0.0), x), result, s.splat(f32::NEG_INFINITY));
    let result = s.select(s.lt(x, s.splat(0.0)), s.splat(f32::NAN), result);
    s.select(s.is_nan(x), x, result)
}

/// Hyperbolic tangent.
#[inline(always)]
pub(super) fn tanh<S: Simd>(s: S, x: S::F32) -> S::F32 {
    let size = s.abs(x);
    let square = s.mul(x, x);
    let series = polynomial(
        s,
        square,
        [-5.704_988_7e-3, 2.063_909e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328e-1],
    );
    let near = s.fma(s.mul(series, square), x, x);
    let power = exp(s, s.add(size, size));
    let far = s.sub(s.splat(1.0), s.div(s.splat(2.0), s.add(power, s.splat(1.0))));
    let far = s.select(s.lt(x, s.splat(0.0)), s.mul(far, s.splat(-1.0)), far);
    let result = s.select(s.lt(size, s.splat(0.625)), near, far);
    s.select(s.is_nan(x), x, result)
}

/// Sine for angles of moderate magnitude.
#[inline(always)]
pub(super) fn sin<S: Simd>(s: S, x: S::F32) -> S::F32 {
    turned(s, x, 0)
}

/// Cosine for angles of moderate magnitude.
#[inline(always)]
pub(super) fn cos<S: Simd>(s: S, x: S::F32) -> S::F32 {
    turned(s, x, 1)
}

/// `sin(x + quarters π/2)`.
#[inline(always)]
fn turned<S: Simd>(s: S, x: S::F32, quarters: i32) -> S::F32 {
    let turns = s.round(s.mul(x, s.splat(std::f32::consts::FRAC_2_PI)));
    // π/2 in three parts, so that the products are exact.
    let rest = s.fma(turns, s.splat(-1.570_312_5), x);
    let rest = s.fma(turns, s.splat(-4.837_513e-4), rest);
    let rest = s.fma(turns, s.splat(-7.549_79e-8), rest);
    let square = s.mul(rest, rest);
    let sine = polynomial(s, square, [-1.951_529_6e-4, 8.332_161e-3, -1.666_665_5e-1]);
    let sine = s.fma(s.mul(sine, square), rest, rest);
    let cosine = polynomial(s, square, [2.443_315_7e-5, -1.388_731_6e-3, 4.166_664_6e-2]);
    let cosine = s.fma(s.mul(cosine, square), square, s.fma(square, s.splat(-0.5), s.splat(1.0)));
    let quadrant = s.add_i32(s.to_i32(turns), s.splat_i32(quarters));
    let is_set =
        |bit: i32| s.lt(s.splat(0.5), s.to_f32(s.and_i32(s.shr_i32(quadrant, bit as u32), s.splat_i32(1))));
    let value = s.select(is_set(0), cosine, sine);
    s.select(is_set(1), s.mul(value, s.splat(-1.0)), value)
}
