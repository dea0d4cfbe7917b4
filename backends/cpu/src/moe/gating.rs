//! The gate of an expert: bounds, activation and product.

use lz_ops::MoeExpertsActivation;
use lz_ops::reference::activation as exact;

use crate::activation::{Gate, Gelu, GeluTanh, Relu, Silu};
use crate::mlp::{Identity, WithActivation};
use crate::simd::{Float, Simd, vectors};

/// `act(gate) * (up + offset)`, with gate and up bounded by `limit`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gating {
    activation: MoeExpertsActivation,
    alpha: f32,
    /// Infinite if there is none.
    limit: f32,
    up_offset: f32,
}

impl Gating {
    /// A limit of 0 is none.
    pub(super) fn new(activation: MoeExpertsActivation, alpha: f32, limit: f32, up_offset: f32) -> Gating {
        let limit = if limit > 0.0 { limit } else { f32::INFINITY };
        Gating { activation, alpha, limit, up_offset }
    }

    /// Writes the gated products of some features.
    pub(super) fn apply<S: Simd>(self, s: S, gates: &[f32], ups: &[f32], to: &mut [f32]) {
        let body = Body { s, gating: self, gates, ups, to };
        match self.activation {
            MoeExpertsActivation::None => body.run(Identity),
            MoeExpertsActivation::Relu => body.run(Relu),
            MoeExpertsActivation::Silu => body.run(Silu { alpha: self.alpha }),
            MoeExpertsActivation::Gelu => body.run(Gelu),
            MoeExpertsActivation::GeluTanh => body.run(GeluTanh),
        }
    }

    /// The gated product of one feature in f64, for rows that overflow f32.
    pub(super) fn apply_f64(self, gate: f64, up: f64) -> f64 {
        let limit = f64::from(self.limit);
        // `clamp` keeps NaN.
        let gate = gate.clamp(f64::NEG_INFINITY, limit);
        let activated = match self.activation {
            MoeExpertsActivation::None => exact::identity(gate),
            MoeExpertsActivation::Relu => exact::relu(gate),
            MoeExpertsActivation::Silu => exact::silu_with(gate, f64::from(self.alpha)),
            MoeExpertsActivation::Gelu => exact::gelu(gate),
            MoeExpertsActivation::GeluTanh => exact::gelu_tanh(gate),
        };
        activated * (up.clamp(-limit, limit) + f64::from(self.up_offset))
    }
}

struct Body<'w, S> {
    s: S,
    gating: Gating,
    gates: &'w [f32],
    ups: &'w [f32],
    to: &'w mut [f32],
}

impl<S: Simd> WithActivation for Body<'_, S> {
    #[inline(never)]
    fn run(self, activation: impl Gate) {
        let Body { s, gating, gates, ups, to } = self;
        let columns = to.len().min(gates.len()).min(ups.len());
        s.vectorize(|| {
            let (limit, lower) = (s.splat(gating.limit), s.splat(-gating.limit));
            vectors!(S, columns, |span| {
                // SAFETY: gates, ups and outputs have this many elements.
                unsafe {
                    // `min` and `max` return their second operand for NaN.
                    let gate = s.min(limit, <f32 as Float>::load(s, gates.as_ptr(), span));
                    let up = s.max(lower, s.min(limit, <f32 as Float>::load(s, ups.as_ptr(), span)));
                    let value = activation.product(s, gate, s.add(up, s.splat(gating.up_offset)));
                    <f32 as Float>::store(s, to.as_mut_ptr(), span, value);
                }
            });
        });
    }
}
