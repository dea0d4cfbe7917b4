//! A thread's overlay of an engine's policy: preferences, locks, and settings of selection.
//!
//! Settings that are part of the mode become a mode override, which the hit path reads for free; the rest becomes a layer.

use lz_schema::policy::{List, Setting, SettingValue};

use super::layer::{Layer, NotASetting, SettingInput};
use lz_core::mode::{KvStrategy, ModeFlag, ModeOverride};

/// Settings that are mode flags, and whether `true` sets the flag.
const MODE_FLAGS: [(&str, ModeFlag, bool); 7] = [
    ("enabled", ModeFlag::Disabled, false),
    ("deterministic", ModeFlag::Deterministic, true),
    ("strict_mode", ModeFlag::Strict, true),
    ("allow_adaptation", ModeFlag::NotAdapting, false),
    ("allow_reduced_precision", ModeFlag::ReducedPrecision, true),
    ("tp_invariance.require_tp_invariant", ModeFlag::TensorParallelInvariant, true),
    ("batch_invariance.require_batch_invariant", ModeFlag::BatchInvariant, true),
];

/// Settings that are read from the policy on the slow path.
const POLICY_SETTINGS: [&str; 13] = [
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
    "plan_wider_dtypes",
    "plan_dequantization",
];

/// A thread's overlay of a policy.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Overlay {
    layer: Layer,
}

impl Overlay {
    /// An empty overlay.
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

    /// Reference kernels only.
    #[must_use]
    pub fn disabled(mut self) -> Overlay {
        let off = super::WithSource::new(SettingValue::Bool(false), "lz.disabled");
        self.layer.settings.insert("enabled", off);
        self
    }

    /// Locks an operation or alias to a kernel.
    #[must_use]
    pub fn lock(mut self, operation: &str, kernel: &str) -> Overlay {
        self.layer.lock(operation, kernel, "lz.lock");
        self
    }

    /// Removes a lock on an operation or alias, whatever its source.
    #[must_use]
    pub fn unlock(mut self, operation: &str) -> Overlay {
        self.layer.unlock(operation);
        self
    }

    /// Sets a value by key; engine-wide settings are rejected.
    pub fn set(mut self, key: &str, value: SettingInput) -> Result<Overlay, NotASetting> {
        self.layer.set(key, value, "lz.scope")?;
        if let Some(setting) = Setting::find(key) {
            let known = MODE_FLAGS.iter().map(|(known, ..)| *known).chain(POLICY_SETTINGS);
            if !known.into_iter().any(|known| known == setting.key) {
                let message =
                    format!("`{key}` is an engine-wide setting; it cannot be changed for one thread");
                return Err(NotASetting { key: key.to_owned(), message });
            }
        }
        Ok(self)
    }

    fn list(mut self, list: List, patterns: &[String], source: &str) -> Overlay {
        self.layer.list(list, patterns, source);
        self
    }

    /// The whole overlay as a layer, for display.
    pub(crate) fn as_layer(&self) -> Layer {
        self.layer.clone()
    }

    /// Splits it into a mode override and a layer for [`super::Policy::overlaid`].
    pub(crate) fn split(self) -> (ModeOverride, Layer) {
        let mut layer = self.layer;
        let mut change = ModeOverride::NONE;
        for (key, ask, meant) in MODE_FLAGS {
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
    fn split_separates_mode_flags_from_the_layer() {
        let overlay = Overlay::new()
            .prefer(&["a".to_owned()])
            .disabled()
            .set("allow_adaptation", SettingInput::Bool(false))
            .and_then(|overlay| overlay.set("kv_cache.strategy", SettingInput::Text("paged".to_owned())))
            .and_then(|overlay| overlay.set("tp_invariance.tp_size", SettingInput::Int(4)))
            .and_then(|overlay| overlay.set("memory_headroom_mb", SettingInput::Int(3)))
            .unwrap();
        let (change, layer) = overlay.split();
        assert_eq!(change.apply(Mode::PLAIN).to_string(), "disabled, not adapting, paged, 4 ranks");
        let policy = layer.policy();
        assert!(policy.enabled.value && policy.allow_adaptation.value);
        assert_eq!((policy.memory_headroom.value, policy.prefer.len()), (Some(3 << 20), 1));
    }

    #[test]
    fn engine_wide_settings_are_rejected() {
        let error = Overlay::new().set("perfdb.path", SettingInput::Text("x".to_owned())).unwrap_err();
        assert_eq!(
            error.to_string(),
            "`perfdb.path` is an engine-wide setting; it cannot be changed for one thread"
        );
        assert!(Overlay::new().set("no.such", SettingInput::Bool(true)).is_err());
    }
}
