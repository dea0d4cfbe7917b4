//! Models in files, with external data.

use std::path::Path;

use lz_test_support::Folder;

use super::super::{Options, from_path};
use super::writer::*;
use crate::graph::ConstantData;
use crate::interpret;
use crate::testing::engine;

/// `x + w`, with `w` in another file.
fn model_with(location: &str, entries: &[(&str, &str)]) -> Message {
    let entry = |key: &str, value: &str| message().text(1, key).text(2, value);
    let weight = message().int(1, 2).int(2, 1).text(8, "w").nested(13, entry("location", location));
    let weight = entries.iter().fold(weight, |weight, (key, value)| weight.nested(13, entry(key, value)));
    let graph = graph(
        vec![node("Add", "x w", "y")],
        vec![weight.int(14, 1)],
        vec![value("x", 1, "2")],
        vec![value("y", 1, "2")],
    );
    model(18, graph)
}

fn import(folder: &Path, model: &Message) -> Result<crate::Graph, String> {
    let path = folder.join("model.onnx");
    std::fs::write(&path, &model.0).unwrap();
    from_path(&path, &Options::default())
        .map_err(|error| error.to_string().replace(&*path.to_string_lossy(), "FILE"))
}

#[test]
fn external_data_is_mapped() {
    let folder = Folder::new();
    let bytes: Vec<u8> = [9.0f32, 1.5, -2.0].iter().flat_map(|value| value.to_le_bytes()).collect();
    std::fs::write(folder.file("weights.bin"), bytes).unwrap();
    let graph =
        import(folder.path(), &model_with("weights.bin", &[("offset", "4"), ("length", "8")])).unwrap();
    assert!(matches!(graph.constants[0].data, ConstantData::Shared(_)));
    // The mapping outlives the path.
    std::fs::remove_file(folder.file("weights.bin")).unwrap();
    let x = lz_core::Tensor::from_slice(&[1.0f32, 1.0], &[2]).unwrap();
    let outputs = interpret::run(&engine(), &graph, &[x.view()]).unwrap();
    assert_eq!(outputs[0].view().as_slice::<f32>(), Some(&[2.5, -1.0][..]));
}

#[test]
fn constants_of_a_file_are_mapped_if_they_are_aligned() {
    let folder = Folder::new();
    for padding in 0..4 {
        let nodes = vec![node("Add", "x w", "y")];
        let constants = vec![float_tensor(&format!("w{}", "_".repeat(padding)), &[2], &[1.0, 2.0])];
        let inputs = vec![value("x", 1, "2")];
        let nodes =
            nodes.into_iter().map(|_| node("Add", &format!("x w{}", "_".repeat(padding)), "y")).collect();
        let graph =
            import(folder.path(), &model(18, graph(nodes, constants, inputs, vec![value("y", 1, "2")])))
                .unwrap();
        assert_eq!(graph.constants[0].view().at(&[1]), 2.0);
    }
}

#[test]
fn external_data_outside_the_folder_is_refused() {
    let (outside, folder) = (Folder::new(), Folder::new());
    let secret = outside.file("secret.bin");
    std::fs::write(&secret, [0u8; 8]).unwrap();
    std::os::unix::fs::symlink(&secret, folder.file("link.bin")).unwrap();
    std::fs::create_dir(folder.file("inner")).unwrap();
    let check = |location: &str, expected: &str| {
        let error = import(folder.path(), &model_with(location, &[])).unwrap_err();
        assert_eq!(error, format!("FILE: constant `w`: external data `{location}` {expected}"));
    };
    check("../secret.bin", "is not a path inside the model's folder");
    check("inner/../../secret.bin", "is not a path inside the model's folder");
    check(&secret.to_string_lossy(), "is not a path inside the model's folder");
    check("", "is not a path inside the model's folder");
    check("link.bin", "is a link out of the model's folder");
    let error = import(folder.path(), &model_with("inner", &[])).unwrap_err();
    assert!(error.contains("external data `inner`: "), "{error}");
    let error = import(folder.path(), &model_with("absent.bin", &[])).unwrap_err();
    assert!(error.contains("external data `absent.bin`: "), "{error}");
}

#[test]
fn external_data_of_another_size_is_refused() {
    let folder = Folder::new();
    std::fs::write(folder.file("w.bin"), [0u8; 8]).unwrap();
    let check = |entries: &[(&str, &str)], expected: &str| {
        let error = import(folder.path(), &model_with("w.bin", entries)).unwrap_err();
        assert!(error.contains(expected), "{error}");
    };
    check(&[("offset", "4")], "8 bytes at offset 4 exceed its 8 bytes");
    check(&[("offset", "18446744073709551615")], "8 bytes at offset 18446744073709551615 exceed its 8 bytes");
    check(&[("length", "4")], "has 4 bytes, but the shape requires 8");
    check(&[("offset", "-1")], "`offset` is `-1`, expected a number of bytes");
}

#[test]
fn missing_and_truncated_files_are_errors() {
    let folder = Folder::new();
    assert!(from_path(&folder.file("absent.onnx"), &Options::default()).is_err());
    assert!(from_path(folder.path(), &Options::default()).is_err());
    let whole = model_with("w.bin", &[]).0;
    for length in 0..whole.len() {
        let error = import(folder.path(), &Message(whole[..length].to_vec())).unwrap_err();
        assert!(error.starts_with("FILE: "), "{error}");
    }
}
