//! Scales computed by `quantize`: per tensor, channel and block, the OCP floor rule, nvfp4's two levels, and
//! corner cases.

use lz_core::element::{F4E2M1x2, F8E4M3, F8E8M0};
use lz_ops::{
    Dequantize, DequantizeFormat, DequantizeGranularity, Quantize, QuantizeFormat, QuantizeGranularity,
    QuantizeOutput, dequantize, quantize,
};

use crate::{values, view};

fn computed(
    x: &[f32],
    shape: &[i64],
    format: QuantizeFormat,
    granularity: QuantizeGranularity,
    block_size: Option<i64>,
) -> QuantizeOutput {
    let mut args = Quantize::new(view(x, shape), format, granularity);
    args.block_size = block_size;
    quantize(&crate::reference_engine(), args).unwrap()
}

#[test]
fn absolute_maximum_of_each_group_sets_its_scale() {
    let x = [1.0f32, -12.7, 3.0, 4.0, 25.4, 0.0, 0.0, 0.0];
    let scales = |granularity, block_size| {
        let result = computed(&x, &[2, 2, 2], QuantizeFormat::Int8, granularity, block_size);
        (
            result.scale_out.as_ref().unwrap().shape().to_vec(),
            values::<f32>(result.scale_out.as_ref().unwrap()),
        )
    };
    assert_eq!(scales(QuantizeGranularity::Tensor, None), (vec![], vec![25.4 / 127.0]));
    assert_eq!(scales(QuantizeGranularity::Channel, None), (vec![2], vec![25.4 / 127.0, 4.0 / 127.0]));
    assert_eq!(scales(QuantizeGranularity::Head, None), (vec![2], vec![25.4 / 127.0, 4.0 / 127.0]));
    let blocks = vec![12.7 / 127.0, 4.0 / 127.0, 25.4 / 127.0, 1.0];
    assert_eq!(scales(QuantizeGranularity::Block, None), (vec![2, 2, 1], blocks));
}

#[test]
fn the_last_block_may_be_short() {
    let x = [7.0f32, 1.0, -14.0, 2.0, 21.0];
    let result = computed(&x, &[1, 5], QuantizeFormat::Int4, QuantizeGranularity::Block, Some(2));
    assert_eq!(values::<f32>(&result.scale_out.unwrap()), [1.0, 2.0, 3.0]);
    assert_eq!(values::<u8>(&result.quantized), [0x17, 0x19, 0x07]);
}

#[test]
fn each_format_has_its_own_largest_value() {
    for (format, largest) in [
        (QuantizeFormat::Int8, 127.0),
        (QuantizeFormat::Int4, 7.0),
        (QuantizeFormat::Int16, 32767.0),
        (QuantizeFormat::Int2, 1.0),
        (QuantizeFormat::Fp8E4m3, 448.0),
        (QuantizeFormat::Fp8E5m2, 57344.0),
    ] {
        let scale = |x: &[f32]| {
            let shape = [1, x.len() as i64];
            let result = computed(x, &shape, format, QuantizeGranularity::Tensor, None);
            values::<f32>(&result.scale_out.unwrap())[0]
        };
        assert_eq!(scale(&[-3.0, 1.0]), 3.0 / largest);
        assert_eq!(scale(&[0.0, -0.0]), 1.0);
        assert_eq!(scale(&[]), 1.0);
        assert_eq!(
            scale(&[f32::from_bits(1)]),
            f32::from_bits(1),
            "a scale that would be 0 is the smallest number"
        );
        assert_eq!(scale(&[f32::INFINITY, 1.0]), f32::INFINITY);
        assert!(scale(&[1.0, f32::NAN, 2.0]).is_nan());
    }
}

#[test]
fn empty_tensor_has_scale_one() {
    let result = computed(&[], &[0, 3, 2], QuantizeFormat::Int8, QuantizeGranularity::Channel, None);
    assert_eq!(values::<f32>(&result.scale_out.unwrap()), [1.0; 3]);
    let result = computed(&[], &[1 << 50, 0], QuantizeFormat::Int8, QuantizeGranularity::Tensor, None);
    assert_eq!(values::<f32>(&result.scale_out.unwrap()), [1.0]);
}

#[test]
fn mxfp4_uses_the_ocp_floor_rule() {
    let code = |largest: f32| {
        let result =
            computed(&[largest, 0.0], &[1, 2], QuantizeFormat::Mxfp4, QuantizeGranularity::Block, None);
        values::<F8E8M0>(&result.scale_out.unwrap())[0].0
    };
    assert_eq!(code(1.0), 125, "2^-2");
    assert_eq!(code(6.0), 127, "2^0");
    assert_eq!(code(7.99), 127, "the floor, although 7.99 then saturates");
    assert_eq!(code(8.0), 128);
    assert_eq!(code(f32::MAX), 127 + 125);
    assert_eq!(code(f32::MIN_POSITIVE), 0, "the exponent is clamped");
    assert_eq!(code(f32::from_bits(1)), 0);
    assert_eq!(code(f32::INFINITY), 254);
    assert_eq!(code(0.0), 127);
    assert_eq!(code(f32::NAN), 255);

    let mut x = [0.0f32; 40];
    (x[0], x[1], x[32]) = (7.99, -1.0, 0.5);
    let result = computed(&x, &[1, 40], QuantizeFormat::Mxfp4, QuantizeGranularity::Block, None);
    assert_eq!(values::<F8E8M0>(result.scale_out.as_ref().unwrap()), [F8E8M0(127), F8E8M0(124)]);
    let packed = values::<F4E2M1x2>(&result.quantized);
    assert_eq!((packed[0].0, packed[16].0, packed.len()), (0xa7, 0x06, 20));
    let scales = result.scale_out.unwrap();
    let args = Dequantize::new(
        result.quantized.view(),
        scales.view(),
        DequantizeFormat::Mxfp4,
        DequantizeGranularity::Block,
    );
    let back = values::<f32>(&dequantize(&crate::reference_engine(), args).unwrap().output);
    assert_eq!((back[0], back[1], back[32], back[33]), (6.0, -1.0, 0.5, 0.0));
}

#[test]
fn nvfp4_scales_are_e4m3_under_a_global_scale() {
    let mut x = [0.0f32; 32];
    (x[0], x[1], x[16], x[17]) = (6.0, -1.5, 3.0, 0.01);
    let run = |global: Option<f32>| {
        let global = global.map(|scale| [scale]);
        let mut args = Quantize::new(view(&x, &[1, 32]), QuantizeFormat::Nvfp4, QuantizeGranularity::Block);
        args.global_scale = global.as_ref().map(|scale| view(scale, &[]));
        let result = quantize(&crate::reference_engine(), args).unwrap();
        let scales = result.scale_out.unwrap();
        let mut args = Dequantize::new(
            result.quantized.view(),
            scales.view(),
            DequantizeFormat::Nvfp4,
            DequantizeGranularity::Block,
        );
        args.global_scale = global.as_ref().map(|scale| view(scale, &[]));
        let back = values::<f32>(&dequantize(&crate::reference_engine(), args).unwrap().output);
        let packed = values::<F4E2M1x2>(&result.quantized);
        (values::<F8E4M3>(&scales), [packed[0].0, packed[8].0], [back[0], back[1], back[16], back[17]])
    };
    // 6 / 6 = 1 and 3 / 6 = 0.5, in e4m3.
    let plain = run(None);
    assert_eq!(plain, (vec![F8E4M3(0x38), F8E4M3(0x30)], [0xb7, 0x07], [6.0, -1.5, 3.0, 0.0]));
    // The usual global scale, 448 * 6 / 6, lifts the largest scale to 448.
    let scaled = run(Some(448.0));
    assert_eq!(scaled, (vec![F8E4M3(0x7e), F8E4M3(0x76)], [0xb7, 0x07], [6.0, -1.5, 3.0, 0.0]));
    // A larger one saturates: values are then divided by less, and saturate too.
    let saturated = run(Some(896.0));
    assert_eq!(saturated.0, [F8E4M3(0x7e), F8E4M3(0x7e)]);
    assert_eq!(saturated.2, [3.0, -1.5, 3.0, 0.0]);
}

#[test]
fn corner_cases_of_nvfp4_scales() {
    let code = |largest: f32, global: f32| {
        let x = [largest];
        let global = [global];
        let args = Quantize::new(view(&x, &[1, 1]), QuantizeFormat::Nvfp4, QuantizeGranularity::Block)
            .global_scale(view(&global, &[]));
        values::<F8E4M3>(&quantize(&crate::reference_engine(), args).unwrap().scale_out.unwrap())[0].0
    };
    assert_eq!(code(0.0, 5.0), 0x38, "no value: 1, whatever the global scale");
    assert_eq!(code(1e-9, 1.0), 0x01, "the smallest positive number");
    assert_eq!(code(1.0, 0.0), 0x01);
    assert_eq!(code(f32::INFINITY, 1.0), 0x7e);
    assert_eq!(code(f32::NAN, 1.0), 0x7f);
    assert_eq!(code(6.0 * 17.0, 1.0), 0x58, "17 is a tie between 16 and 18");
}
