//! Activation functions on lanes, with their limits at both infinities; NaN gives NaN.

use crate::pointwise::Pointwise;
use crate::simd::{Simd, exp, exp2};

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
        // With alpha 0 the result is x / 2, at infinity too, where `x * 0` would be NaN.
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
    // Below -80 the exponential vanishes next to 1, and it must not become a denormal, which is about a
    // hundred times slower. `max` returns its second operand for NaN.
    let exponent = s.max(s.splat(-80.0), exponent);
    let denominator = s.add(exp(s, exponent), s.splat(1.0));
    let infinite = s.lt(s.splat(f32::MAX), denominator);
    s.select(infinite, s.splat(0.0), s.div_approx(x, denominator))
}

/// `x Φ(x)`, as `max(x, 0) - |x|/2 erfc(|x|/√2)`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gelu;

impl Pointwise<1> for Gelu {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, [x]: [S::F32; 1]) -> S::F32 {
        // Beyond this bound the subtracted term is below 1e-7, and it must not be multiplied with infinity.
        let size = s.min(s.splat(4.0 * std::f32::consts::SQRT_2), s.abs(x));
        // log2(erfc(size/√2)): polynomial fit with a result error of at most 1.1e-7.
        let mut sum = s.splat(3.135_821e-5);
        for coefficient in
            [-7.530_562e-4, 8.023_392e-3, -5.331_453e-2, -4.588_533_6e-1, -1.151_169_9, 2.763_643_6e-6]
        {
            sum = s.fma(sum, size, s.splat(coefficient));
        }
        s.fma(s.mul(size, s.splat(-0.5)), exp2(s, sum), s.max(s.splat(0.0), x))
    }
}

/// A function of the first operand, times the second (gated activation).
#[derive(Debug, Clone, Copy)]
pub(super) struct GatedProduct<F>(pub F);

impl<F: Pointwise<1>> Pointwise<2> for GatedProduct<F> {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, [gate, up]: [S::F32; 2]) -> S::F32 {
        s.mul(self.0.apply(s, [gate]), up)
    }
}
