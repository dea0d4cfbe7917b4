//! Integer linear layers, with values computed by hand.

use lz_ops::{
    MlpLinearInt8, MlpLinearInt8Activation, MlpLinearInt8WeightLayout, MlpLinearPack, MlpLinearWeightOnly,
    MlpLinearWeightOnlyFormat, MlpLinearWeightOnlyGranularity, MlpLinearWeightOnlyWeightLayout,
    mlp_linear_int8, mlp_linear_pack, mlp_linear_weight_only,
};

use crate::{values, view};

#[test]
fn a_panel_holds_one_word_of_each_row() {
    // Two rows of five bytes: words 1 2 3 4 and 5 of the first, 6 7 8 9 and 10 of the second.
    let weight: Vec<i8> = (1..=10).collect();
    let packed =
        mlp_linear_pack(&crate::reference_engine(), MlpLinearPack::new(view(&weight, &[2, 5]))).unwrap();
    assert_eq!(packed.packed.shape(), [1, 2, 16, 4]);
    let bytes = values::<i8>(&packed.packed);
    assert_eq!(bytes[..12], [1, 2, 3, 4, 6, 7, 8, 9, 0, 0, 0, 0]);
    assert_eq!(bytes[64..72], [5, 0, 0, 0, 10, 0, 0, 0]);
    assert_eq!(bytes.iter().map(|&byte| i32::from(byte)).sum::<i32>(), 55);
}

#[test]
fn every_block_has_a_scale_and_a_zero_point() {
    let (x, bias) = ([1.0f32, 2.0, 4.0], [0.5f32, 0.0]);
    let weight = [1i8, -2, 3, 4, 5, -6];
    // Blocks of two inputs; the last one is shorter.
    let (scale, zero_point) = ([1.0f32, 10.0, 0.5, 2.0], [0, 1, 4, -6]);
    let args = MlpLinearWeightOnly::new(
        view(&x, &[1, 3]),
        view(&weight, &[2, 3]),
        view(&scale, &[2, 2]),
        MlpLinearWeightOnlyFormat::Int8,
    )
    .granularity(MlpLinearWeightOnlyGranularity::Block)
    .block_size(2)
    .zero_point(view(&zero_point, &[2, 2]))
    .bias(view(&bias, &[2]));
    let found = mlp_linear_weight_only(&crate::reference_engine(), args).unwrap();
    // 1 * 1 + 2 * -2 + 4 * (3 - 1) * 10 + 0.5, and 2 * (5 - 4) * 0.5 + 4 * (-6 + 6) * 2.
    assert_eq!(values::<f32>(&found.output), [77.5, 1.0]);
}

#[test]
fn low_nibbles_come_first_in_rows_and_in_panels() {
    // Inputs 1, -1, 7 and an ignored 9 in the high nibble; then -8, 0, 2.
    let weight = [0xf1u8, 0x97, 0x08, 0x02];
    let (x, scale) = ([1.0f32, 10.0, 100.0], [1.0f32, 0.5]);
    let engine = crate::reference_engine();
    let packed = mlp_linear_pack(&engine, MlpLinearPack::new(view(&weight, &[2, 2]))).unwrap().packed;
    let call = |weight| {
        let format = MlpLinearWeightOnlyFormat::Int4;
        MlpLinearWeightOnly::new(view(&x, &[1, 3]), weight, view(&scale, &[2]), format)
    };
    let rows = mlp_linear_weight_only(&engine, call(view(&weight, &[2, 2]))).unwrap();
    let layout = MlpLinearWeightOnlyWeightLayout::Panels;
    let panels = mlp_linear_weight_only(&engine, call(packed.view()).weight_layout(layout)).unwrap();
    assert_eq!(values::<f32>(&rows.output), [691.0, 96.0]);
    assert_eq!(values::<f32>(&panels.output), [691.0, 96.0]);
}

#[test]
fn products_of_bytes_are_exact_before_they_are_scaled() {
    let x = [-128i8, -128, 127, 1, 0, -1];
    let weight = [-128i8, -128, 127, 3, 2, 1];
    let (x_scale, scale, zero_point) = ([1.0f32, 0.5], [1.0f32, 2.0], [0, 1]);
    let engine = crate::reference_engine();
    let args = || {
        MlpLinearInt8::new(
            view(&x, &[2, 3]),
            view(&weight, &[2, 3]),
            view(&x_scale, &[2]),
            view(&scale, &[2]),
        )
        .x_zero_point(view(&zero_point, &[2]))
    };
    let found = mlp_linear_int8(&engine, args()).unwrap();
    // 128² + 128² + 127², twice (-128 * 3 - 128 * 2 + 127); half of 128 - 2 * 127, and (0 - 1 * 2 - 2 * 1).
    assert_eq!(values::<f32>(&found.output), [48_897.0, -1_026.0, -63.0, -4.0]);
    let cut = mlp_linear_int8(&engine, args().activation(MlpLinearInt8Activation::Relu)).unwrap();
    assert_eq!(values::<f32>(&cut.output), [48_897.0, 0.0, 0.0, 0.0]);
    let packed = mlp_linear_pack(&engine, MlpLinearPack::new(view(&weight, &[2, 3]))).unwrap().packed;
    let panels = MlpLinearInt8 { weight: packed.view(), ..args() };
    let panels = mlp_linear_int8(&engine, panels.weight_layout(MlpLinearInt8WeightLayout::Panels)).unwrap();
    assert_eq!(values::<f32>(&panels.output), values::<f32>(&found.output));
}
