//! Every setting of a policy: its key, its type, its default and one sentence. The only place that lists them.
//!
//! The reader of files, the environment, calls, the JSON Schema for editors and the listing of a configuration all come from
//! this table, so none of them can know another key than the others.

/// One setting.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Setting {
    /// The key; a dot separates the section: `cache.max_size`.
    pub key: &'static str,
    /// What it holds, and the default.
    pub kind: Kind,
    /// One sentence.
    pub doc: &'static str,
}

/// What a setting holds, and its default.
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
    /// One of the words for all, and others for those that are named.
    WordByName {
        default: &'static str,
        words: &'static [&'static str],
    },
    /// Names and whole numbers; empty by default.
    NumberTable,
    /// Ranges of compute capabilities and generations; empty by default, which means the engine's own.
    RangeTable,
}

/// The value of a setting.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "the names are the documentation")]
pub enum SettingValue {
    Bool(bool),
    Int(i64),
    Float(f64),
    /// Of a closed list, or free text.
    Text(String),
    Ints(Vec<i64>),
    Texts(Vec<String>),
    /// The word for all, then names with words of their own.
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
    /// What a named thing gets: its own word, or the one for all. `None` for other kinds of settings.
    pub fn word_for(&self, name: &str) -> Option<&str> {
        let SettingValue::WordByName(word, named) = self else { return None };
        Some(named.iter().find(|(own, _)| own == name).map_or(word, |(_, word)| word))
    }
}

impl Setting {
    /// The setting with this key; other spellings of the same setting are found too.
    pub fn find(key: &str) -> Option<&'static Setting> {
        let key = SYNONYMS.iter().find(|(other, _)| *other == key).map_or(key, |(_, key)| key);
        SETTINGS.iter().find(|setting| setting.key == key)
    }

    /// What it is when nobody sets it.
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

    /// What is needed, when something else was given.
    pub fn needs(&self) -> String {
        match self.kind {
            Kind::Bool { .. } => "`true` or `false`".to_owned(),
            Kind::Int { least, most: i64::MAX, .. } => format!("a whole number from {least}"),
            Kind::Int { least, most, .. } => format!("a whole number from {least} to {most}"),
            Kind::Float { least, most, .. } if most == f64::MAX => format!("a number from {least}"),
            Kind::Float { least, most, .. } => format!("a number from {least} to {most}"),
            Kind::Word { words, .. } => {
                format!("one of {}", crate::diagnostics::listed(words.iter().copied()))
            }
            Kind::WordByName { words, .. } => {
                format!(
                    "one of {}, or a mapping of names to them with `default` for the others",
                    crate::diagnostics::listed(words.iter().copied())
                )
            }
            Kind::Text { .. } => "a text".to_owned(),
            Kind::Texts => "a list of texts".to_owned(),
            Kind::Ints { .. } => "a list of whole numbers from 0".to_owned(),
            Kind::NumberTable => "a mapping of names to whole numbers".to_owned(),
            Kind::RangeTable => "a mapping of ranges (`80..88`) to generations".to_owned(),
        }
    }

    /// A value of this setting from the text of one scalar; `None` when it does not fit.
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
            Kind::Ints { .. } | Kind::NumberTable | Kind::RangeTable => None,
        }
    }

    /// A value from names and words; `None` when one of the words is not known or a name comes twice.
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

/// The name of those that are not named.
pub const BY_DEFAULT: &str = "default";

/// Settings that name programs or libraries, or say which may be loaded: whoever writes them decides what code runs.
pub const NAMING_CODE: [&str; 5] =
    ["worker.program", "plugins.load", "plugins.directories", "plugins.manifest", "plugins.keys"];

/// Other spellings of settings, with the key that they stand for.
pub const SYNONYMS: &[(&str, &str)] = &[
    ("backend_compatibility.isolation_mode", "backend_isolation"),
    ("distributed_selection", "distributed.selection_mode"),
    ("graph_safety.strict_mode", "graph_strict_mode"),
];

/// Other spellings of words.
const WORD_SYNONYMS: &[(&str, &str)] = &[("rank0_broadcast", "broadcast")];

const fn yes(key: &'static str, doc: &'static str) -> Setting {
    Setting { key, kind: Kind::Bool { default: true }, doc }
}

const fn no(key: &'static str, doc: &'static str) -> Setting {
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

/// Every setting, section by section.
pub const SETTINGS: &[Setting] = &[
    yes("enabled", "Whether kernels are selected at all; otherwise references run."),
    yes("fallback_enabled", "Whether another kernel is tried when one fails."),
    no("log_selections", "Whether each selection is logged."),
    yes("explain_enabled", "Whether explanations can be asked for."),
    no("deterministic", "Whether the same inputs must give the same bits."),
    no("strict_mode", "Whether a call fails rather than have its tensors converted."),
    no("plan_mode", "Whether the kernels of a block of operations are chosen together."),
    yes("allow_adaptation", "Whether layouts and dtypes may be converted for a kernel."),
    no("allow_reduced_precision", "Whether TF32 and other shortened arithmetic may be used."),
    no("allow_experimental", "Whether kernels that are called experimental may be chosen."),
    no("enable_profiling", "Whether each call is timed."),
    no(
        "graph_strict_mode",
        "Whether kernels must have survived a trial capture before they run in a CUDA graph.",
    ),
    no("verbose", "Whether selections, fallbacks and reloads are logged in full."),
    no(
        "debug",
        "Whether the device is synchronised after each call, so that an error surfaces where it was made.",
    ),
    Setting {
        key: "backend_isolation",
        kind: Kind::WordByName { default: "in_process", words: &["in_process", "subprocess", "container"] },
        doc: "Where plugins and backends in Python run, for all of them or by backend: `{default: in_process, flash_attn: subprocess}`.",
    },
    text(
        "worker.program",
        "lz-worker",
        "The program that runs plugins of their own process: a path, or a name that is looked for beside this program and in `PATH`.",
    ),
    int(
        "worker.arena_mb",
        256,
        1,
        "Shared memory for the tensors of calls to a worker process that stays allocated between calls, in MiB.",
    ),
    int(
        "worker.arena_limit_mb",
        4096,
        1,
        "How far the shared memory of a worker process grows for large calls, in MiB; a call that needs more is refused.",
    ),
    float(
        "worker.deadline_seconds",
        30.0,
        0.001,
        f64::MAX,
        "How long a call to a worker process may run before the process is stopped, and how long it may wait for its turn or for shared memory before it is refused.",
    ),
    float(
        "worker.start_deadline_seconds",
        60.0,
        0.001,
        f64::MAX,
        "How long a worker process may take to start.",
    ),
    int(
        "worker.memory_limit_mb",
        0,
        0,
        "The most memory of its own that a worker process may have, in MiB, before it is stopped; 0 for no limit.",
    ),
    text(
        "worker.cgroup",
        "none",
        "The folder of a control group that worker processes join, whose limits the system enforces; `none` for none.",
    ),
    Setting { key: "plugins.load", kind: Kind::Texts, doc: "Plugins that are loaded when an engine opens." },
    Setting {
        key: "plugins.directories",
        kind: Kind::Texts,
        doc: "Folders that plugins may be loaded from, with everything below them; none allows nothing.",
    },
    text(
        "plugins.manifest",
        "none",
        "A file with the SHA-256 of every plugin, as `sha256sum` writes it; `none` for none.",
    ),
    Setting {
        key: "plugins.keys",
        kind: Kind::Texts,
        doc: "Keys of which one must have signed a plugin, ed25519 in hexadecimal; none asks for no signature.",
    },
    int("memory_headroom_mb", 1024, 0, "The most scratch memory that a kernel may take, in MiB."),
    text("profile", "none", "The profile that is laid over the rest of this file; `none` for none."),
    yes("perfdb.enabled", "Whether measurements are used."),
    text("perfdb.path", "~/.cache/layerzero/perfdb.sqlite", "Where measurements are kept."),
    no("perfdb.auto_tune", "Whether unmeasured kernels are timed in the background."),
    int("perfdb.tune_samples", 20, 1, "How many samples tuning takes of a kernel."),
    yes("cache.enabled", "Whether decisions are kept."),
    int("cache.max_size", 10_000, 1, "The most decisions that are kept."),
    int("cache.num_shards", 256, 1, "Into how many parts the cache is divided."),
    int("cache.max_entries_per_shard", 40, 1, "The most decisions that one part keeps."),
    float("cache.entry_ttl_seconds", 60.0, 0.0, f64::MAX, "How long a decision is kept."),
    yes("cache.enable_deduplication", "Whether calls that miss together select once."),
    word(
        "jit.mode",
        "when_warm",
        &["never", "when_warm", "inline"],
        "What happens with kernels that compile on first use.",
    ),
    yes("jit.enable_background_compile", "Whether shapes that were met cold are compiled in the background."),
    int("jit.compile_queue_max_size", 1000, 1, "The most shapes that wait; the oldest is dropped."),
    text(
        "jit.manifest_path",
        "~/.cache/layerzero/shape_manifest.json",
        "Where the shapes of production are kept.",
    ),
    int("jit.manifest_stale_days", 7, 0, "After how many days a manifest is not trusted."),
    yes("jit.fail_on_no_fallback", "Whether a cold kernel without a fallback is an error."),
    float(
        "graph_safety.memory_delta_warning_mb",
        1.0,
        0.0,
        f64::MAX,
        "Above which growth of memory a capture is warned about.",
    ),
    int("graph_safety.warmup_iterations", 3, 0, "How often a kernel runs on a side stream before a capture."),
    no("graph_safety.default_graph_safe", "What is assumed of a kernel that says nothing."),
    text(
        "backend_compatibility.matrix_path",
        "~/.cache/layerzero/compat_matrix.json",
        "Where the matrix of versions that work together is kept.",
    ),
    yes("backend_compatibility.check_at_load", "Whether it is consulted when a backend loads."),
    yes("backend_compatibility.fail_on_incompatible", "Whether a backend that is not compatible stays off."),
    float(
        "layout.warning_interval_seconds",
        60.0,
        0.0,
        f64::MAX,
        "How often one ambiguous layout is warned about.",
    ),
    Setting {
        key: "layout.common_head_counts",
        kind: Kind::Ints { default: &[8, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128] },
        doc: "Numbers of heads by which a likely mistake of layout is noticed.",
    },
    yes("perf_environment.use_nvml", "Whether temperature, memory pressure and power are looked at."),
    yes("tokenizer_cache.enable_namespace_isolation", "Whether cached tokens are kept apart by model."),
    float(
        "tokenizer_cache.validation_rate_initial",
        0.10,
        0.0,
        1.0,
        "Share of the first 100 hits that are checked.",
    ),
    float(
        "tokenizer_cache.validation_rate_warmup",
        0.01,
        0.0,
        1.0,
        "Share of the next 1000 hits that are checked.",
    ),
    float(
        "tokenizer_cache.validation_rate_stable",
        0.001,
        0.0,
        1.0,
        "Share of all further hits that are checked.",
    ),
    no(
        "memory.probe",
        "Whether the memory that is left on a device is looked at before a kernel with scratch memory is chosen.",
    ),
    float(
        "memory.probe_ttl_seconds",
        60.0,
        0.0,
        f64::MAX,
        "How long the size of the largest free block is believed.",
    ),
    word(
        "distributed.selection_mode",
        "broadcast",
        &["broadcast", "independent"],
        "Whether rank 0 decides for all.",
    ),
    int("distributed.version_check_interval", 1000, 1, "After how many selections ranks compare versions."),
    word(
        "distributed.on_version_mismatch",
        "error",
        &["fallback", "error", "best_effort"],
        "What happens when versions differ.",
    ),
    yes("distributed.verify_selections", "Whether ranks compare their decisions."),
    Setting {
        key: "gpu_generations.sm_to_generation",
        kind: Kind::RangeTable,
        doc: "Generations by compute capability, before what the engine knows: `100..119: blackwell`.",
    },
    Setting {
        key: "gpu_generations.generation_to_tc_gen",
        kind: Kind::NumberTable,
        doc: "Generations of tensor cores by generation of GPU, before what the engine knows.",
    },
    word(
        "quant_formats.accuracy_priority",
        "balanced",
        &["high", "balanced", "performance"],
        "What weighs more.",
    ),
    yes("quant_formats.allow_format_fallback", "Whether another format may be chosen than the first."),
    float(
        "quant_formats.max_accuracy_drop_percent",
        3.0,
        0.0,
        100.0,
        "The most accuracy that a format may cost.",
    ),
    no("quant_formats.requantization_enabled", "Whether tensors may be quantised again into another format."),
    Setting {
        key: "quant_formats.accuracy_profile",
        kind: Kind::NumberTable,
        doc: "Accuracy ranks of formats for this model, before the general ones: `nvfp4: 10`.",
    },
    no("tp_invariance.require_tp_invariant", "Whether results must not depend on the tensor-parallel size."),
    int("tp_invariance.tp_size", 1, 1, "Tensor-parallel size of this run, where callers do not say."),
    word(
        "tp_invariance.reduction_algorithm",
        "tree",
        &["ring", "tree", "canonical"],
        "In which order ranks add.",
    ),
    word(
        "tp_invariance.tp_invariant_fallback_mode",
        "reference",
        &["reference", "error", "best_effort"],
        "What happens when no kernel is invariant.",
    ),
    yes("tp_invariance.synchronize_selection", "Whether ranks choose the same kernel."),
    word(
        "kv_cache.strategy",
        "virtual",
        &["contiguous", "paged", "virtual", "unified"],
        "How keys and values are kept, where callers do not say.",
    ),
    float("kv_cache.virtual_size_gb", 64.0, 0.0, f64::MAX, "Address space that is reserved."),
    float("kv_cache.physical_chunk_size_mb", 16.0, 0.0, f64::MAX, "In which pieces memory is mapped."),
    no("kv_cache.enable_cpu_offload", "Whether pages may move to host memory."),
    text("kv_cache.min_driver_version", "520.0", "The oldest driver for virtual memory."),
    no("speculative_decoding.enabled", "Whether draft and target kernels are paired."),
    word(
        "speculative_decoding.algorithm",
        "generic",
        &["eagle", "eagle3", "medusa", "generic"],
        "How tokens are drafted.",
    ),
    int("speculative_decoding.draft_tp_size", 1, 1, "Tensor-parallel size of the draft model."),
    int("speculative_decoding.max_draft_tp_size", 1, 1, "The largest one that is allowed."),
    int("speculative_decoding.num_speculative_tokens", 5, 1, "How many tokens are drafted at once."),
    yes("speculative_decoding.adaptive_speculation", "Whether that depends on the batch."),
    no("speculative_decoding.share_kv_cache", "Whether both models share one cache."),
    yes("speculative_decoding.cache_kernel_pairs", "Whether pairs are kept."),
    int("circuit_breaker.failure_threshold", 5, 1, "Failures that open a circuit."),
    int("circuit_breaker.success_threshold", 3, 1, "Probes that must succeed before it closes."),
    int("circuit_breaker.timeout_ms", 30_000, 0, "How long it stays open the first time."),
    int("circuit_breaker.half_open_max_calls", 3, 1, "Probes that may run at once."),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_unique_and_every_default_fits_its_own_type() {
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
        for (other, key) in SYNONYMS {
            assert_eq!(Setting::find(other).map(|setting| setting.key), Some(*key));
        }
    }
}
