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
            Vnni::detect().map($check);
        }
        #[cfg(target_arch = "aarch64")]
        {
            $check(Neon::detect().expect("NEON is part of every aarch64"));
            NeonDotProd::detect().map($check);
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

/// Values at which instruction sets differ: zeros of both signs, NaN, infinities, subnormals, ties, the limits of i32.
const EDGES: [f32; 30] = [
    0.0,
    -0.0,
    f32::NAN,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::MIN_POSITIVE,
    -f32::MIN_POSITIVE,
    1e-45,
    -1e-45,
    5.877_472e-39,
    1e-20,
    -1e-20,
    0.499_999_97,
    0.5,
    -0.5,
    1.0,
    -1.0,
    1.5,
    2.5,
    -2.5,
    -3.5,
    8_388_607.5,
    16_777_216.0,
    2_147_483_520.0,
    -2_147_483_648.0,
    2_147_483_648.0,
    -2_147_483_904.0,
    4e9,
    f32::MAX,
    f32::MIN,
];

/// Every pair of edge values, in whole vectors.
fn pairs<S: Simd>() -> Vec<(Vec<f32>, Vec<f32>)> {
    let mut all: Vec<(f32, f32)> = EDGES.iter().flat_map(|&a| EDGES.iter().map(move |&b| (a, b))).collect();
    all.resize(all.len().next_multiple_of(S::LANES), (1.0, 1.0));
    all.chunks(S::LANES).map(|chunk| chunk.iter().copied().unzip()).collect()
}

fn integers<S: Simd>(simd: S, value: S::I32) -> Vec<i32> {
    let bits = lanes(simd, simd.bitcast_f32(value));
    bits.into_iter().map(|lane| lane.to_bits() as i32).collect()
}

fn integer_vector<S: Simd>(simd: S, values: &[i32]) -> S::I32 {
    let bits: Vec<f32> = values.iter().map(|&value| f32::from_bits(value as u32)).collect();
    simd.to_bits(vector(simd, &bits))
}

/// Compares an operation on two vectors with its definition, for all pairs of edge values.
fn check_pairs<S: Simd>(
    simd: S,
    name: &str,
    operation: impl Fn(S::F32, S::F32) -> S::F32,
    definition: impl Fn(f32, f32) -> f32,
) {
    for (a, b) in pairs::<S>() {
        let found = lanes(simd, operation(vector(simd, &a), vector(simd, &b)));
        for (lane, found) in found.into_iter().enumerate() {
            let (a, b) = (a[lane], b[lane]);
            let expected = definition(a, b);
            assert!(same(found, expected), "{} {name}({a:e}, {b:e}) is {found:e}, not {expected:e}", S::NAME);
        }
    }
}

/// IEEE arithmetic with subnormals, and the minimum and maximum of x86.
fn edges<S: Simd>(simd: S) {
    let s = simd;
    check_pairs(s, "add", |a, b| s.add(a, b), |a, b| a + b);
    check_pairs(s, "sub", |a, b| s.sub(a, b), |a, b| a - b);
    check_pairs(s, "mul", |a, b| s.mul(a, b), |a, b| a * b);
    check_pairs(s, "div", |a, b| s.div(a, b), |a, b| a / b);
    check_pairs(s, "min", |a, b| s.min(a, b), |a, b| if a < b { a } else { b });
    check_pairs(s, "max", |a, b| s.max(a, b), |a, b| if a > b { a } else { b });
    check_pairs(s, "abs", |a, _| s.abs(a), |a, _| a.abs());
    check_pairs(s, "sqrt", |a, _| s.sqrt(a), |a, _| a.sqrt());
    check_pairs(s, "round", |a, _| s.round(a), |a, _| a.round_ties_even());
    let numbered = |mask| s.select(mask, s.splat(1.0), s.splat(0.0));
    check_pairs(s, "lt", |a, b| numbered(s.lt(a, b)), |a, b| f32::from(a < b));
    check_pairs(s, "is_nan", |a, _| numbered(s.is_nan(a)), |a, _| f32::from(a.is_nan()));
    check_pairs(s, "select", |a, b| s.select(s.lt(a, b), a, b), |a, b| if a < b { a } else { b });
    let third = f32::from_bits(0x3eaa_aaab);
    let fused = S::NAME != "scalar";
    check_pairs(
        s,
        "fma",
        |a, b| s.fma(a, s.splat(third), b),
        |a, b| if fused { a.mul_add(third, b) } else { a * third + b },
    );
}

#[test]
fn arithmetic_of_edge_values_is_defined() {
    for_each_isa!(edges);
}

/// Conversions round to nearest even; out of range and NaN are `i32::MIN`.
fn conversions<S: Simd>(simd: S) {
    let s = simd;
    let definition = |value: f32| {
        let whole = f64::from(value).round_ties_even();
        if (-2_147_483_648.0..2_147_483_648.0).contains(&whole) { whole as i32 } else { i32::MIN }
    };
    for (values, _) in pairs::<S>() {
        let found = integers(s, s.to_i32(vector(s, &values)));
        for (found, value) in found.into_iter().zip(values) {
            assert_eq!(found, definition(value), "{} to_i32({value:e})", S::NAME);
        }
    }
    for first in [0, -1, i32::MIN, i32::MAX, 16_777_217, 16_777_219, -33_554_435, 0x7fff_ffbf] {
        let found = lanes(s, s.to_f32(s.splat_i32(first)));
        assert!(found.into_iter().all(|value| value == first as f32), "{} to_f32({first})", S::NAME);
    }
    for n in -252..=254 {
        for a in [1.0f32, -1.5, 1.999_999_9, 1.000_000_1, 0.75] {
            let expected = (f64::from(a) * 2f64.powi(n)) as f32;
            let found = lanes(s, s.ldexp(s.splat(a), s.splat(n as f32)))[S::LANES - 1];
            assert!(same(found, expected), "{} ldexp({a:e}, {n}) is {found:e}, not {expected:e}", S::NAME);
        }
    }
    assert!(lanes(s, s.ldexp(s.splat(f32::NAN), s.splat(f32::NAN)))[0].is_nan());
}

#[test]
fn conversions_round_to_nearest_even() {
    for_each_isa!(conversions);
}

/// Integers of all lanes; the numbers are those of a linear congruential generator.
fn words<S: Simd>(seed: u32) -> Vec<i32> {
    let next = |state: &u32| Some(state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
    std::iter::successors(Some(seed), next).skip(1).take(S::LANES).map(|state| state as i32).collect()
}

fn integer_operations<S: Simd>(simd: S) {
    let s = simd;
    let check = |name: &str, found: S::I32, a: &[i32], b: &[i32], definition: &dyn Fn(i32, i32) -> i32| {
        for (lane, found) in integers(s, found).into_iter().enumerate() {
            let (a, b) = (a[lane], b[lane]);
            assert_eq!(found, definition(a, b), "{} {name}({a}, {b})", S::NAME);
        }
    };
    for seed in 0..64 {
        let (a, b) = (words::<S>(seed), words::<S>(seed ^ 0x5bd1_e995));
        let (x, y) = (integer_vector(s, &a), integer_vector(s, &b));
        check("add_i32", s.add_i32(x, y), &a, &b, &i32::wrapping_add);
        check("sub_i32", s.sub_i32(x, y), &a, &b, &i32::wrapping_sub);
        check("and_i32", s.and_i32(x, y), &a, &b, &|a, b| a & b);
        check("or_i32", s.or_i32(x, y), &a, &b, &|a, b| a | b);
        check("max_i32", s.max_i32(x, y), &a, &b, &|a, b| a.max(b));
        check("min_i32", s.min_i32(x, y), &a, &b, &|a, b| a.min(b));
        for bits in [0, 1, 7, 16, 31] {
            check("shl_i32", s.shl_i32(x, bits), &a, &b, &|a, _| a << bits);
            check("shr_i32", s.shr_i32(x, bits), &a, &b, &|a, _| a >> bits);
        }
        let smaller = s.lt(s.to_f32(x), s.to_f32(y));
        check("select_i32", s.select_i32(smaller, x, y), &a, &b, &|a, b| {
            if (a as f32) < b as f32 { a } else { b }
        });
        assert_eq!(s.largest_i32(x), *a.iter().max().unwrap());
        let bytes = |word: i32| word.to_ne_bytes().map(|byte| i32::from(byte as i8));
        let offset = i32::from(S::BYTE_OFFSET);
        // With an offset the bytes of operand a are unsigned.
        let shifted: Vec<i32> = a
            .iter()
            .map(|word| i32::from_ne_bytes(word.to_ne_bytes().map(|byte| byte.wrapping_add(S::BYTE_OFFSET))))
            .collect();
        let found = s.vectorize(|| s.dot_bytes(s.splat_i32(seed as i32 - 7), integer_vector(s, &shifted), y));
        check("dot_bytes", found, &a, &b, &|a, b| {
            let products = bytes(a).into_iter().zip(bytes(b)).map(|(a, b)| (a + offset) * b);
            seed as i32 - 7 + products.sum::<i32>()
        });
    }
    // The largest products: sums of two of them do not fit into 16 bits.
    let lowest = s.splat_i32(i32::from_ne_bytes([0x80; 4]));
    if S::BYTE_OFFSET == 0 {
        let found = s.vectorize(|| s.dot_bytes(s.splat_i32(0), lowest, lowest));
        assert!(integers(s, found).into_iter().all(|sum| sum == 4 * 128 * 128), "{}", S::NAME);
    }
    let indices: Vec<i32> = (0..S::LANES as i32).collect();
    assert_eq!(integers(s, s.lane_indices()), indices);
}

#[test]
fn integer_operations_match_their_definitions() {
    for_each_isa!(integer_operations);
}

/// Operations across lanes, in every lane.
fn permutations<S: Simd>(simd: S) {
    let s = simd;
    let counted: Vec<f32> = (0..S::LANES).map(|lane| lane as f32 + 1.0).collect();
    let value = vector(s, &counted);
    let picked = |index: &dyn Fn(usize) -> usize| -> Vec<f32> {
        (0..S::LANES).map(|lane| counted[index(lane)]).collect()
    };
    assert_eq!(lanes(s, s.swap_pairs(value)), picked(&|lane| lane ^ 1));
    assert_eq!(lanes(s, s.duplicate_low_lanes(value)), picked(&|lane| lane / 2));
    let negated: Vec<f32> =
        counted.iter().enumerate().map(|(lane, &x)| if lane % 2 == 0 { -x } else { x }).collect();
    assert_eq!(lanes(s, s.negate_even(value)), negated);
    for lane in 0..S::LANES {
        let mut values = vec![f32::NAN; S::LANES];
        values[lane] = -3.0;
        let value = vector(s, &values);
        assert_eq!(s.largest(value), -3.0, "{} lane {lane}", S::NAME);
        assert!(s.sum(value).is_nan() || S::LANES == 1);
        values.fill(0.0);
        assert!(!s.any(s.lt(vector(s, &values), s.splat(0.0))));
        values[lane] = -1.0;
        assert!(s.any(s.lt(vector(s, &values), s.splat(0.0))), "{} lane {lane}", S::NAME);
    }
    let block: Vec<f32> = (0..S::LANES * S::LANES).map(|index| index as f32).collect();
    let step = S::LANES + 3;
    let mut turned = vec![-1.0; S::LANES * step];
    // SAFETY: both blocks have `LANES` rows, the second with a step that is longer than a row.
    unsafe { s.transpose(block.as_ptr(), turned.as_mut_ptr(), step) };
    for (index, found) in turned.into_iter().enumerate() {
        let (column, row) = (index / step, index % step);
        assert_eq!(found, if row < S::LANES { block[row * S::LANES + column] } else { -1.0 });
    }
}

#[test]
fn operations_across_lanes_reach_every_lane() {
    for_each_isa!(permutations);
}

/// Bytes and nibbles, and stores that bypass caches.
fn narrow<S: Simd>(simd: S) {
    let s = simd;
    for first in 0..=255u8 {
        let bytes: Vec<u8> =
            (0..S::LANES as u8).map(|lane| first.wrapping_add(lane.wrapping_mul(37))).collect();
        // SAFETY: there are as many bytes as lanes, and half of them hold as many nibbles.
        let (wide, nibbles) = unsafe { (s.load_u8(bytes.as_ptr()), s.load_nibbles(bytes.as_ptr())) };
        assert_eq!(integers(s, wide), bytes.iter().map(|&byte| i32::from(byte)).collect::<Vec<_>>());
        let expected: Vec<i32> =
            (0..S::LANES).map(|lane| i32::from(bytes[lane / 2] >> (4 * (lane % 2)) & 15)).collect();
        assert_eq!(integers(s, nibbles), expected);
        // Only the low bits are stored.
        let noise = s.splat_i32(0x7654_3f00);
        let mut stored = vec![0xaau8; S::LANES + 1];
        // SAFETY: the buffer has space for all lanes.
        unsafe { s.store_u8(stored.as_mut_ptr(), s.or_i32(wide, noise)) };
        assert_eq!(stored[..S::LANES], bytes);
        assert_eq!(stored[S::LANES], 0xaa);
        stored.fill(0xaa);
        // SAFETY: the buffer has space for all lanes.
        unsafe { s.store_nibbles(stored.as_mut_ptr(), s.or_i32(nibbles, s.splat_i32(0x7654_3ff0))) };
        assert_eq!(stored[..S::LANES / 2], bytes[..S::LANES / 2]);
        assert_eq!(stored[S::LANES / 2], 0xaa);
    }
    #[repr(align(64))]
    struct Aligned<T>([T; 16]);
    let counted: Vec<f32> = (0..S::LANES).map(|lane| lane as f32 + 0.5).collect();
    let (mut wide, mut narrow, mut brain) = (Aligned([0f32; 16]), Aligned([0u16; 16]), Aligned([0u16; 16]));
    let value = vector(s, &counted);
    // SAFETY: the buffers have space for all lanes and are aligned to any vector.
    unsafe {
        s.stream(wide.0.as_mut_ptr(), value);
        s.stream_f16(narrow.0.as_mut_ptr(), value);
        s.stream_bf16(brain.0.as_mut_ptr(), value);
    }
    s.fence();
    for (lane, &expected) in counted.iter().enumerate() {
        assert_eq!(wide.0[lane], expected);
        assert_eq!(f16::from_bits(narrow.0[lane]).to_f32(), expected);
        assert_eq!(bf16::from_bits(brain.0[lane]).to_f32(), expected);
    }
}

#[test]
fn bytes_and_nibbles_are_loaded_and_stored_exactly() {
    for_each_isa!(narrow);
}

/// Every code of the small floats survives decoding and encoding.
fn minifloats<S: Simd>(simd: S) {
    fn round_trip<S: Simd, F: SmallFloat>(simd: S) {
        for first in 0..=255i32 {
            let code = simd.splat_i32(first & ((2 << F::BITS) - 1));
            let value = decode::<S, F>(simd, code);
            let again = integers(simd, encode::<S, F>(simd, value))[S::LANES - 1];
            let found = lanes(simd, value)[S::LANES - 1];
            if found.is_finite() {
                assert_eq!(again, first & ((2 << F::BITS) - 1), "{} {found:e}", S::NAME);
            } else if found.is_nan() {
                assert_eq!(again, F::NAN);
            }
        }
    }
    round_trip::<S, E4M3>(simd);
    round_trip::<S, E5M2>(simd);
    round_trip::<S, E2M1>(simd);
}

#[test]
fn codes_of_small_floats_survive_a_round_trip() {
    for_each_isa!(minifloats);
}
