//! The catalogue of the repository is right, and the editor schemas know every key that it uses.

use std::fs;
use std::path::{Path, PathBuf};

use lz_schema::model::{DTypeRef, Dim, Operation};
use lz_schema::{Reasons, SchemaSet};

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
    for entry in fs::read_dir(folder).expect("the folder of operations is there").flatten() {
        let path = entry.path();
        if path.is_dir() {
            yaml_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "yaml") {
            found.push(path);
        }
    }
}

fn catalogue() -> Vec<(String, String)> {
    let mut paths = Vec::new();
    yaml_files(&root().join("schemas/ops"), &mut paths);
    paths.sort();
    let shown = |path: &Path| path.strip_prefix(root()).expect("inside").to_string_lossy().replace('\\', "/");
    paths.iter().map(|path| (shown(path), read(path))).collect()
}

fn load() -> SchemaSet {
    SchemaSet::load(catalogue(), &reasons()).unwrap_or_else(|report| panic!("\n{report}"))
}

fn get<'a>(set: &'a SchemaSet, name: &str) -> &'a Operation {
    set.get(name).unwrap_or_else(|| panic!("`{name}` is not in the catalogue"))
}

#[test]
fn every_operation_of_the_catalogue_is_right() {
    assert_eq!(load().operations.len(), catalogue().len());
}

#[test]
fn root_mean_square_norm_is_read_as_written() {
    let set = load();
    let norm = get(&set, "norm.rms");
    let [rows, hidden] = norm.axes.as_slice() else { panic!("two axes") };
    assert!(rows.pack && !hidden.pack);
    assert_eq!(rows.bound_by.as_ref().map(|binding| (binding.input, binding.offset)), Some((0, 0)));
    assert!(matches!(norm.inputs[0].shape.all()[0].as_slice(), [Dim::Pack(0), Dim::Axis(1)]));
    assert_eq!(norm.inputs[0].dtype.all(), [DTypeRef::Variable(0)]);
    assert_eq!(norm.inputs[0].optional, None);
    // Two axes and two params come before the first `given`.
    assert_eq!(norm.inputs[1].optional, Some(4));
    assert_eq!(norm.params[0].range.as_ref().map(|range| range.text.as_str()), Some("eps >= 0"));
    assert_eq!(norm.digest.len(), 64);
}

#[test]
fn an_axis_plus_a_constant_binds() {
    let set = load();
    let decode = get(&set, "tokenize.decode");
    let batch = decode.axes.iter().find(|axis| axis.name == "batch").expect("an axis");
    assert_eq!(batch.bound_by.as_ref().map(|binding| binding.offset), Some(1));
}
