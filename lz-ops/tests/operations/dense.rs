//! Norms and linear layers, with values computed by hand.

use half::bf16;
use lz_core::TensorMut;
use lz_ops::{
    MlpFused, MlpFusedActivation, MlpLinear, MlpLinearActivation, NormLayer, NormRmsAdd, mlp_fused,
    mlp_linear, norm_layer, norm_rms_add,
};

use crate::{assert_near, strided, values, view};

#[test]
fn rms_add_updates_and_normalizes_the_residual() {
    let x = [1.0f32, 2.0, 0.0, 0.0];
    let mut residual = [2.0f32, 2.0, 0.0, 0.0];
    let weight = [1.0f32, 0.0, 5.0, 5.0];
    let args = NormRmsAdd::new(view(&x, &[1, 4]), TensorMut::from_slice(&mut residual, &[1, 4]).unwrap())
        .weight(view(&weight, &[4]))
        .weight_offset(1.0)
        .eps(0.0);
    let result = norm_rms_add(&crate::reference_engine(), args).unwrap();
    assert_eq!(residual, [3.0, 4.0, 0.0, 0.0]);
    assert_eq!(values::<f32>(&result.output), [2.4, 1.6, 0.0, 0.0]);
}

#[test]
fn rms_add_normalizes_the_rounded_sum() {
    // 256 + 1 is a tie in bf16 and rounds to 256; the exact sum would give another norm.
    let x = [1.0, 1.0].map(bf16::from_f32);
    let mut residual = [256.0, 0.0].map(bf16::from_f32);
    let args = NormRmsAdd::new(view(&x, &[2]), TensorMut::from_slice(&mut residual, &[2]).unwrap()).eps(0.0);
    let result = norm_rms_add(&crate::reference_engine(), args).unwrap();
    assert_eq!(residual.map(bf16::to_f32), [256.0, 1.0]);
    let norm = ((256f64.powi(2) + 1.0) / 2.0).sqrt();
    let expected = [256.0 / norm, 1.0 / norm].map(bf16::from_f64);
    assert_eq!(values::<bf16>(&result.output), expected);
}

#[test]
fn layer_norm_with_and_without_its_statistics() {
    let x = [1.0f32, 3.0, 5.0, 7.0, 2.0, 2.0, 2.0, 2.0];
    let (weight, bias) = ([2.0f32; 4], [1.0f32, 0.0, 0.0, -1.0]);
    let args = NormLayer::new(view(&x, &[2, 4]))
        .weight(view(&weight, &[4]))
        .bias(view(&bias, &[4]))
        .eps(1e-3)
        .return_stats(true);
    let result = norm_layer(&crate::reference_engine(), args).unwrap();
    let inv = 1.0 / 5.001f32.sqrt();
    let expected = [1.0 - 6.0 * inv, -2.0 * inv, 2.0 * inv, 6.0 * inv - 1.0, 1.0, 0.0, 0.0, -1.0];
    assert_near(&values(&result.output), &expected, 1e-6);
    assert_eq!(values::<f32>(&result.mean.unwrap()), [4.0, 2.0]);
    assert_near(&values(&result.inv_std.unwrap()), &[inv, 1.0 / 0.001f32.sqrt()], 1e-6);
    let plain = norm_layer(&crate::reference_engine(), NormLayer::new(view(&x, &[2, 4]))).unwrap();
    assert!(plain.mean.is_none() && plain.inv_std.is_none());
}

#[test]
fn linear_adds_the_bias_before_the_activation() {
    let x = [1.0f32, 2.0, -1.0, 0.5];
    // The weight is stored transposed: [in, out], with out contiguous.
    let weight = [1.0f32, 0.0, 3.0, -1.0, 1.0, 2.0];
    let bias = [0.5f32, -2.5, 0.0];
    let args =
        MlpLinear::new(view(&x, &[2, 2]), strided(&weight, 0, &[3, 2], &[1, 3])).bias(view(&bias, &[3]));
    let engine = crate::reference_engine();
    let plain = mlp_linear(&engine, args).unwrap();
    assert_eq!(values::<f32>(&plain.output), [-0.5, -0.5, 7.0, -1.0, -2.0, -2.0]);
    let args = MlpLinear::new(view(&x, &[2, 2]), strided(&weight, 0, &[3, 2], &[1, 3]))
        .bias(view(&bias, &[3]))
        .activation(MlpLinearActivation::Relu);
    let cut = mlp_linear(&engine, args).unwrap();
    assert_eq!(values::<f32>(&cut.output), [0.0, 0.0, 7.0, 0.0, 0.0, 0.0]);
}

#[test]
fn an_empty_sum_is_zero() {
    let (x, weight) = ([0f32; 0], [0f32; 0]);
    let args = MlpLinear::new(view(&x, &[2, 0]), view(&weight, &[3, 0]));
    assert_eq!(values::<f32>(&mlp_linear(&crate::reference_engine(), args).unwrap().output), [0.0; 6]);
}

#[test]
fn empty_rows_are_not_iterated() {
    let empty = [0f32; 0];
    let args = MlpLinear::new(view(&empty, &[1 << 50, 0]), view(&empty, &[0, 0]));
    assert_eq!(mlp_linear(&crate::reference_engine(), args).unwrap().output.shape(), [1 << 50, 0]);
    let args = MlpFused::new(
        view(&empty, &[1 << 50, 0]),
        view(&empty, &[0, 0]),
        view(&empty, &[0, 0]),
        view(&empty, &[0, 0]),
    );
    assert_eq!(mlp_fused(&crate::reference_engine(), args).unwrap().output.shape(), [1 << 50, 0]);
}

#[test]
fn fused_mlp_matches_hand_computed_values() {
    let x = [1.0f32, 2.0];
    let gate = [1.0f32, 1.0, -1.0, 0.0];
    let up = [2.0f32, 0.0, 0.0, 1.0];
    let down = [1.0f32, 10.0, 0.5, 0.0, 0.0, 1.0];
    let run = |activation| {
        let args =
            MlpFused::new(view(&x, &[2]), view(&gate, &[2, 2]), view(&up, &[2, 2]), view(&down, &[3, 2]))
                .activation(activation);
        values::<f32>(&mlp_fused(&crate::reference_engine(), args).unwrap().output)
    };
    // gate = [3, -1], up = [2, 2].
    assert_eq!(run(MlpFusedActivation::None), [-14.0, 3.0, -2.0]);
    assert_eq!(run(MlpFusedActivation::Relu), [6.0, 3.0, 0.0]);
    let silu = |z: f32| z / (1.0 + (-z).exp());
    let (first, second) = (silu(3.0) * 2.0, silu(-1.0) * 2.0);
    assert_near(&run(MlpFusedActivation::Silu), &[first + 10.0 * second, 0.5 * first, second], 1e-6);
}
