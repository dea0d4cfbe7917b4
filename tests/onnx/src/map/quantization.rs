//! `QuantizeLinear`, `DequantizeLinear`, and casts to and from small formats, which have scale 1.

use super::arguments::Arguments;
use super::tensors::{bytes_of, float_as, from_bytes, named, named_bytes};
use super::{MapError, MappedCall, MappedOutput, unsupported};
use crate::number::{E4M3FN, decode_e8m0};
use crate::tensor::{DataType, NamedTensor, ToF64};
use lz_core::{DType, Tensor};
use lz_ops::{
    Dequantize, DequantizeFormat, DequantizeGranularity, DequantizeOutputDtype, Quantize, QuantizeFormat,
    QuantizeGranularity,
};

/// A quantization format and the ONNX type it stores.
#[derive(Clone, Copy, PartialEq)]
enum Format {
    Int4,
    E4m3,
    E5m2,
    /// `FLOAT4E2M1` with a power-of-two scale per 32 elements.
    Mxfp4,
    /// `FLOAT4E2M1` with an e4m3 scale per 16 elements.
    Nvfp4,
}

/// Which elements share a scale.
struct Groups {
    /// Elements before the axis of the scales, along it, and after it.
    shape: [usize; 3],
    /// A scale per index along the axis, or one for all.
    scales: Vec<f64>,
    zero_points: Option<Vec<f64>>,
}

/// Scales and zero points in the form that a format requires.
struct Scales {
    scale: Tensor,
    zero_point: Option<Tensor>,
    granularity: QuantizeGranularity,
}

impl Format {
    /// The formats that store a type.
    fn of(data_type: DataType) -> Result<&'static [Format], MapError> {
        match data_type {
            DataType::Int4 => Ok(&[Format::Int4]),
            DataType::Float8E4M3fn => Ok(&[Format::E4m3]),
            DataType::Float8E5M2 => Ok(&[Format::E5m2]),
            DataType::Float4E2M1 => Ok(&[Format::Mxfp4, Format::Nvfp4]),
            other => Err(unsupported(format!("no quantization format stores {other:?}"))),
        }
    }

    /// Number of adjacent elements that share a scale, if the format fixes it.
    fn block(self) -> Option<usize> {
        match self {
            Self::Mxfp4 => Some(32),
            Self::Nvfp4 => Some(16),
            _ => None,
        }
    }

    fn to_quantize(self) -> QuantizeFormat {
        match self {
            Self::Int4 => QuantizeFormat::Int4,
            Self::E4m3 => QuantizeFormat::Fp8E4m3,
            Self::E5m2 => QuantizeFormat::Fp8E5m2,
            Self::Mxfp4 => QuantizeFormat::Mxfp4,
            Self::Nvfp4 => QuantizeFormat::Nvfp4,
        }
    }

    fn to_dequantize(self) -> DequantizeFormat {
        match self {
            Self::Int4 => DequantizeFormat::Int4,
            Self::E4m3 => DequantizeFormat::Fp8E4m3,
            Self::E5m2 => DequantizeFormat::Fp8E5m2,
            Self::Mxfp4 => DequantizeFormat::Mxfp4,
            Self::Nvfp4 => DequantizeFormat::Nvfp4,
        }
    }

    /// Scales and zero points for these groups; `None` if the format cannot represent them.
    fn scales(self, groups: &Groups) -> Result<Option<Scales>, MapError> {
        let [outer, channels, inner] = groups.shape;
        let Some(block) = self.block() else {
            let per_tensor = groups.scales.len() == 1;
            let shape = if per_tensor { vec![] } else { vec![channels as i64] };
            let scales: Vec<f32> = groups.scales.iter().map(|&scale| scale as f32).collect();
            let zero_point = match &groups.zero_points {
                Some(points) if self == Self::Int4 => {
                    let points: Vec<i32> = points.iter().map(|&point| point as i32).collect();
                    Some(Tensor::from_slice(&points, &shape)?)
                }
                points => {
                    no_zero_points(points.as_deref())?;
                    None
                }
            };
            let granularity =
                if per_tensor { QuantizeGranularity::Tensor } else { QuantizeGranularity::Channel };
            return Ok(Some(Scales { scale: Tensor::from_slice(&scales, &shape)?, zero_point, granularity }));
        };
        no_zero_points(groups.zero_points.as_deref())?;
        let blocks = inner.div_ceil(block);
        let (dtype, decode): (_, fn(u8) -> f64) = match self {
            Self::Mxfp4 => (DType::F8E8M0, decode_e8m0),
            _ => (DType::F8E4M3, |code| E4M3FN.decode(code)),
        };
        let mut codes = Vec::new();
        for channel in (0..outer).flat_map(|_| 0..channels) {
            let scale = groups.scales.get(channel).or(groups.scales.first()).copied().unwrap_or(f64::NAN);
            let Some(code) = (0..=u8::MAX).find(|&code| decode(code) == scale) else { return Ok(None) };
            codes.extend(std::iter::repeat_n(code, blocks));
        }
        let shape = [outer as i64, channels as i64, blocks as i64];
        let scale = from_bytes(&codes, dtype, &shape)?;
        Ok(Some(Scales { scale, zero_point: None, granularity: QuantizeGranularity::Block }))
    }
}

fn no_zero_points(points: Option<&[f64]>) -> Result<(), MapError> {
    match points {
        Some(points) if points.iter().any(|&point| point != 0.0) => {
            Err(unsupported("zero points of a float format"))
        }
        _ => Ok(()),
    }
}

impl Groups {
    /// One scale for all elements.
    fn whole(elements: usize, scale: f64) -> Self {
        Self { shape: [1, 1, elements], scales: vec![scale], zero_points: None }
    }

    /// The common part of `QuantizeLinear` and `DequantizeLinear`: inputs 1 and 2, `axis` and `block_size`.
    fn read(arguments: &Arguments<'_>) -> Result<Self, MapError> {
        let (x, scale) = (arguments.input(0)?, arguments.input(1)?);
        if arguments.int("block_size", 0)? != 0 {
            return Err(unsupported("blocks along any dimension"));
        }
        let values = |named: &NamedTensor| {
            named.to_f64().ok_or_else(|| unsupported(format!("`{}` is not a number", named.name)))
        };
        let mut groups = match scale.shape.as_slice() {
            [] | [1] => Self::whole(x.element_count(), 0.0),
            _ => {
                let axis = arguments.axis(1, x.shape.len())?;
                let product = |sizes: &[usize]| sizes.iter().product();
                let (outer, from_axis) = x.shape.split_at(axis);
                let (channels, inner) = from_axis.split_at(1);
                let shape = [product(outer), product(channels), product(inner)];
                Self { shape, scales: Vec::new(), zero_points: None }
            }
        };
        groups.scales = values(scale)?;
        groups.zero_points = arguments.optional(2).map(values).transpose()?;
        Ok(groups)
    }
}

/// `QuantizeLinear` maps to `quantize` with given scales.
pub fn quantize_linear(arguments: &Arguments<'_>) -> Result<Vec<MappedCall>, MapError> {
    arguments.only(&["axis", "block_size", "output_dtype", "precision", "saturate"], 3)?;
    if arguments.int("precision", 0)? != 0 || arguments.int("saturate", 1)? != 1 {
        return Err(unsupported("a division of another type, or no saturation"));
    }
    let data_type = match arguments.optional(2) {
        Some(zero_point) => zero_point.data_type,
        None => type_of_code(arguments.int("output_dtype", 2)?)?,
    };
    quantize(arguments.input(0)?, data_type, &Groups::read(arguments)?)
}

/// `DequantizeLinear` maps to `dequantize`.
pub fn dequantize_linear(arguments: &Arguments<'_>) -> Result<Vec<MappedCall>, MapError> {
    arguments.only(&["axis", "block_size", "output_dtype"], 3)?;
    let data_type = match arguments.int("output_dtype", 0)? {
        0 => arguments.input(1)?.data_type,
        code => type_of_code(code)?,
    };
    dequantize(arguments.input(0)?, data_type, &Groups::read(arguments)?)
}

/// `Cast` to or from a small float, or from a 4-bit integer.
pub fn cast(arguments: &Arguments<'_>) -> Result<Vec<MappedCall>, MapError> {
    arguments.only(&["round_mode", "saturate", "to"], 1)?;
    convert(arguments, type_of_code(arguments.int("to", 0)?)?)
}

/// `CastLike`: the second input only determines the type.
pub fn cast_like(arguments: &Arguments<'_>) -> Result<Vec<MappedCall>, MapError> {
    arguments.only(&["round_mode", "saturate"], 2)?;
    convert(arguments, arguments.input(1)?.data_type)
}

fn convert(arguments: &Arguments<'_>, to: DataType) -> Result<Vec<MappedCall>, MapError> {
    let x = arguments.input(0)?;
    let groups = Groups::whole(x.element_count(), 1.0);
    if Format::of(x.data_type).is_ok() {
        return dequantize(x, to, &groups);
    }
    if to == DataType::Int4 {
        return Err(unsupported("a cast to an integer wraps around"));
    }
    if arguments.int("saturate", 1)? != 1 {
        return Err(unsupported("no saturation"));
    }
    quantize(x, to, &groups)
}

fn type_of_code(code: i64) -> Result<DataType, MapError> {
    DataType::from_code(code).ok_or_else(|| unsupported(format!("the type {code}")))
}

fn quantize(x: &NamedTensor, to: DataType, groups: &Groups) -> Result<Vec<MappedCall>, MapError> {
    let mut calls = Vec::new();
    for &format in Format::of(to)? {
        let Some(Scales { scale, zero_point, granularity }) = format.scales(groups)? else { continue };
        let input = float_as(x, &groups.shape.map(|size| size as i64))?;
        let ([_, _, inner], shape) = (groups.shape, x.shape.clone());
        calls.push(MappedCall::new("quantize", move |engine| {
            let mut call = Quantize::new(input.view(), format.to_quantize(), granularity).scale(scale.view());
            call.zero_point = zero_point.as_ref().map(Tensor::view);
            let stored = lz_ops::quantize(engine, call)?.quantized;
            let bytes = match to.bits() {
                4 => packed(&nibbles(stored.bytes(), inner)),
                _ => stored.bytes().to_vec(),
            };
            Ok(vec![MappedOutput { output: 0, tensor: named_bytes(bytes, to, &shape)? }])
        }));
    }
    non_empty(calls)
}

fn dequantize(x: &NamedTensor, to: DataType, groups: &Groups) -> Result<Vec<MappedCall>, MapError> {
    let output_dtype = match to {
        DataType::Float => DequantizeOutputDtype::F32,
        DataType::Float16 => DequantizeOutputDtype::F16,
        DataType::Bfloat16 => DequantizeOutputDtype::Bf16,
        other => return Err(unsupported(format!("{other:?} from a small format"))),
    };
    let mut calls = Vec::new();
    for &format in Format::of(x.data_type)? {
        let Some(Scales { scale, zero_point, granularity }) = format.scales(groups)? else { continue };
        let [outer, channels, inner] = groups.shape;
        let (bytes, dtype) = match (format, x.unpacked()) {
            (Format::E4m3, _) => (bytes_of(x)?.to_vec(), DType::F8E4M3),
            (Format::E5m2, _) => (bytes_of(x)?.to_vec(), DType::F8E5M2),
            (Format::Int4, Some(codes)) => (rows_packed(&codes, inner), DType::U8),
            (_, Some(codes)) => (rows_packed(&codes, inner), DType::F4E2M1x2),
            (_, None) => return Err(unsupported("codes that are not nibbles")),
        };
        let stored_row = if x.data_type.bits() == 4 { inner.div_ceil(2) } else { inner };
        let stored = from_bytes(&bytes, dtype, &[outer as i64, channels as i64, stored_row as i64])?;
        let granularity = match granularity {
            QuantizeGranularity::Tensor => DequantizeGranularity::Tensor,
            QuantizeGranularity::Block => DequantizeGranularity::Block,
            _ => DequantizeGranularity::Channel,
        };
        let shape = x.shape.clone();
        calls.push(MappedCall::new("dequantize", move |engine| {
            let mut call = Dequantize::new(stored.view(), scale.view(), format.to_dequantize(), granularity)
                .inner(inner as i64)
                .output_dtype(output_dtype);
            call.zero_point = zero_point.as_ref().map(Tensor::view);
            let result = lz_ops::dequantize(engine, call)?;
            Ok(vec![MappedOutput { output: 0, tensor: named(&result.output, &shape)? }])
        }));
    }
    non_empty(calls)
}

/// Requires that at least one format can represent the scales.
fn non_empty(calls: Vec<MappedCall>) -> Result<Vec<MappedCall>, MapError> {
    if calls.is_empty() { Err(unsupported("scales that the format cannot represent")) } else { Ok(calls) }
}

/// Packs two codes per byte, the first in the low nibble; an odd last one is padded with 0.
fn packed(codes: &[u8]) -> Vec<u8> {
    codes.chunks(2).map(|pair| pair.iter().rev().fold(0, |byte, code| byte << 4 | code)).collect()
}

/// The same, with each row starting at a byte, as `quantize` stores it.
fn rows_packed(codes: &[u8], inner: usize) -> Vec<u8> {
    codes.chunks(inner.max(1)).flat_map(packed).collect()
}

/// The codes of rows that each start at a byte.
fn nibbles(bytes: &[u8], inner: usize) -> Vec<u8> {
    let rows = bytes.chunks(inner.div_ceil(2).max(1));
    rows.flat_map(|row| row.iter().flat_map(|byte| [byte & 15, byte >> 4]).take(inner)).collect()
}
