//! The functions on lanes, with their limits at both infinities; NaN gives NaN.

use crate::pointwise::Pointwise;
use crate::simd::{Simd, exp};

/// `max(x, 0)`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Relu;

impl Pointwise<1> for Relu {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, [x]: [S::F32; 1]) -> S::F32 {
        s.max(s.splat(0.0), x)
    }
}

/// `max(x, 0)²`.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReluSquared;

impl Pointwise<1> for ReluSquared {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, [x]: [S::F32; 1]) -> S::F32 {
        let positive = s.max(s.splat(0.0), x);
        s.mul(positive, positive)
    }
}

/// `x / (1 + exp(-alpha x))`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Silu {
    /// Steepness; 0 halves x.
    pub alpha: f32,
}

impl Pointwise<1> for Silu {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, [x]: [S::F32; 1]) -> S::F32 {
        // A steepness of 0 means a half, at infinity too, where the product would be no number.
        let exponent = if self.alpha == 0.0 { s.splat(0.0) } else { s.mul(x, s.splat(-self.alpha)) };
        over_one_plus_exp(s, x, exponent)
    }
}

/// `x/2 (1 + tanh(y))` with `y = √(2/π) (x + 0.044715 x³)`, which is `x / (1 + exp(-2y))`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GeluTanh;

impl Pointwise<1> for GeluTanh {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, [x]: [S::F32; 1]) -> S::F32 {
        // -2 √(2/π), and that times 0.044715.
        let square = s.mul(x, x);
        let factor = s.fma(square, s.splat(-0.071_354_82), s.splat(-1.595_769));
        over_one_plus_exp(s, x, s.mul(factor, x))
    }
}

/// `x / (1 + exp(exponent))`; 0 where both are infinite, because the exponential wins.
#[inline(always)]
fn over_one_plus_exp<S: Simd>(s: S, x: S::F32, exponent: S::F32) -> S::F32 {
    let denominator = s.add(exp(s, exponent), s.splat(1.0));
    let infinite = s.lt(s.splat(f32::MAX), denominator);
    s.select(infinite, s.splat(0.0), s.over(x, denominator))
}

/// `x Φ(x)`, as `max(x, 0) - |x|/2 erfc(|x|/√2)`, which keeps its digits in both tails.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gelu;

impl Pointwise<1> for Gelu {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, [x]: [S::F32; 1]) -> S::F32 {
        // Beyond this bound erfc is 0 in f32, and an infinity must not meet it.
        let size = s.min(s.splat(16.0), s.abs(x));
        let half = s.mul(size, s.splat(0.5));
        s.fma(
            s.mul(half, s.splat(-1.0)),
            erfc(s, s.mul(size, s.splat(std::f32::consts::FRAC_1_SQRT_2))),
            s.max(s.splat(0.0), x),
        )
    }
}

/// The complementary error function of `x ≥ 0`: a fit by Chebyshev polynomials in `1 / (1 + x/2)`, within 1.2e-7 of its size.
#[inline(always)]
fn erfc<S: Simd>(s: S, x: S::F32) -> S::F32 {
    let t = s.over(s.splat(1.0), s.fma(x, s.splat(0.5), s.splat(1.0)));
    let mut sum = s.splat(0.170_872_77);
    for coefficient in [
        -0.822_152_23,
        1.488_515_9,
        -1.135_204,
        0.278_868_07,
        -0.186_288_06,
        0.096_784_18,
        0.374_091_96,
        1.000_023_7,
        -1.265_512_2,
    ] {
        sum = s.fma(sum, t, s.splat(coefficient));
    }
    s.mul(t, exp(s, s.fma(s.mul(x, s.splat(-1.0)), x, sum)))
}

/// A function of the first number, times the second.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times<F>(pub F);

impl<F: Pointwise<1>> Pointwise<2> for Times<F> {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, [gate, up]: [S::F32; 2]) -> S::F32 {
        s.mul(self.0.apply(s, [gate]), up)
    }
}
