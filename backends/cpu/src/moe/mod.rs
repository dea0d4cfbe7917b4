//! Mixture of experts: the router, and the experts' gated MLPs. An expert with few tokens streams its weights
//! once (skinny GEMM), one with many uses the blocked GEMM or AMX tiles.

#[cfg(target_arch = "x86_64")]
mod amx;
pub mod assign;
mod exact;
mod expert;
mod experts;
mod gating;
mod quantized;
mod route;

pub(crate) use experts::Experts;
pub(crate) use quantized::QuantizedExperts;
pub(crate) use route::Route;
