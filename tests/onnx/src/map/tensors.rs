//! Conversion of tensors between the suite and LayerZero, bytes unchanged.

use super::{MapError, unsupported};
use crate::tensor::{DataType, NamedTensor, TensorData};
use half::{bf16, f16};
use lz_core::tensor::{Device, Dims, Layout};
use lz_core::{DType, Reason, ReasonCode, Tensor, TensorView};

/// Sizes as i64.
pub fn sizes(shape: &[usize]) -> Vec<i64> {
    shape.iter().map(|&size| size as i64).collect()
}

/// A tensor of a supported float type.
pub fn float(named: &NamedTensor) -> Result<Tensor, MapError> {
    float_as(named, &sizes(&named.shape))
}

/// The same with another shape of the same size.
pub fn float_as(named: &NamedTensor, shape: &[i64]) -> Result<Tensor, MapError> {
    let dtype = match named.data_type {
        DataType::Float => DType::F32,
        DataType::Float16 => DType::F16,
        DataType::Bfloat16 => DType::BF16,
        other => return Err(unsupported(format!("`{}` is {other:?}, not f32, f16 or bf16", named.name))),
    };
    from_bytes(bytes_of(named)?, dtype, shape)
}

/// A tensor of indices.
pub fn indices(named: &NamedTensor) -> Result<Tensor, MapError> {
    let dtype = match named.data_type {
        DataType::Int32 => DType::I32,
        DataType::Int64 => DType::I64,
        other => return Err(unsupported(format!("`{}` is {other:?}, not int32 or int64", named.name))),
    };
    from_bytes(bytes_of(named)?, dtype, &sizes(&named.shape))
}

/// A tensor of bools.
pub fn bools(named: &NamedTensor) -> Result<Tensor, MapError> {
    from_bytes(bytes_of(named)?, DType::Bool, &sizes(&named.shape))
}

/// A contiguous tensor with these bytes.
pub fn from_bytes(bytes: &[u8], dtype: DType, shape: &[i64]) -> Result<Tensor, MapError> {
    let mut tensor = Tensor::zeros(shape, dtype)?;
    let target = tensor.bytes_mut();
    if target.len() != bytes.len() {
        return Err(wrong_size(format!("{} bytes", target.len()), format!("{} bytes", bytes.len())));
    }
    target.copy_from_slice(bytes);
    Ok(tensor)
}

/// The bytes of a numeric tensor of the suite.
pub fn bytes_of(named: &NamedTensor) -> Result<&[u8], MapError> {
    named.bytes().ok_or_else(|| unsupported(format!("`{}` holds strings", named.name)))
}

/// Part of a float tensor, starting at element `start`, with any strides.
pub fn strided<'t>(
    tensor: &'t Tensor,
    start: i64,
    shape: &[i64],
    strides: &[i64],
) -> Result<TensorView<'t>, MapError> {
    let (Some(shape), Some(strides), Ok(start)) =
        (Dims::new(shape), Dims::new(strides), usize::try_from(start))
    else {
        return Err(wrong_size("a layout".to_owned(), format!("{shape:?} with {strides:?} from {start}")));
    };
    let layout = Layout { shape, strides, dtype: tensor.dtype(), device: Device::HOST };
    let view = tensor.view();
    let strided = match tensor.dtype() {
        DType::F32 => TensorView::from_slice_with(view.as_slice::<f32>().unwrap_or(&[]), start, layout),
        DType::F16 => TensorView::from_slice_with(view.as_slice::<f16>().unwrap_or(&[]), start, layout),
        _ => TensorView::from_slice_with(view.as_slice::<bf16>().unwrap_or(&[]), start, layout),
    };
    Ok(strided?)
}

/// Converts a float tensor to the suite's form.
pub fn named(tensor: &Tensor, shape: &[usize]) -> Result<NamedTensor, MapError> {
    let data_type = match tensor.dtype() {
        DType::F32 => DataType::Float,
        DType::F16 => DataType::Float16,
        DType::BF16 => DataType::Bfloat16,
        other => return Err(wrong_size("a tensor of floats".to_owned(), other.long_name().to_owned())),
    };
    named_bytes(tensor.bytes().to_vec(), data_type, shape)
}

/// Concatenates float tensors in the suite's form.
pub fn joined(parts: &[Tensor], like: &Tensor, shape: &[usize]) -> Result<NamedTensor, MapError> {
    let bytes: Vec<u8> = parts.iter().flat_map(|part| part.bytes().iter().copied()).collect();
    let whole = from_bytes(&bytes, like.dtype(), &sizes(shape))?;
    named(&whole, shape)
}

/// Bytes in the suite's form.
pub fn named_bytes(bytes: Vec<u8>, data_type: DataType, shape: &[usize]) -> Result<NamedTensor, MapError> {
    let elements: usize = shape.iter().product();
    let expected = (elements * data_type.bits()).div_ceil(8);
    if bytes.len() != expected {
        return Err(wrong_size(format!("{expected} bytes"), format!("{} bytes", bytes.len())));
    }
    let (name, shape) = (String::new(), shape.to_vec());
    Ok(NamedTensor { name, data_type, shape, data: TensorData::Bytes(bytes.into()) })
}

fn wrong_size(required: String, found: String) -> MapError {
    MapError::Tensor(Reason::new(ReasonCode::ShapeMismatch).required(required).found(found))
}
