//! Quantized formats: encoding of lanes to stored codes, and decoding.

use crate::simd::{
    E2M1, E4M3, E5M2, Simd, Span, decode, encode, load_bytes, load_nibbles, load_quarters, load_u16,
    store_bytes, store_nibbles, store_quarters, store_u16,
};

/// Larger zero points take the scalar path, because sums may overflow i32 lanes.
pub(super) const LARGE_ZERO_POINT: i32 = 1 << 24;

/// A stored format.
pub(crate) trait Code: Copy + Send + Sync + 'static {
    /// Bits per element.
    const BITS: u32;
    /// The smallest and the largest code of an integer format; (0, 0) for floats, which have no scalar path.
    const RANGE: (i32, i32);

    /// Offset in bytes of an element that starts at a byte.
    #[inline(always)]
    fn offset(element: usize) -> usize {
        element * Self::BITS as usize / 8
    }

    /// Whether an element starts at a byte.
    #[inline(always)]
    fn is_at_byte(element: usize) -> bool {
        (element * Self::BITS as usize).is_multiple_of(8)
    }

    /// Rounds quotients and stores them, for a zero point with an absolute value below [`LARGE_ZERO_POINT`].
    ///
    /// # Safety
    /// The elements of the span are writable from `row`, and the first element of the span starts at a byte.
    unsafe fn store<S: Simd>(simd: S, row: *mut u8, span: impl Span, quotient: S::F32, zero_point: S::I32);

    /// Loads values minus a zero point with an absolute value below [`LARGE_ZERO_POINT`].
    ///
    /// # Safety
    /// As [`Code::store`], for reading.
    unsafe fn load<S: Simd>(simd: S, row: *const u8, span: impl Span, zero_point: S::I32) -> S::F32;
}

/// Integers with `BITS` bits, 2, 4, 8 or 16: two's complement if `SIGNED`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Integer<const BITS: u32, const SIGNED: bool>;

/// Two's complement with `BITS` bits.
pub(crate) type Signed<const BITS: u32> = Integer<BITS, true>;

/// Unsigned integers with `BITS` bits.
pub(crate) type Unsigned<const BITS: u32> = Integer<BITS, false>;

impl<const BITS: u32, const SIGNED: bool> Code for Integer<BITS, SIGNED> {
    const BITS: u32 = BITS;
    const RANGE: (i32, i32) =
        if SIGNED { (-(1 << (BITS - 1)), (1 << (BITS - 1)) - 1) } else { (0, (1 << BITS) - 1) };

    #[inline(always)]
    unsafe fn store<S: Simd>(s: S, row: *mut u8, span: impl Span, quotient: S::F32, zero_point: S::I32) {
        // NaN becomes 0. The clamp keeps the conversion in range, far outside every sum that does not
        // saturate.
        let number = s.select(s.is_nan(quotient), s.splat(0.0), quotient);
        let bound = 4.0 * LARGE_ZERO_POINT as f32;
        let whole = s.to_i32(s.max(s.min(number, s.splat(bound)), s.splat(-bound)));
        let sum = s.add_i32(whole, zero_point);
        let (lowest, highest) = Self::RANGE;
        let code = s.max_i32(s.min_i32(sum, s.splat_i32(highest)), s.splat_i32(lowest));
        // SAFETY: the caller guarantees the elements.
        unsafe { store_codes::<S, BITS>(s, row, span, code) }
    }

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, row: *const u8, span: impl Span, zero_point: S::I32) -> S::F32 {
        // SAFETY: the caller guarantees the elements.
        let code = unsafe { load_codes::<S, BITS>(s, row, span) };
        let code = if SIGNED { s.shr_i32(s.shl_i32(code, 32 - BITS), 32 - BITS) } else { code };
        s.to_f32(s.sub_i32(code, zero_point))
    }
}

macro_rules! small_floats {
    ($($format:ty: $bits:literal),*) => {
        $(impl Code for $format {
            const BITS: u32 = $bits;
            const RANGE: (i32, i32) = (0, 0);

            #[inline(always)]
            unsafe fn store<S: Simd>(s: S, row: *mut u8, span: impl Span, quotient: S::F32, _: S::I32) {
                // SAFETY: the caller guarantees the elements.
                unsafe { store_codes::<S, $bits>(s, row, span, encode::<S, $format>(s, quotient)) }
            }

            #[inline(always)]
            unsafe fn load<S: Simd>(s: S, row: *const u8, span: impl Span, _: S::I32) -> S::F32 {
                // SAFETY: the caller guarantees the elements.
                unsafe { decode::<S, $format>(s, load_codes::<S, $bits>(s, row, span)) }
            }
        })*
    };
}

small_floats!(E4M3: 8, E5M2: 8, E2M1: 4);

/// Reads the integer code of one element.
///
/// # Safety
/// The element is readable from `row`.
#[inline(always)]
pub(super) unsafe fn read_code<C: Code>(row: *const u8, element: usize) -> i32 {
    let bit = element * C::BITS as usize;
    // SAFETY: the caller guarantees the element.
    let code = unsafe {
        match C::BITS {
            16 => i32::from(row.add(bit / 8).cast::<u16>().read_unaligned()),
            _ => i32::from(row.add(bit / 8).read() >> (bit % 8)),
        }
    };
    // The sign bit of the format is the top bit of the lane.
    let unused = 32 - C::BITS;
    if C::RANGE.0 < 0 { code << unused >> unused } else { code & C::RANGE.1 }
}

/// Writes the integer code of one element. The first code of a byte clears the others, so that unused bits of the last byte of a row are 0:
/// elements must be written in order.
///
/// # Safety
/// The element is writable from `row`.
#[inline(always)]
pub(super) unsafe fn write_code<C: Code>(row: *mut u8, element: usize, code: i32) {
    let bit = element * C::BITS as usize;
    // SAFETY: the caller guarantees the element.
    let byte = unsafe { row.add(bit / 8) };
    if C::BITS == 16 {
        // SAFETY: as above, two bytes.
        return unsafe { byte.cast::<u16>().write_unaligned(code as u16) };
    }
    let code = ((code & ((1 << C::BITS) - 1)) << (bit % 8)) as u8;
    // SAFETY: as above.
    unsafe { *byte = if bit.is_multiple_of(8) { code } else { *byte | code } };
}

/// # Safety
/// As [`Code::store`].
#[inline(always)]
unsafe fn store_codes<S: Simd, const BITS: u32>(simd: S, row: *mut u8, span: impl Span, code: S::I32) {
    // SAFETY: the caller guarantees the elements.
    unsafe {
        match BITS {
            2 => store_quarters(simd, row, span, code),
            4 => store_nibbles(simd, row, span, code),
            8 => store_bytes(simd, row, span, code),
            _ => store_u16(simd, row, span, code),
        }
    }
}

/// # Safety
/// As [`Code::load`].
#[inline(always)]
unsafe fn load_codes<S: Simd, const BITS: u32>(simd: S, row: *const u8, span: impl Span) -> S::I32 {
    // SAFETY: the caller guarantees the elements.
    unsafe {
        match BITS {
            2 => load_quarters(simd, row, span),
            4 => load_nibbles(simd, row, span),
            8 => load_bytes(simd, row, span),
            _ => load_u16(simd, row, span),
        }
    }
}
