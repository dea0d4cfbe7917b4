//! Layers as the policy that selection reads.

use std::time::Duration;

use lz_schema::policy::{List, SettingValue};

use super::layer::Layer;
use super::{Action, CacheConfig, JitPolicy, Listed, Pattern, Policy, Rule, Sourced};
use crate::mode::KvStrategy;

impl Layer {
    /// The policy that these values make.
    pub fn policy(&self) -> Policy {
        let mut policy = Policy {
            enabled: self.bool("enabled"),
            fallback_enabled: self.bool("fallback_enabled"),
            deterministic: self.bool("deterministic"),
            require_tp_invariant: self.bool("tp_invariance.require_tp_invariant"),
            strict_mode: self.bool("strict_mode"),
            allow_adaptation: self.bool("allow_adaptation"),
            allow_reduced_precision: self.bool("allow_reduced_precision"),
            memory_headroom: self.headroom(),
            jit: self.jit(),
            kv_strategy: self.kv_strategy(),
            cache: self.cache(),
            locks: self.locks.clone(),
            allow: self.entries(List::Allow).to_vec(),
            deny: self.entries(List::Deny).to_vec(),
            prefer: self.entries(List::Prefer).to_vec(),
            avoid: self.entries(List::Avoid).to_vec(),
            rules: self.rules.clone(),
            ..Policy::default()
        };
        let experimental = self.bool("allow_experimental");
        if !experimental.value {
            policy.deny.push(Listed {
                kernels: Pattern::new("*_experimental"),
                operations: Pattern::any(),
                source: experimental.source,
            });
        }
        // The first of several preferences is the strongest: the points of a preference are the same for all, so the order
        // becomes a point more for each place.
        let last = policy.prefer.len().saturating_sub(1);
        let ordered = policy.prefer.iter().take(last).enumerate().map(|(at, entry)| Rule {
            name: "order of preferences".to_owned(),
            operations: Pattern::any(),
            condition: None,
            actions: vec![Action::Boost(entry.kernels.clone(), (last - at) as f64)],
            source: entry.source.clone(),
        });
        let ordered: Vec<Rule> = ordered.collect();
        policy.rules.extend(ordered);
        policy
    }

    fn bool(&self, key: &str) -> Sourced<bool> {
        match self.value(key) {
            Some(Sourced { value: SettingValue::Bool(value), source }) => Sourced { value, source },
            _ => Sourced::default_value(false),
        }
    }

    fn headroom(&self) -> Sourced<Option<u64>> {
        match self.value("memory_headroom_mb") {
            Some(Sourced { value: SettingValue::Int(mebibytes), source }) => {
                let bytes =
                    u64::try_from(mebibytes).ok().and_then(|mebibytes| mebibytes.checked_mul(1 << 20));
                Sourced { value: bytes, source }
            }
            _ => Policy::default().memory_headroom,
        }
    }

    fn jit(&self) -> Sourced<JitPolicy> {
        match self.value("jit.mode") {
            Some(Sourced { value: SettingValue::Text(word), source }) => {
                let value = match word.as_str() {
                    "never" => JitPolicy::Never,
                    "inline" => JitPolicy::Inline,
                    _ => JitPolicy::WhenWarm,
                };
                Sourced { value, source }
            }
            _ => Policy::default().jit,
        }
    }

    /// Only what somebody set: the default strategy is for caches that the library makes itself, and must not exclude kernels
    /// from calls that bring their own.
    fn kv_strategy(&self) -> Sourced<Option<KvStrategy>> {
        match self.settings.get("kv_cache.strategy") {
            Some(Sourced { value: SettingValue::Text(word), source }) => {
                Sourced { value: KvStrategy::from_name(word), source: source.clone() }
            }
            _ => Sourced::default_value(None),
        }
    }

    fn cache(&self) -> Sourced<CacheConfig> {
        let mut config = Sourced::default_value(CacheConfig::default());
        let mut take = |key: &str, apply: &mut dyn FnMut(&mut CacheConfig, &SettingValue)| {
            if let Some(value) = self.settings.get(key) {
                apply(&mut config.value, &value.value);
                config.source = value.source.clone();
            }
        };
        take("cache.enabled", &mut |config, value| {
            if let SettingValue::Bool(value) = value {
                config.enabled = *value;
            }
        });
        take("cache.max_size", &mut |config, value| {
            if let SettingValue::Int(value) = value {
                config.max_entries = usize::try_from(*value).unwrap_or(usize::MAX);
            }
        });
        take("cache.entry_ttl_seconds", &mut |config, value| {
            if let SettingValue::Float(value) = value {
                config.time_to_live = Duration::try_from_secs_f64(*value).unwrap_or(Duration::MAX);
            }
        });
        config
    }
}
