//! Operations, their kernels, and explanations of calls as text.

use lz_core::{KernelEntry, OperationInfo};
use lz_perfdb::Filter;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Source, measurements};
use crate::call;

/// All operations.
pub fn operations(source: &Source) -> Value {
    let registry = source.engine.registry();
    let db = source.perfdb();
    let one = |operation: &'static OperationInfo| {
        let filter = Filter { operation: Some(operation.name.to_string()), ..Filter::default() };
        json!({
            "name": operation.name,
            "summary": operation.schema().summary,
            "kernels": registry.kernels_of(operation).count(),
            "measurements": db.as_ref().map_or(0, |db| db.count(&filter)),
        })
    };
    json!({"operations": registry.operations().map(one).collect::<Vec<Value>>()})
}

/// One operation with its kernels and measurements; `None` if there is no such operation.
pub fn operation(source: &Source, name: &str) -> Option<Value> {
    let registry = source.engine.registry();
    let operation = registry.operation(name)?;
    let schema = operation.schema();
    let kernel = |entry: &KernelEntry| {
        let spec = &entry.spec;
        let dtypes = spec.dtypes.iter().map(|(variable, dtypes)| {
            let names: Vec<&str> = dtypes.iter().map(|dtype| dtype.name()).collect();
            format!("{variable}: {}", names.join(", "))
        });
        json!({
            "id": spec.id,
            "backend": spec.backend,
            "version": spec.version,
            "platform": spec.platform.to_string(),
            "priority": spec.priority,
            "reference": spec.reference,
            "dtypes": dtypes.collect::<Vec<String>>(),
        })
    };
    let examples = call::examples(operation).into_iter();
    Some(json!({
        "name": operation.name,
        "version": operation.version,
        "summary": schema.summary,
        "aliases": schema.aliases.iter().map(|alias| alias.name.as_str()).collect::<Vec<&str>>(),
        "inputs": schema.inputs.iter().map(|input| json!({"name": input.name, "doc": input.doc, "optional": input.optional.is_some()})).collect::<Vec<Value>>(),
        "params": schema.params.iter().map(|param| json!({"name": param.name, "doc": param.doc})).collect::<Vec<Value>>(),
        "kernels": registry.kernels_of(operation).map(kernel).collect::<Vec<Value>>(),
        "examples": examples.map(|(name, call)| json!({"name": name, "call": call})).collect::<Vec<Value>>(),
        "measurements": measurements(source, name),
    }))
}

/// A call to explain.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExplainRequest {
    /// The operation.
    pub operation: String,
    /// The arguments as text.
    pub call: String,
    /// A preset, to explain the call on a simulated device; empty for this machine.
    #[serde(default)]
    pub device: String,
}

/// Why a kernel is selected for a call.
pub fn explain(source: &Source, request: &ExplainRequest) -> Result<Value, String> {
    let registry = source.engine.registry();
    let name = request.operation.as_str();
    let operation = registry.find_operation(name).map_err(|error| error.to_string())?;
    let context = call::context(operation, &request.call)?;
    let explanation = if request.device.is_empty() {
        source.engine.explain(operation, &context)
    } else {
        let device = lz_device::preset(&request.device).map_err(|error| error.to_string())?;
        source.engine.with_device(device).explain(operation, &context)
    };
    serde_json::to_value(explanation).map_err(|error| error.to_string())
}
