//! Explanations of selections as plain data for C++.

use lz_core::{Context, Error, OperationInfo};
use lz_engine::Engine;
use lz_engine::explain::ReasonLine;

use crate::data;

/// Fills in the explanation. If no kernel is valid, the kernel is empty and every candidate has its reasons.
pub fn explain(
    engine: &Engine,
    operation: &'static OperationInfo,
    context: &Context,
    answer: &mut data::Explanation,
) -> Result<(), Error> {
    let explanation = engine.explain(operation, context);
    if let Some(plan) = &explanation.plan {
        answer.kernel.clone_from(&plan.kernel);
        answer.fallbacks.clone_from(&plan.fallbacks);
        answer.transforms = plan.transforms.iter().map(|kind| kind.name().to_owned()).collect();
        answer.workspace_bytes = plan.workspace_bytes;
        answer.score = plan.score;
    }
    answer.candidates = explanation
        .candidates
        .iter()
        .map(|candidate| data::Candidate {
            kernel: candidate.kernel.clone(),
            backend: candidate.backend.clone(),
            chosen: candidate.chosen,
            score: candidate.total,
            reasons: candidate.reasons.iter().map(reason).collect(),
        })
        .collect();
    answer.text = explanation.to_string();
    answer.json = serde_json::to_string(&explanation).unwrap_or_default();
    Ok(())
}

fn reason(reason: &ReasonLine) -> data::Reason {
    let or_empty = |text: &Option<String>| text.clone().unwrap_or_default();
    data::Reason {
        code: reason.code.to_owned(),
        argument: or_empty(&reason.argument),
        axis: or_empty(&reason.axis),
        required: or_empty(&reason.required),
        found: or_empty(&reason.found),
        message: reason.sentence.clone(),
    }
}
