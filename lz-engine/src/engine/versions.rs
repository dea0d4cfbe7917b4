//! Kernel versions side by side: registering them, dividing calls among them, and the verdict on a canary.
//!
//! Only calls of kernels that share their calls with other versions get here; they take the slow path.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use super::dispatch::RunOne;
use super::fallback::FailedRun;
use super::run_kernel::{Outcome, record, run_admitted};
use super::{Engine, Shared};
use crate::compiled::CompiledKernel;
use crate::rollout::{
    CanaryReport, CanaryStats, Comparable, CompareResults, ComparedRun, Comparer, Comparison, RunWith, Share,
    Verdict, VersionGroup,
};
use crate::selection::call::Call;
use crate::selection::filter;
use crate::selection::operation_table::OperationTable;
use crate::selection::snapshot::{Snapshot, SnapshotParts};
use lz_core::context::Context;
use lz_core::error::Error;
use lz_core::kernel::{KernelEntry, KernelError};
use lz_core::mode::Mode;
use lz_core::reason::{Reason, ReasonCode};
use lz_core::run::{Run, Scratch};

/// A call of a kernel that shares its calls with other versions.
pub(super) struct DividedCall<'a> {
    pub snapshot: &'a Snapshot,
    pub table: &'a OperationTable,
    pub context: &'a Context,
    pub mode: Mode,
    /// The selected kernel.
    pub stable: u32,
}

/// The version that a call was given to, and how it ended.
pub(super) struct DividedRun {
    /// The kernel's index in the registry.
    pub kernel: u32,
    pub failed: Option<FailedRun>,
}

impl Engine {
    /// Registers other versions of registered kernels under the ids `<id>@<version>`: all of them, or none if any is invalid.
    /// They run calls that settings, rules or locks give them (`rollout.shares`, `rollout.canaries`).
    pub fn register_versions(&self, entries: impl IntoIterator<Item = KernelEntry>) -> Result<(), Error> {
        self.shared.change(|parts| {
            let registry = Arc::new(parts.registry.with_versions(entries)?);
            let is_new = |version: &str| {
                parts.registry.kernel(version).is_none() && registry.kernel(version).is_some()
            };
            let rollouts = Arc::new(parts.rollouts.without(is_new));
            let solved =
                crate::selection::loaded_tables::LoadedTables::with_registry(&parts.solved, &registry);
            Ok(Some(SnapshotParts { registry, rollouts, solved, ..parts }))
        })?;
        self.shared.update_population();
        self.shared.load_persisted();
        Ok(())
    }

    /// The canaries: those of the settings, and versions with a verdict.
    pub fn canaries(&self) -> Vec<CanaryReport> {
        let snapshot = self.shared.published.load();
        let report = |version: &str| {
            let record = snapshot.rollouts.record(version)?;
            let (median_ns, stable_median_ns, problem) = record.stats.medians();
            let (state, why) = match &record.verdict {
                None => ("running", String::new()),
                Some((Verdict::Promoted, why)) => ("promoted", why.clone()),
                Some((Verdict::RolledBack, why)) => ("rolled_back", why.clone()),
            };
            Some(CanaryReport {
                kernel: version.to_owned(),
                percent: snapshot.rollouts.share(&snapshot.policy, version).percent,
                state,
                why,
                totals: record.stats.totals(),
                median_ns,
                stable_median_ns,
                problem,
            })
        };
        snapshot.rollouts.records().filter_map(|(version, _)| report(version)).collect()
    }

    /// Sets the code that compares the results of canaries that only the caller can read.
    pub fn set_result_comparison(&self, comparison: Option<Arc<dyn CompareResults>>) {
        let comparer = self.extension::<Comparer>();
        *comparer.0.lock() = comparison;
    }

    /// Routes all calls of a kernel to a version, whatever the settings say.
    pub fn promote_version(&self, version: &str) -> Result<(), Error> {
        self.decide_version(version, Verdict::Promoted)
    }

    /// Routes no more calls to a version, whatever the settings say.
    pub fn roll_back_version(&self, version: &str) -> Result<(), Error> {
        self.decide_version(version, Verdict::RolledBack)
    }

    fn decide_version(&self, version: &str, verdict: Verdict) -> Result<(), Error> {
        let registry = self.registry();
        let known = registry.kernels().filter(|entry| entry.version_of.is_some());
        let known: Vec<&str> = known.map(|entry| entry.spec.id.as_str()).collect();
        if !known.contains(&version) {
            let near = lz_schema::diagnostics::nearest(version, known.iter().copied());
            let tail = near.map_or_else(String::new, |near| format!("; did you mean `{near}`?"));
            let message = format!("no version `{version}` is registered next to another one{tail}");
            let reasons = vec![Reason::new(ReasonCode::KernelUnknown).message(message.clone())];
            return Err(Error::Configuration { subject: version.to_owned(), message, reasons });
        }
        self.shared.conclude(version, verdict, "by a call");
        Ok(())
    }
}

impl Shared {
    /// Publishes the verdict on a version.
    fn conclude(&self, version: &str, verdict: Verdict, why: &str) {
        match verdict {
            Verdict::Promoted => {
                tracing::info!(target: "lz::health", kernel = version, why, "kernel version promoted: it gets all calls")
            }
            Verdict::RolledBack => {
                tracing::warn!(target: "lz::health", kernel = version, why, "kernel version rolled back: it gets no calls")
            }
        }
        // `change` returns no error.
        self.change(|parts| {
            let rollouts = Arc::new(parts.rollouts.with_verdict(version, verdict, why));
            Ok(Some(SnapshotParts { rollouts, ..parts }))
        })
        .ok();
    }

    /// Runs both versions; code of the caller compares their results. The caller gets the results of the stable version, which
    /// runs last.
    fn compared_by_caller(
        &self,
        version: &VersionCall<'_>,
        stable: &VersionCall<'_>,
        scratch: &mut Scratch,
        run_one: &mut RunOne<'_>,
    ) -> (Comparison, Option<FailedRun>) {
        let comparer = self.extensions.get::<Comparer>();
        let comparer = comparer.0.lock().clone();
        let operation = version.call.table.info;
        let keep =
            |one: &VersionCall<'_>| comparer.as_ref()?.keeping_results(operation, &one.with.kernel.entry);
        let (Some(comparer), Some(found), Some(expected)) = (&comparer, keep(version), keep(stable)) else {
            return alone(version, scratch, run_one);
        };
        let start = Instant::now();
        let failure = version.run_entry(&found.entry, scratch, run_one);
        let version_time = start.elapsed();
        let start = Instant::now();
        let outcome = stable.run_entry(&expected.entry, scratch, run_one);
        let is_compared = failure.is_none() && outcome.is_none();
        let comparison = Comparison {
            is_compared,
            version_time: failure.is_none().then_some(version_time),
            stable_time: outcome.is_none().then(|| start.elapsed()),
            version_error: failure.map(|error| *error),
            difference: is_compared.then(|| comparer.difference(operation, &found, &expected)).flatten(),
        };
        (comparison, outcome.map(|error| stable.failed_run(error)))
    }

    /// Runs a call whose kernel shares its calls with other versions; `None` if it does not.
    pub(super) fn run_divided(
        &self,
        call: &DividedCall<'_>,
        scratch: &mut Scratch,
        run_one: &mut RunOne<'_>,
    ) -> Option<DividedRun> {
        let group = call.table.version_group(call.stable)?;
        let stable = call.of(group.stable)?;
        let drawn = group.draw().and_then(|share| Some((share, call.of(share.position)?)));
        let Some((share, version)) = drawn else {
            return group.has_canary().then(|| call.run_stable(group, &stable, scratch, run_one));
        };
        let metrics = &call.snapshot.observation.telemetry.metrics;
        let kernel = call.table.candidates.get(usize::from(share.position))?.kernel;
        let Some(stats) = &share.canary else {
            let outcome = version.run(scratch, run_one);
            return Some(DividedRun { kernel, failed: outcome.map(|error| version.failed_run(error)) });
        };
        let kernels = [&*version.with.kernel, &*stable.with.kernel];
        let (comparison, failed) = match Comparable::of(call.table.info, kernels) {
            Comparable::Native => compared(&version, &stable, stats, run_one),
            Comparable::ByCaller => self.compared_by_caller(&version, &stable, scratch, run_one),
            Comparable::Not => alone(&version, scratch, run_one),
        };
        metrics.canary_called(&version.with.kernel.spec().id, outcome_of(&comparison));
        stats.add(&comparison);
        if let Some((verdict, why)) = stats.verdict(&call.snapshot.policy.canary) {
            self.conclude(&version.with.kernel.spec().id, verdict, &why);
        }
        Some(DividedRun { kernel, failed })
    }
}

/// A kernel that can run a call, with the call as the filter sees it.
struct VersionCall<'a> {
    call: Call<'a>,
    with: RunWith,
}

impl VersionCall<'_> {
    fn run(&self, scratch: &mut Scratch, run_one: &mut RunOne<'_>) -> Outcome {
        let RunWith { kernel, workspace, transforms } = &self.with;
        run_admitted(&self.call, kernel, *workspace, *transforms, scratch, run_one)
    }

    /// Runs another form of the kernel.
    fn run_entry(&self, entry: &KernelEntry, scratch: &mut Scratch, run_one: &mut RunOne<'_>) -> Outcome {
        self.run(scratch, &mut |_, run| run_one(entry, run))
    }

    fn failed_run(&self, error: Box<KernelError>) -> FailedRun {
        FailedRun::recorded(Some(Arc::clone(&self.with.kernel)), error)
    }
}

impl<'a> DividedCall<'a> {
    /// The candidate at a position, if it can run the call.
    fn of(&self, position: u16) -> Option<VersionCall<'a>> {
        let candidate = self.table.candidates.get(usize::from(position))?;
        let registry = &self.snapshot.registry;
        let kernel: Arc<CompiledKernel> = registry.shared(candidate.kernel)?;
        let mut call = Call::new(self.snapshot, self.table, self.context, self.mode);
        call.version = Some(position);
        let mut reasons: Vec<Reason> = Vec::new();
        filter::examine(&call, position, &mut reasons);
        let transforms = filter::transforms(&call, &kernel.facts, || Some(&*kernel));
        let with = RunWith {
            workspace: filter::workspace(&kernel, &call.values).unwrap_or(0),
            transforms,
            kernel: registry.shared(registry.adapted(candidate.kernel, transforms))?,
        };
        reasons.is_empty().then_some(VersionCall { call, with })
    }

    /// Runs the stable version; its latency counts for the canaries.
    fn run_stable(
        &self,
        group: &VersionGroup,
        stable: &VersionCall<'_>,
        scratch: &mut Scratch,
        run_one: &mut RunOne<'_>,
    ) -> DividedRun {
        let start = Instant::now();
        let outcome = stable.run(scratch, run_one);
        let time = start.elapsed();
        if outcome.is_none() {
            let canaries = group.shares.iter().filter_map(|share: &Share| share.canary.as_ref());
            canaries.for_each(|stats| stats.add_stable(time));
        }
        DividedRun { kernel: self.stable, failed: outcome.map(|error| stable.failed_run(error)) }
    }
}

/// Runs both versions. The caller gets the results of the stable one.
fn compared(
    version: &VersionCall<'_>,
    stable: &VersionCall<'_>,
    stats: &CanaryStats,
    run_one: &mut RunOne<'_>,
) -> (Comparison, Option<FailedRun>) {
    let is_version_first = stats.totals().calls.is_multiple_of(2);
    let both = ComparedRun::new(version.with.clone(), stable.with.clone(), is_version_first);
    let entry = both.entry();
    let mut scratch = Scratch::default();
    let mut run = Run::new(&mut scratch, stable.with.workspace);
    let panicked = || KernelError::failed(format!("{} panicked", entry.spec.id));
    let outcome = catch_unwind(AssertUnwindSafe(|| run_one(&entry, &mut run)));
    let outcome = outcome.unwrap_or_else(|_| Err(panicked()));
    let comparison = both.outcome();
    if let Some(error) = &comparison.version_error {
        record(&version.call, &version.with.kernel, error);
    }
    let failed = outcome.err().map(|error| {
        record(&stable.call, &stable.with.kernel, &error);
        stable.failed_run(Box::new(error))
    });
    (comparison, failed)
}

/// Runs the canary without a comparison. A failure falls back to the stable version.
fn alone(
    version: &VersionCall<'_>,
    scratch: &mut Scratch,
    run_one: &mut RunOne<'_>,
) -> (Comparison, Option<FailedRun>) {
    let start = Instant::now();
    let outcome = version.run(scratch, run_one);
    let comparison = Comparison {
        version_time: outcome.is_none().then(|| start.elapsed()),
        version_error: outcome.as_deref().cloned(),
        ..Comparison::default()
    };
    (comparison, outcome.map(|error| version.failed_run(error)))
}

/// The outcome of a call of a canary, as a metric label.
fn outcome_of(comparison: &Comparison) -> &'static str {
    match comparison {
        Comparison { version_error: Some(_), .. } => "failed",
        Comparison { difference: Some(_), .. } => "mismatched",
        Comparison { is_compared: true, .. } => "matched",
        _ => "not_compared",
    }
}
