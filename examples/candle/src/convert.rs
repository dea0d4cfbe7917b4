//! Tensors of candle as views, and results as tensors of candle.

use candle_core::{CpuStorage, Error, Layout, Result, Shape};
use layerzero::core::element::Element;
use layerzero::core::tensor::{self, Device, Dims};
use layerzero::core::{DType, Tensor, TensorView};
use lz_schema::model::ParamType;

/// A view of a tensor of candle, with its strides.
pub fn view<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<TensorView<'a>> {
    match storage {
        CpuStorage::U8(data) => slice(data, layout),
        CpuStorage::U32(data) => slice(data, layout),
        CpuStorage::I16(data) => slice(data, layout),
        CpuStorage::I32(data) => slice(data, layout),
        CpuStorage::I64(data) => slice(data, layout),
        CpuStorage::BF16(data) => slice(data, layout),
        CpuStorage::F16(data) => slice(data, layout),
        CpuStorage::F32(data) => slice(data, layout),
        CpuStorage::F64(data) => slice(data, layout),
        _ => Err(Error::msg("LayerZero has no operations for tensors of this element type of candle")),
    }
}

fn slice<'a, T: Element>(data: &'a [T], layout: &Layout) -> Result<TensorView<'a>> {
    let dims = |values: &[usize]| {
        let values: Vec<i64> = values.iter().map(|value| *value as i64).collect();
        Dims::new(&values).ok_or_else(|| Error::msg(format!("a tensor has {} dimensions", values.len())))
    };
    let described = tensor::Layout {
        shape: dims(layout.dims())?,
        strides: dims(layout.stride())?,
        dtype: T::DTYPE,
        device: Device::HOST,
    };
    TensorView::from_slice_with(data, layout.start_offset(), described).map_err(Error::msg)
}

/// A result as a tensor of candle.
pub fn storage(tensor: &Tensor) -> Result<(CpuStorage, Shape)> {
    let view = tensor.view();
    let storage = match tensor.dtype() {
        DType::U8 => view.as_slice().map(|data| CpuStorage::U8(data.to_vec())),
        DType::U32 => view.as_slice().map(|data| CpuStorage::U32(data.to_vec())),
        DType::I16 => view.as_slice().map(|data| CpuStorage::I16(data.to_vec())),
        DType::I32 => view.as_slice().map(|data| CpuStorage::I32(data.to_vec())),
        DType::I64 => view.as_slice().map(|data| CpuStorage::I64(data.to_vec())),
        DType::BF16 => view.as_slice().map(|data| CpuStorage::BF16(data.to_vec())),
        DType::F16 => view.as_slice().map(|data| CpuStorage::F16(data.to_vec())),
        DType::F32 => view.as_slice().map(|data| CpuStorage::F32(data.to_vec())),
        DType::F64 => view.as_slice().map(|data| CpuStorage::F64(data.to_vec())),
        _ => None,
    };
    let storage =
        storage.ok_or_else(|| Error::msg(format!("candle has no tensors of {}", tensor.dtype().name())))?;
    let sizes: Vec<usize> = tensor.shape().iter().map(|size| *size as usize).collect();
    Ok((storage, Shape::from(sizes)))
}

/// The cases of an enum param; none for params of other types.
pub fn cases(ty: &ParamType) -> &[String] {
    match ty {
        ParamType::Enum(cases) => cases,
        _ => &[],
    }
}
