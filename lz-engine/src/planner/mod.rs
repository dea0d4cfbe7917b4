//! Chooses the kernels of a block of operations together, where each takes what the one before it makes.
//!
//! A kernel that is a little worse by itself may be the better one in a block: what it makes is what the next one takes, and
//! nothing has to be converted; or it does its neighbour's work as well. Costs are in points of score: what a kernel's score
//! lacks to the best one of its step, plus conversions, minus what fusion gains. Only `run` runs anything.

mod convert;
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

/// What each neighbour gains whose work another kernel does as well: no launch, and nothing written and read in between.
const FUSION_POINTS: f64 = 10.0;

/// One operation of a block.
#[derive(Debug, Clone)]
pub struct Step {
    operation: &'static OperationInfo,
    context: Context,
    dtypes: Vec<DType>,
}

impl Step {
    /// A call as it would be made by itself: its context declares the layout and dtype in which its input comes.
    pub fn new(operation: &'static OperationInfo, context: Context) -> Step {
        Step { operation, context, dtypes: Vec::new() }
    }

    /// Allows it to be run in other element types than its context says. They change results, so that none is allowed unless
    /// the caller does.
    #[must_use]
    pub fn or_in(mut self, dtypes: &[DType]) -> Step {
        self.dtypes.extend(dtypes);
        self
    }
}

/// A conversion between two steps.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Conversion {
    /// What is there: `BHSD bf16`.
    pub from: String,
    /// What is wanted.
    pub to: String,
    /// The kernel whose adapter does it.
    pub by: String,
    /// What it costs, in points of score.
    pub cost: f64,
}

/// One kernel of a plan.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PlannedStep {
    /// The number of its first operation in the block.
    pub first: usize,
    /// The operations that it does, in order; several for a fused kernel.
    pub operations: Vec<String>,
    /// The kernel.
    pub kernel: String,
    /// In what it runs: layout and element type.
    pub takes: String,
    /// What it makes.
    pub makes: String,
    /// What is converted before it.
    pub conversion: Option<Conversion>,
    /// Its score by itself.
    pub score: f64,
    /// What that lacks to the best kernel of the step, less what fusion gains.
    pub cost: f64,
    /// Scratch memory in bytes.
    pub workspace_bytes: u64,
}

/// Kernels for a block, and what they cost together.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Choice {
    /// One entry a kernel, in order.
    pub steps: Vec<PlannedStep>,
    /// What is converted at the end.
    pub last: Option<Conversion>,
    /// The sum of all costs.
    pub total: f64,
}

/// Where the joint choice differs from the best kernel of a step by itself.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Difference {
    /// The number of the operation in the block.
    pub step: usize,
    /// The operation.
    pub operation: String,
    /// What would be chosen for it alone, and its score.
    pub alone: (String, f64),
    /// What does it in the block, and its score in the step that it belongs to.
    pub jointly: (String, f64),
    /// Why, in words.
    pub why: String,
}

/// The plan of a block.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BlockPlan {
    /// The cheapest choice.
    pub joint: Choice,
    /// What one gets by choosing step by step.
    pub greedy: Choice,
    /// Where they differ, and why.
    pub differences: Vec<Difference>,
}

impl BlockPlan {
    /// What choosing together saves, in points of score.
    pub fn saves(&self) -> f64 {
        self.greedy.total - self.joint.total
    }
}

impl Engine {
    /// Chooses kernels for a block of operations together. The error is that of the first operation that nothing can run.
    pub fn plan_block(&self, steps: &[Step]) -> Result<BlockPlan, Error> {
        let (world, mode) = self.world_of_thread();
        let block = graph::Block::of(&world, mode, steps, graph::Fusing::Described)?;
        Ok(explain::plan(&block))
    }
}
