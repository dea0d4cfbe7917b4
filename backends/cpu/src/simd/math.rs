//! Functions that processors have no instruction for, each within a few units in the last place of f32.

use super::Simd;

/// `e^x`; 0 below about -104, infinity above 88.7, NaN for NaN.
#[inline(always)]
pub fn exp<S: Simd>(simd: S, x: S::F32) -> S::F32 {
    let s = simd;
    // Beyond these the result is 0 or infinity whatever x is. `min` and `max` give their second operand for NaN, so x stands there.
    let bounded = s.max(s.splat(-104.0), s.min(s.splat(89.0), x));
    let whole = s.round(s.mul(bounded, s.splat(std::f32::consts::LOG2_E)));
    // x minus a multiple of ln 2, which is held in two parts so that the product is exact.
    let rest = s.fma(whole, s.splat(-0.693_359_4), bounded);
    let rest = s.fma(whole, s.splat(2.121_944_4e-4), rest);
    let mut sum = s.splat(1.987_569_1e-4);
    for coefficient in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        sum = s.fma(sum, rest, s.splat(coefficient));
    }
    let power = s.add(s.fma(sum, s.mul(rest, rest), rest), s.splat(1.0));
    s.times_power(power, whole)
}

/// `2^x` for `x` up to 127, within a part in ten million; 0 below -126, -∞ included, and NaN for NaN.
#[inline(always)]
pub fn exp2<S: Simd>(s: S, x: S::F32) -> S::F32 {
    // No lane may become a denormal on its way to 0: that costs a processor a hundred times what the rest does.
    let nothing = s.lt(x, s.splat(-126.0));
    // `max` gives its second operand for NaN.
    let x = s.max(s.splat(-126.0), x);
    let whole = s.round(x);
    let rest = s.sub(x, whole);
    let mut sum = s.splat(1.327_646_3e-3);
    for coefficient in [9.675_542e-3, 5.550_713_5e-2, 2.402_212e-1, 6.931_469_4e-1, 1.0] {
        sum = s.fma(sum, rest, s.splat(coefficient));
    }
    s.select(nothing, s.splat(0.0), s.times_power(sum, whole))
}
