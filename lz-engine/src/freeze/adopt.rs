//! Decisions that other engines adopt: the ranks of one run should select the same kernels.
//!
//! An adopted decision is a policy rule: in the cell of the decision its kernel ranks before all others, if it can run the call. Unlike a
//! lock it applies to the sizes that the decision was made for, so an operation may have several.

use std::collections::BTreeMap;

use lz_schema::expr::{self, Type};

use super::DecisionLog;
use crate::engine::Engine;
use crate::policy::{Action, Pattern, Provenance, Rule};
use crate::selection::operation_table::OVERRIDE_POINTS;
use lz_core::error::Error;
use lz_core::expression_names::Names;
use lz_core::reason::{Reason, ReasonCode};

/// The name of adopted rules.
const ADOPTED: &str = "adopted decision";

/// Maximum number of adopted decisions: each is a rule that new decisions evaluate.
const MAX_ADOPTED: usize = 4096;

/// A recorded decision in a form that another engine can adopt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdoptableDecision {
    /// The operation.
    pub operation: String,
    /// A policy condition that holds for the calls of the decision.
    pub condition: String,
    /// The kernel.
    pub kernel: String,
    /// Of several kernels with the same condition, the one with the highest precedence that can run the call is selected.
    pub precedence: u32,
}

impl Engine {
    /// The recorded decisions, for [`Engine::adopt_decisions`] of another engine.
    pub fn adoptable_decisions(&self) -> Vec<AdoptableDecision> {
        let log = self.extension::<DecisionLog>();
        let recorded = log.recorded.lock();
        let mut cells: BTreeMap<(&str, &str), BTreeMap<&str, Vec<&str>>> = BTreeMap::new();
        for one in recorded.values() {
            let cell = cells.entry((&one.decision.operation, &one.condition)).or_default();
            let fallbacks = cell.entry(&one.decision.kernel).or_default();
            fallbacks.extend(one.decision.fallbacks.iter().map(String::as_str));
        }
        let mut all = Vec::new();
        for ((operation, condition), kernels) in &cells {
            for (kernel, fallbacks) in kernels {
                let below = kernels.keys().filter(|other| *other != kernel && fallbacks.contains(other));
                all.push(AdoptableDecision {
                    operation: (*operation).to_owned(),
                    condition: (*condition).to_owned(),
                    kernel: (*kernel).to_owned(),
                    precedence: below.count() as u32,
                });
            }
        }
        all
    }

    /// Adopts decisions of another engine instead of those adopted before; an empty list ends adoption. All or none.
    pub fn adopt_decisions(&self, decisions: &[AdoptableDecision]) -> Result<(), Error> {
        let refuse = |subject: &str, message: String| Error::Configuration {
            subject: subject.to_owned(),
            reasons: vec![Reason::new(ReasonCode::PolicyInvalid).message(message.clone())],
            message,
        };
        if decisions.len() > MAX_ADOPTED {
            let message =
                format!("{} decisions cannot be adopted; the maximum is {MAX_ADOPTED}", decisions.len());
            return Err(refuse(ADOPTED, message));
        }
        let registry = self.registry();
        let mut rules = Vec::with_capacity(decisions.len());
        for one in decisions {
            let Some(operation) = registry.operation(&one.operation) else {
                return Err(refuse(
                    &one.operation,
                    "the adopted operation is not registered here".to_owned(),
                ));
            };
            expr::check_expecting(&one.condition, &Names::of_policy(operation), &Type::Bool).map_err(
                |errors| {
                    let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
                    refuse(&one.operation, format!("`{}`: {}", one.condition, errors.join("; ")))
                },
            )?;
            rules.push(Rule {
                name: ADOPTED.to_owned(),
                operations: Pattern::new(&one.operation),
                condition: Some(one.condition.clone()),
                actions: vec![Action::Boost(
                    Pattern::new(&one.kernel),
                    OVERRIDE_POINTS + f64::from(one.precedence) * OVERRIDE_POINTS,
                )],
                source: Provenance::new("lz.distributed.adopt"),
            });
        }
        self.settings().set_rules(ADOPTED, rules);
        Ok(())
    }
}
