//! Element types in memory: loading to f64 and storing from it, for every dtype of the language.
//!
//! Narrow floats convert exactly on load; stores round to nearest even. Out-of-range values saturate in integers, in
//! `f8_e4m3` (which has no infinity), `f4` and `f8_e8m0`; the others overflow to infinity as in IEEE 754,
//! except `f8_e5m2`, whose store saturates because quantization is its only use.

use half::{bf16, f16};
use lz_schema::DType;

/// A Rust type with a dtype.
pub trait Element: Copy + Send + Sync + 'static {
    /// The dtype.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($rust:ty => $dtype:ident),* $(,)?) => {
        $(impl Element for $rust {
            const DTYPE: DType = DType::$dtype;
        })*
    };
}

elements! {
    f64 => F64, f32 => F32, f16 => F16, bf16 => BF16,
    i64 => I64, i32 => I32, i16 => I16, i8 => I8,
    u64 => U64, u32 => U32, u16 => U16, u8 => U8,
    F8E4M3 => F8E4M3, F8E5M2 => F8E5M2, F8E8M0 => F8E8M0, F4E2M1x2 => F4E2M1x2, Bool => Bool,
}

macro_rules! byte_elements {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        $($(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        #[repr(transparent)]
        pub struct $name(pub u8);)*
    };
}

byte_elements! {
    /// 8-bit float: 4 exponent bits, 3 mantissa bits, no infinities (`float8_e4m3fn`).
    F8E4M3,
    /// 8-bit float: 5 exponent bits, 2 mantissa bits, IEEE-like (`float8_e5m2`).
    F8E5M2,
    /// 8-bit power of two: the biased exponent alone (`float8_e8m0fnu`).
    F8E8M0,
    /// Two 4-bit floats (2 exponent bits, 1 mantissa bit), low nibble first.
    F4E2M1x2,
    /// A one-byte bool; any nonzero byte is true, so that memory from outside can never be an invalid value.
    Bool,
}

/// A small float format: exponent and mantissa bits, bias, and the meaning of the largest codes.
#[derive(Debug, Clone, Copy)]
struct Small {
    exponent_bits: u32,
    mantissa_bits: u32,
    bias: i32,
    top: Top,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Top {
    /// The largest exponent holds infinity and NaN.
    Ieee,
    /// Only the all-ones code is NaN.
    OneNan,
    /// Every code is a number.
    Finite,
}

const E4M3: Small = Small { exponent_bits: 4, mantissa_bits: 3, bias: 7, top: Top::OneNan };
const E5M2: Small = Small { exponent_bits: 5, mantissa_bits: 2, bias: 15, top: Top::Ieee };
const E2M1: Small = Small { exponent_bits: 2, mantissa_bits: 1, bias: 1, top: Top::Finite };

impl Small {
    fn decode(self, code: u8) -> f64 {
        let sign = if code >> (self.exponent_bits + self.mantissa_bits) & 1 == 1 { -1.0 } else { 1.0 };
        let exponent = (code >> self.mantissa_bits) & ((1 << self.exponent_bits) - 1);
        let mantissa = code & ((1 << self.mantissa_bits) - 1);
        let all_ones = exponent == (1 << self.exponent_bits) - 1;
        match self.top {
            Top::Ieee if all_ones => {
                return if mantissa == 0 { sign * f64::INFINITY } else { f64::NAN };
            }
            Top::OneNan if all_ones && mantissa == (1 << self.mantissa_bits) - 1 => return f64::NAN,
            _ => {}
        }
        let scale = f64::from(1u32 << self.mantissa_bits);
        if exponent == 0 {
            sign * f64::from(mantissa) / scale * 2f64.powi(1 - self.bias)
        } else {
            sign * (1.0 + f64::from(mantissa) / scale) * 2f64.powi(i32::from(exponent) - self.bias)
        }
    }

    /// The largest finite magnitude.
    fn largest(self) -> f64 {
        match self.top {
            Top::Ieee => {
                (2.0 - 2f64.powi(-(self.mantissa_bits as i32)))
                    * 2f64.powi((1 << self.exponent_bits) - 2 - self.bias)
            }
            Top::OneNan => {
                (2.0 - 2f64.powi(1 - self.mantissa_bits as i32))
                    * 2f64.powi((1 << self.exponent_bits) - 1 - self.bias)
            }
            Top::Finite => {
                (2.0 - 2f64.powi(-(self.mantissa_bits as i32)))
                    * 2f64.powi((1 << self.exponent_bits) - 1 - self.bias)
            }
        }
    }

    /// Nearest even, saturating; NaN becomes the NaN code (or, where there is none, positive zero's code).
    fn encode(self, value: f64) -> u8 {
        let total = self.exponent_bits + self.mantissa_bits;
        if value.is_nan() {
            return match self.top {
                Top::Ieee | Top::OneNan => (1 << total) - 1,
                Top::Finite => 0,
            };
        }
        let sign = u8::from(value.is_sign_negative()) << total;
        let magnitude = value.abs().min(self.largest());
        if magnitude == 0.0 {
            return sign;
        }
        let lowest = 1 - self.bias;
        let exponent = ((magnitude.to_bits() >> 52) as i32 - 1023).max(lowest);
        // Exact: scaling by a power of two, and the format has far fewer bits than f64.
        let units = (magnitude * 2f64.powi(self.mantissa_bits as i32 - exponent)).round_ties_even() as u32;
        // A carry into the exponent is correct by construction: the fields are adjacent.
        let code = units + (((exponent - lowest) as u32) << self.mantissa_bits);
        sign | code as u8
    }
}

/// Decodes `float8_e4m3fn`.
pub fn f8_e4m3_to_f64(code: u8) -> f64 {
    E4M3.decode(code)
}

/// Decodes `float8_e5m2`.
pub fn f8_e5m2_to_f64(code: u8) -> f64 {
    E5M2.decode(code)
}

/// Decodes `float8_e8m0fnu`: a power of two; the code 255 is NaN.
pub fn f8_e8m0_to_f64(code: u8) -> f64 {
    if code == 255 { f64::NAN } else { 2f64.powi(i32::from(code) - 127) }
}

/// Decodes the low four bits as `float4_e2m1fn`.
pub fn f4_e2m1_to_f64(code: u8) -> f64 {
    E2M1.decode(code & 15)
}

/// Encodes to `float8_e4m3fn`, nearest even, saturating.
pub fn f64_to_f8_e4m3(value: f64) -> u8 {
    E4M3.encode(value)
}

/// Encodes to `float8_e5m2`, nearest even, saturating (infinities too become the largest finite value).
pub fn f64_to_f8_e5m2(value: f64) -> u8 {
    E5M2.encode(value)
}

/// Encodes to the nearest power of two (ties to the even exponent), saturating; zero and negatives become the smallest, NaN stays NaN.
pub fn f64_to_f8_e8m0(value: f64) -> u8 {
    if value.is_nan() {
        return 255;
    }
    if value <= 2f64.powi(-127) {
        return 0;
    }
    if value >= 2f64.powi(127) {
        return 254;
    }
    let exponent = (value.to_bits() >> 52) as i32 - 1023;
    let fraction = value / 2f64.powi(exponent);
    let code = exponent + 127;
    let up = fraction > 1.5 || (fraction == 1.5 && code % 2 == 1);
    (code + i32::from(up)).clamp(0, 254) as u8
}

/// Encodes to four bits of `float4_e2m1fn`, nearest even, saturating.
pub fn f64_to_f4_e2m1(value: f64) -> u8 {
    E2M1.encode(value)
}

/// The largest finite magnitude that quantization to this dtype may produce (of one nibble for `f4_e2m1x2`).
pub fn largest_finite(dtype: DType) -> f64 {
    match dtype {
        DType::F8E4M3 => E4M3.largest(),
        DType::F8E5M2 => E5M2.largest(),
        DType::F4E2M1x2 => E2M1.largest(),
        DType::F8E8M0 => 2f64.powi(127),
        DType::F64 => f64::MAX,
        DType::F32 => f64::from(f32::MAX),
        DType::F16 => f16::MAX.to_f64(),
        DType::BF16 => bf16::MAX.to_f64(),
        DType::I64 => i64::MAX as f64,
        DType::I32 => f64::from(i32::MAX),
        DType::I16 => f64::from(i16::MAX),
        DType::I8 => f64::from(i8::MAX),
        DType::U64 => u64::MAX as f64,
        DType::U32 => f64::from(u32::MAX),
        DType::U16 => f64::from(u16::MAX),
        DType::U8 => f64::from(u8::MAX),
        DType::Bool => 1.0,
    }
}

/// Rounds to odd: an inexact value becomes the neighboring f32 with an odd last bit. Rounding that to a narrower format equals
/// rounding the f64 directly; going through the nearest f32 would round twice.
fn to_odd_f32(value: f64) -> f32 {
    let nearest = value as f32;
    let back = f64::from(nearest);
    if back == value || value.is_nan() {
        return nearest;
    }
    let toward_zero = nearest.to_bits() - u32::from(back.abs() > value.abs());
    f32::from_bits(toward_zero | 1)
}

/// Loads one element as f64. A packed pair of nibbles loads its low one.
///
/// # Safety
/// `address` must point at a readable element of `dtype`; it need not be aligned.
#[inline]
pub unsafe fn load_f64(dtype: DType, address: *const u8) -> f64 {
    // SAFETY: the caller vouches for one readable element; reads are unaligned.
    unsafe {
        match dtype {
            DType::F64 => address.cast::<f64>().read_unaligned(),
            DType::F32 => f64::from(address.cast::<f32>().read_unaligned()),
            DType::F16 => address.cast::<f16>().read_unaligned().to_f64(),
            DType::BF16 => address.cast::<bf16>().read_unaligned().to_f64(),
            DType::F8E4M3 => f8_e4m3_to_f64(address.read()),
            DType::F8E5M2 => f8_e5m2_to_f64(address.read()),
            DType::F8E8M0 => f8_e8m0_to_f64(address.read()),
            DType::F4E2M1x2 => f4_e2m1_to_f64(address.read()),
            DType::U64 => address.cast::<u64>().read_unaligned() as f64,
            _ => load_i64(dtype, address) as f64,
        }
    }
}

/// Loads one element as i64 (floats truncate, u64 saturates).
///
/// # Safety
/// `address` must point at a readable element of `dtype`; it need not be aligned.
#[inline]
pub unsafe fn load_i64(dtype: DType, address: *const u8) -> i64 {
    // SAFETY: the caller vouches for one readable element; reads are unaligned.
    unsafe {
        match dtype {
            DType::I64 => address.cast::<i64>().read_unaligned(),
            DType::I32 => i64::from(address.cast::<i32>().read_unaligned()),
            DType::I16 => i64::from(address.cast::<i16>().read_unaligned()),
            DType::I8 => i64::from(address.cast::<i8>().read()),
            DType::U64 => i64::try_from(address.cast::<u64>().read_unaligned()).unwrap_or(i64::MAX),
            DType::U32 => i64::from(address.cast::<u32>().read_unaligned()),
            DType::U16 => i64::from(address.cast::<u16>().read_unaligned()),
            DType::U8 => i64::from(address.read()),
            DType::Bool => i64::from(address.read() != 0),
            _ => load_f64(dtype, address) as i64,
        }
    }
}

/// Stores one element from f64, rounding to nearest even. A packed pair of nibbles stores its low one and clears the other.
///
/// # Safety
/// `address` must point at a writable element of `dtype`; it need not be aligned.
#[inline]
pub unsafe fn store_f64(dtype: DType, address: *mut u8, value: f64) {
    // SAFETY: the caller vouches for one writable element; writes are unaligned.
    unsafe {
        match dtype {
            DType::F64 => address.cast::<f64>().write_unaligned(value),
            DType::F32 => address.cast::<f32>().write_unaligned(value as f32),
            DType::F16 => address.cast::<f16>().write_unaligned(f16::from_f32(to_odd_f32(value))),
            DType::BF16 => address.cast::<bf16>().write_unaligned(bf16::from_f32(to_odd_f32(value))),
            DType::F8E4M3 => address.write(f64_to_f8_e4m3(value)),
            DType::F8E5M2 => address.write(f64_to_f8_e5m2(value)),
            DType::F8E8M0 => address.write(f64_to_f8_e8m0(value)),
            DType::F4E2M1x2 => address.write(f64_to_f4_e2m1(value)),
            DType::Bool => address.write(u8::from(value != 0.0)),
            DType::U64 => address.cast::<u64>().write_unaligned(value.round_ties_even() as u64),
            _ => store_i64(dtype, address, value.round_ties_even() as i64),
        }
    }
}

/// Stores one element from i64, saturating.
///
/// # Safety
/// `address` must point at a writable element of `dtype`; it need not be aligned.
#[inline]
pub unsafe fn store_i64(dtype: DType, address: *mut u8, value: i64) {
    // SAFETY: the caller vouches for one writable element; writes are unaligned.
    unsafe {
        match dtype {
            DType::I64 => address.cast::<i64>().write_unaligned(value),
            DType::I32 => {
                address.cast::<i32>().write_unaligned(value.clamp(i32::MIN.into(), i32::MAX.into()) as i32)
            }
            DType::I16 => {
                address.cast::<i16>().write_unaligned(value.clamp(i16::MIN.into(), i16::MAX.into()) as i16)
            }
            DType::I8 => address.cast::<i8>().write(value.clamp(i8::MIN.into(), i8::MAX.into()) as i8),
            DType::U64 => address.cast::<u64>().write_unaligned(value.max(0) as u64),
            DType::U32 => address.cast::<u32>().write_unaligned(value.clamp(0, u32::MAX.into()) as u32),
            DType::U16 => address.cast::<u16>().write_unaligned(value.clamp(0, u16::MAX.into()) as u16),
            DType::U8 => address.write(value.clamp(0, u8::MAX.into()) as u8),
            DType::Bool => address.write(u8::from(value != 0)),
            _ => store_f64(dtype, address, value as f64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_floats_round_trip_and_have_the_right_limits() {
        for code in 0..=255u8 {
            for (decode, encode) in [
                (f8_e4m3_to_f64 as fn(u8) -> f64, f64_to_f8_e4m3 as fn(f64) -> u8),
                (f8_e5m2_to_f64, f64_to_f8_e5m2),
                (f8_e8m0_to_f64, f64_to_f8_e8m0),
            ] {
                let value = decode(code);
                if value.is_finite() {
                    assert_eq!(encode(value), code, "{value}");
                }
            }
        }
        for code in 0..16u8 {
            assert_eq!(f64_to_f4_e2m1(f4_e2m1_to_f64(code)), code);
        }
        assert_eq!(largest_finite(DType::F8E4M3), 448.0);
        assert_eq!(largest_finite(DType::F8E5M2), 57344.0);
        assert_eq!(largest_finite(DType::F4E2M1x2), 6.0);
    }

    #[test]
    fn half_floats_are_rounded_once() {
        let stored = |dtype, value| {
            let mut bytes = [0u8; 2];
            // SAFETY: both dtypes take two bytes.
            unsafe { store_f64(dtype, bytes.as_mut_ptr(), value) };
            u16::from_le_bytes(bytes)
        };
        let tiny = 2f64.powi(-50);
        for (dtype, bits) in [(DType::F16, 10), (DType::BF16, 7)] {
            let one = stored(dtype, 1.0);
            let half_step = 2f64.powi(-(bits + 1));
            assert_eq!(stored(dtype, 1.0 + half_step), one, "a tie goes to even");
            assert_eq!(stored(dtype, 1.0 + half_step + tiny), one + 1, "just above a tie goes up");
            assert_eq!(stored(dtype, -(1.0 + half_step + tiny)), (one + 1) | 0x8000);
            assert_eq!(stored(dtype, 1.0 + 3.0 * half_step - tiny), one + 1, "just below a tie goes down");
            assert_eq!(stored(dtype, 1.0 + 3.0 * half_step), one + 2);
            assert_eq!(stored(dtype, 1e-300), 0);
        }
        assert_eq!(stored(DType::F16, 65520.0 - 1e-9), f16::MAX.to_bits());
        assert_eq!(stored(DType::F16, 65520.0), f16::INFINITY.to_bits());
        assert_eq!(stored(DType::BF16, f64::MAX), bf16::INFINITY.to_bits());
        assert_eq!(
            stored(DType::F16, 2f64.powi(-25) * 1.000_000_001),
            1,
            "the smallest subnormal is nearer than 0"
        );
        assert!(f16::from_bits(stored(DType::F16, f64::NAN)).is_nan());
    }

    #[test]
    fn encoding_is_the_nearest_code_with_ties_to_even() {
        type Format = (fn(u8) -> f64, fn(f64) -> u8, u16);
        let formats: [Format; 3] = [
            (f8_e4m3_to_f64, f64_to_f8_e4m3, 127),
            (f8_e5m2_to_f64, f64_to_f8_e5m2, 124),
            (f4_e2m1_to_f64, f64_to_f4_e2m1, 8),
        ];
        for (decode, encode, codes) in formats {
            for code in 0..(codes - 1) as u8 {
                let (low, high) = (decode(code), decode(code + 1));
                let middle = (low + high) / 2.0;
                let even = if code % 2 == 0 { code } else { code + 1 };
                assert_eq!(encode(middle), even, "between {low} and {high}");
                assert_eq!(encode(middle * (1.0 - 1e-12)), code);
                assert_eq!(encode(middle * (1.0 + 1e-12)), code + 1);
            }
        }
        assert_eq!(f8_e4m3_to_f64(f64_to_f8_e4m3(1e9)), 448.0);
        assert_eq!(f8_e5m2_to_f64(f64_to_f8_e5m2(f64::NEG_INFINITY)), -57344.0);
    }
}
