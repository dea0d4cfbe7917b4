//! AVX2 with FMA and F16C: eight lanes, tails by a table of masks.

use std::arch::x86_64::*;

use super::{Simd, Work};

/// Proof of `avx2`, `fma` and `f16c`.
#[derive(Debug, Clone, Copy)]
pub struct Avx2(());

/// Calls an intrinsic whose target feature `self` proves.
macro_rules! proven {
    ($call:expr) => {{
        // SAFETY: an `Avx2` exists only where `detect` found the instructions.
        unsafe { $call }
    }};
}

const NEAREST_EVEN: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

/// Eight set lanes, then eight clear ones: a load at offset `8 - count` gives a mask of the first `count` lanes.
static WINDOW: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

#[inline(always)]
fn first(count: usize) -> __m256i {
    let start = 8 - count.min(8);
    // SAFETY: eight entries follow every offset up to 8; all callers hold an `Avx2`.
    unsafe { _mm256_loadu_si256(WINDOW.as_ptr().add(start).cast()) }
}

/// Rounds to nearest even; a NaN keeps its upper bits and becomes quiet.
#[inline(always)]
fn to_bf16(value: __m256) -> __m128i {
    proven!({
        let bits = _mm256_castps_si256(value);
        let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        let rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
        let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x0040_0000));
        let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(value, value));
        let high = _mm256_srli_epi32::<16>(_mm256_blendv_epi8(rounded, quiet, nan));
        let packed = _mm256_packus_epi32(high, high);
        _mm256_castsi256_si128(_mm256_permute4x64_epi64::<0b1000>(packed))
    })
}

impl Simd for Avx2 {
    const NAME: &'static str = "avx2";
    const FEATURES: &'static [&'static str] = &["avx2", "fma", "f16c"];
    const PRIORITY_PENALTY: u8 = 10;
    const LANES: usize = 8;
    type F32 = __m256;
    type I32 = __m256i;
    type Mask = __m256;

    #[inline(always)]
    fn detect() -> Option<Avx2> {
        let all = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        all.then_some(Avx2(()))
    }
    #[inline(always)]
    fn vectorize<R>(self, body: impl FnOnce() -> R) -> R {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn inside<R>(body: impl FnOnce() -> R) -> R {
            body()
        }
        proven!(inside(body))
    }
    #[inline(always)]
    fn perform(self, work: impl Work) {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn inside(work: impl Work) {
            work.perform();
        }
        proven!(inside(work));
    }
    #[inline(always)]
    fn splat(self, value: f32) -> __m256 {
        proven!(_mm256_set1_ps(value))
    }
    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> __m256 {
        // SAFETY: the caller guarantees eight elements; `self` proves the instruction.
        unsafe { _mm256_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn load_partial(self, from: *const f32, count: usize) -> __m256 {
        // SAFETY: the caller guarantees `count` elements; masked lanes are not accessed.
        unsafe { _mm256_maskload_ps(from, first(count)) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32, value: __m256) {
        // SAFETY: the caller guarantees eight elements; `self` proves the instruction.
        unsafe { _mm256_storeu_ps(to, value) }
    }
    #[inline(always)]
    unsafe fn store_partial(self, to: *mut f32, value: __m256, count: usize) {
        // SAFETY: the caller guarantees `count` elements; masked lanes are not accessed.
        unsafe { _mm256_maskstore_ps(to, first(count), value) }
    }
    #[inline(always)]
    unsafe fn stream(self, to: *mut f32, value: __m256) {
        // SAFETY: the caller guarantees eight aligned elements; `self` proves the instruction.
        unsafe { _mm256_stream_ps(to, value) }
    }
    #[inline(always)]
    fn fence(self) {
        proven!(_mm_sfence())
    }
    #[inline(always)]
    unsafe fn load_f16(self, from: *const u16) -> __m256 {
        // SAFETY: the caller guarantees eight elements; `self` proves the instruction.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
    }
    #[inline(always)]
    unsafe fn store_f16(self, to: *mut u16, value: __m256) {
        // SAFETY: the caller guarantees eight elements; `self` proves the instruction.
        unsafe { _mm_storeu_si128(to.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(value)) }
    }
    #[inline(always)]
    unsafe fn stream_f16(self, to: *mut u16, value: __m256) {
        // SAFETY: the caller guarantees eight aligned elements; `self` proves the instruction.
        unsafe { _mm_stream_si128(to.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(value)) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u16) -> __m256 {
        // SAFETY: the caller guarantees eight elements; `self` proves the instruction.
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut u16, value: __m256) {
        // SAFETY: the caller guarantees eight elements; `self` proves the instruction.
        unsafe { _mm_storeu_si128(to.cast(), to_bf16(value)) }
    }
    #[inline(always)]
    unsafe fn stream_bf16(self, to: *mut u16, value: __m256) {
        // SAFETY: the caller guarantees eight aligned elements; `self` proves the instruction.
        unsafe { _mm_stream_si128(to.cast(), to_bf16(value)) }
    }
    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        proven!(_mm256_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: __m256, b: __m256) -> __m256 {
        proven!(_mm256_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        proven!(_mm256_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: __m256, b: __m256) -> __m256 {
        proven!(_mm256_div_ps(a, b))
    }
    #[inline(always)]
    fn fma(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        proven!(_mm256_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn min(self, a: __m256, b: __m256) -> __m256 {
        proven!(_mm256_min_ps(a, b))
    }
    #[inline(always)]
    fn max(self, a: __m256, b: __m256) -> __m256 {
        proven!(_mm256_max_ps(a, b))
    }
    #[inline(always)]
    fn abs(self, a: __m256) -> __m256 {
        proven!(_mm256_andnot_ps(_mm256_set1_ps(-0.0), a))
    }
    #[inline(always)]
    fn sqrt(self, a: __m256) -> __m256 {
        proven!(_mm256_sqrt_ps(a))
    }
    #[inline(always)]
    fn round(self, a: __m256) -> __m256 {
        proven!(_mm256_round_ps::<NEAREST_EVEN>(a))
    }
    #[inline(always)]
    fn lt(self, a: __m256, b: __m256) -> __m256 {
        proven!(_mm256_cmp_ps::<_CMP_LT_OQ>(a, b))
    }
    #[inline(always)]
    fn any(self, mask: __m256) -> bool {
        proven!(_mm256_movemask_ps(mask)) != 0
    }
    #[inline(always)]
    fn is_nan(self, a: __m256) -> __m256 {
        proven!(_mm256_cmp_ps::<_CMP_UNORD_Q>(a, a))
    }
    #[inline(always)]
    fn select(self, mask: __m256, a: __m256, b: __m256) -> __m256 {
        proven!(_mm256_blendv_ps(b, a, mask))
    }
    #[inline(always)]
    fn select_i32(self, mask: __m256, a: __m256i, b: __m256i) -> __m256i {
        proven!(_mm256_blendv_epi8(b, a, _mm256_castps_si256(mask)))
    }
    #[inline(always)]
    fn keep_first(self, a: __m256, count: usize) -> __m256 {
        proven!(_mm256_and_ps(a, _mm256_castsi256_ps(first(count))))
    }
    #[inline(always)]
    fn sum(self, a: __m256) -> f32 {
        proven!({
            let four = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
        })
    }
    #[inline(always)]
    fn largest(self, a: __m256) -> f32 {
        proven!({
            let a = _mm256_max_ps(a, _mm256_set1_ps(f32::NEG_INFINITY));
            let four = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<1>(two, two)))
        })
    }
    #[inline(always)]
    fn splat_i32(self, value: i32) -> __m256i {
        proven!(_mm256_set1_epi32(value))
    }
    #[inline(always)]
    fn to_i32(self, a: __m256) -> __m256i {
        proven!(_mm256_cvtps_epi32(a))
    }
    #[inline(always)]
    fn to_f32(self, a: __m256i) -> __m256 {
        proven!(_mm256_cvtepi32_ps(a))
    }
    #[inline(always)]
    fn to_bits(self, a: __m256) -> __m256i {
        proven!(_mm256_castps_si256(a))
    }
    #[inline(always)]
    fn bitcast_f32(self, a: __m256i) -> __m256 {
        proven!(_mm256_castsi256_ps(a))
    }
    #[inline(always)]
    fn add_i32(self, a: __m256i, b: __m256i) -> __m256i {
        proven!(_mm256_add_epi32(a, b))
    }
    #[inline(always)]
    fn sub_i32(self, a: __m256i, b: __m256i) -> __m256i {
        proven!(_mm256_sub_epi32(a, b))
    }
    #[inline(always)]
    fn and_i32(self, a: __m256i, b: __m256i) -> __m256i {
        proven!(_mm256_and_si256(a, b))
    }
    #[inline(always)]
    fn or_i32(self, a: __m256i, b: __m256i) -> __m256i {
        proven!(_mm256_or_si256(a, b))
    }
    #[inline(always)]
    fn shl_i32(self, a: __m256i, bits: u32) -> __m256i {
        proven!(_mm256_sll_epi32(a, _mm_cvtsi32_si128(bits as i32)))
    }
    #[inline(always)]
    fn shr_i32(self, a: __m256i, bits: u32) -> __m256i {
        proven!(_mm256_sra_epi32(a, _mm_cvtsi32_si128(bits as i32)))
    }
    #[inline(always)]
    fn high_byte(self, a: __m256i, index: u32) -> __m256i {
        let from = |lane: u32| ((lane * 4 + index) << 24 | 0x80_8080) as i32;
        let all = [from(0), from(1), from(2), from(3)];
        proven!(_mm256_shuffle_epi8(
            a,
            _mm256_setr_epi32(all[0], all[1], all[2], all[3], all[0], all[1], all[2], all[3])
        ))
    }
    #[inline(always)]
    fn dot_bytes(self, sum: __m256i, a: __m256i, b: __m256i) -> __m256i {
        // Widened to 16 bits: `vpmaddubsw` saturates its sums.
        proven!({
            let low = |bytes| _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(bytes));
            let evens = _mm256_madd_epi16(low(a), low(b));
            let odds = _mm256_madd_epi16(_mm256_srai_epi16::<8>(a), _mm256_srai_epi16::<8>(b));
            _mm256_add_epi32(sum, _mm256_add_epi32(evens, odds))
        })
    }
    #[inline(always)]
    fn max_i32(self, a: __m256i, b: __m256i) -> __m256i {
        proven!(_mm256_max_epi32(a, b))
    }
    #[inline(always)]
    fn min_i32(self, a: __m256i, b: __m256i) -> __m256i {
        proven!(_mm256_min_epi32(a, b))
    }
    #[inline(always)]
    fn largest_i32(self, a: __m256i) -> i32 {
        proven!({
            let four = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256::<1>(a));
            let two = _mm_max_epi32(four, _mm_shuffle_epi32::<0b01_00_11_10>(four));
            _mm_cvtsi128_si32(_mm_max_epi32(two, _mm_shuffle_epi32::<0b10_11_00_01>(two)))
        })
    }
    #[inline(always)]
    fn lane_indices(self) -> __m256i {
        proven!(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7))
    }
    #[inline(always)]
    fn swap_pairs(self, a: __m256) -> __m256 {
        proven!(_mm256_permute_ps::<0b10_11_00_01>(a))
    }
    #[inline(always)]
    fn duplicate_low_lanes(self, a: __m256) -> __m256 {
        proven!(_mm256_permutevar8x32_ps(a, _mm256_srli_epi32::<1>(self.lane_indices())))
    }
    #[inline(always)]
    fn negate_even(self, a: __m256) -> __m256 {
        proven!(_mm256_xor_ps(a, _mm256_castsi256_ps(_mm256_set1_epi64x(0x8000_0000))))
    }
    #[inline(always)]
    unsafe fn load_u8(self, from: *const u8) -> __m256i {
        // SAFETY: the caller guarantees eight bytes; `self` proves the instruction.
        unsafe { _mm256_cvtepu8_epi32(_mm_loadl_epi64(from.cast())) }
    }
    #[inline(always)]
    unsafe fn store_u8(self, to: *mut u8, value: __m256i) {
        // SAFETY: the caller guarantees eight bytes; `self` proves the instruction.
        unsafe {
            let bytes = _mm256_and_si256(value, _mm256_set1_epi32(255));
            let four = _mm_packus_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256::<1>(bytes));
            _mm_storel_epi64(to.cast(), _mm_packus_epi16(four, four));
        }
    }
    #[inline(always)]
    unsafe fn load_nibbles(self, from: *const u8) -> __m256i {
        // SAFETY: the caller guarantees four bytes; `self` proves the instruction.
        unsafe {
            let bytes = _mm_cvtsi32_si128(from.cast::<i32>().read_unaligned());
            let twice = _mm256_cvtepu8_epi32(_mm_unpacklo_epi8(bytes, bytes));
            let shifted = _mm256_srlv_epi32(twice, _mm256_set1_epi64x(4 << 32));
            _mm256_and_si256(shifted, _mm256_set1_epi32(15))
        }
    }
    #[inline(always)]
    unsafe fn store_nibbles(self, to: *mut u8, value: __m256i) {
        // SAFETY: the caller guarantees four bytes; `self` proves the instruction.
        unsafe {
            let low = _mm256_and_si256(value, _mm256_set1_epi32(15));
            let pairs = _mm256_or_si256(low, _mm256_srli_epi64::<28>(low));
            let bytes = _mm256_and_si256(pairs, _mm256_set1_epi64x(255));
            let halves = _mm256_or_si256(bytes, _mm256_srli_si256::<7>(bytes));
            let first = _mm_cvtsi128_si32(_mm256_castsi256_si128(halves)) & 0xffff;
            let second = _mm_cvtsi128_si32(_mm256_extracti128_si256::<1>(halves)) & 0xffff;
            to.cast::<i32>().write_unaligned(first | second << 16);
        }
    }
}
