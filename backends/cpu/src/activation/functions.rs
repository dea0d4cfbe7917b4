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

/// `gate Φ(gate) * up`. [`Gelu`] has an absolute error, which a large factor would multiply; here the error is relative to the result.
#[derive(Debug, Clone, Copy)]
pub(super) struct GeluProduct;

impl Pointwise<2> for GeluProduct {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, [gate, up]: [S::F32; 2]) -> S::F32 {
        // With a = |gate|: gate Φ(gate) = max(gate, 0) - a h(a) exp(-a²/2), where h(a) = erfc(a/√2) exp(a²/2) / 2 is a polynomial of
        // 1 / (1 + 0.35 a) with a relative error of at most 3e-7 up to the bound. Beyond it the product with any finite factor is
        // less than 1e-36.
        let size = s.abs(gate);
        let bounded = s.min(s.splat(18.6), size);
        let t = s.div(s.splat(1.0), s.fma(bounded, s.splat(0.35), s.splat(1.0)));
        let mut sum = s.splat(-2.890_449_2e-2);
        for coefficient in [
            1.429_189_4e-1,
            -2.537_882e-1,
            1.572_530_3e-1,
            -2.197_406e-2,
            1.051_032_9e-1,
            1.199_170_8e-1,
            1.398_526e-1,
            1.396_218_1e-1,
        ] {
            sum = s.fma(sum, t, s.splat(coefficient));
        }
        // The square root of exp(-a²/2), which does not underflow where a product with `up` is large enough to matter. The rounding
        // error of the exponent is a relative error of the result, so it is compensated.
        let half = s.mul(bounded, s.splat(0.5));
        let square = s.mul(half, half);
        let rounding = s.fma(half, half, s.sub(s.splat(0.0), square));
        let root = exp(s, s.sub(s.splat(0.0), square));
        let root = s.sub(root, s.mul(root, rounding));
        // For a positive gate the difference is multiplied, because infinite terms have none.
        let is_positive = s.lt(s.splat(0.0), gate);
        let factor = s.select(is_positive, s.splat(1.0), up);
        // No lane may become a denormal on its way to 0: 2^64 on both sides keeps the comparison in range. Beyond 38.4 the function is 0
        // in f64 too, and 0 times infinity is NaN.
        let scaled = s.mul(root, s.splat(18_446_744_073_709_551_616.0));
        let is_tiny = s.lt(s.mul(s.mul(s.abs(factor), scaled), scaled), s.splat(16.0));
        let root = s.select(is_tiny, s.splat(0.0), root);
        let root = s.select(s.lt(s.splat(38.4), size), s.splat(0.0), root);
        let tail = s.mul(s.mul(s.mul(s.mul(s.mul(sum, t), bounded), factor), root), root);
        s.select(is_positive, s.mul(s.sub(gate, tail), up), s.sub(s.splat(0.0), tail))
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
