//! Which quantised format to use, where several would do: accuracy first, speed second, as the operator weighs them.
//!
//! A format is only ever chosen together with a kernel that can run it here. Nothing here quantises.

use lz_schema::policy::SettingValue;
use serde::Serialize;

use crate::engine::Engine;
use lz_core::context::Context;
use lz_core::error::Error;
use lz_core::operation::OperationInfo;
use lz_core::reason::{Reason, ReasonCode};

/// How well formats keep values, better first. The ranks of the four-bit ones are those that published comparisons agree on;
/// a model's own can be set as `quant_formats.accuracy_profile`.
pub const ACCURACY_RANKS: [(&str, i64); 6] =
    [("int8", 14), ("fp8_e4m3", 14), ("fp8_e5m2", 12), ("nvfp4", 10), ("int4", 8), ("mxfp4", 5)];

/// The rank that costs no accuracy to speak of.
const GOOD_RANK: i64 = 10;
/// What each rank below that costs, in percent: a rule of thumb, which puts mxfp4 at 3 %.
const PERCENT_A_RANK: f64 = 0.6;

/// What weighs more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weighing {
    /// Accuracy.
    High,
    /// Both.
    Balanced,
    /// Speed.
    Performance,
}

/// How a format is chosen; `quant_formats` in a policy.
#[derive(Debug, Clone, PartialEq)]
pub struct QuantConfig {
    /// What weighs more.
    pub weighing: Weighing,
    /// Whether another format than the first may be chosen.
    pub allow_fallback: bool,
    /// The most accuracy that a format may cost, in percent.
    pub max_drop_percent: f64,
    /// Whether what is stored in one format may be quantised again into another.
    pub requantization: bool,
    /// Ranks of a model's own, before the general ones.
    pub profile: Vec<(String, i64)>,
}

impl Default for QuantConfig {
    fn default() -> Self {
        QuantConfig {
            weighing: Weighing::Balanced,
            allow_fallback: true,
            max_drop_percent: 3.0,
            requantization: false,
            profile: Vec::new(),
        }
    }
}

impl QuantConfig {
    /// As an engine's settings say.
    pub fn of(engine: &Engine) -> QuantConfig {
        let mut config = QuantConfig::default();
        let value = |key: &str| engine.setting(&format!("quant_formats.{key}")).map(|one| one.value);
        if let Some(SettingValue::Text(word)) = value("accuracy_priority") {
            config.weighing = match word.as_str() {
                "high" => Weighing::High,
                "performance" => Weighing::Performance,
                _ => Weighing::Balanced,
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

    /// The accuracy rank of a format; 0 for one that nobody has ranked.
    pub fn rank(&self, format: &str) -> i64 {
        let own = self.profile.iter().find(|(known, _)| known == format).map(|(_, rank)| *rank);
        let general = || ACCURACY_RANKS.iter().find(|(known, _)| *known == format).map(|(_, rank)| *rank);
        own.or_else(general).unwrap_or(0)
    }

    /// What a format costs in accuracy, in percent.
    pub fn drop_percent(&self, format: &str) -> f64 {
        (GOOD_RANK - self.rank(format)).max(0) as f64 * PERCENT_A_RANK
    }

    fn points(&self, format: &str, kernel_score: f64) -> f64 {
        let (accuracy, speed) = match self.weighing {
            Weighing::High => (10.0, 0.1),
            Weighing::Balanced => (3.0, 1.0),
            Weighing::Performance => (0.5, 1.0),
        };
        self.rank(format) as f64 * accuracy + kernel_score * speed
    }
}

/// A call as it would be in one format.
#[derive(Debug, Clone, Copy)]
pub struct FormatCall<'a> {
    /// The format.
    pub format: &'a str,
    /// The operation.
    pub operation: &'static OperationInfo,
    /// The call.
    pub context: &'a Context,
}

/// The format to use.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FormatChoice {
    /// The format.
    pub format: String,
    /// The kernel that would run it.
    pub kernel: String,
    /// Whether what is stored has to be quantised again.
    pub requantize: bool,
    /// Accuracy and speed together.
    pub points: f64,
}

impl Engine {
    /// Chooses among the forms that a call could have; `stored` is the format that the tensor has now, if any. Ties go to the
    /// form that is listed first.
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
