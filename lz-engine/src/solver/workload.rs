//! The workloads of a schema as contexts of dense calls with these sizes.

use lz_schema::expr::Value;
use lz_schema::model::{Operation, Workload};

use lz_core::context::{Context, FRESH_OUTPUT, Field, FieldKind, device_bits};
use lz_core::error::Error;
use lz_core::operation::OperationInfo;
use lz_core::reason::{Reason, ReasonCode};
use lz_core::tensor::Device;

/// One context per workload, as if its tensors were dense and on this device.
pub(crate) fn contexts(operation: &'static OperationInfo, device: Device) -> Result<Vec<Context>, Error> {
    let schema = operation.schema();
    schema
        .workloads
        .iter()
        .map(|workload| {
            context(operation, schema, workload, device).ok_or_else(|| {
                let message = format!("workload {} does not define all values", workload.name);
                let reason = Reason::new(ReasonCode::SchemaInvalid).message(message);
                Error::Validation { operation: schema.name.clone(), reasons: vec![reason] }
            })
        })
        .collect()
}

fn context(
    operation: &OperationInfo,
    schema: &Operation,
    workload: &Workload,
    device: Device,
) -> Option<Context> {
    let values = workload.values(schema)?;
    let mut context = Context::of(&operation.fields);
    for (index, field) in operation.fields.iter().enumerate() {
        let raw = match (values.get(index), &field.kind) {
            (Some(Value::Int(value)), _) => *value as u64,
            (Some(Value::Float(value)), _) => value.to_bits(),
            (Some(Value::Bool(value)), _) => u64::from(*value),
            (Some(Value::Enum(case)), _) => u64::from(*case),
            (None, FieldKind::DType) => dtype(schema, workload, field),
            (None, FieldKind::Strides) => strides(schema, workload, field),
            (None, FieldKind::Device) => device_bits(device),
            (None, _) => 0,
        };
        if !context.replace(field.store, raw) {
            return None;
        }
    }
    Some(context)
}

fn dtype(schema: &Operation, workload: &Workload, field: &Field) -> u64 {
    let variable = schema.types.iter().position(|variable| variable.name == field.name);
    let dtype = variable.and_then(|variable| workload.types.get(variable).copied().flatten());
    dtype.map_or(0, |dtype| dtype as u64)
}

/// All given tensors are dense and aligned.
fn strides(schema: &Operation, workload: &Workload, field: &Field) -> u64 {
    let name = field.name.strip_prefix("strides(").and_then(|name| name.strip_suffix(')'));
    let input = schema.inputs.iter().position(|input| Some(input.name.as_str()) == name);
    match input.and_then(|input| workload.given.get(input)) {
        Some(false) => 0,
        _ => FRESH_OUTPUT,
    }
}
