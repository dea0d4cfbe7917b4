//! The calls of the workloads as JSON, to repeat them elsewhere: every tensor with its name, dtype and shape,
//! and with its values if they affect control flow.

use lz_conformance::call::OwnedArg;
use lz_conformance::memory::OwnedTensor;
use lz_core::DType;
use lz_core::tensor::Indices;
use lz_schema::model::Operation;
use serde_json::{Map, Value, json};

use crate::cases::Case;

/// One case.
pub fn case_description(operation: &Operation, case: &Case) -> Value {
    let mut tensors = Map::new();
    for (input, arg) in operation.inputs.iter().zip(&case.call.args) {
        if let Some(tensor) = arg.tensor() {
            let changed = matches!(arg, OwnedArg::Written(_));
            tensors.insert(input.name.clone(), tensor_description(tensor, changed));
        }
    }
    json!({
        "operation": operation.name,
        "workload": case.workload,
        "tensors": tensors,
        "params": case.description["params"],
        "flops": case.work.flops,
        "bytes": case.work.read + case.work.written,
    })
}

fn tensor_description(tensor: &OwnedTensor, changed: bool) -> Value {
    let (layout, view) = (tensor.layout(), tensor.view());
    let mut description =
        json!({ "dtype": layout.dtype.to_string(), "shape": layout.shape.to_vec(), "changed": changed });
    if matches!(layout.dtype, DType::I32 | DType::I64 | DType::Bool) {
        let values: Vec<i64> = Indices::new(&layout.shape).map(|index| view.int_at(&index)).collect();
        description["values"] = json!(values);
    }
    description
}
