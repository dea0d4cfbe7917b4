//! Warm-up: compiles before the first request; blocking, with progress and cancellation.

use std::ops::ControlFlow;

use super::compile_one::{self, Outcome};
use crate::bucket::Bucket;
use crate::engine::Engine;
use crate::selection::call::Call;
use crate::selection::decide;
use crate::selection::filter;
use crate::selection::thread_scope;
use lz_core::context::Context;
use lz_core::operation::OperationInfo;
use lz_core::reason::{Reason, ReasonCode};

/// One kernel for one shape.
#[derive(Debug, Clone)]
pub struct WarmupItem {
    /// The kernel's id.
    pub kernel: String,
    /// Its operation.
    pub operation: &'static OperationInfo,
    /// A call that it is compiled for.
    pub context: Context,
}

/// Progress of a warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WarmupProgress<'a> {
    /// Number of finished items.
    pub done: usize,
    /// Number of all items.
    pub total: usize,
    /// The next kernel.
    pub next: &'a str,
}

/// The result of a warm-up.
#[derive(Debug, Clone, Default)]
pub struct WarmupReport {
    /// Compiled kernels, with the keys of their artifacts.
    pub compiled: Vec<(WarmupItem, Vec<String>)>,
    /// Number of items that were warm already.
    pub already_warm: usize,
    /// Kernels that failed or could not be compiled, and why.
    pub failed: Vec<(String, Reason)>,
    /// Whether it was cancelled; kernels compiled so far stay warm.
    pub cancelled: bool,
}

impl Engine {
    /// Compiles these kernels now, one after the other. `progress` is called before each and may cancel the rest.
    pub fn warmup(
        &self,
        items: &[WarmupItem],
        progress: &mut dyn FnMut(&WarmupProgress<'_>) -> ControlFlow<()>,
    ) -> WarmupReport {
        let mut report = WarmupReport::default();
        for (done, item) in items.iter().enumerate() {
            let about = WarmupProgress { done, total: items.len(), next: &item.kernel };
            if progress(&about).is_break() {
                report.cancelled = true;
                break;
            }
            match compile_one::compile(self, &item.kernel, item.operation, &item.context) {
                Outcome::Done(compiled) => report.compiled.push((item.clone(), compiled.artifacts)),
                Outcome::Warm => report.already_warm += 1,
                Outcome::Failed(reason) | Outcome::Resting(reason) | Outcome::Impossible(reason) => {
                    report.failed.push((item.kernel.clone(), reason));
                }
            }
        }
        report
    }

    /// Kernels that are excluded from these calls only because they are cold, once per bucket.
    pub fn cold_kernels(&self, calls: &[(&'static OperationInfo, Context)]) -> Vec<WarmupItem> {
        let snapshot = self.snapshot();
        let mut seen: Vec<(&str, u32, Bucket)> = Vec::new();
        let mut items = Vec::new();
        for (operation, context) in calls {
            let Some(table) = snapshot.table(operation) else { continue };
            let mode = thread_scope::of_thread().apply(snapshot.mode);
            let mut call = Call::new(&snapshot, table, context, mode);
            // The first call after the warmup selects the same kernel as later ones.
            call.settles_judgments = true;
            decide::decide(&call);
            call.settles_judgments = snapshot.policy.verify_before_first_call.value;
            for (position, candidate) in table.candidates.iter().enumerate() {
                let Some(kernel) = snapshot.registry.compiled(candidate.kernel) else { continue };
                let mut reasons: Vec<Reason> = Vec::new();
                filter::examine(&call, position as u16, &mut reasons);
                let only_cold = matches!(reasons.as_slice(), [one] if one.code == ReasonCode::JitCold);
                let key = (kernel.spec().id.as_str(), operation.slot(), call.bucket);
                if only_cold && !seen.contains(&key) {
                    seen.push(key);
                    let kernel = kernel.spec().id.clone();
                    items.push(WarmupItem { kernel, operation, context: *context });
                }
            }
        }
        items
    }
}
