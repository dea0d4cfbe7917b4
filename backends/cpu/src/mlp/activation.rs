//! The activations of both operations: a name becomes a type, so that each gets loops of its own.

use crate::activation::{Gelu, GeluTanh, Relu, Silu};
use crate::pointwise::Pointwise;
use crate::simd::Simd;

/// Which one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Activation {
    None,
    Relu,
    Silu,
    Gelu,
    GeluTanh,
}

/// `x`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Identity;

impl Pointwise<1> for Identity {
    #[inline(always)]
    fn apply<S: Simd>(self, _simd: S, [x]: [S::F32; 1]) -> S::F32 {
        x
    }
}

/// What wants the activation as a type.
pub(super) trait WithActivation {
    fn run(self, activation: impl Pointwise<1>);
}

impl Activation {
    pub(super) fn with(self, body: impl WithActivation) {
        match self {
            Activation::None => body.run(Identity),
            Activation::Relu => body.run(Relu),
            Activation::Silu => body.run(Silu { alpha: 1.0 }),
            Activation::Gelu => body.run(Gelu),
            Activation::GeluTanh => body.run(GeluTanh),
        }
    }
}
