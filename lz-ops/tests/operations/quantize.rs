//! Quantization with given scales: every code of every format, rounding, saturation, packing, NaN and
//! infinities.

use half::bf16;
use lz_core::element::{F4E2M1x2, F8E4M3, F8E5M2, F8E8M0, f8_e4m3_to_f64, f8_e5m2_to_f64};
use lz_core::{ReasonCode, Tensor, TensorView};
use lz_ops::{
    Dequantize, DequantizeFormat, DequantizeGranularity, DequantizeOutputDtype, Quantize, QuantizeFormat,
    QuantizeGranularity, dequantize, quantize,
};

use crate::{strided, values, view};

const ONE: [f32; 1] = [1.0];

/// Quantizes one row with a single scale.
fn quantize_row(x: &[f32], format: QuantizeFormat, scale: f32, zero_point: Option<i32>) -> Tensor {
    let scale = [scale];
    let zero_point = zero_point.map(|zero_point| [zero_point]);
    let mut args = Quantize::new(view(x, &[1, x.len() as i64]), format, QuantizeGranularity::Tensor)
        .scale(view(&scale, &[]));
    if let Some(zero_point) = &zero_point {
        args = args.zero_point(view(zero_point, &[]));
    }
    let result = quantize(&crate::reference_engine(), args).unwrap();
    assert!(result.scale_out.is_none());
    result.quantized
}

/// Dequantizes one row with a scale of 1.
fn dequantize_row(quantized: TensorView<'_>, format: DequantizeFormat) -> Vec<f32> {
    let args = Dequantize::new(quantized, view(&ONE, &[]), format, DequantizeGranularity::Tensor);
    values(&dequantize(&crate::reference_engine(), args).unwrap().output)
}

#[test]
fn every_fp8_code_round_trips() {
    let codes: Vec<u8> = (0..=255).collect();
    let e4m3: Vec<F8E4M3> = codes.iter().copied().map(F8E4M3).collect();
    let decoded = dequantize_row(view(&e4m3, &[1, 256]), DequantizeFormat::Fp8E4m3);
    let again = quantize_row(&decoded, QuantizeFormat::Fp8E4m3, 1.0, None);
    for (code, (number, again)) in codes.iter().zip(decoded.iter().zip(values::<F8E4M3>(&again))) {
        let exact = f8_e4m3_to_f64(*code);
        if exact.is_nan() {
            assert!(number.is_nan() && f8_e4m3_to_f64(again.0).is_nan(), "{code:#x}");
        } else {
            assert_eq!((f64::from(*number), again.0), (exact, *code));
        }
    }
    let e5m2: Vec<F8E5M2> = codes.iter().copied().map(F8E5M2).collect();
    let decoded = dequantize_row(view(&e5m2, &[1, 256]), DequantizeFormat::Fp8E5m2);
    let again = quantize_row(&decoded, QuantizeFormat::Fp8E5m2, 1.0, None);
    for (code, (number, again)) in codes.iter().zip(decoded.iter().zip(values::<F8E5M2>(&again))) {
        let exact = f8_e5m2_to_f64(*code);
        if exact.is_nan() {
            assert!(number.is_nan() && f8_e5m2_to_f64(again.0).is_nan(), "{code:#x}");
        } else if exact.is_infinite() {
            // Infinities can be read, and saturate when written.
            assert_eq!(f64::from(*number), exact);
            assert_eq!(f8_e5m2_to_f64(again.0), 57344f64.copysign(exact));
        } else {
            assert_eq!((f64::from(*number), again.0), (exact, *code));
        }
    }
}

#[test]
fn every_pair_of_nibbles_round_trips() {
    let bytes: Vec<u8> = (0..=255).collect();
    let decoded = dequantize_row(view(&bytes, &[1, 256]), DequantizeFormat::Int4);
    assert_eq!(decoded[2 * 0x8f..2 * 0x8f + 2], [-1.0, -8.0], "the low nibble is the first element");
    assert_eq!(values::<u8>(&quantize_row(&decoded, QuantizeFormat::Int4, 1.0, None)), bytes);

    let packed: Vec<F4E2M1x2> = bytes.iter().copied().map(F4E2M1x2).collect();
    let scales = [F8E8M0(127); 16];
    let args = Dequantize::new(
        view(&packed, &[1, 256]),
        view(&scales, &[1, 16]),
        DequantizeFormat::Mxfp4,
        DequantizeGranularity::Block,
    );
    let decoded = values::<f32>(&dequantize(&crate::reference_engine(), args).unwrap().output);
    assert_eq!(decoded[2 * 0xf1..2 * 0xf1 + 2], [0.5, -6.0]);
    let first: Vec<f32> = (0..8u8).map(|code| decoded[2 * usize::from(code)]).collect();
    assert_eq!(first, [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]);
    let args = Quantize::new(view(&decoded, &[1, 512]), QuantizeFormat::Mxfp4, QuantizeGranularity::Block)
        .scale(view(&scales, &[1, 16]));
    assert_eq!(values::<F4E2M1x2>(&quantize(&crate::reference_engine(), args).unwrap().quantized), packed);
}

#[test]
fn integers_round_half_to_even_and_saturate() {
    let x =
        [0.5f32, 1.5, 2.5, -0.5, -1.5, 126.5, 127.5, 1e30, -128.5, -129.0, f32::INFINITY, f32::NEG_INFINITY];
    let found = values::<i8>(&quantize_row(&x, QuantizeFormat::Int8, 1.0, None));
    assert_eq!(found, [0, 2, 2, 0, -2, 126, 127, 127, -128, -128, 127, -128]);
    let found =
        values::<i8>(&quantize_row(&[10.0, -10.0, f32::NAN, 0.0], QuantizeFormat::Int8, 0.5, Some(100)));
    assert_eq!(found, [120, 80, 100, 100], "NaN counts as 0, which the zero point moves");
    let found = values::<i8>(&quantize_row(&[1e30, -1e30, 5.0], QuantizeFormat::Int8, 1.0, Some(i32::MIN)));
    assert_eq!(found, [127, -128, -128]);
    let found = values::<i8>(&quantize_row(&[1.0, -1.0, 0.0], QuantizeFormat::Int8, 0.0, None));
    assert_eq!(found, [127, -128, 0], "a scale of 0 gives infinities and 0/0");
}

#[test]
fn unsigned_integers_saturate_at_zero_and_have_zero_points() {
    let x = [0.5f32, 1.5, -0.5, -1.0, 254.5, 255.5, 1e30, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
    let found = values::<u8>(&quantize_row(&x, QuantizeFormat::Uint8, 1.0, None));
    assert_eq!(found, [0, 2, 0, 0, 254, 255, 255, 255, 0, 0]);
    // The first case of ONNX's QuantizeLinear.
    let x = [0.0f32, 2.0, 3.0, 1000.0, -254.0, -1000.0, f32::NAN];
    let found = values::<u8>(&quantize_row(&x, QuantizeFormat::Uint8, 2.0, Some(128)));
    assert_eq!(found, [128, 129, 130, 255, 1, 0, 128]);
    let found = values::<u8>(&quantize_row(&[1e30, -1e30, 5.0], QuantizeFormat::Uint8, 1.0, Some(i32::MIN)));
    assert_eq!(found, [255, 0, 0]);
    // Codes 8, 9, 15 (saturated), 0 (saturated), 7.
    let x = [0.0f32, 2.0, 100.0, -100.0, -2.0];
    let found = values::<u8>(&quantize_row(&x, QuantizeFormat::Uint4, 2.0, Some(8)));
    assert_eq!(found, [0x98, 0x0f, 0x07], "the last high nibble is 0");
}

#[test]
fn every_unsigned_code_round_trips() {
    let bytes: Vec<u8> = (0..=255).collect();
    let decoded = dequantize_row(view(&bytes, &[1, 256]), DequantizeFormat::Uint8);
    assert!(decoded.iter().zip(&bytes).all(|(&value, &code)| value == f32::from(code)));
    assert_eq!(values::<u8>(&quantize_row(&decoded, QuantizeFormat::Uint8, 1.0, None)), bytes);
    let decoded = dequantize_row(view(&bytes, &[1, 256]), DequantizeFormat::Uint4);
    assert_eq!(decoded[2 * 0x8f..2 * 0x8f + 2], [15.0, 8.0], "the low nibble is the first element");
    assert_eq!(values::<u8>(&quantize_row(&decoded, QuantizeFormat::Uint4, 1.0, None)), bytes);
}

#[test]
fn sixteen_bits_saturate_and_round_trip() {
    let x = [32767.5f32, 1e30, -32768.5, -1e30, 0.5, 1.5, f32::NAN];
    let found = values::<i16>(&quantize_row(&x, QuantizeFormat::Int16, 1.0, None));
    assert_eq!(found, [32767, 32767, -32768, -32768, 0, 2, 0]);
    let x = [0.0f32, -128.0, 3.0, -3.0, 65535.0, -70000.0, 1e30];
    let found = values::<u16>(&quantize_row(&x, QuantizeFormat::Uint16, 2.0, Some(32767)));
    assert_eq!(found, [32767, 32703, 32769, 32765, 65535, 0, 65535]);
    let codes: Vec<u16> = (0..=u16::MAX).collect();
    let decoded = dequantize_row(view(&codes, &[1, 65536]), DequantizeFormat::Uint16);
    assert!(decoded.iter().zip(&codes).all(|(&value, &code)| value == f32::from(code)));
    assert_eq!(values::<u16>(&quantize_row(&decoded, QuantizeFormat::Uint16, 1.0, None)), codes);
    let codes: Vec<i16> = (i16::MIN..=i16::MAX).collect();
    let decoded = dequantize_row(view(&codes, &[1, 65536]), DequantizeFormat::Int16);
    assert!(decoded.iter().zip(&codes).all(|(&value, &code)| value == f32::from(code)));
    assert_eq!(values::<i16>(&quantize_row(&decoded, QuantizeFormat::Int16, 1.0, None)), codes);
}

#[test]
fn four_codes_of_two_bits_are_in_a_byte() {
    let bytes: Vec<u8> = (0..=255).collect();
    let decoded = dequantize_row(view(&bytes, &[1, 256]), DequantizeFormat::Int2);
    assert_eq!(
        decoded[4 * 0b11_10_01_00..][..4],
        [0.0, 1.0, -2.0, -1.0],
        "the lowest bits are the first element"
    );
    assert_eq!(values::<u8>(&quantize_row(&decoded, QuantizeFormat::Int2, 1.0, None)), bytes);
    let decoded = dequantize_row(view(&bytes, &[1, 256]), DequantizeFormat::Uint2);
    assert_eq!(decoded[4 * 0b11_10_01_00..][..4], [0.0, 1.0, 2.0, 3.0]);
    assert_eq!(values::<u8>(&quantize_row(&decoded, QuantizeFormat::Uint2, 1.0, None)), bytes);
    // Codes 1 (saturated), -2 (saturated), -1, 0 and 1.
    let x = [9.0f32, -9.0, -1.0, 0.5, 1.0];
    let found = values::<u8>(&quantize_row(&x, QuantizeFormat::Int2, 1.0, None));
    assert_eq!(found, [0b00_11_10_01, 0b01], "unused bits are 0");
    // With three elements, the last code of the byte is not read.
    let scale = [2.0f32];
    let args = Dequantize::new(
        view(&[0b11_10_01_00u8], &[1, 1]),
        view(&scale, &[]),
        DequantizeFormat::Uint2,
        DequantizeGranularity::Tensor,
    );
    for (inner, ok) in [(0, false), (1, true), (3, true), (4, true), (5, false)] {
        let result = dequantize(&crate::reference_engine(), args.inner(inner));
        assert_eq!(result.is_ok(), ok, "{inner}");
    }
    let output = dequantize(&crate::reference_engine(), args.inner(3)).unwrap().output;
    assert_eq!(values::<f32>(&output), [0.0, 2.0, 4.0]);
}

#[test]
fn unsigned_formats_require_scales() {
    let x = [1.0f32, -1.0];
    for format in
        [QuantizeFormat::Uint8, QuantizeFormat::Uint4, QuantizeFormat::Uint16, QuantizeFormat::Uint2]
    {
        let args = Quantize::new(view(&x, &[1, 2]), format, QuantizeGranularity::Tensor);
        let error = quantize(&crate::reference_engine(), args).unwrap_err();
        assert!(error.has(ReasonCode::QuantScaleMissing), "{error}");
    }
}

#[test]
fn quotient_is_rounded_to_f32_first() {
    // 0.1 / 0.04 is 2.5 in f32 and just above it in exact arithmetic on these f32 values.
    let (x, scale) = (0.1f32, 0.04f32);
    assert!(f64::from(x) / f64::from(scale) != 2.5 && x / scale == 2.5);
    assert_eq!(values::<i8>(&quantize_row(&[x], QuantizeFormat::Int8, scale, None)), [2]);
}

#[test]
fn small_floats_saturate_and_only_fp8_keeps_nan() {
    let x = [1e9f32, f32::NEG_INFINITY, f32::NAN, 464.0, 17.0, 19.0];
    let found = values::<F8E4M3>(&quantize_row(&x, QuantizeFormat::Fp8E4m3, 1.0, None));
    let found: Vec<f64> = found.iter().map(|code| f8_e4m3_to_f64(code.0)).collect();
    assert_eq!(found[..2], [448.0, -448.0]);
    assert!(found[2].is_nan());
    assert_eq!(found[3..], [448.0, 16.0, 20.0], "ties go to the even mantissa");

    // 0.25, 0.75, 1.25, 1.75, 2.5, 3.5 and 5 are the ties of e2m1.
    let x = [0.25f32, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 7.0, -1e9, f32::NAN, f32::INFINITY];
    let scales = [F8E8M0(127)];
    let args = Quantize::new(view(&x, &[1, 11]), QuantizeFormat::Mxfp4, QuantizeGranularity::Block)
        .scale(view(&scales, &[1, 1]));
    let packed = values::<F4E2M1x2>(&quantize(&crate::reference_engine(), args).unwrap().quantized);
    let bytes: Vec<u8> = packed.iter().map(|pair| pair.0).collect();
    assert_eq!(bytes, [0x20, 0x42, 0x64, 0x76, 0x0f, 0x07], "0 1 1 2 2 4 4 6 -6 0 6, then an empty nibble");
}

#[test]
fn an_odd_row_ends_in_an_empty_nibble() {
    let x = [1.0f32, -2.0, 3.0, -4.0, 5.0, -6.0];
    let scale = [1.0f32, 2.0];
    let args = Quantize::new(view(&x, &[2, 3]), QuantizeFormat::Int4, QuantizeGranularity::Channel)
        .scale(view(&scale, &[2]));
    let result = quantize(&crate::reference_engine(), args).unwrap();
    assert_eq!(result.quantized.shape(), [2, 2]);
    // -4 / 2, 5 / 2 (a tie) and -6 / 2.
    assert_eq!(values::<u8>(&result.quantized), [0xe1, 0x03, 0x2e, 0x0d]);
    let quantized = result.quantized.view();
    let scale = view(&scale, &[2]);
    let args =
        Dequantize::new(quantized, scale, DequantizeFormat::Int4, DequantizeGranularity::Channel).inner(3);
    let result = dequantize(&crate::reference_engine(), args).unwrap();
    assert_eq!(values::<f32>(&result.output), [1.0, -2.0, 3.0, -4.0, 4.0, -6.0]);
    let args =
        Dequantize::new(quantized, scale, DequantizeFormat::Int4, DequantizeGranularity::Channel).inner(5);
    assert!(dequantize(&crate::reference_engine(), args).unwrap_err().has(ReasonCode::ShapeMismatch));
}

#[test]
fn dequantize_with_zero_points_and_narrow_outputs() {
    let stored = [-128i8, 0, 127, 3];
    let (scale, zero_point) = ([0.1f32, 2.0], [-128i32, 1]);
    let args = Dequantize::new(
        view(&stored, &[2, 2]),
        view(&scale, &[2]),
        DequantizeFormat::Int8,
        DequantizeGranularity::Head,
    )
    .zero_point(view(&zero_point, &[2]))
    .output_dtype(DequantizeOutputDtype::Bf16);
    let result = dequantize(&crate::reference_engine(), args).unwrap();
    assert_eq!(values::<bf16>(&result.output), [0.0, 12.8, 252.0, 4.0].map(bf16::from_f32));
}

#[test]
fn strided_inputs_are_followed() {
    let x = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0];
    let args =
        Quantize::new(strided(&x, 0, &[3, 2], &[1, 3]), QuantizeFormat::Int8, QuantizeGranularity::Tensor)
            .scale(view(&ONE, &[]));
    let result = quantize(&crate::reference_engine(), args).unwrap();
    assert_eq!(values::<i8>(&result.quantized), [1, 4, 2, 5, 3, 6]);
}
