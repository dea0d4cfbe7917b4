//! The decisions of a run as a file that people review and machines compare (`layerzero.lock`).
//!
//! While an engine records, each decision is noted when it is made; hits cost nothing. What is noted does not depend on the
//! order of calls: a decision is named by its cell and by the conditions of its kernel that a cell does not settle.

mod describe;
mod digest;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::engine::{DecisionObserver, Engine};
use crate::selection::call::Call;
use crate::selection::decide;
use crate::selection::snapshot::World;
use crate::selection::{filter, thread_scope};
use crate::table::{LockedDecision, Lockfile, LockfileError, Mismatch, capabilities_hash};
use lz_core::context::Context;
use lz_core::error::Error;
use lz_core::mode::Mode;
use lz_core::operation::OperationInfo;
use lz_core::reason::{Reason, ReasonCode};
use lz_files as files;

/// The most decisions that are noted.
const MOST: usize = 100_000;

/// Decisions that were made while the engine recorded.
#[derive(Debug, Default)]
struct Journal {
    noted: Mutex<BTreeMap<(String, String), Noted>>,
}

/// One decision and a call that it was made for.
#[derive(Debug, Clone)]
struct Noted {
    decision: LockedDecision,
    operation: &'static OperationInfo,
    context: Context,
    mode: Mode,
}

impl Journal {
    fn noted(&self) -> MutexGuard<'_, BTreeMap<(String, String), Noted>> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DecisionObserver for Journal {
    /// Notes a decision; a later one for the same cell takes the place of an earlier one.
    fn decided(&self, call: &Call<'_>, position: u16) {
        let Some(noted) = noted(call, position) else { return };
        let mut all = self.noted();
        let key = (noted.decision.operation.clone(), noted.decision.context.clone());
        if all.len() < MOST || all.contains_key(&key) {
            all.insert(key, noted);
        }
    }
}

/// A decision as the lockfile has it.
fn noted(call: &Call<'_>, position: u16) -> Option<Noted> {
    let info = call.table.info;
    let candidate = call.table.candidates.get(usize::from(position))?;
    let kernel = call.world.registry.compiled(candidate.kernel)?;
    let decision = LockedDecision {
        operation: info.name.to_string(),
        context: describe::cell(call, kernel),
        schema: info.digest.to_string(),
        kernel: kernel.spec().id.clone(),
        kernel_version: kernel.spec().version.clone(),
        fallbacks: describe::fallbacks(call, position),
    };
    Some(Noted { decision, operation: info, context: *call.context, mode: call.mode })
}

/// One decision that differs, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct Divergence {
    /// What differs.
    pub mismatch: Mismatch,
    /// Why the expected kernel is not chosen here; empty where no kernel is to blame.
    pub why: Vec<Reason>,
}

impl std::fmt::Display for Divergence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.mismatch)?;
        self.why.iter().try_for_each(|reason| write!(f, "\n  {reason}"))
    }
}

/// How a run compares to a lockfile.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Verification {
    /// What differs. Decisions that only one side has are not here.
    pub differing: Vec<Divergence>,
    /// Decisions of the lockfile that this run has not met.
    pub unmet: Vec<String>,
    /// Decisions of this run that the lockfile does not have.
    pub unlocked: Vec<String>,
}

impl Verification {
    /// Whether whatever both have was decided alike.
    pub fn agrees(&self) -> bool {
        self.differing.is_empty()
    }
}

impl Engine {
    /// Begins or ends the recording of decisions for [`Engine::freeze`]. Beginning forgets what was recorded and cached before,
    /// so that whatever is called from now on is recorded.
    pub fn record_decisions(&self, on: bool) {
        let journal = self.extension::<Journal>();
        if on {
            journal.noted().clear();
        }
        self.observe_decisions(if on { Some(journal) } else { None });
        // Nothing changes but the generation, which cannot fail.
        self.change(|parts| Ok(Some(parts))).ok();
    }

    /// The decisions that were made while recording.
    pub fn freeze(&self) -> Lockfile {
        let noted: Vec<Noted> = self.extension::<Journal>().noted().values().cloned().collect();
        self.lockfile(&self.world(), noted.iter())
    }

    /// The decisions for these calls, made now, in the mode of this thread.
    pub fn freeze_calls(&self, calls: &[(&'static OperationInfo, Context)]) -> Result<Lockfile, Error> {
        let world = self.world();
        let decided = self.decided(&world, calls)?;
        Ok(self.lockfile(&world, decided.iter()))
    }

    /// Compares what was recorded to a lockfile.
    pub fn verify_lockfile(&self, expected: &Lockfile) -> Verification {
        let noted: Vec<Noted> = self.extension::<Journal>().noted().values().cloned().collect();
        self.compare(expected, &noted)
    }

    /// Compares the decisions for these calls, made now, to a lockfile.
    pub fn verify_calls(
        &self,
        expected: &Lockfile,
        calls: &[(&'static OperationInfo, Context)],
    ) -> Result<Verification, Error> {
        let decided = self.decided(&self.world(), calls)?;
        Ok(self.compare(expected, &decided))
    }

    /// Reads a lockfile and compares what was recorded to it.
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

    /// The digest of what was recorded: two engines with the same digest, on two machines or ranks, decided alike.
    pub fn decision_digest(&self) -> String {
        self.freeze().digest()
    }

    fn decided(
        &self,
        world: &World,
        calls: &[(&'static OperationInfo, Context)],
    ) -> Result<Vec<Noted>, Error> {
        let mode = thread_scope::of_thread().apply(world.mode);
        let mut all = Vec::with_capacity(calls.len());
        for (operation, context) in calls {
            let Some(table) = world.table(operation) else {
                let operation = operation.name.to_string();
                return Err(Error::NoKernel { operation, candidates: Vec::new() });
            };
            let call = Call::new(world, table, context, mode);
            let Some(decision) = decide::decide(&call) else { return Err(decide::refusal(&call)) };
            all.extend(noted(&call, decision.position));
        }
        Ok(all)
    }

    fn lockfile<'a>(&self, world: &World, noted: impl Iterator<Item = &'a Noted>) -> Lockfile {
        let noted: Vec<&Noted> = noted.collect();
        let operations = noted.iter().map(|one| one.decision.operation.as_str());
        let capabilities = capabilities_hash(&world.registry, operations);
        let mut hardware: Vec<String> = Vec::new();
        for one in &noted {
            let place = crate::selection::devices::place_of(one.operation);
            let device = world.devices.of_call(place, &one.context);
            hardware.extend(device.map(lz_core::device::DeviceSpec::hardware_signature));
        }
        hardware.sort_unstable();
        hardware.dedup();
        let policy = digest::policy(&world.policy);
        let mut lockfile = Lockfile::new(&hardware.join(" "), &policy, &capabilities);
        noted.into_iter().for_each(|one| lockfile.add(one.decision.clone()));
        lockfile
    }

    fn compare(&self, expected: &Lockfile, noted: &[Noted]) -> Verification {
        let world = self.world();
        let found = self.lockfile(&world, noted.iter());
        let mut verification = Verification::default();
        for mismatch in expected.compare(&found) {
            match (&mismatch.expected, &mismatch.found) {
                (Some(kernel), None) => match missing(&world, expected, &mismatch, kernel) {
                    // What is not here cannot be decided alike, whatever is called.
                    Some(reason) => verification.differing.push(Divergence { mismatch, why: vec![reason] }),
                    None => verification.unmet.push(mismatch.what),
                },
                (None, _) => verification.unlocked.push(mismatch.what),
                (Some(kernel), Some(_)) => {
                    let about = |one: &&Noted| {
                        let LockedDecision { operation, context, .. } = &one.decision;
                        mismatch.what == format!("{operation} [{context}]: kernel")
                    };
                    let why = noted.iter().find(about).map(|one| why_not(&world, one, kernel));
                    verification.differing.push(Divergence { why: why.unwrap_or_default(), mismatch });
                }
            }
        }
        verification
    }
}

/// That a kernel of a decision which this run has not met is not here at all.
fn missing(world: &World, expected: &Lockfile, mismatch: &Mismatch, kernel: &str) -> Option<Reason> {
    let about = |one: &&LockedDecision| mismatch.what == format!("{} [{}]", one.operation, one.context);
    let locked = expected.decisions().find(about)?;
    let operation = world.registry.operation(&locked.operation);
    let there = operation.is_some_and(|operation| world.registry.index_of(operation, kernel).is_some());
    let message = || format!("{} has no kernel {kernel} here", locked.operation);
    (!there).then(|| Reason::new(ReasonCode::KernelUnknown).message(message()))
}

/// Why a kernel that a lockfile expects is not what runs a call.
fn why_not(world: &World, noted: &Noted, expected: &str) -> Vec<Reason> {
    let Some(table) = world.table(noted.operation) else { return Vec::new() };
    let Some(position) = table.position_of(&world.registry, expected) else {
        let message = format!("{} has no kernel {expected} here", noted.operation.name);
        return vec![Reason::new(ReasonCode::KernelUnknown).message(message)];
    };
    let call = Call::new(world, table, &noted.context, noted.mode);
    let mut reasons: Vec<Reason> = Vec::new();
    filter::examine(&call, position, &mut reasons);
    if reasons.is_empty() {
        let ranked = decide::rank(&call, &crate::selection::score::Findings::of(&call));
        let total =
            |who: Option<u16>| ranked.iter().find(|one| Some(one.position) == who).map(|one| one.total);
        let chosen = table.position_of(&world.registry, &noted.decision.kernel);
        if let (Some(wanted), Some(chosen)) = (total(Some(position)), total(chosen)) {
            let message = format!(
                "{expected} could run it; it scores {wanted:.1} and {} scores {chosen:.1}",
                noted.decision.kernel
            );
            reasons.push(Reason::new(ReasonCode::LockfileMismatch).message(message));
        }
    }
    reasons
}
