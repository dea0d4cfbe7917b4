//! The layers of a process's policy: file, profile, environment and calls; later layers override earlier ones.
//!
//! Every change publishes the merged layer. Nothing here selects or reads files. Thread-local overlays are in
//! [`super::overlay`].

use std::fmt;
use std::sync::Arc;

use lz_schema::policy::{List, SETTINGS, SettingValue};
use sha2::{Digest, Sha256};

use super::env::Environment;
use super::file::Document;
use super::layer::{Layer, NotASetting, SettingInput};
use super::{Policy, Provenance, Rule};
use lz_core::fork::{Mutex, MutexGuard};

/// A value of the configuration and its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigEntry {
    /// `cache.max_size`, `prefer`, `locks.attention.causal`, `rules.0`.
    pub key: String,
    /// The value as text.
    pub value: String,
    /// The source.
    pub source: Provenance,
}

type Publish = dyn Fn(&Layer) + Send + Sync;

/// The layers of a process. Clones share them.
#[derive(Clone)]
pub struct PolicyStack {
    shared: Arc<Shared>,
}

struct Shared {
    layers: Mutex<Layers>,
    publish: Box<Publish>,
}

#[derive(Default)]
struct Layers {
    document: Document,
    environment: Layer,
    calls: Layer,
}

impl fmt::Debug for PolicyStack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolicyStack").field("digest", &self.digest()).finish_non_exhaustive()
    }
}

impl Layers {
    /// The merged layers. A profile is above its file and below the environment and calls.
    fn effective(&self) -> Layer {
        let mut without_profile = self.document.layer.clone();
        let above = [&self.environment, &self.calls];
        above.into_iter().for_each(|layer| without_profile.merge(layer));
        let mut all = self.document.layer.clone();
        if let Some(profile) = without_profile.value("profile")
            && let Some(profile) = self.document.profiles.get(&profile.value.to_string())
        {
            all.merge(profile);
        }
        above.into_iter().for_each(|layer| all.merge(layer));
        all
    }
}

impl PolicyStack {
    /// A stack with the built-in profiles only; `publish` is called with the merged layer after each change, under the
    /// lock.
    pub fn new(publish: impl Fn(&Layer) + Send + Sync + 'static) -> PolicyStack {
        let layers = Layers { document: Document::built_in(), ..Layers::default() };
        PolicyStack { shared: Arc::new(Shared { layers: Mutex::new(layers), publish: Box::new(publish) }) }
    }

    fn layers(&self) -> MutexGuard<'_, Layers> {
        // Layers are replaced as a whole, so a panic cannot leave them half-updated.
        self.shared.layers.lock()
    }

    fn change<T>(&self, change: impl FnOnce(&mut Layers) -> T) -> T {
        let mut layers = self.layers();
        let result = change(&mut layers);
        (self.shared.publish)(&layers.effective());
        result
    }

    /// Replaces the layer and profiles of the file.
    pub fn load(&self, document: Document) {
        self.change(|layers| layers.document = document);
    }

    /// Replaces the layer of the environment.
    pub fn set_environment(&self, environment: &Environment) {
        self.change(|layers| layers.environment = environment.layer.clone());
    }

    /// Sets values by key: all of them or, on error, none.
    pub fn configure(
        &self,
        values: impl IntoIterator<Item = (String, SettingInput)>,
        source: &str,
    ) -> Result<(), NotASetting> {
        let mut layers = self.layers();
        let mut calls = layers.calls.clone();
        for (key, value) in values {
            if let ("profile", SettingInput::Text(name)) = (key.as_str(), &value)
                && name != "none"
                && !layers.document.profiles.contains_key(name)
            {
                return Err(NotASetting { key, message: format!("unknown profile `{name}`") });
            }
            calls.set(&key, value, source)?;
        }
        layers.calls = calls;
        (self.shared.publish)(&layers.effective());
        Ok(())
    }

    /// Locks an operation or alias to a kernel.
    pub fn lock(&self, operation: &str, kernel: &str, source: &str) {
        self.change(|layers| layers.calls.lock(operation, kernel, source));
    }

    /// Removes a lock, whatever its source.
    pub fn unlock(&self, operation: &str) {
        self.change(|layers| layers.calls.unlock(operation));
    }

    /// Replaces the rules of calls that have this name.
    pub fn set_rules(&self, name: &str, rules: Vec<Rule>) {
        self.change(|layers| {
            layers.calls.rules.retain(|rule| rule.name != name);
            layers.calls.rules.extend(rules);
        });
    }

    /// The merged layers.
    pub fn effective(&self) -> Layer {
        self.layers().effective()
    }

    /// The current policy.
    pub fn policy(&self) -> Policy {
        self.layers().effective().policy()
    }

    /// The value of one setting.
    pub fn value(&self, key: &str) -> Option<super::WithSource<SettingValue>> {
        self.layers().effective().value(key)
    }

    /// All values with their sources: settings first, then lists, locks and rules.
    pub fn config(&self) -> Vec<ConfigEntry> {
        entries(&self.layers().effective())
    }

    /// SHA-256 of all values, independent of their sources: equal policies have equal digests.
    pub fn digest(&self) -> String {
        let mut hasher = Sha256::new();
        for entry in self.config() {
            hasher.update(format!("{}={}\n", entry.key, entry.value));
        }
        hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// All values of a layer with their sources; unset values have their default.
pub fn entries(layer: &Layer) -> Vec<ConfigEntry> {
    let settings = SETTINGS.iter().filter_map(|setting| {
        let value = layer.value(setting.key)?;
        Some(ConfigEntry {
            key: setting.key.to_owned(),
            value: value.value.to_string(),
            source: value.source,
        })
    });
    let mut entries: Vec<ConfigEntry> = settings.collect();
    for (list, key, _) in List::ALL {
        for entry in layer.entries(list) {
            entries.push(ConfigEntry {
                key: key.to_owned(),
                value: entry.kernels.to_string(),
                source: entry.source.clone(),
            });
        }
    }
    for lock in &layer.locks {
        entries.push(ConfigEntry {
            key: format!("locks.{}", lock.operation),
            value: lock.kernel.clone(),
            source: lock.source.clone(),
        });
    }
    for (at, rule) in layer.rules.iter().enumerate() {
        let condition = rule.condition.as_deref().unwrap_or("true");
        let value = format!("{} when {condition}: {:?}", rule.operations, rule.actions);
        entries.push(ConfigEntry { key: format!("rules.{at}"), value, source: rule.source.clone() });
    }
    entries
}
