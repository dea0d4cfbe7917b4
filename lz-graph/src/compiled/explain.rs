//! Everything about a compiled model as text: stages, passes, memory, and every step with its kernel and why.

use std::fmt::Write as _;

use super::CompiledModel;
use crate::error::GraphError;
use crate::graph::NodeKind;
use crate::memory;
use crate::plan::{Rejected, Step};
use crate::sizes::InputShape;

/// Explains a model for inputs of these shapes.
pub fn explain(model: &CompiledModel, shapes: &[InputShape]) -> Result<String, GraphError> {
    let plan = model.session().plan_for(shapes)?;
    let graph = model.graph();
    let mut text = String::new();
    for stage in model.stages() {
        let _ = writeln!(text, "stage {}: {:.1} ms", stage.name, stage.time.as_secs_f64() * 1e3);
    }
    let computed = graph
        .nodes
        .iter()
        .filter(|node| !matches!(node.kind, NodeKind::Input(_) | NodeKind::Constant(_) | NodeKind::View(_)));
    let constants = graph.constants.iter().map(|constant| {
        let view = constant.view();
        view.elements() as usize * view.dtype().size()
    });
    let _ = writeln!(
        text,
        "{} nodes imported, {} computed, {} steps; arena {} bytes (at least {} are live at once), constants {} bytes",
        model.imported_nodes(),
        computed.count(),
        plan.steps.len(),
        plan.placement.bytes,
        memory::live_bytes(&plan.lifetimes),
        constants.sum::<usize>()
    );
    for rewrite in model.rewrites() {
        let _ = writeln!(text, "pass {rewrite}");
    }
    for layer in model.quantized_layers() {
        let _ = writeln!(text, "quantized {layer}");
    }
    for finding in model.findings().iter().chain(&model.plan_findings(&plan)) {
        let _ = writeln!(text, "{finding}");
    }
    let mut start = 0;
    let waves = plan.waves.iter().map(|end| std::mem::replace(&mut start, *end)..*end);
    let waves: Vec<_> = waves.filter(|wave| wave.len() > 1).collect();
    for (index, step) in plan.steps.iter().enumerate() {
        if let Some(wave) = waves.iter().find(|wave| wave.start == index) {
            let _ = writeln!(text, "the next {} steps run at the same time", wave.len());
        }
        let node = graph.node(step.node);
        let copy = step.copy.map_or_else(String::new, |reason| format!(" (copy: {})", reason.name()));
        let _ = writeln!(
            text,
            "{}  ▸ {}{copy}  {}{}; {} bytes  from {}",
            graph.line(step.node),
            step.pinned.entry().spec.id,
            why(model, step),
            step.rejected.iter().map(rejected).collect::<String>(),
            step.bytes(),
            node.origin
        );
    }
    text.truncate(text.trim_end().len());
    Ok(text)
}

/// Why the kernel of a step was selected: its measured time, if there is one, its score and the best other kernel.
fn why(model: &CompiledModel, step: &Step) -> String {
    let explanation = model.session().engine().explain(step.operation, &step.context);
    let id = &step.pinned.entry().spec.id;
    let eligible: Vec<_> = explanation.candidates.iter().filter(|one| one.reasons.is_empty()).collect();
    let own = eligible.iter().find(|one| one.kernel == *id);
    let next = eligible.iter().find(|one| one.kernel != *id);
    let measured = own.and_then(|own| own.evidence);
    let time = measured.map_or_else(String::new, |one| format!("{:.1} µs, ", one.median_ns / 1e3));
    match (own, next) {
        (Some(own), Some(next)) => {
            format!("{time}score {:.1}, next {} {:.1}", own.total, next.kernel, next.total)
        }
        (Some(own), None) => {
            let refused = explanation.candidates.len() - eligible.len();
            format!("{time}score {:.1}, the only eligible one ({refused} others are not)", own.total)
        }
        (None, _) => "not eligible any more".to_owned(),
    }
}

/// What else was considered for a step, and both times.
fn rejected(rejected: &Rejected) -> String {
    let Rejected { what, kernel, cost_ns, chosen_ns, measured } = rejected;
    let how = if *measured { "measured" } else { "estimated" };
    let (cost, chosen) = (cost_ns / 1e3, chosen_ns / 1e3);
    format!("; rejected: {what} ({kernel}), {cost:.1} µs instead of {chosen:.1} µs ({how})")
}
