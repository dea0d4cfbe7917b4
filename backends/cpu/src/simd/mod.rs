//! Vectors of f32 lanes over one instruction set, chosen at run time.
//!
//! A value of a type that implements [`Simd`] proves that this processor has the instructions: only [`Simd::detect`] makes
//! one. Kernels are written once, generic over it, and compiled for every instruction set (`crate::isa`). Everything here
//! is inlined into the function that [`Simd::vectorize`] enters, because only there may the compiler use the instructions;
//! so whatever a kernel calls in its inner loops must be `#[inline(always)]`, and `vectors!` repeats its body as text
//! instead of taking a closure. Nothing here knows an operation.

use lz_core::{DType, KernelError};

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod element;
mod math;
mod scalar;
mod small;
#[cfg(target_arch = "x86_64")]
pub(crate) mod tiles;

#[cfg(target_arch = "x86_64")]
pub use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub use avx512::{Amx, Avx512, Vnni};
pub(crate) use element::MOST_LANES;
pub use element::{Float, Kind, Part, Span, Whole, load_bytes, load_nibbles, store_bytes, store_nibbles};
pub use math::{exp, exp2};
pub use scalar::Scalar;
pub use small::{E2M1, E4M3, E5M2, SmallFloat, decode, encode};

/// Something to do with vectors. `perform` must be `#[inline(always)]`: a closure cannot be.
pub trait Work {
    /// Does it.
    fn perform(self);
}

/// An instruction set, as a proof that the processor has it.
///
/// Lanes are counted from the lowest address. `min` and `max` give their second operand when either is NaN, as x86 does;
/// who must propagate NaN says so with [`Simd::is_nan`].
pub trait Simd: Copy + Send + Sync + 'static {
    /// The last word of a kernel's id: `avx512`.
    const NAME: &'static str;
    /// What a device must have, by the names that kernel specs use.
    const FEATURES: &'static [&'static str];
    /// Points of priority that a kernel loses when it is compiled for this instead of the widest instruction set.
    const HANDICAP: u8;
    /// Lanes of a vector.
    const LANES: usize;
    /// Whether it proves tiles of bf16 as well.
    const TILES: bool = false;
    /// What must be added to the left bytes of [`Simd::dot_bytes`]: 0 where they are signed, 128 where they are not.
    const BYTE_OFFSET: u8 = 0;
    /// A vector of f32.
    type F32: Copy;
    /// A vector of i32, as many lanes.
    type I32: Copy;
    /// One bit a lane.
    type Mask: Copy;

    /// The proof, if this processor has the instructions.
    fn detect() -> Option<Self>;

    /// Runs `body` where the compiler may use the instructions. A body that is too large is not inlined there, and compiled without
    /// them: then it must be a [`Work`].
    fn vectorize<R>(self, body: impl FnOnce() -> R) -> R;

    /// Does work, of any size, where the compiler may use the instructions.
    fn perform(self, work: impl Work);

    /// The same number in every lane.
    fn splat(self, value: f32) -> Self::F32;
    /// # Safety
    /// `LANES` numbers are readable at `from`.
    unsafe fn load(self, from: *const f32) -> Self::F32;
    /// The first `count` lanes; 0 in the others.
    /// # Safety
    /// `count` numbers are readable at `from`, and `count < LANES`.
    unsafe fn load_part(self, from: *const f32, count: usize) -> Self::F32;
    /// # Safety
    /// `LANES` numbers are writable at `to`.
    unsafe fn store(self, to: *mut f32, value: Self::F32);
    /// Stores the first `count` lanes.
    /// # Safety
    /// `count` numbers are writable at `to`, and `count < LANES`.
    unsafe fn store_part(self, to: *mut f32, value: Self::F32, count: usize);
    /// Stores past the caches.
    /// # Safety
    /// As [`Simd::store`], and `to` is a multiple of the vector's size in bytes.
    unsafe fn stream(self, to: *mut f32, value: Self::F32);

    /// Makes streamed stores visible before anything that follows. Whoever streams ends with it.
    fn fence(self);

    /// # Safety
    /// `LANES` halves are readable at `from`.
    unsafe fn load_f16(self, from: *const u16) -> Self::F32;
    /// Rounds to nearest even.
    /// # Safety
    /// `LANES` halves are writable at `to`.
    unsafe fn store_f16(self, to: *mut u16, value: Self::F32);
    /// # Safety
    /// As [`Simd::store_f16`], and `to` is a multiple of half the vector's size in bytes.
    unsafe fn stream_f16(self, to: *mut u16, value: Self::F32);
    /// # Safety
    /// `LANES` halves are readable at `from`.
    unsafe fn load_bf16(self, from: *const u16) -> Self::F32;
    /// Rounds to nearest even.
    /// # Safety
    /// `LANES` halves are writable at `to`.
    unsafe fn store_bf16(self, to: *mut u16, value: Self::F32);
    /// # Safety
    /// As [`Simd::store_bf16`], and `to` is a multiple of half the vector's size in bytes.
    unsafe fn stream_bf16(self, to: *mut u16, value: Self::F32);

    /// `a + b`
    fn add(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a - b`
    fn sub(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a * b`
    fn mul(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a / b`
    fn div(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a / b` within two units in the last place, for `b` of ordinary size; NaN where `b` is infinite.
    #[inline(always)]
    fn over(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        self.div(a, b)
    }
    /// `a * b + c`, rounded once where the instruction exists.
    fn fma(self, a: Self::F32, b: Self::F32, c: Self::F32) -> Self::F32;
    /// The smaller; `b` if either is NaN.
    fn min(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// The larger; `b` if either is NaN.
    fn max(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// Without its sign.
    fn abs(self, a: Self::F32) -> Self::F32;
    /// The square root.
    fn sqrt(self, a: Self::F32) -> Self::F32;
    /// To the nearest whole number, ties to even.
    fn round(self, a: Self::F32) -> Self::F32;
    /// `a * 2^n` for whole numbers `n` in -252 … 254, and `a` of ordinary size.
    #[inline(always)]
    fn times_power(self, a: Self::F32, n: Self::F32) -> Self::F32 {
        // In two factors: one alone could not reach the denormals.
        let n = self.to_i32(n);
        let half = self.shr_i32(n, 1);
        let power = |n| self.with_bits(self.shl_i32(self.add_i32(n, self.splat_i32(127)), 23));
        self.mul(self.mul(a, power(half)), power(self.sub_i32(n, half)))
    }

    /// Whether `a < b`; never for NaN.
    fn lt(self, a: Self::F32, b: Self::F32) -> Self::Mask;
    /// Whether it is NaN.
    fn is_nan(self, a: Self::F32) -> Self::Mask;
    /// `a` where the mask is set, otherwise `b`.
    fn select(self, mask: Self::Mask, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a` where the mask is set, otherwise `b`.
    fn select_i32(self, mask: Self::Mask, a: Self::I32, b: Self::I32) -> Self::I32;
    /// The first `count` lanes; 0 in the others.
    fn keep(self, a: Self::F32, count: usize) -> Self::F32;

    /// The sum of all lanes, in a fixed order.
    fn sum(self, a: Self::F32) -> f32;
    /// The largest lane, of those that are not NaN.
    fn largest(self, a: Self::F32) -> f32;

    /// Transposes a block of `LANES` rows of `LANES` numbers, one row after the other: column n goes to `to + n * step`.
    /// # Safety
    /// The block is readable, and `LANES` numbers are writable at each column's place.
    #[inline(always)]
    unsafe fn transpose(self, block: *const f32, to: *mut f32, step: usize) {
        for row in 0..Self::LANES {
            for column in 0..Self::LANES {
                // SAFETY: the caller vouches for both sides.
                unsafe { *to.add(column * step + row) = *block.add(row * Self::LANES + column) };
            }
        }
    }

    /// The same number in every lane.
    fn splat_i32(self, value: i32) -> Self::I32;
    /// To the nearest whole number, ties to even; what does not fit becomes `i32::MIN`.
    fn to_i32(self, a: Self::F32) -> Self::I32;
    /// As numbers.
    fn to_f32(self, a: Self::I32) -> Self::F32;
    /// The bits of the numbers.
    fn to_bits(self, a: Self::F32) -> Self::I32;
    /// Numbers of these bits.
    fn with_bits(self, a: Self::I32) -> Self::F32;
    /// `a + b`, wrapping.
    fn add_i32(self, a: Self::I32, b: Self::I32) -> Self::I32;
    /// `a - b`, wrapping.
    fn sub_i32(self, a: Self::I32, b: Self::I32) -> Self::I32;
    /// `a & b`
    fn and_i32(self, a: Self::I32, b: Self::I32) -> Self::I32;
    /// `a | b`
    fn or_i32(self, a: Self::I32, b: Self::I32) -> Self::I32;
    /// Shifts towards the high end.
    fn shl_i32(self, a: Self::I32, bits: u32) -> Self::I32;
    /// Shifts towards the low end and fills with the sign.
    fn shr_i32(self, a: Self::I32, bits: u32) -> Self::I32;

    /// The signed half byte number `place` of each lane, the lowest first, as a number.
    #[inline(always)]
    fn half_byte(self, a: Self::I32, place: u32) -> Self::F32 {
        self.to_f32(self.shr_i32(self.shl_i32(a, 28 - 4 * place), 28))
    }

    /// The byte number `place` of each lane, the lowest first, as its highest, with nothing below it.
    #[inline(always)]
    fn high_byte(self, a: Self::I32, place: u32) -> Self::I32 {
        self.shl_i32(self.shr_i32(a, 8 * place), 24)
    }

    /// `sum` and the four products of the bytes of each lane, exactly. Bytes of `b` are signed; those of `a` are with an offset
    /// of [`Simd::BYTE_OFFSET`].
    fn dot_bytes(self, sum: Self::I32, a: Self::I32, b: Self::I32) -> Self::I32;

    /// The larger of each.
    fn max_i32(self, a: Self::I32, b: Self::I32) -> Self::I32;
    /// The smaller of each.
    fn min_i32(self, a: Self::I32, b: Self::I32) -> Self::I32;
    /// The largest lane.
    fn largest_i32(self, a: Self::I32) -> i32;
    /// 0, 1, 2, …
    fn count_up(self) -> Self::I32;
    /// Exchanges lanes 0 and 1, 2 and 3, …
    fn swap_pairs(self, a: Self::F32) -> Self::F32;
    /// Lane 0 twice, then lane 1 twice, …: the lower half of the lanes, each doubled.
    fn double_lanes(self, a: Self::F32) -> Self::F32;
    /// Turns the sign of lanes 0, 2, 4, …
    fn negate_even(self, a: Self::F32) -> Self::F32;

    /// Bytes as numbers from 0 to 255.
    /// # Safety
    /// `LANES` bytes are readable at `from`.
    unsafe fn load_u8(self, from: *const u8) -> Self::I32;
    /// The low byte of each lane.
    /// # Safety
    /// `LANES` bytes are writable at `to`.
    unsafe fn store_u8(self, to: *mut u8, value: Self::I32);
    /// Half bytes as numbers from 0 to 15, the low one of a byte first.
    /// # Safety
    /// `LANES / 2` bytes are readable at `from`.
    unsafe fn load_nibbles(self, from: *const u8) -> Self::I32;
    /// The low four bits of each lane, two lanes a byte, the low half of a byte first.
    /// # Safety
    /// `LANES / 2` bytes are writable at `to`.
    unsafe fn store_nibbles(self, to: *mut u8, value: Self::I32);
}

/// Asks for the line of an address, which need not be readable.
#[inline(always)]
pub fn prefetch<T>(_at: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch touches nothing, whatever the address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(_at.cast());
    }
}

/// Asks for every line of so many bytes.
#[inline(always)]
pub fn prefetch_all<T>(at: *const T, bytes: usize) {
    let mut line = 0;
    while line < bytes {
        prefetch(at.wrapping_byte_add(line));
        line += 64;
    }
}

/// Walks over `0..$len` in vectors: whole ones as [`Whole`], then one [`Part`] if something is left. The body is repeated
/// as text, so that it is compiled with the instructions of its surroundings. With `$k of $n`, whole vectors come in groups
/// of `$n`, and `$k` counts inside the group: an accumulator for each hides the latency of sums.
macro_rules! vectors {
    ($S:ty, $len:expr, |$span:ident| $body:block) => {{
        let len: usize = $len;
        let lanes = <$S as $crate::simd::Simd>::LANES;
        let mut at = 0;
        while at + lanes <= len {
            let $span = $crate::simd::Whole(at);
            $body
            at += lanes;
        }
        if at < len {
            let $span = $crate::simd::Part(at, len - at);
            $body
        }
    }};
    ($S:ty, $len:expr, |$span:ident, $k:ident of $n:literal| $body:block) => {{
        let len: usize = $len;
        let lanes = <$S as $crate::simd::Simd>::LANES;
        let mut at = 0;
        while at + $n * lanes <= len {
            for $k in 0..$n {
                let $span = $crate::simd::Whole(at + $k * lanes);
                $body
            }
            at += $n * lanes;
        }
        while at + lanes <= len {
            let $k = 0;
            let $span = $crate::simd::Whole(at);
            $body
            at += lanes;
        }
        if at < len {
            let $k = 1;
            let $span = $crate::simd::Part(at, len - at);
            $body
        }
    }};
}
pub(crate) use vectors;

/// Runs `$body` with `$T` as the float type of a call's dtype variable; an error if it is none that kernels here compute with.
macro_rules! with_float {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            Some(lz_core::DType::F32) => {
                type $T = f32;
                $body
            }
            Some(lz_core::DType::F16) => {
                type $T = half::f16;
                $body
            }
            Some(lz_core::DType::BF16) => {
                type $T = half::bf16;
                $body
            }
            other => Err($crate::simd::not_a_float(other)),
        }
    };
}
pub(crate) use with_float;

/// The error of `with_float!`.
#[cold]
pub fn not_a_float(dtype: Option<DType>) -> KernelError {
    KernelError::failed(format!("no kernel was compiled for {dtype:?}")).before_writing()
}

#[cfg(test)]
mod tests;
