//! Selects the kernels of a block of operations jointly, where each consumes the output of the previous one.
//!
//! A kernel that scores lower by itself may be better in a block: its output needs no conversion, or it fuses its neighbor. Costs are in
//! score points: the difference to the best score of the step, plus conversions, minus the gain of fusion. Only `run` runs anything.

mod convert;
mod dequantize;
mod explain;
mod fused;
mod graph;
mod path;
mod plan_cache;
mod run;

pub use run::{BlockCall, BlockRun};

use serde::Serialize;

use crate::engine::Engine;
use lz_core::context::Context;
use lz_core::error::Error;
use lz_core::operation::OperationInfo;
use lz_schema::DType;

/// The gain per fused neighbor: one launch less, and no intermediate tensor.
const FUSION_POINTS: f64 = 10.0;

/// One operation of a block.
#[derive(Debug, Clone)]
pub struct Step {
    operation: &'static OperationInfo,
    context: Context,
    dtypes: Vec<DType>,
    /// The call that computes it on dequantized inputs, if the policy allows it.
    dequantized: Option<DequantizedStep>,
}

/// The call of the operation with the same mathematics on dequantized inputs.
#[derive(Debug, Clone)]
struct DequantizedStep {
    operation: &'static OperationInfo,
    context: Context,
    /// The names of the inputs that are dequantized.
    inputs: Vec<&'static str>,
}

impl Step {
    /// A call as it would be made by itself: its context declares the layout and dtype of its input.
    pub fn new(operation: &'static OperationInfo, context: Context) -> Step {
        Step { operation, context, dtypes: Vec::new(), dequantized: None }
    }

    /// Allows other element types than that of its context. They change results, so the caller must allow them explicitly.
    #[must_use]
    pub fn or_in(mut self, dtypes: &[DType]) -> Step {
        self.dtypes.extend(dtypes);
        self
    }
}

/// A conversion between two steps.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Conversion {
    /// Available: `BHSD bf16`.
    pub from: String,
    /// Required.
    pub to: String,
    /// The kernel whose adapter does it.
    pub by: String,
    /// Its cost, in score points.
    pub cost: f64,
}

/// A step of a quantized operation that is computed by the operation with the same mathematics on dequantized inputs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PlannedDequantization {
    /// The inputs that are dequantized.
    pub inputs: Vec<&'static str>,
    /// The operation of the kernel.
    pub operation: String,
    /// Its cost, in score points.
    pub cost: f64,
}

/// One kernel of a plan.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PlannedStep {
    /// The index of its first operation in the block.
    pub first: usize,
    /// The operations that it covers, in order; several for a fused kernel.
    pub operations: Vec<String>,
    /// The kernel.
    pub kernel: String,
    /// Layout and element type of its input.
    pub takes: String,
    /// Layout and element type of its output.
    pub makes: String,
    /// The conversion before it.
    pub conversion: Option<Conversion>,
    /// How its operation is computed by another one on dequantized inputs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dequantization: Option<PlannedDequantization>,
    /// Its score by itself.
    pub score: f64,
    /// The difference to the best score of the step, minus the gain of fusion.
    pub cost: f64,
    /// Workspace in bytes.
    pub workspace_bytes: u64,
}

/// Kernels for a block, and their total cost.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Choice {
    /// One entry per kernel, in order.
    pub steps: Vec<PlannedStep>,
    /// The conversion at the end.
    pub last: Option<Conversion>,
    /// The sum of all costs.
    pub total: f64,
}

/// A step whose joint selection differs from its best kernel by itself.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Difference {
    /// The index of the operation in the block.
    pub step: usize,
    /// The operation.
    pub operation: String,
    /// The kernel selected for it alone, and its score.
    pub alone: (String, f64),
    /// The kernel selected in the block, and its score in its own step.
    pub jointly: (String, f64),
    /// Why.
    pub why: String,
}

/// The plan of a block.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BlockPlan {
    /// The cheapest selection.
    pub joint: Choice,
    /// The result of selecting step by step.
    pub greedy: Choice,
    /// Where they differ, and why.
    pub differences: Vec<Difference>,
}

impl BlockPlan {
    /// What joint selection saves, in score points.
    pub fn saves(&self) -> f64 {
        self.greedy.total - self.joint.total
    }
}

impl Engine {
    /// Selects kernels for a block of operations jointly. Returns the error of the first operation without an eligible kernel.
    pub fn plan_block(&self, steps: &[Step]) -> Result<BlockPlan, Error> {
        let (snapshot, mode) = self.thread_snapshot();
        let block = graph::Block::of(&snapshot, mode, steps, graph::FusionPolicy::Described)?;
        Ok(explain::plan(&block))
    }
}
