//! The policy that selection reads: plain data, each value with its source.
//!
//! Nothing in [`Policy`] reads files or the environment; the submodules do. The engine compiles the conditions against each
//! operation. A policy is immutable and replaced as a whole.

pub mod env;
pub mod file;
pub(crate) mod generations;
pub mod layer;
pub mod overlay;
pub mod pattern;
mod rules;
mod snapshot;
pub mod stack;
pub mod unknown;

use std::fmt;
use std::time::Duration;

pub use pattern::Pattern;

use lz_core::mode::{KvStrategy, Mode, ModeFlag, ReductionOrder};

/// The source of a value, for display: `layerzero.yaml:14`, `LAYERZERO_PREFER`, `lz.configure`, `default`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Provenance(pub String);

impl Provenance {
    /// From a text.
    pub fn new(text: impl Into<String>) -> Provenance {
        Provenance(text.into())
    }

    /// The source of a default.
    pub fn default_value() -> Provenance {
        Provenance("default".to_owned())
    }
}

impl fmt::Display for Provenance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A value and its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WithSource<T> {
    /// The value.
    pub value: T,
    /// The source.
    pub source: Provenance,
}

impl<T> WithSource<T> {
    /// A value with an explicit source.
    pub fn new(value: T, source: impl Into<String>) -> WithSource<T> {
        WithSource { value, source: Provenance::new(source) }
    }

    /// A default value.
    pub fn default_value(value: T) -> WithSource<T> {
        WithSource { value, source: Provenance::default_value() }
    }
}

/// Handling of kernels that compile on first use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JitPolicy {
    /// Never selected.
    Never,
    /// Selected once compiled; a cold kernel is submitted for background compilation and skipped meanwhile.
    WhenWarm,
    /// May compile inside a call, with a score penalty.
    Inline,
}

/// Behavior if results must not depend on the tensor-parallel size and only the reference kernel is invariant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TpFallback {
    /// Run the reference.
    Reference,
    /// Return an error.
    Error,
    /// Prefer invariant kernels, then use others.
    BestEffort,
}

/// Locks an operation to a kernel while the condition holds.
#[derive(Debug, Clone, PartialEq)]
pub struct Lock {
    /// The operation, or an alias for several operations with some params fixed.
    pub operation: Pattern,
    /// The kernel's id.
    pub kernel: String,
    /// A bool expression; none means always.
    pub condition: Option<String>,
    /// The source.
    pub source: Provenance,
}

/// An entry of the allow, deny, prefer or avoid list.
#[derive(Debug, Clone, PartialEq)]
pub struct ListEntry {
    /// Which kernels, by id or backend.
    pub kernels: Pattern,
    /// For which operations.
    pub operations: Pattern,
    /// The source.
    pub source: Provenance,
}

/// A conditional rule.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// A name for explanations; may be empty.
    pub name: String,
    /// For which operations.
    pub operations: Pattern,
    /// A bool expression over the operation's axes, params, `given(…)` and dtypes, and over the device and mode
    /// (see [`lz_core::expression_names::DEVICE_NAMES`]). A rule that uses a name an operation does not have does not apply to it.
    pub condition: Option<String>,
    /// The actions.
    pub actions: Vec<Action>,
    /// The source.
    pub source: Provenance,
}

/// An action of a rule.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Adds the score of a preference.
    Prefer(Pattern),
    /// Subtracts the penalty of an avoidance.
    Avoid(Pattern),
    /// Adds to a kernel's score.
    Boost(Pattern, f64),
    /// Excludes matching kernels.
    Deny(Pattern),
    /// Excludes all other kernels.
    Allow(Pattern),
    /// Ranks a kernel before all others, if it can run the call.
    Override(String),
    /// Requires this kernel; otherwise the call is an error.
    Lock(String),
    /// Excludes kernels for which a bool expression over their properties (see
    /// [`lz_core::expression_names::KERNEL_NAMES`]) is false.
    Filter(String),
}

/// The share of calls that a kernel version gets.
#[derive(Debug, Clone, PartialEq)]
pub struct VersionShare {
    /// The version, `<id>@<version>`.
    pub version: String,
    /// The percentage of calls.
    pub percent: u8,
    /// Whether its results are compared, until it is promoted or rolled back.
    pub is_canary: bool,
    /// The source.
    pub source: Provenance,
}

/// When a canary is promoted or rolled back.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CanaryCriteria {
    /// Number of its calls after which it is promoted.
    pub calls: u64,
    /// Number of wrong results that are tolerated.
    pub max_mismatches: u64,
    /// Number of failed calls that are tolerated.
    pub max_errors: u64,
    /// How much slower than the stable version it may be.
    pub max_slowdown_percent: f64,
}

impl Default for CanaryCriteria {
    fn default() -> Self {
        CanaryCriteria { calls: 100, max_mismatches: 0, max_errors: 0, max_slowdown_percent: 20.0 }
    }
}

/// The decision cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheConfig {
    /// Whether decisions are cached.
    pub enabled: bool,
    /// Maximum number of cached decisions.
    pub max_entries: usize,
    /// How long a decision is cached.
    pub time_to_live: Duration,
}

impl Default for CacheConfig {
    fn default() -> Self {
        CacheConfig { enabled: true, max_entries: 10_000, time_to_live: Duration::from_secs(60) }
    }
}

/// The operator's policy.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// False: reference kernels only.
    pub enabled: WithSource<bool>,
    /// Whether a fallback kernel runs when a kernel fails.
    pub fallback_enabled: WithSource<bool>,
    /// Whether the same inputs must give the same bits.
    pub deterministic: WithSource<bool>,
    /// Whether results must not depend on the tensor-parallel size.
    pub require_tp_invariant: WithSource<bool>,
    /// Whether the results of an item must not depend on the rest of its batch.
    pub require_batch_invariant: WithSource<bool>,
    /// The tensor-parallel size, unless the caller sets it.
    pub tp_size: WithSource<u32>,
    /// The order in which ranks reduce.
    pub reduction_order: WithSource<ReductionOrder>,
    /// Behavior if only the reference kernel is invariant.
    pub tp_fallback: WithSource<TpFallback>,
    /// Whether explanations are available.
    pub explain_enabled: WithSource<bool>,
    /// Whether kernels of a block of operations are selected together.
    pub plan_mode: WithSource<bool>,
    /// Whether such plans may compute in f32 where f16 or bf16 is declared.
    pub plan_wider_dtypes: WithSource<bool>,
    /// Whether such plans may dequantize inputs where only a reference takes the quantized ones.
    pub plan_dequantization: WithSource<bool>,
    /// Whether implicit conversions are forbidden.
    pub strict_mode: WithSource<bool>,
    /// Whether adapters may convert at all.
    pub allow_adaptation: WithSource<bool>,
    /// Whether TF32 and similar modes may be used.
    pub allow_reduced_precision: WithSource<bool>,
    /// Whether kernels must have passed a trial capture before they run in a capture.
    pub graph_strict_mode: WithSource<bool>,
    /// Whether kernels that do not declare graph safety are assumed to be safe.
    pub default_graph_safe: WithSource<bool>,
    /// Maximum workspace of a kernel in bytes; `None` means no limit.
    pub memory_headroom: WithSource<Option<u64>>,
    /// Whether free device memory is probed if no memory probe is set.
    pub probe_memory: WithSource<bool>,
    /// How long the size of the largest free block is cached.
    pub probe_time_to_live: WithSource<Duration>,
    /// Whether decisions wait for the verification of tokenizers.
    pub verify_before_first_call: WithSource<bool>,
    /// Handling of kernels that compile on first use.
    pub jit: WithSource<JitPolicy>,
    /// Whether a call that only a cold kernel could run is refused; otherwise the kernel compiles inside the call.
    pub fail_on_no_fallback: WithSource<bool>,
    /// The KV-cache strategy, unless the caller sets it.
    pub kv_strategy: WithSource<Option<KvStrategy>>,
    /// The minimum driver version for a KV cache in virtual memory.
    pub kv_min_driver: WithSource<String>,
    /// The decision cache.
    pub cache: WithSource<CacheConfig>,
    /// Score of a preference.
    pub prefer_points: f64,
    /// Penalty of an avoidance.
    pub avoid_points: f64,
    /// Locks; the last active one wins.
    pub locks: Vec<Lock>,
    /// If any entry applies to an operation, only matching kernels may run it.
    pub allow: Vec<ListEntry>,
    /// Kernels that may not run.
    pub deny: Vec<ListEntry>,
    /// Preferred kernels.
    pub prefer: Vec<ListEntry>,
    /// Avoided kernels.
    pub avoid: Vec<ListEntry>,
    /// Conditional rules.
    pub rules: Vec<Rule>,
    /// Shares of kernel versions that are registered side by side, canaries last.
    pub versions: Vec<VersionShare>,
    /// When a canary is promoted or rolled back.
    pub canary: CanaryCriteria,
}

impl Default for Policy {
    fn default() -> Self {
        Policy {
            enabled: WithSource::default_value(true),
            fallback_enabled: WithSource::default_value(true),
            deterministic: WithSource::default_value(false),
            require_tp_invariant: WithSource::default_value(false),
            require_batch_invariant: WithSource::default_value(false),
            tp_size: WithSource::default_value(1),
            reduction_order: WithSource::default_value(ReductionOrder::Tree),
            tp_fallback: WithSource::default_value(TpFallback::Reference),
            explain_enabled: WithSource::default_value(true),
            plan_mode: WithSource::default_value(false),
            plan_wider_dtypes: WithSource::default_value(false),
            plan_dequantization: WithSource::default_value(false),
            strict_mode: WithSource::default_value(false),
            allow_adaptation: WithSource::default_value(true),
            allow_reduced_precision: WithSource::default_value(false),
            graph_strict_mode: WithSource::default_value(false),
            default_graph_safe: WithSource::default_value(false),
            memory_headroom: WithSource::default_value(Some(1 << 30)),
            probe_memory: WithSource::default_value(false),
            probe_time_to_live: WithSource::default_value(Duration::from_secs(60)),
            verify_before_first_call: WithSource::default_value(false),
            jit: WithSource::default_value(JitPolicy::WhenWarm),
            fail_on_no_fallback: WithSource::default_value(true),
            kv_strategy: WithSource::default_value(None),
            kv_min_driver: WithSource::default_value("520.0".to_owned()),
            cache: WithSource::default_value(CacheConfig::default()),
            prefer_points: 20.0,
            avoid_points: 50.0,
            locks: Vec::new(),
            allow: Vec::new(),
            deny: Vec::new(),
            prefer: Vec::new(),
            avoid: Vec::new(),
            rules: Vec::new(),
            versions: Vec::new(),
            canary: CanaryCriteria::default(),
        }
    }
}

impl Policy {
    /// The base mode, before a thread's override.
    pub fn mode(&self) -> Mode {
        Mode::PLAIN
            .set(ModeFlag::Disabled, !self.enabled.value)
            .set(ModeFlag::Deterministic, self.deterministic.value)
            .set(ModeFlag::TensorParallelInvariant, self.require_tp_invariant.value)
            .set(ModeFlag::BatchInvariant, self.require_batch_invariant.value)
            .set(ModeFlag::Strict, self.strict_mode.value)
            .set(ModeFlag::NotAdapting, !self.allow_adaptation.value)
            .set(ModeFlag::ReducedPrecision, self.allow_reduced_precision.value)
            .kv(self.kv_strategy.value)
            .tp(self.tp_size.value)
    }
}
