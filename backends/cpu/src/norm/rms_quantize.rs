//! `norm.rms.quantize` and `norm.rms.add.quantize`.

use std::marker::PhantomData;

use lz_core::{KernelError, Run};
use lz_ops::{
    NormRmsAddQuantizeCall, NormRmsAddQuantizeFormat as AddFormat,
    NormRmsAddQuantizeGranularity as AddGranularity, NormRmsAddQuantizeKernel, NormRmsAddQuantizeOut,
    NormRmsQuantizeCall, NormRmsQuantizeFormat as PlainFormat,
    NormRmsQuantizeGranularity as PlainGranularity, NormRmsQuantizeKernel, NormRmsQuantizeOut,
    QuantizeFormat as Format,
};

use super::quantized::{Norm, Quantization, Scaling, run};
use crate::isa::require;
use crate::rows::any_row;
use crate::simd::Simd;

/// Dense rows of any float type, weight of any float type.
#[derive(Debug)]
pub(crate) struct RmsQuantizeRows<S>(pub PhantomData<S>);

#[lz_macros::kernel(
    id = "cpu.norm.rms.quantize",
    operation = "norm.rms.quantize",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16], W = [f32, f16, bf16]),
    quant_formats("int8", "fp8_e4m3", "fp8_e5m2"),
    strides = last_dense,
    deterministic,
    tp_invariant = true,
    batch_invariant = true
)]
impl<S: Simd> NormRmsQuantizeKernel for RmsQuantizeRows<S> {
    fn run(
        &self,
        call: &NormRmsQuantizeCall<'_>,
        mut out: NormRmsQuantizeOut<'_>,
        _run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let norm = Norm {
            x: call.x,
            weight: any_row(call.weight.as_ref())?,
            weight_offset: call.weight_offset,
            eps: call.eps,
        };
        let quantization = Quantization {
            format: match call.format {
                PlainFormat::Int8 => Format::Int8,
                PlainFormat::Fp8E4m3 => Format::Fp8E4m3,
                PlainFormat::Fp8E5m2 => Format::Fp8E5m2,
            },
            scaling: match call.granularity {
                PlainGranularity::Tensor => Scaling::Tensor,
                PlainGranularity::Row => Scaling::Row,
                PlainGranularity::Block => Scaling::Block(call.block_size as usize),
            },
            scale: call.scale,
            zero_point: None,
            global_scale: None,
        };
        run(require::<S>()?, &norm, None, &quantization, &mut out.quantized, out.scale_out.as_mut())
    }
}

/// The same, after the addition to the residual.
#[derive(Debug)]
pub(crate) struct RmsAddQuantizeRows<S>(pub PhantomData<S>);

#[lz_macros::kernel(
    id = "cpu.norm.rms.add.quantize",
    operation = "norm.rms.add.quantize",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16], W = [f32, f16, bf16]),
    quant_formats("int8", "fp8_e4m3", "fp8_e5m2"),
    strides = last_dense,
    deterministic,
    tp_invariant = true,
    batch_invariant = true
)]
impl<S: Simd> NormRmsAddQuantizeKernel for RmsAddQuantizeRows<S> {
    fn run(
        &self,
        call: &NormRmsAddQuantizeCall<'_>,
        mut out: NormRmsAddQuantizeOut<'_>,
        _run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let norm = Norm {
            x: call.x,
            weight: any_row(call.weight.as_ref())?,
            weight_offset: call.weight_offset,
            eps: call.eps,
        };
        let quantization = Quantization {
            format: match call.format {
                AddFormat::Int8 => Format::Int8,
                AddFormat::Fp8E4m3 => Format::Fp8E4m3,
                AddFormat::Fp8E5m2 => Format::Fp8E5m2,
            },
            scaling: match call.granularity {
                AddGranularity::Tensor => Scaling::Tensor,
                AddGranularity::Row => Scaling::Row,
                AddGranularity::Block => Scaling::Block(call.block_size as usize),
            },
            scale: call.scale,
            zero_point: None,
            global_scale: None,
        };
        let residual = Some(&mut out.residual);
        run(require::<S>()?, &norm, residual, &quantization, &mut out.quantized, out.scale_out.as_mut())
    }
}
