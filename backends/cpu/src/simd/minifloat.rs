//! Minifloats (FP8 E4M3/E5M2, FP4 E2M1): conversion between codes and f32 lanes, round to nearest even,
//! saturating.

use super::Simd;

/// A float format of at most eight bits, as compile-time constants.
pub trait SmallFloat: Copy + Send + Sync + 'static {
    /// Mantissa bits.
    const MANTISSA: u32;
    /// Bits without the sign bit.
    const BITS: u32;
    /// Exponent bias.
    const BIAS: i32;
    /// Largest finite magnitude.
    const MAX_FINITE: f32;
    /// Code of NaN without sign; 0 if the format has no NaN, and NaN is encoded as 0.
    const NAN: i32;
    /// Lowest code, without sign, that is not a finite number (infinity or NaN).
    const FIRST_NON_FINITE: i32;
}

/// `float8_e4m3fn`: no infinities.
#[derive(Debug, Clone, Copy)]
pub struct E4M3;
/// `float8_e5m2`: IEEE-like.
#[derive(Debug, Clone, Copy)]
pub struct E5M2;
/// `float4_e2m1fn`: every code is a number.
#[derive(Debug, Clone, Copy)]
pub struct E2M1;

impl SmallFloat for E4M3 {
    const MANTISSA: u32 = 3;
    const BITS: u32 = 7;
    const BIAS: i32 = 7;
    const MAX_FINITE: f32 = 448.0;
    const NAN: i32 = 0x7f;
    const FIRST_NON_FINITE: i32 = 0x7f;
}

impl SmallFloat for E5M2 {
    const MANTISSA: u32 = 2;
    const BITS: u32 = 7;
    const BIAS: i32 = 15;
    const MAX_FINITE: f32 = 57344.0;
    const NAN: i32 = 0x7f;
    const FIRST_NON_FINITE: i32 = 0x7c;
}

impl SmallFloat for E2M1 {
    const MANTISSA: u32 = 1;
    const BITS: u32 = 3;
    const BIAS: i32 = 1;
    const MAX_FINITE: f32 = 6.0;
    const NAN: i32 = 0;
    const FIRST_NON_FINITE: i32 = 8;
}

/// `2^exponent`.
const fn power(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}

/// Encodes to the nearest value of the format; the sign is the bit above the others. NaN has no sign.
#[inline(always)]
pub fn encode<S: Simd, F: SmallFloat>(simd: S, value: S::F32) -> S::I32 {
    let s = simd;
    let smallest_normal = power(1 - F::BIAS);
    let size = s.min(s.abs(value), s.splat(F::MAX_FINITE));
    // Subnormal codes are multiples of one step.
    let step = power(F::MANTISSA as i32 + F::BIAS - 1);
    let small = s.to_i32(s.mul(size, s.splat(step)));
    // Normal values: round the f32 bits and truncate. A carry into the exponent is correct, because the
    // fields are adjacent.
    let cut = 23 - F::MANTISSA;
    let bits = s.to_bits(size);
    let odd = s.and_i32(s.shr_i32(bits, cut), s.splat_i32(1));
    let rounded = s.add_i32(bits, s.add_i32(odd, s.splat_i32((1 << (cut - 1)) - 1)));
    let large = s.sub_i32(s.shr_i32(rounded, cut), s.splat_i32((127 - F::BIAS) << F::MANTISSA));
    let is_small = s.lt(size, s.splat(smallest_normal));
    let code = s.select_i32(is_small, small, large);
    let sign = s.and_i32(s.shr_i32(s.to_bits(value), 31 - F::BITS), s.splat_i32(1 << F::BITS));
    s.select_i32(s.is_nan(value), s.splat_i32(F::NAN), s.or_i32(code, sign))
}

/// Decodes codes; bits above the sign are ignored.
#[inline(always)]
pub fn decode<S: Simd, F: SmallFloat>(simd: S, code: S::I32) -> S::F32 {
    let s = simd;
    let size = s.and_i32(code, s.splat_i32((1 << F::BITS) - 1));
    let counted = s.to_f32(size);
    let small = s.mul(counted, s.splat(power(1 - F::BIAS - F::MANTISSA as i32)));
    let shifted = s.shl_i32(size, 23 - F::MANTISSA);
    let large = s.bitcast_f32(s.add_i32(shifted, s.splat_i32((127 - F::BIAS) << 23)));
    let is_small = s.lt(counted, s.splat((1 << F::MANTISSA) as f32));
    let mut value = s.select(is_small, small, large);
    if F::FIRST_NON_FINITE < 1 << F::BITS {
        let is_number = s.lt(counted, s.splat(F::FIRST_NON_FINITE as f32));
        // Infinity is the first non-finite code in a format that has one; all others are NaN.
        let infinite = F::FIRST_NON_FINITE != F::NAN;
        let is_infinite = s.lt(counted, s.splat((F::FIRST_NON_FINITE + i32::from(infinite)) as f32));
        let non_finite = s.select(is_infinite, s.splat(f32::INFINITY), s.splat(f32::NAN));
        value = s.select(is_number, value, non_finite);
    }
    let sign = s.shl_i32(s.and_i32(code, s.splat_i32(1 << F::BITS)), 31 - F::BITS);
    s.bitcast_f32(s.or_i32(s.to_bits(value), sign))
}
