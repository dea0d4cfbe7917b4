//! `quantize`: rows with their own scales are encoded in one pass. Scales shared between rows are computed in a separate
//! pass, whose result does not depend on the order of rows.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, Ordering};

use lz_core::{KernelError, Run};
use lz_ops::{
    QuantizeCall, QuantizeFormat as Format, QuantizeGranularity as Granularity, QuantizeKernel, QuantizeOut,
};

use super::codes::{Code, Signed, Unsigned};
use super::encode::{EncodeRow, Encoder, ScaleLayout, ScaleSource, largest_bits};
use super::scales::{Rule, SCALE_LANES, Scales, ScalesMut};
use crate::isa::require;
use crate::rows::{AnyRows, AnyRowsMut, Rows, Shape, for_each_range, read_scalar};
use crate::simd::{E2M1, E4M3, E5M2, Simd};

/// Dense rows, every format and granularity.
#[derive(Debug)]
pub(crate) struct QuantizeRows<S>(pub PhantomData<S>);

#[lz_macros::kernel(
    id = "cpu.quantize",
    operation = "quantize",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16]),
    quant_formats("int8", "int4", "fp8_e4m3", "fp8_e5m2", "mxfp4", "nvfp4", "uint8", "uint4", "int16", "uint16", "int2", "uint2"),
    strides = last_dense,
    workspace = "0 if granularity == block or given(scale) or (granularity != tensor and outer == 1) else (4 if granularity == tensor else 4 * channels)",
    deterministic,
    tp_invariant = true
)]
impl<S: Simd> QuantizeKernel for QuantizeRows<S> {
    fn run(
        &self,
        call: &QuantizeCall<'_>,
        mut out: QuantizeOut<'_>,
        run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let simd = require::<S>()?;
        let global = call.global_scale.as_ref().map(read_scalar::<f32>).transpose()?.unwrap_or(1.0);
        let rule = Rule::of(call.format, global);
        match call.format {
            Format::Int8 => quantize::<S, Signed<8>>(simd, call, &mut out, run, rule),
            Format::Int4 => quantize::<S, Signed<4>>(simd, call, &mut out, run, rule),
            Format::Uint8 => quantize::<S, Unsigned<8>>(simd, call, &mut out, run, rule),
            Format::Uint4 => quantize::<S, Unsigned<4>>(simd, call, &mut out, run, rule),
            Format::Int16 => quantize::<S, Signed<16>>(simd, call, &mut out, run, rule),
            Format::Uint16 => quantize::<S, Unsigned<16>>(simd, call, &mut out, run, rule),
            Format::Int2 => quantize::<S, Signed<2>>(simd, call, &mut out, run, rule),
            Format::Uint2 => quantize::<S, Unsigned<2>>(simd, call, &mut out, run, rule),
            Format::Fp8E4m3 => quantize::<S, E4M3>(simd, call, &mut out, run, rule),
            Format::Fp8E5m2 => quantize::<S, E5M2>(simd, call, &mut out, run, rule),
            Format::Mxfp4 | Format::Nvfp4 => quantize::<S, E2M1>(simd, call, &mut out, run, rule),
        }
    }
}

fn quantize<S: Simd, C: Code>(
    simd: S,
    call: &QuantizeCall<'_>,
    out: &mut QuantizeOut<'_>,
    run: &mut Run<'_>,
    rule: Rule,
) -> Result<(), KernelError> {
    let (inner, channels) = (call.axes.inner as usize, call.axes.channels as usize);
    let (scale_layout, shape, block) = match call.granularity {
        Granularity::Tensor => (ScaleLayout::Tensor, Shape::Elements, inner),
        Granularity::Channel | Granularity::Head => (ScaleLayout::Channel(channels), Shape::Elements, inner),
        Granularity::Block => (ScaleLayout::Row, Shape::Last, call.block_size as usize),
    };
    let x = AnyRows::new(&call.x, Shape::Last)?;
    let kind = x.kind()?;
    let encoder = Encoder {
        kind,
        rule,
        scale_layout,
        block: block.max(1),
        blocks: if matches!(scale_layout, ScaleLayout::Row) { inner.div_ceil(block.max(1)) } else { 1 },
        zero_points: call.zero_point.as_ref().map(|view| Rows::shaped(view, shape)).transpose()?,
    };
    let to = AnyRowsMut::new(&mut out.quantized, Shape::Last)?;
    let bytes = inner * kind.size() + C::offset(inner);
    let source = match (&call.scale, &mut out.scale_out) {
        (Some(provided), _) => ScaleSource::Given(Scales::new(provided, shape)?),
        (None, None) => {
            return Err(KernelError::failed("the call has neither `scale` nor an output for `scale_out`"));
        }
        (None, Some(tensor)) => {
            let scales = ScalesMut::new(tensor, shape)?;
            let groups = match scale_layout {
                ScaleLayout::Tensor => 1,
                // Each channel is one row, which computes and uses its scale in one pass, like a block.
                ScaleLayout::Channel(_) if call.axes.outer == 1 => 0,
                ScaleLayout::Channel(channels) => channels,
                ScaleLayout::Row => 0,
            };
            if matches!(scale_layout, ScaleLayout::Row) || (groups == 0 && channels > 0) {
                ScaleSource::Row(scales)
            } else {
                let workspace = run.workspace(4 * groups as u64)?;
                ScaleSource::Shared(share_scales(simd, &x, &encoder, bytes, &scales, workspace))
            }
        }
    };
    for_each_range(x.count(), bytes, &|range| {
        for row in range {
            // Ranges are disjoint, so no other task writes this row, which has space for the codes of a row
            // of x (validated).
            let row = EncodeRow {
                simd,
                encoder: &encoder,
                x: x.start(row),
                len: x.len(row),
                row,
                to: to.start(row),
                source: &source,
                code: PhantomData::<C>,
            };
            row.encode();
        }
    });
    Ok(())
}

/// Computes and writes scales that several rows share; returns them by group.
fn share_scales<'a, S: Simd>(
    simd: S,
    x: &AnyRows<'_>,
    encoder: &Encoder<'_>,
    bytes: usize,
    scales: &ScalesMut<'_>,
    workspace: &'a mut [u8],
) -> &'a [f32] {
    if workspace.is_empty() {
        return &[];
    }
    workspace.fill(0);
    // SAFETY: any bits are a valid u32, and the workspace alignment is larger than that of u32; it is
    // borrowed exclusively.
    let largest = unsafe {
        std::slice::from_raw_parts(workspace.as_mut_ptr().cast::<AtomicU32>(), workspace.len() / 4)
    };
    for_each_range(x.count(), bytes, &|range| {
        simd.vectorize(|| {
            for row in range {
                let (group, _) = encoder.scale_layout.of(row, 0);
                // SAFETY: the row is a row of x.
                let bits = unsafe { largest_bits(simd, encoder.kind, x.start(row), x.len(row)) };
                // The maximum does not depend on the order.
                largest[group].fetch_max(bits as u32, Ordering::Relaxed);
            }
        });
    });
    for (group, bits_or_scale) in largest.iter().enumerate() {
        let bits = bits_or_scale.load(Ordering::Relaxed);
        let (value, code) = simd.vectorize(|| first_lane(simd, encoder.rule, f32::from_bits(bits)));
        // SAFETY: no other reference to the scales exists yet.
        unsafe { scales.set(group, 0, value, code) };
        bits_or_scale.store(value.to_bits(), Ordering::Relaxed);
    }
    // SAFETY: as above; nothing writes any more.
    unsafe { std::slice::from_raw_parts(workspace.as_ptr().cast::<f32>(), workspace.len() / 4) }
}

#[inline(always)]
fn first_lane<S: Simd>(s: S, rule: Rule, largest: f32) -> (f32, i32) {
    let (value, code) = rule.scale(s, s.splat(largest));
    let (mut values, mut codes) = ([0.0; SCALE_LANES], [0.0; SCALE_LANES]);
    // SAFETY: the buffers have space for all lanes.
    unsafe {
        s.store(values.as_mut_ptr(), value);
        s.store(codes.as_mut_ptr(), s.bitcast_f32(code));
    }
    (values[0], codes[0].to_bits() as i32)
}
