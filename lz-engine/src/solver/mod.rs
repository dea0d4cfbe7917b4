//! Precomputes decisions: makes the decision for every cell of a grid and writes them as a dispatch table.
//!
//! The decisions are the engine's own, without other dispatch tables. Cells are divided at every limit, rule and bucket that selection uses,
//! so that one answer holds for a whole cell; conditions that cannot be divided are checked again when the table is used.

mod grid;
pub(crate) mod workload;

use std::collections::{BTreeMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;

pub use grid::Work;

use crate::engine::Engine;
use crate::selection::call::Call;
use crate::selection::decide;
use crate::selection::snapshot::{Snapshot, SnapshotParts};
use crate::selection::thread_scope;
use crate::table::{Leaf, TableWriter, capabilities_hash, grow, under};
use grid::Grid;
use lz_core::context::Context;
use lz_core::error::Error;
use lz_core::operation::OperationInfo;
use lz_core::reason::{Reason, ReasonCode};

/// Keys of compiled artifacts, by kernel, operation and bucket.
type Artifacts = BTreeMap<(String, String, Vec<u64>), Vec<String>>;

/// Maximum number of cells of a table.
const MAX_CELLS: u64 = 1 << 20;

/// What to precompute.
#[derive(Debug, Clone, Default)]
pub struct Problem {
    /// The name of the model.
    pub model_id: String,
    /// Calls and the ranges of sizes around them.
    pub works: Vec<Work>,
    /// Whether a call outside the buckets is an error instead of being selected at run time.
    pub outside_is_error: bool,
    /// Whether JIT kernels are compiled for every cell, so that they can be selected.
    pub compile: bool,
}

/// Progress of solving.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SolveProgress<'a> {
    /// Number of decided cells.
    pub done: u64,
    /// Number of all cells.
    pub total: u64,
    /// The current operation.
    pub operation: &'a str,
}

/// A cell without a decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UndecidedCell {
    /// The operation.
    pub operation: String,
    /// The sizes, by axis.
    pub at: Vec<(String, i64)>,
    /// Why.
    pub why: String,
}

/// A table and its statistics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Solution {
    /// The table, as the text of its file.
    pub text: String,
    /// Number of decided cells.
    pub decided: u64,
    /// Cells without an eligible kernel.
    pub holes: Vec<UndecidedCell>,
    /// Whether it was cancelled; the table contains the decisions so far.
    pub cancelled: bool,
}

const CANCELLED: &str = "not solved: cancelled";

impl Engine {
    /// Precomputes decisions. `progress` is called before each cell and may cancel the rest: earlier decisions are kept.
    pub fn solve(
        &self,
        problem: &Problem,
        progress: &mut dyn FnMut(&SolveProgress<'_>) -> ControlFlow<()>,
    ) -> Result<Solution, Error> {
        let grids = self.grids(problem)?;
        let artifacts = if problem.compile { self.compile_all(&grids) } else { BTreeMap::new() };
        let snapshot = self.snapshot_without_tables();
        let mut solver = Solver {
            snapshot: &snapshot,
            artifacts: &artifacts,
            progress,
            done: 0,
            total: grids.iter().map(Grid::cells).sum(),
            solution: Solution { text: String::new(), decided: 0, holes: Vec::new(), cancelled: false },
        };
        let operations = grids.iter().map(|grid| grid.operation.name.as_ref());
        let hash = capabilities_hash(&snapshot.registry, operations);
        let signature = signature(&snapshot, &grids)?;
        let mut writer = TableWriter::new(&problem.model_id, &signature, &hash);
        if problem.outside_is_error {
            writer = writer.outside_is_error();
        }
        for grid in &grids {
            let tree = grow(&grid.sizes, &mut |at| solver.cell(grid, at));
            writer.operation(&grid.operation.name, &grid.sizes, under(&grid.words, tree));
        }
        let mut solution = solver.solution;
        solution.text = writer.text();
        Ok(solution)
    }

    fn snapshot_without_tables(&self) -> Snapshot {
        let parts = SnapshotParts { solved: Arc::default(), ..self.snapshot().parts() };
        Snapshot::new(parts, 0, None, 0)
    }

    /// The grids of all works, without duplicates.
    fn grids(&self, problem: &Problem) -> Result<Vec<Grid>, Error> {
        let reject = |message: String| Error::Configuration {
            subject: problem.model_id.clone(),
            reasons: vec![Reason::new(ReasonCode::TableInvalid).message(message.clone())],
            message,
        };
        let snapshot = self.snapshot_without_tables();
        let mut grids: Vec<Grid> = Vec::new();
        let mut seen = HashSet::new();
        for work in &problem.works {
            let Some(table) = snapshot.table(work.operation) else {
                let message = format!("{} has no kernels to decide between", work.operation.name);
                return Err(reject(message));
            };
            for grid in grid::of(work, table, &snapshot.registry).map_err(reject)? {
                if seen.insert(grid.key()) {
                    grids.push(grid);
                }
            }
        }
        let cells = grids.iter().fold(0u64, |sum, grid| sum.saturating_add(grid.cells()));
        if cells > MAX_CELLS {
            let message = format!("{cells} cells exceed the maximum of {MAX_CELLS}: narrow the ranges");
            return Err(reject(message));
        }
        Ok(grids)
    }

    /// Compiles every cold kernel that could be selected in some cell, and returns the artifacts.
    fn compile_all(&self, grids: &[Grid]) -> Artifacts {
        let mut calls: Vec<(&'static OperationInfo, Context)> = Vec::new();
        for grid in grids {
            calls.extend(grid.contexts().into_iter().map(|context| (grid.operation, context)));
        }
        let items = self.cold_kernels(&calls);
        let report = self.warmup(&items, &mut |_| ControlFlow::Continue(()));
        let key = |item: &crate::jit::WarmupItem| {
            let bucket = crate::bucket::Bucket::of(item.operation, &item.context);
            (item.kernel.clone(), item.operation.name.to_string(), bucket.words().to_vec())
        };
        report.compiled.iter().map(|(item, artifacts)| (key(item), artifacts.clone())).collect()
    }
}

/// The hardware signature common to all works.
fn signature(snapshot: &Snapshot, grids: &[Grid]) -> Result<String, Error> {
    let mut found: Option<String> = None;
    for grid in grids {
        let device_field = crate::selection::devices::device_store(grid.operation);
        let device = snapshot.devices.of_call(device_field, &grid.context);
        let own = device.map(lz_core::device::DeviceSpec::hardware_signature).unwrap_or_default();
        match &found {
            _ if own.is_empty() => return Err(device_absent(grid.operation)),
            Some(other) if *other != own => {
                let reason = Reason::new(ReasonCode::TableHardwareMismatch).required(other).found(own);
                let operation = grid.operation.name.to_string();
                return Err(Error::Validation { operation, reasons: vec![reason] });
            }
            _ => found = Some(own),
        }
    }
    found.ok_or_else(|| Error::Configuration {
        subject: "a dispatch table".to_owned(),
        message: "there are no calls to decide".to_owned(),
        reasons: vec![Reason::new(ReasonCode::TableInvalid)],
    })
}

fn device_absent(operation: &OperationInfo) -> Error {
    let reasons = vec![Reason::new(ReasonCode::DeviceAbsent)];
    Error::Validation { operation: operation.name.to_string(), reasons }
}

struct Solver<'a> {
    snapshot: &'a Snapshot,
    artifacts: &'a Artifacts,
    progress: &'a mut dyn FnMut(&SolveProgress<'_>) -> ControlFlow<()>,
    done: u64,
    total: u64,
    solution: Solution,
}

impl Solver<'_> {
    /// The decision of one cell, or why there is none.
    fn cell(&mut self, grid: &Grid, at: &[i64]) -> Result<Leaf, String> {
        let about = SolveProgress { done: self.done, total: self.total, operation: &grid.operation.name };
        if self.solution.cancelled || (self.progress)(&about).is_break() {
            self.solution.cancelled = true;
            return Err(CANCELLED.to_owned());
        }
        self.done += 1;
        let context = grid.context_at(at);
        let Some(table) = self.snapshot.table(grid.operation) else { return Err(CANCELLED.to_owned()) };
        let call =
            Call::new(self.snapshot, table, &context, thread_scope::of_thread().apply(self.snapshot.mode));
        let mut ids = decide::eligible(&call).into_iter().filter_map(|ranked| {
            let candidate = table.candidates.get(usize::from(ranked.position))?;
            Some(self.snapshot.registry.compiled(candidate.kernel)?.spec().id.clone())
        });
        let Some(kernel) = ids.next() else {
            let why = "no kernel can run it".to_owned();
            let axes = grid.sizes.iter().map(|sizes| sizes.axis.clone());
            let at = axes.zip(at.iter().copied()).collect();
            let operation = grid.operation.name.to_string();
            self.solution.holes.push(UndecidedCell { operation, at, why: why.clone() });
            return Err(why);
        };
        self.solution.decided += 1;
        let key = (kernel.clone(), grid.operation.name.to_string(), call.bucket.words().to_vec());
        let jit_artifacts = self.artifacts.get(&key);
        let jit_artifacts = jit_artifacts.cloned().unwrap_or_default();
        Ok(Leaf { kernel, fallbacks: ids.collect(), jit_artifacts })
    }
}
