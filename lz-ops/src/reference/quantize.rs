//! Reference of `quantize`: computes scales group by group, then divides every element by its scale. Each
//! step is rounded to f32, as the schema specifies.

use lz_core::KernelError;
use lz_core::element::{f64_to_f4_e2m1, f64_to_f8_e4m3};
use lz_core::tensor::{Dims, Indices};

use crate::reference::groups::{Groups, set_packed_code};
use crate::{QuantizeCall, QuantizeFormat as Format, QuantizeGranularity, QuantizeOut};

/// Runs the operation.
pub fn run(call: &QuantizeCall<'_>, mut out: QuantizeOut<'_>) -> Result<(), KernelError> {
    let groups = match call.granularity {
        QuantizeGranularity::Tensor => Groups::Tensor,
        QuantizeGranularity::Channel | QuantizeGranularity::Head => Groups::Channel,
        QuantizeGranularity::Block => Groups::Block(call.block_size),
    };
    let global_scale = call.global_scale.map_or(1.0, |tensor| tensor.at(&[]) as f32);
    if let Some(scales) = &mut out.scale_out {
        let scales_shape = scales.layout().shape;
        for group in Indices::new(&scales_shape) {
            let largest = largest(call, groups, group);
            let scale = scale_of(call.format, largest, global_scale)?;
            scales.set(&group, f64::from(scale));
        }
    }
    for element in Indices::new(call.x.shape()) {
        let group = groups.of(&element);
        // Computed scales are read back, so that values are divided by the stored scale.
        let scale = match (&call.scale, &out.scale_out) {
            (Some(given), _) => given.at(&group) as f32,
            (None, Some(computed)) => computed.as_view().at(&group) as f32,
            (None, None) => {
                return Err(KernelError::failed(
                    "the call has neither `scale` nor an output for `scale_out`",
                ));
            }
        };
        let x = call.x.at(&element) as f32;
        let quotient = match call.format {
            Format::Nvfp4 => x / (scale / global_scale),
            _ => x / scale,
        };
        let zero_point = call.zero_point.map_or(0, |tensor| tensor.int_at(&group));
        let integer = |lowest, highest| integer(quotient, zero_point, lowest, highest);
        match call.format {
            Format::Int8 => out.quantized.set_int(&element, integer(-128, 127)),
            Format::Uint8 => out.quantized.set_int(&element, integer(0, 255)),
            Format::Int16 => out.quantized.set_int(&element, integer(-32768, 32767)),
            Format::Uint16 => out.quantized.set_int(&element, integer(0, 65535)),
            Format::Int4 => set_packed_code::<4>(&mut out.quantized, &element, integer(-8, 7)),
            Format::Uint4 => set_packed_code::<4>(&mut out.quantized, &element, integer(0, 15)),
            Format::Int2 => set_packed_code::<2>(&mut out.quantized, &element, integer(-2, 1)),
            Format::Uint2 => set_packed_code::<2>(&mut out.quantized, &element, integer(0, 3)),
            // Stores to both FP8 formats round to nearest even, saturate and keep NaN.
            Format::Fp8E4m3 | Format::Fp8E5m2 => out.quantized.set(&element, f64::from(quotient)),
            // The encoding maps NaN to 0.
            Format::Mxfp4 | Format::Nvfp4 => {
                let code = f64_to_f4_e2m1(f64::from(quotient));
                set_packed_code::<4>(&mut out.quantized, &element, code.into());
            }
        }
    }
    Ok(())
}

/// Rounds half to even, adds the zero point and saturates; NaN becomes 0.
fn integer(quotient: f32, zero_point: i64, lowest: i64, highest: i64) -> i64 {
    // The cast saturates and turns NaN to 0; the clamp keeps the sum exact and is far outside every format.
    let rounded = (quotient.round_ties_even() as i64).clamp(-(1 << 62), 1 << 62);
    (rounded + zero_point).clamp(lowest, highest)
}

/// Absolute maximum of a group: 0 if empty, NaN if an element is NaN.
fn largest(call: &QuantizeCall<'_>, groups: Groups, group: Dims) -> f32 {
    let (start, sizes) = groups.extent(&group, call.x.shape());
    let mut largest = 0f32;
    for inside in Indices::new(&sizes) {
        let element: Vec<i64> = start.iter().zip(inside.iter()).map(|(start, step)| start + step).collect();
        let value = (call.x.at(&element) as f32).abs();
        if value > largest || value.is_nan() {
            largest = value;
        }
        if largest.is_nan() {
            break;
        }
    }
    largest
}

/// The scale of a group with this absolute maximum.
fn scale_of(format: Format, largest: f32, global_scale: f32) -> Result<f32, KernelError> {
    if largest == 0.0 {
        return Ok(1.0);
    }
    if largest.is_nan() {
        return Ok(f32::NAN);
    }
    let smallest = f32::from_bits(1);
    Ok(match format {
        Format::Int8 => (largest / 127.0).max(smallest),
        Format::Int4 => (largest / 7.0).max(smallest),
        Format::Int16 => (largest / 32767.0).max(smallest),
        Format::Int2 => largest,
        Format::Uint8 | Format::Uint4 | Format::Uint16 | Format::Uint2 => {
            return Err(KernelError::failed("unsigned formats require `scale`"));
        }
        Format::Fp8E4m3 => (largest / 448.0).max(smallest),
        Format::Fp8E5m2 => (largest / 57344.0).max(smallest),
        Format::Mxfp4 => {
            // Every f32 is a normal f64, so the exponent field is floor(log2); that of infinity is 1024.
            let floor_log2 = (f64::from(largest).to_bits() >> 52) as i32 - 1023;
            2f64.powi((floor_log2 - 2).clamp(-127, 127)) as f32
        }
        Format::Nvfp4 => {
            let scale = largest / 6.0 * global_scale;
            let rounds_to_zero = f64_to_f8_e4m3(f64::from(scale)) & 0x7f == 0;
            if rounds_to_zero { 2f32.powi(-9) } else { scale }
        }
    })
}
