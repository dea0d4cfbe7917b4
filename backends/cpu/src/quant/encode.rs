//! Encodes rows of floats: computes the absolute maximum of a row's blocks, and divides them while they are in L1.

use std::marker::PhantomData;

use super::codes::{Code, LARGE_ZERO_POINT, write_code};
use super::scales::{Rule, SCALE_LANES, Scales, ScalesMut};
use crate::rows::Rows;
use crate::simd::{FloatKind, Simd, Work, vectors};

/// Which scale a block of a row uses.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ScaleLayout {
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
    pub(super) fn of(self, row: usize, block: usize) -> (usize, usize) {
        match self {
            ScaleLayout::Row => (row, block),
            ScaleLayout::Channel(channels) => (row % channels, 0),
            ScaleLayout::Tensor => (0, 0),
        }
    }
}

/// Where the scales of a row come from.
pub(crate) enum ScaleSource<'a> {
    /// Given by the caller.
    Given(Scales<'a>),
    /// Computed from the row itself, which owns its scales.
    Row(ScalesMut<'a>),
    /// Computed in a pass over all rows, by group.
    Shared(&'a [f32]),
}

/// Parameters of all rows.
pub(crate) struct Encoder<'a> {
    pub(crate) kind: FloatKind,
    pub(crate) rule: Rule,
    pub(crate) scale_layout: ScaleLayout,
    /// Elements per block, and blocks per row.
    pub(crate) block: usize,
    pub(crate) blocks: usize,
    pub(crate) zero_points: Option<Rows<'a, i32>>,
}

/// Bits of the largest absolute value; NaN has larger bits than any number.
///
/// # Safety
/// `x` has `len` readable elements of `kind`.
#[inline(always)]
pub(super) unsafe fn largest_bits<S: Simd>(s: S, kind: FloatKind, x: *const u8, len: usize) -> i32 {
    let mut largest = [s.splat_i32(0); 2];
    vectors!(S, len, |span, k of 2| {
        // SAFETY: spans stay inside the row.
        let bits = s.to_bits(s.abs(unsafe { kind.load(s, x, span) }));
        largest[k] = s.max_i32(largest[k], bits);
    });
    s.largest_i32(s.max_i32(largest[0], largest[1]))
}

/// One row. The creator guarantees that `x` has `len` readable elements, that `to` has space for their codes, and exclusive access
/// to them.
pub(crate) struct EncodeRow<'r, 'x, 'o, S, C> {
    pub(crate) simd: S,
    pub(crate) encoder: &'r Encoder<'x>,
    pub(crate) x: *const u8,
    pub(crate) len: usize,
    pub(crate) row: usize,
    pub(crate) to: *mut u8,
    pub(crate) source: &'r ScaleSource<'o>,
    pub(crate) code: PhantomData<C>,
}

impl<S: Simd, C: Code> EncodeRow<'_, '_, '_, S, C> {
    /// Encodes the row. Not inlined: the callers exist once per element type, this code once for all of them.
    #[inline(never)]
    pub(crate) fn encode(self) {
        self.simd.perform(self);
    }
}

impl<S: Simd, C: Code> Work for EncodeRow<'_, '_, '_, S, C> {
    #[inline(always)]
    fn perform(self) {
        // SAFETY: guaranteed by the creator.
        unsafe { encode_row(&self) };
    }
}

/// # Safety
/// As the creator of the row guarantees.
#[inline(always)]
unsafe fn encode_row<S: Simd, C: Code>(work: &EncodeRow<'_, '_, '_, S, C>) {
    let &EncodeRow { simd: s, encoder, x, len, row, to, source, .. } = work;
    let kind = encoder.kind;
    let range_of = |block: usize| {
        let start = block * encoder.block;
        start..len.min(start + encoder.block)
    };
    let mut first = 0;
    while first < encoder.blocks {
        let count = (encoder.blocks - first).min(S::LANES);
        let (mut scales, mut zero_points) = ([0.0f32; SCALE_LANES], [0i32; SCALE_LANES]);
        match source {
            ScaleSource::Given(provided) => {
                for block in 0..count {
                    let (row, index) = encoder.scale_layout.of(row, first + block);
                    scales[block] = provided.get(row, index);
                    zero_points[block] = encoder.zero_points.map_or(0, |rows| rows.row(row)[index]);
                }
            }
            ScaleSource::Shared(shared) => scales[0] = shared[encoder.scale_layout.of(row, 0).0],
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
                    let (value, code) = encoder.rule.scale(s, s.load(largest.as_ptr()));
                    s.store(scales.as_mut_ptr(), value);
                    s.store(codes.as_mut_ptr(), s.bitcast_f32(code));
                }
                for block in 0..count {
                    let (row, index) = encoder.scale_layout.of(row, first + block);
                    // SAFETY: scales computed from a row belong to that row only.
                    unsafe { to.set(row, index, scales[block], codes[block].to_bits() as i32) };
                }
            }
        }
        for block in 0..count {
            let range = range_of(first + block);
            let (divisor, zero_point) = (encoder.rule.factor(scales[block]), zero_points[block]);
            let inside_a_byte = encoder.blocks > 1 && !C::is_at_byte(encoder.block);
            if inside_a_byte || zero_point.unsigned_abs() >= LARGE_ZERO_POINT as u32 {
                // SAFETY: the block is inside the row, and the caller guarantees the codes.
                unsafe { quantize_scalar::<C>(kind, x, range, to, divisor, zero_point) };
                continue;
            }
            let (divisor, zero_point) = (s.splat(divisor), s.splat_i32(zero_point));
            // SAFETY: the block is inside the row, and its codes are inside the stored row (validated).
            unsafe {
                let (from, to) = (x.add(range.start * kind.size()), to.add(C::offset(range.start)));
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
unsafe fn quantize_scalar<C: Code>(
    kind: FloatKind,
    x: *const u8,
    range: std::ops::Range<usize>,
    to: *mut u8,
    divisor: f32,
    zero_point: i32,
) {
    let (lowest, highest) = C::RANGE;
    for index in range {
        // SAFETY: the caller guarantees the element.
        let quotient = unsafe { kind.get(x, index) } / divisor;
        // The cast saturates and turns NaN to 0; the clamp keeps the sum exact.
        let whole = (quotient.round_ties_even() as i64).clamp(-(1 << 62), 1 << 62);
        let code = (whole + i64::from(zero_point)).clamp(lowest.into(), highest.into()) as i32;
        // SAFETY: the caller guarantees the codes.
        unsafe { write_code::<C>(to, index, code) };
    }
}
