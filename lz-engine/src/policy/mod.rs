//! What the operator wants, as a snapshot that selection reads: plain data, each value with where it came from.
//!
//! Nothing here reads a file or the environment; whoever does fills in a [`Policy`] and hands it to the engine, which
//! compiles the conditions against each operation. A policy is never changed: a new one replaces it.

pub mod env;
pub mod file;
pub(crate) mod generations;
pub mod layer;
pub mod overlay;
pub mod pattern;
mod rules;
mod snapshot;
pub mod stack;

use std::fmt;
use std::time::Duration;

pub use pattern::Pattern;

use lz_core::mode::{Ask, KvStrategy, Mode, ReductionOrder};

/// Where a value came from, for people: `layerzero.yaml:14`, `LAYERZERO_PREFER`, `lz.configure`, `default`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Provenance(pub String);

impl Provenance {
    /// From a text.
    pub fn new(text: impl Into<String>) -> Provenance {
        Provenance(text.into())
    }

    /// What nobody set.
    pub fn default_value() -> Provenance {
        Provenance("default".to_owned())
    }
}

impl fmt::Display for Provenance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A value and where it came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sourced<T> {
    /// The value.
    pub value: T,
    /// Where it came from.
    pub source: Provenance,
}

impl<T> Sourced<T> {
    /// A value that somebody set.
    pub fn new(value: T, source: impl Into<String>) -> Sourced<T> {
        Sourced { value, source: Provenance::new(source) }
    }

    /// A value that nobody set.
    pub fn default_value(value: T) -> Sourced<T> {
        Sourced { value, source: Provenance::default_value() }
    }
}

/// What happens with kernels that compile on first use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JitPolicy {
    /// They are never chosen.
    Never,
    /// They are chosen once they are warm; a cold one is asked for in the background and passed over meanwhile.
    WhenWarm,
    /// They may compile inside a call, at a price in the score.
    Inline,
}

/// What happens when results must not depend on the tensor-parallel size and no kernel but the reference promises it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TpFallback {
    /// The reference runs.
    Reference,
    /// The call is refused.
    Error,
    /// Kernels that promise it come first, and then the others.
    BestEffort,
}

/// Always this kernel for that operation, provided that the condition holds.
#[derive(Debug, Clone, PartialEq)]
pub struct Lock {
    /// The operation, or an alias, which stands for several operations with some parameters fixed.
    pub operation: Pattern,
    /// The kernel's id.
    pub kernel: String,
    /// A bool expression; none means always.
    pub condition: Option<String>,
    /// Where it came from.
    pub source: Provenance,
}

/// Kernels or backends in one of the lists.
#[derive(Debug, Clone, PartialEq)]
pub struct Listed {
    /// Which kernels, by id or backend.
    pub kernels: Pattern,
    /// For which operations.
    pub operations: Pattern,
    /// Where it came from.
    pub source: Provenance,
}

/// A conditional rule.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// A name for explanations; empty is fine.
    pub name: String,
    /// For which operations.
    pub operations: Pattern,
    /// A bool expression over the operation's axes, params, `given(…)` and dtypes, and over the device and mode
    /// (see [`lz_core::expression_names::DEVICE_NAMES`]). A rule that names something an operation does not have is not about it.
    pub condition: Option<String>,
    /// What it does.
    pub actions: Vec<Action>,
    /// Where it came from.
    pub source: Provenance,
}

/// What a rule does when its condition holds.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Adds the points of a preference.
    Prefer(Pattern),
    /// Takes away the points of an avoidance.
    Avoid(Pattern),
    /// Adds points to a kernel's priority.
    Boost(Pattern, f64),
    /// Excludes.
    Deny(Pattern),
    /// Excludes all others.
    Allow(Pattern),
    /// Puts a kernel before all others, as long as it can run the call.
    Override(String),
    /// This kernel or an error.
    Lock(String),
    /// Excludes every kernel for which a bool expression over its own properties (see
    /// [`lz_core::expression_names::KERNEL_NAMES`]) is false.
    Filter(String),
}

/// The cache of decisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheConfig {
    /// Whether decisions are kept at all.
    pub enabled: bool,
    /// The most decisions that are kept.
    pub max_entries: usize,
    /// How long a decision is kept.
    pub time_to_live: Duration,
}

impl Default for CacheConfig {
    fn default() -> Self {
        CacheConfig { enabled: true, max_entries: 10_000, time_to_live: Duration::from_secs(60) }
    }
}

/// What the operator wants.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// False: references only.
    pub enabled: Sourced<bool>,
    /// Whether another kernel is tried when one fails.
    pub fallback_enabled: Sourced<bool>,
    /// Whether the same inputs must give the same bits.
    pub deterministic: Sourced<bool>,
    /// Whether results must not depend on the tensor-parallel size.
    pub require_tp_invariant: Sourced<bool>,
    /// How many ranks the tensor-parallel group has, where callers do not say it.
    pub tp_size: Sourced<u32>,
    /// In which order the ranks add.
    pub reduction_order: Sourced<ReductionOrder>,
    /// What happens when only the reference is.
    pub tp_fallback: Sourced<TpFallback>,
    /// Whether explanations can be asked for.
    pub explain_enabled: Sourced<bool>,
    /// Whether the kernels of a block of operations are chosen together.
    pub plan_mode: Sourced<bool>,
    /// Whether implicit conversions are forbidden.
    pub strict_mode: Sourced<bool>,
    /// Whether adapters may convert at all.
    pub allow_adaptation: Sourced<bool>,
    /// Whether TF32 and the like may be used.
    pub allow_reduced_precision: Sourced<bool>,
    /// Whether kernels must have survived a trial capture before they run in a capture.
    pub graph_strict_mode: Sourced<bool>,
    /// Whether a kernel that does not say whether it can be captured is taken as one that can.
    pub default_graph_safe: Sourced<bool>,
    /// The most scratch memory that a kernel may take, in bytes; none means no limit.
    pub memory_headroom: Sourced<Option<u64>>,
    /// Whether the memory that is left on a device is looked at, where nobody was named who knows it.
    pub probe_memory: Sourced<bool>,
    /// How long the size of the largest free block is believed.
    pub probe_time_to_live: Sourced<Duration>,
    /// What happens with kernels that compile on first use.
    pub jit: Sourced<JitPolicy>,
    /// Whether a call is refused that only a cold kernel could run; otherwise that one compiles inside the call.
    pub fail_on_no_fallback: Sourced<bool>,
    /// How the cache of keys and values is kept, where callers do not say it.
    pub kv_strategy: Sourced<Option<KvStrategy>>,
    /// The oldest driver for a cache of keys and values in virtual memory.
    pub kv_min_driver: Sourced<String>,
    /// The cache of decisions.
    pub cache: Sourced<CacheConfig>,
    /// Points for a preference.
    pub prefer_points: f64,
    /// Points against an avoidance.
    pub avoid_points: f64,
    /// Locks; of several that act on a call the last wins.
    pub locks: Vec<Lock>,
    /// If any entry is about an operation, only kernels of such entries may run it.
    pub allow: Vec<Listed>,
    /// Kernels that may not run.
    pub deny: Vec<Listed>,
    /// Kernels that gain points.
    pub prefer: Vec<Listed>,
    /// Kernels that lose points.
    pub avoid: Vec<Listed>,
    /// Conditional rules.
    pub rules: Vec<Rule>,
}

impl Default for Policy {
    fn default() -> Self {
        Policy {
            enabled: Sourced::default_value(true),
            fallback_enabled: Sourced::default_value(true),
            deterministic: Sourced::default_value(false),
            require_tp_invariant: Sourced::default_value(false),
            tp_size: Sourced::default_value(1),
            reduction_order: Sourced::default_value(ReductionOrder::Tree),
            tp_fallback: Sourced::default_value(TpFallback::Reference),
            explain_enabled: Sourced::default_value(true),
            plan_mode: Sourced::default_value(false),
            strict_mode: Sourced::default_value(false),
            allow_adaptation: Sourced::default_value(true),
            allow_reduced_precision: Sourced::default_value(false),
            graph_strict_mode: Sourced::default_value(false),
            default_graph_safe: Sourced::default_value(false),
            memory_headroom: Sourced::default_value(Some(1 << 30)),
            probe_memory: Sourced::default_value(false),
            probe_time_to_live: Sourced::default_value(Duration::from_secs(60)),
            jit: Sourced::default_value(JitPolicy::WhenWarm),
            fail_on_no_fallback: Sourced::default_value(true),
            kv_strategy: Sourced::default_value(None),
            kv_min_driver: Sourced::default_value("520.0".to_owned()),
            cache: Sourced::default_value(CacheConfig::default()),
            prefer_points: 20.0,
            avoid_points: 50.0,
            locks: Vec::new(),
            allow: Vec::new(),
            deny: Vec::new(),
            prefer: Vec::new(),
            avoid: Vec::new(),
            rules: Vec::new(),
        }
    }
}

impl Policy {
    /// The ground on which a thread's own changes of mode act.
    pub fn mode(&self) -> Mode {
        Mode::PLAIN
            .set(Ask::Disabled, !self.enabled.value)
            .set(Ask::Deterministic, self.deterministic.value)
            .set(Ask::TensorParallelInvariant, self.require_tp_invariant.value)
            .set(Ask::Strict, self.strict_mode.value)
            .set(Ask::NotAdapting, !self.allow_adaptation.value)
            .set(Ask::ReducedPrecision, self.allow_reduced_precision.value)
            .kv(self.kv_strategy.value)
            .tp(self.tp_size.value)
    }
}
