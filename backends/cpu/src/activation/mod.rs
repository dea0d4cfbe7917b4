//! Activation kernels: kernel attributes and dispatch. The functions themselves are in `functions`.

mod functions;

use std::marker::PhantomData;

use lz_core::{KernelError, Run};
use lz_ops::{
    ActivationGeluApproximate, ActivationGeluCall, ActivationGeluKernel, ActivationGeluMulApproximate,
    ActivationGeluMulCall, ActivationGeluMulKernel, ActivationGeluMulOut, ActivationGeluOut,
    ActivationReluCall, ActivationReluKernel, ActivationReluOut, ActivationReluSquaredCall,
    ActivationReluSquaredKernel, ActivationReluSquaredOut, ActivationSiluCall, ActivationSiluKernel,
    ActivationSiluMulCall, ActivationSiluMulKernel, ActivationSiluMulOut, ActivationSiluOut,
};

use crate::isa::require;
use crate::pointwise;
use crate::simd::Simd;
pub(crate) use functions::{Gate, Gelu, GeluTanh, Relu, Silu};
use functions::{GatedProduct, ReluSquared};

/// `max(x, 0)`.
#[derive(Debug)]
pub(crate) struct ReluElements<S>(pub PhantomData<S>);

#[lz_macros::kernel(
    id = "cpu.activation.relu",
    operation = "activation.relu",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16]),
    strides = last_dense,
    deterministic,
    tp_invariant = true,
    batch_invariant = true
)]
impl<S: Simd> ActivationReluKernel for ReluElements<S> {
    fn run(
        &self,
        call: &ActivationReluCall<'_>,
        mut out: ActivationReluOut<'_>,
        _run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let simd = require::<S>()?;
        let (inputs, output) = ([&call.x], &mut out.output);
        pointwise::run::<S, 1>(simd, inputs, output, Relu)
    }
}

/// `max(x, 0)²`.
#[derive(Debug)]
pub(crate) struct ReluSquaredElements<S>(pub PhantomData<S>);

#[lz_macros::kernel(
    id = "cpu.activation.relu_squared",
    operation = "activation.relu_squared",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16]),
    strides = last_dense,
    deterministic,
    tp_invariant = true,
    batch_invariant = true
)]
impl<S: Simd> ActivationReluSquaredKernel for ReluSquaredElements<S> {
    fn run(
        &self,
        call: &ActivationReluSquaredCall<'_>,
        mut out: ActivationReluSquaredOut<'_>,
        _run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let simd = require::<S>()?;
        let (inputs, output) = ([&call.x], &mut out.output);
        pointwise::run::<S, 1>(simd, inputs, output, ReluSquared)
    }
}

/// `x / (1 + exp(-alpha x))`.
#[derive(Debug)]
pub(crate) struct SiluElements<S>(pub PhantomData<S>);

#[lz_macros::kernel(
    id = "cpu.activation.silu",
    operation = "activation.silu",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16]),
    strides = last_dense,
    deterministic,
    tp_invariant = true,
    batch_invariant = true
)]
impl<S: Simd> ActivationSiluKernel for SiluElements<S> {
    fn run(
        &self,
        call: &ActivationSiluCall<'_>,
        mut out: ActivationSiluOut<'_>,
        _run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let simd = require::<S>()?;
        let (inputs, output) = ([&call.x], &mut out.output);
        pointwise::run::<S, 1>(simd, inputs, output, Silu { alpha: call.alpha })
    }
}

/// `silu(gate) * up`.
#[derive(Debug)]
pub(crate) struct SiluMulElements<S>(pub PhantomData<S>);

#[lz_macros::kernel(
    id = "cpu.activation.silu_mul",
    operation = "activation.silu_mul",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16]),
    strides = last_dense,
    deterministic,
    tp_invariant = true,
    batch_invariant = true
)]
impl<S: Simd> ActivationSiluMulKernel for SiluMulElements<S> {
    fn run(
        &self,
        call: &ActivationSiluMulCall<'_>,
        mut out: ActivationSiluMulOut<'_>,
        _run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let simd = require::<S>()?;
        let (inputs, output) = ([&call.gate, &call.up], &mut out.output);
        pointwise::run::<S, 2>(simd, inputs, output, GatedProduct(Silu { alpha: 1.0 }))
    }
}

/// Both forms of gelu.
#[derive(Debug)]
pub(crate) struct GeluElements<S>(pub PhantomData<S>);

#[lz_macros::kernel(
    id = "cpu.activation.gelu",
    operation = "activation.gelu",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16]),
    strides = last_dense,
    deterministic,
    tp_invariant = true,
    batch_invariant = true
)]
impl<S: Simd> ActivationGeluKernel for GeluElements<S> {
    fn run(
        &self,
        call: &ActivationGeluCall<'_>,
        mut out: ActivationGeluOut<'_>,
        _run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let simd = require::<S>()?;
        let (inputs, output) = ([&call.x], &mut out.output);
        match call.approximate {
            ActivationGeluApproximate::None => pointwise::run::<S, 1>(simd, inputs, output, Gelu),
            ActivationGeluApproximate::Tanh => pointwise::run::<S, 1>(simd, inputs, output, GeluTanh),
        }
    }
}

/// `gelu(gate) * up`, both forms.
#[derive(Debug)]
pub(crate) struct GeluMulElements<S>(pub PhantomData<S>);

#[lz_macros::kernel(
    id = "cpu.activation.gelu_mul",
    operation = "activation.gelu_mul",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16]),
    strides = last_dense,
    deterministic,
    tp_invariant = true,
    batch_invariant = true
)]
impl<S: Simd> ActivationGeluMulKernel for GeluMulElements<S> {
    fn run(
        &self,
        call: &ActivationGeluMulCall<'_>,
        mut out: ActivationGeluMulOut<'_>,
        _run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let simd = require::<S>()?;
        let (inputs, output) = ([&call.gate, &call.up], &mut out.output);
        match call.approximate {
            ActivationGeluMulApproximate::None => {
                pointwise::run::<S, 2>(simd, inputs, output, GatedProduct(Gelu))
            }
            ActivationGeluMulApproximate::Tanh => {
                pointwise::run::<S, 2>(simd, inputs, output, GatedProduct(GeluTanh))
            }
        }
    }
}
