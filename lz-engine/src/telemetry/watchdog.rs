//! The watchdog (`watchdog_seconds`): reports kernels that run for too long in this process, and opens their circuits while they still
//! run, so that other threads use another kernel. A thread that hangs cannot be stopped; a backend in a worker process can be
//! (`worker.deadline_seconds`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Telemetry;
use crate::health::{Failure, Health, Subject};
use lz_core::context::{Context, FieldKind};
use lz_core::expression_names;
use lz_core::fork::Mutex;
use lz_core::operation::OperationInfo;
use lz_core::reason::{Reason, ReasonCode};
use lz_core::spec::KernelSpec;
use lz_device::ThreadHandle;

/// The polling interval is this fraction of the budget.
const POLLS_PER_BUDGET: u32 = 8;
const MIN_INTERVAL: Duration = Duration::from_millis(1);
const MAX_INTERVAL: Duration = Duration::from_secs(1);
/// The thread ends after this long without a run.
const IDLE_TIME: Duration = Duration::from_secs(5);

/// Kernel runs in progress.
#[derive(Debug, Default)]
pub(crate) struct Watchdog {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    runs: Vec<Option<WatchedRun>>,
    last_run: Option<Instant>,
    /// The process in which the thread runs; a forked child does not have it.
    running_in: Option<u32>,
}

/// A kernel run in progress.
#[derive(Debug, Clone)]
pub(crate) struct WatchedRun {
    pub operation: &'static OperationInfo,
    pub spec: Arc<KernelSpec>,
    pub context: Context,
    pub bucket: Vec<u64>,
    pub device: String,
    pub health: Arc<Health>,
    pub telemetry: Arc<Telemetry>,
    pub budget: Duration,
    started: Instant,
    thread: ThreadHandle,
    is_reported: bool,
}

impl WatchedRun {
    /// A run on this thread that starts now.
    pub fn new(
        operation: &'static OperationInfo,
        spec: Arc<KernelSpec>,
        context: Context,
        (bucket, device): (Vec<u64>, String),
        health: Arc<Health>,
        telemetry: Arc<Telemetry>,
        budget: Duration,
    ) -> WatchedRun {
        let (started, thread) = (Instant::now(), ThreadHandle::current());
        WatchedRun {
            operation,
            spec,
            context,
            bucket,
            device,
            health,
            telemetry,
            budget,
            started,
            thread,
            is_reported: false,
        }
    }

    /// Reports the run: the kernel, the call and the stack of its thread. Opens the circuit of the kernel.
    #[cold]
    fn report(&self, stack: &[String]) {
        let (operation, kernel) = (&self.operation.name, &self.spec.id);
        let fields = self.operation.fields.iter();
        let fields = fields.filter(|field| !matches!(field.kind, FieldKind::Strides | FieldKind::Digest));
        let call: Vec<String> = fields
            .map(|field| format!("{}={}", field.name, expression_names::show(field, &self.context)))
            .collect();
        let (call, stack) = (call.join(" "), stack.join(" < "));
        let seconds = self.started.elapsed().as_secs_f64();
        tracing::error!(target: "lz::health", %operation, %kernel, seconds, %call, %stack, "kernel hangs");
        self.telemetry.metrics.kernel_hung(operation, kernel);
        let message = format!("{kernel}: still running after {seconds:.1} s ({call})");
        let reason = Reason::new(ReasonCode::BackendTimeout).message(message).to_string();
        let subject = Subject {
            kernel,
            kernel_version: &self.spec.version,
            bucket: &self.bucket,
            backend: &self.spec.backend,
            backend_version: &self.spec.version,
            device: &self.device,
        };
        if let Ok(permit) = self.health.admit(subject) {
            permit.failed(Failure::of_kernel(&reason).in_trial());
        }
    }
}

impl Watchdog {
    /// Watches a run until the guard is dropped.
    pub fn watch(self: &Arc<Watchdog>, run: WatchedRun) -> WatchGuard {
        let mut state = self.state.lock();
        let process = std::process::id();
        if state.running_in != Some(process) {
            // Runs that a forked child inherited are its parent's.
            state.runs.clear();
            let watchdog = Arc::clone(self);
            let thread = std::thread::Builder::new().name("layerzero-watchdog".to_owned());
            match thread.spawn(move || watchdog.poll()) {
                Ok(_) => state.running_in = Some(process),
                Err(error) => {
                    tracing::warn!(target: "lz::health", %error, "cannot start the watchdog");
                }
            }
        }
        state.last_run = Some(run.started);
        let free = state.runs.iter().position(Option::is_none);
        let slot = free.unwrap_or_else(|| {
            state.runs.push(None);
            state.runs.len() - 1
        });
        if let Some(entry) = state.runs.get_mut(slot) {
            *entry = Some(run);
        }
        WatchGuard { watchdog: Arc::clone(self), slot, process }
    }

    /// Polls until there has been no run for a while.
    fn poll(&self) {
        loop {
            let interval = {
                let mut state = self.state.lock();
                let is_unused = state.runs.iter().all(Option::is_none);
                if is_unused && state.last_run.is_none_or(|last| last.elapsed() > IDLE_TIME) {
                    state.running_in = None;
                    return;
                }
                let budgets = state.runs.iter().flatten().map(|run| run.budget);
                budgets.min().map_or(MAX_INTERVAL, |budget| budget / POLLS_PER_BUDGET)
            };
            std::thread::sleep(interval.clamp(MIN_INTERVAL, MAX_INTERVAL));
            while let Some((run, stack)) = self.next_hung() {
                run.report(&stack);
            }
        }
    }

    /// A run that exceeds its budget and is not reported yet, and the stack of its thread.
    fn next_hung(&self) -> Option<(WatchedRun, Vec<String>)> {
        let mut state = self.state.lock();
        let mut runs = state.runs.iter_mut().flatten();
        let run = runs.find(|run| !run.is_reported && run.started.elapsed() >= run.budget)?;
        run.is_reported = true;
        // SAFETY: the thread is inside the run, which cannot end before the lock is released: its guard takes it.
        let stack = unsafe { run.thread.stack() };
        Some((run.clone(), stack))
    }
}

/// Ends the watch of a run when dropped.
#[derive(Debug)]
pub(crate) struct WatchGuard {
    watchdog: Arc<Watchdog>,
    slot: usize,
    process: u32,
}

impl Drop for WatchGuard {
    fn drop(&mut self) {
        // A run that forked: the slots of the child are its own.
        if self.process != std::process::id() {
            return;
        }
        if let Some(entry) = self.watchdog.state.lock().runs.get_mut(self.slot) {
            *entry = None;
        }
    }
}
