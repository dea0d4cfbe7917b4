//! The shapes of production: which kernel was wanted or compiled for which bucket, kept in a file between runs.
//!
//! The file is a hint, never a truth: one that cannot be read is put aside with a warning, one that is too old is not
//! trusted, and what no longer fits the registry is left out. It is replaced as a whole, so that no reader sees half of it.

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

/// The version of the file that this release writes and reads.
const VERSION: u32 = 1;
/// The most entries that are kept; those that were seen longest ago go first.
const MOST: usize = 10_000;

/// What became of a shape.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ManifestState {
    /// A call wanted it.
    Wanted,
    /// It was compiled.
    Compiled,
    /// It could not be compiled, and why.
    Failed(String),
}

/// One kernel for one bucket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManifestEntry {
    /// The kernel's id.
    pub kernel: String,
    /// Its version; empty while it was only wanted.
    pub version: String,
    /// Its operation.
    pub operation: String,
    /// Digest of the operation's schema.
    pub schema: String,
    /// The call, for people.
    pub call: String,
    /// The bucket of the call; calls of one bucket are alike.
    pub bucket: Vec<u64>,
    /// The call, for the engine: the bits of each field by name.
    pub fields: BTreeMap<String, u64>,
    /// What became of it.
    pub state: ManifestState,
    /// When it was last wanted or compiled, in seconds since 1970.
    pub seen_at: u64,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: u32,
    layerzero: String,
    /// What was served, so that a manifest of another model is not taken for this one's.
    model: String,
    written_at: u64,
    entries: Vec<ManifestEntry>,
}

/// Whether a text is a manifest or was one before it was cut off.
fn looks_like_manifest(text: &str) -> bool {
    "{\n  \"version\": ".starts_with(text) || text.contains("\"layerzero\"")
}

/// The shapes of production.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Manifest {
    /// What is served: any text, for example a hash of the model's configuration.
    pub model: String,
    entries: BTreeMap<(String, String, Vec<u64>), ManifestEntry>,
    /// The file is of a later version, or not a manifest at all, and must not be overwritten.
    foreign: bool,
}

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs())
}

impl Manifest {
    /// An empty one.
    pub fn new(model: &str) -> Manifest {
        Manifest { model: model.to_owned(), ..Manifest::default() }
    }

    /// Entries, sorted by kernel.
    pub fn entries(&self) -> impl Iterator<Item = &ManifestEntry> {
        self.entries.values()
    }

    /// Reads a file. Whatever is wrong with it gives an empty manifest and a sentence that says so: a missing file is no
    /// mistake, a damaged one is put aside, one of another model or older than `stale` is not trusted.
    pub fn load(path: &Path, model: &str, stale: Duration) -> (Manifest, Option<String>) {
        let empty = Manifest::new(model);
        let text = match files::read_text(path, files::MAX_TABLE_BYTES) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return (empty, None),
            Err(error) => {
                let what = format!("{} cannot be read and is left alone: {error}", path.display());
                return (Manifest { foreign: true, ..empty }, Some(what));
            }
        };
        let version = serde_json::from_str::<serde_json::Value>(&text)
            .ok()
            .and_then(|value| value.get("version")?.as_u64());
        if let Some(version) = version.filter(|version| *version > u64::from(VERSION)) {
            let what = format!(
                "{} has version {version}; this release reads {VERSION} and leaves it alone",
                path.display()
            );
            return (Manifest { foreign: true, ..empty }, Some(what));
        }
        let file: File = match serde_json::from_str(&text) {
            Ok(file) => file,
            // The setting may name any file by mistake; only what looks like a manifest of ours is put aside.
            Err(error) if !looks_like_manifest(&text) => {
                let what = format!("{} is no manifest of shapes and is left alone: {error}", path.display());
                return (Manifest { foreign: true, ..empty }, Some(what));
            }
            Err(error) => {
                let aside = beside(path, "damaged");
                let put = fs::rename(path, &aside).is_ok();
                let place =
                    if put { format!("; it was put aside as {}", aside.display()) } else { String::new() };
                return (empty, Some(format!("{} is damaged: {error}{place}", path.display())));
            }
        };
        if file.model != model {
            let what = format!("{} is of model `{}`, not of `{model}`", path.display(), file.model);
            return (empty, Some(what));
        }
        let age = now().saturating_sub(file.written_at);
        if age > stale.as_secs() {
            let what = format!("{} is {} days old and not trusted", path.display(), age / (24 * 60 * 60));
            return (empty, Some(what));
        }
        let mut manifest = empty;
        for entry in file.entries {
            manifest.entries.insert(key(&entry), entry);
        }
        (manifest, None)
    }

    /// Notes that a kernel was wanted or compiled for calls like this one.
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
        while self.entries.len() > MOST {
            let oldest =
                self.entries.iter().min_by_key(|(_, entry)| entry.seen_at).map(|(key, _)| key.clone());
            match oldest {
                Some(oldest) => self.entries.remove(&oldest),
                None => break,
            };
        }
    }

    /// What can be warmed up with this registry: entries whose operation, schema, kernel and version are as they were.
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

    /// Writes the file whole or not at all. What another process has written meanwhile stays, the later entry of two wins.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        let (mut all, _) = Manifest::load(path, &self.model, Duration::MAX);
        if all.foreign || self.foreign {
            let message = format!("{} is of a later version, or no manifest of shapes", path.display());
            return Err(io::Error::other(message));
        }
        for (key, entry) in &self.entries {
            let newer = all.entries.get(key).is_none_or(|there| there.seen_at <= entry.seen_at);
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
        let fresh = beside(path, "new");
        let written = write_through(&fresh, &text).and_then(|()| fs::rename(&fresh, path));
        if written.is_err() {
            fs::remove_file(&fresh).ok();
        }
        written
    }
}

/// Entries of one kernel and one bucket are one entry.
fn key(entry: &ManifestEntry) -> (String, String, Vec<u64>) {
    (entry.kernel.clone(), entry.operation.clone(), entry.bucket.clone())
}

/// A name beside a file that no other writer uses at the same time.
fn beside(path: &Path, what: &str) -> PathBuf {
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
