//! The table of all policy settings: key, type, default and description.
//!
//! The policy parser, environment variables, per-call settings, the JSON Schema for editors and configuration listings are all
//! derived from this table, so that they accept the same keys.

/// One setting.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Setting {
    /// The key; a dot separates the section: `cache.max_size`.
    pub key: &'static str,
    /// Its type and default.
    pub kind: Kind,
    /// One sentence.
    pub doc: &'static str,
}

/// The type and default of a setting.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs, reason = "the names are the documentation")]
pub enum Kind {
    Bool {
        default: bool,
    },
    Int {
        default: i64,
        least: i64,
        most: i64,
    },
    Float {
        default: f64,
        least: f64,
        most: f64,
    },
    Word {
        default: &'static str,
        words: &'static [&'static str],
    },
    Text {
        default: &'static str,
    },
    Ints {
        default: &'static [i64],
    },
    /// A list of texts; empty by default.
    Texts,
    /// One of the words for all names, and other words for listed names.
    WordByName {
        default: &'static str,
        words: &'static [&'static str],
    },
    /// Names and integers; empty by default.
    NumberTable,
    /// Ranges of compute capabilities and generations, which override the engine's built-in table; empty by default.
    RangeTable,
}

/// The value of a setting.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "the names are the documentation")]
pub enum SettingValue {
    Bool(bool),
    Int(i64),
    Float(f64),
    /// A word of a fixed list, or any text.
    Text(String),
    Ints(Vec<i64>),
    Texts(Vec<String>),
    /// The default word, then names with their words.
    WordByName(String, Vec<(String, String)>),
    Numbers(Vec<(String, i64)>),
    /// First and last compute capability, and the generation.
    Ranges(Vec<(u32, u32, String)>),
}

impl std::fmt::Display for SettingValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let listed = |f: &mut std::fmt::Formatter<'_>, open: char, items: Vec<String>, close: char| {
            write!(f, "{open}{}{close}", items.join(", "))
        };
        match self {
            SettingValue::Bool(value) => write!(f, "{value}"),
            SettingValue::Int(value) => write!(f, "{value}"),
            SettingValue::Float(value) => write!(f, "{value:?}"),
            SettingValue::Text(value) => f.write_str(value),
            SettingValue::Ints(values) => listed(f, '[', values.iter().map(i64::to_string).collect(), ']'),
            SettingValue::Texts(values) => listed(f, '[', values.clone(), ']'),
            SettingValue::WordByName(word, named) => {
                f.write_str(word)?;
                named.iter().try_for_each(|(name, word)| write!(f, ", {name}: {word}"))
            }
            SettingValue::Numbers(table) => {
                listed(f, '{', table.iter().map(|(name, value)| format!("{name}: {value}")).collect(), '}')
            }
            SettingValue::Ranges(table) => {
                let rows = table.iter().map(|(first, last, name)| format!("{first}..{last}: {name}"));
                listed(f, '{', rows.collect(), '}')
            }
        }
    }
}

impl SettingValue {
    /// The word for a name: its own, or the default. `None` for other kinds of settings.
    pub fn word_for(&self, name: &str) -> Option<&str> {
        let SettingValue::WordByName(word, named) = self else { return None };
        Some(named.iter().find(|(own, _)| own == name).map_or(word, |(_, word)| word))
    }
}

impl Setting {
    /// The setting with this key or synonym.
    pub fn find(key: &str) -> Option<&'static Setting> {
        let key = SYNONYMS.iter().find(|(other, _)| *other == key).map_or(key, |(_, key)| key);
        SETTINGS.iter().find(|setting| setting.key == key)
    }

    /// The default value.
    pub fn default_value(&self) -> SettingValue {
        match self.kind {
            Kind::Bool { default } => SettingValue::Bool(default),
            Kind::Int { default, .. } => SettingValue::Int(default),
            Kind::Float { default, .. } => SettingValue::Float(default),
            Kind::Word { default, .. } | Kind::Text { default } => SettingValue::Text(default.to_owned()),
            Kind::Ints { default } => SettingValue::Ints(default.to_vec()),
            Kind::Texts => SettingValue::Texts(Vec::new()),
            Kind::WordByName { default, .. } => SettingValue::WordByName(default.to_owned(), Vec::new()),
            Kind::NumberTable => SettingValue::Numbers(Vec::new()),
            Kind::RangeTable => SettingValue::Ranges(Vec::new()),
        }
    }

    /// The expected value, for error messages.
    pub fn needs(&self) -> String {
        match self.kind {
            Kind::Bool { .. } => "`true` or `false`".to_owned(),
            Kind::Int { least, most: i64::MAX, .. } => format!("an integer >= {least}"),
            Kind::Int { least, most, .. } => format!("an integer from {least} to {most}"),
            Kind::Float { least, most, .. } if most == f64::MAX => format!("a number >= {least}"),
            Kind::Float { least, most, .. } => format!("a number from {least} to {most}"),
            Kind::Word { words, .. } => {
                format!("one of {}", crate::diagnostics::listed(words.iter().copied()))
            }
            Kind::WordByName { words, .. } => {
                format!(
                    "one of {}, or a mapping of names to these words with `default` for all other names",
                    crate::diagnostics::listed(words.iter().copied())
                )
            }
            Kind::Text { .. } => "a text".to_owned(),
            Kind::Texts => "a list of texts".to_owned(),
            Kind::Ints { .. } => "a list of integers >= 0".to_owned(),
            Kind::NumberTable => "a mapping of names to integers".to_owned(),
            Kind::RangeTable => "a mapping of ranges (`80..88`) to generations".to_owned(),
        }
    }

    /// Parses a value of this setting from the text of a scalar; `None` if it is invalid.
    pub fn parse(&self, text: &str) -> Option<SettingValue> {
        match self.kind {
            Kind::Bool { .. } => match text {
                "true" => Some(SettingValue::Bool(true)),
                "false" => Some(SettingValue::Bool(false)),
                _ => None,
            },
            Kind::Int { least, most, .. } => {
                text.parse().ok().filter(|value| (least..=most).contains(value)).map(SettingValue::Int)
            }
            Kind::Float { least, most, .. } => {
                text.parse().ok().filter(|value| (least..=most).contains(value)).map(SettingValue::Float)
            }
            Kind::Word { words, .. } => {
                let word =
                    WORD_SYNONYMS.iter().find(|(other, _)| *other == text).map_or(text, |(_, word)| word);
                words.contains(&word).then(|| SettingValue::Text(word.to_owned()))
            }
            Kind::Text { .. } => {
                (!text.trim().is_empty()).then(|| SettingValue::Text(text.trim().to_owned()))
            }
            Kind::Texts => {
                let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
                Some(SettingValue::Texts(parts.map(str::to_owned).collect()))
            }
            Kind::WordByName { .. } => {
                // `subprocess`, or `torch: subprocess, default: in_process`.
                let parts = text.split(',').map(|part| match part.split_once([':', '=']) {
                    Some((name, word)) => (name.trim(), word.trim()),
                    None => (BY_DEFAULT, part.trim()),
                });
                self.words_by_name(parts)
            }
            Kind::NumberTable => {
                // `vendor.norm.rms@2.0: 10, vendor.norm.rms@3.0: 5`.
                let number = |part: &str| {
                    let (name, value) = part.rsplit_once([':', '='])?;
                    let value: i64 = value.trim().parse().ok().filter(|value| *value >= 0)?;
                    (!name.trim().is_empty()).then(|| (name.trim().to_owned(), value))
                };
                let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
                parts.map(number).collect::<Option<Vec<_>>>().map(SettingValue::Numbers)
            }
            Kind::Ints { .. } | Kind::RangeTable => None,
        }
    }

    /// A value from names and words; `None` if a word is unknown or a name is duplicated.
    pub fn words_by_name<'t>(&self, parts: impl Iterator<Item = (&'t str, &'t str)>) -> Option<SettingValue> {
        let Kind::WordByName { default, words } = self.kind else { return None };
        let mut general: Option<&str> = None;
        let mut named: Vec<(String, String)> = Vec::new();
        for (name, word) in parts {
            let word = words.iter().find(|known| **known == word)?;
            if name == BY_DEFAULT {
                if general.replace(word).is_some() {
                    return None;
                }
            } else if name.is_empty() || named.iter().any(|(own, _)| own == name) {
                return None;
            } else {
                named.push((name.to_owned(), (*word).to_owned()));
            }
        }
        Some(SettingValue::WordByName(general.unwrap_or(default).to_owned(), named))
    }
}

/// The key for all names that are not listed.
pub const BY_DEFAULT: &str = "default";

/// Settings that name programs or libraries, or restrict which may be loaded. Their author controls which code runs.
pub const NAMING_CODE: [&str; 5] =
    ["worker.program", "plugins.load", "plugins.directories", "plugins.manifest", "plugins.keys"];

/// Synonyms of settings, each with its key.
pub const SYNONYMS: &[(&str, &str)] = &[
    ("backend_compatibility.isolation_mode", "backend_isolation"),
    ("defaults.autotuning", "perfdb.auto_tune"),
    ("defaults.cache_ttl_seconds", "cache.entry_ttl_seconds"),
    ("distributed_selection", "distributed.selection_mode"),
    ("graph_safety.strict_mode", "graph_strict_mode"),
];

/// Keys of earlier designs that nothing reads, each with the reason. They are accepted with a warning, so that files that
/// have them stay valid.
pub const WITHOUT_EFFECT: &[(&str, &str)] = &[
    ("cache.num_shards", "the decision cache has no shards"),
    ("cache.max_entries_per_shard", "the decision cache has no shards; set `cache.max_size`"),
    ("cache.enable_deduplication", "concurrent misses of one cell always share one selection"),
    ("layout.warning_interval_seconds", "layouts are never guessed, so there is no warning about them"),
    ("layout.common_head_counts", "layouts are never guessed from sizes: operations state their axes"),
    ("kv_cache.virtual_size_gb", "a virtual KV cache reserves what its maximum length requires"),
    ("kv_cache.enable_cpu_offload", "pages are not moved to host memory"),
    ("speculative_decoding.enabled", "kernels are paired by a call of `Engine::pair`"),
    ("defaults.fallback_policy", "fallbacks are ranked by their scores; use `prefer` or `avoid`"),
];

/// Why nothing reads a key; `None` for settings and unknown keys.
pub fn without_effect(key: &str) -> Option<&'static str> {
    WITHOUT_EFFECT.iter().find(|(known, _)| *known == key).map(|(_, why)| *why)
}

/// Synonyms of words.
const WORD_SYNONYMS: &[(&str, &str)] = &[("rank0_broadcast", "broadcast")];

const fn on_by_default(key: &'static str, doc: &'static str) -> Setting {
    Setting { key, kind: Kind::Bool { default: true }, doc }
}

const fn off_by_default(key: &'static str, doc: &'static str) -> Setting {
    Setting { key, kind: Kind::Bool { default: false }, doc }
}

const fn int(key: &'static str, default: i64, least: i64, doc: &'static str) -> Setting {
    Setting { key, kind: Kind::Int { default, least, most: i64::MAX }, doc }
}

const fn float(key: &'static str, default: f64, least: f64, most: f64, doc: &'static str) -> Setting {
    Setting { key, kind: Kind::Float { default, least, most }, doc }
}

const fn word(
    key: &'static str,
    default: &'static str,
    words: &'static [&'static str],
    doc: &'static str,
) -> Setting {
    Setting { key, kind: Kind::Word { default, words }, doc }
}

const fn text(key: &'static str, default: &'static str, doc: &'static str) -> Setting {
    Setting { key, kind: Kind::Text { default }, doc }
}

/// All settings, by section.
pub const SETTINGS: &[Setting] = &[
    on_by_default("enabled", "Whether kernels are selected; if false, the reference kernels run."),
    on_by_default("fallback_enabled", "Whether a fallback kernel runs when the selected one fails."),
    off_by_default("log_selections", "Whether each selection is logged."),
    on_by_default("explain_enabled", "Whether explanations are available."),
    off_by_default("deterministic", "Whether results must be bitwise reproducible."),
    off_by_default("strict_mode", "Whether a call fails instead of converting its tensors."),
    off_by_default("plan_mode", "Whether the kernels of a block of operations are selected together."),
    off_by_default(
        "plan_wider_dtypes",
        "Whether such plans may convert f16 and bf16 tensors to f32 for a kernel.",
    ),
    off_by_default(
        "plan_dequantization",
        "Whether such plans may dequantize inputs for a kernel, where only a reference takes the quantized ones.",
    ),
    on_by_default("allow_adaptation", "Whether layouts, strides and dtypes may be converted for a kernel."),
    off_by_default(
        "allow_reduced_precision",
        "Whether TF32 and other reduced-precision arithmetic may be used.",
    ),
    off_by_default("allow_experimental", "Whether experimental kernels may be selected."),
    off_by_default("enable_profiling", "Whether each call is timed."),
    off_by_default(
        "graph_strict_mode",
        "Whether kernels must pass a trial capture before they run in a CUDA graph.",
    ),
    off_by_default("verbose", "Whether selections, fallbacks and reloads are logged in full."),
    off_by_default(
        "debug",
        "Whether the device is synchronized after each call, so that an asynchronous error is reported by the call that caused it, and whether indices in device memory are checked.",
    ),
    word(
        "verify",
        "off",
        &["off", "sampled", "all"],
        "Which calls are repeated in the background by a second kernel or the reference, on a copy of their tensors, to find kernels that return wrong results: a share of them (`verify_share`) or all, for tests.",
    ),
    float("verify_share", 0.0001, 0.0, 1.0, "Fraction of calls that `verify: sampled` verifies."),
    int(
        "verify_memory_mb",
        256,
        1,
        "Maximum memory of calls that wait for verification, in MiB; calls beyond it are not verified.",
    ),
    text(
        "verify_directory",
        "~/.cache/layerzero/reproducers",
        "The folder for reproducers of wrong results; `none` to write none. A reproducer contains the tensors of the call.",
    ),
    float(
        "watchdog_seconds",
        0.0,
        0.0,
        f64::MAX,
        "Time after which a kernel run in this process is reported as hung, with its call and stack, and its circuit opens; 0 for never. Otherwise no call takes the fast path. Calls to worker processes have `worker.deadline_seconds`.",
    ),
    int(
        "telemetry.sample_every",
        0,
        0,
        "One call in this many is timed into the latency histograms; 0 for none. `enable_profiling` times every call.",
    ),
    off_by_default(
        "telemetry.torch_ranges",
        "Whether each run appears as `lz:<operation>→<kernel>` in a profile of `torch.profiler`.",
    ),
    Setting {
        key: "backend_isolation",
        kind: Kind::WordByName { default: "in_process", words: &["in_process", "subprocess", "container"] },
        doc: "The process in which plugins and Python backends run, for all or by backend: `{default: in_process, flash_attn: subprocess}`.",
    },
    text(
        "worker.program",
        "lz-worker",
        "The worker program that runs isolated plugins: a path, or a name that is searched next to this program and in `PATH`.",
    ),
    int(
        "worker.arena_mb",
        256,
        1,
        "Shared memory for tensors of calls to a worker process that remains allocated between calls, in MiB.",
    ),
    int(
        "worker.arena_limit_mb",
        4096,
        1,
        "Maximum shared memory of a worker process, in MiB; a call that needs more is rejected.",
    ),
    float(
        "worker.deadline_seconds",
        30.0,
        0.001,
        f64::MAX,
        "Timeout of a call to a worker process, after which the process is terminated; also the timeout for queuing and for shared memory, after which the call is rejected.",
    ),
    float(
        "worker.start_deadline_seconds",
        60.0,
        0.001,
        f64::MAX,
        "Timeout for the start of a worker process.",
    ),
    int(
        "worker.memory_limit_mb",
        0,
        0,
        "Maximum private memory of a worker process, in MiB, above which it is terminated; 0 for no limit.",
    ),
    Setting {
        key: "worker.sandbox",
        kind: Kind::WordByName { default: "network", words: &["off", "network", "strict"] },
        doc: "How worker processes confine themselves after they have loaded their backend, where the system allows it, for all or by backend: `network` has no new privileges, no network and no access to other processes; `strict` has no files, sockets and programs either. A backend's own entry can only tighten the default.",
    },
    Setting {
        key: "worker.open_files",
        kind: Kind::NumberTable,
        doc: "Maximum number of open files of worker processes, by backend or as `default`: `{default: 256}`.",
    },
    Setting {
        key: "worker.cpu_seconds",
        kind: Kind::NumberTable,
        doc: "Processor time after which a worker process is terminated and restarted, by backend or as `default`.",
    },
    Setting {
        key: "worker.data_mb",
        kind: Kind::NumberTable,
        doc: "Maximum private memory that worker processes can allocate, in MiB, by backend or as `default`; allocations beyond it fail.",
    },
    text("worker.cgroup", "none", "The folder of a cgroup that worker processes join; `none` for none."),
    Setting { key: "plugins.load", kind: Kind::Texts, doc: "Plugins that are loaded when an engine opens." },
    Setting {
        key: "plugins.directories",
        kind: Kind::Texts,
        doc: "Folders from which plugins may be loaded, including subfolders; an empty list allows none.",
    },
    text(
        "plugins.manifest",
        "none",
        "A file with the SHA-256 of every plugin, as `sha256sum` writes it; `none` for none.",
    ),
    Setting {
        key: "plugins.keys",
        kind: Kind::Texts,
        doc: "Trusted ed25519 public keys in hexadecimal, one of which must have signed a plugin; an empty list requires no signature.",
    },
    int("memory_headroom_mb", 1024, 0, "Maximum scratch memory of a kernel, in MiB."),
    text("profile", "none", "The profile that overrides the rest of this file; `none` for none."),
    on_by_default("perfdb.enabled", "Whether measurements are used."),
    text("perfdb.path", "~/.cache/layerzero/perfdb.sqlite", "The database file for measurements."),
    off_by_default("perfdb.auto_tune", "Whether unmeasured kernels are timed in the background."),
    float(
        "perfdb.auto_tune_budget_percent",
        1.0,
        0.0,
        100.0,
        "Maximum share of time that background tuning measures, in percent; 0 suspends it, for latency-critical processes.",
    ),
    int("perfdb.tune_samples", 20, 1, "Number of samples per kernel in tuning."),
    on_by_default("cache.enabled", "Whether decisions are cached."),
    int("cache.max_size", 10_000, 1, "Maximum number of cached decisions."),
    float("cache.entry_ttl_seconds", 60.0, 0.0, f64::MAX, "Time after which a cached decision expires."),
    word(
        "jit.mode",
        "when_warm",
        &["never", "when_warm", "inline"],
        "How calls use kernels that compile on first use.",
    ),
    on_by_default(
        "jit.enable_background_compile",
        "Whether kernels for new shapes are compiled in the background.",
    ),
    int(
        "jit.compile_queue_max_size",
        1000,
        1,
        "Maximum length of the compile queue; the oldest entry is dropped when it is full.",
    ),
    text(
        "jit.manifest_path",
        "~/.cache/layerzero/shape_manifest.json",
        "The file that records the shapes seen in production.",
    ),
    int("jit.manifest_stale_days", 7, 0, "Number of days after which a manifest is stale."),
    on_by_default("jit.fail_on_no_fallback", "Whether a cold kernel without a fallback is an error."),
    float(
        "graph_safety.memory_delta_warning_mb",
        1.0,
        0.0,
        f64::MAX,
        "Memory growth during a capture above which a warning is logged.",
    ),
    int(
        "graph_safety.warmup_iterations",
        3,
        0,
        "Number of runs of a kernel on a side stream before a capture.",
    ),
    off_by_default(
        "graph_safety.default_graph_safe",
        "Whether a kernel without a declaration is assumed to be graph-safe.",
    ),
    text(
        "backend_compatibility.matrix_path",
        "~/.cache/layerzero/compat_matrix.json",
        "The file with the matrix of compatible versions.",
    ),
    on_by_default(
        "backend_compatibility.check_at_load",
        "Whether versions are checked when a backend is loaded.",
    ),
    on_by_default(
        "backend_compatibility.fail_on_incompatible",
        "Whether an incompatible backend is disabled.",
    ),
    on_by_default(
        "perf_environment.use_nvml",
        "Whether temperature, memory pressure and power are monitored.",
    ),
    on_by_default(
        "tokenizer_cache.enable_namespace_isolation",
        "Whether cached tokens are separated by model.",
    ),
    float(
        "tokenizer_cache.validation_rate_initial",
        0.10,
        0.0,
        1.0,
        "Fraction of the first 100 cache hits that are verified.",
    ),
    float(
        "tokenizer_cache.validation_rate_warmup",
        0.01,
        0.0,
        1.0,
        "Fraction of the next 1000 cache hits that are verified.",
    ),
    float(
        "tokenizer_cache.validation_rate_stable",
        0.001,
        0.0,
        1.0,
        "Fraction of all further cache hits that are verified.",
    ),
    off_by_default(
        "tokenizer_verification.before_first_call",
        "Whether the first call of a tokenizer waits until its kernel is verified, instead of running the reference library.",
    ),
    off_by_default(
        "memory.probe",
        "Whether free device memory is checked before a kernel with scratch memory is selected.",
    ),
    float(
        "memory.probe_ttl_seconds",
        60.0,
        0.0,
        f64::MAX,
        "Time for which the size of the largest free block is cached.",
    ),
    word(
        "distributed.selection_mode",
        "broadcast",
        &["broadcast", "independent"],
        "Whether rank 0 selects kernels for all ranks.",
    ),
    int(
        "distributed.version_check_interval",
        1000,
        1,
        "Number of selections between version checks across ranks.",
    ),
    word(
        "distributed.on_version_mismatch",
        "error",
        &["fallback", "error", "best_effort"],
        "Action when versions differ.",
    ),
    on_by_default("distributed.verify_selections", "Whether ranks compare their decisions."),
    Setting {
        key: "gpu_generations.sm_to_generation",
        kind: Kind::RangeTable,
        doc: "Generations by compute capability, which override the built-in table: `100..119: blackwell`.",
    },
    Setting {
        key: "gpu_generations.generation_to_tc_gen",
        kind: Kind::NumberTable,
        doc: "Tensor core generations by GPU generation, which override the built-in table.",
    },
    word(
        "quant_formats.accuracy_priority",
        "balanced",
        &["high", "balanced", "performance"],
        "The optimization objective: speed or accuracy.",
    ),
    on_by_default(
        "quant_formats.allow_format_fallback",
        "Whether a format other than the first may be selected.",
    ),
    float("quant_formats.max_accuracy_drop_percent", 3.0, 0.0, 100.0, "Maximum accuracy loss of a format."),
    off_by_default(
        "quant_formats.requantization_enabled",
        "Whether tensors may be requantized into another format.",
    ),
    Setting {
        key: "quant_formats.accuracy_profile",
        kind: Kind::NumberTable,
        doc: "Accuracy ranks of formats for this model, which override the general ones: `nvfp4: 10`.",
    },
    off_by_default(
        "batch_invariance.require_batch_invariant",
        "Whether the results of an item must not depend on the rest of its batch.",
    ),
    off_by_default(
        "tp_invariance.require_tp_invariant",
        "Whether results must not depend on the tensor-parallel size.",
    ),
    int("tp_invariance.tp_size", 1, 1, "Default tensor-parallel size, if the caller does not specify one."),
    word(
        "tp_invariance.reduction_algorithm",
        "tree",
        &["ring", "tree", "canonical"],
        "Reduction order across ranks.",
    ),
    word(
        "tp_invariance.tp_invariant_fallback_mode",
        "reference",
        &["reference", "error", "best_effort"],
        "Action when no kernel is invariant.",
    ),
    on_by_default("tp_invariance.synchronize_selection", "Whether all ranks select the same kernel."),
    word(
        "kv_cache.strategy",
        "virtual",
        &["contiguous", "paged", "virtual", "unified"],
        "Default KV-cache strategy, if the caller does not specify one.",
    ),
    float("kv_cache.physical_chunk_size_mb", 16.0, 0.0, f64::MAX, "Size of mapped memory chunks."),
    text("kv_cache.min_driver_version", "520.0", "Minimum driver version for virtual memory."),
    word(
        "speculative_decoding.algorithm",
        "generic",
        &["eagle", "eagle3", "medusa", "generic"],
        "The drafting method.",
    ),
    int("speculative_decoding.draft_tp_size", 1, 1, "Tensor-parallel size of the draft model."),
    int("speculative_decoding.max_draft_tp_size", 1, 1, "Maximum tensor-parallel size of the draft model."),
    int("speculative_decoding.num_speculative_tokens", 5, 1, "Number of draft tokens per step."),
    on_by_default(
        "speculative_decoding.adaptive_speculation",
        "Whether the number of draft tokens depends on the batch.",
    ),
    off_by_default("speculative_decoding.share_kv_cache", "Whether both models share one KV cache."),
    on_by_default("speculative_decoding.cache_kernel_pairs", "Whether kernel pairs are cached."),
    Setting {
        key: "rollout.shares",
        kind: Kind::NumberTable,
        doc: "Percentage of calls by kernel version, for versions that are registered side by side: `vendor.norm.rms@2.0: 10`.",
    },
    Setting {
        key: "rollout.canaries",
        kind: Kind::NumberTable,
        doc: "Percentage of calls on which a kernel version is tried and compared with the stable version, until it is promoted or rolled back.",
    },
    int("rollout.canary_calls", 100, 1, "Number of calls after which a canary is promoted."),
    int(
        "rollout.canary_max_mismatches",
        0,
        0,
        "Number of wrong results above which a canary is rolled back.",
    ),
    int("rollout.canary_max_errors", 0, 0, "Number of failed calls above which a canary is rolled back."),
    float(
        "rollout.canary_max_slowdown_percent",
        20.0,
        0.0,
        f64::MAX,
        "How much slower than the stable version a canary may be, by median latency.",
    ),
    int("circuit_breaker.failure_threshold", 5, 1, "Number of failures that open a circuit."),
    int("circuit_breaker.success_threshold", 3, 1, "Number of successful probes that close it."),
    int("circuit_breaker.timeout_ms", 30_000, 0, "Initial time for which it stays open."),
    int("circuit_breaker.half_open_max_calls", 3, 1, "Maximum number of concurrent probes."),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_unique_and_defaults_are_valid() {
        for (at, setting) in SETTINGS.iter().enumerate() {
            assert!(SETTINGS[..at].iter().all(|other| other.key != setting.key), "{}", setting.key);
            assert!(setting.key.split('.').count() <= 2, "{}", setting.key);
            assert!(setting.doc.ends_with('.'), "{}", setting.key);
            let default = setting.default_value();
            if !matches!(setting.kind, Kind::Ints { .. } | Kind::Texts | Kind::NumberTable | Kind::RangeTable)
            {
                assert_eq!(setting.parse(&default.to_string()), Some(default), "{}", setting.key);
            }
        }
        for (key, _) in WITHOUT_EFFECT {
            assert_eq!(Setting::find(key), None, "{key} has an effect");
        }
        for (other, key) in SYNONYMS {
            assert_eq!(Setting::find(other).map(|setting| setting.key), Some(*key));
        }
    }
}
