//! JSON Schemas (draft 7) with which editors complete and validate the YAML files.
//!
//! They are derived from the same declarations as the parser, so that both accept the same keys.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::Value;

use crate::policy::PolicySchema;
use crate::raw::language::{RawOperation, RawReasons};

/// The schema of an operation's file, `schemas/operation.schema.json`.
pub fn operation_schema() -> Value {
    schema_of::<RawOperation>("LayerZero operation")
}

/// The schema of `schemas/reasons.yaml`, `schemas/reasons.schema.json`.
pub fn reasons_schema() -> Value {
    schema_of::<RawReasons>("LayerZero reasons")
}

/// The schema of a policy file, `schemas/policy.schema.json`.
pub fn policy_schema() -> Value {
    schema_of::<PolicySchema>("LayerZero policy")
}

fn schema_of<T: JsonSchema>(title: &str) -> Value {
    let mut schema = SchemaSettings::draft07().into_generator().into_root_schema_for::<T>();
    schema.insert("title".to_owned(), title.into());
    schema.to_value()
}
