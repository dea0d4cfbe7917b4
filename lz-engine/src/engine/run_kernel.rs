//! Runs one kernel: with a guard against panics, with the configured observation, and under a permit of its circuit breaker.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::decide;
use super::dispatch::RunOne;
use crate::compiled::CompiledKernel;
use crate::health::Failure;
use crate::selection::call::Call;
use crate::selection::score;
use crate::selection::snapshot::Snapshot;
use crate::selection::thread;
use crate::telemetry::{ObserveOptions, Recording, WatchedRun};
use lz_core::kernel::{KernelEntry, KernelError};
use lz_core::plan::Transforms;
use lz_core::reason::{Reason, ReasonCode};
use lz_core::run::{Run, Scratch};

/// The error of a kernel run; `None` on success. Boxed, because success is by far the common case.
pub(super) type Outcome = Option<Box<KernelError>>;

/// Runs a kernel; a panic inside it is returned as its error.
#[inline(always)]
pub(super) fn run_guarded<F>(
    kernel: &CompiledKernel,
    workspace: u64,
    transforms: Transforms,
    scratch: &mut Scratch,
    run_one: &mut F,
) -> Outcome
where
    F: FnMut(&KernelEntry, &mut Run<'_>) -> Result<(), KernelError> + ?Sized,
{
    let mut run = Run::new(scratch, workspace);
    run.transforms = transforms;
    let guarded = AssertUnwindSafe(|| match run_one(&kernel.entry, &mut run) {
        Ok(()) => None,
        Err(error) => failed(error),
    });
    match catch_unwind(guarded) {
        Ok(outcome) => outcome,
        Err(panic) => failed(panicked(kernel, panic.as_ref())),
    }
}

/// Like [`run_guarded`], with the observation (spans, logs, timing) that is configured.
pub(super) fn run_observed<'c>(
    snapshot: &Snapshot,
    call: impl Fn() -> Call<'c>,
    kernel: &CompiledKernel,
    workspace: u64,
    transforms: Transforms,
    scratch: &mut Scratch,
    run_one: &mut RunOne<'_>,
) -> Outcome {
    let observe = snapshot.observe;
    if observe == ObserveOptions::default() {
        return run_guarded(kernel, workspace, transforms, scratch, run_one);
    }
    let observation = &snapshot.observation;
    let weight = thread::with(|thread| thread.weight.replace(1));
    let recording = Recording::sample(observation, observe.verify_every, weight, kernel.info, &kernel.entry);
    let run = || match &recording {
        None => run_guarded(kernel, workspace, transforms, scratch, run_one),
        Some(recording) => run_guarded(kernel, workspace, transforms, scratch, &mut |entry, run| {
            run_one(&recording.entry(entry), run)
        }),
    };
    let identify = |call: &Call<'_>| {
        let subject = call.subject(kernel);
        (subject.bucket.to_vec(), subject.device.to_owned())
    };
    let watched = observe.watch.filter(|_| kernel.spec().runs_in.is_none()).map(|budget| {
        let call = call();
        let (health, telemetry) = (Arc::clone(&snapshot.health), Arc::clone(&observation.telemetry));
        let (spec, identity) = (Arc::clone(&kernel.entry.spec), identify(&call));
        let run = WatchedRun::new(kernel.info, spec, *call.context, identity, health, telemetry, budget);
        observation.watchdog.watch(run)
    });
    let outcome = run_timed(snapshot, &call, kernel, run);
    drop(watched);
    if let (None, Some(recording)) = (&outcome, recording) {
        recording.finish(&observation.telemetry, kernel.info, &kernel.entry, || identify(&call()));
    }
    outcome
}

/// Runs a kernel with spans, logs and timing.
fn run_timed<'c>(
    snapshot: &Snapshot,
    call: &impl Fn() -> Call<'c>,
    kernel: &CompiledKernel,
    run: impl FnOnce() -> Outcome,
) -> Outcome {
    let observation = &snapshot.observation;
    let run = || run().map_or(Ok(()), |error| Err(*error));
    match observation.telemetry.run(observation, snapshot.observe, kernel.info, kernel.spec(), run) {
        Ok(time) => {
            if let (Some(time), Some(_)) = (time, &snapshot.evidence) {
                add_regret(&call(), kernel, time);
            }
            None
        }
        Err(error) => failed(error),
    }
}

/// Adds the time that a timed call lost against the fastest measured kernel that could have run it. Timed calls stand for
/// all calls.
#[cold]
fn add_regret(call: &Call<'_>, kernel: &CompiledKernel, time: std::time::Duration) {
    let measured = score::measured(call);
    let usable = decide::eligible(call);
    let median = |one: &decide::Ranked| measured.get(usize::from(one.position))?.map(|one| one.median_ns);
    let fastest = usable.iter().filter_map(|one| Some((median(one)?, one.position)));
    let Some((fastest, position)) = fastest.min_by(|(a, _), (b, _)| a.total_cmp(b)) else { return };
    let best = call.table.candidates.get(usize::from(position));
    let is_best = best
        .and_then(|candidate| call.snapshot.registry.compiled(candidate.kernel))
        .is_some_and(|best| best.spec().id == kernel.spec().id);
    if !is_best {
        let lost = (time.as_nanos() as f64 - fastest).max(0.0);
        let weight = f64::from(call.snapshot.observe.time_every.max(1));
        call.snapshot.observation.telemetry.metrics.lost(&kernel.info.name, lost * weight);
    }
}

#[cold]
#[inline(never)]
fn failed(error: KernelError) -> Outcome {
    Some(Box::new(error))
}

#[cold]
#[inline(never)]
fn panicked(kernel: &CompiledKernel, panic: &(dyn std::any::Any + Send)) -> KernelError {
    let message = format!("{}: {}", kernel.spec().id, panic_text(panic));
    KernelError::because(Reason::new(ReasonCode::KernelPanicked).message(message))
}

/// The message of a panic.
pub(super) fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("panicked without a message")
}

/// Runs a kernel under a circuit-breaker permit and records the outcome.
pub(super) fn run_admitted(
    call: &Call<'_>,
    kernel: &CompiledKernel,
    workspace: u64,
    transforms: Transforms,
    scratch: &mut Scratch,
    run_one: &mut RunOne<'_>,
) -> Outcome {
    let permit = match call.snapshot.health.admit(call.subject(kernel)) {
        Ok(permit) => Some(permit),
        Err(refusal) if call.allow_open_circuit && refusal.yields_to_last_resort(kernel.is_reference()) => {
            None
        }
        Err(refusal) => {
            let reason = Reason::new(ReasonCode::CircuitHalfOpenBusy).message(refusal.to_string());
            return Some(Box::new(KernelError::because(reason).before_writing()));
        }
    };
    let again = || Call::new(call.snapshot, call.table, call.context, call.mode);
    let outcome = run_observed(call.snapshot, again, kernel, workspace, transforms, scratch, run_one);
    match (&outcome, permit) {
        (None, Some(permit)) => permit.succeeded(),
        (Some(error), Some(permit)) => permit.failed(Failure::of(error, &failure_text(error))),
        // A call past an open circuit does not change its state; only probes do.
        (_, None) => {}
    }
    outcome
}

/// Records a failure in health.
pub(super) fn record(call: &Call<'_>, kernel: &CompiledKernel, error: &KernelError) {
    if let Ok(permit) = call.snapshot.health.admit(call.subject(kernel)) {
        permit.failed(Failure::of(error, &failure_text(error)));
    }
}

/// The text that health stores for a failure: the sentence, prefixed with the code unless that is only `KernelFailed`.
pub(super) fn failure_text(error: &KernelError) -> String {
    match error.reason.code {
        ReasonCode::KernelFailed => error.reason.sentence(),
        _ => error.reason.to_string(),
    }
}
