//! `quantize`: computes the absolute maximum of a row's blocks, and divides them while they are in L1. Scales
//! shared between rows are computed in a separate pass, whose result does not depend on the order of rows.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, Ordering};

use lz_core::{KernelError, Run};
use lz_ops::{
    QuantizeCall, QuantizeFormat as Format, QuantizeGranularity as Granularity, QuantizeKernel, QuantizeOut,
};

use super::codes::{Code, Integer, LARGE_ZERO_POINT};
use super::scales::{Rule, SCALE_LANES, Scales, ScalesMut};
use crate::isa::require;
use crate::rows::{AnyRows, AnyRowsMut, Rows, Shape, for_each_range, read_scalar};
use crate::simd::{E2M1, E4M3, E5M2, FloatKind, Simd, Work, vectors};

/// Dense rows, every format and granularity.
#[derive(Debug)]
pub(crate) struct QuantizeRows<S>(pub PhantomData<S>);

#[lz_macros::kernel(
    id = "cpu.quantize",
    operation = "quantize",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16]),
    quant_formats("int8", "int4", "fp8_e4m3", "fp8_e5m2", "mxfp4", "nvfp4"),
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
        match call.format {
            Format::Int8 => quantize::<S, Integer<8>>(simd, call, &mut out, run, Rule::Quotient(127.0)),
            Format::Int4 => quantize::<S, Integer<4>>(simd, call, &mut out, run, Rule::Quotient(7.0)),
            Format::Fp8E4m3 => quantize::<S, E4M3>(simd, call, &mut out, run, Rule::Quotient(448.0)),
            Format::Fp8E5m2 => quantize::<S, E5M2>(simd, call, &mut out, run, Rule::Quotient(57344.0)),
            Format::Mxfp4 => quantize::<S, E2M1>(simd, call, &mut out, run, Rule::PowerOfTwo),
            Format::Nvfp4 => quantize::<S, E2M1>(simd, call, &mut out, run, Rule::Nvfp4 { global }),
        }
    }
}

/// Which scale a block of a row uses.
#[derive(Debug, Clone, Copy)]
enum ScaleLayout {
    /// Each row has its own scales, one per block.
    Row,
    /// One per channel.
    Channel(usize),
    /// One for the whole tensor.
    Tensor,
}

impl ScaleLayout {
    /// Row and index of the scale of a block.
    #[inline(always)]
    fn of(self, row: usize, block: usize) -> (usize, usize) {
        match self {
            ScaleLayout::Row => (row, block),
            ScaleLayout::Channel(channels) => (row % channels, 0),
            ScaleLayout::Tensor => (0, 0),
        }
    }
}

/// Where the scales of a row come from.
enum ScaleSource<'a> {
    /// Given by the caller.
    Given(Scales<'a>),
    /// Computed from the row itself, which owns its scales.
    Row(ScalesMut<'a>),
    /// Computed in a pass over all rows, by group.
    Shared(&'a [f32]),
}

/// Parameters of all rows.
struct Task<'a> {
    x: AnyRows<'a>,
    kind: FloatKind,
    rule: Rule,
    scale_layout: ScaleLayout,
    /// Elements per block, and blocks per row.
    block: usize,
    blocks: usize,
    zero_points: Option<Rows<'a, i32>>,
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
    let task = Task {
        x,
        kind,
        rule,
        scale_layout,
        block: block.max(1),
        blocks: if matches!(scale_layout, ScaleLayout::Row) { inner.div_ceil(block.max(1)) } else { 1 },
        zero_points: call.zero_point.as_ref().map(|view| Rows::shaped(view, shape)).transpose()?,
    };
    let to = AnyRowsMut::new(&mut out.quantized, Shape::Last)?;
    let bytes = inner * kind.size() + inner / C::PER_BYTE;
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
                ScaleSource::Shared(share_scales(simd, &task, bytes, &scales, workspace))
            }
        }
    };
    for_each_range(task.x.count(), bytes, |range| {
        for row in range {
            // Ranges are disjoint, so no other task writes this row, which has space for the codes of a row
            // of x (validated).
            let code = PhantomData::<C>;
            simd.perform(Row { simd, task: &task, row, to: to.start(row), source: &source, code });
        }
    });
    Ok(())
}

/// Computes and writes scales that several rows share; returns them by group.
fn share_scales<'a, S: Simd>(
    simd: S,
    task: &Task<'_>,
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
    for_each_range(task.x.count(), bytes, |range| {
        simd.vectorize(|| {
            for row in range {
                let (group, _) = task.scale_layout.of(row, 0);
                // SAFETY: the row is a row of x.
                let bits = unsafe { largest_bits(simd, task.kind, task.x.start(row), task.x.len(row)) };
                // The maximum does not depend on the order.
                largest[group].fetch_max(bits as u32, Ordering::Relaxed);
            }
        });
    });
    for (group, bits_or_scale) in largest.iter().enumerate() {
        let bits = bits_or_scale.load(Ordering::Relaxed);
        let (value, code) = simd.vectorize(|| first_lane(simd, task.rule, f32::from_bits(bits)));
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

/// Bits of the largest absolute value; NaN has larger bits than any number.
///
/// # Safety
/// `x` has `len` readable elements of `kind`.
#[inline(always)]
unsafe fn largest_bits<S: Simd>(s: S, kind: FloatKind, x: *const u8, len: usize) -> i32 {
    let mut largest = [s.splat_i32(0); 2];
    vectors!(S, len, |span, k of 2| {
        // SAFETY: spans stay inside the row.
        let bits = s.to_bits(s.abs(unsafe { kind.load(s, x, span) }));
        largest[k] = s.max_i32(largest[k], bits);
    });
    s.largest_i32(s.max_i32(largest[0], largest[1]))
}

/// One row. The creator guarantees that `to` has space for its codes, and exclusive access to them.
struct Row<'r, 'x, 'o, S, C> {
    simd: S,
    task: &'r Task<'x>,
    row: usize,
    to: *mut u8,
    source: &'r ScaleSource<'o>,
    code: PhantomData<C>,
}

impl<S: Simd, C: Code> Work for Row<'_, '_, '_, S, C> {
    #[inline(always)]
    fn perform(self) {
        // SAFETY: guaranteed by the creator.
        unsafe { quantize_row::<S, C>(self.simd, self.task, self.row, self.to, self.source) };
    }
}

/// # Safety
/// `to` has space for the codes of a row of x, and no other reference to it exists.
#[inline(always)]
unsafe fn quantize_row<S: Simd, C: Code>(
    s: S,
    task: &Task<'_>,
    row: usize,
    to: *mut u8,
    source: &ScaleSource<'_>,
) {
    let (x, len, kind) = (task.x.start(row), task.x.len(row), task.kind);
    let range_of = |block: usize| {
        let start = block * task.block;
        start..len.min(start + task.block)
    };
    let mut first = 0;
    while first < task.blocks {
        let count = (task.blocks - first).min(S::LANES);
        let (mut scales, mut zero_points) = ([0.0f32; SCALE_LANES], [0i32; SCALE_LANES]);
        match source {
            ScaleSource::Given(provided) => {
                for block in 0..count {
                    let (row, index) = task.scale_layout.of(row, first + block);
                    scales[block] = provided.get(row, index);
                    zero_points[block] = task.zero_points.map_or(0, |rows| rows.row(row)[index]);
                }
            }
            ScaleSource::Shared(shared) => scales[0] = shared[task.scale_layout.of(row, 0).0],
            ScaleSource::Row(to) => {
                let (mut largest, mut codes) = ([0.0f32; SCALE_LANES], [0.0f32; SCALE_LANES]);
                for (block, largest) in largest.iter_mut().enumerate().take(count) {
                    let range = range_of(first + block);
                    // SAFETY: the block is inside the row.
                    let bits =
                        unsafe { largest_bits(s, kind, x.add(range.start * kind.size()), range.len()) };
                    *largest = f32::from_bits(bits as u32);
                }
                // SAFETY: the buffers have space for all lanes.
                unsafe {
                    let (value, code) = task.rule.scale(s, s.load(largest.as_ptr()));
                    s.store(scales.as_mut_ptr(), value);
                    s.store(codes.as_mut_ptr(), s.bitcast_f32(code));
                }
                for block in 0..count {
                    let (row, index) = task.scale_layout.of(row, first + block);
                    // SAFETY: scales computed from a row belong to that row only.
                    unsafe { to.set(row, index, scales[block], codes[block].to_bits() as i32) };
                }
            }
        }
        for block in 0..count {
            let range = range_of(first + block);
            let (divisor, zero_point) = (task.rule.factor(scales[block]), zero_points[block]);
            let inside_a_byte = task.blocks > 1 && !task.block.is_multiple_of(C::PER_BYTE);
            if inside_a_byte || zero_point.unsigned_abs() >= LARGE_ZERO_POINT as u32 {
                // SAFETY: the block is inside the row, and the caller guarantees the codes.
                unsafe { quantize_scalar(kind, x, range, to, C::PER_BYTE, divisor, zero_point) };
                continue;
            }
            let (divisor, zero_point) = (s.splat(divisor), s.splat_i32(zero_point));
            // SAFETY: the block is inside the row, and its codes are inside the stored row (validated).
            unsafe {
                let (from, to) = (x.add(range.start * kind.size()), to.add(range.start / C::PER_BYTE));
                vectors!(S, range.len(), |span| {
                    C::store(s, to, span, s.div(kind.load(s, from, span), divisor), zero_point);
                });
            }
        }
        first += count;
    }
}

/// Scalar path for integers: large zero points, and blocks that end inside a byte.
///
/// # Safety
/// The range is inside the row `x`, and `to` has space for the row's codes.
#[cold]
#[inline(never)]
unsafe fn quantize_scalar(
    kind: FloatKind,
    x: *const u8,
    range: std::ops::Range<usize>,
    to: *mut u8,
    per_byte: usize,
    divisor: f32,
    zero_point: i32,
) {
    let (lowest, highest) = if per_byte == 1 { (-128, 127) } else { (-8, 7) };
    for index in range {
        // SAFETY: the caller guarantees the element.
        let quotient = unsafe { kind.get(x, index) } / divisor;
        // The cast saturates and turns NaN to 0; the clamp keeps the sum exact.
        let whole = (quotient.round_ties_even() as i64).clamp(-(1 << 62), 1 << 62);
        let code = (whole + i64::from(zero_point)).clamp(lowest, highest) as u8;
        // SAFETY: the caller guarantees the codes.
        let byte = unsafe { &mut *to.add(index / per_byte) };
        match (per_byte, index % 2) {
            (1, _) => *byte = code,
            // Writing the low nibble clears the high one, so that an odd last element has 0 above it.
            (_, 0) => *byte = code & 15,
            _ => *byte |= code << 4,
        }
    }
}
