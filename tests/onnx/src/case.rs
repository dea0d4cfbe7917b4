//! A case of the ONNX suite: a folder `test_…` with `model.onnx` and folders `test_data_set_…` of tensors.
//!
//! Tensors are assigned to the node's inputs and outputs, so that callers need not inspect the graph.

use crate::error::ReadError;
use crate::model::{GraphValue, Model, Node, ValueKind};
use crate::read_model;
use crate::tensor::{NamedTensor, read_tensor};
use crate::wire::Chunk;
use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};

/// Environment variable with the folder of the cases.
pub const DATA_VARIABLE: &str = "LZ_ONNX_DATA";

/// A case whose model is a single node.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// The folder's name, such as `test_attention_4d`.
    pub name: String,
    /// Opset version of the node.
    pub opset_version: i64,
    /// The node.
    pub node: Node,
    /// Inputs and expected outputs, per data set.
    pub data_sets: Vec<DataSet>,
}

/// One run of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataSet {
    /// A tensor for each input of the node, in order; `None` for an omitted optional one.
    pub inputs: Vec<Option<NamedTensor>>,
    /// A tensor for each output of the node, in order; `None` if it is not an output of the graph.
    pub outputs: Vec<Option<NamedTensor>>,
}

/// Result of loading a folder.
#[derive(Clone, Debug, PartialEq)]
pub enum LoadedCase {
    /// A case that can be checked.
    Loaded(Case),
    /// A well-formed case that is not a single operator call on tensors.
    Skipped {
        /// The folder's name.
        name: String,
        /// The reason.
        reason: SkipReason,
    },
}

/// Why a well-formed case is not a single operator call on tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SkipReason {
    /// The model expands an operator into others; the operator itself has a separate case.
    Expanded,
    /// The model does not have exactly one node.
    NodeCount {
        /// Number of nodes.
        count: usize,
    },
    /// The model defines local functions.
    LocalFunctions,
    /// An input or output is not a dense tensor.
    NotATensor {
        /// Its name.
        value: String,
        /// What it is.
        kind: ValueKind,
    },
}

impl fmt::Display for SkipReason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expanded => write!(formatter, "the model expands the operator into others"),
            Self::NodeCount { count } => write!(formatter, "the model has {count} nodes"),
            Self::LocalFunctions => write!(formatter, "the model defines local functions"),
            Self::NotATensor { value, kind } => {
                write!(formatter, "`{value}` is not a dense tensor: {kind:?}")
            }
        }
    }
}

/// The folder of the cases: from `LZ_ONNX_DATA`, otherwise where `cargo xtask test` stores them under `root`.
/// The error is the message to show.
pub fn data_directory(root: &Path) -> Result<PathBuf, String> {
    let directory = match std::env::var_os(DATA_VARIABLE) {
        Some(directory) => PathBuf::from(directory),
        None => root.join("target/oracles/onnx-1.22.0/node"),
    };
    if directory.is_dir() {
        return Ok(directory);
    }
    Err(format!(
        "no ONNX node tests at {}; `cargo xtask test` fetches them, or set {DATA_VARIABLE} to a folder that contains them",
        directory.display()
    ))
}

/// The folders of all cases, sorted by name.
pub fn list_cases(directory: &Path) -> Result<Vec<PathBuf>, ReadError> {
    sorted_entries(directory, "test_")
}

/// Loads the case in a folder.
pub fn load_case(directory: &Path) -> Result<LoadedCase, ReadError> {
    let name = file_name(directory);
    let file = directory.join("model.onnx");
    let bytes = read_bytes(&file)?;
    let model =
        read_model(Chunk::whole(&bytes)).map_err(|malformed| ReadError::Malformed { file, malformed })?;
    if let Some(reason) = skip_reason(&name, &model) {
        return Ok(LoadedCase::Skipped { name, reason });
    }
    let inconsistent = |message| ReadError::Inconsistent { directory: directory.to_owned(), message };
    let Some(node) = model.graph.nodes.first() else {
        return Err(inconsistent("the model has no node".to_owned()));
    };
    let Some(opset_version) = model.opset_version(&node.domain) else {
        return Err(inconsistent(format!("the model does not import the operator set `{}`", node.domain)));
    };
    let folders = sorted_entries(directory, "test_data_set_")?;
    if folders.is_empty() {
        return Err(inconsistent("the case has no data set".to_owned()));
    }
    let data_sets =
        folders.iter().map(|folder| load_data_set(folder, &model, node)).collect::<Result<_, _>>()?;
    Ok(LoadedCase::Loaded(Case { name, opset_version, node: node.clone(), data_sets }))
}

fn skip_reason(name: &str, model: &Model<'_>) -> Option<SkipReason> {
    // Some operators expand to a single other one, so the node count is not sufficient.
    if name.ends_with("_expanded") || name.contains("_expanded_ver") {
        return Some(SkipReason::Expanded);
    }
    if model.graph.nodes.len() != 1 {
        return Some(SkipReason::NodeCount { count: model.graph.nodes.len() });
    }
    if !model.functions.is_empty() {
        return Some(SkipReason::LocalFunctions);
    }
    let mut values = model.graph.inputs.iter().chain(&model.graph.outputs);
    let other = values.find(|value| value.kind != ValueKind::Tensor)?;
    Some(SkipReason::NotATensor { value: other.name.clone(), kind: other.kind })
}

fn load_data_set(folder: &Path, model: &Model<'_>, node: &Node) -> Result<DataSet, ReadError> {
    let fed: Vec<&GraphValue> = model
        .graph
        .inputs
        .iter()
        .filter(|input| model.graph.initializers.iter().all(|constant| constant.name != input.name))
        .collect();
    let mut given = load_tensors(folder, "input_", &fed)?;
    given.extend(
        model
            .graph
            .initializers
            .iter()
            .map(|constant| (constant.name.clone(), constant.clone().into_owned())),
    );
    let inputs = node.inputs.iter().map(|name| {
        if name.is_empty() {
            return Ok(None);
        }
        given.get(name).cloned().map(Some).ok_or_else(|| ReadError::Inconsistent {
            directory: folder.to_owned(),
            message: format!("no tensor for the input `{name}`"),
        })
    });
    let inputs = inputs.collect::<Result<_, _>>()?;
    let outputs: Vec<&GraphValue> = model.graph.outputs.iter().collect();
    let expected = load_tensors(folder, "output_", &outputs)?;
    let outputs = node.outputs.iter().map(|name| expected.get(name).cloned()).collect();
    Ok(DataSet { inputs, outputs })
}

/// Reads `input_0.pb`, `input_1.pb`, …, one per value, and assigns the graph's names.
fn load_tensors(
    folder: &Path,
    prefix: &str,
    values: &[&GraphValue],
) -> Result<HashMap<String, NamedTensor>, ReadError> {
    let files = sorted_entries(folder, prefix)?.len();
    if files != values.len() {
        return Err(ReadError::Inconsistent {
            directory: folder.to_owned(),
            message: format!("{files} files `{prefix}…` for {} values of the graph", values.len()),
        });
    }
    let named = values.iter().enumerate().map(|(index, value)| {
        let file = folder.join(format!("{prefix}{index}.pb"));
        let bytes = read_bytes(&file)?;
        let mut tensor = read_tensor(Chunk::whole(&bytes))
            .map_err(|malformed| ReadError::Malformed { file, malformed })?;
        tensor.name.clone_from(&value.name);
        Ok((value.name.clone(), tensor))
    });
    named.collect()
}

fn read_bytes(file: &Path) -> Result<Vec<u8>, ReadError> {
    std::fs::read(file).map_err(|source| ReadError::Io { file: file.to_owned(), source })
}

fn sorted_entries(directory: &Path, prefix: &str) -> Result<Vec<PathBuf>, ReadError> {
    let error = |source| ReadError::Io { file: directory.to_owned(), source };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(error)? {
        let path = entry.map_err(error)?.path();
        if file_name(&path).starts_with(prefix) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn file_name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}
