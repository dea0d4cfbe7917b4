//! Sizes that the random calls of the conformance suite do not reach: several blocks, panels and KC blocks,
//! and many rows.

use lz_core::{Tensor, TensorView};
use lz_engine::Engine;
use lz_ops::*;

use lz_cpu::pool;

/// An engine with the reference kernels of all operations.
fn reference_engine() -> lz_engine::Engine {
    lz_engine::Engine::with_kernels(lz_ops::reference_kernels::kernels()).unwrap()
}

fn floats(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn view<'a>(data: &'a [f32], shape: &[i64]) -> TensorView<'a> {
    TensorView::from_slice(data, shape).unwrap()
}

#[track_caller]
fn assert_close(what: &str, found: &Tensor, expected: &Tensor, tolerance: f64) {
    let (found, expected) = (found.view(), expected.view());
    for index in lz_core::tensor::Indices::new(found.shape()) {
        let (found, expected) = (found.at(&index), expected.at(&index));
        let same = found == expected
            || (found.is_nan() && expected.is_nan())
            || (found - expected).abs() <= tolerance * (1.0 + expected.abs());
        assert!(same, "{what}: {index:?} is {found}, but should be {expected}");
    }
}

/// Checks every CPU kernel against the reference, with one thread and with several: results must be
/// bit-identical.
macro_rules! check_against_reference {
    ($operation:literal, $function:ident, $args:expr) => {
        check_against_reference!($operation, $function, $args, 1e-4)
    };
    ($operation:literal, $function:ident, $args:expr, $tolerance:expr) => {{
        let expected = $function(&reference_engine(), $args).unwrap();
        for entry in lz_cpu::kernels().into_iter().filter(|entry| entry.spec.operation == $operation) {
            let (id, engine) = (entry.spec.id.clone(), Engine::new());
            engine.register([entry]).unwrap();
            let run = |threads| pool::with_threads(threads, || $function(&engine, $args));
            let found = match run(1) {
                Ok(found) => found,
                Err(error) if error.has(lz_core::ReasonCode::IsaUnsupported) => continue,
                Err(error) if error.has(lz_core::ReasonCode::DtypeUnsupported) => continue,
                Err(error) => panic!("{id}: {error}"),
            };
            assert_close(&id, &found.output, &expected.output, $tolerance);
            assert_eq!(
                found.output.bytes(),
                run(3).unwrap().output.bytes(),
                "{id}: threads change the result"
            );
        }
    }};
}

#[test]
fn linear_with_any_row_count_and_tail_features() {
    for [m, n, k] in [[1, 300, 130], [7, 33, 520], [9, 130, 129], [250, 140, 70], [19, 64, 300]] {
        let (x, w, b) = (floats(1, (m * k) as usize), floats(2, (n * k) as usize), floats(3, n as usize));
        let args = || MlpLinear::new(view(&x, &[m, k]), view(&w, &[n, k]));
        check_against_reference!("mlp.linear", mlp_linear, args());
        check_against_reference!(
            "mlp.linear",
            mlp_linear,
            args().bias(view(&b, &[n])).activation(MlpLinearActivation::Gelu)
        );
    }
}

#[test]
fn bf16_linear_on_amx_or_in_f32() {
    for [m, n, k] in [[9, 33, 70], [40, 130, 512], [300, 70, 1100], [64, 64, 31]] {
        let (x, w) = (floats(10, (m * k) as usize), floats(11, (n * k) as usize));
        let halves = |data: &[f32]| data.iter().map(|&x| half::bf16::from_f32(x)).collect::<Vec<_>>();
        let (x, w) = (halves(&x), halves(&w));
        let args = || {
            let (x, w) = (TensorView::from_slice(&x, &[m, k]), TensorView::from_slice(&w, &[n, k]));
            MlpLinear::new(x.unwrap(), w.unwrap()).activation(MlpLinearActivation::Relu)
        };
        check_against_reference!("mlp.linear", mlp_linear, args(), 1e-2);
    }
}

#[test]
fn overflowing_sums_are_recomputed_in_f64() {
    let (m, n, k) = (12, 20, 40);
    let (mut x, mut w) = (floats(4, m * k), floats(5, n * k));
    (x[0], x[1], w[0], w[1]) = (3e38, 3e38, 2.0, -2.0);
    x[5 * k] = f32::NAN;
    let args = || MlpLinear::new(view(&x, &[m as i64, k as i64]), view(&w, &[n as i64, k as i64]));
    check_against_reference!("mlp.linear", mlp_linear, args());
}

#[test]
fn fused_mlp_keeps_the_intermediate_in_f32() {
    for [m, k, i, n] in [[2, 40, 70, 30], [20, 150, 200, 140]] {
        let (x, gate, up, down) = (
            floats(6, (m * k) as usize),
            floats(7, (i * k) as usize),
            floats(8, (i * k) as usize),
            floats(9, (n * i) as usize),
        );
        let args = || {
            MlpFused::new(view(&x, &[m, k]), view(&gate, &[i, k]), view(&up, &[i, k]), view(&down, &[n, i]))
        };
        check_against_reference!("mlp.fused", mlp_fused, args());
    }
}

/// On AMX the intermediate result is stored as two bf16: the rounding error must not be lost.
#[test]
fn bf16_fused_mlp_keeps_rounding_errors() {
    for [m, k, i, n] in [[9, 70, 33, 40], [40, 512, 130, 64], [300, 31, 64, 129], [20, 40, 1100, 70]] {
        let halves = |seed: u64, count: i64| {
            floats(seed, count as usize).into_iter().map(half::bf16::from_f32).collect::<Vec<_>>()
        };
        let (mut x, gate, up, down) =
            (halves(6, m * k), halves(7, i * k), halves(8, i * k), halves(9, n * i));
        x[k as usize] = half::bf16::NAN;
        x[2 * k as usize] = half::bf16::MAX;
        let args = || {
            let view = |data, shape: &[i64]| TensorView::from_slice(data, shape).unwrap();
            let (x, down) = (view(&x, &[m, k]), view(&down, &[n, i]));
            MlpFused::new(x, view(&gate, &[i, k]), view(&up, &[i, k]), down)
        };
        check_against_reference!("mlp.fused", mlp_fused, args(), 1e-2);
    }
}

fn integers(seed: u64, count: usize) -> Vec<i8> {
    floats(seed, count).into_iter().map(|x| (x * 127.99).floor() as i8).collect()
}

#[test]
fn weight_only_with_row_major_and_packed_weights() {
    for [m, n, k, block] in [
        [1, 300, 1300, 0],
        [2, 18, 75, 0],
        [3, 33, 2100, 64],
        [4, 37, 706, 48],
        [8, 70, 600, 8],
        [5, 40, 90, 7],
        [50, 140, 300, 32],
    ] {
        let (x, b) = (floats(20, (m * k) as usize), floats(21, n as usize));
        let stored = k / 2 + k % 2;
        let bytes: Vec<u8> = integers(22, (n * stored) as usize).into_iter().map(|x| x as u8).collect();
        let signed = integers(23, (n * k) as usize);
        let groups = if block == 0 { 1 } else { (k + block - 1) / block };
        let scale: Vec<f32> = floats(24, (n * groups) as usize).iter().map(|s| s.abs() / 64.0).collect();
        let zero: Vec<i32> =
            integers(25, (n * groups) as usize).into_iter().map(|x| i32::from(x) / 9).collect();
        let grouped: &[i64] = if block == 0 { &[n] } else { &[n, groups] };
        let engine = reference_engine();
        for format in [MlpLinearWeightOnlyFormat::Int8, MlpLinearWeightOnlyFormat::Int4] {
            let weight = match format {
                MlpLinearWeightOnlyFormat::Int8 => TensorView::from_slice(&signed, &[n, k]).unwrap(),
                MlpLinearWeightOnlyFormat::Int4 => TensorView::from_slice(&bytes, &[n, stored]).unwrap(),
            };
            let packed = mlp_linear_pack(&engine, MlpLinearPack::new(weight)).unwrap().packed;
            for panels in [false, true] {
                let args = || {
                    let weight = if panels { packed.view() } else { weight };
                    let mut args =
                        MlpLinearWeightOnly::new(view(&x, &[m, k]), weight, view(&scale, grouped), format)
                            .zero_point(TensorView::from_slice(&zero, grouped).unwrap())
                            .bias(view(&b, &[n]))
                            .activation(MlpLinearWeightOnlyActivation::Silu);
                    if panels {
                        args = args.weight_layout(MlpLinearWeightOnlyWeightLayout::Panels);
                    }
                    if block > 0 {
                        args = args.granularity(MlpLinearWeightOnlyGranularity::Block).block_size(block);
                    }
                    args
                };
                check_against_reference!("mlp.linear.weight_only", mlp_linear_weight_only, args());
            }
        }
    }
}

#[test]
fn int8_linear_matches_the_reference() {
    for [m, n, k] in [[1, 300, 1300], [7, 65, 2100], [100, 140, 515], [9, 16, 4]] {
        let (mut x, mut w) = (integers(30, (m * k) as usize), integers(31, (n * k) as usize));
        // The largest possible products, where saturating instructions would fail.
        x[..4].fill(-128);
        w[..4].fill(-128);
        let (x, w) =
            (TensorView::from_slice(&x, &[m, k]).unwrap(), TensorView::from_slice(&w, &[n, k]).unwrap());
        let scales: Vec<f32> = floats(32, (m + n) as usize).iter().map(|s| s.abs() / 128.0).collect();
        let (x_scale, scale) = (view(&scales[..m as usize], &[m]), view(&scales[m as usize..], &[n]));
        let zero: Vec<i32> = (0..m as i32).map(|row| row - 3).collect();
        let packed = mlp_linear_pack(&reference_engine(), MlpLinearPack::new(w)).unwrap().packed;
        let plain = || MlpLinearInt8::new(x, w, x_scale, scale);
        let panels = || {
            MlpLinearInt8::new(x, packed.view(), x_scale, scale)
                .weight_layout(MlpLinearInt8WeightLayout::Panels)
                .x_zero_point(TensorView::from_slice(&zero, &[m]).unwrap())
                .activation(MlpLinearInt8Activation::Relu)
        };
        check_against_reference!("mlp.linear.int8", mlp_linear_int8, plain(), 1e-6);
        check_against_reference!("mlp.linear.int8", mlp_linear_int8, panels(), 1e-6);
    }
}

#[test]
fn packing_again_reflects_changed_weights() {
    let mut weight = integers(40, 40 * 70);
    for round in 0..2 {
        weight[round] = weight[round].wrapping_add(1);
        let weight = TensorView::from_slice(&weight, &[40, 70]).unwrap();
        let expected = mlp_linear_pack(&reference_engine(), MlpLinearPack::new(weight)).unwrap();
        for entry in lz_cpu::kernels().into_iter().filter(|entry| entry.spec.operation == "mlp.linear.pack") {
            let (id, engine) = (entry.spec.id.clone(), Engine::new());
            engine.register([entry]).unwrap();
            match mlp_linear_pack(&engine, MlpLinearPack::new(weight)) {
                Ok(found) => assert_eq!(found.packed.bytes(), expected.packed.bytes(), "{id}"),
                Err(error) => assert!(error.has(lz_core::ReasonCode::IsaUnsupported), "{id}: {error}"),
            }
        }
    }
}

fn bf16s(seed: u64, count: usize) -> Vec<half::bf16> {
    floats(seed, count).into_iter().map(half::bf16::from_f32).collect()
}

/// Few rows read the weights in place, with tails of sixteen rows and columns; a depth that is no multiple of 32 is packed.
#[test]
fn linear_of_bf16_with_few_and_many_rows() {
    for [m, n, k] in
        [[9, 130, 64], [16, 32, 1056], [17, 300, 544], [33, 129, 96], [130, 140, 64], [12, 70, 72]]
    {
        let (x, w) = (bf16s(1, (m * k) as usize), bf16s(2, (n * k) as usize));
        let (x, w) =
            (TensorView::from_slice(&x, &[m, k]).unwrap(), TensorView::from_slice(&w, &[n, k]).unwrap());
        check_against_reference!("mlp.linear", mlp_linear, MlpLinear::new(x, w), 1e-2);
    }
}

/// Experts with one token, with few and with many, of widths with and without a remainder.
#[test]
fn experts_with_any_number_of_tokens() {
    for (rows, width, intermediate) in
        [(1, 64, 32), (5, 64, 160), (6, 40, 48), (8, 544, 96), (14, 72, 32), (30, 96, 300), (150, 64, 130)]
    {
        for layout in [MoeExpertsGateUpLayout::Halves, MoeExpertsGateUpLayout::Interleaved] {
            // The first expert has every token, the second one a third of them, the third one none.
            let indices: Vec<i32> = (0..rows).flat_map(|row| [0, if row % 3 == 0 { 1 } else { 3 }]).collect();
            let weights = floats(3, 2 * rows);
            let (gate_up, down) =
                ([4, 2 * intermediate as i64, width as i64], [4, width as i64, intermediate as i64]);
            let count = |shape: &[i64; 3]| shape.iter().product::<i64>() as usize;
            let pairs = [rows as i64, 2];
            let indices = TensorView::from_slice(&indices, &pairs).unwrap();
            let weights = view(&weights, &pairs);
            let halves = [bf16s(4, rows * width), bf16s(5, count(&gate_up)), bf16s(6, count(&down))];
            let singles = halves.each_ref().map(|all| all.iter().map(|x| x.to_f32()).collect::<Vec<f32>>());
            let shapes: [&[i64]; 3] = [&[rows as i64, width as i64], &gate_up, &down];
            let operand = |index: usize| TensorView::from_slice(&halves[index], shapes[index]).unwrap();
            let args = MoeExperts::new(operand(0), indices, weights, operand(1), operand(2));
            check_against_reference!("moe.experts", moe_experts, args.gate_up_layout(layout), 2e-2);
            let operand = |index: usize| view(&singles[index], shapes[index]);
            let args = MoeExperts::new(operand(0), indices, weights, operand(1), operand(2));
            check_against_reference!("moe.experts", moe_experts, args.gate_up_layout(layout), 1e-3);
        }
    }
}
