//! Checks every instruction set of this machine against scalar arithmetic.

use half::{bf16, f16};

use lz_cpu::simd::*;

/// Runs a check for each instruction set that this processor supports.
macro_rules! for_each_isa {
    ($check:ident) => {{
        $check(Scalar);
        #[cfg(target_arch = "x86_64")]
        {
            Avx2::detect().map($check);
            Avx512::detect().map($check);
        }
    }};
}

fn lanes<S: Simd>(simd: S, value: S::F32) -> Vec<f32> {
    let mut all = vec![0.0; S::LANES];
    // SAFETY: the buffer has space for all lanes.
    unsafe { simd.store(all.as_mut_ptr(), value) };
    all
}

fn vector<S: Simd>(simd: S, values: &[f32]) -> S::F32 {
    assert_eq!(values.len(), S::LANES);
    // SAFETY: there are as many values as lanes.
    unsafe { simd.load(values.as_ptr()) }
}

fn same(found: f32, expected: f32) -> bool {
    found.to_bits() == expected.to_bits() || (found.is_nan() && expected.is_nan())
}

/// Every f16 and bf16 loads exactly, and a sample of f32s rounds like the `half` crate.
fn halves<S: Simd>(simd: S) {
    let every: Vec<u16> = (0..=u16::MAX).collect();
    for chunk in every.chunks_exact(S::LANES) {
        // SAFETY: chunks have as many elements as lanes.
        let (wide, brain) = unsafe { (simd.load_f16(chunk.as_ptr()), simd.load_bf16(chunk.as_ptr())) };
        for (lane, &bits) in chunk.iter().enumerate() {
            assert!(same(lanes(simd, wide)[lane], f16::from_bits(bits).to_f32()), "{bits:x}");
            assert!(same(lanes(simd, brain)[lane], bf16::from_bits(bits).to_f32()), "{bits:x}");
        }
    }
    for step in (0..u32::MAX - 0xffff).step_by(0x3fff1) {
        let values: Vec<f32> =
            (0..S::LANES as u32).map(|lane| f32::from_bits(step + lane * 0x0ff1)).collect();
        let mut stored = vec![0u16; S::LANES];
        // SAFETY: the buffer has space for all lanes.
        unsafe { simd.store_f16(stored.as_mut_ptr(), vector(simd, &values)) };
        for (&bits, &value) in stored.iter().zip(&values) {
            assert!(same(f16::from_bits(bits).to_f32(), f16::from_f32(value).to_f32()), "{value:e}");
        }
        // SAFETY: the buffer has space for all lanes.
        unsafe { simd.store_bf16(stored.as_mut_ptr(), vector(simd, &values)) };
        for (&bits, &value) in stored.iter().zip(&values) {
            assert!(same(bf16::from_bits(bits).to_f32(), bf16::from_f32(value).to_f32()), "{value:e}");
        }
    }
}

#[test]
fn f16_and_bf16_conversions_match_the_half_crate() {
    for_each_isa!(halves);
}

/// Tail loads and stores access only their elements.
fn tails<S: Simd>(simd: S) {
    fn one<S: Simd, T: Float + std::fmt::Debug>(simd: S) {
        let row: Vec<T> = (0..32).map(|value| T::from_f32(value as f32 + 1.0)).collect();
        for count in 1..S::LANES {
            let mut stored = vec![T::from_f32(-1.0); 32];
            // SAFETY: both rows have 32 elements.
            let value = unsafe { T::load(simd, row.as_ptr(), Tail(3, count)) };
            for (lane, found) in lanes(simd, value).into_iter().enumerate() {
                assert_eq!(found, if lane < count { lane as f32 + 4.0 } else { 0.0 });
            }
            // SAFETY: as above.
            unsafe { T::store(simd, stored.as_mut_ptr(), Tail(5, count), value) };
            for (index, found) in stored.into_iter().enumerate() {
                let inside = (5..5 + count).contains(&index);
                assert_eq!(found.to_f32(), if inside { index as f32 - 1.0 } else { -1.0 });
            }
        }
    }
    one::<S, f32>(simd);
    one::<S, f16>(simd);
    one::<S, bf16>(simd);
    let all = vector(simd, &vec![2.0; S::LANES]);
    for count in 0..=S::LANES {
        assert_eq!(simd.sum(simd.keep_first(all, count)), 2.0 * count as f32);
    }
}

#[test]
fn tail_loads_and_stores_access_only_their_elements() {
    for_each_isa!(tails);
}

/// Within four ulps, and exact at the limits.
fn exponential<S: Simd>(simd: S) {
    let ends =
        [f32::NEG_INFINITY, -200.0, -104.5, -103.0, -87.5, -0.0, 1e-30, 88.7, 89.5, 200.0, f32::INFINITY];
    let spread = (-2000..2000).map(|step| step as f32 * 0.0437);
    let mut values: Vec<f32> = ends.into_iter().chain(spread).collect();
    values.resize(values.len().next_multiple_of(S::LANES), 1.0);
    for chunk in values.chunks_exact(S::LANES) {
        for (&x, found) in chunk.iter().zip(lanes(simd, exp(simd, vector(simd, chunk)))) {
            let expected = f64::from(x).exp();
            let unit = f64::from(f32::MIN_POSITIVE).max(expected) * f64::from(f32::EPSILON);
            let close = (f64::from(found) - expected).abs() <= 4.0 * unit;
            assert!(close || found == expected as f32, "exp({x:e}) is {found:e}, not {expected:e}");
        }
    }
    assert!(lanes(simd, exp(simd, simd.splat(f32::NAN)))[0].is_nan());
}

#[test]
fn exp_is_within_four_ulps() {
    for_each_isa!(exponential);
}

/// NaN behavior that kernels rely on, and horizontal operations.
fn arithmetic<S: Simd>(simd: S) {
    let (one, nan) = (simd.splat(1.0), simd.splat(f32::NAN));
    assert!(lanes(simd, simd.max(one, nan))[0].is_nan() && lanes(simd, simd.min(one, nan))[0].is_nan());
    assert_eq!(lanes(simd, simd.max(nan, one))[0], 1.0);
    assert_eq!(lanes(simd, simd.select(simd.is_nan(nan), one, nan))[0], 1.0);
    assert_eq!(lanes(simd, simd.select(simd.lt(one, nan), nan, one))[0], 1.0);
    let counted: Vec<f32> = (0..S::LANES).map(|lane| lane as f32).collect();
    let counted = vector(simd, &counted);
    assert_eq!(simd.sum(counted), (S::LANES * (S::LANES - 1) / 2) as f32);
    assert_eq!(simd.largest(counted), (S::LANES - 1) as f32);
    let rounded = simd.round(vector(simd, &vec![2.5; S::LANES]));
    assert_eq!(lanes(simd, rounded)[0], 2.0);
    let word = 0x89ab_7f10u32;
    let words = simd.to_bits(vector(simd, &vec![f32::from_bits(word); S::LANES]));
    for index in 0..8 {
        let expected = (word as i32) << (28 - 4 * index) >> 28;
        assert_eq!(lanes(simd, simd.signed_nibble(words, index)), vec![expected as f32; S::LANES]);
    }
    for index in 0..4 {
        let expected = (word << (24 - 8 * index) & 0xff00_0000) as i32;
        assert_eq!(lanes(simd, simd.to_f32(simd.high_byte(words, index))), vec![expected as f32; S::LANES]);
    }
    let whole = simd.to_f32(simd.to_i32(vector(simd, &vec![-3.5; S::LANES])));
    assert_eq!(lanes(simd, whole)[0], -4.0);
}

#[test]
fn nan_handling_and_reductions_match_documentation() {
    for_each_isa!(arithmetic);
}
