//! Import and export of FlashInfer-Bench definitions: round trips lose nothing, and errors name their location.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use lz_interchange::{
    CallArguments, Definition, ExportError, ExportOptions, export, export_workload, import, read,
};
use lz_schema::model::{Kind, Operation};
use lz_schema::{Reasons, SchemaSet, load_one};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut waiting = vec![folder.to_owned()];
    while let Some(folder) = waiting.pop() {
        for entry in fs::read_dir(&folder).expect("the folder is there").flatten() {
            let path = entry.path();
            if path.is_dir() {
                waiting.push(path);
            } else if path.extension().is_some_and(|found| found == extension) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/definitions")
}

fn reasons() -> Reasons {
    Reasons::load("schemas/reasons.yaml", &text(&root().join("schemas/reasons.yaml")))
        .expect("reasons are right")
}

fn checked(yaml: &str, what: &str) -> Operation {
    load_one(what, yaml, &reasons()).unwrap_or_else(|report| panic!("{what}\n{yaml}\n{report}"))
}

/// Imports, checks, exports: the definition must be the same, key for key and in the same order of arguments.
fn round_trip(json: &str, what: &str) -> (Operation, String) {
    let first = read(json, what).unwrap_or_else(|error| panic!("{error}"));
    let imported = import(json, what).unwrap_or_else(|error| panic!("{error}"));
    let operation = checked(&imported.yaml, what);
    assert_eq!(operation.name, imported.operation);
    let exported =
        export(&operation, &ExportOptions::default()).unwrap_or_else(|error| panic!("{what}: {error}"));
    let second = read(&exported, what).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(first, second, "{what}\n{}", imported.yaml);
    (operation, exported)
}

#[test]
fn fixtures_round_trip() {
    let good: Vec<PathBuf> =
        files(&fixtures(), "json").into_iter().filter(|path| path.parent() == Some(&fixtures())).collect();
    assert!(good.len() >= 6);
    for path in good {
        let (_, exported) = round_trip(&text(&path), &path.display().to_string());
        let (_, again) = round_trip(&exported, &path.display().to_string());
        assert_eq!(exported, again);
    }
}

/// `LZ_DEFINITIONS=folder` holds every definition of a folder, such as a copy of the public dataset, to the same.
#[test]
fn external_definitions_round_trip() {
    let Some(folder) = std::env::var_os("LZ_DEFINITIONS") else { return };
    let paths = files(Path::new(&folder), "json");
    assert!(!paths.is_empty());
    for path in &paths {
        round_trip(&text(path), &path.display().to_string());
    }
    println!("{} definitions round-trip", paths.len());
}

fn schema_of(name: &str) -> String {
    let path = fixtures().join(name);
    let imported = import(&text(&path), name).unwrap_or_else(|error| panic!("{error}"));
    let notes: Vec<String> = imported.notes.iter().map(|note| format!("# {note}\n")).collect();
    format!("{}{}", notes.concat(), imported.yaml)
}

#[test]
fn import_of_paged_decode() {
    insta::assert_snapshot!(schema_of("gqa_paged_decode_h8_kv2_d16_ps4.json"));
}

#[test]
fn import_renames_invalid_identifiers() {
    insta::assert_snapshot!(schema_of("gemm_n96_k40.json"));
}

#[test]
fn import_of_the_trace_dialect() {
    insta::assert_snapshot!(schema_of("second_dialect_append.json"));
}

#[test]
fn axes_of_an_import_can_be_fixed() {
    let json = text(&fixtures().join("gemm_n96_k40.json"));
    let (operation, _) = round_trip(&json, "gemm");
    let choice = ExportOptions { axes: BTreeMap::from([("m".to_owned(), 16)]), ..ExportOptions::default() };
    let fixed = read(&export(&operation, &choice).expect("it can"), "gemm").expect("we wrote it");
    assert_eq!(fixed.name, "gemm_n96_k40_M16");
    assert!(fixed.axes.iter().all(|(_, axis)| axis.constant && axis.value.is_some()));
    // Without variable axes the example workload is empty, which must be accepted too.
    round_trip(&lz_interchange::write(&fixed), "gemm");
}

#[test]
fn long_names_are_refused() {
    let json = text(&fixtures().join("gemm_n96_k40.json"));
    for (from, at) in [("\"M\"", "$.axes"), ("\"A\"", "$.inputs"), ("\"gemm_n96_k40\"", "$.name")] {
        assert!(json.contains(from));
        let error = import(&json.replace(from, &format!("\"{}\"", "m".repeat(300))), "long").unwrap_err();
        assert!(error.to_string().contains("at most 256 characters, and this one has 300"), "{error}");
        assert!(error.problems.iter().any(|problem| problem.path.starts_with(at)), "{error}");
    }
}

#[test]
fn space_around_a_constraint_is_preserved() {
    let json = text(&fixtures().join("second_dialect_append.json"));
    let spaced = json.replace("mask is None or nnz >= 1", " mask is None or nnz >=1 ");
    assert_ne!(json, spaced);
    round_trip(&spaced, "space");
}

#[test]
fn an_axis_whose_expression_has_no_size_is_dynamic() {
    for expression in ["M // 0", "N - 100"] {
        let json = format!(
            r#"{{"name": "halves", "op_type": "copy", "axes": {{"M": {{"type": "var"}}, "N": {{"type": "const", "value": 8}}, "P": {{"type": "var"}}}},
            "inputs": {{"x": {{"shape": ["M", "N"], "dtype": "float32"}}}}, "outputs": {{"y": {{"shape": ["P"], "dtype": "float32"}}}},
            "constraints": ["P == {expression}"], "reference": "def run(x):\n    return x[0]\n"}}"#
        );
        let imported = import(&json, "halves.json").unwrap_or_else(|error| panic!("{error}"));
        assert!(
            imported.notes.iter().any(|note| note.ends_with("so axis `P` is dynamic")),
            "{:?}",
            imported.notes
        );
        round_trip(&json, expression);
    }
}

#[test]
fn import_preserves_the_reference_verbatim() {
    for name in ["mla_paged_decode_h4_ckv32_kpe8_ps1.json", "top_p_sampling_v1000.json", "rmsnorm_h64.json"] {
        let json = text(&fixtures().join(name));
        let (operation, _) = round_trip(&json, name);
        let memory = operation.definition.expect("imported schemas keep the definition");
        assert_eq!(memory.reference, read(&json, name).expect("it is right").reference);
    }
}

#[test]
fn constraints_are_translated_or_preserved() {
    let json = text(&fixtures().join("gqa_paged_decode_h8_kv2_d16_ps4.json"));
    let (operation, _) = round_trip(&json, "gqa");
    let stated: Vec<&str> =
        operation.constraints.iter().map(|constraint| constraint.message.as_str()).collect();
    assert_eq!(
        stated,
        [
            "len_indptr == batch_size + 1",
            "num_qo_heads % num_kv_heads == 0",
            "kv_indptr.shape[0] == len_indptr"
        ]
    );
    assert!(operation.constraints.iter().all(|constraint| constraint.code == "CONSTRAINT_FAILED"));
    let kept = operation.definition.and_then(|memory| memory.constraints).expect("it has constraints");
    let marks: Vec<bool> = kept.iter().map(|constraint| constraint.value_dependent).collect();
    assert_eq!(marks, [false, true, false, false]);
}

fn options_of_first_workload(operation: &Operation, rank_one_only: bool) -> ExportOptions {
    let mut choice = ExportOptions::default();
    let Some(workload) = operation.workloads.first() else { return choice };
    for (axis, sizes) in operation.axes.iter().zip(&workload.axes) {
        if let Some([size]) = sizes.as_deref()
            && !(rank_one_only && axis.pack)
        {
            choice.axes.insert(axis.name.clone(), *size);
        }
    }
    choice
}

fn catalog() -> SchemaSet {
    let paths = files(&root().join("schemas/ops"), "yaml");
    let named = paths.iter().map(|path| {
        let shown = path.strip_prefix(root()).expect("inside").to_string_lossy().replace('\\', "/");
        (shown, text(path))
    });
    SchemaSet::load(named, &reasons()).unwrap_or_else(|report| panic!("\n{report}"))
}

fn has_only_tensors(operation: &Operation) -> bool {
    operation.inputs.iter().all(|input| input.kind == Kind::Tensor)
        && operation.outputs.iter().all(|output| output.kind == Kind::Tensor)
}

#[test]
fn all_tensor_operations_round_trip() {
    let set = catalog();
    let tensors: Vec<&Operation> =
        set.operations.iter().filter(|operation| has_only_tensors(operation)).collect();
    assert!(tensors.len() >= 30);
    let mut names = BTreeMap::new();
    for operation in tensors {
        for choice in [
            ExportOptions::default(),
            options_of_first_workload(operation, false),
            options_of_first_workload(operation, true),
        ] {
            let json =
                export(operation, &choice).unwrap_or_else(|error| panic!("{}: {error}", operation.name));
            let (imported, again) = round_trip(&json, &operation.name);
            assert_eq!(json, again);
            let definition = read(&json, &operation.name).expect("we wrote it");
            assert!(definition.reference.as_ref().is_some_and(|text| text.contains("\ndef run(")));
            assert!(definition.op_type == operation.flat_name() && imported.definition.is_some());
            names.insert(definition.name, operation.name.clone());
        }
    }
    assert!(names.len() > set.operations.len());
}

#[test]
fn operations_on_strings_cannot_be_exported() {
    let set = catalog();
    let others = set.operations.iter().filter(|operation| !has_only_tensors(operation));
    let refused = others.map(|operation| export(operation, &ExportOptions::default()));
    let refused: Vec<_> = refused.collect();
    assert!(!refused.is_empty());
    assert!(refused.iter().all(|result| matches!(result, Err(ExportError::NotTensors { .. }))));
}

fn exported(operation: &str, axes: &[(&str, i64)]) -> Result<String, ExportError> {
    let axes = axes.iter().map(|(name, size)| ((*name).to_owned(), *size)).collect();
    let set = catalog();
    let operation = set.get(operation).expect("it is in the catalog");
    export(operation, &ExportOptions { axes, ..ExportOptions::default() })
}

#[test]
fn export_of_paged_attention() {
    let axes = [("heads", 32), ("kv_heads", 8), ("head_dim", 128), ("page_size", 16)];
    insta::assert_snapshot!(exported("attention.gqa.decode.paged", &axes).expect("it can"));
}

#[test]
fn export_of_inputs_changed_in_place() {
    insta::assert_snapshot!(exported("norm.rms.add", &[("hidden", 4096)]).expect("it can"));
}

#[test]
fn invalid_export_options_are_reported() {
    let set = catalog();
    let operation = set.get("attention.gqa.decode.paged").expect("it is in the catalog");
    let one = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
    let axes = |axes: &[(&str, i64)]| ExportOptions {
        axes: axes.iter().map(|(name, size)| ((*name).to_owned(), *size)).collect(),
        ..ExportOptions::default()
    };
    let dtypes = |name: &str, dtype| ExportOptions {
        dtypes: BTreeMap::from([(name.to_owned(), dtype)]),
        ..ExportOptions::default()
    };
    let choices = [
        axes(&[("head_dims", 128)]),
        axes(&[("head_dim", -1)]),
        axes(&[("heads", 7), ("kv_heads", 2)]),
        dtypes("U", lz_schema::DType::F32),
        dtypes("T", lz_schema::DType::I8),
        ExportOptions { cases: one("layouts", "NHD"), ..ExportOptions::default() },
        ExportOptions { cases: one("layout", "NDH"), ..ExportOptions::default() },
    ];
    let errors: Vec<String> = choices
        .iter()
        .map(|choice| {
            export(operation, choice).map_or_else(|error| error.to_string(), |_| "nothing".to_owned())
        })
        .collect();
    insta::assert_snapshot!(errors.join("\n"));
}

#[test]
fn layout_selects_the_shape() {
    let set = catalog();
    let operation = set.get("attention.gqa.decode.paged").expect("it is in the catalog");
    let choice = ExportOptions {
        cases: BTreeMap::from([("layout".to_owned(), "HND".to_owned())]),
        ..ExportOptions::default()
    };
    let definition = read(&export(operation, &choice).expect("it can"), "").expect("we wrote it");
    let shape = |definition: &Definition| {
        let cache = definition.inputs.iter().find(|(name, _)| name == "k_cache");
        cache.and_then(|(_, argument)| argument.shape.clone()).unwrap_or_default().join(" ")
    };
    assert_eq!(shape(&definition), "num_pages kv_heads page_size head_dim");
    assert!(definition.tags.is_some_and(|tags| tags.contains(&"param:layout=HND".to_owned())));
}

#[test]
fn import_errors_name_the_location() {
    let mut shown = String::new();
    for path in files(&fixtures().join("fail"), "json") {
        let name = path.file_name().expect("it is a file").to_string_lossy().into_owned();
        match import(&text(&path), &name) {
            Ok(_) => panic!("{name} was imported"),
            Err(error) => shown.push_str(&format!("{error}\n\n")),
        }
    }
    insta::assert_snapshot!(shown);
}

mod hostile {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whatever a file holds, the answer is a schema that passes our checks, or an error.
        #[test]
        fn damaged_files_never_panic(which in 0_usize..6, at in any::<prop::sample::Index>(), put in "[ -~]{0,3}", cut in 0_usize..4) {
            let paths = files(&fixtures(), "json");
            let path = paths.iter().filter(|path| path.parent() == Some(&fixtures())).nth(which).expect("six fixtures");
            let json: Vec<char> = text(path).chars().collect();
            let at = at.index(json.len());
            let damaged: String = json.iter().take(at).copied().chain(put.chars()).chain(json.iter().skip(at + cut).copied()).collect();
            if let Ok(imported) = import(&damaged, "damaged") {
                let operation = checked(&imported.yaml, "damaged");
                let exported = export(&operation, &ExportOptions::default()).expect("an imported schema can go out");
                prop_assert_eq!(read(&damaged, "damaged"), read(&exported, "damaged"));
            }
        }
    }
}

#[test]
fn a_call_is_exported_as_a_workload_of_its_definition() {
    let operation = checked(&text(&root().join("schemas/ops/norm/rms.yaml")), "norm.rms");
    let mut call = CallArguments::default();
    call.tensors.insert("x".to_owned(), (lz_schema::DType::BF16, vec![2, 3, 64]));
    call.tensors.insert("weight".to_owned(), (lz_schema::DType::F32, vec![64]));
    call.scalars.insert("eps".to_owned(), 1e-5.into());
    let exported =
        export_workload(&operation, &call, "inputs.safetensors", "some-id").expect("it is exported");
    let definition = read(&exported.definition, "definition").unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(definition.name, exported.name);
    let dtype = |name: &str| {
        let argument = definition.inputs.iter().find(|(known, _)| known == name);
        argument.map(|(_, argument)| argument.dtype.clone()).unwrap_or_default()
    };
    assert_eq!((dtype("x").as_str(), dtype("weight").as_str()), ("bfloat16", "float32"));
    assert_eq!(exported.shapes["x"], [6, 64], "a pack is one dimension");
    let trace: serde_json::Value = serde_json::from_str(&exported.workload).expect("one line of JSON");
    assert_eq!(trace["definition"], exported.name.as_str());
    assert_eq!(trace["workload"]["axes"], serde_json::json!({"rows": 6, "hidden": 64}));
    assert_eq!(trace["workload"]["inputs"]["eps"], serde_json::json!({"type": "scalar", "value": 1e-5}));
    assert_eq!(trace["workload"]["inputs"]["weight"]["tensor_key"], "weight");
    assert!(trace["workload"]["inputs"].get("weight_offset").is_none(), "absent arguments are left out");
}

#[test]
fn name_with_line_breaks_makes_a_summary_of_one_line() {
    let fixture = text(&fixtures().join("rmsnorm_h64.json"));
    let mut definition: serde_json::Value = serde_json::from_str(&fixture).unwrap();
    definition["name"] = "two\n words".into();
    definition.as_object_mut().unwrap().remove("description");
    let (operation, _) = round_trip(&definition.to_string(), "two words");
    assert_eq!(operation.summary, "Imported from the definition two words.");
}
