//! Activation functions on lanes, with their limits at both infinities; NaN gives NaN.

use lz_ops::reference::activation as exact;

use crate::pointwise::Pointwise;
use crate::simd::{MAX_LANES, Simd, exp, exp2};

/// An activation that gates another operand.
pub(crate) trait Gate: Pointwise<1> {
    /// `f(gate) * up`, with an error relative to the result: the tail of `f` counts if `up` is large.
    #[inline(always)]
    fn product<S: Simd>(self, s: S, gate: S::F32, up: S::F32) -> S::F32 {
        s.mul(self.apply(s, [gate]), up)
    }
}

/// `max(x, 0)`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Relu;

impl Pointwise<1> for Relu {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, [x]: [S::F32; 1]) -> S::F32 {
        s.max(s.splat(0.0), x)
    }
}

impl Gate for Relu {}

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
        over_one_plus_exp(s, x, self.exponent(s, x))
    }
}

impl Silu {
    #[inline(always)]
    fn exponent<S: Simd>(self, s: S, x: S::F32) -> S::F32 {
        // With alpha 0 the result is x / 2, at infinity too, where `x * 0` would be NaN.
        if self.alpha == 0.0 { s.splat(0.0) } else { s.mul(x, s.splat(-self.alpha)) }
    }
}

impl Gate for Silu {
    #[inline(always)]
    fn product<S: Simd>(self, s: S, gate: S::F32, up: S::F32) -> S::F32 {
        let alpha = f64::from(self.alpha);
        product_over_one_plus_exp(s, gate, up, self.exponent(s, gate), |z| exact::silu_with(z, alpha))
    }
}

/// `x/2 (1 + tanh(y))` with `y = √(2/π) (x + 0.044715 x³)`, which is `x / (1 + exp(-2y))`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GeluTanh;

impl Pointwise<1> for GeluTanh {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, [x]: [S::F32; 1]) -> S::F32 {
        over_one_plus_exp(s, x, GeluTanh::exponent(s, x))
    }
}

impl GeluTanh {
    #[inline(always)]
    fn exponent<S: Simd>(s: S, x: S::F32) -> S::F32 {
        // -2 √(2/π), and that times 0.044715.
        let square = s.mul(x, x);
        let factor = s.fma(square, s.splat(-0.071_354_82), s.splat(-1.595_769));
        s.mul(factor, x)
    }
}

impl Gate for GeluTanh {
    #[inline(always)]
    fn product<S: Simd>(self, s: S, gate: S::F32, up: S::F32) -> S::F32 {
        product_over_one_plus_exp(s, gate, up, GeluTanh::exponent(s, gate), exact::gelu_tanh)
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

/// Exponents above which a factor of 1 / (1 + exp(exponent)) is computed in another way: f32 has fewer digits for it, or none.
const TAIL: f32 = 40.0;

/// Products of gate and up above which a tail counts and is computed in f64.
const LARGE: f32 = 1e9;

/// `gate * up / (1 + exp(exponent))`, also where the exponential overflows f32 and the result does not vanish. `function` is the exact
/// function of the gate.
#[inline(always)]
fn product_over_one_plus_exp<S: Simd>(
    s: S,
    gate: S::F32,
    up: S::F32,
    exponent: S::F32,
    function: impl Fn(f64) -> f64,
) -> S::F32 {
    let near = s.mul(over_one_plus_exp(s, gate, exponent), up);
    let is_tail = s.lt(s.splat(TAIL), exponent);
    if !s.any(is_tail) {
        return near;
    }
    // Infinite operands are large too.
    let size = s.select(is_tail, s.abs(s.mul(gate, up)), s.splat(0.0));
    if s.any(s.lt(s.splat(LARGE), size)) {
        return in_f64(s, gate, up, near, is_tail, &function);
    }
    // The root of the factor does not underflow. Beyond the bound the product is 0 in f32.
    let root = exp(s, s.max(s.splat(-80.0), s.mul(exponent, s.splat(-0.5))));
    let bounded = s.max(s.splat(-LARGE), s.min(s.splat(LARGE), gate));
    let tail = s.mul(s.mul(bounded, root), s.mul(up, root));
    s.select(is_tail, tail, near)
}

/// The exact products where the mask is set, otherwise `near`.
#[inline(always)]
fn in_f64<S: Simd>(
    s: S,
    gate: S::F32,
    up: S::F32,
    near: S::F32,
    mask: S::Mask,
    function: &impl Fn(f64) -> f64,
) -> S::F32 {
    let (mut gates, mut ups) = ([0.0f32; MAX_LANES], [0.0f32; MAX_LANES]);
    // SAFETY: the arrays have an element for each lane.
    unsafe {
        s.store(gates.as_mut_ptr(), gate);
        s.store(ups.as_mut_ptr(), up);
    }
    multiply_exactly(&mut gates[..S::LANES], &ups, function);
    // SAFETY: as above.
    s.select(mask, unsafe { s.load(gates.as_ptr()) }, near)
}

#[cold]
#[inline(never)]
fn multiply_exactly(gates: &mut [f32], ups: &[f32], function: &impl Fn(f64) -> f64) {
    for (gate, up) in gates.iter_mut().zip(ups) {
        *gate = (function(f64::from(*gate)) * f64::from(*up)) as f32;
    }
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

impl Gate for Gelu {
    /// [`Pointwise::apply`] has an absolute error, which a large factor would multiply; here the error is relative to the result.
    #[inline(always)]
    fn product<S: Simd>(self, s: S, gate: S::F32, up: S::F32) -> S::F32 {
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

impl<F: Gate> Pointwise<2> for GatedProduct<F> {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, [gate, up]: [S::F32; 2]) -> S::F32 {
        self.0.product(s, gate, up)
    }
}
