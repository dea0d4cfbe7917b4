//! `dequantize`: stored values times the scale of their block.

use std::marker::PhantomData;

use lz_core::{KernelError, Run};
use lz_ops::{
    DequantizeCall, DequantizeFormat as Format, DequantizeGranularity as Granularity, DequantizeKernel,
    DequantizeOut,
};

use super::codes::{Code, LARGE_ZERO_POINT, Signed, Unsigned, read_code};
use super::scales::{Rule, Scales};
use crate::isa::require;
use crate::rows::{
    AnyRows, AnyRowsMut, Rows, Shape, for_each_range, is_stream_aligned, read_scalar, should_stream,
};
use crate::simd::{E2M1, E4M3, E5M2, FloatKind, Simd, vectors};

/// Dense rows, every format and granularity.
#[derive(Debug)]
pub(crate) struct DequantizeRows<S>(pub PhantomData<S>);

#[lz_macros::kernel(
    id = "cpu.dequantize",
    operation = "dequantize",
    backend = "cpu",
    priority = 60,
    quant_formats("int8", "int4", "fp8_e4m3", "fp8_e5m2", "mxfp4", "nvfp4", "uint8", "uint4", "int16", "uint16", "int2", "uint2"),
    strides = last_dense,
    deterministic,
    tp_invariant = true,
    batch_invariant = true
)]
impl<S: Simd> DequantizeKernel for DequantizeRows<S> {
    fn run(
        &self,
        call: &DequantizeCall<'_>,
        mut out: DequantizeOut<'_>,
        _run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let simd = require::<S>()?;
        let global = call.global_scale.as_ref().map(read_scalar::<f32>).transpose()?.unwrap_or(1.0);
        let plain = Rule::Quotient(1.0);
        match call.format {
            Format::Int8 => dequantize::<S, Signed<8>>(simd, call, &mut out, plain),
            Format::Int4 => dequantize::<S, Signed<4>>(simd, call, &mut out, plain),
            Format::Uint8 => dequantize::<S, Unsigned<8>>(simd, call, &mut out, plain),
            Format::Uint4 => dequantize::<S, Unsigned<4>>(simd, call, &mut out, plain),
            Format::Int16 => dequantize::<S, Signed<16>>(simd, call, &mut out, plain),
            Format::Uint16 => dequantize::<S, Unsigned<16>>(simd, call, &mut out, plain),
            Format::Int2 => dequantize::<S, Signed<2>>(simd, call, &mut out, plain),
            Format::Uint2 => dequantize::<S, Unsigned<2>>(simd, call, &mut out, plain),
            Format::Fp8E4m3 => dequantize::<S, E4M3>(simd, call, &mut out, plain),
            Format::Fp8E5m2 => dequantize::<S, E5M2>(simd, call, &mut out, plain),
            Format::Mxfp4 => dequantize::<S, E2M1>(simd, call, &mut out, plain),
            Format::Nvfp4 => dequantize::<S, E2M1>(simd, call, &mut out, Rule::Nvfp4 { global }),
        }
    }
}

fn dequantize<S: Simd, C: Code>(
    simd: S,
    call: &DequantizeCall<'_>,
    out: &mut DequantizeOut<'_>,
    rule: Rule,
) -> Result<(), KernelError> {
    let channels = call.axes.channels as usize;
    let from = AnyRows::new(&call.quantized, Shape::Last)?;
    let to = AnyRowsMut::new(&mut out.output, Shape::Last)?;
    let (inner, kind) = (to.width(), to.kind()?);
    let (shape, block) = match call.granularity {
        Granularity::Block => (Shape::Last, call.block_size as usize),
        _ => (Shape::Elements, inner),
    };
    let scales = Scales::new(&call.scale, shape)?;
    let zero_points = call.zero_point.as_ref().map(|view| Rows::<i32>::shaped(view, shape)).transpose()?;
    let bytes = inner * kind.size();
    let stream = should_stream(from.count() * bytes);
    for_each_range(from.count(), bytes + from.width(), &|range| {
        simd.vectorize(|| {
            for row in range {
                let (codes, to) = (from.start(row), to.start(row));
                let stream =
                    stream && is_stream_aligned::<S>(to, kind.size()) && block.is_multiple_of(S::LANES);
                let mut start = 0;
                while start < inner {
                    let end = inner.min(start + block);
                    let (group, index) = match call.granularity {
                        Granularity::Tensor => (0, 0),
                        Granularity::Channel | Granularity::Head => (row % channels, 0),
                        Granularity::Block => (row, start / block),
                    };
                    let factor = rule.factor(scales.get(group, index));
                    let zero_point = zero_points.map_or(0, |rows| rows.row(group)[index]);
                    let far = zero_point.unsigned_abs() >= LARGE_ZERO_POINT as u32 || !C::is_at_byte(start);
                    // SAFETY: the stored row has the codes of `inner` elements (validated); ranges are
                    // disjoint, so no other task writes this row.
                    unsafe {
                        if far {
                            dequantize_scalar::<C>(codes, start..end, kind, to, factor, zero_point);
                        } else {
                            let (codes, to) = (codes.add(C::offset(start)), to.add(start * kind.size()));
                            dequantize_block::<S, C>(
                                simd,
                                codes,
                                kind,
                                to,
                                end - start,
                                factor,
                                zero_point,
                                stream,
                            );
                        }
                    }
                    start = end;
                }
            }
            if stream {
                simd.fence();
            }
        });
    });
    Ok(())
}

/// # Safety
/// `codes` has the codes of `len` elements, and `to` space for as many elements of `kind`.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "three of them describe a row, two its scale")]
unsafe fn dequantize_block<S: Simd, C: Code>(
    s: S,
    codes: *const u8,
    kind: FloatKind,
    to: *mut u8,
    len: usize,
    factor: f32,
    zero_point: i32,
    stream: bool,
) {
    let (factor, zero_point) = (s.splat(factor), s.splat_i32(zero_point));
    vectors!(S, len, |span| {
        // SAFETY: the caller guarantees the codes and the elements; spans stay inside.
        unsafe { kind.put(s, to, span, s.mul(C::load(s, codes, span, zero_point), factor), stream) };
    });
}

/// Scalar path for integers: large zero points, and blocks that start inside a byte.
///
/// # Safety
/// The range is inside the rows `codes` and `to`.
#[cold]
#[inline(never)]
unsafe fn dequantize_scalar<C: Code>(
    codes: *const u8,
    range: std::ops::Range<usize>,
    kind: FloatKind,
    to: *mut u8,
    factor: f32,
    zero_point: i32,
) {
    for element in range {
        // SAFETY: the caller guarantees the codes.
        let code = unsafe { read_code::<C>(codes, element) };
        // SAFETY: the caller guarantees the element.
        unsafe { kind.set(to, element, (i64::from(code) - i64::from(zero_point)) as f32 * factor) };
    }
}
