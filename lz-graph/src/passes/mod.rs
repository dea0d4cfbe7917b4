//! Passes: rewrites of a graph that keep its values, run to a fixed point.
//!
//! Fusion targets are operations of the catalog, so that selection chooses their kernels. A pass finds structure in the graph and
//! replaces nodes through a `Rewriter`, which records what was replaced by what. Each pass can be switched off by its name.
//! *Invariant:* no pass turns a softmax that is written out into `primitive.softmax` before attention was tried on it.

mod activations;
mod affine;
mod attention;
mod common;
mod conv;
mod fold;
mod gated;
mod identities;
mod layout;
mod linear;
mod masks;
mod matmul;
mod norms;
mod pattern;
mod projections;
pub(crate) mod query;
mod report;
mod residual;
mod rewriter;
mod rotary;
mod sizes;
mod softmax;
mod verify;
mod views;

#[cfg(test)]
mod tests;

use lz_engine::Engine;

use crate::error::GraphError;
use crate::graph::Graph;
use crate::validate::{self, Phase, Validation};
pub use report::{Report, Rewrite};
use rewriter::Rewriter;
pub use verify::verify;

/// How much a pass may change values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tolerance {
    /// Bitwise equal.
    Exact,
    /// Equal in exact arithmetic; intermediate roundings differ.
    Rounding,
}

/// What `optimize` may do.
#[derive(Default)]
pub struct Options<'a> {
    /// Names of passes that do not run; see [`names`].
    pub disabled: Vec<String>,
    /// The engine that computes constants; without one, constants are not folded.
    pub engine: Option<&'a Engine>,
}

/// One pass.
struct Pass {
    name: &'static str,
    tolerance: Tolerance,
    run: fn(&mut Rewriter<'_>),
}

/// All passes in the order of a round. Absorption into products comes before folding, attention before any other fusion.
static PASSES: &[Pass] = &[
    Pass { name: "views", tolerance: Tolerance::Exact, run: views::run },
    Pass { name: "identities", tolerance: Tolerance::Exact, run: identities::run },
    Pass { name: "common", tolerance: Tolerance::Exact, run: common::run },
    Pass { name: "matmul", tolerance: Tolerance::Rounding, run: matmul::run },
    Pass { name: "fold", tolerance: Tolerance::Exact, run: fold::run },
    Pass { name: "attention", tolerance: Tolerance::Rounding, run: attention::run },
    Pass { name: "masks", tolerance: Tolerance::Rounding, run: masks::run },
    Pass { name: "softmax", tolerance: Tolerance::Rounding, run: softmax::run },
    Pass { name: "rotary", tolerance: Tolerance::Rounding, run: rotary::run },
    Pass { name: "norms", tolerance: Tolerance::Rounding, run: norms::run },
    Pass { name: "activations", tolerance: Tolerance::Rounding, run: activations::run },
    Pass { name: "linear", tolerance: Tolerance::Rounding, run: linear::run },
    Pass { name: "gated", tolerance: Tolerance::Rounding, run: gated::run },
    Pass { name: "conv", tolerance: Tolerance::Rounding, run: conv::run },
    Pass { name: "projections", tolerance: Tolerance::Rounding, run: projections::run },
    Pass { name: "layout", tolerance: Tolerance::Exact, run: layout::run },
    Pass { name: "residual", tolerance: Tolerance::Exact, run: residual::run },
];

/// The names of all passes, in order.
pub fn names() -> impl Iterator<Item = &'static str> {
    PASSES.iter().map(|pass| pass.name)
}

/// A graph reaches its fixed point within a few rounds; more is a pair of passes that undo each other.
const MAX_ROUNDS: usize = 32;

/// Runs all passes until none changes the graph. Unused nodes are removed.
pub fn optimize(graph: &mut Graph, options: &Options<'_>) -> Result<Report, GraphError> {
    optimize_verified(graph, options, None)
}

/// As [`optimize`]; with an engine, every pass is verified: the graph runs before and after it with random inputs.
pub fn optimize_verified(
    graph: &mut Graph,
    options: &Options<'_>,
    references: Option<&Engine>,
) -> Result<Report, GraphError> {
    if let Some(unknown) = options.disabled.iter().find(|name| names().all(|known| known != name.as_str())) {
        let known = names().collect::<Vec<_>>().join(", ");
        return Err(GraphError::Invalid {
            stage: "passes",
            findings: vec![format!("there is no pass `{unknown}`; expected one of {known}")],
        });
    }
    graph.normalize()?;
    sizes::simplify(graph);
    let mut report = Report::default();
    loop {
        report.rounds += 1;
        let before = report.rewrites.len();
        for pass in PASSES.iter().filter(|pass| !options.disabled.iter().any(|name| name == pass.name)) {
            let before = references.map(|_| graph.clone());
            let mut rewriter = Rewriter::new(std::mem::take(graph), options.engine);
            (pass.run)(&mut rewriter);
            let (changed, rewrites) = rewriter.finish(pass.name, pass.tolerance);
            *graph = changed;
            if !rewrites.is_empty() {
                graph.normalize()?;
                if let (Some(before), Some(engine)) = (&before, references) {
                    verify_pass(before, graph, engine, pass, &mut report)?;
                }
                report.rewrites.extend(rewrites);
            }
        }
        if report.rewrites.len() == before {
            break;
        }
        if report.rounds == MAX_ROUNDS {
            report.stopped = true;
            break;
        }
    }
    remove_repeated_checks(graph);
    Ok(report)
}

/// Validates the graph after a pass, and compares it with the one before; a graph that cannot run with small random inputs is reported
/// as not verified.
fn verify_pass(
    before: &Graph,
    after: &Graph,
    engine: &Engine,
    pass: &Pass,
    report: &mut Report,
) -> Result<(), GraphError> {
    let valid = Validation::Normal.check(&validate::graph(after, Phase::Passes));
    match valid.and_then(|()| verify(before, after, engine, pass.tolerance)) {
        Ok(()) => Ok(()),
        Err(GraphError::Invalid { stage, findings }) => {
            let findings = findings.into_iter().map(|finding| format!("pass `{}`: {finding}", pass.name));
            Err(GraphError::Invalid { stage, findings: findings.collect() })
        }
        Err(error) => {
            report.unverified.push(format!("pass `{}` was not verified: {error}", pass.name));
            Ok(())
        }
    }
}

/// Rewrites infer shapes again and so repeat checks.
fn remove_repeated_checks(graph: &mut Graph) {
    let mut kept: Vec<crate::graph::SizeCheck> = Vec::with_capacity(graph.checks.len());
    for check in std::mem::take(&mut graph.checks) {
        if !kept.iter().any(|one| one.left == check.left && one.right == check.right) {
            kept.push(check);
        }
    }
    graph.checks = kept;
}
