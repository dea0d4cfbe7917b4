//! Tuning: the kernels that could run a call are run in turn until their order is settled, and what was measured is kept.
//!
//! Candidates take turns, so that drift hits all alike, and a turn is long enough for what the kernel before it left behind (its data
//! in the caches, its threads that wait awake for more) to be gone. A kernel that fails, or that takes the process down with it,
//! is kept as a failure and not tried again. Nothing here knows what a call computes: the caller runs the kernel it is handed.

mod stopping;

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use lz_schema::policy::SettingValue;

use crate::engine::Engine;
use crate::engine::measure::{Runner, Runners};
use crate::evidence::dtypes_text;
use crate::health::{Clock, SystemClock};
use crate::telemetry::Synchronise;
use lz_core::context::Context;
use lz_core::error::Error;
use lz_core::kernel::{KernelEntry, KernelError};
use lz_core::operation::OperationInfo;
use lz_core::reason::{Reason, ReasonCode};
use lz_core::run::{Run, Scratch};
use lz_perfdb::{Bucket, DropReason, EvidenceKey, Marks, Measurement, Setting, Timing};
use stopping::{Samples, is_settled};

/// What a turn counts: the time that this share of its samples stay below. What else the machine does only ever adds.
const UNDISTURBED: f64 = 0.1;
/// A turn of runs that are not much shorter than itself has so many, if they take no longer than so many turns.
const FEWEST_RUNS: usize = 3;
const LONGEST_TURN: u32 = 5;
/// No turn has more samples, whatever its clock says.
const MOST_IN_A_TURN: usize = 10_000;
/// How long a nightly build's measurements count.
const NIGHTLY_LIFE_SECONDS: u64 = 7 * 24 * 3600;

/// How to measure.
#[derive(Clone)]
pub struct TuneOptions {
    /// Runs of each kernel before it is timed.
    pub warm_up: u32,
    /// The fewest samples of each kernel, before which nothing is settled.
    pub least_samples: u32,
    /// The most samples of each kernel.
    pub most_samples: u32,
    /// How many deviations two neighbours must be apart to be settled.
    pub deviations: f64,
    /// A sample is as many runs as take this long together, for kernels that are over before a clock has ticked.
    pub sample_time: Duration,
    /// How long a kernel runs in its turn, of which the undisturbed runs make the sample. One whose single run takes longer rests this
    /// long before it instead: threads of the kernel before it may wait awake for as long, on the cores that it needs. Zero where
    /// a sample is long and nobody waits so.
    pub turn_time: Duration,
    /// After this long no further round begins, settled or not.
    pub most_time: Duration,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Who waits for the device, so that runs are timed and not launches.
    pub synchronise: Option<Arc<dyn Synchronise>>,
}

impl Default for TuneOptions {
    fn default() -> Self {
        TuneOptions {
            warm_up: 3,
            least_samples: 5,
            most_samples: 20,
            deviations: 3.0,
            sample_time: Duration::from_micros(20),
            turn_time: Duration::from_millis(20),
            most_time: Duration::from_secs(10),
            clock: Arc::new(SystemClock::default()),
            synchronise: None,
        }
    }
}

impl TuneOptions {
    /// As an engine's settings say (`perfdb.tune_samples`).
    pub fn of(engine: &Engine) -> TuneOptions {
        let mut options = TuneOptions::default();
        if let Some(SettingValue::Int(samples)) = engine.setting("perfdb.tune_samples").map(|one| one.value) {
            options.most_samples = u32::try_from(samples).unwrap_or(u32::MAX);
            options.least_samples = options.least_samples.min(options.most_samples);
        }
        options
    }
}

impl fmt::Debug for TuneOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TuneOptions").field("most_samples", &self.most_samples).finish_non_exhaustive()
    }
}

/// What is told while measuring. Breaking off keeps what was measured.
#[derive(Debug, Clone, PartialEq)]
pub enum Progress<'a> {
    /// Measuring begins.
    Begins {
        /// The operation.
        operation: &'a str,
        /// How many kernels take part.
        candidates: usize,
    },
    /// A sample was taken.
    Sampled {
        /// The kernel.
        kernel: &'a str,
        /// Its time, in nanoseconds.
        ns: f64,
        /// How many samples there are of all kernels together.
        done: usize,
        /// How many there will be at most.
        most: usize,
    },
    /// A kernel failed and takes no further part.
    Failed {
        /// The kernel.
        kernel: &'a str,
        /// Why.
        reason: &'a Reason,
    },
    /// The order is settled before all samples were taken.
    Settled,
}

/// What became of one kernel.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// It was measured.
    Measured(Timing),
    /// It failed, and that is kept.
    Failed(Reason),
    /// It was not run, because it cannot run this call or has failed before.
    Passed(Vec<Reason>),
    /// Measuring was broken off before its turn.
    Untouched,
}

/// What tuning found for one call.
#[derive(Debug, Clone)]
pub struct Tuned {
    /// Each kernel and what became of it: measured ones first, fastest first.
    pub kernels: Vec<(String, Outcome)>,
    /// Whether the order is settled, not only cut off at the most samples.
    pub settled: bool,
    /// Whether it was broken off.
    pub cancelled: bool,
    /// Whether it was kept; `None` when there is no database.
    pub kept: Option<Result<(), DropReason>>,
}

impl Tuned {
    /// The fastest kernel.
    pub fn best(&self) -> Option<&str> {
        self.kernels
            .first()
            .filter(|(_, outcome)| matches!(outcome, Outcome::Measured(_)))
            .map(|(id, _)| id.as_str())
    }
}

type RunOne<'r> = dyn FnMut(&KernelEntry, &mut Run<'_>) -> Result<(), KernelError> + 'r;
type Told<'t> = dyn FnMut(&Progress<'_>) -> ControlFlow<()> + 't;

struct Candidate {
    runner: Runner,
    samples: Samples,
    warm_up_ns: f64,
    /// What a run takes, as far as warming up has shown.
    expected_ns: f64,
    /// Runs that make one sample.
    runs: u32,
    failure: Option<Reason>,
    is_far_behind: bool,
}

/// Broken off by the caller.
struct Cancelled;

impl Engine {
    /// Measures every kernel that could run a call: `run_one` is called with one kernel after the other, many times, and must
    /// do the same each time. What is measured goes into the engine's database, and decisions follow it from then on.
    pub fn tune(
        &self,
        operation: &'static OperationInfo,
        context: &Context,
        options: &TuneOptions,
        run_one: &mut RunOne<'_>,
        told: &mut Told<'_>,
    ) -> Result<Tuned, Error> {
        // Another process may have found out meanwhile that a kernel fails, or may have died of one.
        self.refresh_evidence();
        let mut runners = self.runners(operation, context)?;
        let db = self.perfdb();
        let setting = Setting::of(&runners.device, self.torch());
        let marks = Marks::new(db.as_deref(), Engine::health_identity(), &runners.bucket);
        let mut outcomes: Vec<(String, Outcome)> = Vec::new();
        let able = std::mem::take(&mut runners.able);
        let candidate = |runner| Candidate {
            runner,
            samples: Samples::default(),
            warm_up_ns: 0.0,
            expected_ns: 0.0,
            runs: 1,
            failure: None,
            is_far_behind: false,
        };
        let mut candidates: Vec<Candidate> = able.into_iter().map(candidate).collect();
        let mut trial =
            Trial { engine: self, runners: &runners, options, marks: &marks, scratch: Scratch::default() };
        let mut settled = false;
        let measured = trial.measure(operation, &mut candidates, run_one, told, &mut settled);
        for one in candidates.iter().filter(|one| one.failure.is_none() && one.samples.len() > 0) {
            self.succeeded_in_trial(&runners, &one.runner);
            if one.runner.cold {
                self.mark_warm(&one.runner.entry().spec.id, operation, context);
            }
        }
        // What is dropped is counted and logged by the database itself.
        let _ = self.save_health();
        let now = options.clock.unix_seconds();
        let environment = lz_device::read_environment(&runners.device);
        let dtypes = dtypes_text(operation, context);
        let mut rows = Vec::new();
        for one in &candidates {
            let spec = &one.runner.entry().spec;
            let outcome = match (&one.failure, one.timing(now)) {
                (Some(reason), _) => Outcome::Failed(reason.clone()),
                (None, None) => Outcome::Untouched,
                (None, Some(timing)) => {
                    rows.push(Measurement {
                        key: EvidenceKey {
                            kernel: spec.id.clone(),
                            kernel_version: spec.version.clone(),
                            operation: operation.name.to_string(),
                            setting: setting.clone(),
                            dtypes: dtypes.clone(),
                            bucket: Bucket::from(runners.bucket.as_slice()),
                            capabilities_hash: spec.capabilities_hash.clone(),
                            environment,
                        },
                        timing,
                        expires_at: is_nightly(&spec.version)
                            .then(|| now.saturating_add(NIGHTLY_LIFE_SECONDS)),
                    });
                    Outcome::Measured(timing)
                }
            };
            outcomes.push((spec.id.clone(), outcome));
        }
        let kept = db.as_ref().map(|db| if rows.is_empty() { Ok(()) } else { db.record_all(&rows) });
        if kept == Some(Ok(())) && !rows.is_empty() {
            self.refresh_evidence();
        }
        outcomes.extend(
            std::mem::take(&mut runners.unable).into_iter().map(|(id, why)| (id, Outcome::Passed(why))),
        );
        outcomes.sort_by(|(a, one), (b, other)| one.order().total_cmp(&other.order()).then_with(|| a.cmp(b)));
        Ok(Tuned { kernels: outcomes, settled, cancelled: measured.is_err(), kept })
    }
}

impl Outcome {
    /// In one word, for those who pass it on.
    pub fn state(&self) -> &'static str {
        match self {
            Outcome::Measured(_) => "measured",
            Outcome::Failed(_) => "failed",
            Outcome::Passed(_) => "passed",
            Outcome::Untouched => "untouched",
        }
    }

    /// Measured ones by their median, the others after them.
    fn order(&self) -> f64 {
        match self {
            Outcome::Measured(timing) => timing.median_ns,
            _ => f64::INFINITY,
        }
    }
}

impl Candidate {
    fn takes_part(&self) -> bool {
        self.failure.is_none() && !self.is_far_behind
    }

    fn timing(&self, now: u64) -> Option<Timing> {
        (self.samples.len() > 0).then(|| Timing {
            median_ns: self.samples.median(),
            p95_ns: self.samples.quantile(0.95),
            variance_ns2: self.samples.variance(),
            samples: self.samples.len() as u64,
            warmup_ns: self.warm_up_ns,
            measured_at: now,
        })
    }
}

struct Trial<'a> {
    engine: &'a Engine,
    runners: &'a Runners,
    options: &'a TuneOptions,
    marks: &'a Marks<'a>,
    scratch: Scratch,
}

impl Trial<'_> {
    fn measure(
        &mut self,
        operation: &OperationInfo,
        candidates: &mut [Candidate],
        run_one: &mut RunOne<'_>,
        told: &mut Told<'_>,
        settled: &mut bool,
    ) -> Result<(), Cancelled> {
        tell(told, &Progress::Begins { operation: &operation.name, candidates: candidates.len() })?;
        for one in candidates.iter_mut() {
            self.warm_up(one, run_one, told)?;
        }
        let most = candidates.iter().filter(|one| one.failure.is_none()).count()
            * self.options.most_samples as usize;
        let mut done = 0;
        let warm = candidates.iter().filter(|one| one.failure.is_none()).map(|one| one.expected_ns);
        let fastest = warm.fold(f64::INFINITY, f64::min);
        // A short run may be disturbed by what ran before it, a long one is what it is.
        let tells = |one: &Candidate| {
            one.failure.is_none() && !self.options.turn_time.is_zero() && self.fills_a_turn(one)
        };
        for one in candidates.iter_mut().filter(|one| tells(one)) {
            let warm = Samples::from([one.expected_ns]);
            if warm.is_far_behind(fastest, usize::MAX) {
                (one.samples, one.is_far_behind) = (warm, true);
                done += 1;
                let (kernel, ns) = (&one.runner.entry().spec.id, one.expected_ns);
                tell(told, &Progress::Sampled { kernel, ns, done, most })?;
            }
        }
        let begin = self.options.clock.elapsed();
        for round in 0..self.options.most_samples as usize {
            // Each round begins with another kernel, so that none always runs on a cache that the same other one left.
            let count = candidates.len().max(1);
            for turn in 0..candidates.len() {
                let Some(one) = candidates.get_mut((turn + round) % count).filter(|one| one.takes_part())
                else {
                    continue;
                };
                match self.turn(one, run_one) {
                    Ok(ns) => {
                        one.samples.push(ns);
                        done += 1;
                        let kernel = &one.runner.entry().spec.id;
                        tell(told, &Progress::Sampled { kernel, ns, done, most })?;
                    }
                    Err(error) => self.fail(one, &error, told)?,
                }
            }
            leave_behind(candidates, self.options.least_samples as usize);
            let running: Vec<&Samples> =
                candidates.iter().filter(|one| one.takes_part()).map(|one| &one.samples).collect();
            if round + 1 >= self.options.least_samples as usize
                && is_settled(&running, self.options.deviations)
            {
                *settled = true;
                if round + 1 < self.options.most_samples as usize {
                    tell(told, &Progress::Settled)?;
                }
                return Ok(());
            }
            if self.options.clock.elapsed().saturating_sub(begin) >= self.options.most_time {
                return Ok(());
            }
        }
        Ok(())
    }

    /// The first run is the one that may take the process down, so a mark says so while it lasts.
    fn warm_up(
        &mut self,
        one: &mut Candidate,
        run_one: &mut RunOne<'_>,
        told: &mut Told<'_>,
    ) -> Result<(), Cancelled> {
        let spec = &one.runner.entry().spec;
        let mut mark = self.marks.begin(&spec.id, &spec.version, self.options.clock.unix_seconds());
        for run in 0..self.options.warm_up.max(1) {
            let timed = self.time(one, run_one);
            self.marks.end(mark.take());
            let ns = match timed {
                Ok(ns) => ns,
                Err(error) => return self.fail(one, &error, told),
            };
            one.expected_ns = ns;
            if run == 0 {
                one.warm_up_ns = ns;
                continue;
            }
            let wanted = self.options.sample_time.as_nanos() as f64;
            one.runs = (wanted / ns.max(1.0)).ceil().clamp(1.0, 10_000.0) as u32;
            if self.fills_a_turn(one) {
                break;
            }
        }
        Ok(())
    }

    /// Whether one run takes as long as a turn; then nothing is gained by more of them.
    fn fills_a_turn(&self, one: &Candidate) -> bool {
        one.expected_ns >= self.options.turn_time.as_nanos() as f64
    }

    /// What a kernel's turn counts.
    fn turn(&mut self, one: &Candidate, run_one: &mut RunOne<'_>) -> Result<f64, KernelError> {
        let turn_time = self.options.turn_time;
        if self.fills_a_turn(one) {
            std::thread::sleep(turn_time);
        } else {
            one.runner.run(&mut self.scratch, run_one)?;
        }
        let begin = self.options.clock.elapsed();
        let mut samples = Samples::default();
        loop {
            samples.push(self.time(one, run_one)?);
            let spent = self.options.clock.elapsed().saturating_sub(begin);
            let with_another = spent + spent / samples.len() as u32;
            let too_few = samples.len() < FEWEST_RUNS && with_another <= LONGEST_TURN * turn_time;
            if (spent >= turn_time && !too_few) || samples.len() >= MOST_IN_A_TURN {
                return Ok(samples.quantile(UNDISTURBED));
            }
        }
    }

    fn time(&mut self, one: &Candidate, run_one: &mut RunOne<'_>) -> Result<f64, KernelError> {
        let start = self.options.clock.elapsed();
        for _ in 0..one.runs {
            one.runner.run(&mut self.scratch, run_one)?;
        }
        if let Some(device) = &self.options.synchronise {
            device.synchronise(lz_core::run::stream_of_thread())?;
        }
        let took = self.options.clock.elapsed().saturating_sub(start);
        // A clock that did not move says that it was quicker than the clock can tell.
        Ok((took.as_nanos() as f64 / f64::from(one.runs)).max(0.1))
    }

    fn fail(
        &mut self,
        one: &mut Candidate,
        error: &KernelError,
        told: &mut Told<'_>,
    ) -> Result<(), Cancelled> {
        if error.reason.code == ReasonCode::CallInterrupted {
            return Err(Cancelled);
        }
        one.failure = Some(error.reason.clone());
        self.engine.failed_in_trial(self.runners, &one.runner, error);
        tell(told, &Progress::Failed { kernel: &one.runner.entry().spec.id, reason: &error.reason })
    }
}

fn leave_behind(candidates: &mut [Candidate], least_samples: usize) {
    let medians = candidates.iter().filter(|one| one.failure.is_none()).map(|one| one.samples.median());
    let fastest = medians.fold(f64::INFINITY, f64::min);
    for one in candidates {
        one.is_far_behind = one.samples.is_far_behind(fastest, least_samples);
    }
}

fn tell(told: &mut Told<'_>, progress: &Progress<'_>) -> Result<(), Cancelled> {
    match told(progress) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(Cancelled),
    }
}

/// A build whose version does not tell two days apart.
fn is_nightly(version: &str) -> bool {
    ["nightly", "dev", "git", "dirty"].iter().any(|word| version.contains(word))
}
