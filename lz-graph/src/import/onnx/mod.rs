//! ONNX models: the protobuf reader, and the translation of operators into calls and views.
//!
//! [`wire`] reads the protobuf encoding, [`tensor`], [`model`] and [`read`] the messages of ONNX. `ops` has one function per
//! operator. Integers that depend only on shapes are symbolic at import (`sizes`) and never become kernels. What cannot be stated
//! is an error with the node, the operator, its opset and the reason; attributes and inputs that a handler does not read are errors
//! too, so nothing is dropped in silence.

mod constants;
pub mod data_type;
mod importer;
mod inline;
pub mod model;
mod op;
mod ops;
pub mod problem;
pub mod read;
mod sizes;
pub mod tensor;
#[cfg(test)]
mod tests;
mod value;
pub mod wire;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use lz_core::Tensor;
use lz_files::MappedFile;

use crate::error::GraphError;
use crate::graph::Graph;
use constants::Files;
use importer::Importer;
use wire::Chunk;

/// Opset versions of `ai.onnx` that are imported.
pub const OPSETS: std::ops::RangeInclusive<i64> = 6..=27;

/// Size limit of a model file without its external data: protobuf has the same one.
pub const MAX_MODEL_BYTES: usize = 2 << 30;

/// How a model is imported.
#[derive(Debug, Default)]
pub struct Options {
    /// Values of inputs that become constants, by name.
    pub constants: HashMap<String, Tensor>,
}

/// Imports a model in memory. External data is refused: there is no folder to find it in.
pub fn from_bytes(bytes: &[u8], options: &Options) -> Result<Graph, GraphError> {
    import("model", bytes, Files::default(), options)
}

/// Imports a model file. Constants stay in the mapped file, or in the mapped files of external data, where alignment allows it.
pub fn from_path(path: &Path, options: &Options) -> Result<Graph, GraphError> {
    let file = |message: String| GraphError::File { path: path.display().to_string(), message };
    let mapped = Arc::new(MappedFile::open(path).map_err(|error| file(error.to_string()))?);
    let files = Files::of_model(path, mapped.clone()).map_err(file)?;
    import(&path.display().to_string(), mapped.bytes(), files, options)
}

fn import(name: &str, bytes: &[u8], files: Files, options: &Options) -> Result<Graph, GraphError> {
    let file = |message: String| GraphError::File { path: name.to_owned(), message };
    if bytes.len() > MAX_MODEL_BYTES {
        return Err(file(format!("the model has {} bytes, at most {MAX_MODEL_BYTES} are read", bytes.len())));
    }
    let model = read::read_model(Chunk::whole(bytes)).map_err(|problem| file(problem.to_string()))?;
    if let Some(version) = model.opset_version("")
        && !OPSETS.contains(&version)
    {
        let (first, last) = (OPSETS.start(), OPSETS.end());
        return Err(file(format!("opset {version} of ai.onnx is not supported, expected {first} to {last}")));
    }
    Importer::new(name, files, &model).run(&model, options)
}
