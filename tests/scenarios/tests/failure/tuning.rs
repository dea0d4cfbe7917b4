//! Failures during tuning: out of memory, panic, interruption.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use lz_core::{KernelEntry, KernelError, Reason, ReasonCode, Run};
use lz_engine::Engine;
use lz_engine::health::{Clock, ManualClock};
use lz_engine::speculative::{ModelCall, SpeculativeConfig};
use lz_engine::tune::{Outcome, Progress, TuneOptions, TuningResult};
use lz_ops::NORM_RMS;
use lz_perfdb::{Filter, PerfDb, unix_now};
use lz_scenarios::calls::{DecodePaged, Norm, ScenarioCall};
use lz_scenarios::engines::{engine_on, host_spec, register};
use lz_scenarios::kernels::kernel_fn;
use lz_test_support::Folder;

/// An engine with a database, two kernels that advance the clock and one that fails; returns the clock as
/// well.
fn tuning_engine(folder: &Folder, breaks: fn() -> Result<(), KernelError>) -> (Engine, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::starting_at(unix_now()));
    let engine = Engine::new();
    for (id, cost) in [("alpha.x", 4_000), ("beta.x", 1_000)] {
        let clock = Arc::clone(&clock);
        let takes = move || {
            clock.advance(Duration::from_nanos(cost));
            Ok(())
        };
        register(&engine, [kernel_fn(host_spec(id), &NORM_RMS, takes)]);
    }
    register(&engine, [kernel_fn(host_spec("broken.x").priority(90), &NORM_RMS, breaks)]);
    assert!(engine.attach_perfdb(Arc::new(PerfDb::open(folder.database()).db), ""));
    (engine, clock)
}

fn tune(
    engine: &Engine,
    clock: &Arc<ManualClock>,
    on_progress: &mut dyn FnMut(&Progress<'_>) -> ControlFlow<()>,
) -> TuningResult {
    let options = TuneOptions {
        clock: Arc::clone(clock) as Arc<dyn Clock>,
        sample_time: Duration::ZERO,
        turn_time: Duration::ZERO,
        ..TuneOptions::default()
    };
    let mut run = |entry: &KernelEntry, run: &mut Run<'_>| entry.kernel.run(&mut [], &mut [], run);
    engine.tune(&NORM_RMS, &Norm::default().context().unwrap(), &options, &mut run, on_progress).unwrap()
}

fn outcome<'a>(tuned: &'a TuningResult, kernel: &str) -> &'a Outcome {
    &tuned.kernels.iter().find(|(id, _)| id == kernel).unwrap().1
}

/// Out of memory during tuning (cubecl#1510): the kernel is dropped as a candidate, the others are measured,
/// and the fastest is selected.
#[test]
fn out_of_memory_during_tuning_drops_one_candidate() {
    let folder = Folder::new();
    let oom =
        || Err(KernelError::because(Reason::new(ReasonCode::OutOfMemory).message("20 GiB for scratch")));
    let (engine, clock) = tuning_engine(&folder, oom);
    let tuned = tune(&engine, &clock, &mut |_| ControlFlow::Continue(()));
    assert_eq!(tuned.best(), Some("beta.x"));
    let Outcome::Failed(reason) = outcome(&tuned, "broken.x") else { panic!("{tuned:?}") };
    assert_eq!(reason.code, ReasonCode::OutOfMemory);
    assert_eq!(Norm::default().serve(&engine).unwrap(), "beta.x");
}

/// A kernel panics during tuning: tuning continues, and the panic is reported as that kernel's outcome.
#[test]
fn a_panic_during_tuning_drops_one_candidate() {
    let folder = Folder::new();
    let (engine, clock) = tuning_engine(&folder, || panic!("a null pointer"));
    let tuned = tune(&engine, &clock, &mut |_| ControlFlow::Continue(()));
    assert_eq!(tuned.best(), Some("beta.x"));
    assert!(
        matches!(outcome(&tuned, "broken.x"), Outcome::Failed(reason) if reason.code == ReasonCode::KernelPanicked)
    );
}

/// Ctrl-C during tuning: it stops, and measurements taken so far are stored.
#[test]
fn interrupted_tuning_keeps_what_it_measured() {
    let folder = Folder::new();
    let (engine, clock) = tuning_engine(&folder, || Err(KernelError::failed("no luck")));
    let mut samples = 0;
    let tuned = tune(&engine, &clock, &mut |progress| {
        samples += u32::from(matches!(progress, Progress::Sampled { .. }));
        if samples < 3 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    assert!(tuned.cancelled);
    let database = engine.perfdb().unwrap();
    let kept: u64 = database.show(&Filter::default(), 9).iter().map(|row| row.timing.samples).sum();
    assert_eq!(kept, 3);
}

/// A target model with two pipeline stages: no draft/target pair is possible, and the reason says so.
#[test]
fn a_pipelined_target_cannot_be_paired() {
    let engine = engine_on("h100");
    let context = DecodePaged::llama3_8b().context().unwrap();
    let side = |pipeline_stages| ModelCall {
        operation: DecodePaged::llama3_8b().operation(),
        context: &context,
        pipeline_stages,
    };
    let error = engine.pair(&SpeculativeConfig::default(), side(1), side(2)).unwrap_err();
    let codes: Vec<ReasonCode> = error.reasons().iter().map(|reason| reason.code).collect();
    assert_eq!(codes, [ReasonCode::SpecDecodePpIncompatible], "{error}");
}
