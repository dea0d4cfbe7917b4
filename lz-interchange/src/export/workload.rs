//! Exports one call as a FlashInfer-Trace workload, with the `Definition` that it refers to.

use std::collections::BTreeMap;

use lz_schema::definition::Stated;
use lz_schema::dtype::DType;
use lz_schema::model::{Cases, DTypeRef, Dim, Operation};
use serde_json::{Map, Value, json};

use super::{ExportOptions, Exporter, options};
use crate::error::ExportError;
use crate::format;

/// The arguments of a call by their names in the schema; absent arguments are left out.
#[derive(Debug, Clone, Default)]
pub struct CallArguments {
    /// Dtypes and shapes of tensors.
    pub tensors: BTreeMap<String, (DType, Vec<i64>)>,
    /// Numbers and truth values.
    pub scalars: BTreeMap<String, Value>,
    /// Cases of enum parameters.
    pub cases: BTreeMap<String, String>,
}

/// A workload and what it refers to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportedWorkload {
    /// The name of the definition.
    pub name: String,
    /// The kind of operation, the folder of the definition.
    pub op_type: String,
    /// The definition, as JSON text in canonical form.
    pub definition: String,
    /// The trace with the workload, as one line of JSON.
    pub workload: String,
    /// The shapes that the tensors have in the workload, by their names in the schema: a pack is one dimension.
    pub shapes: BTreeMap<String, Vec<i64>>,
}

/// Exports a call. `file` is the safetensors file, relative to the workload, that contains the tensors under their names in the
/// schema; `uuid` identifies the workload.
pub fn export_workload(
    operation: &Operation,
    call: &CallArguments,
    file: &str,
    uuid: &str,
) -> Result<ExportedWorkload, ExportError> {
    let mut options = ExportOptions { cases: call.cases.clone(), ..ExportOptions::default() };
    let cases = options::cases(operation, &options)?;
    for input in &operation.inputs {
        let dtype = chosen(&input.dtype, &cases);
        if let (Some(DTypeRef::Variable(at)), Some((dtype, _))) = (dtype, call.tensors.get(&input.name))
            && let Some(variable) = operation.types.get(*at)
        {
            options.dtypes.insert(variable.name.clone(), *dtype);
        }
    }
    let mut exporter = Exporter::new(operation, &options)?;
    let definition = exporter.definition()?;
    let mut shapes = BTreeMap::new();
    let mut axes: BTreeMap<&str, i64> = BTreeMap::new();
    let mut inputs = Map::new();
    for (at, input) in operation.inputs.iter().enumerate() {
        let (Some((_, shape)), Some(dims)) =
            (call.tensors.get(&input.name), chosen(&input.shape, &exporter.cases))
        else {
            continue;
        };
        let shape = flattened(dims, shape);
        let name = exporter.name_of(Stated::Input(at));
        if let Some((_, argument)) = definition.inputs.iter().find(|(known, _)| *known == name) {
            axes.extend(argument.shape.iter().flatten().map(String::as_str).zip(shape.iter().copied()));
        }
        inputs.insert(name, json!({"type": "safetensors", "path": file, "tensor_key": input.name}));
        shapes.insert(input.name.clone(), shape);
    }
    for (at, param) in operation.params.iter().enumerate() {
        if let Some(value) = call.scalars.get(&param.name) {
            inputs.insert(exporter.name_of(Stated::Param(at)), json!({"type": "scalar", "value": value}));
        }
    }
    let variable = definition.axes.iter().filter(|(_, axis)| !axis.constant);
    let axes: Map<String, Value> =
        variable.filter_map(|(name, _)| Some((name.clone(), json!(axes.get(name.as_str())?)))).collect();
    let workload = json!({
        "definition": definition.name,
        "workload": {"uuid": uuid, "axes": axes, "inputs": inputs},
        "solution": null,
        "evaluation": null,
    });
    Ok(ExportedWorkload {
        name: definition.name.clone(),
        op_type: definition.op_type.clone(),
        definition: format::write(&definition),
        workload: format!("{workload}\n"),
        shapes,
    })
}

impl Exporter<'_> {
    fn name_of(&self, stated: Stated) -> String {
        let name = match stated {
            Stated::Input(at) => self.input_names.get(at),
            Stated::Param(at) => self.param_names.get(at),
            Stated::Output(_) => None,
        };
        name.cloned().unwrap_or_default()
    }
}

fn chosen<'a, T>(all: &'a Cases<T>, cases: &[Option<u32>]) -> Option<&'a T> {
    match all {
        Cases::One(only) => Some(only),
        Cases::By(param, all) => all.get(usize::try_from(cases.get(*param).copied().flatten()?).ok()?),
    }
}

/// A shape with the dimensions of a pack as one.
fn flattened(dims: &[Dim], shape: &[i64]) -> Vec<i64> {
    let Some(pack) = dims.iter().position(|dim| matches!(dim, Dim::Pack(_))) else { return shape.to_vec() };
    let last = (dims.len() - pack - 1).min(shape.len());
    let (first, rest) = shape.split_at(pack.min(shape.len()));
    let (packed, last) = rest.split_at(rest.len().saturating_sub(last));
    [first, &[packed.iter().product()], last].concat()
}
