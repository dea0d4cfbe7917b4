//! Elementwise functions on vectors of f32, each compiled once per instruction set as a function over dense blocks. Functions without
//! a vectorized form are computed element by element in f64.

use lz_primitives::functions::{ActivationFunction, BinaryFunction, UnaryFunction};
use lz_primitives::numbers;

use super::math::{cos, log, sin, tanh};
use crate::activation::{Gelu, GeluTanh, Relu, Silu};
use crate::pointwise::Pointwise;
use crate::simd::{Float, Simd, Work, exp, vectors};

/// A function of one or two vectors and two constants.
pub(crate) trait Lanes: Copy + Send + Sync + 'static {
    /// Number of operands: 1 or 2.
    const OPERANDS: usize;

    /// Applies the function lane by lane. Must be `#[inline(always)]`.
    fn apply<S: Simd>(s: S, x: S::F32, y: S::F32, constants: [S::F32; 2]) -> S::F32;
}

/// A function over dense blocks of `len` elements: operands, result, length, constants.
pub(crate) type BlockFunction<S> = unsafe fn(S, [*const f32; 2], *mut f32, usize, [f32; 2]);

/// How a function is computed.
pub(crate) enum Apply<S> {
    /// On vectors.
    Lanes(BlockFunction<S>, [f32; 2]),
    /// On vectors if every operand is of this magnitude at most, otherwise element by element.
    Bounded(f32, BlockFunction<S>, Box<Scalar>),
    /// Element by element.
    Scalar(Box<Scalar>),
}

/// A function of two elements.
pub(crate) type Scalar = dyn Fn(f32, f32) -> f32 + Send + Sync;

impl<S: Simd> Apply<S> {
    /// Applies the function to dense elements. The result may overwrite an operand.
    ///
    /// # Safety
    /// `len` elements are readable at each operand that the function has, and writable at `to`.
    #[inline]
    pub unsafe fn run(&self, s: S, from: [*const f32; 2], to: *mut f32, len: usize) {
        // SAFETY: the caller guarantees the elements.
        unsafe {
            match self {
                Apply::Lanes(block, constants) => block(s, from, to, len, *constants),
                Apply::Bounded(bound, block, scalar) => {
                    for first in (0..len).step_by(super::block::BLOCK) {
                        let count = super::block::BLOCK.min(len - first);
                        let from = from.map(|from| from.wrapping_add(first));
                        let x = std::slice::from_raw_parts(from[0], count);
                        if x.iter().fold(true, |inside, x| inside & (x.abs() <= *bound)) {
                            block(s, from, to.add(first), count, [0.0; 2]);
                        } else {
                            each(scalar, from, to.add(first), count);
                        }
                    }
                }
                Apply::Scalar(scalar) => each(scalar, from, to, len),
            }
        }
    }
}

unsafe fn each(scalar: &Scalar, from: [*const f32; 2], to: *mut f32, len: usize) {
    for index in 0..len {
        // SAFETY: the caller guarantees the elements. A function of one operand is called with that operand twice.
        unsafe { *to.add(index) = scalar(*from[0].add(index), *from[1].add(index)) };
    }
}

struct Block<S, F> {
    s: S,
    from: [*const f32; 2],
    to: *mut f32,
    len: usize,
    constants: [f32; 2],
    function: std::marker::PhantomData<F>,
}

impl<S: Simd, F: Lanes> Work for Block<S, F> {
    #[inline(always)]
    fn perform(self) {
        let s = self.s;
        let constants = [s.splat(self.constants[0]), s.splat(self.constants[1])];
        vectors!(S, self.len, |span| {
            // SAFETY: the constructor guarantees the elements.
            unsafe {
                let x = <f32 as Float>::load(s, self.from[0], span);
                let y = if F::OPERANDS == 2 { <f32 as Float>::load(s, self.from[1], span) } else { x };
                <f32 as Float>::store(s, self.to, span, F::apply(s, x, y, constants));
            }
        });
    }
}

/// One [`BlockFunction`].
///
/// # Safety
/// As [`Apply::run`].
unsafe fn block<S: Simd, F: Lanes>(
    s: S,
    from: [*const f32; 2],
    to: *mut f32,
    len: usize,
    constants: [f32; 2],
) {
    s.perform(Block { s, from, to, len, constants, function: std::marker::PhantomData::<F> });
}

macro_rules! lanes {
    ($($name:ident($operands:literal) = |$s:ident, $x:ident, $y:pat_param, $constants:pat_param| $body:expr;)*) => {
        $(#[derive(Clone, Copy)]
        struct $name;
        impl Lanes for $name {
            const OPERANDS: usize = $operands;
            #[inline(always)]
            fn apply<S: Simd>($s: S, $x: S::F32, $y: S::F32, $constants: [S::F32; 2]) -> S::F32 {
                $body
            }
        })*
    };
}

lanes! {
    Neg(1) = |s, x, _, _| s.mul(x, s.splat(-1.0));
    Abs(1) = |s, x, _, _| s.abs(x);
    Sign(1) = |s, x, _, _| {
        let positive = s.select(s.lt(s.splat(0.0), x), s.splat(1.0), s.splat(0.0));
        s.select(s.lt(x, s.splat(0.0)), s.splat(-1.0), positive)
    };
    Exp(1) = |s, x, _, _| exp(s, x);
    Log(1) = |s, x, _, _| log(s, x);
    Log2(1) = |s, x, _, _| s.mul(log(s, x), s.splat(std::f32::consts::LOG2_E));
    Log10(1) = |s, x, _, _| s.mul(log(s, x), s.splat(std::f32::consts::LOG10_E));
    Sqrt(1) = |s, x, _, _| s.sqrt(x);
    Rsqrt(1) = |s, x, _, _| s.div(s.splat(1.0), s.sqrt(x));
    Reciprocal(1) = |s, x, _, _| s.div(s.splat(1.0), x);
    Square(1) = |s, x, _, _| s.mul(x, x);
    Cube(1) = |s, x, _, _| s.mul(s.mul(x, x), x);
    Sin(1) = |s, x, _, _| sin(s, x);
    Cos(1) = |s, x, _, _| cos(s, x);
    Tanh(1) = |s, x, _, _| tanh(s, x);
    Floor(1) = |s, x, _, _| floor(s, x);
    Ceil(1) = |s, x, _, _| ceil(s, x);
    Round(1) = |s, x, _, _| s.round(x);
    Trunc(1) = |s, x, _, _| s.select(s.lt(x, s.splat(0.0)), ceil(s, x), floor(s, x));

    ReluLanes(1) = |s, x, _, _| Relu.apply(s, [x]);
    SiluLanes(1) = |s, x, _, _| Silu { alpha: 1.0 }.apply(s, [x]);
    GeluLanes(1) = |s, x, _, _| Gelu.apply(s, [x]);
    GeluTanhLanes(1) = |s, x, _, _| GeluTanh.apply(s, [x]);
    Sigmoid(1) = |s, x, _, _| s.div(s.splat(1.0), s.add(s.splat(1.0), exp(s, s.mul(x, s.splat(-1.0)))));
    LeakyRelu(1) = |s, x, _, [alpha, _]| s.select(s.lt(s.splat(0.0), x), x, s.mul(x, alpha));
    // Both return their second operand if either is NaN.
    Clamp(1) = |s, x, _, [low, high]| s.min(high, s.max(low, x));
    Hardsigmoid(1) = |s, x, _, [alpha, beta]| s.min(s.splat(1.0), s.max(s.splat(0.0), s.fma(x, alpha, beta)));
    // An infinite x must not be multiplied with 0.
    Hardswish(1) = |s, x, _, [alpha, beta]| {
        let factor = s.min(s.splat(1.0), s.max(s.splat(0.0), s.fma(x, alpha, beta)));
        s.mul(s.max(s.splat(f32::MIN), x), factor)
    };

    Add(2) = |s, x, y, _| s.add(x, y);
    Sub(2) = |s, x, y, _| s.sub(x, y);
    Mul(2) = |s, x, y, _| s.mul(x, y);
    Div(2) = |s, x, y, _| s.div(x, y);
    Minimum(2) = |s, x, y, _| s.select(s.is_nan(x), x, s.min(x, y));
    Maximum(2) = |s, x, y, _| s.select(s.is_nan(x), x, s.max(x, y));
}

#[inline(always)]
fn floor<S: Simd>(s: S, x: S::F32) -> S::F32 {
    let nearest = s.round(x);
    s.select(s.lt(x, nearest), s.sub(nearest, s.splat(1.0)), nearest)
}

#[inline(always)]
fn ceil<S: Simd>(s: S, x: S::F32) -> S::F32 {
    let nearest = s.round(x);
    s.select(s.lt(nearest, x), s.add(nearest, s.splat(1.0)), nearest)
}

/// Beyond this magnitude, the range reduction of `sin` and `cos` loses precision.
const MAX_ANGLE: f32 = 8192.0;

/// `primitive.unary`.
pub(crate) fn unary<S: Simd>(function: UnaryFunction) -> Apply<S> {
    let scalar =
        move || -> Box<Scalar> { Box::new(move |x, _| numbers::unary(function, f64::from(x)) as f32) };
    let block: BlockFunction<S> = match function {
        UnaryFunction::Neg => block::<S, Neg>,
        UnaryFunction::Abs => block::<S, Abs>,
        UnaryFunction::Sign => block::<S, Sign>,
        UnaryFunction::Exp => block::<S, Exp>,
        UnaryFunction::Log => block::<S, Log>,
        UnaryFunction::Log2 => block::<S, Log2>,
        UnaryFunction::Log10 => block::<S, Log10>,
        UnaryFunction::Sqrt => block::<S, Sqrt>,
        UnaryFunction::Rsqrt => block::<S, Rsqrt>,
        UnaryFunction::Reciprocal => block::<S, Reciprocal>,
        UnaryFunction::Square => block::<S, Square>,
        UnaryFunction::Tanh => block::<S, Tanh>,
        UnaryFunction::Floor => block::<S, Floor>,
        UnaryFunction::Ceil => block::<S, Ceil>,
        UnaryFunction::Round => block::<S, Round>,
        UnaryFunction::Trunc => block::<S, Trunc>,
        UnaryFunction::Sin => return Apply::Bounded(MAX_ANGLE, block::<S, Sin>, scalar()),
        UnaryFunction::Cos => return Apply::Bounded(MAX_ANGLE, block::<S, Cos>, scalar()),
        _ => return Apply::Scalar(scalar()),
    };
    Apply::Lanes(block, [0.0; 2])
}

/// `primitive.activation`.
pub(crate) fn activation<S: Simd>(function: ActivationFunction, alpha: f64, beta: f64) -> Apply<S> {
    let block: BlockFunction<S> = match function {
        ActivationFunction::Relu => block::<S, ReluLanes>,
        ActivationFunction::Sigmoid => block::<S, Sigmoid>,
        ActivationFunction::Silu => block::<S, SiluLanes>,
        ActivationFunction::Gelu => block::<S, GeluLanes>,
        ActivationFunction::GeluTanh => block::<S, GeluTanhLanes>,
        ActivationFunction::LeakyRelu => block::<S, LeakyRelu>,
        ActivationFunction::Clamp if !alpha.is_nan() && !beta.is_nan() => block::<S, Clamp>,
        ActivationFunction::Hardsigmoid if alpha.is_finite() && beta.is_finite() && alpha != 0.0 => {
            block::<S, Hardsigmoid>
        }
        ActivationFunction::Hardswish if alpha.is_finite() && beta.is_finite() && alpha > 0.0 => {
            block::<S, Hardswish>
        }
        _ => {
            let scalar = move |x, _| numbers::activation(function, alpha, beta, f64::from(x)) as f32;
            return Apply::Scalar(Box::new(scalar));
        }
    };
    Apply::Lanes(block, [alpha as f32, beta as f32])
}

/// `primitive.binary`.
pub(crate) fn binary<S: Simd>(function: BinaryFunction) -> Apply<S> {
    let block: BlockFunction<S> = match function {
        BinaryFunction::Add => block::<S, Add>,
        BinaryFunction::Sub => block::<S, Sub>,
        BinaryFunction::Mul => block::<S, Mul>,
        BinaryFunction::Div => block::<S, Div>,
        BinaryFunction::Minimum => block::<S, Minimum>,
        BinaryFunction::Maximum => block::<S, Maximum>,
        _ => {
            let scalar = move |a, b| numbers::binary(function, f64::from(a), f64::from(b)) as f32;
            return Apply::Scalar(Box::new(scalar));
        }
    };
    Apply::Lanes(block, [0.0; 2])
}

/// Powers with a faster form, by their exponent.
pub(crate) fn power<S: Simd>(exponent: f64) -> Option<Apply<S>> {
    let block: BlockFunction<S> = match exponent {
        2.0 => block::<S, Square>,
        3.0 => block::<S, Cube>,
        -1.0 => block::<S, Reciprocal>,
        _ => return None,
    };
    Some(Apply::Lanes(block, [0.0; 2]))
}
