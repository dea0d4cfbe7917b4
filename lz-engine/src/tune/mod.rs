//! Tuning: measures the kernels that could run a call, interleaved, until their order is statistically settled, and stores the results.
//!
//! Candidates are interleaved, so that drift affects all alike. A turn is long enough for the effects of the previous kernel (its data in
//! the caches, its spinning threads) to be gone. A kernel that fails or crashes the process is recorded as failed and not tried again. The
//! caller runs the kernels; nothing here depends on what a call computes.

mod background;
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
use crate::telemetry::Synchronize;
use lz_core::context::Context;
use lz_core::error::Error;
use lz_core::kernel::{KernelEntry, KernelError};
use lz_core::mode::ModeFlag;
use lz_core::operation::OperationInfo;
use lz_core::reason::{Reason, ReasonCode};
use lz_core::run::{Run, Scratch};
use lz_perfdb::{Bucket, DropReason, EvidenceKey, Marks, Measurement, Setting, Timing};
use stopping::{Samples, is_settled};

pub use background::BackgroundTuner;

/// The quantile of a turn's samples that counts: disturbances only ever add time.
const SAMPLE_QUANTILE: f64 = 0.1;
/// Minimum number of runs in a turn, if they fit into `MAX_TURN` turn times.
const MIN_RUNS_PER_TURN: usize = 3;
const MAX_TURN: u32 = 5;
/// Maximum number of samples in a turn.
const MAX_SAMPLES_PER_TURN: usize = 10_000;
/// Expiry of measurements of nightly builds.
const NIGHTLY_EXPIRY_SECONDS: u64 = 7 * 24 * 3600;

/// How to measure.
#[derive(Clone)]
pub struct TuneOptions {
    /// Warm-up runs of each kernel before it is timed.
    pub warm_up: u32,
    /// Minimum number of samples of each kernel.
    pub min_samples: u32,
    /// Maximum number of samples of each kernel.
    pub max_samples: u32,
    /// How many standard deviations apart two neighbors must be to be settled.
    pub deviations: f64,
    /// A sample consists of as many runs as take this long, for kernels shorter than the clock resolution.
    pub sample_time: Duration,
    /// How long a kernel runs in its turn; a low quantile of the runs is the sample. A kernel whose single run takes longer sleeps this long
    /// before it instead: threads of the previous kernel may spin on its cores for that long. Zero if samples are long and no threads
    /// spin.
    pub turn_time: Duration,
    /// Whether no caller is involved: kernels that must be compiled first or that need the caller's objects are left out.
    pub in_background: bool,
    /// No further round starts after this time, settled or not.
    pub max_time: Duration,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Device synchronization, so that runs are timed and not launches.
    pub synchronize: Option<Arc<dyn Synchronize>>,
}

impl Default for TuneOptions {
    fn default() -> Self {
        TuneOptions {
            warm_up: 3,
            min_samples: 5,
            max_samples: 20,
            deviations: 3.0,
            sample_time: Duration::from_micros(20),
            turn_time: Duration::from_millis(20),
            in_background: false,
            max_time: Duration::from_secs(10),
            clock: Arc::new(SystemClock::default()),
            synchronize: None,
        }
    }
}

impl TuneOptions {
    /// From an engine's settings (`perfdb.tune_samples`).
    pub fn of(engine: &Engine) -> TuneOptions {
        let mut options = TuneOptions::default();
        if let Some(SettingValue::Int(samples)) = engine.setting("perfdb.tune_samples").map(|one| one.value) {
            options.max_samples = u32::try_from(samples).unwrap_or(u32::MAX);
            options.min_samples = options.min_samples.min(options.max_samples);
        }
        options
    }
}

impl fmt::Debug for TuneOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TuneOptions").field("max_samples", &self.max_samples).finish_non_exhaustive()
    }
}

/// Progress of tuning. Cancelling keeps what was measured.
#[derive(Debug, Clone, PartialEq)]
pub enum Progress<'a> {
    /// Tuning starts.
    Begins {
        /// The operation.
        operation: &'a str,
        /// Number of candidates.
        candidates: usize,
    },
    /// A sample was taken.
    Sampled {
        /// The kernel.
        kernel: &'a str,
        /// Its time, in nanoseconds.
        ns: f64,
        /// Number of samples of all kernels so far.
        done: usize,
        /// Maximum number of samples.
        max: usize,
    },
    /// A kernel failed and is excluded.
    Failed {
        /// The kernel.
        kernel: &'a str,
        /// Why.
        reason: &'a Reason,
    },
    /// The order is settled before all samples were taken.
    Settled,
}

/// The result of one kernel.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// It was measured.
    Measured(Timing),
    /// It failed; the failure is recorded.
    Failed(Reason),
    /// It was skipped, because it cannot run this call or has failed before.
    Passed(Vec<Reason>),
    /// Tuning was cancelled before its turn.
    Untouched,
}

/// The result of tuning one call.
#[derive(Debug, Clone)]
pub struct TuningResult {
    /// Each kernel with its result: measured ones first, fastest first.
    pub kernels: Vec<(String, Outcome)>,
    /// Whether the order is settled, and not only cut off at the maximum number of samples.
    pub settled: bool,
    /// Whether it was cancelled.
    pub cancelled: bool,
    /// Whether it was stored; `None` without a database.
    pub kept: Option<Result<(), DropReason>>,
}

impl TuningResult {
    /// The fastest kernel.
    pub fn best(&self) -> Option<&str> {
        self.kernels
            .first()
            .filter(|(_, outcome)| matches!(outcome, Outcome::Measured(_)))
            .map(|(id, _)| id.as_str())
    }
}

type RunOne<'r> = dyn FnMut(&KernelEntry, &mut Run<'_>) -> Result<(), KernelError> + 'r;
type OnProgress<'t> = dyn FnMut(&Progress<'_>) -> ControlFlow<()> + 't;

struct Candidate {
    runner: Runner,
    samples: Samples,
    warm_up_ns: f64,
    /// Expected time of a run, from the warm-up.
    expected_ns: f64,
    /// Runs per sample.
    runs: u32,
    failure: Option<Reason>,
    is_too_slow: bool,
}

/// Cancelled by the caller.
struct Cancelled;

impl Engine {
    /// Measures every kernel that could run a call: `run_one` is called with one kernel at a time, many times, and must do the same work
    /// each time. Results are stored in the engine's database and affect decisions from then on.
    pub fn tune(
        &self,
        operation: &'static OperationInfo,
        context: &Context,
        options: &TuneOptions,
        run_one: &mut RunOne<'_>,
        on_progress: &mut OnProgress<'_>,
    ) -> Result<TuningResult, Error> {
        if self.thread_snapshot().1.has(ModeFlag::Capturing) {
            let reason = Reason::new(ReasonCode::SyncInCapture)
                .message("measuring synchronizes with the device: tune before the capture");
            return Err(Error::Validation { operation: operation.name.to_string(), reasons: vec![reason] });
        }
        // Another process may have recorded a failure or a crash of a kernel meanwhile.
        self.refresh_evidence();
        let mut runners = self.runners(operation, context)?;
        let db = self.perfdb();
        let setting = Setting::of(&runners.device, self.torch());
        let marks = Marks::new(db.as_deref(), Engine::health_identity(), &runners.bucket);
        let mut outcomes: Vec<(String, Outcome)> = Vec::new();
        let mut able = std::mem::take(&mut runners.able);
        able.retain(|one| !options.in_background || !(one.cold || one.entry().kernel.needs_caller()));
        let candidate = |runner| Candidate {
            runner,
            samples: Samples::default(),
            warm_up_ns: 0.0,
            expected_ns: 0.0,
            runs: 1,
            failure: None,
            is_too_slow: false,
        };
        let mut candidates: Vec<Candidate> = able.into_iter().map(candidate).collect();
        let mut trial =
            Trial { engine: self, runners: &runners, options, marks: &marks, scratch: Scratch::default() };
        let mut settled = false;
        let measured = trial.measure(operation, &mut candidates, run_one, on_progress, &mut settled);
        for one in candidates.iter().filter(|one| one.failure.is_none() && one.samples.len() > 0) {
            self.succeeded_in_trial(&runners, &one.runner);
            if one.runner.cold {
                self.mark_warm(&one.runner.entry().spec.id, operation, context);
            }
        }
        // The database counts and logs dropped writes.
        let _ = self.save_health();
        let now = options.clock.unix_seconds();
        let environment = self.environment(&runners.device);
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
                            .then(|| now.saturating_add(NIGHTLY_EXPIRY_SECONDS)),
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
        Ok(TuningResult { kernels: outcomes, settled, cancelled: measured.is_err(), kept })
    }
}

impl Outcome {
    /// The name of the variant, for bindings.
    pub fn state(&self) -> &'static str {
        match self {
            Outcome::Measured(_) => "measured",
            Outcome::Failed(_) => "failed",
            Outcome::Passed(_) => "passed",
            Outcome::Untouched => "untouched",
        }
    }

    /// Sort key: measured kernels by median, then the others.
    fn order(&self) -> f64 {
        match self {
            Outcome::Measured(timing) => timing.median_ns,
            _ => f64::INFINITY,
        }
    }
}

impl Candidate {
    fn is_active(&self) -> bool {
        self.failure.is_none() && !self.is_too_slow
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
        on_progress: &mut OnProgress<'_>,
        settled: &mut bool,
    ) -> Result<(), Cancelled> {
        report(on_progress, &Progress::Begins { operation: &operation.name, candidates: candidates.len() })?;
        for one in candidates.iter_mut() {
            self.warm_up(one, run_one, on_progress)?;
        }
        let max =
            candidates.iter().filter(|one| one.failure.is_none()).count() * self.options.max_samples as usize;
        let mut done = 0;
        let warm = candidates.iter().filter(|one| one.failure.is_none()).map(|one| one.expected_ns);
        let fastest = warm.fold(f64::INFINITY, f64::min);
        // A short run may be disturbed by the previous kernel; a long one is reliable.
        let is_reliable = |one: &Candidate| {
            one.failure.is_none() && !self.options.turn_time.is_zero() && self.fills_batch(one)
        };
        for one in candidates.iter_mut().filter(|one| is_reliable(one)) {
            let warm = Samples::from([one.expected_ns]);
            if warm.is_too_slow(fastest, usize::MAX) {
                (one.samples, one.is_too_slow) = (warm, true);
                done += 1;
                let (kernel, ns) = (&one.runner.entry().spec.id, one.expected_ns);
                report(on_progress, &Progress::Sampled { kernel, ns, done, max })?;
            }
        }
        let begin = self.options.clock.elapsed();
        for round in 0..self.options.max_samples as usize {
            // Each round starts with another kernel, so that none always runs after the same one.
            let count = candidates.len().max(1);
            for turn in 0..candidates.len() {
                let Some(one) = candidates.get_mut((turn + round) % count).filter(|one| one.is_active())
                else {
                    continue;
                };
                match self.run_batch(one, run_one) {
                    Ok(ns) => {
                        one.samples.push(ns);
                        done += 1;
                        let kernel = &one.runner.entry().spec.id;
                        report(on_progress, &Progress::Sampled { kernel, ns, done, max })?;
                    }
                    Err(error) => self.fail(one, &error, on_progress)?,
                }
            }
            exclude_slow(candidates, self.options.min_samples as usize);
            let running: Vec<&Samples> =
                candidates.iter().filter(|one| one.is_active()).map(|one| &one.samples).collect();
            if round + 1 >= self.options.min_samples as usize && is_settled(&running, self.options.deviations)
            {
                *settled = true;
                if round + 1 < self.options.max_samples as usize {
                    report(on_progress, &Progress::Settled)?;
                }
                return Ok(());
            }
            if self.options.clock.elapsed().saturating_sub(begin) >= self.options.max_time {
                return Ok(());
            }
        }
        Ok(())
    }

    /// The first run may crash the process, so a mark is set during it.
    fn warm_up(
        &mut self,
        one: &mut Candidate,
        run_one: &mut RunOne<'_>,
        on_progress: &mut OnProgress<'_>,
    ) -> Result<(), Cancelled> {
        let spec = &one.runner.entry().spec;
        let mut mark = self.marks.begin(&spec.id, &spec.version, self.options.clock.unix_seconds());
        for run in 0..self.options.warm_up.max(1) {
            let timed = self.time(one, run_one);
            self.marks.end(mark.take());
            let ns = match timed {
                Ok(ns) => ns,
                Err(error) => return self.fail(one, &error, on_progress),
            };
            one.expected_ns = ns;
            if run == 0 {
                one.warm_up_ns = ns;
                continue;
            }
            let target_ns = self.options.sample_time.as_nanos() as f64;
            one.runs = (target_ns / ns.max(1.0)).ceil().clamp(1.0, 10_000.0) as u32;
            if self.fills_batch(one) {
                break;
            }
        }
        Ok(())
    }

    /// Whether one run takes as long as a batch, so that a single run suffices.
    fn fills_batch(&self, one: &Candidate) -> bool {
        one.expected_ns >= self.options.turn_time.as_nanos() as f64
    }

    /// The sample of one batch of runs of a kernel.
    fn run_batch(&mut self, one: &Candidate, run_one: &mut RunOne<'_>) -> Result<f64, KernelError> {
        let turn_time = self.options.turn_time;
        if self.fills_batch(one) {
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
            let too_few = samples.len() < MIN_RUNS_PER_TURN && with_another <= MAX_TURN * turn_time;
            if (spent >= turn_time && !too_few) || samples.len() >= MAX_SAMPLES_PER_TURN {
                return Ok(samples.quantile(SAMPLE_QUANTILE));
            }
        }
    }

    fn time(&mut self, one: &Candidate, run_one: &mut RunOne<'_>) -> Result<f64, KernelError> {
        let start = self.options.clock.elapsed();
        for _ in 0..one.runs {
            one.runner.run(&mut self.scratch, run_one)?;
        }
        if let Some(device) = &self.options.synchronize {
            device.synchronize(lz_core::run::stream_of_thread())?;
        }
        let elapsed = self.options.clock.elapsed().saturating_sub(start);
        // If the clock did not advance, the run was shorter than its resolution.
        Ok((elapsed.as_nanos() as f64 / f64::from(one.runs)).max(0.1))
    }

    fn fail(
        &mut self,
        one: &mut Candidate,
        error: &KernelError,
        on_progress: &mut OnProgress<'_>,
    ) -> Result<(), Cancelled> {
        if error.reason.code == ReasonCode::CallInterrupted {
            return Err(Cancelled);
        }
        one.failure = Some(error.reason.clone());
        self.engine.failed_in_trial(self.runners, &one.runner, error);
        report(on_progress, &Progress::Failed { kernel: &one.runner.entry().spec.id, reason: &error.reason })
    }
}

fn exclude_slow(candidates: &mut [Candidate], min_samples: usize) {
    let medians = candidates.iter().filter(|one| one.failure.is_none()).map(|one| one.samples.median());
    let fastest = medians.fold(f64::INFINITY, f64::min);
    for one in candidates {
        one.is_too_slow = one.samples.is_too_slow(fastest, min_samples);
    }
}

fn report(on_progress: &mut OnProgress<'_>, progress: &Progress<'_>) -> Result<(), Cancelled> {
    match on_progress(progress) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(Cancelled),
    }
}

/// Whether the version does not distinguish builds of different days.
fn is_nightly(version: &str) -> bool {
    ["nightly", "dev", "git", "dirty"].iter().any(|word| version.contains(word))
}
