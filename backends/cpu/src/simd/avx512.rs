//! AVX-512 (F, BW, DQ, VL): sixteen lanes, tails by masks; alone, with AMX, or with VNNI.

use std::arch::x86_64::*;

use super::{Simd, Work};

/// Proof of `avx512f`, `avx512bw`, `avx512dq`, `avx512vl` and the features they imply; with [`TILES`] also of
/// AMX-BF16, with [`VNNI`] also of AVX512-VNNI.
#[derive(Debug, Clone, Copy)]
pub struct Avx512Family<const EXTENSIONS: u8>(());

const BASE: u8 = 0;
const TILES: u8 = 1;
const VNNI: u8 = 2;

/// AVX-512.
pub type Avx512 = Avx512Family<BASE>;

/// AVX-512 and AMX-BF16.
pub type Amx = Avx512Family<TILES>;

/// AVX-512 and VNNI.
pub type Vnni = Avx512Family<VNNI>;

impl Amx {
    /// The proof of AVX-512 alone.
    #[inline(always)]
    pub(crate) fn vectors(self) -> Avx512 {
        Avx512Family(())
    }
}

/// Calls an intrinsic whose target feature `self` proves.
macro_rules! proven {
    ($call:expr) => {{
        // SAFETY: a `Wide` exists only where `detect` found the instructions.
        unsafe { $call }
    }};
}

const NEAREST_EVEN: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

#[inline(always)]
fn first(count: usize) -> __mmask16 {
    // Shifted as u32, so that a count of 16 is valid.
    ((1u32 << (count & 31)) - 1) as __mmask16
}

/// Rounds to nearest even in integer arithmetic: the AVX512-BF16 conversion flushes denormals.
#[inline(always)]
fn to_bf16(value: __m512) -> __m256i {
    proven!({
        let bits = _mm512_castps_si512(value);
        let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
        let rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
        // A NaN keeps its upper bits and becomes quiet; rounding could carry it to infinity.
        let quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x0040_0000));
        let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(value, value);
        _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(_mm512_mask_mov_epi32(rounded, nan, quiet)))
    })
}

impl<const EXTENSIONS: u8> Simd for Avx512Family<EXTENSIONS> {
    const NAME: &'static str = match EXTENSIONS {
        TILES => "amx",
        VNNI => "vnni",
        _ => "avx512",
    };
    const FEATURES: &'static [&'static str] = match EXTENSIONS {
        TILES => &[
            "avx512f",
            "avx512bw",
            "avx512dq",
            "avx512vl",
            "avx2",
            "fma",
            "f16c",
            "avx512_bf16",
            "amx_tile",
            "amx_bf16",
        ],
        VNNI => &["avx512f", "avx512bw", "avx512dq", "avx512vl", "avx2", "fma", "f16c", "avx512_vnni"],
        _ => &["avx512f", "avx512bw", "avx512dq", "avx512vl", "avx2", "fma", "f16c"],
    };
    const PRIORITY_PENALTY: u8 = 0;
    const LANES: usize = 16;
    const TILES: bool = EXTENSIONS == TILES;
    const BYTE_OFFSET: u8 = if EXTENSIONS == VNNI { 128 } else { 0 };
    type F32 = __m512;
    type I32 = __m512i;
    type Mask = __mmask16;

    #[inline(always)]
    fn detect() -> Option<Self> {
        let all = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
            && (EXTENSIONS != TILES || (is_x86_feature_detected!("avx512bf16") && super::amx::available()))
            && (EXTENSIONS != VNNI || is_x86_feature_detected!("avx512vnni"));
        all.then_some(Avx512Family(()))
    }
    #[inline(always)]
    fn vectorize<R>(self, body: impl FnOnce() -> R) -> R {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
        fn inside<R>(body: impl FnOnce() -> R) -> R {
            body()
        }
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,avx512vnni")]
        fn inside_with_bytes<R>(body: impl FnOnce() -> R) -> R {
            body()
        }
        if EXTENSIONS == VNNI { proven!(inside_with_bytes(body)) } else { proven!(inside(body)) }
    }
    #[inline(always)]
    fn perform(self, work: impl Work) {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
        fn inside(work: impl Work) {
            work.perform();
        }
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,avx512vnni")]
        fn inside_with_bytes(work: impl Work) {
            work.perform();
        }
        if EXTENSIONS == VNNI { proven!(inside_with_bytes(work)) } else { proven!(inside(work)) }
    }
    #[inline(always)]
    fn splat(self, value: f32) -> __m512 {
        proven!(_mm512_set1_ps(value))
    }
    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> __m512 {
        // SAFETY: the caller guarantees sixteen elements; `self` proves the instruction.
        unsafe { _mm512_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn load_partial(self, from: *const f32, count: usize) -> __m512 {
        // SAFETY: the caller guarantees `count` elements; masked lanes are not accessed.
        unsafe { _mm512_maskz_loadu_ps(first(count), from) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32, value: __m512) {
        // SAFETY: the caller guarantees sixteen elements; `self` proves the instruction.
        unsafe { _mm512_storeu_ps(to, value) }
    }
    #[inline(always)]
    unsafe fn store_partial(self, to: *mut f32, value: __m512, count: usize) {
        // SAFETY: the caller guarantees `count` elements; masked lanes are not accessed.
        unsafe { _mm512_mask_storeu_ps(to, first(count), value) }
    }
    #[inline(always)]
    unsafe fn stream(self, to: *mut f32, value: __m512) {
        // SAFETY: the caller guarantees sixteen aligned elements; `self` proves the instruction.
        unsafe { _mm512_stream_ps(to, value) }
    }
    #[inline(always)]
    fn fence(self) {
        proven!(_mm_sfence())
    }
    #[inline(always)]
    unsafe fn load_f16(self, from: *const u16) -> __m512 {
        // SAFETY: the caller guarantees sixteen elements; `self` proves the instruction.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }
    #[inline(always)]
    unsafe fn store_f16(self, to: *mut u16, value: __m512) {
        // SAFETY: the caller guarantees sixteen elements; `self` proves the instruction.
        unsafe { _mm256_storeu_si256(to.cast(), _mm512_cvtps_ph::<NEAREST_EVEN>(value)) }
    }
    #[inline(always)]
    unsafe fn stream_f16(self, to: *mut u16, value: __m512) {
        // SAFETY: the caller guarantees sixteen aligned elements; `self` proves the instruction.
        unsafe { _mm256_stream_si256(to.cast(), _mm512_cvtps_ph::<NEAREST_EVEN>(value)) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u16) -> __m512 {
        // SAFETY: the caller guarantees sixteen elements; `self` proves the instruction.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut u16, value: __m512) {
        // SAFETY: the caller guarantees sixteen elements; `self` proves the instruction.
        unsafe { _mm256_storeu_si256(to.cast(), to_bf16(value)) }
    }
    #[inline(always)]
    unsafe fn stream_bf16(self, to: *mut u16, value: __m512) {
        // SAFETY: the caller guarantees sixteen aligned elements; `self` proves the instruction.
        unsafe { _mm256_stream_si256(to.cast(), to_bf16(value)) }
    }
    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        proven!(_mm512_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        proven!(_mm512_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        proven!(_mm512_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        proven!(_mm512_div_ps(a, b))
    }
    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        proven!(_mm512_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        proven!(_mm512_min_ps(a, b))
    }
    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        proven!(_mm512_max_ps(a, b))
    }
    #[inline(always)]
    fn abs(self, a: __m512) -> __m512 {
        proven!(_mm512_abs_ps(a))
    }
    #[inline(always)]
    fn sqrt(self, a: __m512) -> __m512 {
        proven!(_mm512_sqrt_ps(a))
    }
    #[inline(always)]
    fn round(self, a: __m512) -> __m512 {
        proven!(_mm512_roundscale_ps::<NEAREST_EVEN>(a))
    }
    #[inline(always)]
    fn div_approx(self, a: __m512, b: __m512) -> __m512 {
        // 14-bit estimate and one Newton-Raphson step: a 512-bit division takes three times as long.
        proven!({
            let estimate = _mm512_rcp14_ps(b);
            let rest = _mm512_fnmadd_ps(b, estimate, _mm512_set1_ps(1.0));
            _mm512_mul_ps(a, _mm512_fmadd_ps(estimate, rest, estimate))
        })
    }
    #[inline(always)]
    fn ldexp(self, a: __m512, n: __m512) -> __m512 {
        proven!(_mm512_scalef_ps(a, n))
    }
    #[inline(always)]
    fn lt(self, a: __m512, b: __m512) -> __mmask16 {
        proven!(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b))
    }
    #[inline(always)]
    fn any(self, mask: __mmask16) -> bool {
        mask != 0
    }
    #[inline(always)]
    fn is_nan(self, a: __m512) -> __mmask16 {
        proven!(_mm512_cmp_ps_mask::<_CMP_UNORD_Q>(a, a))
    }
    #[inline(always)]
    fn select(self, mask: __mmask16, a: __m512, b: __m512) -> __m512 {
        proven!(_mm512_mask_blend_ps(mask, b, a))
    }
    #[inline(always)]
    fn select_i32(self, mask: __mmask16, a: __m512i, b: __m512i) -> __m512i {
        proven!(_mm512_mask_blend_epi32(mask, b, a))
    }
    #[inline(always)]
    fn keep_first(self, a: __m512, count: usize) -> __m512 {
        proven!(_mm512_maskz_mov_ps(first(count), a))
    }
    #[inline(always)]
    fn sum(self, a: __m512) -> f32 {
        proven!(_mm512_reduce_add_ps(a))
    }
    #[inline(always)]
    fn largest(self, a: __m512) -> f32 {
        proven!({
            let lowest = _mm512_set1_ps(f32::NEG_INFINITY);
            _mm512_reduce_max_ps(_mm512_max_ps(a, lowest))
        })
    }
    #[inline(always)]
    unsafe fn transpose(self, block: *const f32, to: *mut f32, step: usize) {
        // SAFETY: the caller guarantees both blocks, `self` proves the instructions.
        unsafe {
            let zero = _mm512_setzero_ps();
            let (mut pairs, mut fours) = ([zero; 16], [zero; 16]);
            for pair in (0..16).step_by(2) {
                let (even, odd) =
                    (_mm512_loadu_ps(block.add(pair * 16)), _mm512_loadu_ps(block.add(pair * 16 + 16)));
                pairs[pair] = _mm512_unpacklo_ps(even, odd);
                pairs[pair + 1] = _mm512_unpackhi_ps(even, odd);
            }
            for four in (0..16).step_by(4) {
                for half in 0..2 {
                    let low = _mm512_castps_pd(pairs[four + half]);
                    let high = _mm512_castps_pd(pairs[four + half + 2]);
                    fours[four + 2 * half] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
                    fours[four + 2 * half + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
                }
            }
            // Quarter q of `fours[4 r + c]` is column 4 q + c of rows 4 r … 4 r + 3.
            for c in 0..4 {
                let (first, second, third, fourth) = (fours[c], fours[4 + c], fours[8 + c], fours[12 + c]);
                let (low_even, low_odd) = (
                    _mm512_shuffle_f32x4::<0x88>(first, second),
                    _mm512_shuffle_f32x4::<0xdd>(first, second),
                );
                let (high_even, high_odd) = (
                    _mm512_shuffle_f32x4::<0x88>(third, fourth),
                    _mm512_shuffle_f32x4::<0xdd>(third, fourth),
                );
                _mm512_storeu_ps(to.add(c * step), _mm512_shuffle_f32x4::<0x88>(low_even, high_even));
                _mm512_storeu_ps(to.add((4 + c) * step), _mm512_shuffle_f32x4::<0x88>(low_odd, high_odd));
                _mm512_storeu_ps(to.add((8 + c) * step), _mm512_shuffle_f32x4::<0xdd>(low_even, high_even));
                _mm512_storeu_ps(to.add((12 + c) * step), _mm512_shuffle_f32x4::<0xdd>(low_odd, high_odd));
            }
        }
    }
    #[inline(always)]
    fn splat_i32(self, value: i32) -> __m512i {
        proven!(_mm512_set1_epi32(value))
    }
    #[inline(always)]
    fn to_i32(self, a: __m512) -> __m512i {
        proven!(_mm512_cvtps_epi32(a))
    }
    #[inline(always)]
    fn to_f32(self, a: __m512i) -> __m512 {
        proven!(_mm512_cvtepi32_ps(a))
    }
    #[inline(always)]
    fn to_bits(self, a: __m512) -> __m512i {
        proven!(_mm512_castps_si512(a))
    }
    #[inline(always)]
    fn bitcast_f32(self, a: __m512i) -> __m512 {
        proven!(_mm512_castsi512_ps(a))
    }
    #[inline(always)]
    fn add_i32(self, a: __m512i, b: __m512i) -> __m512i {
        proven!(_mm512_add_epi32(a, b))
    }
    #[inline(always)]
    fn sub_i32(self, a: __m512i, b: __m512i) -> __m512i {
        proven!(_mm512_sub_epi32(a, b))
    }
    #[inline(always)]
    fn and_i32(self, a: __m512i, b: __m512i) -> __m512i {
        proven!(_mm512_and_si512(a, b))
    }
    #[inline(always)]
    fn or_i32(self, a: __m512i, b: __m512i) -> __m512i {
        proven!(_mm512_or_si512(a, b))
    }
    #[inline(always)]
    fn shl_i32(self, a: __m512i, bits: u32) -> __m512i {
        proven!(_mm512_sll_epi32(a, _mm_cvtsi32_si128(bits as i32)))
    }
    #[inline(always)]
    fn shr_i32(self, a: __m512i, bits: u32) -> __m512i {
        proven!(_mm512_sra_epi32(a, _mm_cvtsi32_si128(bits as i32)))
    }
    #[inline(always)]
    fn signed_nibble(self, a: __m512i, index: u32) -> __m512 {
        // Lookup table of all sixteen values: the permutation uses only the lowest four bits of a lane.
        proven!({
            let all = _mm512_setr_ps(
                0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, -8.0, -7.0, -6.0, -5.0, -4.0, -3.0, -2.0, -1.0,
            );
            _mm512_permutexvar_ps(_mm512_srlv_epi32(a, _mm512_set1_epi32(4 * index as i32)), all)
        })
    }
    #[inline(always)]
    fn high_byte(self, a: __m512i, index: u32) -> __m512i {
        // One shuffle, which has its own execution port, instead of two shifts, which compete with conversions.
        let from = |lane: u32| ((lane * 4 + index) << 24 | 0x80_8080) as i32;
        proven!(_mm512_shuffle_epi8(a, _mm512_set4_epi32(from(3), from(2), from(1), from(0))))
    }
    #[inline(always)]
    fn dot_bytes(self, sum: __m512i, a: __m512i, b: __m512i) -> __m512i {
        if EXTENSIONS == VNNI {
            return proven!(_mm512_dpbusd_epi32(sum, a, b));
        }
        // Widened to 16 bits: `vpmaddubsw` saturates its sums.
        proven!({
            let low = |bytes| _mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(bytes));
            let evens = _mm512_madd_epi16(low(a), low(b));
            let odds = _mm512_madd_epi16(_mm512_srai_epi16::<8>(a), _mm512_srai_epi16::<8>(b));
            _mm512_add_epi32(sum, _mm512_add_epi32(evens, odds))
        })
    }
    #[inline(always)]
    fn max_i32(self, a: __m512i, b: __m512i) -> __m512i {
        proven!(_mm512_max_epi32(a, b))
    }
    #[inline(always)]
    fn min_i32(self, a: __m512i, b: __m512i) -> __m512i {
        proven!(_mm512_min_epi32(a, b))
    }
    #[inline(always)]
    fn largest_i32(self, a: __m512i) -> i32 {
        proven!(_mm512_reduce_max_epi32(a))
    }
    #[inline(always)]
    fn lane_indices(self) -> __m512i {
        proven!(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15))
    }
    #[inline(always)]
    fn swap_pairs(self, a: __m512) -> __m512 {
        proven!(_mm512_permute_ps::<0b10_11_00_01>(a))
    }
    #[inline(always)]
    fn duplicate_low_lanes(self, a: __m512) -> __m512 {
        proven!(_mm512_permutexvar_ps(_mm512_srli_epi32::<1>(self.lane_indices()), a))
    }
    #[inline(always)]
    fn negate_even(self, a: __m512) -> __m512 {
        proven!(_mm512_xor_ps(a, _mm512_castsi512_ps(_mm512_set1_epi64(0x8000_0000))))
    }
    #[inline(always)]
    unsafe fn load_u8(self, from: *const u8) -> __m512i {
        // SAFETY: the caller guarantees sixteen bytes; `self` proves the instruction.
        unsafe { _mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast())) }
    }
    #[inline(always)]
    unsafe fn store_u8(self, to: *mut u8, value: __m512i) {
        // SAFETY: the caller guarantees sixteen bytes; `self` proves the instruction.
        unsafe { _mm_storeu_si128(to.cast(), _mm512_cvtepi32_epi8(value)) }
    }
    #[inline(always)]
    unsafe fn load_nibbles(self, from: *const u8) -> __m512i {
        // SAFETY: the caller guarantees eight bytes; `self` proves the instruction.
        unsafe {
            let bytes = _mm_loadl_epi64(from.cast());
            let twice = _mm512_cvtepu8_epi32(_mm_unpacklo_epi8(bytes, bytes));
            let shifted = _mm512_srlv_epi32(twice, _mm512_set1_epi64(4 << 32));
            _mm512_and_si512(shifted, _mm512_set1_epi32(15))
        }
    }
    #[inline(always)]
    unsafe fn store_nibbles(self, to: *mut u8, value: __m512i) {
        // SAFETY: the caller guarantees eight bytes; `self` proves the instruction.
        unsafe {
            let low = _mm512_and_si512(value, _mm512_set1_epi32(15));
            let pairs = _mm512_or_si512(low, _mm512_srli_epi64::<28>(low));
            _mm_storel_epi64(to.cast(), _mm512_cvtepi64_epi8(pairs));
        }
    }
}
