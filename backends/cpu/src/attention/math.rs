//! Vectorized functions of scores.

use crate::simd::{Simd, exp2};

/// Hyperbolic tangent, within a few ulps.
#[inline(always)]
pub(super) fn tanh<S: Simd>(s: S, x: S::F32) -> S::F32 {
    let size = s.abs(x);
    // A polynomial near 0, where the other form would cancel.
    let square = s.mul(x, x);
    let mut sum = s.splat(-5.704_988_7e-3);
    for coefficient in [2.063_909e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328e-1] {
        sum = s.fma(sum, square, s.splat(coefficient));
    }
    let small = s.fma(s.mul(sum, square), x, x);
    // 1 - 2 / (e^2|x| + 1); 1 beyond 20. `min` returns its second operand for NaN.
    let power = exp2(s, s.mul(s.min(s.splat(20.0), size), s.splat(2.0 * std::f32::consts::LOG2_E)));
    let large = s.sub(s.splat(1.0), s.div(s.splat(2.0), s.add(power, s.splat(1.0))));
    let large = s.select(s.lt(x, s.splat(0.0)), s.sub(s.splat(0.0), large), large);
    s.select(s.lt(size, s.splat(0.625)), small, large)
}
