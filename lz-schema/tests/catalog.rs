//! All operations of the repository are valid, and the editor schemas accept every key that they use.

use std::fs;
use std::path::{Path, PathBuf};

use lz_schema::model::{DTypeRef, Dim, Operation};
use lz_schema::source::{self, Node, Source, Value};
use lz_schema::{Reasons, SchemaSet, editor};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn reasons() -> Reasons {
    let path = root().join("schemas/reasons.yaml");
    Reasons::load("schemas/reasons.yaml", &read(&path)).unwrap_or_else(|report| panic!("\n{report}"))
}

fn yaml_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("schemas/ops exists").flatten() {
        let path = entry.path();
        if path.is_dir() {
            yaml_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "yaml") {
            found.push(path);
        }
    }
}

fn catalog() -> Vec<(String, String)> {
    let mut paths = Vec::new();
    yaml_files(&root().join("schemas/ops"), &mut paths);
    paths.sort();
    let shown = |path: &Path| path.strip_prefix(root()).expect("inside").to_string_lossy().replace('\\', "/");
    paths.iter().map(|path| (shown(path), read(path))).collect()
}

fn load() -> SchemaSet {
    SchemaSet::load(catalog(), &reasons()).unwrap_or_else(|report| panic!("\n{report}"))
}

fn get<'a>(set: &'a SchemaSet, name: &str) -> &'a Operation {
    set.get(name).unwrap_or_else(|| panic!("operation `{name}` does not exist"))
}

/// Converts a YAML value to JSON as editors do: scalars follow YAML's core schema.
fn to_json(node: &Node) -> serde_json::Value {
    match &node.value {
        Value::Scalar(scalar) if scalar.plain => {
            serde_json::from_str(&scalar.text).unwrap_or_else(|_| scalar.text.clone().into())
        }
        Value::Scalar(scalar) => scalar.text.clone().into(),
        Value::Sequence(items) => items.iter().map(to_json).collect(),
        Value::Mapping(entries) => {
            let key = |node: &Node| to_json(node).as_str().expect("keys are scalars").to_owned();
            serde_json::Value::Object(
                entries.iter().map(|(name, value)| (key(name), to_json(value))).collect(),
            )
        }
        Value::Alias => serde_json::Value::Null,
    }
}

/// A validator for the subset of JSON Schema that the editor schemas use, to avoid a dependency.
fn fits(root: &serde_json::Value, schema: &serde_json::Value, value: &serde_json::Value) -> bool {
    if let Some(reference) = schema["$ref"].as_str() {
        return fits(
            root,
            root.pointer(reference.trim_start_matches('#')).expect("the reference is defined"),
            value,
        );
    }
    let is = |name: &str| match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64(),
        "number" => value.is_number(),
        other => panic!("unsupported type {other}"),
    };
    let typed = match &schema["type"] {
        serde_json::Value::String(name) => is(name),
        serde_json::Value::Array(names) => names.iter().any(|name| is(name.as_str().expect("a name"))),
        _ => true,
    };
    let every =
        |key: &str| schema[key].as_array().is_none_or(|all| all.iter().all(|one| fits(root, one, value)));
    let any = schema["anyOf"].as_array().is_none_or(|all| all.iter().any(|one| fits(root, one, value)));
    let listed = schema["enum"].as_array().is_none_or(|values| values.contains(value));
    let items = value.as_array().is_none_or(|items| {
        schema.get("items").is_none_or(|schema| items.iter().all(|item| fits(root, schema, item)))
    });
    let properties = value.as_object().is_none_or(|object| {
        object.iter().all(|(key, value)| {
            match (schema["properties"].get(key), &schema["additionalProperties"]) {
                (Some(schema), _) => fits(root, schema, value),
                (None, serde_json::Value::Bool(allowed)) => *allowed,
                (None, serde_json::Value::Null) => true,
                (None, schema) => fits(root, schema, value),
            }
        })
    });
    let required = schema["required"]
        .as_array()
        .is_none_or(|keys| keys.iter().all(|key| value.get(key.as_str().expect("a key")).is_some()));
    typed && every("allOf") && any && listed && items && properties && required
}

#[test]
fn editor_schemas_accept_all_operations() {
    let schema = editor::operation_schema();
    let mut files = catalog();
    let everything = "lz-schema/tests/ui/pass/everything.yaml";
    files.push((everything.to_owned(), read(&root().join(everything))));
    for (path, text) in files {
        let (node, issues) = source::parse(&Source::new(path.as_str(), &text));
        assert!(issues.is_empty(), "{path}: {issues:?}");
        let mut value = to_json(&node.expect("the file is valid YAML"));
        assert!(fits(&schema, &schema, &value), "{path} does not match the editor schema");
        value["oparation"] = "x".into();
        assert!(!fits(&schema, &schema, &value), "{path}: the editor schema accepts an unknown key");
    }
    let schema = editor::reasons_schema();
    let text = read(&root().join("schemas/reasons.yaml"));
    let (node, _) = source::parse(&Source::new("schemas/reasons.yaml", &text));
    assert!(fits(&schema, &schema, &to_json(&node.expect("the file is valid YAML"))));
}

#[test]
fn editor_schemas_are_draft_7_and_describe_every_key() {
    for schema in [editor::operation_schema(), editor::reasons_schema()] {
        assert_eq!(schema["$schema"], "http://json-schema.org/draft-07/schema#");
        let properties = schema["properties"].as_object().expect("an object");
        assert!(properties.values().all(|property| property["description"].is_string()), "{properties:#?}");
    }
}

#[test]
fn all_operations_are_valid() {
    assert_eq!(load().operations.len(), catalog().len());
}

#[test]
fn rms_norm_is_parsed_completely() {
    let set = load();
    let norm = get(&set, "norm.rms");
    let [rows, hidden] = norm.axes.as_slice() else { panic!("two axes") };
    assert!(rows.pack && !hidden.pack);
    assert_eq!(rows.bound_by.as_ref().map(|binding| (binding.input, binding.offset)), Some((0, 0)));
    assert!(matches!(norm.inputs[0].shape.all()[0].as_slice(), [Dim::Pack(0), Dim::Axis(1)]));
    assert_eq!(norm.inputs[0].dtype.all(), [DTypeRef::Variable(0)]);
    assert_eq!(norm.inputs[0].optional, None);
    // The slots of two axes and two params precede the first `given`.
    assert_eq!(norm.inputs[1].optional, Some(4));
    assert_eq!(norm.params[0].range.as_ref().map(|range| range.text.as_str()), Some("eps >= 0"));
    assert_eq!(norm.digest.len(), 64);
}

#[test]
fn axis_plus_constant_binds_the_axis() {
    let set = load();
    let decode = get(&set, "tokenize.decode");
    let batch = decode.axes.iter().find(|axis| axis.name == "batch").expect("an axis");
    assert_eq!(batch.bound_by.as_ref().map(|binding| binding.offset), Some(1));
}

#[test]
fn specialization_is_the_general_operation_with_equal_axes() {
    let set = load();
    let (general, special) = (get(&set, "attention.gqa.decode"), get(&set, "attention.standard.decode"));
    let relation = special.specializes.as_ref().expect("a specialization");
    assert_eq!(relation.operation, general.name);
    assert_eq!(relation.equal, [("kv_heads".to_owned(), "heads".to_owned())]);
    let axes = |operation: &Operation| -> Vec<String> {
        operation.axes.iter().map(|axis| axis.name.clone()).collect()
    };
    let own = ["batch", "heads", "head_dim", "seq_k", "head_dim_v", "score_mod_bytes", "score_param_count"];
    assert_eq!(axes(special), own);
    assert!(matches!(
        special.inputs[1].shape.all()[1].as_slice(),
        [Dim::Axis(0), Dim::Axis(1), Dim::Axis(3), Dim::Axis(2)]
    ));
    // Constraints on the replaced axis do not apply; sizes for tests are its own.
    assert_eq!(special.constraints.len(), 2);
    assert_eq!(special.axes[1].models, [12, 20, 25, 32]);
    assert_eq!(special.params.len(), general.params.len());
    assert_ne!(special.digest, general.digest);
}

#[test]
fn digest_of_a_specialization_depends_on_both_files() {
    let digest = |change: &str| {
        let files = catalog().into_iter().map(|(path, text)| {
            let changed = path.ends_with(change);
            (path, if changed { text + "\n# changed" } else { text })
        });
        let set = SchemaSet::load(files, &reasons()).unwrap_or_else(|report| panic!("\n{report}"));
        get(&set, "attention.standard.decode").digest.clone()
    };
    let unchanged = digest("no such file");
    assert_eq!(digest("gqa/prefill.yaml"), unchanged);
    assert_ne!(digest("gqa/decode.yaml"), unchanged);
    assert_ne!(digest("standard/decode.yaml"), unchanged);
}
