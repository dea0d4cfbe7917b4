//! Every instruction set of this machine against plain arithmetic.

use half::{bf16, f16};

use super::*;

/// Runs a check on each instruction set that this processor has.
macro_rules! on_each {
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
    // SAFETY: there is room for all lanes.
    unsafe { simd.store(all.as_mut_ptr(), value) };
    all
}

fn vector<S: Simd>(simd: S, values: &[f32]) -> S::F32 {
    assert_eq!(values.len(), S::LANES);
    // SAFETY: there are as many as lanes.
    unsafe { simd.load(values.as_ptr()) }
}

fn same(found: f32, wanted: f32) -> bool {
    found.to_bits() == wanted.to_bits() || (found.is_nan() && wanted.is_nan())
}

/// Every f16 and bf16 there is loads exactly, and a spread of f32s rounds as the `half` crate rounds them.
fn halves<S: Simd>(simd: S) {
    let every: Vec<u16> = (0..=u16::MAX).collect();
    for chunk in every.chunks_exact(S::LANES) {
        // SAFETY: chunks have as many as lanes.
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
        // SAFETY: there is room for all lanes.
        unsafe { simd.store_f16(stored.as_mut_ptr(), vector(simd, &values)) };
        for (&bits, &value) in stored.iter().zip(&values) {
            assert!(same(f16::from_bits(bits).to_f32(), f16::from_f32(value).to_f32()), "{value:e}");
        }
        // SAFETY: there is room for all lanes.
        unsafe { simd.store_bf16(stored.as_mut_ptr(), vector(simd, &values)) };
        for (&bits, &value) in stored.iter().zip(&values) {
            assert!(same(bf16::from_bits(bits).to_f32(), bf16::from_f32(value).to_f32()), "{value:e}");
        }
    }
}

#[test]
fn halves_convert_as_the_crate_does() {
    on_each!(halves);
}

/// Parts touch nothing beyond their elements.
fn parts<S: Simd>(simd: S) {
    fn one<S: Simd, T: Float + std::fmt::Debug>(simd: S) {
        let row: Vec<T> = (0..32).map(|value| T::from_f32(value as f32 + 1.0)).collect();
        for count in 1..S::LANES {
            let mut stored = vec![T::from_f32(-1.0); 32];
            // SAFETY: both rows have 32 elements.
            let value = unsafe { T::load(simd, row.as_ptr(), Part(3, count)) };
            for (lane, found) in lanes(simd, value).into_iter().enumerate() {
                assert_eq!(found, if lane < count { lane as f32 + 4.0 } else { 0.0 });
            }
            // SAFETY: as above.
            unsafe { T::store(simd, stored.as_mut_ptr(), Part(5, count), value) };
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
        assert_eq!(simd.sum(simd.keep(all, count)), 2.0 * count as f32);
    }
}

#[test]
fn parts_touch_only_their_elements() {
    on_each!(parts);
}

/// Within four units in the last place, and right at the ends.
fn exponential<S: Simd>(simd: S) {
    let ends =
        [f32::NEG_INFINITY, -200.0, -104.5, -103.0, -87.5, -0.0, 1e-30, 88.7, 89.5, 200.0, f32::INFINITY];
    let spread = (-2000..2000).map(|step| step as f32 * 0.0437);
    let mut values: Vec<f32> = ends.into_iter().chain(spread).collect();
    values.resize(values.len().next_multiple_of(S::LANES), 1.0);
    for chunk in values.chunks_exact(S::LANES) {
        for (&x, found) in chunk.iter().zip(lanes(simd, exp(simd, vector(simd, chunk)))) {
            let wanted = f64::from(x).exp();
            let unit = f64::from(f32::MIN_POSITIVE).max(wanted) * f64::from(f32::EPSILON);
            let close = (f64::from(found) - wanted).abs() <= 4.0 * unit;
            assert!(close || found == wanted as f32, "exp({x:e}) is {found:e}, not {wanted:e}");
        }
    }
    assert!(lanes(simd, exp(simd, simd.splat(f32::NAN)))[0].is_nan());
}

#[test]
fn exp_is_close() {
    on_each!(exponential);
}

/// What kernels rely on at NaN, and sums of lanes.
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
    for place in 0..8 {
        let wanted = (word as i32) << (28 - 4 * place) >> 28;
        assert_eq!(lanes(simd, simd.half_byte(words, place)), vec![wanted as f32; S::LANES]);
    }
    for place in 0..4 {
        let wanted = (word << (24 - 8 * place) & 0xff00_0000) as i32;
        assert_eq!(lanes(simd, simd.to_f32(simd.high_byte(words, place))), vec![wanted as f32; S::LANES]);
    }
    let whole = simd.to_f32(simd.to_i32(vector(simd, &vec![-3.5; S::LANES])));
    assert_eq!(lanes(simd, whole)[0], -4.0);
}

#[test]
fn arithmetic_is_as_documented() {
    on_each!(arithmetic);
}
