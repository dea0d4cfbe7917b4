//! The ONNX backend node tests through the front end and the interpreted executor, with the references as kernels.
//!
//! `tests/onnx/graph.txt` lists every case that is refused, with the reason. The test fails if a case gives other results than
//! expected, and if the list is out of date; `UPDATE_ONNX_LIST=1` writes it. `ONNX_CASE=text` runs only cases whose names contain
//! the text.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use lz_core::tensor::Indices;
use lz_core::{DType, Tensor, TensorView};
use lz_engine::Engine;
use lz_graph::import::onnx::tensor::{NamedTensor, read_tensor};
use lz_graph::import::onnx::wire::Chunk;
use lz_graph::import::onnx::{Options, from_bytes, read};
use lz_graph::{Graph, GraphError, interpret};

const LIST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/onnx/graph.txt");

/// Number of cases in `onnx` 1.22.0; fewer would mean incomplete data.
const CASE_COUNT: usize = 1765;

/// Cases whose expected results differ from ours, and why that is no mistake of ours.
const DIFFERENT: &[(&str, &str)] = &[];

/// How many elements were compared.
static ELEMENTS: AtomicUsize = AtomicUsize::new(0);

enum Outcome {
    Passed,
    Refused(String),
    Failed(String),
}

fn data_directory() -> PathBuf {
    match std::env::var_os("LZ_ONNX_DATA") {
        Some(directory) => PathBuf::from(directory),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/oracles/onnx-1.22.0/node"),
    }
}

fn engine() -> Engine {
    let engine = Engine::new();
    engine.register(lz_ops::reference_kernels::kernels()).unwrap();
    engine.register(lz_primitives::reference_kernels()).unwrap();
    engine
}

#[test]
fn every_node_test_passes_or_is_refused_with_a_listed_reason() {
    let directory = data_directory();
    let entries = std::fs::read_dir(&directory).unwrap_or_else(|error| {
        panic!("{}: {error}; `cargo xtask test` fetches the cases, or set LZ_ONNX_DATA", directory.display())
    });
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    let engine = engine();
    let filter = std::env::var("ONNX_CASE").unwrap_or_default();
    assert!(!filter.is_empty() || folders.len() == CASE_COUNT, "{} cases, not {CASE_COUNT}", folders.len());
    let (mut refused, mut failed) = (BTreeMap::new(), Vec::new());
    let mut passed = 0;
    for folder in folders {
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        if !name.contains(&filter) {
            continue;
        }
        let outcome = catch_unwind(AssertUnwindSafe(|| run_case(&engine, &folder)));
        match outcome.unwrap_or_else(|_| Outcome::Failed("panicked".to_owned())) {
            Outcome::Passed => passed += 1,
            Outcome::Refused(reason) => drop(refused.insert(name, reason)),
            Outcome::Failed(_) if DIFFERENT.iter().any(|(different, _)| *different == name) => {}
            Outcome::Failed(message) => failed.push(format!("{name}: {message}")),
        }
    }
    let elements = ELEMENTS.load(Ordering::Relaxed);
    println!("{passed} passed with {elements} elements, {} refused, {} failed", refused.len(), failed.len());
    if filter.is_empty() {
        check_list(&refused);
    } else {
        refused.iter().for_each(|(name, reason)| println!("refused {name}: {reason}"));
    }
    assert!(failed.is_empty(), "{} cases failed:\n{}", failed.len(), failed.join("\n"));
}

fn check_list(refused: &BTreeMap<String, String>) {
    let mut text = String::from(
        "# Node tests of onnx 1.22.0 that the ONNX front end refuses, and why. Written by lz-graph/tests/onnx_nodes.rs with UPDATE_ONNX_LIST=1.\n",
    );
    refused.iter().for_each(|(name, reason)| text.push_str(&format!("{name}: {reason}\n")));
    if std::env::var_os("UPDATE_ONNX_LIST").is_some() {
        std::fs::write(LIST, text).unwrap();
        return;
    }
    let listed = std::fs::read_to_string(LIST).unwrap();
    let (listed, found): (Vec<&str>, Vec<&str>) = (listed.lines().collect(), text.lines().collect());
    let missing: Vec<&&str> = found.iter().filter(|line| !listed.contains(line)).collect();
    let stale: Vec<&&str> = listed.iter().filter(|line| !found.contains(line)).collect();
    assert!(
        missing.is_empty() && stale.is_empty(),
        "{LIST} is out of date; run with UPDATE_ONNX_LIST=1\nmissing: {missing:#?}\nstale: {stale:#?}"
    );
}

fn run_case(engine: &Engine, folder: &Path) -> Outcome {
    let bytes = std::fs::read(folder.join("model.onnx")).unwrap();
    let data_set = folder.join("test_data_set_0");
    let names = match read::read_model(Chunk::whole(&bytes)) {
        Ok(model) => {
            let constants: Vec<&String> =
                model.graph.initializers.iter().map(|tensor| &tensor.name).collect();
            let inputs = model.graph.inputs.iter().map(|input| input.name.clone());
            inputs.filter(|name| !constants.contains(&name)).collect::<Vec<_>>()
        }
        Err(error) => return Outcome::Failed(error.to_string()),
    };
    let (graph, options) = match from_bytes(&bytes, &Options::default()) {
        Ok(graph) => (graph, Options::default()),
        Err(_) => {
            // Arguments such as axes and shapes are inputs of the models; as in real models, they are constants.
            let options = arguments(&data_set, &names);
            match from_bytes(&bytes, &options) {
                Ok(graph) => (graph, options),
                Err(error) => return Outcome::Refused(reason(&error)),
            }
        }
    };
    match run(engine, &graph, &options, &names, &data_set) {
        Ok(()) => Outcome::Passed,
        Err(message) => Outcome::Failed(message),
    }
}

fn reason(error: &GraphError) -> String {
    match error {
        GraphError::Import { message, origin } if origin.operator.is_empty() => {
            format!("an input or output: {message}")
        }
        GraphError::Import { message, origin } => format!("{}: {message}", origin.operator),
        GraphError::Call { operation, reasons, origin } => {
            let reasons: Vec<String> = reasons.iter().map(ToString::to_string).collect();
            format!("{}: {operation}: {}", origin.operator, reasons.join("; "))
        }
        GraphError::File { message, .. } => message.clone(),
        other => other.to_string(),
    }
    .replace('\n', " ")
}

fn read_file(path: &Path) -> Option<NamedTensor<'static>> {
    let bytes = std::fs::read(path).ok()?;
    read_tensor(Chunk::whole(&bytes)).ok().map(NamedTensor::into_owned)
}

fn to_tensor(named: &NamedTensor<'_>) -> Option<Tensor> {
    let shape: Vec<i64> = named.shape.iter().map(|&size| size as i64).collect();
    let mut tensor = Tensor::zeros(&shape, named.data_type.dtype()?).ok()?;
    tensor.bytes_mut().copy_from_slice(named.bytes()?);
    Some(tensor)
}

/// Lists of integers, short lists of floats, and single numbers.
fn arguments(data_set: &Path, names: &[String]) -> Options {
    let mut options = Options::default();
    for (index, name) in names.iter().enumerate() {
        let Some(named) = read_file(&data_set.join(format!("input_{index}.pb"))) else { continue };
        let Some(tensor) = to_tensor(&named) else { continue };
        let is_integer = matches!(tensor.dtype(), DType::I64 | DType::I32 | DType::Bool);
        if named.element_count() == 1
            || (named.shape.len() == 1 && (is_integer || named.element_count() <= 8))
        {
            options.constants.insert(name.clone(), tensor);
        }
    }
    options
}

fn run(
    engine: &Engine,
    graph: &Graph,
    options: &Options,
    names: &[String],
    data_set: &Path,
) -> Result<(), String> {
    let mut inputs = Vec::new();
    for (index, name) in names.iter().enumerate().filter(|(_, name)| !options.constants.contains_key(*name)) {
        let named =
            read_file(&data_set.join(format!("input_{index}.pb"))).ok_or_else(|| format!("no `{name}`"))?;
        inputs.push(to_tensor(&named).ok_or_else(|| format!("`{name}` has an unknown type"))?);
    }
    let views: Vec<TensorView<'_>> = inputs.iter().map(Tensor::view).collect();
    let outputs = interpret::run(engine, graph, &views).map_err(|error| error.to_string())?;
    let files = std::fs::read_dir(data_set).map_err(|error| error.to_string())?.flatten();
    let expected = files.filter(|file| file.file_name().to_string_lossy().starts_with("output_")).count();
    if outputs.len() != expected || outputs.is_empty() {
        return Err(format!("{} outputs, expected {expected}", outputs.len()));
    }
    for (index, output) in outputs.iter().enumerate() {
        let named = read_file(&data_set.join(format!("output_{index}.pb"))).ok_or("no expected output")?;
        let expected = to_tensor(&named).ok_or("an expected output of unknown type")?;
        compare(&expected, output).map_err(|message| format!("output {index}: {message}"))?;
    }
    Ok(())
}

/// The tolerances of the suite for floats, equality otherwise.
fn compare(expected: &Tensor, found: &Tensor) -> Result<(), String> {
    ELEMENTS.fetch_add(expected.view().elements() as usize, Ordering::Relaxed);
    if expected.dtype() != found.dtype() || expected.shape() != found.shape() {
        return Err(format!(
            "{}{:?}, expected {}{:?}",
            found.dtype().name(),
            found.shape(),
            expected.dtype().name(),
            expected.shape()
        ));
    }
    let (relative, absolute) = match expected.dtype() {
        DType::BF16 => (2f64.powi(-6), 1e-7),
        dtype if dtype.is_float() => (1e-3, 1e-7),
        _ => (0.0, 0.0),
    };
    let (left, right) = (expected.view(), found.view());
    for index in Indices::new(expected.shape()) {
        let (expected, found) = (left.at(&index), right.at(&index));
        let equal = expected == found || (expected.is_nan() && found.is_nan());
        let close = (expected - found).abs() <= absolute + relative * expected.abs();
        if !(equal || close && expected.is_finite()) {
            return Err(format!("element {:?} is {found}, expected {expected}", &index[..]));
        }
    }
    Ok(())
}
