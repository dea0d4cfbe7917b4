//! Reading an artifact. Nothing in the file is trusted.

use std::path::Path;
use std::sync::Arc;

use lz_core::tensor::{Dims, Layout};
use lz_core::{DType, Tensor};
use lz_engine::table::Lockfile;
use lz_files::MappedFile;
use safetensors::tensor::{Metadata, SafeTensors, TensorInfo};

use super::record::{ConstantRecord, GraphRecord};
use super::write::tensor_dtype;
use super::{Artifact, DECISIONS_KEY, DIGEST_KEY, FORMAT, FORMAT_KEY, GRAPH_KEY, digest, invalid};
use crate::error::GraphError;
use crate::graph::{Constant, ConstantData};
use crate::mapped;
use crate::validate::{self, Phase, Validation};

/// Reads an artifact; constants stay in the mapped file. The header is always checked. With `verify`, the elements of every constant are
/// compared with their hashes, which reads the whole file.
pub fn load(path: &Path, verify: bool) -> Result<Artifact, GraphError> {
    let file = MappedFile::open(path).map_err(|error| invalid(path, error))?;
    read(Arc::new(file), verify).map_err(|message| invalid(path, message))
}

fn read(file: Arc<MappedFile>, verify: bool) -> Result<Artifact, String> {
    let damaged = |what: &dyn std::fmt::Display| {
        format!("the artifact is damaged ({what}): save it again, or copy it again")
    };
    let other = || "the file is no compiled model; use a file that `save` wrote".to_owned();
    // An artifact begins with the length of its header, which is a JSON object.
    if file.bytes().get(8).is_some_and(|&byte| byte != b'{') {
        return Err(other());
    }
    let (length, header) = SafeTensors::read_metadata(file.bytes()).map_err(|error| damaged(&error))?;
    let data = 8 + length;
    let entry =
        |key: &str| header.metadata().as_ref().and_then(|entries| entries.get(key)).map(String::as_str);
    match entry(FORMAT_KEY) {
        None => return Err(other()),
        Some(format) if *format != FORMAT.to_string() => {
            return Err(format!(
                "the artifact has format {format}, this release reads format {FORMAT}: compile the model again"
            ));
        }
        Some(_) => {}
    }
    let text = entry(GRAPH_KEY).ok_or_else(|| damaged(&"it has no graph"))?;
    if entry(DIGEST_KEY) != Some(digest(text.as_bytes()).as_str()) {
        return Err(damaged(&"the graph does not match its hash"));
    }
    let record: GraphRecord = serde_json::from_str(text).map_err(|error| damaged(&error))?;
    record.check_operations().map_err(|message| {
        format!(
            "{message}: compile the model again, or load it with LayerZero {}, which wrote it",
            record.layerzero
        )
    })?;
    let mut constants = Vec::with_capacity(record.constants.len());
    for about in &record.constants {
        let constant = constant(&file, &header, data, about).map_err(|message| damaged(&message))?;
        if verify {
            check_elements(&file, &header, data, about)?;
        }
        constants.push(constant);
    }
    let graph = record.graph(constants).map_err(|message| damaged(&message))?;
    Validation::Normal.check(&validate::graph(&graph, Phase::Import)).map_err(|error| damaged(&error))?;
    let decisions = entry(DECISIONS_KEY).map(|text| Lockfile::read("decisions", text)).transpose();
    Ok(Artifact {
        graph,
        imported_nodes: record.imported_nodes,
        rewrites: record.rewrites,
        decisions: decisions.map_err(|error| damaged(&error))?,
        layerzero: record.layerzero,
    })
}

/// The tensor of a constant, whose bytes lie inside the file: `safetensors` checked the offsets.
fn tensor<'a>(header: &'a Metadata, about: &ConstantRecord) -> Result<&'a TensorInfo, String> {
    let info =
        header.info(&about.tensor).ok_or_else(|| format!("the tensor `{}` is missing", about.tensor))?;
    let expected = tensor_dtype(about.dtype);
    if format!("{:?}", info.dtype) != expected {
        return Err(format!("the tensor `{}` is {:?}, expected {expected}", about.tensor, info.dtype));
    }
    Ok(info)
}

fn constant(
    file: &Arc<MappedFile>,
    header: &Metadata,
    data: usize,
    about: &ConstantRecord,
) -> Result<Constant, String> {
    let info = tensor(header, about)?;
    let sizes: Result<Vec<i64>, _> = info.shape.iter().map(|&size| i64::try_from(size)).collect();
    let shape = sizes.map_err(|error| format!("the tensor `{}`: {error}", about.tensor))?;
    let stored = Layout::contiguous(&shape, about.dtype).map_err(|reason| reason.to_string())?;
    let layout = match &about.order {
        Some(order) => permuted(&stored, order).ok_or_else(|| format!("`{}`: its order", about.tensor))?,
        None => stored,
    };
    let (start, end) = info.data_offsets;
    // A byte of the file that is neither 0 nor 1 must not become a bool.
    let shared = if about.dtype == DType::Bool {
        None
    } else {
        mapped::constant(file, data + start, end - start, layout)
    };
    let memory = match shared {
        Some(memory) => memory,
        None => {
            let bytes = file.bytes().get(data + start..data + end).unwrap_or_default();
            let mut tensor = Tensor::zeros(&shape, about.dtype).map_err(|reason| reason.to_string())?;
            if about.order.is_some() || tensor.bytes().len() != bytes.len() {
                return Err(format!("the tensor `{}` is not aligned", about.tensor));
            }
            tensor.bytes_mut().copy_from_slice(bytes);
            if about.dtype == DType::Bool {
                tensor.bytes_mut().iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
            }
            ConstantData::Owned(Arc::new(tensor))
        }
    };
    Ok(Constant { name: about.name.clone(), data: memory })
}

/// The layout of a constant whose dimension `order[i]` is dimension `i` of the stored tensor.
fn permuted(stored: &Layout, order: &[usize]) -> Option<Layout> {
    let rank = stored.shape.len();
    let (mut shape, mut strides) = (vec![-1; rank], vec![0; rank]);
    if order.len() != rank {
        return None;
    }
    for (position, &axis) in order.iter().enumerate() {
        *shape.get_mut(axis)? = stored.shape[position];
        strides[axis] = stored.strides[position];
    }
    // A dimension that no position names keeps a negative size.
    if shape.iter().any(|size| *size < 0) {
        return None;
    }
    Some(Layout { shape: Dims::new(&shape)?, strides: Dims::new(&strides)?, ..*stored })
}

fn check_elements(
    file: &MappedFile,
    header: &Metadata,
    data: usize,
    about: &ConstantRecord,
) -> Result<(), String> {
    let (start, end) = tensor(header, about)?.data_offsets;
    let bytes = file.bytes().get(data + start..data + end).unwrap_or_default();
    if digest(bytes) == about.sha256 {
        return Ok(());
    }
    Err(format!(
        "the elements of `{}` differ from those that were saved: save the model again with these weights",
        about.tensor
    ))
}
