//! Records the decisions of a run in a file for review and comparison (`layerzero.lock`).
//!
//! While an engine records, each new decision is recorded; cache hits cost nothing. Records do not depend on the order of calls: a decision
//! is identified by its cell and by the conditions of its kernel that vary within the cell.

mod adopt;
mod describe;
mod digest;

use std::collections::BTreeMap;
use std::path::Path;

use crate::engine::{DecisionObserver, Engine};
use crate::selection::call::Call;
use crate::selection::decide;
use crate::selection::snapshot::Snapshot;
use crate::selection::{filter, thread_scope};
use crate::table::{LockedDecision, Lockfile, LockfileError, Mismatch, capabilities_hash};
use lz_core::context::Context;
use lz_core::error::Error;
use lz_core::fork::Mutex;
use lz_core::mode::Mode;
use lz_core::operation::OperationInfo;
use lz_core::reason::{Reason, ReasonCode};
use lz_files as files;

pub use adopt::AdoptableDecision;

/// Maximum number of recorded decisions.
const MAX_RECORDED: usize = 100_000;

/// The recorded decisions.
#[derive(Debug, Default)]
struct DecisionLog {
    recorded: Mutex<BTreeMap<(String, String), RecordedDecision>>,
}

/// A decision and a call that it was made for.
#[derive(Debug, Clone)]
struct RecordedDecision {
    decision: LockedDecision,
    /// Its cell as a policy condition.
    condition: String,
    operation: &'static OperationInfo,
    context: Context,
    mode: Mode,
}

impl DecisionLog {}

impl DecisionObserver for DecisionLog {
    /// Records a decision, replacing an earlier one for the same cell.
    fn decided(&self, call: &Call<'_>, position: u16) {
        let Some(recorded) = recorded(call, position) else { return };
        let mut all = self.recorded.lock();
        let key = (recorded.decision.operation.clone(), recorded.decision.context.clone());
        if all.len() < MAX_RECORDED || all.contains_key(&key) {
            all.insert(key, recorded);
        }
    }
}

/// A decision as stored in the lockfile.
fn recorded(call: &Call<'_>, position: u16) -> Option<RecordedDecision> {
    let info = call.table.info;
    let candidate = call.table.candidates.get(usize::from(position))?;
    let kernel = call.snapshot.registry.compiled(candidate.kernel)?;
    let decision = LockedDecision {
        operation: info.name.to_string(),
        context: describe::cell(call, kernel),
        schema: info.digest.to_string(),
        kernel: kernel.spec().id.clone(),
        kernel_version: kernel.spec().version.clone(),
        fallbacks: describe::fallbacks(call, position),
    };
    let condition = describe::condition(call);
    Some(RecordedDecision { decision, condition, operation: info, context: *call.context, mode: call.mode })
}

/// A decision that differs, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct Divergence {
    /// What differs.
    pub mismatch: Mismatch,
    /// Why the expected kernel is not selected; empty if no kernel is the cause.
    pub why: Vec<Reason>,
}

impl std::fmt::Display for Divergence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.mismatch)?;
        self.why.iter().try_for_each(|reason| write!(f, "\n  {reason}"))
    }
}

/// The comparison of a run with a lockfile.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Verification {
    /// Decisions that differ. Decisions that only one side has are not included.
    pub differing: Vec<Divergence>,
    /// Decisions of the lockfile that did not occur in this run.
    pub unmet: Vec<String>,
    /// Decisions of this run that are not in the lockfile.
    pub unlocked: Vec<String>,
}

impl Verification {
    /// Whether all common decisions agree.
    pub fn agrees(&self) -> bool {
        self.differing.is_empty()
    }
}

impl Engine {
    /// Starts or stops the recording of decisions for [`Engine::freeze`]. Starting clears earlier records and the cache, so that every call
    /// from now on is recorded.
    pub fn record_decisions(&self, on: bool) {
        let journal = self.extension::<DecisionLog>();
        if on {
            journal.recorded.lock().clear();
        }
        self.observe_decisions(if on { Some(journal) } else { None });
        // Only publishes a new generation, which cannot fail.
        self.change(|parts| Ok(Some(parts))).ok();
    }

    /// The recorded decisions.
    pub fn freeze(&self) -> Lockfile {
        let recorded: Vec<RecordedDecision> =
            self.extension::<DecisionLog>().recorded.lock().values().cloned().collect();
        self.lockfile(&self.snapshot(), recorded.iter())
    }

    /// The decisions for these calls, in the mode of this thread.
    pub fn freeze_calls(&self, calls: &[(&'static OperationInfo, Context)]) -> Result<Lockfile, Error> {
        let snapshot = self.snapshot();
        let decided = self.decided(&snapshot, calls)?;
        Ok(self.lockfile(&snapshot, decided.iter()))
    }

    /// Compares the recorded decisions with a lockfile.
    pub fn verify_lockfile(&self, expected: &Lockfile) -> Verification {
        let recorded: Vec<RecordedDecision> =
            self.extension::<DecisionLog>().recorded.lock().values().cloned().collect();
        self.compare(expected, &recorded)
    }

    /// Compares the decisions for these calls with a lockfile.
    pub fn verify_calls(
        &self,
        expected: &Lockfile,
        calls: &[(&'static OperationInfo, Context)],
    ) -> Result<Verification, Error> {
        let decided = self.decided(&self.snapshot(), calls)?;
        Ok(self.compare(expected, &decided))
    }

    /// Reads a lockfile and compares the recorded decisions with it.
    pub fn verify_lockfile_at(&self, path: &Path) -> Result<Verification, Error> {
        let name = path.display().to_string();
        let text = files::read_text(path, files::MAX_TABLE_BYTES).map_err(|error| Error::Configuration {
            subject: name.clone(),
            message: error.to_string(),
            reasons: vec![Reason::new(ReasonCode::LockfileInvalid).message(error.to_string())],
        })?;
        let expected = Lockfile::read(&name, &text).map_err(|error: LockfileError| Error::from(error))?;
        Ok(self.verify_lockfile(&expected))
    }

    /// The digest of the recorded decisions: engines with the same digest, on different machines or ranks, decided alike.
    pub fn decision_digest(&self) -> String {
        self.freeze().digest()
    }

    fn decided(
        &self,
        snapshot: &Snapshot,
        calls: &[(&'static OperationInfo, Context)],
    ) -> Result<Vec<RecordedDecision>, Error> {
        let mode = thread_scope::of_thread().apply(snapshot.mode);
        let mut all = Vec::with_capacity(calls.len());
        for (operation, context) in calls {
            let Some(table) = snapshot.table(operation) else {
                let operation = operation.name.to_string();
                return Err(Error::NoKernel { operation, candidates: Vec::new() });
            };
            let mut call = Call::new(snapshot, table, context, mode);
            call.settles_judgments = true;
            let Some(decision) = decide::decide(&call) else { return Err(decide::refusal(&call)) };
            all.extend(recorded(&call, decision.position));
        }
        Ok(all)
    }

    fn lockfile<'a>(
        &self,
        snapshot: &Snapshot,
        recorded: impl Iterator<Item = &'a RecordedDecision>,
    ) -> Lockfile {
        let recorded: Vec<&RecordedDecision> = recorded.collect();
        let operations = recorded.iter().map(|one| one.decision.operation.as_str());
        let capabilities = capabilities_hash(&snapshot.registry, operations);
        let mut hardware: Vec<String> = Vec::new();
        for one in &recorded {
            let device_field = crate::selection::devices::device_store(one.operation);
            let device = snapshot.devices.of_call(device_field, &one.context);
            hardware.extend(device.map(lz_core::device::DeviceSpec::hardware_signature));
        }
        hardware.sort_unstable();
        hardware.dedup();
        let policy = digest::policy(&snapshot.policy);
        let mut lockfile = Lockfile::new(&hardware.join(" "), &policy, &capabilities);
        recorded.into_iter().for_each(|one| lockfile.add(one.decision.clone()));
        lockfile
    }

    fn compare(&self, expected: &Lockfile, recorded: &[RecordedDecision]) -> Verification {
        let snapshot = self.snapshot();
        let found = self.lockfile(&snapshot, recorded.iter());
        let mut verification = Verification::default();
        for mismatch in expected.compare(&found) {
            match (&mismatch.expected, &mismatch.found) {
                (Some(kernel), None) => match missing(&snapshot, expected, &mismatch, kernel) {
                    // A kernel that is not registered can never be selected.
                    Some(reason) => verification.differing.push(Divergence { mismatch, why: vec![reason] }),
                    None => verification.unmet.push(mismatch.what),
                },
                (None, _) => verification.unlocked.push(mismatch.what),
                (Some(kernel), Some(_)) => {
                    let about = |one: &&RecordedDecision| {
                        let LockedDecision { operation, context, .. } = &one.decision;
                        mismatch.what == format!("{operation} [{context}]: kernel")
                    };
                    let why =
                        recorded.iter().find(about).map(|one| rejection_reasons(&snapshot, one, kernel));
                    verification.differing.push(Divergence { why: why.unwrap_or_default(), mismatch });
                }
            }
        }
        verification
    }
}

/// The reason if the kernel of a decision that did not occur is not registered.
fn missing(snapshot: &Snapshot, expected: &Lockfile, mismatch: &Mismatch, kernel: &str) -> Option<Reason> {
    let about = |one: &&LockedDecision| mismatch.what == format!("{} [{}]", one.operation, one.context);
    let locked = expected.decisions().find(about)?;
    let operation = snapshot.registry.operation(&locked.operation);
    let is_registered =
        operation.is_some_and(|operation| snapshot.registry.index_of(operation, kernel).is_some());
    let message = || format!("{} has no kernel {kernel} here", locked.operation);
    (!is_registered).then(|| Reason::new(ReasonCode::KernelUnknown).message(message()))
}

/// Why a kernel that a lockfile expects is not selected for a call.
fn rejection_reasons(snapshot: &Snapshot, recorded: &RecordedDecision, expected: &str) -> Vec<Reason> {
    let Some(table) = snapshot.table(recorded.operation) else { return Vec::new() };
    let Some(position) = table.position_of(&snapshot.registry, expected) else {
        let message = format!("{} has no kernel {expected} here", recorded.operation.name);
        return vec![Reason::new(ReasonCode::KernelUnknown).message(message)];
    };
    let mut call = Call::new(snapshot, table, &recorded.context, recorded.mode);
    call.settles_judgments = true;
    let mut reasons: Vec<Reason> = Vec::new();
    filter::examine(&call, position, &mut reasons);
    if reasons.is_empty() {
        let ranked = decide::rank(&call, &crate::selection::score::PerfTerms::of(&call));
        let total =
            |who: Option<u16>| ranked.iter().find(|one| Some(one.position) == who).map(|one| one.total);
        let chosen = table.position_of(&snapshot.registry, &recorded.decision.kernel);
        if let (Some(expected_score), Some(chosen)) = (total(Some(position)), total(chosen)) {
            let message = format!(
                "{expected} can run it, but scores {expected_score:.1} while {} scores {chosen:.1}",
                recorded.decision.kernel
            );
            reasons.push(Reason::new(ReasonCode::LockfileMismatch).message(message));
        }
    }
    reasons
}
