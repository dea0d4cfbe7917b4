//! Scalar fallback in plain Rust over four lanes, for every processor. The compiler vectorizes it for the target's baseline.

use half::{bf16, f16};

use super::{Simd, Work};

const LANES: usize = 4;

/// No instructions beyond the target's baseline.
#[derive(Debug, Clone, Copy)]
pub struct Scalar;

#[inline(always)]
fn each(f: impl Fn(usize) -> f32) -> [f32; LANES] {
    [f(0), f(1), f(2), f(3)]
}

#[inline(always)]
fn each_i32(f: impl Fn(usize) -> i32) -> [i32; LANES] {
    [f(0), f(1), f(2), f(3)]
}

impl Simd for Scalar {
    const NAME: &'static str = "scalar";
    const FEATURES: &'static [&'static str] = &[];
    const PRIORITY_PENALTY: u8 = 20;
    const LANES: usize = LANES;
    type F32 = [f32; LANES];
    type I32 = [i32; LANES];
    type Mask = [bool; LANES];

    #[inline(always)]
    fn detect() -> Option<Scalar> {
        Some(Scalar)
    }
    #[inline(always)]
    fn vectorize<R>(self, body: impl FnOnce() -> R) -> R {
        body()
    }
    #[inline(always)]
    fn perform(self, work: impl Work) {
        work.perform();
    }
    #[inline(always)]
    fn splat(self, value: f32) -> [f32; LANES] {
        [value; LANES]
    }
    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> [f32; LANES] {
        // SAFETY: the caller guarantees four elements.
        unsafe { from.cast::<[f32; LANES]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn load_partial(self, from: *const f32, count: usize) -> [f32; LANES] {
        let mut whole = [0.0; LANES];
        // SAFETY: the caller guarantees `count` elements, fewer than four.
        unsafe { std::ptr::copy_nonoverlapping(from, whole.as_mut_ptr(), count) };
        whole
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32, value: [f32; LANES]) {
        // SAFETY: the caller guarantees four elements.
        unsafe { to.cast::<[f32; LANES]>().write_unaligned(value) }
    }
    #[inline(always)]
    unsafe fn store_partial(self, to: *mut f32, value: [f32; LANES], count: usize) {
        // SAFETY: the caller guarantees `count` elements, fewer than four.
        unsafe { std::ptr::copy_nonoverlapping(value.as_ptr(), to, count) }
    }
    #[inline(always)]
    unsafe fn stream(self, to: *mut f32, value: [f32; LANES]) {
        // SAFETY: the caller guarantees four elements.
        unsafe { self.store(to, value) }
    }
    #[inline(always)]
    fn fence(self) {}
    #[inline(always)]
    unsafe fn load_f16(self, from: *const u16) -> [f32; LANES] {
        // SAFETY: the caller guarantees four elements.
        unsafe { each(|lane| f16::from_bits(from.add(lane).read_unaligned()).to_f32_const()) }
    }
    #[inline(always)]
    unsafe fn store_f16(self, to: *mut u16, value: [f32; LANES]) {
        for (lane, value) in value.into_iter().enumerate() {
            // SAFETY: the caller guarantees four elements.
            unsafe { to.add(lane).write_unaligned(f16::from_f32_const(value).to_bits()) };
        }
    }
    #[inline(always)]
    unsafe fn stream_f16(self, to: *mut u16, value: [f32; LANES]) {
        // SAFETY: the caller guarantees four elements.
        unsafe { self.store_f16(to, value) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u16) -> [f32; LANES] {
        // SAFETY: the caller guarantees four elements.
        unsafe { each(|lane| f32::from_bits(u32::from(from.add(lane).read_unaligned()) << 16)) }
    }
    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut u16, value: [f32; LANES]) {
        for (lane, value) in value.into_iter().enumerate() {
            // SAFETY: the caller guarantees four elements.
            unsafe { to.add(lane).write_unaligned(bf16::from_f32(value).to_bits()) };
        }
    }
    #[inline(always)]
    unsafe fn stream_bf16(self, to: *mut u16, value: [f32; LANES]) {
        // SAFETY: the caller guarantees four elements.
        unsafe { self.store_bf16(to, value) }
    }
    #[inline(always)]
    fn add(self, a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        each(|lane| a[lane] + b[lane])
    }
    #[inline(always)]
    fn sub(self, a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        each(|lane| a[lane] - b[lane])
    }
    #[inline(always)]
    fn mul(self, a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        each(|lane| a[lane] * b[lane])
    }
    #[inline(always)]
    fn div(self, a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        each(|lane| a[lane] / b[lane])
    }
    #[inline(always)]
    fn fma(self, a: [f32; LANES], b: [f32; LANES], c: [f32; LANES]) -> [f32; LANES] {
        // Not fused: without an FMA instruction, `mul_add` is a slow library call.
        each(|lane| a[lane] * b[lane] + c[lane])
    }
    #[inline(always)]
    fn min(self, a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        each(|lane| if a[lane] < b[lane] { a[lane] } else { b[lane] })
    }
    #[inline(always)]
    fn max(self, a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        each(|lane| if a[lane] > b[lane] { a[lane] } else { b[lane] })
    }
    #[inline(always)]
    fn abs(self, a: [f32; LANES]) -> [f32; LANES] {
        a.map(f32::abs)
    }
    #[inline(always)]
    fn sqrt(self, a: [f32; LANES]) -> [f32; LANES] {
        a.map(f32::sqrt)
    }
    #[inline(always)]
    fn round(self, a: [f32; LANES]) -> [f32; LANES] {
        a.map(f32::round_ties_even)
    }
    #[inline(always)]
    fn lt(self, a: [f32; LANES], b: [f32; LANES]) -> [bool; LANES] {
        [a[0] < b[0], a[1] < b[1], a[2] < b[2], a[3] < b[3]]
    }
    #[inline(always)]
    fn any(self, mask: [bool; LANES]) -> bool {
        mask.contains(&true)
    }
    #[inline(always)]
    fn is_nan(self, a: [f32; LANES]) -> [bool; LANES] {
        a.map(f32::is_nan)
    }
    #[inline(always)]
    fn select(self, mask: [bool; LANES], a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        each(|lane| if mask[lane] { a[lane] } else { b[lane] })
    }
    #[inline(always)]
    fn select_i32(self, mask: [bool; LANES], a: [i32; LANES], b: [i32; LANES]) -> [i32; LANES] {
        each_i32(|lane| if mask[lane] { a[lane] } else { b[lane] })
    }
    #[inline(always)]
    fn keep_first(self, a: [f32; LANES], count: usize) -> [f32; LANES] {
        each(|lane| if lane < count { a[lane] } else { 0.0 })
    }
    #[inline(always)]
    fn sum(self, a: [f32; LANES]) -> f32 {
        (a[0] + a[2]) + (a[1] + a[3])
    }
    #[inline(always)]
    fn largest(self, a: [f32; LANES]) -> f32 {
        a[0].max(a[2]).max(a[1].max(a[3]))
    }
    #[inline(always)]
    fn splat_i32(self, value: i32) -> [i32; LANES] {
        [value; LANES]
    }
    #[inline(always)]
    fn to_i32(self, a: [f32; LANES]) -> [i32; LANES] {
        a.map(|value| {
            let whole = value.round_ties_even();
            if (-2_147_483_648.0..2_147_483_648.0).contains(&whole) { whole as i32 } else { i32::MIN }
        })
    }
    #[inline(always)]
    fn to_f32(self, a: [i32; LANES]) -> [f32; LANES] {
        a.map(|value| value as f32)
    }
    #[inline(always)]
    fn to_bits(self, a: [f32; LANES]) -> [i32; LANES] {
        a.map(|value| value.to_bits() as i32)
    }
    #[inline(always)]
    fn bitcast_f32(self, a: [i32; LANES]) -> [f32; LANES] {
        a.map(|bits| f32::from_bits(bits as u32))
    }
    #[inline(always)]
    fn add_i32(self, a: [i32; LANES], b: [i32; LANES]) -> [i32; LANES] {
        each_i32(|lane| a[lane].wrapping_add(b[lane]))
    }
    #[inline(always)]
    fn sub_i32(self, a: [i32; LANES], b: [i32; LANES]) -> [i32; LANES] {
        each_i32(|lane| a[lane].wrapping_sub(b[lane]))
    }
    #[inline(always)]
    fn and_i32(self, a: [i32; LANES], b: [i32; LANES]) -> [i32; LANES] {
        each_i32(|lane| a[lane] & b[lane])
    }
    #[inline(always)]
    fn or_i32(self, a: [i32; LANES], b: [i32; LANES]) -> [i32; LANES] {
        each_i32(|lane| a[lane] | b[lane])
    }
    #[inline(always)]
    fn shl_i32(self, a: [i32; LANES], bits: u32) -> [i32; LANES] {
        a.map(|value| value << bits)
    }
    #[inline(always)]
    fn shr_i32(self, a: [i32; LANES], bits: u32) -> [i32; LANES] {
        a.map(|value| value >> bits)
    }
    #[inline(always)]
    fn dot_bytes(self, sum: [i32; LANES], a: [i32; LANES], b: [i32; LANES]) -> [i32; LANES] {
        let products = |lane: usize| -> i32 {
            let bytes = a[lane].to_ne_bytes().into_iter().zip(b[lane].to_ne_bytes());
            bytes.map(|(a, b)| i32::from(a as i8) * i32::from(b as i8)).sum()
        };
        each_i32(|lane| sum[lane].wrapping_add(products(lane)))
    }
    #[inline(always)]
    fn max_i32(self, a: [i32; LANES], b: [i32; LANES]) -> [i32; LANES] {
        each_i32(|lane| a[lane].max(b[lane]))
    }
    #[inline(always)]
    fn min_i32(self, a: [i32; LANES], b: [i32; LANES]) -> [i32; LANES] {
        each_i32(|lane| a[lane].min(b[lane]))
    }
    #[inline(always)]
    fn largest_i32(self, a: [i32; LANES]) -> i32 {
        a[0].max(a[1]).max(a[2].max(a[3]))
    }
    #[inline(always)]
    fn lane_indices(self) -> [i32; LANES] {
        [0, 1, 2, 3]
    }
    #[inline(always)]
    fn swap_pairs(self, a: [f32; LANES]) -> [f32; LANES] {
        [a[1], a[0], a[3], a[2]]
    }
    #[inline(always)]
    fn duplicate_low_lanes(self, a: [f32; LANES]) -> [f32; LANES] {
        [a[0], a[0], a[1], a[1]]
    }
    #[inline(always)]
    fn negate_even(self, a: [f32; LANES]) -> [f32; LANES] {
        [-a[0], a[1], -a[2], a[3]]
    }
    #[inline(always)]
    unsafe fn load_u8(self, from: *const u8) -> [i32; LANES] {
        // SAFETY: the caller guarantees four bytes.
        unsafe { each_i32(|lane| i32::from(from.add(lane).read())) }
    }
    #[inline(always)]
    unsafe fn store_u8(self, to: *mut u8, value: [i32; LANES]) {
        // SAFETY: the caller guarantees four bytes.
        unsafe { to.cast::<[u8; LANES]>().write_unaligned(value.map(|value| value as u8)) }
    }
    #[inline(always)]
    unsafe fn load_nibbles(self, from: *const u8) -> [i32; LANES] {
        // SAFETY: the caller guarantees two bytes.
        unsafe { each_i32(|lane| i32::from(from.add(lane / 2).read() >> (4 * (lane % 2)) & 15)) }
    }
    #[inline(always)]
    unsafe fn store_nibbles(self, to: *mut u8, value: [i32; LANES]) {
        let byte = |low: i32, high: i32| (low & 15 | (high & 15) << 4) as u8;
        // SAFETY: the caller guarantees two bytes.
        unsafe { to.cast::<[u8; 2]>().write_unaligned([byte(value[0], value[1]), byte(value[2], value[3])]) }
    }
}
