//! `quantize`: a row's blocks are looked at for their largest values and divided while they are in the first-level cache; scales
//! that rows share come from a pass of their own, where the order of the rows does not matter.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, Ordering};

use lz_core::{KernelError, Run};
use lz_ops::{
    QuantizeCall, QuantizeFormat as Format, QuantizeGranularity as Granularity, QuantizeKernel, QuantizeOut,
};

use super::codes::{Code, FAR, Integer};
use super::scales::{AT_ONCE, Rule, Scales, ScalesMut};
use crate::isa::require;
use crate::rows::{AnyRows, AnyRowsMut, Rows, Shape, for_each_range, read_scalar};
use crate::simd::{E2M1, E4M3, E5M2, FloatKind, Simd, Work, vectors};

/// Rows that are dense, in every format and granularity.
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
            Format::Nvfp4 => quantize::<S, E2M1>(simd, call, &mut out, run, Rule::Sixth { global }),
        }
    }
}

/// Which scale belongs to a block of a row.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// Each row has scales of its own, one a block.
    Row,
    /// One for each channel.
    Channel(usize),
    /// One for all.
    Tensor,
}

impl Place {
    /// Row and position of the scale of a block.
    #[inline(always)]
    fn of(self, row: usize, block: usize) -> (usize, usize) {
        match self {
            Place::Row => (row, block),
            Place::Channel(channels) => (row % channels, 0),
            Place::Tensor => (0, 0),
        }
    }
}

/// Where the scales of a row come from.
enum Origin<'a> {
    /// The caller.
    Given(Scales<'a>),
    /// The row itself, which owns its scales.
    Row(ScalesMut<'a>),
    /// A pass over all rows, by group.
    Shared(&'a [f32]),
}

/// What every row needs to know.
struct Task<'a> {
    x: AnyRows<'a>,
    kind: FloatKind,
    rule: Rule,
    place: Place,
    /// Elements a block, and blocks a row.
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
    let (place, shape, block) = match call.granularity {
        Granularity::Tensor => (Place::Tensor, Shape::Elements, inner),
        Granularity::Channel | Granularity::Head => (Place::Channel(channels), Shape::Elements, inner),
        Granularity::Block => (Place::Row, Shape::Last, call.block_size as usize),
    };
    let x = AnyRows::new(&call.x, Shape::Last)?;
    let kind = x.kind()?;
    let task = Task {
        x,
        kind,
        rule,
        place,
        block: block.max(1),
        blocks: if matches!(place, Place::Row) { inner.div_ceil(block.max(1)) } else { 1 },
        zero_points: call.zero_point.as_ref().map(|view| Rows::shaped(view, shape)).transpose()?,
    };
    let to = AnyRowsMut::new(&mut out.quantized, Shape::Last)?;
    let bytes = inner * kind.size() + inner / C::PER_BYTE;
    let origin = match (&call.scale, &mut out.scale_out) {
        (Some(given), _) => Origin::Given(Scales::new(given, shape)?),
        (None, None) => return Err(KernelError::failed("there are neither scales nor a place for them")),
        (None, Some(tensor)) => {
            let scales = ScalesMut::new(tensor, shape)?;
            let groups = match place {
                Place::Tensor => 1,
                // Each channel is one row, which finds its scale and uses it in one pass, as a block does.
                Place::Channel(_) if call.axes.outer == 1 => 0,
                Place::Channel(channels) => channels,
                Place::Row => 0,
            };
            if matches!(place, Place::Row) || (groups == 0 && channels > 0) {
                Origin::Row(scales)
            } else {
                let workspace = run.workspace(4 * groups as u64)?;
                Origin::Shared(share_scales(simd, &task, bytes, &scales, workspace))
            }
        }
    };
    for_each_range(task.x.count(), bytes, |range| {
        for row in range {
            // Ranges do not overlap, so nobody else has this row, which has the codes of a row of x as the call was checked.
            let code = PhantomData::<C>;
            simd.perform(Row { simd, task: &task, row, to: to.start(row), origin: &origin, code });
        }
    });
    Ok(())
}

/// Scales that several rows share: written, and returned by group.
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
    // SAFETY: any bits are a u32, and the workspace is aligned far beyond one; it is borrowed exclusively.
    let largest = unsafe {
        std::slice::from_raw_parts(workspace.as_mut_ptr().cast::<AtomicU32>(), workspace.len() / 4)
    };
    for_each_range(task.x.count(), bytes, |range| {
        simd.vectorize(|| {
            for row in range {
                let (group, _) = task.place.of(row, 0);
                // SAFETY: the row is one of x.
                let bits = unsafe { largest_bits(simd, task.kind, task.x.start(row), task.x.len(row)) };
                // The largest of all, in whatever order they come.
                largest[group].fetch_max(bits as u32, Ordering::Relaxed);
            }
        });
    });
    for (group, place) in largest.iter().enumerate() {
        let bits = place.load(Ordering::Relaxed);
        let (value, code) = simd.vectorize(|| first_lane(simd, task.rule, f32::from_bits(bits)));
        // SAFETY: nobody else has the scales yet.
        unsafe { scales.set(group, 0, value, code) };
        place.store(value.to_bits(), Ordering::Relaxed);
    }
    // SAFETY: as above; nobody writes any more.
    unsafe { std::slice::from_raw_parts(workspace.as_ptr().cast::<f32>(), workspace.len() / 4) }
}

#[inline(always)]
fn first_lane<S: Simd>(s: S, rule: Rule, largest: f32) -> (f32, i32) {
    let (value, code) = rule.scale(s, s.splat(largest));
    let (mut values, mut codes) = ([0.0; AT_ONCE], [0.0; AT_ONCE]);
    // SAFETY: there is room for all lanes.
    unsafe {
        s.store(values.as_mut_ptr(), value);
        s.store(codes.as_mut_ptr(), s.from_bits(code));
    }
    (values[0], codes[0].to_bits() as i32)
}

/// The bits of the largest absolute value; those of a NaN are larger than any number's.
///
/// # Safety
/// `x` has `len` readable elements of the kind.
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

/// One row. Whoever makes it guarantees that `to` has room for its codes, and that nobody else has them now.
struct Row<'r, 'x, 'o, S, C> {
    simd: S,
    task: &'r Task<'x>,
    row: usize,
    to: *mut u8,
    origin: &'r Origin<'o>,
    code: PhantomData<C>,
}

impl<S: Simd, C: Code> Work for Row<'_, '_, '_, S, C> {
    #[inline(always)]
    fn perform(self) {
        // SAFETY: as whoever made it vouches.
        unsafe { quantize_row::<S, C>(self.simd, self.task, self.row, self.to, self.origin) };
    }
}

/// # Safety
/// `to` has room for the codes of a row of x, and nobody else has it now.
#[inline(always)]
unsafe fn quantize_row<S: Simd, C: Code>(
    s: S,
    task: &Task<'_>,
    row: usize,
    to: *mut u8,
    origin: &Origin<'_>,
) {
    let (x, len, kind) = (task.x.start(row), task.x.len(row), task.kind);
    let range_of = |block: usize| {
        let start = block * task.block;
        start..len.min(start + task.block)
    };
    let mut first = 0;
    while first < task.blocks {
        let count = (task.blocks - first).min(S::LANES);
        let (mut scales, mut zero_points) = ([0.0f32; AT_ONCE], [0i32; AT_ONCE]);
        match origin {
            Origin::Given(given) => {
                for block in 0..count {
                    let (row, place) = task.place.of(row, first + block);
                    scales[block] = given.get(row, place);
                    zero_points[block] = task.zero_points.map_or(0, |rows| rows.row(row)[place]);
                }
            }
            Origin::Shared(shared) => scales[0] = shared[task.place.of(row, 0).0],
            Origin::Row(to) => {
                let (mut largest, mut codes) = ([0.0f32; AT_ONCE], [0.0f32; AT_ONCE]);
                for (block, largest) in largest.iter_mut().enumerate().take(count) {
                    let range = range_of(first + block);
                    // SAFETY: the block lies inside the row.
                    let bits =
                        unsafe { largest_bits(s, kind, x.add(range.start * kind.size()), range.len()) };
                    *largest = f32::from_bits(bits as u32);
                }
                // SAFETY: there is room for all lanes.
                unsafe {
                    let (value, code) = task.rule.scale(s, s.load(largest.as_ptr()));
                    s.store(scales.as_mut_ptr(), value);
                    s.store(codes.as_mut_ptr(), s.from_bits(code));
                }
                for block in 0..count {
                    let (row, place) = task.place.of(row, first + block);
                    // SAFETY: where rows find scales themselves, those belong to them alone.
                    unsafe { to.set(row, place, scales[block], codes[block].to_bits() as i32) };
                }
            }
        }
        for block in 0..count {
            let range = range_of(first + block);
            let (divisor, zero_point) = (task.rule.factor(scales[block]), zero_points[block]);
            let inside_a_byte = task.blocks > 1 && !task.block.is_multiple_of(C::PER_BYTE);
            if inside_a_byte || zero_point.unsigned_abs() >= FAR as u32 {
                // SAFETY: the block lies inside the row, and the caller guarantees the codes.
                unsafe { quantize_plainly(kind, x, range, to, C::PER_BYTE, divisor, zero_point) };
                continue;
            }
            let (divisor, zero_point) = (s.splat(divisor), s.splat_i32(zero_point));
            // SAFETY: the block lies inside the row, and its codes inside the stored one, as the call was checked.
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

/// Integers one by one: zero points too far for i32 lanes, and blocks that end inside a byte.
///
/// # Safety
/// The range is inside the row `x`, and `to` has room for the row's codes.
#[cold]
#[inline(never)]
unsafe fn quantize_plainly(
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
        // A cast saturates and turns NaN to 0; the bounds keep the sum exact.
        let whole = (quotient.round_ties_even() as i64).clamp(-(1 << 62), 1 << 62);
        let code = (whole + i64::from(zero_point)).clamp(lowest, highest) as u8;
        // SAFETY: the caller guarantees the codes.
        let place = unsafe { &mut *to.add(index / per_byte) };
        match (per_byte, index % 2) {
            (1, _) => *place = code,
            // The low half clears the high one, so that a last odd element has 0 above it.
            (_, 0) => *place = code & 15,
            _ => *place |= code << 4,
        }
    }
}
