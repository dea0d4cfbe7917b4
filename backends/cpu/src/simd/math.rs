//! Vectorized math functions without a hardware instruction, each within a few ulps of f32.

use super::Simd;

/// `e^x`; 0 below about -104, infinity above 88.7, NaN for NaN.
#[inline(always)]
pub fn exp<S: Simd>(simd: S, x: S::F32) -> S::F32 {
    let s = simd;
    // Outside this range the result is 0 or infinity. `min` and `max` return their second operand for NaN, so
    // x is passed second.
    let bounded = s.max(s.splat(-104.0), s.min(s.splat(89.0), x));
    let whole = s.round(s.mul(bounded, s.splat(std::f32::consts::LOG2_E)));
    // Range reduction: subtracts a multiple of ln 2, split in two constants so that the product is exact.
    let rest = s.fma(whole, s.splat(-0.693_359_4), bounded);
    let rest = s.fma(whole, s.splat(2.121_944_4e-4), rest);
    let mut sum = s.splat(1.987_569_1e-4);
    for coefficient in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        sum = s.fma(sum, rest, s.splat(coefficient));
    }
    let power = s.add(s.fma(sum, s.mul(rest, rest), rest), s.splat(1.0));
    s.ldexp(power, whole)
}

/// `2^x` for `x` up to 127, relative error at most 1e-7; 0 below -126 (including -∞), NaN for NaN.
#[inline(always)]
pub fn exp2<S: Simd>(s: S, x: S::F32) -> S::F32 {
    // No lane may become a denormal on its way to 0: denormal arithmetic is about a hundred times slower.
    let nothing = s.lt(x, s.splat(-126.0));
    // `max` returns its second operand for NaN.
    let x = s.max(s.splat(-126.0), x);
    let whole = s.round(x);
    let rest = s.sub(x, whole);
    let mut sum = s.splat(1.327_646_3e-3);
    for coefficient in [9.675_542e-3, 5.550_713_5e-2, 2.402_212e-1, 6.931_469_4e-1, 1.0] {
        sum = s.fma(sum, rest, s.splat(coefficient));
    }
    s.select(nothing, s.splat(0.0), s.ldexp(sum, whole))
}
