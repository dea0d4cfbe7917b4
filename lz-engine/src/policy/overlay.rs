//! What a thread lays over an engine's policy for a while: preferences, locks, and settings that are about selection.
//!
//! Settings that are a mode of the call become a change of mode, which costs nothing to look at; the rest is a layer.

use lz_schema::policy::{List, Setting, SettingValue};

use super::layer::{Given, Layer, NotASetting};
use lz_core::mode::{Ask, KvStrategy, ModeChange};

/// Settings that are one ask of the mode, and whether `true` asks for it.
const ASKS: [(&str, Ask, bool); 6] = [
    ("enabled", Ask::Disabled, false),
    ("deterministic", Ask::Deterministic, true),
    ("strict_mode", Ask::Strict, true),
    ("allow_adaptation", Ask::NotAdapting, false),
    ("allow_reduced_precision", Ask::ReducedPrecision, true),
    ("tp_invariance.require_tp_invariant", Ask::TensorParallelInvariant, true),
];

/// Settings that are read from the policy when a decision is made.
const OTHERS: [&str; 11] = [
    "kv_cache.strategy",
    "tp_invariance.tp_size",
    "tp_invariance.reduction_algorithm",
    "fallback_enabled",
    "memory_headroom_mb",
    "jit.mode",
    "jit.fail_on_no_fallback",
    "allow_experimental",
    "graph_strict_mode",
    "graph_safety.default_graph_safe",
    "plan_mode",
];

/// What a thread lays over a policy.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Overlay {
    layer: Layer,
}

impl Overlay {
    /// Nothing.
    pub fn new() -> Overlay {
        Overlay::default()
    }

    /// Prefers these kernels or backends; the first is the strongest.
    #[must_use]
    pub fn prefer(self, patterns: &[String]) -> Overlay {
        self.list(List::Prefer, patterns, "lz.prefer")
    }

    /// Avoids these kernels or backends.
    #[must_use]
    pub fn avoid(self, patterns: &[String]) -> Overlay {
        self.list(List::Avoid, patterns, "lz.avoid")
    }

    /// Only these kernels or backends.
    #[must_use]
    pub fn allow(self, patterns: &[String]) -> Overlay {
        self.list(List::Allow, patterns, "lz.allow")
    }

    /// None of these kernels or backends.
    #[must_use]
    pub fn deny(self, patterns: &[String]) -> Overlay {
        self.list(List::Deny, patterns, "lz.deny")
    }

    /// References only.
    #[must_use]
    pub fn disabled(mut self) -> Overlay {
        let off = super::Sourced::new(SettingValue::Bool(false), "lz.disabled");
        self.layer.settings.insert("enabled", off);
        self
    }

    /// Locks an operation or alias to a kernel.
    #[must_use]
    pub fn lock(mut self, operation: &str, kernel: &str) -> Overlay {
        self.layer.lock(operation, kernel, "lz.lock");
        self
    }

    /// Ends a lock on an operation or alias, whoever made it.
    #[must_use]
    pub fn unlock(mut self, operation: &str) -> Overlay {
        self.layer.unlock(operation);
        self
    }

    /// Sets a value by its key; a setting of the whole engine is refused.
    pub fn set(mut self, key: &str, value: Given) -> Result<Overlay, NotASetting> {
        self.layer.set(key, value, "lz.scope")?;
        if let Some(setting) = Setting::find(key) {
            let known = ASKS.iter().map(|(known, ..)| *known).chain(OTHERS);
            if !known.into_iter().any(|known| known == setting.key) {
                let message =
                    format!("`{key}` is a setting of the whole engine; one thread cannot change it");
                return Err(NotASetting { key: key.to_owned(), message });
            }
        }
        Ok(self)
    }

    fn list(mut self, list: List, patterns: &[String], source: &str) -> Overlay {
        self.layer.list(list, patterns, source);
        self
    }

    /// All of it as a layer, for people.
    pub(crate) fn whole(&self) -> Layer {
        self.layer.clone()
    }

    /// As a change of mode and what is left, which is a layer for [`super::Policy::overlaid`].
    pub(crate) fn split(self) -> (ModeChange, Layer) {
        let mut layer = self.layer;
        let mut change = ModeChange::NONE;
        for (key, ask, meant) in ASKS {
            if let Some(SettingValue::Bool(value)) = layer.settings.remove(key).map(|sourced| sourced.value) {
                change = change.set(ask, value == meant);
            }
        }
        let strategy = layer.settings.remove("kv_cache.strategy").map(|sourced| sourced.value);
        if let Some(SettingValue::Text(word)) = strategy
            && let Some(strategy) = KvStrategy::from_name(&word)
        {
            change = change.kv(strategy);
        }
        let size = layer.settings.remove("tp_invariance.tp_size").map(|sourced| sourced.value);
        if let Some(SettingValue::Int(size)) = size {
            change = change.tp(u32::try_from(size).unwrap_or(u32::MAX));
        }
        (change, layer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lz_core::mode::Mode;

    #[test]
    fn modes_and_the_rest_part_ways() {
        let overlay = Overlay::new()
            .prefer(&["a".to_owned()])
            .disabled()
            .set("allow_adaptation", Given::Bool(false))
            .and_then(|overlay| overlay.set("kv_cache.strategy", Given::Text("paged".to_owned())))
            .and_then(|overlay| overlay.set("tp_invariance.tp_size", Given::Int(4)))
            .and_then(|overlay| overlay.set("memory_headroom_mb", Given::Int(3)))
            .unwrap();
        let (change, layer) = overlay.split();
        assert_eq!(change.apply(Mode::PLAIN).to_string(), "disabled, not adapting, paged, 4 ranks");
        let policy = layer.policy();
        assert!(policy.enabled.value && policy.allow_adaptation.value);
        assert_eq!((policy.memory_headroom.value, policy.prefer.len()), (Some(3 << 20), 1));
    }

    #[test]
    fn what_belongs_to_the_engine_is_refused() {
        let error = Overlay::new().set("perfdb.path", Given::Text("x".to_owned())).unwrap_err();
        assert_eq!(
            error.to_string(),
            "`perfdb.path` is a setting of the whole engine; one thread cannot change it"
        );
        assert!(Overlay::new().set("no.such", Given::Bool(true)).is_err());
    }
}
