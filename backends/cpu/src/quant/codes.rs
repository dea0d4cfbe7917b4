//! Quantized formats: encoding of lanes to stored codes, and decoding.

use crate::simd::{
    E2M1, E4M3, E5M2, Simd, SmallFloat, Span, decode, encode, load_bytes, load_nibbles, store_bytes,
    store_nibbles,
};

/// Larger zero points take the scalar path, because sums may overflow i32 lanes.
pub(super) const LARGE_ZERO_POINT: i32 = 1 << 24;

/// A stored format.
pub(crate) trait Code: Copy + Send + Sync + 'static {
    /// Elements per byte.
    const PER_BYTE: usize;

    /// Rounds quotients and stores them, for a zero point with an absolute value below [`LARGE_ZERO_POINT`].
    ///
    /// # Safety
    /// The elements of the span are writable from `row`; with two per byte the span starts at an even index.
    unsafe fn store<S: Simd>(simd: S, row: *mut u8, span: impl Span, quotient: S::F32, zero_point: S::I32);

    /// Loads values minus a zero point with an absolute value below [`LARGE_ZERO_POINT`].
    ///
    /// # Safety
    /// As [`Code::store`], for reading.
    unsafe fn load<S: Simd>(simd: S, row: *const u8, span: impl Span, zero_point: S::I32) -> S::F32;
}

/// Two's complement with `BITS` bits, 4 or 8.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Integer<const BITS: u32>;

impl<const BITS: u32> Code for Integer<BITS> {
    const PER_BYTE: usize = 8 / BITS as usize;

    #[inline(always)]
    unsafe fn store<S: Simd>(s: S, row: *mut u8, span: impl Span, quotient: S::F32, zero_point: S::I32) {
        // NaN becomes 0. The clamp keeps the conversion in range, far outside every sum that does not
        // saturate.
        let number = s.select(s.is_nan(quotient), s.splat(0.0), quotient);
        let bound = 4.0 * LARGE_ZERO_POINT as f32;
        let whole = s.to_i32(s.max(s.min(number, s.splat(bound)), s.splat(-bound)));
        let sum = s.add_i32(whole, zero_point);
        let (lowest, highest) = (-(1 << (BITS - 1)), (1 << (BITS - 1)) - 1);
        let code = s.max_i32(s.min_i32(sum, s.splat_i32(highest)), s.splat_i32(lowest));
        // SAFETY: the caller guarantees the elements.
        unsafe { store_codes::<S, BITS>(s, row, span, code) }
    }

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, row: *const u8, span: impl Span, zero_point: S::I32) -> S::F32 {
        // SAFETY: the caller guarantees the elements.
        let code = unsafe { load_codes::<S, BITS>(s, row, span) };
        let signed = s.shr_i32(s.shl_i32(code, 32 - BITS), 32 - BITS);
        s.to_f32(s.sub_i32(signed, zero_point))
    }
}

macro_rules! small_floats {
    ($($format:ty: $bits:literal),*) => {
        $(impl Code for $format {
            const PER_BYTE: usize = 8 / (<$format as SmallFloat>::BITS as usize + 1);

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

/// # Safety
/// As [`Code::store`].
#[inline(always)]
unsafe fn store_codes<S: Simd, const BITS: u32>(simd: S, row: *mut u8, span: impl Span, code: S::I32) {
    // SAFETY: the caller guarantees the elements.
    unsafe {
        if BITS == 4 { store_nibbles(simd, row, span, code) } else { store_bytes(simd, row, span, code) }
    }
}

/// # Safety
/// As [`Code::load`].
#[inline(always)]
unsafe fn load_codes<S: Simd, const BITS: u32>(simd: S, row: *const u8, span: impl Span) -> S::I32 {
    // SAFETY: the caller guarantees the elements.
    unsafe { if BITS == 4 { load_nibbles(simd, row, span) } else { load_bytes(simd, row, span) } }
}
