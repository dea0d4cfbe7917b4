//! Speculative decoding: selects the kernels of a draft model and its target together, because they may have to share a KV
//! cache.
//!
//! The pair with the best sum of scores among compatible pairs is selected. Nothing here drafts tokens.

use std::collections::HashMap;

use lz_schema::policy::SettingValue;
use serde::Serialize;

use crate::bucket::Bucket;
use crate::engine::Engine;
use lz_core::context::Context;
use lz_core::error::Error;
use lz_core::fork::Mutex;
use lz_core::operation::OperationInfo;
use lz_core::reason::{Reason, ReasonCode};
use lz_core::spec::KernelSpec;

/// The drafting algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Algorithm {
    /// One token after the other; supported by every kernel.
    Generic,
    /// EAGLE: drafts a tree from features.
    Eagle,
    /// EAGLE-3: features of several layers.
    Eagle3,
    /// Medusa: several decoding heads.
    Medusa,
}

impl Algorithm {
    /// Every algorithm.
    pub const ALL: [Algorithm; 4] =
        [Algorithm::Generic, Algorithm::Eagle, Algorithm::Eagle3, Algorithm::Medusa];

    /// The name used in policy and specs.
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::Generic => "generic",
            Algorithm::Eagle => "eagle",
            Algorithm::Eagle3 => "eagle3",
            Algorithm::Medusa => "medusa",
        }
    }

    /// The algorithm of this name.
    pub fn from_name(name: &str) -> Option<Algorithm> {
        Self::ALL.into_iter().find(|algorithm| algorithm.name() == name)
    }
}

/// Configuration of draft and target; `speculative_decoding` in a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpeculativeConfig {
    /// The drafting algorithm.
    pub algorithm: Algorithm,
    /// The draft model's tensor-parallel size.
    pub draft_tp_size: u32,
    /// The maximum of it.
    pub max_draft_tp_size: u32,
    /// Number of drafted tokens.
    pub tokens: u32,
    /// Whether that depends on the batch size.
    pub adaptive: bool,
    /// Whether both models share one KV cache.
    pub share_kv_cache: bool,
    /// Whether pairs are cached.
    pub cache_pairs: bool,
}

impl Default for SpeculativeConfig {
    fn default() -> Self {
        SpeculativeConfig {
            algorithm: Algorithm::Generic,
            draft_tp_size: 1,
            max_draft_tp_size: 1,
            tokens: 5,
            adaptive: true,
            share_kv_cache: false,
            cache_pairs: true,
        }
    }
}

impl SpeculativeConfig {
    /// From an engine's settings.
    pub fn of(engine: &Engine) -> SpeculativeConfig {
        let mut config = SpeculativeConfig::default();
        let value = |key: &str| engine.setting(&format!("speculative_decoding.{key}")).map(|one| one.value);
        let on = |key: &str, default: bool| match value(key) {
            Some(SettingValue::Bool(value)) => value,
            _ => default,
        };
        let number = |key: &str, default: u32| match value(key) {
            Some(SettingValue::Int(value)) => u32::try_from(value).unwrap_or(default),
            _ => default,
        };
        if let Some(SettingValue::Text(name)) = value("algorithm") {
            config.algorithm = Algorithm::from_name(&name).unwrap_or(config.algorithm);
        }
        SpeculativeConfig {
            draft_tp_size: number("draft_tp_size", config.draft_tp_size),
            max_draft_tp_size: number("max_draft_tp_size", config.max_draft_tp_size),
            tokens: number("num_speculative_tokens", config.tokens),
            adaptive: on("adaptive_speculation", config.adaptive),
            share_kv_cache: on("share_kv_cache", config.share_kv_cache),
            cache_pairs: on("cache_kernel_pairs", config.cache_pairs),
            ..config
        }
    }

    /// Number of tokens to draft for a batch: drafting pays off while the target is memory-bound, which decreases as more rows share
    /// each load of its weights.
    pub fn tokens_for(&self, batch: u32) -> u32 {
        if !self.adaptive {
            return self.tokens;
        }
        let halvings = match batch {
            0..=8 => 0,
            9..=32 => 1,
            33..=64 => 2,
            _ => 3,
        };
        (self.tokens >> halvings).max(1)
    }
}

/// The call of one of the two models.
#[derive(Debug, Clone, Copy)]
pub struct ModelCall<'a> {
    /// The operation.
    pub operation: &'static OperationInfo,
    /// The call.
    pub context: &'a Context,
    /// Number of pipeline stages of the model.
    pub pipeline_stages: u32,
}

/// A pair of compatible kernels.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Pair {
    /// The draft model's kernel.
    pub draft: String,
    /// The target model's kernel.
    pub target: String,
    /// The sum of their scores.
    pub score: f64,
}

/// A cache of pairs for one generation of the engine.
#[derive(Debug, Default)]
pub struct PairCache {
    pairs: Mutex<(u64, HashMap<PairKey, Pair>)>,
}

type PairKey = (u32, Vec<u64>, u32, Vec<u64>, Algorithm, bool);

/// Maximum number of cached pairs.
const MAX_CACHED_PAIRS: usize = 1024;

impl PairCache {
    /// The pair for these calls, as [`Engine::pair`]; cached until the generation changes.
    pub fn pair(
        &self,
        engine: &Engine,
        config: &SpeculativeConfig,
        draft: ModelCall<'_>,
        target: ModelCall<'_>,
    ) -> Result<Pair, Error> {
        let words = |side: &ModelCall<'_>| Bucket::of(side.operation, side.context).words().to_vec();
        let key = (
            draft.operation.slot(),
            words(&draft),
            target.operation.slot(),
            words(&target),
            config.algorithm,
            config.share_kv_cache,
        );
        let generation = engine.generation();
        if config.cache_pairs {
            let pairs = self.pairs.lock();
            if let (true, Some(pair)) = (pairs.0 == generation, pairs.1.get(&key)) {
                // A bucket may contain calls for which the cached pair is not eligible, so it is checked for this one.
                let fits = |side: &ModelCall<'_>, kernel: &str| {
                    engine
                        .explain(side.operation, side.context)
                        .candidate(kernel)
                        .is_some_and(|one| one.reasons.is_empty())
                };
                if fits(&draft, &pair.draft)
                    && fits(&target, &pair.target)
                    && refusals(config, &draft, &target).is_empty()
                {
                    return Ok(pair.clone());
                }
            }
        }
        let pair = engine.pair(config, draft, target)?;
        if config.cache_pairs {
            let mut pairs = self.pairs.lock();
            if pairs.0 != generation || pairs.1.len() >= MAX_CACHED_PAIRS {
                *pairs = (generation, HashMap::new());
            }
            pairs.1.insert(key, pair.clone());
        }
        Ok(pair)
    }
}

impl Engine {
    /// The best pair of kernels for a draft model's call and its target's, by the settings of this engine and with its cache.
    pub fn speculative_pair(&self, draft: ModelCall<'_>, target: ModelCall<'_>) -> Result<Pair, Error> {
        self.extension::<PairCache>().pair(self, &SpeculativeConfig::of(self), draft, target)
    }

    /// How many pairs [`Engine::speculative_pair`] has cached.
    pub fn cached_pairs(&self) -> usize {
        let cache = self.extension::<PairCache>();
        let pairs = cache.pairs.lock();
        if pairs.0 == self.generation() { pairs.1.len() } else { 0 }
    }

    /// The best pair of kernels for a draft model's call and its target's.
    pub fn pair(
        &self,
        config: &SpeculativeConfig,
        draft: ModelCall<'_>,
        target: ModelCall<'_>,
    ) -> Result<Pair, Error> {
        let reasons = refusals(config, &draft, &target);
        if !reasons.is_empty() {
            return Err(Error::Validation { operation: target.operation.name.to_string(), reasons });
        }
        let drafts = self.eligible_kernels(&draft, config)?;
        let targets = self.eligible_kernels(&target, config)?;
        let mut best: Option<Pair> = None;
        let mut incompatible: Vec<(String, Vec<Reason>)> = Vec::new();
        for (draft_spec, draft_score) in &drafts {
            for (target_spec, target_score) in &targets {
                if let Some(reason) = kv_incompatibility(config, draft_spec, target_spec, &draft, &target) {
                    incompatible.push((format!("{} with {}", draft_spec.id, target_spec.id), vec![reason]));
                    continue;
                }
                let pair = Pair {
                    draft: draft_spec.id.clone(),
                    target: target_spec.id.clone(),
                    score: draft_score + target_score,
                };
                let better = best.as_ref().is_none_or(|best| {
                    let order = pair.score.total_cmp(&best.score).reverse();
                    order.then_with(|| (&pair.target, &pair.draft).cmp(&(&best.target, &best.draft))).is_lt()
                });
                if better {
                    best = Some(pair);
                }
            }
        }
        best.ok_or(Error::NoKernel { operation: target.operation.name.to_string(), candidates: incompatible })
    }

    /// The kernels that can run one side, with their scores.
    fn eligible_kernels(
        &self,
        side: &ModelCall<'_>,
        config: &SpeculativeConfig,
    ) -> Result<Vec<(std::sync::Arc<KernelSpec>, f64)>, Error> {
        let registry = self.registry();
        let explanation = self.explain(side.operation, side.context);
        let mut able = Vec::new();
        let mut unable = Vec::new();
        for one in explanation.candidates {
            let found = registry.kernels_of(side.operation).find(|entry| entry.spec.id == one.kernel);
            let Some(spec) = found.map(|entry| std::sync::Arc::clone(&entry.spec)) else { continue };
            if !one.reasons.is_empty() {
                let reasons = one.reasons.iter().filter_map(|line| {
                    Some(Reason::new(ReasonCode::parse(line.code)?).message(line.sentence.clone()))
                });
                unable.push((one.kernel, reasons.collect()));
                continue;
            }
            let algorithm = config.algorithm;
            let supported = spec.speculative_algorithms.iter().any(|name| name == algorithm.name());
            if algorithm != Algorithm::Generic && !supported {
                let found = match spec.speculative_algorithms.as_slice() {
                    [] => "generic".to_owned(),
                    names => format!("generic, {}", names.join(", ")),
                };
                let reason = Reason::new(ReasonCode::SpecDecodeAlgorithmUnsupported)
                    .required(algorithm.name())
                    .found(found);
                unable.push((one.kernel, vec![reason]));
                continue;
            }
            able.push((spec, one.total));
        }
        if able.is_empty() {
            return Err(Error::NoKernel { operation: side.operation.name.to_string(), candidates: unable });
        }
        Ok(able)
    }
}

/// Reasons that no choice of kernels can resolve.
fn refusals(config: &SpeculativeConfig, draft: &ModelCall<'_>, target: &ModelCall<'_>) -> Vec<Reason> {
    let mut reasons = Vec::new();
    for (who, side) in [("draft", draft), ("target", target)] {
        if side.pipeline_stages > 1 {
            reasons.push(
                Reason::new(ReasonCode::SpecDecodePpIncompatible)
                    .required("one pipeline stage")
                    .found(format!("{} stages of the {who} model", side.pipeline_stages)),
            );
        }
    }
    if config.draft_tp_size > config.max_draft_tp_size {
        reasons.push(
            Reason::new(ReasonCode::SpecDecodeDraftTpConstraint)
                .required(format!("at most {}", config.max_draft_tp_size))
                .found(config.draft_tp_size.to_string()),
        );
    }
    reasons
}

/// Why two kernels cannot share a KV cache, if they have to.
fn kv_incompatibility(
    config: &SpeculativeConfig,
    draft: &KernelSpec,
    target: &KernelSpec,
    draft_side: &ModelCall<'_>,
    target_side: &ModelCall<'_>,
) -> Option<Reason> {
    if !config.share_kv_cache {
        return None;
    }
    let incompatible = |required: String, found: String| {
        Some(Reason::new(ReasonCode::SpecDecodeKvIncompatible).required(required).found(found))
    };
    let (ours, theirs) = (&draft.kv_strategies, &target.kv_strategies);
    if !ours.is_empty() && !theirs.is_empty() && !ours.iter().any(|one| theirs.contains(one)) {
        return incompatible(format!("a cache that is {}", theirs.join(" or ")), ours.join(" or "));
    }
    if !draft.layouts.is_empty()
        && !target.layouts.is_empty()
        && !draft.layouts.iter().any(|layout| target.layouts.contains(layout))
    {
        return incompatible(format!("layout {}", target.layouts.join(" or ")), draft.layouts.join(" or "));
    }
    let dtypes = |side: &ModelCall<'_>| crate::evidence::dtypes_text(side.operation, side.context);
    let (ours, theirs) = (dtypes(draft_side), dtypes(target_side));
    if ours != theirs {
        return incompatible(format!("the target's dtypes, {theirs}"), ours);
    }
    None
}
