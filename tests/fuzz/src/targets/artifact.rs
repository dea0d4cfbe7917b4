//! Saved graphs: the graph is text in the header of a safetensors file, protected by a digest. An input is the readable form, and the file
//! is written with the right digests, so that mutations reach the graph.
//!
//! Input: JSON with `graph` (the record), `tensors` (the header of the file) and `bytes` (how many bytes of data follow it).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use lz_graph::{artifact, catalog, validate};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::files;

pub fn run(input: &[u8]) -> bool {
    let Ok(mut input) = serde_json::from_slice::<Value>(input) else { return false };
    let Some(mut graph) = input.get_mut("graph").map(Value::take) else { return false };
    // The digest of a schema changes with the schema; corpora stay.
    let operations = graph.get_mut("operations").and_then(Value::as_object_mut);
    for (name, digest) in operations.into_iter().flatten() {
        if let Some(operation) = catalog::find(name) {
            *digest = json!(operation.digest);
        }
    }
    let text = graph.to_string();
    let digest = Sha256::digest(text.as_bytes()).iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    });
    let mut header: BTreeMap<String, Value> =
        input["tensors"].as_object().map(|tensors| tensors.clone().into_iter().collect()).unwrap_or_default();
    let metadata =
        json!({"layerzero.format": "1", "layerzero.graph": text, "layerzero.graph.sha256": digest});
    header.insert("__metadata__".to_owned(), metadata);
    let mut header = json!(header).to_string().into_bytes();
    header.resize((header.len() + 8).next_multiple_of(64) - 8, b' ');
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header);
    let data = input["bytes"].as_u64().unwrap_or(0).min(4096);
    file.extend((0..data).map(|byte| byte as u8));
    round_trip(&files::write("model.lz", &file))
}

/// Loads a file; an accepted graph is valid, and survives saving and loading. Returns whether it was accepted.
pub fn round_trip(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let loaded = match artifact::load(path, false) {
        Ok(loaded) => loaded,
        Err(error) => {
            assert!(error.to_string().contains(&*name), "{error}");
            return false;
        }
    };
    let findings = validate::graph(&loaded.graph, validate::Phase::Import);
    validate::Validation::Normal.check(&findings).unwrap_or_else(|error| panic!("{error}"));
    let copy = files::path("copy.lz");
    artifact::save(&copy, &loaded).unwrap_or_else(|error| panic!("{error}"));
    let again = artifact::load(&copy, true).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(again.graph.to_string(), loaded.graph.to_string());
    true
}
