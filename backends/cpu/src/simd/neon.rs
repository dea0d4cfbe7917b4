//! NEON: eight lanes in two registers of four, alone or with the dot product of bytes (`dotprod`).
//!
//! Two registers, because the register file has 32: the micro-tiles of eight lanes (6 rows of two vectors) fill 24 of them.
//! `min`, `max` and `to_i32` differ from the instructions of the same name for NaN and out-of-range values, so they are composed of
//! comparisons and selections.

use std::arch::aarch64::*;

use super::{Simd, Work};

/// Proof of `neon`; with [`DOT_PRODUCT`] also of `dotprod`.
#[derive(Debug, Clone, Copy)]
pub struct NeonFamily<const EXTENSIONS: u8>(());

const BASE: u8 = 0;
const DOT_PRODUCT: u8 = 1;

/// NEON.
pub type Neon = NeonFamily<BASE>;

/// NEON and `dotprod`.
pub type NeonDotProd = NeonFamily<DOT_PRODUCT>;

/// Calls an intrinsic whose target feature `self` proves.
macro_rules! proven {
    ($call:expr) => {{
        // SAFETY: a `NeonFamily` exists only where `detect` found the instructions.
        unsafe { $call }
    }};
}

/// Applies an intrinsic to both registers.
macro_rules! both {
    (|$($register:ident),+| $call:expr) => {
        proven!({
            let low = {
                $(let $register = $register[0];)+
                $call
            };
            let high = {
                $(let $register = $register[1];)+
                $call
            };
            [low, high]
        })
    };
}

/// Half the lanes: those of one register.
const HALF: usize = 4;

/// Eight set lanes, then eight clear ones: a load at offset `8 - count` gives a mask of the first `count` lanes.
static WINDOW: [u32; 16] = {
    let mut window = [0; 16];
    let mut lane = 0;
    while lane < 8 {
        window[lane] = u32::MAX;
        lane += 1;
    }
    window
};

#[inline(always)]
fn first(count: usize) -> [uint32x4_t; 2] {
    let start = 8 - count.min(8);
    // SAFETY: eight entries follow every offset up to 8; all callers hold a `NeonFamily`.
    unsafe {
        let from = WINDOW.as_ptr().add(start);
        [vld1q_u32(from), vld1q_u32(from.add(HALF))]
    }
}

/// The first `count` elements, at most three; the other lanes are 0.
///
/// # Safety
/// `count` elements are readable, and the processor has NEON.
#[inline(always)]
unsafe fn load_up_to_three(from: *const f32, count: usize) -> float32x4_t {
    // SAFETY: the caller guarantees the elements and the instructions.
    unsafe {
        let zero = vdupq_n_f32(0.0);
        match count {
            0 => zero,
            1 => vld1q_lane_f32::<0>(from, zero),
            2 => vcombine_f32(vld1_f32(from), vdup_n_f32(0.0)),
            _ => vld1q_lane_f32::<2>(from.add(2), vcombine_f32(vld1_f32(from), vdup_n_f32(0.0))),
        }
    }
}

/// Stores the first `count` lanes, at most three.
///
/// # Safety
/// `count` elements are writable, and the processor has NEON.
#[inline(always)]
unsafe fn store_up_to_three(to: *mut f32, value: float32x4_t, count: usize) {
    // SAFETY: the caller guarantees the elements and the instructions.
    unsafe {
        match count {
            0 => {}
            1 => vst1q_lane_f32::<0>(to, value),
            2 => vst1_f32(to, vget_low_f32(value)),
            _ => {
                vst1_f32(to, vget_low_f32(value));
                vst1q_lane_f32::<2>(to.add(2), value);
            }
        }
    }
}

/// Rounds to nearest even in integer arithmetic; a NaN keeps its upper bits and becomes quiet.
#[inline(always)]
fn to_bf16(value: float32x4_t) -> uint16x4_t {
    proven!({
        let bits = vreinterpretq_u32_f32(value);
        let odd = vandq_u32(vshrq_n_u32::<16>(bits), vdupq_n_u32(1));
        let rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
        let quiet = vorrq_u32(bits, vdupq_n_u32(0x0040_0000));
        vshrn_n_u32::<16>(vbslq_u32(vceqq_f32(value, value), rounded, quiet))
    })
}

/// The minimum as x86 defines it: `b` if either is NaN or both are zeros. `FMIN` would propagate a NaN of `a`.
#[inline(always)]
fn min_or_second(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    proven!(vbslq_f32(vcltq_f32(a, b), a, b))
}

/// The maximum as x86 defines it: `b` if either is NaN or both are zeros. `FMAX` would propagate a NaN of `a`.
#[inline(always)]
fn max_or_second(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    proven!(vbslq_f32(vcgtq_f32(a, b), a, b))
}

impl<const EXTENSIONS: u8> Simd for NeonFamily<EXTENSIONS> {
    const NAME: &'static str = if EXTENSIONS == DOT_PRODUCT { "dotprod" } else { "neon" };
    const FEATURES: &'static [&'static str] =
        if EXTENSIONS == DOT_PRODUCT { &["neon", "dotprod"] } else { &["neon"] };
    const PRIORITY_PENALTY: u8 = 0;
    const LANES: usize = 2 * HALF;
    type F32 = [float32x4_t; 2];
    type I32 = [int32x4_t; 2];
    type Mask = [uint32x4_t; 2];

    #[inline(always)]
    fn detect() -> Option<Self> {
        use std::arch::is_aarch64_feature_detected;
        let all = is_aarch64_feature_detected!("neon")
            && (EXTENSIONS != DOT_PRODUCT || is_aarch64_feature_detected!("dotprod"));
        all.then_some(NeonFamily(()))
    }
    #[inline(always)]
    fn vectorize<R>(self, body: impl FnOnce() -> R) -> R {
        #[target_feature(enable = "neon")]
        fn inside<R>(body: impl FnOnce() -> R) -> R {
            body()
        }
        #[target_feature(enable = "neon,dotprod")]
        fn inside_with_bytes<R>(body: impl FnOnce() -> R) -> R {
            body()
        }
        if EXTENSIONS == DOT_PRODUCT { proven!(inside_with_bytes(body)) } else { proven!(inside(body)) }
    }
    #[inline(always)]
    fn perform(self, work: impl Work) {
        #[target_feature(enable = "neon")]
        fn inside(work: impl Work) {
            work.perform();
        }
        #[target_feature(enable = "neon,dotprod")]
        fn inside_with_bytes(work: impl Work) {
            work.perform();
        }
        if EXTENSIONS == DOT_PRODUCT { proven!(inside_with_bytes(work)) } else { proven!(inside(work)) }
    }
    #[inline(always)]
    fn splat(self, value: f32) -> Self::F32 {
        [proven!(vdupq_n_f32(value)); 2]
    }
    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> Self::F32 {
        // SAFETY: the caller guarantees eight elements; `self` proves the instruction.
        unsafe { [vld1q_f32(from), vld1q_f32(from.add(HALF))] }
    }
    #[inline(always)]
    unsafe fn load_partial(self, from: *const f32, count: usize) -> Self::F32 {
        // SAFETY: the caller guarantees `count` elements, fewer than eight; `self` proves the instructions.
        unsafe {
            if count < HALF {
                [load_up_to_three(from, count), vdupq_n_f32(0.0)]
            } else {
                [vld1q_f32(from), load_up_to_three(from.add(HALF), count - HALF)]
            }
        }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32, value: Self::F32) {
        // SAFETY: the caller guarantees eight elements; `self` proves the instruction.
        unsafe {
            vst1q_f32(to, value[0]);
            vst1q_f32(to.add(HALF), value[1]);
        }
    }
    #[inline(always)]
    unsafe fn store_partial(self, to: *mut f32, value: Self::F32, count: usize) {
        // SAFETY: the caller guarantees `count` elements, fewer than eight; `self` proves the instructions.
        unsafe {
            if count < HALF {
                store_up_to_three(to, value[0], count);
            } else {
                vst1q_f32(to, value[0]);
                store_up_to_three(to.add(HALF), value[1], count - HALF);
            }
        }
    }
    #[inline(always)]
    unsafe fn stream(self, to: *mut f32, value: Self::F32) {
        // A normal store: there is no stable intrinsic for a non-temporal one.
        // SAFETY: the caller guarantees eight elements.
        unsafe { self.store(to, value) }
    }
    #[inline(always)]
    fn fence(self) {}
    #[inline(always)]
    unsafe fn load_f16(self, from: *const u16) -> Self::F32 {
        // SAFETY: the caller guarantees eight elements; `self` proves the instructions.
        unsafe {
            let halves = vreinterpretq_f16_u16(vld1q_u16(from));
            [vcvt_f32_f16(vget_low_f16(halves)), vcvt_high_f32_f16(halves)]
        }
    }
    #[inline(always)]
    unsafe fn store_f16(self, to: *mut u16, value: Self::F32) {
        // SAFETY: the caller guarantees eight elements; `self` proves the instructions.
        unsafe {
            let halves = vcvt_high_f16_f32(vcvt_f16_f32(value[0]), value[1]);
            vst1q_u16(to, vreinterpretq_u16_f16(halves));
        }
    }
    #[inline(always)]
    unsafe fn stream_f16(self, to: *mut u16, value: Self::F32) {
        // SAFETY: the caller guarantees eight elements.
        unsafe { self.store_f16(to, value) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u16) -> Self::F32 {
        // SAFETY: the caller guarantees eight elements; `self` proves the instructions.
        unsafe {
            let halves = vld1q_u16(from);
            let low = vshlq_n_u32::<16>(vmovl_u16(vget_low_u16(halves)));
            let high = vshlq_n_u32::<16>(vmovl_high_u16(halves));
            [vreinterpretq_f32_u32(low), vreinterpretq_f32_u32(high)]
        }
    }
    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut u16, value: Self::F32) {
        // SAFETY: the caller guarantees eight elements; `self` proves the instruction.
        unsafe { vst1q_u16(to, vcombine_u16(to_bf16(value[0]), to_bf16(value[1]))) }
    }
    #[inline(always)]
    unsafe fn stream_bf16(self, to: *mut u16, value: Self::F32) {
        // SAFETY: the caller guarantees eight elements.
        unsafe { self.store_bf16(to, value) }
    }
    #[inline(always)]
    fn add(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        both!(|a, b| vaddq_f32(a, b))
    }
    #[inline(always)]
    fn sub(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        both!(|a, b| vsubq_f32(a, b))
    }
    #[inline(always)]
    fn mul(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        both!(|a, b| vmulq_f32(a, b))
    }
    #[inline(always)]
    fn div(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        both!(|a, b| vdivq_f32(a, b))
    }
    #[inline(always)]
    fn fma(self, a: Self::F32, b: Self::F32, c: Self::F32) -> Self::F32 {
        both!(|a, b, c| vfmaq_f32(c, a, b))
    }
    #[inline(always)]
    fn min(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        [min_or_second(a[0], b[0]), min_or_second(a[1], b[1])]
    }
    #[inline(always)]
    fn max(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        [max_or_second(a[0], b[0]), max_or_second(a[1], b[1])]
    }
    #[inline(always)]
    fn abs(self, a: Self::F32) -> Self::F32 {
        both!(|a| vabsq_f32(a))
    }
    #[inline(always)]
    fn sqrt(self, a: Self::F32) -> Self::F32 {
        both!(|a| vsqrtq_f32(a))
    }
    #[inline(always)]
    fn round(self, a: Self::F32) -> Self::F32 {
        both!(|a| vrndnq_f32(a))
    }
    #[inline(always)]
    fn ldexp(self, a: Self::F32, n: Self::F32) -> Self::F32 {
        // As the provided method, without the range check of `to_i32`: `n` is small, and a NaN becomes 0.
        both!(|a, n| {
            let n = vcvtnq_s32_f32(n);
            let half = vshrq_n_s32::<1>(n);
            let (bias, rest) = (vdupq_n_s32(127), vsubq_s32(n, half));
            let first = vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(half, bias)));
            let second = vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(rest, bias)));
            vmulq_f32(vmulq_f32(a, first), second)
        })
    }
    #[inline(always)]
    fn lt(self, a: Self::F32, b: Self::F32) -> Self::Mask {
        both!(|a, b| vcltq_f32(a, b))
    }
    #[inline(always)]
    fn any(self, mask: Self::Mask) -> bool {
        proven!(vmaxvq_u32(vorrq_u32(mask[0], mask[1]))) != 0
    }
    #[inline(always)]
    fn is_nan(self, a: Self::F32) -> Self::Mask {
        both!(|a| vmvnq_u32(vceqq_f32(a, a)))
    }
    #[inline(always)]
    fn select(self, mask: Self::Mask, a: Self::F32, b: Self::F32) -> Self::F32 {
        both!(|mask, a, b| vbslq_f32(mask, a, b))
    }
    #[inline(always)]
    fn select_i32(self, mask: Self::Mask, a: Self::I32, b: Self::I32) -> Self::I32 {
        both!(|mask, a, b| vbslq_s32(mask, a, b))
    }
    #[inline(always)]
    fn keep_first(self, a: Self::F32, count: usize) -> Self::F32 {
        let mask = first(count);
        both!(|a, mask| vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(a), mask)))
    }
    #[inline(always)]
    fn sum(self, a: Self::F32) -> f32 {
        // The order of AVX2.
        proven!({
            let four = vaddq_f32(a[0], a[1]);
            let two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
            vget_lane_f32::<0>(two) + vget_lane_f32::<1>(two)
        })
    }
    #[inline(always)]
    fn largest(self, a: Self::F32) -> f32 {
        let [low, high] = self.max(a, self.splat(f32::NEG_INFINITY));
        proven!(vmaxvq_f32(vmaxq_f32(low, high)))
    }
    #[inline(always)]
    unsafe fn transpose(self, block: *const f32, to: *mut f32, step: usize) {
        // Four blocks of 4 x 4. The first two columns of a pair of rows are one register of pairs, then pairs are exchanged.
        // SAFETY: the caller guarantees both blocks, `self` proves the instructions.
        unsafe {
            for row in [0, HALF] {
                for column in [0, HALF] {
                    let from = block.add(row * Self::LANES + column);
                    let line = |index: usize| vld1q_f32(from.add(index * Self::LANES));
                    let lines = [line(0), line(1), line(2), line(3)];
                    let even = |a, b| vreinterpretq_f64_f32(vtrn1q_f32(a, b));
                    let odd = |a, b| vreinterpretq_f64_f32(vtrn2q_f32(a, b));
                    let evens = [even(lines[0], lines[1]), even(lines[2], lines[3])];
                    let odds = [odd(lines[0], lines[1]), odd(lines[2], lines[3])];
                    let to = to.add(column * step + row);
                    vst1q_f32(to, vreinterpretq_f32_f64(vtrn1q_f64(evens[0], evens[1])));
                    vst1q_f32(to.add(step), vreinterpretq_f32_f64(vtrn1q_f64(odds[0], odds[1])));
                    vst1q_f32(to.add(2 * step), vreinterpretq_f32_f64(vtrn2q_f64(evens[0], evens[1])));
                    vst1q_f32(to.add(3 * step), vreinterpretq_f32_f64(vtrn2q_f64(odds[0], odds[1])));
                }
            }
        }
    }
    #[inline(always)]
    fn splat_i32(self, value: i32) -> Self::I32 {
        [proven!(vdupq_n_s32(value)); 2]
    }
    #[inline(always)]
    fn to_i32(self, a: Self::F32) -> Self::I32 {
        // The conversion saturates and turns NaN into 0. Magnitudes below 2^31 are in range after rounding, too.
        both!(|a| {
            let in_range = vcltq_f32(vabsq_f32(a), vdupq_n_f32(2_147_483_648.0));
            vbslq_s32(in_range, vcvtnq_s32_f32(a), vdupq_n_s32(i32::MIN))
        })
    }
    #[inline(always)]
    fn to_f32(self, a: Self::I32) -> Self::F32 {
        both!(|a| vcvtq_f32_s32(a))
    }
    #[inline(always)]
    fn to_bits(self, a: Self::F32) -> Self::I32 {
        both!(|a| vreinterpretq_s32_f32(a))
    }
    #[inline(always)]
    fn bitcast_f32(self, a: Self::I32) -> Self::F32 {
        both!(|a| vreinterpretq_f32_s32(a))
    }
    #[inline(always)]
    fn add_i32(self, a: Self::I32, b: Self::I32) -> Self::I32 {
        both!(|a, b| vaddq_s32(a, b))
    }
    #[inline(always)]
    fn sub_i32(self, a: Self::I32, b: Self::I32) -> Self::I32 {
        both!(|a, b| vsubq_s32(a, b))
    }
    #[inline(always)]
    fn and_i32(self, a: Self::I32, b: Self::I32) -> Self::I32 {
        both!(|a, b| vandq_s32(a, b))
    }
    #[inline(always)]
    fn or_i32(self, a: Self::I32, b: Self::I32) -> Self::I32 {
        both!(|a, b| vorrq_s32(a, b))
    }
    #[inline(always)]
    fn shl_i32(self, a: Self::I32, bits: u32) -> Self::I32 {
        let by = proven!(vdupq_n_s32(bits as i32));
        both!(|a| vshlq_s32(a, by))
    }
    #[inline(always)]
    fn shr_i32(self, a: Self::I32, bits: u32) -> Self::I32 {
        // A negative shift count shifts right.
        let by = proven!(vdupq_n_s32(-(bits as i32)));
        both!(|a| vshlq_s32(a, by))
    }
    #[inline(always)]
    fn dot_bytes(self, sum: Self::I32, a: Self::I32, b: Self::I32) -> Self::I32 {
        if EXTENSIONS == DOT_PRODUCT {
            return both!(|sum, a, b| signed_dot_product(sum, a, b));
        }
        both!(|sum, a, b| {
            let (a, b) = (vreinterpretq_s8_s32(a), vreinterpretq_s8_s32(b));
            // Products fit into 16 bits; their sums do not, and are widened.
            let low = vpaddlq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)));
            let high = vpaddlq_s16(vmull_high_s8(a, b));
            vaddq_s32(sum, vpaddq_s32(low, high))
        })
    }
    #[inline(always)]
    fn max_i32(self, a: Self::I32, b: Self::I32) -> Self::I32 {
        both!(|a, b| vmaxq_s32(a, b))
    }
    #[inline(always)]
    fn min_i32(self, a: Self::I32, b: Self::I32) -> Self::I32 {
        both!(|a, b| vminq_s32(a, b))
    }
    #[inline(always)]
    fn largest_i32(self, a: Self::I32) -> i32 {
        proven!(vmaxvq_s32(vmaxq_s32(a[0], a[1])))
    }
    #[inline(always)]
    fn lane_indices(self) -> Self::I32 {
        const INDICES: [i32; 8] = [0, 1, 2, 3, 4, 5, 6, 7];
        // SAFETY: eight indices; `self` proves the instruction.
        unsafe { [vld1q_s32(INDICES.as_ptr()), vld1q_s32(INDICES.as_ptr().add(HALF))] }
    }
    #[inline(always)]
    fn swap_pairs(self, a: Self::F32) -> Self::F32 {
        both!(|a| vrev64q_f32(a))
    }
    #[inline(always)]
    fn duplicate_low_lanes(self, a: Self::F32) -> Self::F32 {
        proven!([vzip1q_f32(a[0], a[0]), vzip2q_f32(a[0], a[0])])
    }
    #[inline(always)]
    fn negate_even(self, a: Self::F32) -> Self::F32 {
        let signs = proven!(vreinterpretq_u32_u64(vdupq_n_u64(0x8000_0000)));
        both!(|a| vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(a), signs)))
    }
    #[inline(always)]
    unsafe fn load_u8(self, from: *const u8) -> Self::I32 {
        // SAFETY: the caller guarantees eight bytes; `self` proves the instructions.
        unsafe { widen(vld1_u8(from)) }
    }
    #[inline(always)]
    unsafe fn store_u8(self, to: *mut u8, value: Self::I32) {
        // SAFETY: the caller guarantees eight bytes; `self` proves the instructions.
        unsafe { vst1_u8(to, low_bytes(value)) }
    }
    #[inline(always)]
    unsafe fn load_nibbles(self, from: *const u8) -> Self::I32 {
        // SAFETY: the caller guarantees four bytes; `self` proves the instructions.
        unsafe {
            let bytes = vcreate_u8(u64::from(from.cast::<u32>().read_unaligned()));
            // A negative shift count shifts right: by 0 in even lanes, by 4 in odd ones.
            let shifts = vcreate_s8(0xfc00_fc00_fc00_fc00);
            widen(vand_u8(vshl_u8(vzip1_u8(bytes, bytes), shifts), vdup_n_u8(15)))
        }
    }
    #[inline(always)]
    unsafe fn store_nibbles(self, to: *mut u8, value: Self::I32) {
        // SAFETY: the caller guarantees four bytes; `self` proves the instructions.
        unsafe {
            let pairs = vreinterpret_u16_u8(vand_u8(low_bytes(value), vdup_n_u8(15)));
            let joined = vorr_u16(pairs, vshr_n_u16::<4>(pairs));
            let bytes = vmovn_u16(vcombine_u16(joined, joined));
            to.cast::<u32>().write_unaligned(vget_lane_u32::<0>(vreinterpret_u32_u8(bytes)));
        }
    }
}

/// `sum` plus the dot products of four signed bytes each. The intrinsic is not stable; the instruction in assembly is.
///
/// # Safety
/// The processor has `dotprod`.
#[inline(always)]
unsafe fn signed_dot_product(mut sum: int32x4_t, a: int32x4_t, b: int32x4_t) -> int32x4_t {
    // SAFETY: the caller guarantees the instruction, which accesses nothing but its registers.
    unsafe {
        std::arch::asm!(
            // The assembler does not know the target features of callers that this is not inlined into.
            ".arch_extension dotprod",
            "sdot {sum:v}.4s, {a:v}.16b, {b:v}.16b",
            sum = inout(vreg) sum,
            a = in(vreg) a,
            b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sum
}

/// Zero-extends bytes.
#[inline(always)]
fn widen(bytes: uint8x8_t) -> [int32x4_t; 2] {
    proven!({
        let halves = vmovl_u8(bytes);
        let (low, high) = (vmovl_u16(vget_low_u16(halves)), vmovl_high_u16(halves));
        [vreinterpretq_s32_u32(low), vreinterpretq_s32_u32(high)]
    })
}

/// The low byte of each lane.
#[inline(always)]
fn low_bytes(value: [int32x4_t; 2]) -> uint8x8_t {
    proven!({
        let halves = vmovn_high_s32(vmovn_s32(value[0]), value[1]);
        vreinterpret_u8_s8(vmovn_s16(halves))
    })
}
