//! Constants from initializers: owned, or in the mapped memory of the model file or of files with external data.

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use lz_core::tensor::Layout;
use lz_core::{DType, Tensor};
use lz_files::MappedFile;

use super::tensor::{DataType, ExternalData, NamedTensor, TensorData};
use crate::graph::ConstantData;
use crate::mapped;

/// The files that constants may be in.
#[derive(Debug, Default)]
pub struct Files {
    /// The folder of the model, without links; `None` for a model in memory.
    folder: Option<PathBuf>,
    model: Option<Arc<MappedFile>>,
    mapped: HashMap<PathBuf, Arc<MappedFile>>,
}

impl Files {
    /// The files of a model at this path.
    pub fn of_model(path: &Path, model: Arc<MappedFile>) -> Result<Files, String> {
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let folder = folder.canonicalize().map_err(|error| format!("{}: {error}", folder.display()))?;
        Ok(Files { folder: Some(folder), model: Some(model), mapped: HashMap::new() })
    }

    /// The elements of a tensor of the model. The error says what is wrong.
    pub fn constant(&mut self, tensor: &NamedTensor<'_>) -> Result<ConstantData, String> {
        let shape: Vec<i64> = tensor
            .shape
            .iter()
            .map(|&size| i64::try_from(size))
            .collect::<Result<_, _>>()
            .map_err(|error| error.to_string())?;
        match &tensor.data {
            TensorData::Strings(_) => Err("tensors of strings are not supported".to_owned()),
            TensorData::External(external) => {
                let (file, offset) = self.external(tensor, external)?;
                let bytes = &file.bytes()[offset..offset + tensor.byte_count()];
                match self.shared(&file, offset, tensor.data_type, &shape)? {
                    Some(constant) => Ok(constant),
                    None => owned(bytes, tensor, &shape),
                }
            }
            TensorData::Bytes(bytes) => {
                if let Some(model) = &self.model
                    && let Some(offset) = offset_in(model.bytes(), bytes)
                    && let Some(constant) = self.shared(model, offset, tensor.data_type, &shape)?
                {
                    return Ok(constant);
                }
                owned(bytes, tensor, &shape)
            }
        }
    }

    /// A view of mapped memory; `None` if the elements are not aligned or must be converted.
    fn shared(
        &self,
        file: &Arc<MappedFile>,
        offset: usize,
        data_type: DataType,
        shape: &[i64],
    ) -> Result<Option<ConstantData>, String> {
        let Some(dtype) = data_type.dtype().filter(|dtype| *dtype != DType::Bool) else { return Ok(None) };
        let layout = Layout::contiguous(shape, dtype).map_err(|reason| reason.to_string())?;
        let bytes = layout.elements().unwrap_or(0) as usize * dtype.size();
        Ok(mapped::constant(file, offset, bytes, layout))
    }

    /// The mapped file of external data, and the offset of its first byte.
    fn external(
        &mut self,
        tensor: &NamedTensor<'_>,
        external: &ExternalData,
    ) -> Result<(Arc<MappedFile>, usize), String> {
        let location = &external.location;
        let path = self.resolve(location)?;
        let file = match self.mapped.get(&path) {
            Some(file) => file.clone(),
            None => {
                let file = MappedFile::open(&path)
                    .map_err(|error| format!("external data `{location}`: {error}"))?;
                self.mapped.entry(path).or_insert(Arc::new(file)).clone()
            }
        };
        let required = tensor.byte_count() as u64;
        if external.length.is_some_and(|length| length != required) {
            let length = external.length.unwrap_or_default();
            return Err(format!(
                "external data `{location}` has {length} bytes, but the shape requires {required}"
            ));
        }
        let available = file.bytes().len() as u64;
        match external.offset.checked_add(required) {
            Some(end) if end <= available => Ok((file, external.offset as usize)),
            _ => Err(format!(
                "external data `{location}`: {required} bytes at offset {} exceed its {available} bytes",
                external.offset
            )),
        }
    }

    /// A path inside the model's folder, without links.
    fn resolve(&self, location: &str) -> Result<PathBuf, String> {
        let Some(folder) = &self.folder else {
            return Err(format!("external data `{location}` requires a model that is read from a file"));
        };
        let inside = |component: Component<'_>| matches!(component, Component::Normal(_) | Component::CurDir);
        let relative = Path::new(location);
        if location.is_empty() || location.contains('\0') || !relative.components().all(inside) {
            return Err(format!("external data `{location}` is not a path inside the model's folder"));
        }
        let path = folder
            .join(relative)
            .canonicalize()
            .map_err(|error| format!("external data `{location}`: {error}"))?;
        if !path.starts_with(folder) {
            return Err(format!("external data `{location}` is a link out of the model's folder"));
        }
        Ok(path)
    }
}

/// The offset of a part in the whole, if it is one.
fn offset_in(whole: &[u8], part: &[u8]) -> Option<usize> {
    let offset = (part.as_ptr() as usize).checked_sub(whole.as_ptr() as usize)?;
    (offset + part.len() <= whole.len()).then_some(offset)
}

/// A copy of the elements. Integers below eight bits get a byte each, which no operator distinguishes.
fn owned(bytes: &[u8], tensor: &NamedTensor<'_>, shape: &[i64]) -> Result<ConstantData, String> {
    let small = || {
        let view = NamedTensor { data: TensorData::Bytes(bytes.into()), ..tensor.clone() };
        view.unpacked().unwrap_or_default()
    };
    let sign_extended = |bits: u32| {
        small().into_iter().map(|code| (((code << (8 - bits)) as i8) >> (8 - bits)) as u8).collect()
    };
    let (dtype, converted): (DType, Option<Vec<u8>>) = match (tensor.data_type, tensor.data_type.dtype()) {
        (DataType::Int4, _) => (DType::I8, Some(sign_extended(4))),
        (DataType::Int2, _) => (DType::I8, Some(sign_extended(2))),
        (DataType::Uint4 | DataType::Uint2, _) => (DType::U8, Some(small())),
        (DataType::Bool, _) => (DType::Bool, Some(bytes.iter().map(|&byte| u8::from(byte != 0)).collect())),
        (_, Some(dtype)) => (dtype, None),
        (other, None) => return Err(format!("tensors of {other:?} are not supported")),
    };
    let bytes = converted.as_deref().unwrap_or(bytes);
    // Compared before allocating: a shape may promise more elements than the file has.
    let layout = Layout::contiguous(shape, dtype).map_err(|reason| reason.to_string())?;
    if layout.elements().and_then(|count| count.checked_mul(dtype.size() as i64)) != Some(bytes.len() as i64)
    {
        return Err(format!("{} bytes for the shape {shape:?}", bytes.len()));
    }
    let mut owned = Tensor::zeros(shape, dtype).map_err(|reason| reason.to_string())?;
    owned.bytes_mut().copy_from_slice(bytes);
    Ok(ConstantData::Owned(Arc::new(owned)))
}
