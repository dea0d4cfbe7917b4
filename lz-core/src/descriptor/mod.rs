//! Capability descriptors: the kernels of a backend and their capabilities, as a JSON file that the backend ships.
//!
//! A descriptor is accepted as a whole or not at all. An unknown version, an unknown field, a missing limit or a duplicate kernel disables the
//! backend, and the error lists all problems. Undeclared capabilities are unsupported.

mod catalog;
mod features;
mod kernel;

use std::fmt;

use lz_schema::diagnostics::{Code, Diagnostic, Report, Sink};
use sha2::{Digest, Sha256};

pub use catalog::is_cache;
pub use catalog::{Catalog, Target};

use crate::contract;
use crate::device::{Generation, GenerationEntry, InstructionSet, Platform};
use crate::error::Error;
use crate::generated::contracts::capabilities_v1 as v1;
use crate::reason::{Reason, ReasonCode};
use crate::spec::KernelSpec;

/// The contract, `schemas/contracts/capabilities.v1.schema.json`.
pub(crate) const CONTRACT: &str = include_str!("../../schemas/contracts/capabilities.v1.schema.json");

/// A valid descriptor.
#[derive(Debug, Clone)]
pub struct Descriptor {
    /// The backend.
    pub backend: String,
    /// Its version.
    pub version: String,
    /// The platform of its kernels.
    pub platform: Platform,
    /// Its kernels. A kernel of an alias is contained once per operation behind it, with the same id.
    pub kernels: Vec<KernelSpec>,
    /// Rows for the GPU generation table.
    pub generations: Vec<GenerationEntry>,
    /// SHA-256 of the canonical JSON: independent of key order and white space.
    pub hash: String,
}

/// Why a backend is disabled.
#[derive(Debug, Clone)]
pub struct DescriptorError {
    /// The file.
    pub path: String,
    /// The backend, if the file names it.
    pub backend: Option<String>,
    /// All problems, with spans.
    pub report: Report,
    /// The problems as reasons.
    pub reasons: Vec<Reason>,
}

impl fmt::Display for DescriptorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let backend = self.backend.as_deref().unwrap_or("its backend");
        write!(f, "{} is invalid, so {backend} is disabled\n{}", self.path, self.report)
    }
}

impl std::error::Error for DescriptorError {}

impl From<DescriptorError> for Error {
    fn from(error: DescriptorError) -> Error {
        Error::Configuration {
            subject: error.path.clone(),
            message: error.to_string(),
            reasons: error.reasons,
        }
    }
}

/// Reads a descriptor; `path` is its name in messages.
pub fn read(path: &str, text: &str, catalog: &Catalog<'_>) -> Result<Descriptor, DescriptorError> {
    let (mut sink, checked) = contract::read(CONTRACT, path, text);
    let Some(checked) = checked else { return Err(reject(path, None, sink)) };
    let backend = contract::get(&checked.root, "backend").and_then(contract::text).map(str::to_owned);
    if !sink.diagnostics.is_empty() {
        return Err(reject(path, backend, sink));
    }
    let hash = hash(&checked.json);
    let capabilities: v1::Capabilities = match serde_json::from_value(checked.json) {
        Ok(capabilities) => capabilities,
        Err(error) => {
            // Only if the contract and the types generated from it disagree.
            sink.error(
                Code::WrongForm,
                contract::first_line(&checked.source, checked.root.span),
                error.to_string(),
            );
            return Err(reject(path, backend, sink));
        }
    };
    let kernels = kernel::specs(&capabilities, &checked.root, catalog, &hash, &mut sink);
    let generations = generations(&capabilities, &checked.root, &mut sink);
    if !sink.diagnostics.is_empty() {
        return Err(reject(path, backend, sink));
    }
    Ok(Descriptor {
        backend: capabilities.backend,
        version: capabilities.backend_version,
        platform: kernel::platform(capabilities.platform),
        kernels,
        generations,
        hash,
    })
}

/// SHA-256 of JSON with sorted keys and without white space, in lower-case hexadecimal.
pub fn hash(json: &serde_json::Value) -> String {
    let mut canonical = String::new();
    write_canonical(json, &mut canonical);
    Sha256::digest(canonical.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// One hash over several descriptors, independent of their order; tables and decisions are bound to it.
pub fn combined_hash<'a>(hashes: impl IntoIterator<Item = &'a str>) -> String {
    let mut hashes: Vec<&str> = hashes.into_iter().collect();
    hashes.sort_unstable();
    hashes.dedup();
    Sha256::digest(hashes.join("\n").as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn write_canonical(json: &serde_json::Value, text: &mut String) {
    match json {
        serde_json::Value::Object(object) => {
            let mut keys: Vec<&String> = object.keys().collect();
            keys.sort_unstable();
            text.push('{');
            for (at, key) in keys.into_iter().enumerate() {
                if at > 0 {
                    text.push(',');
                }
                text.push_str(&serde_json::Value::from(key.as_str()).to_string());
                text.push(':');
                if let Some(value) = object.get(key) {
                    write_canonical(value, text);
                }
            }
            text.push('}');
        }
        serde_json::Value::Array(items) => {
            text.push('[');
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    text.push(',');
                }
                write_canonical(item, text);
            }
            text.push(']');
        }
        other => text.push_str(&other.to_string()),
    }
}

fn generations(
    capabilities: &v1::Capabilities,
    root: &lz_schema::source::Node,
    sink: &mut Sink,
) -> Vec<GenerationEntry> {
    let nodes = contract::get(root, "gpu_generations").map_or(&[][..], contract::items);
    let mut entries = Vec::new();
    for (row, node) in capabilities.gpu_generations.iter().zip(nodes) {
        if row.first_sm > row.last_sm {
            let span = contract::get(node, "last_sm").map_or(node.span, |node| node.span);
            let message = format!("the range {} to {} is empty", row.first_sm, row.last_sm);
            sink.error(Code::BadNumber, span, message);
        }
        entries.push(GenerationEntry {
            first_sm: row.first_sm,
            last_sm: row.last_sm,
            generation: Generation::named(&row.generation),
            tensor_core_generation: row.tensor_core_generation,
            instruction_sets: row
                .instruction_sets
                .iter()
                .filter_map(|set| InstructionSet::from_name(&set.to_string()))
                .collect(),
        });
    }
    entries
}

fn reject(path: &str, backend: Option<String>, sink: Sink) -> DescriptorError {
    let report = contract::report(sink);
    let reasons = report.diagnostics.iter().map(reason).collect();
    DescriptorError { path: path.to_owned(), backend, report, reasons }
}

fn reason(diagnostic: &Diagnostic) -> Reason {
    let code = match diagnostic.code {
        Code::DuplicateKernel => ReasonCode::KernelDuplicate,
        Code::MissingLimit | Code::MissingKey => ReasonCode::CapabilitiesMissing,
        Code::UnknownOperation => ReasonCode::OperationUnknown,
        _ => ReasonCode::CapabilitiesSchemaMismatch,
    };
    let location = diagnostic.labels.first().map_or_else(String::new, |label| {
        let (line, column) = label.source.position(label.span.start);
        format!("{}:{line}:{column}: ", label.source.path)
    });
    Reason::new(code).message(format!("{location}{}", diagnostic.message))
}
