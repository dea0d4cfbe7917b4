//! The JSON Schema of a policy file, for editors.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

use super::List;
use super::settings::{Kind, SETTINGS, SYNONYMS, Setting, WITHOUT_EFFECT};

/// Marker type for the JSON Schema of a policy file.
#[derive(Debug, Clone, Copy)]
pub struct PolicySchema;

impl JsonSchema for PolicySchema {
    fn schema_name() -> Cow<'static, str> {
        "Policy".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let profile = generator.subschema_for::<ProfileSchema>().to_value();
        let mut properties = properties(generator);
        properties.insert(
            "version".to_owned(),
            json!({ "description": "Version of this language; next to `schema_version`, of the file itself." }),
        );
        properties.insert(
            "schema_version".to_owned(),
            json!({ "description": "Version of this language, if `version` is that of the file itself.", "enum": [1, 2] }),
        );
        for key in ["profiles", "policies"] {
            properties.insert(
                key.to_owned(),
                json!({
                    "description": "Named sets of settings and rules that override the rest of the file when selected by `profile` or by a call.",
                    "type": "object",
                    "additionalProperties": profile,
                }),
            );
        }
        json_schema!({
            "description": "A policy for kernel selection.",
            "type": "object",
            "additionalProperties": false,
            "properties": properties,
        })
    }
}

struct ProfileSchema;

impl JsonSchema for ProfileSchema {
    fn schema_name() -> Cow<'static, str> {
        "Profile".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let properties = properties(generator);
        json_schema!({
            "description": "A named set of settings, locks, lists and rules.",
            "type": "object",
            "additionalProperties": false,
            "properties": properties,
        })
    }
}

/// The properties that a file and a profile share.
fn properties(generator: &mut SchemaGenerator) -> Map<String, Value> {
    let mut properties = Map::new();
    for setting in SETTINGS {
        insert(&mut properties, setting.key, setting);
    }
    for (key, stands_for) in SYNONYMS {
        if let Some(setting) = Setting::find(stands_for) {
            insert(&mut properties, key, setting);
        }
    }
    for (key, why) in WITHOUT_EFFECT {
        insert_schema(
            &mut properties,
            key,
            json!({ "description": format!("Has no effect: {why}."), "deprecated": true }),
        );
    }
    properties.insert(
        "kernels".to_owned(),
        json!({
            "description": "Implementations of operations, each with a priority that is added to the score where its constraints hold.",
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "additionalProperties": false,
                "required": ["implementations"],
                "properties": {
                    "operation": { "type": "string", "minLength": 1 },
                    "implementations": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "additionalProperties": false,
                            "required": ["name"],
                            "properties": {
                                "name": { "type": "string", "minLength": 1 },
                                "dispatch_key": { "type": "string" },
                                "priority": { "type": "number" },
                                "constraints": { "type": "object" },
                            },
                        },
                    },
                },
            },
        }),
    );
    for (_, kernels, sources) in List::ALL {
        let docs = format!("Kernels to {kernels}, by pattern: `flashinfer.*`.");
        properties.insert(kernels.to_owned(), patterns(&docs));
        properties.insert(sources.to_owned(), patterns(&format!("Backends to {kernels}.")));
    }
    properties.insert(
        "locks".to_owned(),
        json!({
            "description": "Operations or aliases, each with the only kernel that may run it.",
            "type": "object",
            "additionalProperties": { "type": "string", "minLength": 1 },
        }),
    );
    let rule = generator.subschema_for::<RuleSchema>().to_value();
    properties.insert(
        "rules".to_owned(),
        json!({ "description": "Conditional rules, applied in order.", "type": "array", "items": rule }),
    );
    for (key, what) in [("lock_rules", "locked"), ("deny_rules", "denied"), ("allow_rules", "allowed")] {
        properties.insert(
            key.to_owned(),
            json!({
                "description": format!("Kernels that are {what} if all conditions are true."),
                "type": "array",
                "items": {
                    "type": "object",
                    "additionalProperties": false,
                    "required": ["kernel"],
                    "properties": {
                        "kernel": { "type": "string", "minLength": 1 },
                        "operation": { "type": "string", "minLength": 1 },
                        "conditions": { "type": "array", "items": { "type": "string" } },
                    },
                },
            }),
        );
    }
    properties
}

fn insert(properties: &mut Map<String, Value>, key: &str, setting: &Setting) {
    insert_schema(properties, key, of_setting(setting));
}

fn insert_schema(properties: &mut Map<String, Value>, key: &str, schema: Value) {
    match key.split_once('.') {
        None => {
            properties.insert(key.to_owned(), schema);
        }
        Some((section, name)) => {
            let entry = properties.entry(section.to_owned()).or_insert_with(
                || json!({ "type": "object", "additionalProperties": false, "properties": {} }),
            );
            entry["properties"][name] = schema;
        }
    }
}

fn of_setting(setting: &Setting) -> Value {
    let mut schema = match setting.kind {
        Kind::Bool { default } => json!({ "type": "boolean", "default": default }),
        Kind::Int { default, least, most: i64::MAX } => {
            json!({ "type": "integer", "minimum": least, "default": default })
        }
        Kind::Int { default, least, most } => {
            json!({ "type": "integer", "minimum": least, "maximum": most, "default": default })
        }
        Kind::Float { default, least, most } if most == f64::MAX => {
            json!({ "type": "number", "minimum": least, "default": default })
        }
        Kind::Float { default, least, most } => {
            json!({ "type": "number", "minimum": least, "maximum": most, "default": default })
        }
        Kind::Word { default, words } => json!({ "enum": words, "default": default }),
        Kind::WordByName { default, words } => json!({
            "anyOf": [
                { "enum": words },
                { "type": "object", "additionalProperties": { "enum": words } },
            ],
            "default": default,
        }),
        Kind::Texts => {
            json!({ "type": "array", "items": { "type": "string", "minLength": 1 }, "default": [] })
        }
        Kind::Text { default } => json!({ "type": "string", "minLength": 1, "default": default }),
        Kind::Ints { default } => {
            json!({ "type": "array", "items": { "type": "integer", "minimum": 0 }, "default": default })
        }
        Kind::NumberTable => {
            json!({ "type": "object", "additionalProperties": { "type": "integer", "minimum": 0 } })
        }
        Kind::RangeTable => json!({
            "type": "object",
            "propertyNames": { "pattern": "^[0-9]+(\\.\\.[0-9]+)?$" },
            "additionalProperties": { "type": "string", "minLength": 1 },
        }),
    };
    schema["description"] = setting.doc.into();
    schema
}

fn patterns(description: &str) -> Value {
    json!({ "description": description, "type": "array", "items": { "type": "string", "minLength": 1 } })
}

struct RuleSchema;

impl JsonSchema for RuleSchema {
    fn schema_name() -> Cow<'static, str> {
        "Rule".into()
    }

    fn json_schema(_generator: &mut SchemaGenerator) -> Schema {
        let mut properties = actions();
        properties.insert(
            "name".to_owned(),
            json!({ "description": "A name for explanations.", "type": "string" }),
        );
        properties.insert(
            "operation".to_owned(),
            json!({ "description": "The operations or aliases that the rule applies to, by pattern.", "type": "string" }),
        );
        properties.insert(
            "match".to_owned(),
            json!({
                "description": "Names and their required values: `sm: \">=90\"`, `dtype: [f16, bf16]`, `operation: attention.*`.",
                "type": "object",
                "minProperties": 1,
                "additionalProperties": {
                    "anyOf": [
                        { "type": ["string", "number", "boolean"] },
                        { "type": "array", "items": { "type": ["string", "number"] }, "minItems": 1 },
                    ]
                },
            }),
        );
        properties.insert(
            "condition".to_owned(),
            json!({ "description": "A bool expression: `batch_size >= 8 and target.has_tensor_cores`.", "type": ["string", "boolean"] }),
        );
        properties.insert(
            "action".to_owned(),
            json!({ "description": "The actions of the rule; the same keys are also allowed in the rule itself.", "type": "object", "additionalProperties": false, "properties": actions() }),
        );
        json_schema!({
            "description": "Actions that apply if a condition is true.",
            "type": "object",
            "additionalProperties": false,
            "properties": properties,
        })
    }
}

/// The actions of a rule.
fn actions() -> Map<String, Value> {
    let mut properties = Map::new();
    let one_or_many = |description: String| {
        json!({
            "description": description,
            "anyOf": [
                { "type": "string", "minLength": 1 },
                { "type": "array", "items": { "type": "string", "minLength": 1 } },
            ]
        })
    };
    for (_, kernels, sources) in List::ALL {
        properties.insert(kernels.to_owned(), one_or_many(format!("Kernels to {kernels}, by pattern.")));
        properties.insert(sources.to_owned(), one_or_many(format!("Backends to {kernels}.")));
    }
    let kernel = |description: &str| json!({ "description": description, "type": "string", "minLength": 1 });
    properties.insert("lock".to_owned(), kernel("Only this kernel; an error if it cannot run the call."));
    properties.insert(
        "kernel_override".to_owned(),
        kernel("This kernel is preferred over all others if it can run the call."),
    );
    properties.insert(
        "priority_boost".to_owned(),
        json!({ "description": "Added to the score of the kernels in `kernels`, or of all kernels.", "type": "number" }),
    );
    properties
        .insert("kernels".to_owned(), kernel("The kernels that `priority_boost` applies to, by pattern."));
    properties.insert(
        "filter_kernels".to_owned(),
        json!({
            "description": "Bool expressions over the properties of a kernel: `deterministic == true`.",
            "type": "array",
            "items": { "type": "string", "minLength": 1 },
        }),
    );
    properties
}
