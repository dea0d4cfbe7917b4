//! Selects a quantization format if several are possible, by accuracy and speed as weighted by the operator.
//!
//! A format is only selected together with a kernel that can run it. Nothing here quantizes.

use lz_schema::policy::SettingValue;
use serde::Serialize;

use crate::engine::Engine;
use lz_core::context::Context;
use lz_core::error::Error;
use lz_core::operation::OperationInfo;
use lz_core::reason::{Reason, ReasonCode};

/// Accuracy ranks of formats; higher is better. The ranks of four-bit formats follow published comparisons; a model's own ranks can
/// be set in `quant_formats.accuracy_profile`.
pub const ACCURACY_RANKS: [(&str, i64); 12] = [
    ("int16", 16),
    ("uint16", 16),
    ("int8", 14),
    ("uint8", 14),
    ("fp8_e4m3", 14),
    ("fp8_e5m2", 12),
    ("nvfp4", 10),
    ("int4", 8),
    ("uint4", 8),
    ("mxfp4", 5),
    ("int2", 2),
    ("uint2", 2),
];

/// The rank from which the loss of accuracy is negligible.
const GOOD_RANK: i64 = 10;
/// Estimated loss of accuracy per rank below `GOOD_RANK`, in percent: a heuristic that yields 3 % for mxfp4.
const PERCENT_PER_RANK: f64 = 0.6;

/// The weighting of accuracy and speed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccuracyWeighting {
    /// Accuracy.
    High,
    /// Both.
    Balanced,
    /// Speed.
    Performance,
}

/// Format selection; `quant_formats` in a policy.
#[derive(Debug, Clone, PartialEq)]
pub struct QuantConfig {
    /// The weighting of accuracy and speed.
    pub weighing: AccuracyWeighting,
    /// Whether a format other than the first may be selected.
    pub allow_fallback: bool,
    /// Maximum loss of accuracy in percent.
    pub max_drop_percent: f64,
    /// Whether stored data may be requantized into another format.
    pub requantization: bool,
    /// Ranks of the model; they override the general ones.
    pub profile: Vec<(String, i64)>,
}

impl Default for QuantConfig {
    fn default() -> Self {
        QuantConfig {
            weighing: AccuracyWeighting::Balanced,
            allow_fallback: true,
            max_drop_percent: 3.0,
            requantization: false,
            profile: Vec::new(),
        }
    }
}

impl QuantConfig {
    /// From an engine's settings.
    pub fn of(engine: &Engine) -> QuantConfig {
        let mut config = QuantConfig::default();
        let value = |key: &str| engine.setting(&format!("quant_formats.{key}")).map(|one| one.value);
        if let Some(SettingValue::Text(word)) = value("accuracy_priority") {
            config.weighing = match word.as_str() {
                "high" => AccuracyWeighting::High,
                "performance" => AccuracyWeighting::Performance,
                _ => AccuracyWeighting::Balanced,
            };
        }
        if let Some(SettingValue::Bool(allowed)) = value("allow_format_fallback") {
            config.allow_fallback = allowed;
        }
        if let Some(SettingValue::Float(percent)) = value("max_accuracy_drop_percent") {
            config.max_drop_percent = percent;
        }
        if let Some(SettingValue::Bool(allowed)) = value("requantization_enabled") {
            config.requantization = allowed;
        }
        if let Some(SettingValue::Numbers(ranks)) = value("accuracy_profile") {
            config.profile = ranks;
        }
        config
    }

    /// The accuracy rank of a format; 0 for an unranked one.
    pub fn rank(&self, format: &str) -> i64 {
        let own = self.profile.iter().find(|(known, _)| known == format).map(|(_, rank)| *rank);
        let general = || ACCURACY_RANKS.iter().find(|(known, _)| *known == format).map(|(_, rank)| *rank);
        own.or_else(general).unwrap_or(0)
    }

    /// Estimated loss of accuracy of a format, in percent.
    pub fn drop_percent(&self, format: &str) -> f64 {
        (GOOD_RANK - self.rank(format)).max(0) as f64 * PERCENT_PER_RANK
    }

    fn points(&self, format: &str, kernel_score: f64) -> f64 {
        let (accuracy, speed) = match self.weighing {
            AccuracyWeighting::High => (10.0, 0.1),
            AccuracyWeighting::Balanced => (3.0, 1.0),
            AccuracyWeighting::Performance => (0.5, 1.0),
        };
        self.rank(format) as f64 * accuracy + kernel_score * speed
    }
}

/// A call in one format.
#[derive(Debug, Clone, Copy)]
pub struct FormatCall<'a> {
    /// The format.
    pub format: &'a str,
    /// The operation.
    pub operation: &'static OperationInfo,
    /// The call.
    pub context: &'a Context,
}

/// The selected format.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FormatChoice {
    /// The format.
    pub format: String,
    /// The kernel that runs it.
    pub kernel: String,
    /// Whether the stored data must be requantized.
    pub requantize: bool,
    /// The weighted score.
    pub points: f64,
}

impl Engine {
    /// Selects a format; `stored` is the current format of the tensor, if any. Ties go to the call that is listed
    /// first.
    pub fn choose_format(
        &self,
        config: &QuantConfig,
        stored: Option<&str>,
        calls: &[FormatCall<'_>],
    ) -> Result<FormatChoice, Error> {
        let mut best: Option<FormatChoice> = None;
        let mut declined = Vec::new();
        let operation = calls.first().map_or_else(String::new, |call| call.operation.name.to_string());
        let considered = if config.allow_fallback { calls.len() } else { calls.len().min(1) };
        for call in calls.iter().take(considered) {
            let mut reasons = Vec::new();
            let requantize = stored.is_some_and(|stored| stored != call.format);
            if requantize && !config.requantization {
                reasons.push(
                    Reason::new(ReasonCode::RequantizationRequired)
                        .required(call.format)
                        .found(stored.unwrap_or_default()),
                );
            }
            let drop = config.drop_percent(call.format);
            if drop > config.max_drop_percent {
                reasons.push(
                    Reason::new(ReasonCode::QuantAccuracyThresholdExceeded)
                        .required(format!("at most {} %", config.max_drop_percent))
                        .found(format!("about {drop:.1} % for {}", call.format)),
                );
            }
            match self.which(call.operation, call.context) {
                Err(error) => {
                    reasons.push(
                        Reason::new(ReasonCode::QuantFormatUnsupported)
                            .required("a kernel for it on this device")
                            .found(format!("none for {}", call.format)),
                    );
                    reasons.extend(error.reasons().into_iter().cloned());
                }
                Ok(plan) if reasons.is_empty() => {
                    let points = config.points(call.format, plan.score);
                    if best.as_ref().is_none_or(|best| points > best.points) {
                        let format = call.format.to_owned();
                        best = Some(FormatChoice { format, kernel: plan.kernel, requantize, points });
                    }
                }
                Ok(_) => {}
            }
            declined.push((call.format.to_owned(), reasons));
        }
        best.ok_or(Error::NoKernel { operation, candidates: declined })
    }
}
