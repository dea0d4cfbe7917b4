//! `QuantizeLinear`, `DequantizeLinear`, and casts to and from small formats, which have scale 1.

use super::arguments::Arguments;
use super::tensors::{bytes_of, float_as, from_bytes, named_bytes};
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
    Int8,
    Uint8,
    Int4,
    Uint4,
    Int16,
    Uint16,
    Int2,
    Uint2,
    E4m3,
    E5m2,
    /// `FLOAT4E2M1` with a power-of-two scale per 32 elements.
    Mxfp4,
    /// `FLOAT4E2M1` with an e4m3 scale per 16 elements.
    Nvfp4,
}

/// Which elements share a scale.
#[derive(Clone)]
struct Groups {
    /// Elements before the axis of the scales, along it, and after it.
    shape: [usize; 3],
    /// Adjacent indices along the axis that share a scale. `None` is a scale per index along the axis, or one for all.
    block: Option<usize>,
    /// In the order of the scales; blocks have one per index before the axis, block, and index after it.
    scales: Vec<f64>,
    zero_points: Option<Vec<f64>>,
}

/// Scales and zero points in the form that a format requires.
struct Scales {
    scale: Tensor,
    zero_point: Option<Tensor>,
    granularity: QuantizeGranularity,
    block_size: Option<i64>,
}

impl Format {
    /// The formats that store a type.
    fn of(data_type: DataType) -> Result<&'static [Format], MapError> {
        match data_type {
            DataType::Int8 => Ok(&[Format::Int8]),
            DataType::Uint8 => Ok(&[Format::Uint8]),
            DataType::Int4 => Ok(&[Format::Int4]),
            DataType::Uint4 => Ok(&[Format::Uint4]),
            DataType::Int16 => Ok(&[Format::Int16]),
            DataType::Uint16 => Ok(&[Format::Uint16]),
            DataType::Int2 => Ok(&[Format::Int2]),
            DataType::Uint2 => Ok(&[Format::Uint2]),
            DataType::Float8E4M3fn => Ok(&[Format::E4m3]),
            DataType::Float8E5M2 => Ok(&[Format::E5m2]),
            DataType::Float4E2M1 => Ok(&[Format::Mxfp4, Format::Nvfp4]),
            other => Err(unsupported(format!("no quantization format stores {other:?}"))),
        }
    }

    /// Whether the stored values are integers, which have zero points.
    fn is_integer(self) -> bool {
        !matches!(self, Self::E4m3 | Self::E5m2 | Self::Mxfp4 | Self::Nvfp4)
    }

    /// The dtype of the stored values.
    fn dtype(self) -> DType {
        match self {
            Self::Int8 => DType::I8,
            Self::Uint8 | Self::Int4 | Self::Uint4 | Self::Int2 | Self::Uint2 => DType::U8,
            Self::Int16 => DType::I16,
            Self::Uint16 => DType::U16,
            Self::E4m3 => DType::F8E4M3,
            Self::E5m2 => DType::F8E5M2,
            Self::Mxfp4 | Self::Nvfp4 => DType::F4E2M1x2,
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
            Self::Int8 => QuantizeFormat::Int8,
            Self::Uint8 => QuantizeFormat::Uint8,
            Self::Int4 => QuantizeFormat::Int4,
            Self::Uint4 => QuantizeFormat::Uint4,
            Self::Int16 => QuantizeFormat::Int16,
            Self::Uint16 => QuantizeFormat::Uint16,
            Self::Int2 => QuantizeFormat::Int2,
            Self::Uint2 => QuantizeFormat::Uint2,
            Self::E4m3 => QuantizeFormat::Fp8E4m3,
            Self::E5m2 => QuantizeFormat::Fp8E5m2,
            Self::Mxfp4 => QuantizeFormat::Mxfp4,
            Self::Nvfp4 => QuantizeFormat::Nvfp4,
        }
    }

    fn to_dequantize(self) -> DequantizeFormat {
        match self {
            Self::Int8 => DequantizeFormat::Int8,
            Self::Uint8 => DequantizeFormat::Uint8,
            Self::Int4 => DequantizeFormat::Int4,
            Self::Uint4 => DequantizeFormat::Uint4,
            Self::Int16 => DequantizeFormat::Int16,
            Self::Uint16 => DequantizeFormat::Uint16,
            Self::Int2 => DequantizeFormat::Int2,
            Self::Uint2 => DequantizeFormat::Uint2,
            Self::E4m3 => DequantizeFormat::Fp8E4m3,
            Self::E5m2 => DequantizeFormat::Fp8E5m2,
            Self::Mxfp4 => DequantizeFormat::Mxfp4,
            Self::Nvfp4 => DequantizeFormat::Nvfp4,
        }
    }

    /// Scales and zero points for these groups; `None` if the format cannot represent them.
    fn scales(self, groups: &Groups) -> Result<Option<Scales>, MapError> {
        let [outer, channels, inner] = groups.operation_shape();
        let Some(block) = self.block() else {
            let (granularity, shape) = match groups.block {
                Some(block) => {
                    let shape = [outer, channels, inner.div_ceil(block)].map(|size| size as i64);
                    (QuantizeGranularity::Block, shape.to_vec())
                }
                None if groups.scales.len() == 1 => (QuantizeGranularity::Tensor, vec![]),
                None => (QuantizeGranularity::Channel, vec![channels as i64]),
            };
            let scales: Vec<f32> =
                groups.by_group(&groups.scales).iter().map(|&scale| scale as f32).collect();
            let zero_point = match &groups.zero_points {
                Some(points) if self.is_integer() => {
                    let points: Vec<i32> =
                        groups.by_group(points).iter().map(|&point| point as i32).collect();
                    Some(Tensor::from_slice(&points, &shape)?)
                }
                points => {
                    no_zero_points(points.as_deref())?;
                    None
                }
            };
            let scale = Tensor::from_slice(&scales, &shape)?;
            let block_size = groups.block.map(|size| size as i64);
            return Ok(Some(Scales { scale, zero_point, granularity, block_size }));
        };
        if groups.block.is_some() {
            return Err(unsupported("blocks of a size that the format does not have"));
        }
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
        let granularity = QuantizeGranularity::Block;
        Ok(Some(Scales { scale, zero_point: None, granularity, block_size: None }))
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
        Self { shape: [1, 1, elements], block: None, scales: vec![scale], zero_points: None }
    }

    /// The shape in which the operation has the elements: blocks are along its last dimension.
    fn operation_shape(&self) -> [usize; 3] {
        let [outer, along, after] = self.shape;
        if self.block.is_some() { [outer, after, along] } else { self.shape }
    }

    /// Elements of `size` bytes in the order of the operation.
    fn by_operation(&self, bytes: &[u8], size: usize) -> Vec<u8> {
        if self.block.is_some() { swapped(bytes, size, self.shape) } else { bytes.to_vec() }
    }

    /// Elements of `size` bytes in the order of the node.
    fn by_node(&self, bytes: &[u8], size: usize) -> Vec<u8> {
        if self.block.is_some() { swapped(bytes, size, self.operation_shape()) } else { bytes.to_vec() }
    }

    /// Scales or zero points in the order of the operation.
    fn by_group(&self, values: &[f64]) -> Vec<f64> {
        match self.block {
            None => values.to_vec(),
            Some(block) => {
                let [outer, along, after] = self.shape;
                swapped(values, 1, [outer, along.div_ceil(block), after])
            }
        }
    }

    /// The common part of `QuantizeLinear` and `DequantizeLinear`: inputs 1 and 2, `axis` and `block_size`.
    fn read(arguments: &Arguments<'_>) -> Result<Self, MapError> {
        let (x, scale) = (arguments.input(0)?, arguments.input(1)?);
        let block = arguments.int("block_size", 0)?;
        let values = |named: &NamedTensor| {
            named.to_f64().ok_or_else(|| unsupported(format!("`{}` is not a number", named.name)))
        };
        let mut groups = match scale.shape.as_slice() {
            [] | [1] if block == 0 => Self::whole(x.element_count(), 0.0),
            _ => {
                let axis = arguments.axis(1, x.shape.len())?;
                let product = |sizes: &[usize]| sizes.iter().product();
                let (outer, from_axis) = x.shape.split_at(axis);
                let (channels, inner) = from_axis.split_at(1);
                let shape = [product(outer), product(channels), product(inner)];
                let block = (block > 0).then_some(block as usize);
                Self { shape, block, scales: Vec::new(), zero_points: None }
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
    if Format::of(to)?.iter().any(|format| format.is_integer()) {
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
        let Some(Scales { scale, zero_point, granularity, block_size }) = format.scales(groups)? else {
            continue;
        };
        let shape = groups.operation_shape();
        let elements = float_as(x, &groups.shape.map(|size| size as i64))?;
        let elements_in_order = groups.by_operation(elements.bytes(), elements.dtype().size());
        let input = from_bytes(&elements_in_order, elements.dtype(), &shape.map(|size| size as i64))?;
        let ([_, _, inner], shape) = (shape, x.shape.clone());
        let groups = groups.clone();
        calls.push(MappedCall::new("quantize", move |engine| {
            let mut call = Quantize::new(input.view(), format.to_quantize(), granularity).scale(scale.view());
            call.zero_point = zero_point.as_ref().map(Tensor::view);
            call.block_size = block_size;
            let stored = lz_ops::quantize(engine, call)?.quantized;
            let bytes = match to.bits() {
                bits @ (2 | 4) => {
                    packed(&groups.by_node(&rows_unpacked(stored.bytes(), inner, bits), 1), bits)
                }
                bits => groups.by_node(stored.bytes(), bits / 8),
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
        let Some(Scales { scale, zero_point, granularity, block_size }) = format.scales(groups)? else {
            continue;
        };
        let [outer, channels, inner] = groups.operation_shape();
        let bits = x.data_type.bits();
        let (bytes, stored_row) = match x.unpacked() {
            Some(codes) => {
                (rows_packed(&groups.by_operation(&codes, 1), inner, bits), (inner * bits).div_ceil(8))
            }
            None => (groups.by_operation(bytes_of(x)?, bits / 8), inner),
        };
        let stored = from_bytes(&bytes, format.dtype(), &[outer as i64, channels as i64, stored_row as i64])?;
        let granularity = match granularity {
            QuantizeGranularity::Tensor => DequantizeGranularity::Tensor,
            QuantizeGranularity::Block => DequantizeGranularity::Block,
            _ => DequantizeGranularity::Channel,
        };
        let (shape, groups) = (x.shape.clone(), groups.clone());
        calls.push(MappedCall::new("dequantize", move |engine| {
            let mut call = Dequantize::new(stored.view(), scale.view(), format.to_dequantize(), granularity)
                .inner(inner as i64)
                .output_dtype(output_dtype);
            call.zero_point = zero_point.as_ref().map(Tensor::view);
            call.block_size = block_size;
            let output = lz_ops::dequantize(engine, call)?.output;
            let bytes = groups.by_node(output.bytes(), output.dtype().size());
            Ok(vec![MappedOutput { output: 0, tensor: named_bytes(bytes, to, &shape)? }])
        }));
    }
    non_empty(calls)
}

/// Requires that at least one format can represent the scales.
fn non_empty(calls: Vec<MappedCall>) -> Result<Vec<MappedCall>, MapError> {
    if calls.is_empty() { Err(unsupported("scales that the format cannot represent")) } else { Ok(calls) }
}

/// Swaps the last two of three dimensions of elements that each are `size` values.
fn swapped<T: Copy>(values: &[T], size: usize, [outer, rows, columns]: [usize; 3]) -> Vec<T> {
    let element = |index: usize| &values[index * size..(index + 1) * size];
    let indices = (0..outer).flat_map(|block| {
        (0..columns).flat_map(move |column| (0..rows).map(move |row| (block * rows + row) * columns + column))
    });
    indices.flat_map(element).copied().collect()
}

/// Packs codes of `bits` bits, the first in the lowest bits of a byte; unused bits of the last byte are 0.
fn packed(codes: &[u8], bits: usize) -> Vec<u8> {
    codes.chunks(8 / bits).map(|codes| codes.iter().rev().fold(0, |byte, code| byte << bits | code)).collect()
}

/// The same, with each row starting at a byte, as `quantize` stores it.
fn rows_packed(codes: &[u8], inner: usize, bits: usize) -> Vec<u8> {
    codes.chunks(inner.max(1)).flat_map(|row| packed(row, bits)).collect()
}

/// The codes of rows that each start at a byte.
fn rows_unpacked(bytes: &[u8], inner: usize, bits: usize) -> Vec<u8> {
    let codes = |byte: &u8| {
        let byte = *byte;
        (0..8).step_by(bits).map(move |shift| byte >> shift & ((1 << bits) - 1))
    };
    let rows = bytes.chunks((inner * bits).div_ceil(8).max(1));
    rows.flat_map(|row| row.iter().flat_map(codes).take(inner)).collect()
}
