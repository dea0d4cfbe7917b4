//! Portable SIMD: vectors of f32 lanes for one instruction set, detected at run time.
//!
//! A value of a type that implements [`Simd`] proves that this processor has the instructions: only
//! [`Simd::detect`] creates one. Kernels are written once, generic over it, and monomorphized for every
//! instruction set (`crate::isa`). Everything here is inlined into the function that [`Simd::vectorize`]
//! enters, because only there are the target features enabled. Everything that a kernel calls in its inner
//! loops must therefore be `#[inline(always)]`, and `vectors!` expands its body instead of taking a
//! closure. Nothing here depends on an operation.

use lz_core::{DType, KernelError};

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod element;
mod math;
mod minifloat;
#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;

#[cfg(target_arch = "x86_64")]
pub use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub use avx512::{Amx, Avx512, Vnni};
pub(crate) use element::MAX_LANES;
pub use element::{
    Float, FloatKind, FullVector, Span, Tail, load_bytes, load_nibbles, load_quarters, load_u16, store_bytes,
    store_nibbles, store_quarters, store_u16,
};
pub use math::{exp, exp2};
pub use minifloat::{E2M1, E4M3, E5M2, SmallFloat, decode, encode};
#[cfg(target_arch = "aarch64")]
pub use neon::{Neon, NeonDotProd};
pub use scalar::Scalar;

/// A vectorized body of any size. `perform` must be `#[inline(always)]`, which a closure cannot be.
pub trait Work {
    /// Runs the body.
    fn perform(self);
}

/// An instruction set, as a proof that the processor supports it.
///
/// Lane 0 is at the lowest address. `min` and `max` return their second operand if either is NaN, as x86
/// does; kernels that must propagate NaN use [`Simd::is_nan`].
pub trait Simd: Copy + Send + Sync + 'static {
    /// Last component of a kernel id: `avx512`.
    const NAME: &'static str;
    /// Required device features, by the names that kernel specs use.
    const FEATURES: &'static [&'static str];
    /// Subtracted from a kernel's priority when it is compiled for this instead of the widest instruction
    /// set.
    const PRIORITY_PENALTY: u8;
    /// Lanes per vector.
    const LANES: usize;
    /// Whether it also proves AMX tiles for bf16.
    const TILES: bool = false;
    /// Offset to be added to the bytes of operand `a` of [`Simd::dot_bytes`]: 0 if they are signed, 128 if
    /// they are unsigned.
    const BYTE_OFFSET: u8 = 0;
    /// A vector of f32.
    type F32: Copy;
    /// A vector of i32 with as many lanes.
    type I32: Copy;
    /// One bit per lane.
    type Mask: Copy;

    /// Returns the proof if this processor has the instructions.
    fn detect() -> Option<Self>;

    /// Runs `body` with the target features enabled. A body that is too large is not inlined there, and is
    /// compiled without them: use a [`Work`] instead.
    fn vectorize<R>(self, body: impl FnOnce() -> R) -> R;

    /// Runs a body of any size with the target features enabled.
    fn perform(self, work: impl Work);

    /// Broadcasts a value to all lanes.
    fn splat(self, value: f32) -> Self::F32;
    /// # Safety
    /// `LANES` elements are readable at `from`.
    unsafe fn load(self, from: *const f32) -> Self::F32;
    /// Loads the first `count` lanes; the others are 0.
    /// # Safety
    /// `count` elements are readable at `from`, and `count < LANES`.
    unsafe fn load_partial(self, from: *const f32, count: usize) -> Self::F32;
    /// # Safety
    /// `LANES` elements are writable at `to`.
    unsafe fn store(self, to: *mut f32, value: Self::F32);
    /// Stores the first `count` lanes.
    /// # Safety
    /// `count` elements are writable at `to`, and `count < LANES`.
    unsafe fn store_partial(self, to: *mut f32, value: Self::F32, count: usize);
    /// Non-temporal store.
    /// # Safety
    /// As [`Simd::store`], and `to` is aligned to the vector size.
    unsafe fn stream(self, to: *mut f32, value: Self::F32);

    /// Store fence: makes non-temporal stores visible before anything that follows. Required after streaming.
    fn fence(self);

    /// # Safety
    /// `LANES` elements are readable at `from`.
    unsafe fn load_f16(self, from: *const u16) -> Self::F32;
    /// Rounds to nearest even.
    /// # Safety
    /// `LANES` elements are writable at `to`.
    unsafe fn store_f16(self, to: *mut u16, value: Self::F32);
    /// # Safety
    /// As [`Simd::store_f16`], and `to` is aligned to half the vector size.
    unsafe fn stream_f16(self, to: *mut u16, value: Self::F32);
    /// # Safety
    /// `LANES` elements are readable at `from`.
    unsafe fn load_bf16(self, from: *const u16) -> Self::F32;
    /// Rounds to nearest even.
    /// # Safety
    /// `LANES` elements are writable at `to`.
    unsafe fn store_bf16(self, to: *mut u16, value: Self::F32);
    /// # Safety
    /// As [`Simd::store_bf16`], and `to` is aligned to half the vector size.
    unsafe fn stream_bf16(self, to: *mut u16, value: Self::F32);

    /// `a + b`
    fn add(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a - b`
    fn sub(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a * b`
    fn mul(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a / b`
    fn div(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a / b` within two ulps, for `b` of normal magnitude; NaN where `b` is infinite.
    #[inline(always)]
    fn div_approx(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        self.div(a, b)
    }
    /// `a * b + c`, rounded once where the instruction exists.
    fn fma(self, a: Self::F32, b: Self::F32, c: Self::F32) -> Self::F32;
    /// Minimum; `b` if either is NaN.
    fn min(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// Maximum; `b` if either is NaN.
    fn max(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// Absolute value.
    fn abs(self, a: Self::F32) -> Self::F32;
    /// Square root.
    fn sqrt(self, a: Self::F32) -> Self::F32;
    /// Rounds to the nearest integer, ties to even.
    fn round(self, a: Self::F32) -> Self::F32;
    /// `a * 2^n` for integers `n` in -252 … 254, and `a` of normal magnitude.
    #[inline(always)]
    fn ldexp(self, a: Self::F32, n: Self::F32) -> Self::F32 {
        // Two multiplications, because a single power of two cannot reach the denormals.
        let n = self.to_i32(n);
        let half = self.shr_i32(n, 1);
        let power = |n| self.bitcast_f32(self.shl_i32(self.add_i32(n, self.splat_i32(127)), 23));
        self.mul(self.mul(a, power(half)), power(self.sub_i32(n, half)))
    }

    /// `a < b`; false for NaN.
    fn lt(self, a: Self::F32, b: Self::F32) -> Self::Mask;
    /// Whether a lane is NaN.
    fn is_nan(self, a: Self::F32) -> Self::Mask;
    /// Whether the mask is set in any lane.
    fn any(self, mask: Self::Mask) -> bool;
    /// `a` where the mask is set, otherwise `b`.
    fn select(self, mask: Self::Mask, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a` where the mask is set, otherwise `b`.
    fn select_i32(self, mask: Self::Mask, a: Self::I32, b: Self::I32) -> Self::I32;
    /// The first `count` lanes; the others are 0.
    fn keep_first(self, a: Self::F32, count: usize) -> Self::F32;

    /// Horizontal sum of all lanes, in a fixed order.
    fn sum(self, a: Self::F32) -> f32;
    /// Horizontal maximum of the lanes that are not NaN.
    fn largest(self, a: Self::F32) -> f32;

    /// Transposes a block of `LANES` x `LANES` elements, stored row after row: column n goes to `to + n *
    /// step`.
    /// # Safety
    /// The block is readable, and `LANES` elements are writable at the destination of each column.
    #[inline(always)]
    unsafe fn transpose(self, block: *const f32, to: *mut f32, step: usize) {
        for row in 0..Self::LANES {
            for column in 0..Self::LANES {
                // SAFETY: the caller guarantees both blocks.
                unsafe { *to.add(column * step + row) = *block.add(row * Self::LANES + column) };
            }
        }
    }

    /// Broadcasts a value to all lanes.
    fn splat_i32(self, value: i32) -> Self::I32;
    /// Rounds to the nearest integer, ties to even; out-of-range values become `i32::MIN`.
    fn to_i32(self, a: Self::F32) -> Self::I32;
    /// Converts integers to floats.
    fn to_f32(self, a: Self::I32) -> Self::F32;
    /// Reinterprets floats as their bits.
    fn to_bits(self, a: Self::F32) -> Self::I32;
    /// Reinterprets bits as floats.
    fn bitcast_f32(self, a: Self::I32) -> Self::F32;
    /// `a + b`, wrapping.
    fn add_i32(self, a: Self::I32, b: Self::I32) -> Self::I32;
    /// `a - b`, wrapping.
    fn sub_i32(self, a: Self::I32, b: Self::I32) -> Self::I32;
    /// `a & b`
    fn and_i32(self, a: Self::I32, b: Self::I32) -> Self::I32;
    /// `a | b`
    fn or_i32(self, a: Self::I32, b: Self::I32) -> Self::I32;
    /// Shift left.
    fn shl_i32(self, a: Self::I32, bits: u32) -> Self::I32;
    /// Arithmetic shift right.
    fn shr_i32(self, a: Self::I32, bits: u32) -> Self::I32;

    /// Signed 4-bit value number `index` of each lane (0 is the lowest), converted to f32.
    #[inline(always)]
    fn signed_nibble(self, a: Self::I32, index: u32) -> Self::F32 {
        self.to_f32(self.shr_i32(self.shl_i32(a, 28 - 4 * index), 28))
    }

    /// Byte number `index` of each lane (0 is the lowest), moved to the top byte; the other bits are 0.
    #[inline(always)]
    fn high_byte(self, a: Self::I32, index: u32) -> Self::I32 {
        self.shl_i32(self.shr_i32(a, 8 * index), 24)
    }

    /// `sum` plus the dot product of the four bytes of each lane, exact. The bytes of `b` are signed; those
    /// of `a` have an offset of [`Simd::BYTE_OFFSET`].
    fn dot_bytes(self, sum: Self::I32, a: Self::I32, b: Self::I32) -> Self::I32;

    /// Maximum per lane.
    fn max_i32(self, a: Self::I32, b: Self::I32) -> Self::I32;
    /// Minimum per lane.
    fn min_i32(self, a: Self::I32, b: Self::I32) -> Self::I32;
    /// Horizontal maximum.
    fn largest_i32(self, a: Self::I32) -> i32;
    /// Lane indices: 0, 1, 2, …
    fn lane_indices(self) -> Self::I32;
    /// Swaps lanes 0 and 1, 2 and 3, …
    fn swap_pairs(self, a: Self::F32) -> Self::F32;
    /// Duplicates the lower half of the lanes: 0, 0, 1, 1, …
    fn duplicate_low_lanes(self, a: Self::F32) -> Self::F32;
    /// Negates lanes 0, 2, 4, …
    fn negate_even(self, a: Self::F32) -> Self::F32;

    /// Loads unsigned bytes (0 … 255).
    /// # Safety
    /// `LANES` bytes are readable at `from`.
    unsafe fn load_u8(self, from: *const u8) -> Self::I32;
    /// Stores the low byte of each lane.
    /// # Safety
    /// `LANES` bytes are writable at `to`.
    unsafe fn store_u8(self, to: *mut u8, value: Self::I32);
    /// Loads unsigned 4-bit values (0 … 15), low nibble of a byte first.
    /// # Safety
    /// `LANES / 2` bytes are readable at `from`.
    unsafe fn load_nibbles(self, from: *const u8) -> Self::I32;
    /// Stores the low four bits of each lane, two lanes per byte, low nibble first.
    /// # Safety
    /// `LANES / 2` bytes are writable at `to`.
    unsafe fn store_nibbles(self, to: *mut u8, value: Self::I32);
}

/// Prefetches the cache line of an address, which need not be readable.
#[inline(always)]
pub fn prefetch<T>(_at: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults, whatever the address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(_at.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above; the intrinsic is not stable, the instruction in assembly is.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) _at, options(readonly, nostack, preserves_flags));
    }
}

/// As [`prefetch`], but not into L1.
#[inline(always)]
pub fn prefetch_l2<T>(_at: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults, whatever the address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(_at.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above; the intrinsic is not stable, the instruction in assembly is.
    unsafe {
        std::arch::asm!("prfm pldl2keep, [{}]", in(reg) _at, options(readonly, nostack, preserves_flags));
    }
}

/// Prefetches the cache lines of `bytes` bytes for writing, so that the stores find them in a state in which they may be written.
#[inline(always)]
pub fn prefetch_for_writing<T>(at: *const T, bytes: usize) {
    let end = at.addr() + bytes;
    let mut line = at.map_addr(|address| address & !63);
    while line.addr() < end {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch never faults, whatever the address; processors without this one do nothing. The intrinsic becomes an ordinary
        // prefetch without a target feature that is not stable.
        unsafe {
            std::arch::asm!("prefetchw [{}]", in(reg) line, options(readonly, nostack, preserves_flags));
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: as above.
        unsafe {
            std::arch::asm!("prfm pstl1keep, [{}]", in(reg) line, options(readonly, nostack, preserves_flags));
        }
        line = line.wrapping_byte_add(64);
    }
}

/// Prefetches every cache line of `bytes` bytes.
#[inline(always)]
pub fn prefetch_all<T>(at: *const T, bytes: usize) {
    let mut line = 0;
    while line < bytes {
        prefetch(at.wrapping_byte_add(line));
        line += 64;
    }
}

/// Iterates over `0..$len` in vectors: full vectors as [`Whole`], then one [`Tail`] for the remainder. The
/// body is expanded textually, so that it is compiled with the target features of its surroundings. With `$k
/// of $n`, full vectors come in groups of `$n`, and `$k` is the index in the group: one accumulator per index
/// hides the FMA latency.
macro_rules! vectors {
    ($S:ty, $len:expr, |$span:ident| $body:block) => {{
        let len: usize = $len;
        let lanes = <$S as $crate::simd::Simd>::LANES;
        let mut at = 0;
        while at + lanes <= len {
            let $span = $crate::simd::FullVector(at);
            $body
            at += lanes;
        }
        if at < len {
            let $span = $crate::simd::Tail(at, len - at);
            $body
        }
    }};
    ($S:ty, $len:expr, |$span:ident, $k:ident of $n:literal| $body:block) => {{
        let len: usize = $len;
        let lanes = <$S as $crate::simd::Simd>::LANES;
        let mut at = 0;
        while at + $n * lanes <= len {
            for $k in 0..$n {
                let $span = $crate::simd::FullVector(at + $k * lanes);
                $body
            }
            at += $n * lanes;
        }
        while at + lanes <= len {
            let $k = 0;
            let $span = $crate::simd::FullVector(at);
            $body
            at += lanes;
        }
        if at < len {
            let $k = 1;
            let $span = $crate::simd::Tail(at, len - at);
            $body
        }
    }};
}
pub(crate) use vectors;

/// Runs `$body` with `$T` as the float type of a call's dtype variable; an error if it is not a supported
/// float type.
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

/// Error of `with_float!`.
#[cold]
pub fn not_a_float(dtype: Option<DType>) -> KernelError {
    KernelError::failed(format!("unsupported dtype {dtype:?}: expected f32, f16 or bf16")).before_writing()
}
