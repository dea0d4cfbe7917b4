//! The settings of one source: a file, a profile, the environment, a call. Later layers override earlier ones.

use std::collections::BTreeMap;

use lz_schema::policy::{Kind, List, Setting, SettingValue};

use super::{ListEntry, Lock, Pattern, Provenance, Rule, WithSource};

/// The settings of one source.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Layer {
    /// Settings by key.
    pub(super) settings: BTreeMap<&'static str, WithSource<SettingValue>>,
    /// Locks; a later one on the same operation replaces an earlier one.
    pub(super) locks: Vec<Lock>,
    /// Operations whose locks in earlier layers are removed.
    pub(super) unlocks: Vec<String>,
    /// Lists that are set, even if empty: a set list replaces an earlier one of its name.
    pub(super) lists: Vec<(ListKey, Vec<ListEntry>)>,
    /// Rules, after those of earlier layers.
    pub(super) rules: Vec<Rule>,
}

/// Index of a list in [`List::ALL`].
pub(super) type ListKey = usize;

pub(super) fn list_key(list: List) -> ListKey {
    List::ALL.iter().position(|(known, ..)| *known == list).unwrap_or_default()
}

/// A value passed to a setting.
#[derive(Debug, Clone, PartialEq)]
pub enum SettingInput {
    /// A bool.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number.
    Float(f64),
    /// A text or a word.
    Text(String),
    /// A list of texts, for the lists of kernels and backends.
    Texts(Vec<String>),
}

/// Why a setting was rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotASetting {
    /// The key as given.
    pub key: String,
    /// What is wrong.
    pub message: String,
}

impl std::fmt::Display for NotASetting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for NotASetting {}

impl Layer {
    /// An empty layer.
    pub fn new() -> Layer {
        Layer::default()
    }

    /// Whether it sets nothing.
    pub fn is_empty(&self) -> bool {
        *self == Layer::default()
    }

    /// Sets a value by key: `cache.max_size`, `prefer_sources`.
    pub fn set(&mut self, key: &str, value: SettingInput, source: &str) -> Result<(), NotASetting> {
        if let Some((list, ..)) =
            List::ALL.iter().find(|(_, kernels, sources)| *kernels == key || *sources == key)
        {
            let names = match value {
                SettingInput::Texts(names) => names,
                SettingInput::Text(name) => vec![name],
                _ => return Err(not(key, format!("`{key}` needs a list of strings"))),
            };
            self.list(*list, &names, source);
            return Ok(());
        }
        let Some(setting) = Setting::find(key) else {
            if let Some(why) = lz_schema::policy::without_effect(key) {
                crate::log::warn_once(&format!("`{key}` ({source}) has no effect: {why}"));
                return Ok(());
            }
            let near = lz_schema::diagnostics::nearest(key, keys());
            let tail = near.map_or_else(String::new, |near| format!("; did you mean `{near}`?"));
            return Err(not(key, format!("unknown setting `{key}`{tail}")));
        };
        let text = match &value {
            SettingInput::Bool(value) => value.to_string(),
            SettingInput::Int(value) => value.to_string(),
            SettingInput::Float(value) => format!("{value:?}"),
            SettingInput::Text(value) => value.clone(),
            SettingInput::Texts(values) if matches!(setting.kind, Kind::Texts) => {
                let value = SettingValue::Texts(values.clone());
                self.settings.insert(setting.key, WithSource::new(value, source));
                return Ok(());
            }
            SettingInput::Texts(_) => return Err(not(key, format!("`{key}` needs {}", setting.needs()))),
        };
        match setting.parse(&text) {
            Some(value) => {
                self.settings.insert(setting.key, WithSource::new(value, source));
                Ok(())
            }
            None => Err(not(key, format!("`{key}` needs {}, found `{text}`", setting.needs()))),
        }
    }

    /// Sets a list.
    pub fn list(&mut self, list: List, patterns: &[String], source: &str) {
        let entries = patterns
            .iter()
            .map(|pattern| ListEntry {
                kernels: Pattern::new(pattern),
                operations: Pattern::any(),
                source: Provenance::new(source),
            })
            .collect();
        let key = list_key(list);
        self.lists.retain(|(known, _)| *known != key);
        self.lists.push((key, entries));
    }

    /// Locks an operation or alias to a kernel.
    pub fn lock(&mut self, operation: &str, kernel: &str, source: &str) {
        self.unlocks.retain(|unlocked| unlocked != operation);
        self.locks.retain(|lock| lock.operation.as_str() != operation);
        self.locks.push(Lock {
            operation: Pattern::new(operation),
            kernel: kernel.to_owned(),
            condition: None,
            source: Provenance::new(source),
        });
    }

    /// Removes the lock on an operation or alias, whatever its source.
    pub fn unlock(&mut self, operation: &str) {
        self.locks.retain(|lock| lock.operation.as_str() != operation);
        if !self.unlocks.iter().any(|unlocked| unlocked == operation) {
            self.unlocks.push(operation.to_owned());
        }
    }

    /// Merges a later layer into this one.
    pub fn merge(&mut self, later: &Layer) {
        self.settings.extend(later.settings.iter().map(|(key, value)| (*key, value.clone())));
        super::snapshot::merge_locks(&mut self.locks, later);
        self.unlocks.retain(|operation| !later.locks.iter().any(|lock| lock.operation.as_str() == operation));
        for operation in &later.unlocks {
            if !self.unlocks.contains(operation) {
                self.unlocks.push(operation.clone());
            }
        }
        for (key, entries) in &later.lists {
            self.lists.retain(|(known, _)| known != key);
            // A kernel that is preferred now is no longer avoided, and vice versa.
            let opposite = match List::ALL.get(*key).map(|(list, ..)| *list) {
                Some(List::Prefer) => Some(list_key(List::Avoid)),
                Some(List::Avoid) => Some(list_key(List::Prefer)),
                _ => None,
            };
            for (known, others) in &mut self.lists {
                if Some(*known) == opposite {
                    others.retain(|other| !entries.iter().any(|entry| entry.kernels == other.kernels));
                }
            }
            self.lists.push((*key, entries.clone()));
        }
        self.rules.extend(later.rules.iter().cloned());
    }

    /// The entries of one list.
    pub(super) fn entries(&self, list: List) -> &[ListEntry] {
        self.stated(list).unwrap_or_default()
    }

    /// The entries of one list, if it is set.
    pub(super) fn stated(&self, list: List) -> Option<&[ListEntry]> {
        let key = list_key(list);
        self.lists.iter().find(|(known, _)| *known == key).map(|(_, entries)| entries.as_slice())
    }

    /// The value of a setting, if it is set.
    pub fn stated_setting(&self, key: &str) -> Option<&SettingValue> {
        self.settings.get(key).map(|sourced| &sourced.value)
    }

    /// The value of a setting, or its default, with the source.
    pub fn value(&self, key: &str) -> Option<WithSource<SettingValue>> {
        let setting = Setting::find(key)?;
        Some(match self.settings.get(setting.key) {
            Some(value) => value.clone(),
            None => WithSource::default_value(setting.default_value()),
        })
    }
}

fn not(key: &str, message: String) -> NotASetting {
    NotASetting { key: key.to_owned(), message }
}

fn keys() -> impl Iterator<Item = &'static str> {
    let settings = lz_schema::policy::SETTINGS.iter().map(|setting| setting.key);
    let others = lz_schema::policy::SYNONYMS.iter().map(|(key, _)| *key);
    settings.chain(others).chain(List::ALL.iter().flat_map(|(_, kernels, sources)| [*kernels, *sources]))
}
