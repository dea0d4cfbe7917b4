//! The shape manifest: which kernel was requested or compiled for which bucket, stored in a file between runs.
//!
//! The file is only a hint: an invalid file is renamed with a warning, an old one is ignored, and entries that do not match the registry
//! are skipped. It is replaced atomically, so that readers never see a partial file.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::WarmupItem;
use crate::bucket::Bucket;
use crate::registry::Registry;
use lz_core::context::Context;
use lz_core::expression_names;
use lz_core::operation::OperationInfo;
use lz_files as files;

/// The version of the file format.
const VERSION: u32 = 1;
/// Maximum number of entries; the least recently seen are evicted first.
const MAX_ENTRIES: usize = 10_000;

/// The state of a shape.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ManifestState {
    /// Requested by a call.
    Wanted,
    /// Compiled.
    Compiled,
    /// Compilation failed, and why.
    Failed(String),
}

/// One kernel for one bucket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManifestEntry {
    /// The kernel's id.
    pub kernel: String,
    /// Its version; empty until it is compiled.
    pub version: String,
    /// Its operation.
    pub operation: String,
    /// Digest of the operation's schema.
    pub schema: String,
    /// The call, for display.
    pub call: String,
    /// The bucket of the call.
    pub bucket: Vec<u64>,
    /// The call, as raw bits of each field by name.
    pub fields: BTreeMap<String, u64>,
    /// Its state.
    pub state: ManifestState,
    /// When it was last requested or compiled, in seconds since 1970.
    pub seen_at: u64,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: u32,
    layerzero: String,
    /// The served model, so that a manifest of another model is not used.
    model: String,
    written_at: u64,
    entries: Vec<ManifestEntry>,
}

/// Whether a text is a manifest, or a truncated one.
fn looks_like_manifest(text: &str) -> bool {
    "{\n  \"version\": ".starts_with(text) || text.contains("\"layerzero\"")
}

/// The shape manifest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Manifest {
    /// The served model: any text, for example a hash of its configuration.
    pub model: String,
    entries: BTreeMap<(String, String, Vec<u64>), ManifestEntry>,
    /// The file has a later version or is not a manifest, and must not be overwritten.
    foreign: bool,
}

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs())
}

impl Manifest {
    /// An empty manifest.
    pub fn new(model: &str) -> Manifest {
        Manifest { model: model.to_owned(), ..Manifest::default() }
    }

    /// Entries, sorted by kernel.
    pub fn entries(&self) -> impl Iterator<Item = &ManifestEntry> {
        self.entries.values()
    }

    /// Reads a file. Any problem yields an empty manifest and a message: a missing file is not a problem, a damaged one is renamed, one of
    /// another model or older than `stale` is ignored.
    pub fn load(path: &Path, model: &str, stale: Duration) -> (Manifest, Option<String>) {
        let empty = Manifest::new(model);
        let text = match files::read_text(path, files::MAX_TABLE_BYTES) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return (empty, None),
            Err(error) => {
                let what = format!("{} cannot be read and is not modified: {error}", path.display());
                return (Manifest { foreign: true, ..empty }, Some(what));
            }
        };
        let version = serde_json::from_str::<serde_json::Value>(&text)
            .ok()
            .and_then(|value| value.get("version")?.as_u64());
        if let Some(version) = version.filter(|version| *version > u64::from(VERSION)) {
            let what = format!(
                "{} has version {version}; this release supports {VERSION} and does not modify it",
                path.display()
            );
            return (Manifest { foreign: true, ..empty }, Some(what));
        }
        let file: File = match serde_json::from_str(&text) {
            Ok(file) => file,
            // The setting may name any file by mistake; only a file that looks like a manifest is renamed.
            Err(error) if !looks_like_manifest(&text) => {
                let what = format!("{} is not a shape manifest and is not modified: {error}", path.display());
                return (Manifest { foreign: true, ..empty }, Some(what));
            }
            Err(error) => {
                let renamed = unique_sibling(path, "damaged");
                let put = fs::rename(path, &renamed).is_ok();
                let location =
                    if put { format!("; it was renamed to {}", renamed.display()) } else { String::new() };
                return (empty, Some(format!("{} is damaged: {error}{location}", path.display())));
            }
        };
        if file.model != model {
            let what = format!("{} is for model `{}`, not for `{model}`", path.display(), file.model);
            return (empty, Some(what));
        }
        let age = now().saturating_sub(file.written_at);
        if age > stale.as_secs() {
            let what = format!("{} is {} days old and is ignored", path.display(), age / (24 * 60 * 60));
            return (empty, Some(what));
        }
        let mut manifest = empty;
        for entry in file.entries {
            manifest.entries.insert(key(&entry), entry);
        }
        (manifest, None)
    }

    /// Records that a kernel was requested or compiled for calls like this one.
    pub fn note(
        &mut self,
        kernel: &str,
        version: &str,
        operation: &OperationInfo,
        context: &Context,
        state: ManifestState,
    ) {
        let call = operation
            .fields
            .iter()
            .map(|field| format!("{}={}", field.name, expression_names::show(field, context)));
        let entry = ManifestEntry {
            kernel: kernel.to_owned(),
            version: version.to_owned(),
            operation: operation.name.to_string(),
            schema: operation.digest.to_string(),
            call: call.collect::<Vec<_>>().join(" "),
            bucket: Bucket::of(operation, context).words().to_vec(),
            fields: operation
                .fields
                .iter()
                .map(|field| (field.name.to_string(), context.raw(field.store)))
                .collect(),
            state,
            seen_at: now(),
        };
        self.entries.insert(key(&entry), entry);
        while self.entries.len() > MAX_ENTRIES {
            let oldest =
                self.entries.iter().min_by_key(|(_, entry)| entry.seen_at).map(|(key, _)| key.clone());
            match oldest {
                Some(oldest) => self.entries.remove(&oldest),
                None => break,
            };
        }
    }

    /// Items that can be warmed up with this registry: entries whose operation, schema, kernel and version match.
    pub fn items(&self, registry: &Registry) -> Vec<WarmupItem> {
        let fits = |entry: &&ManifestEntry| {
            let Some(operation) = registry.operation(&entry.operation) else { return false };
            let mut kernels = registry.kernels_of(operation).filter(|kernel| kernel.spec.id == entry.kernel);
            kernels.any(|kernel| entry.version.is_empty() || kernel.spec.version == entry.version)
        };
        self.entries
            .values()
            .filter(fits)
            .filter_map(|entry| {
                let operation = registry.operation(&entry.operation)?;
                if operation.digest != entry.schema {
                    return None;
                }
                let mut context = Context::of(&operation.fields);
                for field in operation.fields.iter() {
                    let raw = *entry.fields.get(field.name.as_ref())?;
                    if !context.replace(field.store, raw) {
                        return None;
                    }
                }
                Some(WarmupItem { kernel: entry.kernel.clone(), operation, context })
            })
            .collect()
    }

    /// Writes the file atomically. Entries that another process has written meanwhile are merged; the later of two entries wins.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        let (mut all, _) = Manifest::load(path, &self.model, Duration::MAX);
        if all.foreign || self.foreign {
            let message = format!("{} has a later version or is not a shape manifest", path.display());
            return Err(io::Error::other(message));
        }
        for (key, entry) in &self.entries {
            let newer = all.entries.get(key).is_none_or(|existing| existing.seen_at <= entry.seen_at);
            if newer {
                all.entries.insert(key.clone(), entry.clone());
            }
        }
        let file = File {
            version: VERSION,
            layerzero: env!("CARGO_PKG_VERSION").to_owned(),
            model: self.model.clone(),
            written_at: now(),
            entries: all.entries.into_values().collect(),
        };
        let mut text = serde_json::to_string_pretty(&file)?;
        text.push('\n');
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let temporary = unique_sibling(path, "new");
        let written = write_through(&temporary, &text).and_then(|()| fs::rename(&temporary, path));
        if written.is_err() {
            fs::remove_file(&temporary).ok();
        }
        written
    }
}

/// Entries are unique by kernel, operation and bucket.
fn key(entry: &ManifestEntry) -> (String, String, Vec<u64>) {
    (entry.kernel.clone(), entry.operation.clone(), entry.bucket.clone())
}

/// A unique file name in the same directory.
fn unique_sibling(path: &Path, what: &str) -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.{}.{what}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
    path.with_file_name(name)
}

fn write_through(path: &Path, text: &str) -> io::Result<()> {
    let mut file = fs::File::create(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}
