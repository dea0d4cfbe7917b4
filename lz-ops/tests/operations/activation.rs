//! Activations: values, limits, both variants of gelu, narrow dtypes and strides.

use half::{bf16, f16};
use lz_ops::{
    ActivationGelu, ActivationGeluApproximate, ActivationGeluMul, ActivationGeluMulApproximate,
    ActivationRelu, ActivationReluSquared, ActivationSilu, ActivationSiluMul, activation_gelu,
    activation_gelu_mul, activation_relu, activation_relu_squared, activation_silu, activation_silu_mul,
};

use crate::{assert_near, strided, values, view};

const X: [f32; 6] = [0.0, 1.0, -1.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];

#[test]
fn relu_clamps_and_keeps_nan() {
    let result = activation_relu(&crate::reference_engine(), ActivationRelu::new(view(&X, &[2, 3]))).unwrap();
    assert_near(&values(&result.output), &[0.0, 1.0, 0.0, f32::INFINITY, 0.0, f32::NAN], 0.0);
}

#[test]
fn relu_squared_clamps_squares_and_keeps_nan() {
    let x = [0.0f32, 1.5, -1.5, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
    let args = ActivationReluSquared::new(view(&x, &[2, 3]));
    let result = activation_relu_squared(&crate::reference_engine(), args).unwrap();
    assert_near(&values(&result.output), &[0.0, 2.25, 0.0, f32::INFINITY, 0.0, f32::NAN], 0.0);
}

#[test]
fn silu_with_and_without_alpha() {
    let engine = crate::reference_engine();
    let plain = activation_silu(&engine, ActivationSilu::new(view(&X, &[6]))).unwrap();
    let expected = [0.0, 0.731_058_6, -0.268_941_43, f32::INFINITY, 0.0, f32::NAN];
    assert_near(&values(&plain.output), &expected, 1e-7);
    let halved = activation_silu(&engine, ActivationSilu::new(view(&X, &[6])).alpha(0.0)).unwrap();
    let expected = [0.0, 0.5, -0.5, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
    assert_near(&values(&halved.output), &expected, 0.0);
    let steep = activation_silu(&engine, ActivationSilu::new(view(&[2.0f32], &[])).alpha(1.702)).unwrap();
    assert_near(&values(&steep.output), &[2.0 / (1.0 + (-3.404f32).exp())], 1e-6);
}

#[test]
fn both_variants_of_gelu() {
    let engine = crate::reference_engine();
    let exact = activation_gelu(&engine, ActivationGelu::new(view(&X, &[6]))).unwrap();
    let expected = [0.0, 0.841_344_7, -0.158_655_26, f32::INFINITY, 0.0, f32::NAN];
    assert_near(&values(&exact.output), &expected, 1e-7);
    let args = ActivationGelu::new(view(&X, &[6])).approximate(ActivationGeluApproximate::Tanh);
    let tanh = activation_gelu(&engine, args).unwrap();
    let expected = [0.0, 0.841_192, -0.158_808, f32::INFINITY, 0.0, f32::NAN];
    assert_near(&values(&tanh.output), &expected, 1e-6);
}

#[test]
fn gated_activations_round_once() {
    let engine = crate::reference_engine();
    // Rounding the gate to bf16 before the product would differ in the last bit.
    let (gate, up) = (bf16::from_f32(1.3), bf16::from_f32(1.7));
    let result =
        activation_silu_mul(&engine, ActivationSiluMul::new(view(&[gate], &[1]), view(&[up], &[1]))).unwrap();
    let z = gate.to_f64();
    let exact = z / (1.0 + (-z).exp()) * up.to_f64();
    let found = values::<bf16>(&result.output)[0];
    assert_eq!(found, bf16::from_f64(exact));

    let (gate, up) = ([f16::from_f32(-0.7)], [f16::from_f32(2.3)]);
    let args = ActivationGeluMul::new(view(&gate, &[1]), view(&up, &[1]))
        .approximate(ActivationGeluMulApproximate::Tanh);
    let result = activation_gelu_mul(&engine, args).unwrap();
    let z = gate[0].to_f64();
    let y = (2.0 / std::f64::consts::PI).sqrt() * (z + 0.044715 * z.powi(3));
    let exact = z / 2.0 * (1.0 + y.tanh()) * up[0].to_f64();
    assert_eq!(values::<f16>(&result.output)[0], f16::from_f64(exact));
}

#[test]
fn strides_of_any_sign_and_zero_are_followed() {
    let data = [1.0f32, -2.0, 3.0, -4.0, 5.0, -6.0];
    let engine = crate::reference_engine();
    let transposed = strided(&data, 0, &[3, 2], &[1, 3]);
    let result = activation_relu(&engine, ActivationRelu::new(transposed)).unwrap();
    assert_eq!(values::<f32>(&result.output), [1.0, 0.0, 0.0, 5.0, 3.0, 0.0]);
    let reversed = strided(&data, 5, &[6], &[-1]);
    let result = activation_relu(&engine, ActivationRelu::new(reversed)).unwrap();
    assert_eq!(values::<f32>(&result.output), [0.0, 5.0, 0.0, 3.0, 0.0, 1.0]);
    let repeated = strided(&data, 2, &[4], &[0]);
    let result = activation_relu(&engine, ActivationRelu::new(repeated)).unwrap();
    assert_eq!(values::<f32>(&result.output), [3.0; 4]);
}
