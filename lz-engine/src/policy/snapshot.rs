//! Builds the policy that selection reads from layers.

use std::time::Duration;

use lz_schema::policy::{List, SettingValue};

use super::layer::Layer;
use super::{
    Action, CacheConfig, CanaryCriteria, JitPolicy, ListEntry, Lock, Pattern, Policy, Provenance, Rule,
    TpFallback, VersionShare, WithSource,
};
use lz_core::mode::{KvStrategy, ReductionOrder};

/// Kernels that are experimental by name.
const EXPERIMENTAL: &str = "*_experimental";
/// The name of the rules that order preferences.
const ORDER: &str = "order of preferences";

impl Layer {
    /// The policy that results from this layer.
    pub fn policy(&self) -> Policy {
        let mut base = Policy::default();
        base.deny.push(experimental(Provenance::default_value()));
        base.overlaid(self)
    }
}

impl Policy {
    /// This policy with a layer applied; values that the layer does not set stay.
    #[must_use]
    pub fn overlaid(&self, layer: &Layer) -> Policy {
        let mut policy = self.clone();
        set_bool(&mut policy.enabled, layer, "enabled");
        set_bool(&mut policy.fallback_enabled, layer, "fallback_enabled");
        set_bool(&mut policy.deterministic, layer, "deterministic");
        set_bool(&mut policy.require_tp_invariant, layer, "tp_invariance.require_tp_invariant");
        set_bool(&mut policy.require_batch_invariant, layer, "batch_invariance.require_batch_invariant");
        tp_size(&mut policy.tp_size, layer);
        reduction_order(&mut policy.reduction_order, layer);
        tp_fallback(&mut policy.tp_fallback, layer);
        set_bool(&mut policy.explain_enabled, layer, "explain_enabled");
        set_bool(&mut policy.plan_mode, layer, "plan_mode");
        set_bool(&mut policy.plan_wider_dtypes, layer, "plan_wider_dtypes");
        set_bool(&mut policy.plan_dequantization, layer, "plan_dequantization");
        set_bool(&mut policy.strict_mode, layer, "strict_mode");
        set_bool(&mut policy.allow_adaptation, layer, "allow_adaptation");
        set_bool(&mut policy.allow_reduced_precision, layer, "allow_reduced_precision");
        set_bool(&mut policy.graph_strict_mode, layer, "graph_strict_mode");
        set_bool(&mut policy.default_graph_safe, layer, "graph_safety.default_graph_safe");
        headroom(&mut policy.memory_headroom, layer);
        set_bool(&mut policy.probe_memory, layer, "memory.probe");
        probe_time_to_live(&mut policy.probe_time_to_live, layer);
        set_bool(&mut policy.verify_before_first_call, layer, "tokenizer_verification.before_first_call");
        jit(&mut policy.jit, layer);
        set_bool(&mut policy.fail_on_no_fallback, layer, "jit.fail_on_no_fallback");
        kv_strategy(&mut policy.kv_strategy, layer);
        if let Some(WithSource { value: SettingValue::Text(version), source }) =
            layer.settings.get("kv_cache.min_driver_version")
        {
            policy.kv_min_driver = WithSource { value: version.clone(), source: source.clone() };
        }
        cache(&mut policy.cache, layer);
        versions(&mut policy.versions, layer, "rollout.shares", false);
        versions(&mut policy.versions, layer, "rollout.canaries", true);
        canary(&mut policy.canary, layer);
        merge_locks(&mut policy.locks, layer);
        let banned = policy.deny.iter().find(|listed| listed.kernels.as_str() == EXPERIMENTAL).cloned();
        policy.deny.retain(|listed| listed.kernels.as_str() != EXPERIMENTAL);
        for (list, ..) in List::ALL {
            merge_list(&mut policy, list, layer);
        }
        policy.deny.extend(match layer.settings.get("allow_experimental") {
            Some(WithSource { value: SettingValue::Bool(true), .. }) => None,
            Some(WithSource { source, .. }) => Some(experimental(source.clone())),
            None => banned,
        });
        policy.rules.retain(|rule| rule.name != ORDER);
        policy.rules.extend(layer.rules.iter().cloned());
        let ordered = order(&policy.prefer);
        policy.rules.extend(ordered);
        policy
    }
}

fn experimental(source: Provenance) -> ListEntry {
    ListEntry { kernels: Pattern::new(EXPERIMENTAL), operations: Pattern::any(), source }
}

/// Earlier preferences are stronger: all have the same base score, so each gets one more point than the next.
fn order(prefer: &[ListEntry]) -> Vec<Rule> {
    let last = prefer.len().saturating_sub(1);
    let ordered = prefer.iter().take(last).enumerate().map(|(at, entry)| Rule {
        name: ORDER.to_owned(),
        operations: Pattern::any(),
        condition: None,
        actions: vec![Action::Boost(entry.kernels.clone(), (last - at) as f64)],
        source: entry.source.clone(),
    });
    ordered.collect()
}

/// Applies the layer's locks and unlocks.
pub(super) fn merge_locks(locks: &mut Vec<Lock>, layer: &Layer) {
    locks.retain(|lock| {
        let operation = lock.operation.as_str();
        !layer.unlocks.iter().any(|unlocked| unlocked == operation)
            && !layer.locks.iter().any(|other| other.operation == lock.operation)
    });
    locks.extend(layer.locks.iter().cloned());
}

fn merge_list(policy: &mut Policy, list: List, layer: &Layer) {
    let Some(entries) = layer.stated(list) else { return };
    // A kernel that is preferred now is no longer avoided, and vice versa.
    let forget = |others: &mut Vec<ListEntry>| {
        others.retain(|other| !entries.iter().any(|entry| entry.kernels == other.kernels));
    };
    match list {
        List::Allow => policy.allow = entries.to_vec(),
        List::Deny => policy.deny = entries.to_vec(),
        List::Prefer => {
            policy.prefer = entries.to_vec();
            forget(&mut policy.avoid);
        }
        List::Avoid => {
            policy.avoid = entries.to_vec();
            forget(&mut policy.prefer);
        }
    }
}

fn set_bool(target: &mut WithSource<bool>, layer: &Layer, key: &str) {
    if let Some(WithSource { value: SettingValue::Bool(value), source }) = layer.settings.get(key) {
        *target = WithSource { value: *value, source: source.clone() };
    }
}

fn headroom(target: &mut WithSource<Option<u64>>, layer: &Layer) {
    if let Some(WithSource { value: SettingValue::Int(mebibytes), source }) =
        layer.settings.get("memory_headroom_mb")
    {
        let bytes = u64::try_from(*mebibytes).ok().and_then(|mebibytes| mebibytes.checked_mul(1 << 20));
        *target = WithSource { value: bytes, source: source.clone() };
    }
}

fn jit(target: &mut WithSource<JitPolicy>, layer: &Layer) {
    if let Some(WithSource { value: SettingValue::Text(word), source }) = layer.settings.get("jit.mode") {
        let value = match word.as_str() {
            "never" => JitPolicy::Never,
            "inline" => JitPolicy::Inline,
            _ => JitPolicy::WhenWarm,
        };
        *target = WithSource { value, source: source.clone() };
    }
}

fn probe_time_to_live(target: &mut WithSource<Duration>, layer: &Layer) {
    if let Some(WithSource { value: SettingValue::Float(seconds), source }) =
        layer.settings.get("memory.probe_ttl_seconds")
    {
        let value = Duration::try_from_secs_f64(*seconds).unwrap_or(Duration::MAX);
        *target = WithSource { value, source: source.clone() };
    }
}

fn tp_size(target: &mut WithSource<u32>, layer: &Layer) {
    if let Some(WithSource { value: SettingValue::Int(size), source }) =
        layer.settings.get("tp_invariance.tp_size")
    {
        *target = WithSource { value: u32::try_from(*size).unwrap_or(u32::MAX), source: source.clone() };
    }
}

fn reduction_order(target: &mut WithSource<ReductionOrder>, layer: &Layer) {
    if let Some(WithSource { value: SettingValue::Text(word), source }) =
        layer.settings.get("tp_invariance.reduction_algorithm")
        && let Some(value) = ReductionOrder::from_name(word)
    {
        *target = WithSource { value, source: source.clone() };
    }
}

fn tp_fallback(target: &mut WithSource<TpFallback>, layer: &Layer) {
    if let Some(WithSource { value: SettingValue::Text(word), source }) =
        layer.settings.get("tp_invariance.tp_invariant_fallback_mode")
    {
        let value = match word.as_str() {
            "error" => TpFallback::Error,
            "best_effort" => TpFallback::BestEffort,
            _ => TpFallback::Reference,
        };
        *target = WithSource { value, source: source.clone() };
    }
}

/// Only an explicit setting: the default strategy is for caches that the library creates, and must not exclude kernels from calls
/// that bring their own.
fn kv_strategy(target: &mut WithSource<Option<KvStrategy>>, layer: &Layer) {
    if let Some(WithSource { value: SettingValue::Text(word), source }) =
        layer.settings.get("kv_cache.strategy")
    {
        *target = WithSource { value: KvStrategy::from_name(word), source: source.clone() };
    }
}

fn cache(target: &mut WithSource<CacheConfig>, layer: &Layer) {
    let mut take = |key: &str, apply: &dyn Fn(&mut CacheConfig, &SettingValue)| {
        if let Some(value) = layer.settings.get(key) {
            apply(&mut target.value, &value.value);
            target.source = value.source.clone();
        }
    };
    take("cache.enabled", &|config, value| {
        if let SettingValue::Bool(value) = value {
            config.enabled = *value;
        }
    });
    take("cache.max_size", &|config, value| {
        if let SettingValue::Int(value) = value {
            config.max_entries = usize::try_from(*value).unwrap_or(usize::MAX);
        }
    });
    take("cache.entry_ttl_seconds", &|config, value| {
        if let SettingValue::Float(value) = value {
            config.time_to_live = Duration::try_from_secs_f64(*value).unwrap_or(Duration::MAX);
        }
    });
}

/// Replaces the shares, or the canaries, if the layer sets them.
fn versions(target: &mut Vec<VersionShare>, layer: &Layer, key: &str, is_canary: bool) {
    let Some(WithSource { value: SettingValue::Numbers(shares), source }) = layer.settings.get(key) else {
        return;
    };
    target.retain(|share| share.is_canary != is_canary);
    let share = |(version, percent): &(String, i64)| VersionShare {
        version: version.clone(),
        percent: u8::try_from((*percent).clamp(0, 100)).unwrap_or(0),
        is_canary,
        source: source.clone(),
    };
    target.extend(shares.iter().map(share));
}

fn canary(target: &mut CanaryCriteria, layer: &Layer) {
    let value = |key: &str| layer.settings.get(key).map(|sourced| &sourced.value);
    let count = |key: &str, into: &mut u64| {
        if let Some(SettingValue::Int(count)) = value(key) {
            *into = u64::try_from(*count).unwrap_or(0);
        }
    };
    count("rollout.canary_calls", &mut target.calls);
    count("rollout.canary_max_mismatches", &mut target.max_mismatches);
    count("rollout.canary_max_errors", &mut target.max_errors);
    if let Some(SettingValue::Float(percent)) = value("rollout.canary_max_slowdown_percent") {
        target.max_slowdown_percent = *percent;
    }
}
