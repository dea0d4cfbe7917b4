use lz_core::{DType, Tensor, TensorView};
use lz_test_support::Folder;

use super::{Artifact, load, save};
use crate::build::Builder;
use crate::compiled::{CompiledModel, LoadOptions, MissingKernels, Options};
use crate::dim::Dim;
use crate::graph::{ConstantData, Graph};
use crate::session::RunInput;
use crate::testing::engine;

/// A graph with every kind of size and of constant: shared weights, a transposed one, a bool, a scalar, infinities.
fn graph() -> Graph {
    let mut build = Builder::new();
    let rows = Dim::from(build.graph_mut().symbol("rows", 0, 64));
    let x = build.input("x", vec![rows.clone(), Dim::from(4)], DType::F32);
    let weight: Vec<f32> = (0..16).map(|value| (value as f32 * 0.37).sin()).collect();
    let weight = Tensor::from_slice(&weight, &[4, 4]).unwrap();
    let weight = build.constant("layer.weight", ConstantData::Owned(std::sync::Arc::new(weight)));
    let y = build.matmul(x, weight).unwrap();
    let turned = build.transpose(y, 0, 1).unwrap();
    let flat = build.reshape(turned, vec![rows.times(&Dim::from(4))]).unwrap();
    let half = rows.floor_div(&Dim::from(2)).larger(&Dim::from(1)).smaller(&rows);
    let part = build.slice(flat, 0, Dim::from(0), half, 1).unwrap();
    let capped = build.binary_scalar("minimum", part, f64::INFINITY, false).unwrap();
    let mut mask = Tensor::zeros(&[4], DType::Bool).unwrap();
    mask.bytes_mut().copy_from_slice(&[1, 0, 1, 1]);
    let mask = build.owned(mask);
    let masked = build.select_where(mask, y, x).unwrap();
    let (values, indices) = build.topk(masked, 1, Dim::from(2), true, true).unwrap();
    let joined = build.concat(&[values, values], 1).unwrap();
    let sizes = build.sizes(vec![rows.modulo(&Dim::from(3)), Dim::from(7)], false);
    for (name, node) in
        [("part", capped), ("joined", joined), ("indices", indices), ("sizes", sizes), ("weight", weight)]
    {
        build.output(name, node);
    }
    build.finish().unwrap()
}

fn artifact(graph: Graph) -> Artifact {
    let (imported_nodes, layerzero) = (graph.nodes.len(), "0".to_owned());
    Artifact { graph, imported_nodes, rewrites: vec!["one".to_owned()], decisions: None, layerzero }
}

fn saved() -> (Folder, std::path::PathBuf) {
    let folder = Folder::new();
    let path = folder.file("model.lz");
    save(&path, &artifact(graph())).unwrap();
    (folder, path)
}

#[test]
fn loaded_graph_is_the_saved_one() {
    let (_folder, path) = saved();
    let loaded = load(&path, true).unwrap();
    assert_eq!(loaded.graph.to_string(), graph().to_string());
    assert_eq!(loaded.rewrites, ["one"]);
    let weight = loaded.graph.constants.iter().find(|constant| constant.name == "layer.weight").unwrap();
    assert!(matches!(weight.data, ConstantData::Shared(_)), "weights stay in the mapped file");
    assert_eq!(weight.view().address() % 64, 0);
}

#[test]
fn transposed_weights_keep_their_strides() {
    let mut build = Builder::new();
    let data: Vec<f32> = (0..6).map(|value| value as f32).collect();
    let memory = TransposedMemory(Tensor::from_slice(&data, &[2, 3]).unwrap());
    let constant = build.constant("w", ConstantData::Shared(std::sync::Arc::new(memory)));
    build.output("w", constant);
    let folder = Folder::new();
    let path = folder.file("model.lz");
    save(&path, &artifact(build.finish().unwrap())).unwrap();
    let loaded = load(&path, true).unwrap();
    let view = loaded.graph.constants[0].view();
    assert_eq!((view.shape(), view.strides()), (&[3, 2][..], &[1, 3][..]));
    assert_eq!(view.at(&[2, 1]), 5.0);
}

#[derive(Debug)]
struct TransposedMemory(Tensor);

impl crate::graph::SharedMemory for TransposedMemory {
    fn view(&self) -> TensorView<'_> {
        let view = self.0.view();
        let dims = |sizes: &[i64]| lz_core::tensor::Dims::new(sizes).unwrap();
        let layout =
            lz_core::tensor::Layout { shape: dims(&[3, 2]), strides: dims(&[1, 3]), ..*view.layout() };
        // SAFETY: the same elements in another order.
        unsafe { TensorView::from_raw(view.as_ptr(), layout) }
    }
}

#[test]
fn results_are_the_same_after_loading() {
    let engine = engine();
    let compiled = CompiledModel::new(&engine, graph(), &Options::default()).unwrap();
    let x: Vec<f32> = (0..20).map(|value| (value as f32 * 0.3).cos()).collect();
    let input = || vec![RunInput::Read(TensorView::from_slice(&x, &[5, 4]).unwrap())];
    let expected = compiled.run(input()).unwrap();
    let folder = Folder::new();
    let path = folder.file("model.lz");
    compiled.save(&path).unwrap();
    let loaded = CompiledModel::load(&engine, &path, &LoadOptions::default()).unwrap();
    assert!(loaded.decisions().is_some_and(|decisions| decisions.decisions().count() > 0));
    // The mapping outlives the path.
    std::fs::remove_file(&path).unwrap();
    for (found, expected) in loaded.run(input()).unwrap().iter().zip(&expected) {
        assert_eq!((found.shape(), found.bytes()), (expected.shape(), expected.bytes()));
    }
}

#[test]
fn damaged_files_are_refused() {
    let (folder, path) = saved();
    let whole = std::fs::read(&path).unwrap();
    let other = folder.file("other.lz");
    let check = |bytes: &[u8]| {
        std::fs::write(&other, bytes).unwrap();
        load(&other, false).unwrap_err().to_string()
    };
    for length in [0, 7, 8, 100, whole.len() / 2, whole.len() - 1] {
        let error = check(&whole[..length]);
        assert!(error.contains("the artifact is damaged"), "{error}");
    }
    let header = u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    for position in (8..8 + header).step_by(97) {
        let mut bytes = whole.clone();
        bytes[position] ^= 1;
        // Spaces at the end of the header and names of tensors that nothing uses may change; then the model is the same.
        std::fs::write(&other, &bytes).unwrap();
        if let Ok(loaded) = load(&other, false) {
            assert_eq!(loaded.graph.to_string(), graph().to_string());
        }
    }
}

#[test]
fn changed_weights_are_found_when_they_are_verified() {
    let (_folder, path) = saved();
    let mut bytes = std::fs::read(&path).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    bytes[8 + header + 1] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    assert!(load(&path, false).is_ok(), "hashes are compared only if requested");
    let error = load(&path, true).unwrap_err().to_string();
    assert!(error.contains("the elements of `layer.weight` differ from those that were saved"), "{error}");
}

/// Replaces text in the header, with a new hash of the graph if `rehash`.
fn edit(path: &std::path::Path, from: &str, to: &str, rehash: bool) {
    let bytes = std::fs::read(path).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let metadata = header["__metadata__"].as_object_mut().unwrap();
    for (_, value) in metadata.iter_mut() {
        *value = value.as_str().unwrap().replace(from, to).into();
    }
    if rehash {
        let digest = super::digest(metadata[super::GRAPH_KEY].as_str().unwrap().as_bytes());
        metadata.insert(super::DIGEST_KEY.to_owned(), digest.into());
    }
    let header = serde_json::to_vec(&header).unwrap();
    let mut changed = (header.len() as u64).to_le_bytes().to_vec();
    changed.extend(header);
    changed.extend(&bytes[8 + length..]);
    std::fs::write(path, changed).unwrap();
}

#[test]
fn what_does_not_fit_this_release_is_refused() {
    let check = |from: &str, to: &str, expected: &str| {
        let (_folder, path) = saved();
        edit(&path, from, to, true);
        let error = load(&path, false).unwrap_err().to_string();
        assert!(error.contains(expected), "{from} → {to}: {error}");
    };
    check(
        "primitive.topk",
        "primitive.topq",
        "it calls the operation `primitive.topq`, which this release does not have",
    );
    let digest = crate::catalog::find("primitive.topk").unwrap().digest.to_string();
    check(&digest, "0", "the operation `primitive.topk` has another schema in this release");
    check("\"symbols\"", "\"symbolz\"", "unknown field `symbolz`");
    // A constant that does not exist, a reference forward, another dtype.
    check("{\"constant\":0}", "{\"constant\":9}", "which does not exist");
    check("\"inputs\":[0,", "\"inputs\":[40,", "which is not computed before it");
    check("\"dtype\":\"i64\"", "\"dtype\":\"i32\"", "damaged");
    let (_folder, path) = saved();
    edit(&path, "\"rows\"", "\"cols\"", false);
    assert!(load(&path, false).unwrap_err().to_string().contains("the graph does not match its hash"));
}

/// Any number of the graph may be wrong: loading or running is an error or succeeds, but never panics or leaves the memory of tensors.
#[test]
fn changed_numbers_of_the_graph_never_panic() {
    let engine = engine();
    let (_folder, path) = saved();
    let bytes = std::fs::read(&path).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let graph = header["__metadata__"][super::GRAPH_KEY].as_str().unwrap().to_owned();
    let digits: Vec<usize> =
        graph.match_indices(|letter: char| letter.is_ascii_digit()).map(|(at, _)| at).collect();
    let x = [0.5f32; 20];
    let mut loaded = 0;
    for (index, at) in digits.iter().enumerate() {
        let mut changed = graph.clone();
        let digit = (changed.as_bytes()[*at] - b'0' + 1 + (index % 9) as u8) % 10;
        changed.replace_range(*at..*at + 1, &digit.to_string());
        let mut header = header.clone();
        header["__metadata__"][super::DIGEST_KEY] = super::digest(changed.as_bytes()).into();
        header["__metadata__"][super::GRAPH_KEY] = changed.into();
        let header = serde_json::to_vec(&header).unwrap();
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header);
        file.extend(&bytes[8 + length..]);
        std::fs::write(&path, file).unwrap();
        if let Ok(model) = CompiledModel::load(&engine, &path, &LoadOptions::default()) {
            loaded += 1;
            let input = vec![RunInput::Read(TensorView::from_slice(&x, &[5, 4]).unwrap())];
            let _ = model.run(input);
        }
    }
    assert!(loaded > 0 && loaded < digits.len(), "{loaded} of {}", digits.len());
}

#[test]
fn another_format_is_refused() {
    let (folder, path) = saved();
    let text = std::fs::read(&path).unwrap();
    let changed = String::from_utf8_lossy(&text[8..]).contains("\"layerzero.format\":\"1\"");
    assert!(changed);
    let bytes = text.windows(22).position(|part| part == b"\"layerzero.format\":\"1\"").unwrap();
    let mut other = text.clone();
    other[bytes + 20] = b'2';
    std::fs::write(&path, other).unwrap();
    let error = load(&path, false).unwrap_err().to_string();
    assert!(
        error.contains("the artifact has format 2, this release reads format 1: compile the model again"),
        "{error}"
    );
    let plain = folder.file("plain.safetensors");
    let header = b"{\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}";
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header);
    bytes.extend([0; 4]);
    std::fs::write(&plain, bytes).unwrap();
    assert!(load(&plain, false).unwrap_err().to_string().contains("the file is no compiled model"));
    std::fs::write(&plain, "a file of text").unwrap();
    assert!(load(&plain, false).unwrap_err().to_string().contains("the file is no compiled model"));
}

#[test]
fn kernels_that_do_not_exist_are_planned_again_or_refused() {
    let engine = engine();
    let compiled = CompiledModel::new(&engine, graph(), &Options::default()).unwrap();
    let x = [0.5f32; 8];
    let input = || vec![RunInput::Read(TensorView::from_slice(&x, &[2, 4]).unwrap())];
    compiled.run(input()).unwrap();
    let (folder, lockfile) = (Folder::new(), compiled.freeze().unwrap());
    let mut other = lz_engine::table::Lockfile::new("", "", "");
    for decision in lockfile.decisions() {
        let mut decision = decision.clone();
        decision.kernel = format!("elsewhere.{}", decision.kernel);
        other.add(decision);
    }
    let path = folder.file("model.lz");
    save(&path, &Artifact { decisions: Some(other), ..artifact(graph()) }).unwrap();
    let replanned = CompiledModel::load(&engine, &path, &LoadOptions::default()).unwrap();
    assert!(replanned.findings().iter().any(|finding| finding.message.contains("the kernel elsewhere.")));
    replanned.run(input()).unwrap();
    let refuse = LoadOptions { missing_kernels: MissingKernels::Refuse, ..LoadOptions::default() };
    let error = CompiledModel::load(&engine, &path, &refuse).unwrap_err().to_string();
    assert!(error.contains("does not exist here") && error.contains("compile the model here"), "{error}");
}
