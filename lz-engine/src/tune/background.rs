//! Tuning in the background (`perfdb.auto_tune`): calls whose kernels are not all measured are measured later, on a thread of
//! their own, with arguments made up for them.
//!
//! The thread measures at most `perfdb.auto_tune_budget_percent` of the time and ends when nothing is left to measure. New
//! decisions request measurements; cache hits, decisions during a capture and decisions of a degraded engine do not.

use std::collections::{HashSet, VecDeque};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lz_schema::policy::SettingValue;

use super::{Outcome, Progress, TuneOptions};
use crate::engine::{DecisionObserver, Engine, WeakEngine};
use crate::selection::call::Call;
use lz_core::context::Context;
use lz_core::fork::Mutex;
use lz_core::mode::ModeFlag;
use lz_core::operation::OperationInfo;
use lz_core::synthetic::SyntheticCall;

/// Requests that wait; later ones are dropped, and repeated by the next new decision of the same kind.
const MAX_WAITING: usize = 256;
/// Kinds of calls that are known to have been requested.
const MAX_KNOWN: usize = 4096;
/// Memory for the arguments of one call.
const MAX_BYTES: u64 = 256 << 20;
/// How long one kernel runs at a time, so that a request that needs its cores waits only shortly.
const TURN_TIME: Duration = Duration::from_millis(2);
/// Measuring with pauses takes long; it ends when the order is settled or all samples are taken.
const MAX_TIME: Duration = Duration::from_secs(24 * 3600);
/// How often a pause checks whether to go on.
const PAUSE_STEP: Duration = Duration::from_millis(50);

/// Measures in the background while `perfdb.auto_tune` is on.
#[derive(Debug)]
pub struct BackgroundTuner {
    engine: WeakEngine,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<(&'static OperationInfo, Context)>,
    /// Operation slots and buckets.
    known: HashSet<(u32, Vec<u64>)>,
    /// The process in which the thread runs; a forked child does not have it.
    running_in: Option<u32>,
}

impl BackgroundTuner {
    /// Gives an engine its background tuner. Nothing runs until the setting is on.
    pub fn install(engine: &Engine) {
        let tuner = BackgroundTuner { engine: engine.downgrade(), state: Mutex::default() };
        engine.set_background_tuner(Arc::new(Installed(Arc::new(tuner))));
    }

    /// Measures what waits, then ends.
    fn run(&self) {
        loop {
            let next = {
                let mut state = self.state.lock();
                let next = state.waiting.pop_front();
                if next.is_none() {
                    state.running_in = None;
                }
                next
            };
            let (Some((operation, context)), Some(engine)) = (next, self.engine.upgrade()) else { return };
            // A panic of a kernel is caught where it runs; this is one of the engine.
            if catch_unwind(AssertUnwindSafe(|| measure(&engine, operation, &context))).is_err() {
                engine.health().record_engine_fault("background tuning panicked");
            }
        }
    }
}

struct Installed(Arc<BackgroundTuner>);

impl DecisionObserver for Installed {
    fn decided(&self, call: &Call<'_>, _: u16) {
        let is_suspended = call.mode.has(ModeFlag::Capturing) || !call.snapshot.level.allows_background();
        if is_suspended || call.mode.overlay_id() != 0 || call.table.candidates.len() < 2 {
            return;
        }
        let mut state = self.0.state.lock();
        if state.waiting.len() >= MAX_WAITING {
            return;
        }
        if state.known.len() >= MAX_KNOWN {
            state.known.clear();
        }
        if !state.known.insert((call.table.info.slot(), call.bucket.words().to_vec())) {
            return;
        }
        state.waiting.push_back((call.table.info, *call.context));
        let process = std::process::id();
        if state.running_in != Some(process) {
            let tuner = Arc::clone(&self.0);
            let thread = std::thread::Builder::new().name("layerzero-tune".to_owned());
            match thread.spawn(move || tuner.run()) {
                Ok(_) => state.running_in = Some(process),
                Err(error) => {
                    tracing::warn!(target: "lz::tune", %error, "cannot start the thread of background tuning")
                }
            }
        }
    }
}

fn measure(engine: &Engine, operation: &'static OperationInfo, context: &Context) {
    if !engine.has_unmeasured(operation, context) {
        return;
    }
    let Some(mut call) = SyntheticCall::new(operation, context, MAX_BYTES) else {
        tracing::debug!(target: "lz::tune", operation = %operation.name, "call cannot be measured in the background");
        return;
    };
    let options = TuneOptions {
        turn_time: TURN_TIME,
        in_background: true,
        max_time: MAX_TIME,
        ..TuneOptions::of(engine)
    };
    let mut pause = Pause { engine, resumed: Instant::now() };
    let tuned = call.with_arguments(|arguments, outputs| {
        engine.tune(
            operation,
            context,
            &options,
            &mut |entry, run| entry.run(arguments, outputs, run),
            &mut |progress| pause.after(progress),
        )
    });
    match tuned {
        Ok(tuned) if !tuned.cancelled => {
            let count = tuned.kernels.iter().filter(|(_, one)| matches!(one, Outcome::Measured(_))).count();
            let best = tuned.best().unwrap_or("none");
            tracing::info!(target: "lz::tune", operation = %operation.name, kernels = count, best, "measured in the background");
        }
        Ok(_) => {
            tracing::debug!(target: "lz::tune", operation = %operation.name, "background tuning was cancelled")
        }
        Err(error) => {
            tracing::debug!(target: "lz::tune", operation = %operation.name, %error, "background tuning failed")
        }
    }
}

/// Pauses between measurements, as the budget requires.
struct Pause<'a> {
    engine: &'a Engine,
    resumed: Instant,
}

impl Pause<'_> {
    /// Waits until the time measured since the last pause fits into the budget. Ends measuring when background work is no
    /// longer wanted or the program has dropped the engine.
    fn after(&mut self, _: &Progress<'_>) -> ControlFlow<()> {
        let (busy, start) = (self.resumed.elapsed(), Instant::now());
        loop {
            let percent = budget_percent(self.engine);
            let is_wanted = percent > 0.0 && self.engine.snapshot().level.allows_background();
            if !is_wanted || self.engine.is_last_reference() {
                return ControlFlow::Break(());
            }
            let wait = Duration::try_from_secs_f64(busy.as_secs_f64() * (100.0 / percent - 1.0));
            let left = wait.unwrap_or(MAX_TIME).saturating_sub(start.elapsed());
            if left.is_zero() {
                break;
            }
            std::thread::sleep(left.min(PAUSE_STEP));
        }
        self.resumed = Instant::now();
        ControlFlow::Continue(())
    }
}

/// The budget; 0 while `perfdb.auto_tune` is off.
fn budget_percent(engine: &Engine) -> f64 {
    let value = |key: &str| engine.setting(key).map(|setting| setting.value);
    match (value("perfdb.auto_tune"), value("perfdb.auto_tune_budget_percent")) {
        (Some(SettingValue::Bool(true)), Some(SettingValue::Float(percent))) => percent,
        _ => 0.0,
    }
}
