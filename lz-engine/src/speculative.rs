//! Speculative decoding: the kernels of a draft model and of its target are chosen together, because what one leaves in the
//! cache of keys and values the other must be able to read.
//!
//! A pair is the best sum of scores among the pairs that fit. Nothing here drafts a token.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use lz_schema::policy::SettingValue;
use serde::Serialize;

use crate::bucket::Bucket;
use crate::engine::Engine;
use lz_core::context::Context;
use lz_core::error::Error;
use lz_core::operation::OperationInfo;
use lz_core::reason::{Reason, ReasonCode};
use lz_core::spec::KernelSpec;

/// How tokens are drafted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Algorithm {
    /// One token after the other; every kernel can.
    Generic,
    /// A tree of features.
    Eagle,
    /// The same over several layers.
    Eagle3,
    /// Several heads at once.
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

/// How draft and target work together; `speculative_decoding` in a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpeculativeConfig {
    /// Whether pairs are made at all.
    pub enabled: bool,
    /// How tokens are drafted.
    pub algorithm: Algorithm,
    /// The draft model's tensor-parallel size.
    pub draft_tp_size: u32,
    /// The largest one that is allowed.
    pub max_draft_tp_size: u32,
    /// How many tokens are drafted at once.
    pub tokens: u32,
    /// Whether that depends on the batch.
    pub adaptive: bool,
    /// Whether both models share one cache of keys and values.
    pub share_kv_cache: bool,
    /// Whether pairs are kept.
    pub cache_pairs: bool,
}

impl Default for SpeculativeConfig {
    fn default() -> Self {
        SpeculativeConfig {
            enabled: false,
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
    /// As an engine's settings say.
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
            enabled: on("enabled", config.enabled),
            draft_tp_size: number("draft_tp_size", config.draft_tp_size),
            max_draft_tp_size: number("max_draft_tp_size", config.max_draft_tp_size),
            tokens: number("num_speculative_tokens", config.tokens),
            adaptive: on("adaptive_speculation", config.adaptive),
            share_kv_cache: on("share_kv_cache", config.share_kv_cache),
            cache_pairs: on("cache_kernel_pairs", config.cache_pairs),
            ..config
        }
    }

    /// How many tokens to draft for a batch: drafting pays while the target is bound by memory, and less the more rows share
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

/// One of the two models' calls.
#[derive(Debug, Clone, Copy)]
pub struct Side<'a> {
    /// The operation.
    pub operation: &'static OperationInfo,
    /// The call.
    pub context: &'a Context,
    /// Over how many stages the model's layers are spread.
    pub pipeline_stages: u32,
}

/// Two kernels that work together.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Pair {
    /// The draft model's kernel.
    pub draft: String,
    /// The target model's kernel.
    pub target: String,
    /// The sum of their scores.
    pub score: f64,
}

/// Pairs that were made, for one generation of the engine.
#[derive(Debug, Default)]
pub struct PairCache {
    pairs: Mutex<(u64, HashMap<PairKey, Pair>)>,
}

type PairKey = (u32, Vec<u64>, u32, Vec<u64>, Algorithm, bool);

/// The most pairs that are kept.
const MOST_PAIRS: usize = 1024;

impl PairCache {
    /// A pair for these calls, as [`Engine::pair`] would make it; kept ones are found as long as nothing has changed.
    pub fn pair(
        &self,
        engine: &Engine,
        config: &SpeculativeConfig,
        draft: Side<'_>,
        target: Side<'_>,
    ) -> Result<Pair, Error> {
        let words = |side: &Side<'_>| Bucket::of(side.operation, side.context).words().to_vec();
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
            let pairs = self.pairs.lock().unwrap_or_else(PoisonError::into_inner);
            if let (true, Some(pair)) = (pairs.0 == generation, pairs.1.get(&key)) {
                // A bucket may hold calls of which only some fit: the kept pair is looked at again for this one.
                let fits = |side: &Side<'_>, kernel: &str| {
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
            let mut pairs = self.pairs.lock().unwrap_or_else(PoisonError::into_inner);
            if pairs.0 != generation || pairs.1.len() >= MOST_PAIRS {
                *pairs = (generation, HashMap::new());
            }
            pairs.1.insert(key, pair.clone());
        }
        Ok(pair)
    }
}

impl Engine {
    /// The best pair of kernels for a draft model's call and its target's.
    pub fn pair(&self, config: &SpeculativeConfig, draft: Side<'_>, target: Side<'_>) -> Result<Pair, Error> {
        let reasons = refusals(config, &draft, &target);
        if !reasons.is_empty() {
            return Err(Error::Validation { operation: target.operation.name.to_string(), reasons });
        }
        let drafts = self.able(&draft, config)?;
        let targets = self.able(&target, config)?;
        let mut best: Option<Pair> = None;
        let mut apart: Vec<(String, Vec<Reason>)> = Vec::new();
        for (draft_spec, draft_score) in &drafts {
            for (target_spec, target_score) in &targets {
                if let Some(reason) = kv_apart(config, draft_spec, target_spec, &draft, &target) {
                    apart.push((format!("{} with {}", draft_spec.id, target_spec.id), vec![reason]));
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
        best.ok_or(Error::NoKernel { operation: target.operation.name.to_string(), candidates: apart })
    }

    /// The kernels that can run one side, with their scores.
    fn able(
        &self,
        side: &Side<'_>,
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
            let knows = spec.speculative_algorithms.iter().any(|name| name == algorithm.name());
            if algorithm != Algorithm::Generic && !knows {
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

/// What no choice of kernels can mend.
fn refusals(config: &SpeculativeConfig, draft: &Side<'_>, target: &Side<'_>) -> Vec<Reason> {
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

/// Why two kernels cannot share a cache, if they have to.
fn kv_apart(
    config: &SpeculativeConfig,
    draft: &KernelSpec,
    target: &KernelSpec,
    draft_side: &Side<'_>,
    target_side: &Side<'_>,
) -> Option<Reason> {
    if !config.share_kv_cache {
        return None;
    }
    let apart = |required: String, found: String| {
        Some(Reason::new(ReasonCode::SpecDecodeKvIncompatible).required(required).found(found))
    };
    let (ours, theirs) = (&draft.kv_strategies, &target.kv_strategies);
    if !ours.is_empty() && !theirs.is_empty() && !ours.iter().any(|one| theirs.contains(one)) {
        return apart(format!("a cache that is {}", theirs.join(" or ")), ours.join(" or "));
    }
    if !draft.layouts.is_empty()
        && !target.layouts.is_empty()
        && !draft.layouts.iter().any(|layout| target.layouts.contains(layout))
    {
        return apart(format!("layout {}", target.layouts.join(" or ")), draft.layouts.join(" or "));
    }
    let dtypes = |side: &Side<'_>| crate::evidence::dtypes_text(side.operation, side.context);
    let (ours, theirs) = (dtypes(draft_side), dtypes(target_side));
    if ours != theirs {
        return apart(format!("the target's dtypes, {theirs}"), ours);
    }
    None
}
