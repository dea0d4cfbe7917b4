//! Activations of the linear layers: dispatch from an enum to a type, so that loops are monomorphized.

use lz_ops::{
    MlpFusedActivation, MlpLinearActivation, MlpLinearFp4Activation, MlpLinearFp8Activation,
    MlpLinearInt8Activation, MlpLinearWeightOnlyActivation,
};

use crate::activation::{Gate, Gelu, GeluTanh, Relu, Silu};
use crate::pointwise::Pointwise;
use crate::simd::Simd;

/// The activation function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Activation {
    None,
    Relu,
    Silu,
    Gelu,
    GeluTanh,
}

/// Every operation has an enumeration of its own with the same activations.
macro_rules! from_params_of {
    ($($named:ty),* $(,)?) => {$(
        impl From<$named> for Activation {
            fn from(named: $named) -> Activation {
                match named {
                    <$named>::None => Activation::None,
                    <$named>::Relu => Activation::Relu,
                    <$named>::Silu => Activation::Silu,
                    <$named>::Gelu => Activation::Gelu,
                    <$named>::GeluTanh => Activation::GeluTanh,
                }
            }
        }
    )*};
}

from_params_of! {
    MlpFusedActivation,
    MlpLinearActivation,
    MlpLinearFp4Activation,
    MlpLinearFp8Activation,
    MlpLinearInt8Activation,
    MlpLinearWeightOnlyActivation,
}

/// `x`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Identity;

impl Pointwise<1> for Identity {
    #[inline(always)]
    fn apply<S: Simd>(self, _simd: S, [x]: [S::F32; 1]) -> S::F32 {
        x
    }
}

impl Gate for Identity {}

/// A body that is generic over the activation.
pub(crate) trait WithActivation {
    fn run(self, activation: impl Gate);
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
