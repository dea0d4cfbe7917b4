//! Tests of the CPU kernels beyond conformance with the references.

mod attention;
mod codes;
mod extreme_values;
mod internals;
mod mlp;
mod packed_convolutions;
mod packed_layers;
mod sampling;
mod simd;
mod strided;
