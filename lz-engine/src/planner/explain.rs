//! The plan of a block as data and as text: the selected kernels, their cost, and why it beats selecting step by step.

use std::fmt;

use super::graph::{Block, dequantization_cost};
use super::path::{Conversion as Converted, Flow, Path};
use super::{BlockPlan, Choice, Conversion, Difference, PlannedDequantization, PlannedStep};

/// The plan of a block whose steps all have eligible kernels.
pub(super) fn plan(block: &Block) -> BlockPlan {
    let empty = Path { total: 0.0, edges: Vec::new(), last: Converted::None };
    // Step-by-step selection is always a path: each kernel can produce what is declared, possibly with a conversion.
    let greedy = block.greedy().unwrap_or_else(|| empty.clone());
    let joint = block.joint().unwrap_or(empty);
    let mut plan =
        BlockPlan { joint: choice(block, &joint), greedy: choice(block, &greedy), differences: Vec::new() };
    plan.differences = differences(block, &plan);
    plan
}

fn choice(block: &Block, path: &Path) -> Choice {
    let mut steps: Vec<PlannedStep> = Vec::new();
    let mut available = block.graph.declared.first().cloned().unwrap_or_default();
    for (step, position, converted) in &path.edges {
        let edge = block.graph.edges.get(*step).and_then(|edges| edges.get(*position));
        let option = block.options.get(*step).and_then(|options| options.get(*position));
        let (Some(edge), Some(option)) = (edge, option) else { continue };
        let producer = steps.last().map_or("", |step| step.kernel.as_str());
        let conversion = conversion(*converted, &available, &edge.takes, producer, &option.kernel);
        available = edge.makes.clone();
        let last = step + edge.covers;
        let dequantized = block.dequantized.get(*step).and_then(Option::as_ref);
        let dequantization =
            dequantized.filter(|_| option.is_dequantized).map(|dequantized| PlannedDequantization {
                inputs: dequantized.inputs.clone(),
                operation: dequantized.operation.name.to_string(),
                cost: dequantization_cost(dequantized.inputs.len()),
            });
        steps.push(PlannedStep {
            first: *step,
            operations: block.operations.get(*step..last).unwrap_or_default().to_vec(),
            kernel: option.kernel.clone(),
            takes: shown(&edge.takes),
            makes: shown(&edge.makes),
            conversion,
            dequantization,
            score: option.score,
            cost: edge.cost,
            workspace_bytes: option.workspace,
        });
    }
    let producer = steps.last().map_or("", |step| step.kernel.as_str()).to_owned();
    let required = block.graph.declared.last().cloned().unwrap_or_default();
    let last = conversion(path.last, &available, &required, &producer, "");
    Choice { steps, last, total: path.total }
}

fn conversion(how: Converted, from: &Flow, to: &Flow, producer: &str, consumer: &str) -> Option<Conversion> {
    let by = match how {
        Converted::None => return None,
        Converted::Incoming(_) => consumer,
        Converted::Outgoing(_) => producer,
    };
    Some(Conversion { from: shown(from), to: shown(to), by: by.to_owned(), cost: how.cost() })
}

fn shown(flow: &Flow) -> String {
    let dtype = flow.dtype.and_then(|dtype| dtype.dtype()).map(|dtype| dtype.name());
    let words = [flow.layout.as_str(), dtype.unwrap_or_default()];
    words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

fn differences(block: &Block, plan: &BlockPlan) -> Vec<Difference> {
    let mut all = Vec::new();
    for (number, (operation, alone)) in block.operations.iter().zip(&block.alone).enumerate() {
        let doing = |choice: &Choice| {
            let mut steps = choice.steps.iter().enumerate();
            steps.rfind(|(_, step)| step.first <= number).map(|(position, _)| position)
        };
        let Some(position) = doing(&plan.joint) else { continue };
        let Some(step) = plan.joint.steps.get(position) else { continue };
        if step.kernel == alone.0 {
            continue;
        }
        let alone_at = doing(&plan.greedy).unwrap_or(0);
        let greedy_cost = around(&plan.greedy, alone_at);
        let joint_cost = around(&plan.joint, position);
        let why = if step.operations.len() > 1 {
            format!("does {} in one", step.operations.join(" and "))
        } else if let Some(one) = &step.dequantization {
            format!("computes {} on dequantized inputs and is no reference", one.operation)
        } else if joint_cost < greedy_cost {
            let more = step.score - alone.1;
            format!(
                "scores {more:+.1}, and conversions around it cost {joint_cost:.1} instead of {greedy_cost:.1}"
            )
        } else {
            "makes other steps cheaper".to_owned()
        };
        all.push(Difference {
            step: number,
            operation: operation.clone(),
            alone: alone.clone(),
            jointly: (step.kernel.clone(), step.score),
            why,
        });
    }
    all
}

/// The cost of the conversions directly before and after a kernel.
fn around(choice: &Choice, position: usize) -> f64 {
    let cost = |conversion: &Option<Conversion>| conversion.as_ref().map_or(0.0, |one| one.cost);
    let before = choice.steps.get(position).map_or(0.0, |step| cost(&step.conversion));
    let after =
        choice.steps.get(position + 1).map_or_else(|| cost(&choice.last), |step| cost(&step.conversion));
    before + after
}

impl fmt::Display for BlockPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count: usize = self.joint.steps.iter().map(|step| step.operations.len()).sum();
        write!(f, "{count} operations, {} kernels, cost {:.1}", self.joint.steps.len(), self.joint.total)?;
        write!(f, " (step by step: {:.1}, {:.1} saved)", self.greedy.total, self.saves())?;
        for step in &self.joint.steps {
            if let Some(conversion) = &step.conversion {
                write!(f, "\n    {conversion}")?;
            }
            if let Some(dequantization) = &step.dequantization {
                write!(f, "\n    {dequantization}")?;
            }
            write!(f, "\n  {}. {}: {}", step.first + 1, step.operations.join(" + "), step.kernel)?;
            write!(f, "  {} → {}, score {:.1}, cost {:.1}", step.takes, step.makes, step.score, step.cost)?;
        }
        if let Some(conversion) = &self.joint.last {
            write!(f, "\n    {conversion}")?;
        }
        for one in &self.differences {
            let ((alone, alone_score), (jointly, score)) = (&one.alone, &one.jointly);
            write!(
                f,
                "\n  step {}: alone {alone} ({alone_score:.1}), here {jointly} ({score:.1})",
                one.step + 1
            )?;
            write!(f, ", which {}", one.why)?;
        }
        Ok(())
    }
}

impl fmt::Display for PlannedDequantization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "dequantize {} for {}, cost {:.1}", self.inputs.join(" and "), self.operation, self.cost)
    }
}

impl fmt::Display for Conversion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} becomes {} in {}, cost {:.1}", self.from, self.to, self.by, self.cost)
    }
}
