//! Writing an artifact.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use lz_core::{DType, Tensor, TensorView};
use serde_json::{Value, json};

use super::record::{ConstantRecord, GraphRecord};
use super::{Artifact, DECISIONS_KEY, DIGEST_KEY, FORMAT, FORMAT_KEY, GRAPH_KEY, digest, invalid};
use crate::error::GraphError;
use crate::interpret;
use crate::memory::ALIGNMENT;

/// The elements of a constant in the order in which they are stored.
enum Stored<'a> {
    Shared(TensorView<'a>),
    Copied(Tensor),
}

impl Stored<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            Stored::Shared(view) => {
                let bytes = view.elements() as usize * view.dtype().size();
                // SAFETY: the view is dense in some order of its dimensions, so its elements are these bytes.
                unsafe { std::slice::from_raw_parts(view.as_ptr(), bytes) }
            }
            Stored::Copied(tensor) => tensor.bytes(),
        }
    }
}

/// Writes an artifact. The file appears only when it is complete.
pub fn save(path: &Path, artifact: &Artifact) -> Result<(), GraphError> {
    let graph = &artifact.graph;
    let mut stored = Vec::with_capacity(graph.constants.len());
    let mut records = Vec::with_capacity(graph.constants.len());
    let mut shapes = Vec::with_capacity(graph.constants.len());
    let mut names = HashSet::new();
    for (index, constant) in graph.constants.iter().enumerate() {
        let view = constant.view();
        // Bools are copied when they are loaded, so they are stored in row-major order.
        let order = dense_order(&view).filter(|order| order.is_sorted() || view.dtype() != DType::Bool);
        let one = match order {
            Some(_) => Stored::Shared(view),
            None => Stored::Copied(interpret::copy(&view)?),
        };
        let order = order.filter(|order| !order.is_sorted());
        let mut tensor = constant.name.clone();
        if tensor.is_empty() || tensor == "__metadata__" || !names.insert(tensor.clone()) {
            tensor = format!("layerzero.constant.{index}");
        }
        let shape: Vec<i64> = match &order {
            Some(order) => order.iter().map(|axis| view.shape()[*axis]).collect(),
            None => view.shape().to_vec(),
        };
        shapes.push(shape);
        let sha256 = digest(one.bytes());
        records.push(ConstantRecord {
            name: constant.name.clone(),
            tensor,
            dtype: view.dtype(),
            order,
            sha256,
        });
        stored.push(one);
    }
    // A file has no gaps between tensors: those that keep the next one aligned come first.
    let mut placed: Vec<usize> = (0..stored.len()).collect();
    let unaligned = |index: &usize| !stored[*index].bytes().len().is_multiple_of(ALIGNMENT);
    placed.sort_by_key(|index| (unaligned(index), std::cmp::Reverse(records[*index].dtype.size())));

    let mut header: BTreeMap<String, Value> = BTreeMap::new();
    let mut offset = 0;
    for &index in &placed {
        let (record, bytes) = (&records[index], stored[index].bytes().len());
        let dtype = tensor_dtype(record.dtype);
        let entry = json!({"dtype": dtype, "shape": shapes[index], "data_offsets": [offset, offset + bytes]});
        header.insert(record.tensor.clone(), entry);
        offset += bytes;
    }
    let record = GraphRecord::new(graph, records, artifact.imported_nodes, &artifact.rewrites);
    let graph_text = serde_json::to_string(&record).map_err(|error| invalid(path, error))?;
    let mut metadata = BTreeMap::from([
        ("format", "layerzero".to_owned()),
        (FORMAT_KEY, FORMAT.to_string()),
        (DIGEST_KEY, digest(graph_text.as_bytes())),
        (GRAPH_KEY, graph_text),
    ]);
    if let Some(decisions) = &artifact.decisions {
        metadata.insert(DECISIONS_KEY, decisions.text());
    }
    header.insert("__metadata__".to_owned(), json!(metadata));
    let mut header = serde_json::to_vec(&header).map_err(|error| invalid(path, error))?;
    // Trailing spaces are part of the format; they align the first tensor.
    header.resize((header.len() + 8).next_multiple_of(ALIGNMENT) - 8, b' ');
    let write = |file: File| -> io::Result<()> {
        let mut file = BufWriter::with_capacity(1 << 20, file);
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(&header)?;
        placed.iter().try_for_each(|&index| file.write_all(stored[index].bytes()))?;
        file.into_inner()?.sync_all()
    };
    replace(path, write).map_err(|error| invalid(path, error))
}

/// Writes another file and renames it, so that no process sees half a file, and a mapped old one stays valid.
fn replace(path: &Path, write: impl FnOnce(File) -> io::Result<()>) -> io::Result<()> {
    lz_files::check_regular_or_absent(path)?;
    let mut name = path.file_name().map(ToOwned::to_owned).unwrap_or_default();
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(name);
    let written = File::create_new(&temporary).and_then(write).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        fs::remove_file(&temporary).ok();
    }
    written
}

/// The order of dimensions in which the elements are dense; `None` if there is none.
fn dense_order(view: &TensorView<'_>) -> Option<Vec<usize>> {
    let mut order: Vec<usize> = (0..view.rank()).collect();
    if view.is_contiguous() {
        return Some(order);
    }
    let (shape, strides) = (view.shape(), view.strides());
    order.sort_by_key(|&axis| (std::cmp::Reverse(strides[axis]), axis));
    let mut expected = 1;
    for &axis in order.iter().rev() {
        if shape[axis] != 1 && strides[axis] != expected {
            return None;
        }
        expected *= shape[axis];
    }
    Some(order)
}

/// The name of a dtype in the file. One that safetensors does not have is stored as bytes.
pub fn tensor_dtype(dtype: DType) -> &'static str {
    match dtype {
        DType::F64 => "F64",
        DType::F32 => "F32",
        DType::F16 => "F16",
        DType::BF16 => "BF16",
        DType::F8E4M3 => "F8_E4M3",
        DType::F8E5M2 => "F8_E5M2",
        DType::F8E8M0 => "F8_E8M0",
        DType::I64 => "I64",
        DType::I32 => "I32",
        DType::I16 => "I16",
        DType::I8 => "I8",
        DType::U64 => "U64",
        DType::U32 => "U32",
        DType::U16 => "U16",
        DType::U8 | DType::F4E2M1x2 => "U8",
        DType::Bool => "BOOL",
    }
}
