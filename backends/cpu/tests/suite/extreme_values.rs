//! Values near the limits of f32, where an intermediate result in f32 has no digits left, or is infinite, and the result is neither.

use lz_core::equivalence::difference;
use lz_core::{OperationInfo, ReasonCode, Tensor, TensorView};
use lz_engine::Engine;
use lz_ops::*;

/// Compares every CPU kernel of an operation with the reference, by the tolerance of the schema.
fn check<E: std::fmt::Display>(
    info: &OperationInfo,
    run: impl Fn(&Engine) -> Result<Tensor, E>,
    is_unsupported: impl Fn(&E) -> bool,
) {
    let fail = |error: &E| panic!("{}: {error}", info.name);
    let reference = Engine::with_kernels(lz_ops::reference_kernels::kernels()).unwrap();
    let expected = run(&reference).unwrap_or_else(|error| fail(&error));
    let mut checked = 0;
    for entry in lz_cpu::kernels().into_iter().filter(|entry| entry.spec.operation == info.name) {
        let (id, engine) = (entry.spec.id.clone(), Engine::new());
        engine.register([entry]).unwrap();
        let found = match run(&engine) {
            Ok(found) => found,
            Err(error) if is_unsupported(&error) => continue,
            Err(error) => fail(&error),
        };
        checked += 1;
        let difference = difference(info.schema(), &found.view(), &expected.view());
        assert!(difference.is_none(), "{id}: output {}", difference.unwrap_or_default());
    }
    assert!(checked > 0, "no kernel of {} ran", info.name);
}

macro_rules! check {
    ($info:ident, $function:ident, $args:expr) => {
        check(
            &$info,
            |engine| $function(engine, $args).map(|results| results.output),
            |error| error.has(ReasonCode::IsaUnsupported) || error.has(ReasonCode::DtypeUnsupported),
        )
    };
}

fn view<'a>(data: &'a [f32], shape: &[i64]) -> TensorView<'a> {
    TensorView::from_slice(data, shape).unwrap()
}

/// The tail of GELU is small but not 0: a large factor makes it visible, and so does its error.
#[test]
fn gated_gelu_is_accurate_for_any_factor() {
    let sizes =
        [0.0, 1e-42, 1e-20, 1e-3, 0.5, 1.0, 3.0, 4.5, 5.6, 5.7, 6.0, 8.0, 10.0, 13.1, 13.4, 15.0, 18.5, 18.7];
    let more = [20.0, 30.0, 38.0, 39.0, 1e10, f32::MAX, f32::INFINITY];
    let factors = [0.0, 1e-40, 1e-30, 1.0, 100.0, 1e6, 1e20, 1e30, f32::MAX, f32::INFINITY];
    let signed = |values: Vec<f32>| {
        let negative = values.iter().map(|value| -value).collect::<Vec<f32>>();
        [values, negative, vec![f32::NAN]].concat()
    };
    let (gates, factors) = (signed([&sizes[..], &more].concat()), signed(factors.to_vec()));
    let pairs = gates.iter().flat_map(|gate| factors.iter().map(move |factor| (*gate, *factor)));
    let (gate, up): (Vec<f32>, Vec<f32>) = pairs.unzip();
    let shape = [gate.len() as i64];
    check!(
        ACTIVATION_GELU_MUL,
        activation_gelu_mul,
        ActivationGeluMul::new(view(&gate, &shape), view(&up, &shape))
    );
    // Around the bounds of the approximation, and between them.
    let gate: Vec<f32> = (0..40_000).map(|number| number as f32 * -1e-3).collect();
    for factor in [1.0, 1e5, 1e20, f32::MAX] {
        let (up, shape) = (vec![factor; gate.len()], [gate.len() as i64]);
        check!(
            ACTIVATION_GELU_MUL,
            activation_gelu_mul,
            ActivationGeluMul::new(view(&gate, &shape), view(&up, &shape))
        );
    }
}

/// The tails of SiLU and of the approximate GELU: the exponential overflows f32, and the product with a large factor is not 0.
#[test]
fn gated_tails_are_accurate_for_any_factor() {
    let gates = [-30.0, -41.0, -60.0, -80.5, -88.0, -89.0, -95.0, -120.0, -170.0, -180.0, -500.0, -800.0];
    let small = [-5.0, -7.2, -7.5, -9.0, -9.8, -10.1, -11.0, -12.5, -13.0, -20.0, -1e10, f32::NEG_INFINITY];
    let factors = [0.0, 1e-30, 1.0, 1e5, 1e15, 1e25, 1e30, 1e35, f32::MAX, f32::INFINITY, f32::NAN];
    // One at a time among other gates, and many next to each other.
    for spacing in [1, 23] {
        let mut pairs = Vec::new();
        for gate in gates.iter().chain(&small) {
            for factor in factors.iter().flat_map(|factor| [*factor, -factor]) {
                pairs.push((*gate, factor));
                pairs.extend((1..spacing).map(|number| (number as f32 * 0.25, 1.0)));
            }
        }
        let (gate, up): (Vec<f32>, Vec<f32>) = pairs.into_iter().unzip();
        let shape = [gate.len() as i64];
        let (gate, up) = (view(&gate, &shape), view(&up, &shape));
        check!(ACTIVATION_SILU_MUL, activation_silu_mul, ActivationSiluMul::new(gate, up));
        check!(
            ACTIVATION_GELU_MUL,
            activation_gelu_mul,
            ActivationGeluMul::new(gate, up).approximate(ActivationGeluMulApproximate::Tanh)
        );
    }
}

/// Gates in the tail of an activation, with factors that make the tail visible: the up projection, the down projection, or both.
#[test]
fn gated_blocks_are_accurate_in_the_tails_of_activations() {
    let gates =
        [-4.0, -5.6, -5.7, -6.0, -8.0, -10.0, -10.5, -13.0, -18.0, -60.0, -88.0, -89.5, -95.0, -170.0];
    let factors =
        [(1.0, 1.0), (1e6, 1.0), (1e15, 1e10), (1e20, 1e18), (-1e30, 1.0), (1e30, 1e30), (3e38, 1e3)];
    for rows in [3, gates.len()] {
        for (up, down) in factors {
            let gates = &gates[gates.len() - rows..];
            let size = rows as i64;
            // Row r has only feature r, so its gate is the weight of that feature.
            let x: Vec<f32> = (0..rows * rows).map(|at| f32::from(u8::from(at % (rows + 1) == 0))).collect();
            let (up, down) = (vec![up; rows], [down]);
            let (x, gate) = (view(&x, &[size, size]), view(gates, &[1, size]));
            let (up, down) = (view(&up, &[1, size]), view(&down, &[1, 1]));
            for activation in
                [MlpFusedActivation::Silu, MlpFusedActivation::Gelu, MlpFusedActivation::GeluTanh]
            {
                check!(MLP_FUSED, mlp_fused, MlpFused::new(x, gate, up, down).activation(activation));
            }
            let gate_up = [gates, &vec![up.at(&[0, 0]) as f32; rows]].concat();
            let (gate_up, down) = (view(&gate_up, &[1, 2, size]), [down.at(&[0, 0]) as f32]);
            let (chosen, ones) = (vec![0i32; rows], vec![1.0f32; rows]);
            let indices = TensorView::from_slice(&chosen, &[size, 1]).unwrap();
            let (weights, down) = (view(&ones, &[size, 1]), view(&down, &[1, 1, 1]));
            for activation in
                [MoeExpertsActivation::Silu, MoeExpertsActivation::Gelu, MoeExpertsActivation::GeluTanh]
            {
                check!(
                    MOE_EXPERTS,
                    moe_experts,
                    MoeExperts::new(x, indices, weights, gate_up, down).activation(activation)
                );
            }
        }
    }
}

/// Biases that bring a sum beyond f32 back, and infinite ones.
const BIASES: [f32; 6] = [0.0, 3e38, -3e38, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];

/// The sums are ±3.5e38 and 4.5e38, which only f64 represents.
#[test]
fn a_bias_is_added_before_a_sum_is_rounded_to_f32() {
    for rows in [1, 3, 40] {
        let x: Vec<f32> =
            (0..rows).flat_map(|row| [3.0e38, if row == 0 { 0.5e38 } else { 1.5e38 }]).collect();
        let x = view(&x, &[rows, 2]);
        let (signs, columns) = ([-1.0f32, -1.0, 1.0, 1.0], 2 * BIASES.len());
        let weight: Vec<f32> = signs.iter().copied().cycle().take(2 * columns).collect();
        let bias: Vec<f32> = BIASES.iter().flat_map(|bias| [*bias, *bias]).collect();
        let bias = view(&bias, &[columns as i64]);
        let dims = [columns as i64, 2];
        check!(MLP_LINEAR, mlp_linear, MlpLinear::new(x, view(&weight, &dims)).bias(bias));
        let bytes: Vec<i8> = weight.iter().map(|value| *value as i8).collect();
        let scale = vec![1.0f32; columns];
        let codes = TensorView::from_slice(&bytes, &dims).unwrap();
        check!(
            MLP_LINEAR_WEIGHT_ONLY,
            mlp_linear_weight_only,
            MlpLinearWeightOnly::new(
                x,
                codes,
                view(&scale, &[columns as i64]),
                MlpLinearWeightOnlyFormat::Int8
            )
            .bias(bias)
        );
    }
    // At the second position both taps count.
    let channels = BIASES.len();
    let x = [vec![3.0e38f32; channels], vec![0.5e38; channels]].concat();
    for tap in [1.0f32, -1.0] {
        let (taps, shape) = (vec![tap; 2 * channels], [channels as i64]);
        check!(
            CONV_CAUSAL1D,
            conv_causal1d,
            ConvCausal1d::new(view(&x, &[1, 2, shape[0]]), view(&taps, &[shape[0], 2]))
                .bias(view(&BIASES, &shape))
        );
    }
}
