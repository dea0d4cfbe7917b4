//! The RMS norms fused with a following `quantize` of a block: the normalized rows are never written to memory.

use std::marker::PhantomData;

use lz_core::expr::Value;
use lz_core::{Arg, FusedKernel, FusedPart, KernelEntry, KernelError, OutArg, Run, TensorView};
use lz_ops::{NORM_RMS_ADD, QuantizeFormat, QuantizeGranularity};

use super::quantized::{Norm, Quantization, Scaling, run};
use super::{RmsAddRows, RmsRows};
use crate::isa::require;
use crate::rows::any_row;
use crate::simd::Simd;

/// What the norms fuse.
const NEIGHBOR: &str = "quantize";

/// Any format, if a row computes its own scales or scales are given.
struct NormThenQuantize<S>(PhantomData<S>);

impl<S: Simd> RmsRows<S> {
    /// The registry entry: fuses a following `quantize`.
    pub(crate) fn fusing_quantize(self) -> KernelEntry {
        fusing::<S>(self.entry())
    }
}

impl<S: Simd> RmsAddRows<S> {
    /// The registry entry: fuses a following `quantize`.
    pub(crate) fn fusing_quantize(self) -> KernelEntry {
        fusing::<S>(self.entry())
    }
}

fn fusing<S: Simd>(mut entry: KernelEntry) -> KernelEntry {
    std::sync::Arc::make_mut(&mut entry.spec).fuses = vec![NEIGHBOR.to_owned()];
    entry.fusing(NormThenQuantize::<S>(PhantomData))
}

impl<S: Simd> FusedKernel for NormThenQuantize<S> {
    fn run_fused(
        &self,
        parts: &mut [FusedPart<'_>],
        outputs: &mut [OutArg<'_>],
        _run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let [norm, quantize] = parts else { return Err(unexpected("two operations")) };
        let adds = norm.operation.name == NORM_RMS_ADD.name;
        let (inputs, params) = norm.args.split_at_mut(if adds { 3 } else { 2 });
        let (x, residual, weight) = match inputs {
            [x, Arg::TensorMut(residual), weight] => (x, Some(residual), weight),
            [x, weight] => (x, None, weight),
            _ => return Err(unexpected("the inputs of a norm")),
        };
        let (Some(x), [Arg::Value(Value::Float(eps)), Arg::Value(Value::Float(offset))]) =
            (x.tensor(), params)
        else {
            return Err(unexpected("the params of a norm"));
        };
        let weight_view = weight.tensor();
        let weight = any_row(weight_view.as_ref())?;
        let norm = Norm { x, weight, weight_offset: *offset as f32, eps: *eps as f32 };
        let quantization = quantization(&quantize.args, x)?;
        let [OutArg::Tensor(codes), scale_out] = outputs else { return Err(unexpected("the codes")) };
        let scale_out = match scale_out {
            OutArg::Tensor(tensor) => Some(tensor),
            _ => None,
        };
        run(require::<S>()?, &norm, residual, &quantization, codes, scale_out)
    }
}

/// The arguments of `quantize`. Computed scales that several rows share need a pass over all rows, which is not fused.
fn quantization<'a>(args: &'a [Arg<'_>], x: TensorView<'_>) -> Result<Quantization<'a>, KernelError> {
    let [_, scale, zero_point, global_scale, format, granularity, block_size] = args else {
        return Err(unexpected("the arguments of `quantize`"));
    };
    let (
        Arg::Value(Value::Enum(format)),
        Arg::Value(Value::Enum(granularity)),
        Arg::Value(Value::Int(block_size)),
    ) = (format, granularity, block_size)
    else {
        return Err(unexpected("the params of `quantize`"));
    };
    let (Some(format), Some(granularity)) =
        (QuantizeFormat::from_number(*format), QuantizeGranularity::from_number(*granularity))
    else {
        return Err(unexpected("a case of an enum"));
    };
    let outer: i64 = x.shape().iter().rev().skip(2).product();
    let scaling = match granularity {
        QuantizeGranularity::Block => Scaling::Block(*block_size as usize),
        QuantizeGranularity::Channel | QuantizeGranularity::Head if outer == 1 => Scaling::Row,
        QuantizeGranularity::Tensor if scale.is_given() => Scaling::Tensor,
        _ => return Err(KernelError::declined("scales that rows share need a pass over all rows")),
    };
    Ok(Quantization {
        format,
        scaling,
        scale: scale.tensor(),
        zero_point: zero_point.tensor(),
        global_scale: global_scale.tensor(),
    })
}

fn unexpected(what: &str) -> KernelError {
    KernelError::declined(format!("a fused norm expects {what}"))
}
