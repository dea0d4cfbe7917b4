//! Permits: the admission of a call by the circuit breakers, and its outcome.

use std::fmt;
use std::time::Duration;

use super::Health;
use lz_core::failure::{Cause, Severity};
use lz_core::kernel::KernelError;

/// The kernel, backend and device of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subject<'a> {
    /// The kernel.
    pub kernel: &'a str,
    /// Its version: a new version starts without a record.
    pub kernel_version: &'a str,
    /// The context bucket, so that one bad shape does not disable the kernel for others.
    pub bucket: &'a [u64],
    /// The backend it belongs to.
    pub backend: &'a str,
    /// The backend's version.
    pub backend_version: &'a str,
    /// The device it runs on.
    pub device: &'a str,
}

/// A failure of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure<'a> {
    /// The cause: only [`Cause::Kernel`] counts against the kernel.
    pub cause: Cause,
    /// The extent of the damage.
    pub severity: Severity,
    /// A failure during a trial: a single one opens the circuit.
    pub trial: bool,
    /// The text that is recorded.
    pub message: &'a str,
}

impl<'a> Failure<'a> {
    /// A failure of the kernel in one call.
    pub fn of_kernel(message: &'a str) -> Failure<'a> {
        Failure { cause: Cause::Kernel, severity: Severity::Call, trial: false, message }
    }

    /// From an error, with the text to record.
    pub fn of(error: &KernelError, message: &'a str) -> Failure<'a> {
        Failure { cause: error.cause, severity: error.severity, trial: false, message }
    }

    /// Marks it as a failure during a trial.
    #[must_use]
    pub fn in_trial(self) -> Failure<'a> {
        Failure { trial: true, ..self }
    }

    /// Whether it counts against the kernel.
    pub(super) fn blames_kernel(&self) -> bool {
        self.cause == Cause::Kernel
    }

    /// Whether it counts against the backend.
    pub(super) fn blames_backend(&self) -> bool {
        self.severity == Severity::Backend && matches!(self.cause, Cause::Kernel | Cause::Environment)
    }
}

/// The kind of circuit that refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RefusalScope {
    /// The kernel's, in this bucket.
    Kernel,
    /// The backend's.
    Backend,
    /// The device's.
    Device,
}

impl RefusalScope {
    /// The lower-case name.
    pub const fn name(self) -> &'static str {
        match self {
            RefusalScope::Kernel => "kernel",
            RefusalScope::Backend => "backend",
            RefusalScope::Device => "device",
        }
    }
}

/// Why a circuit breaker refused a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The kind of circuit that refused.
    pub scope: RefusalScope,
    /// The kernel, backend or device.
    pub name: String,
    /// Failures that are not forgiven.
    pub failures: u32,
    /// The text of the latest error.
    pub last_error: String,
    /// Time until the next probe; `None` if waiting does not help.
    pub retry_in: Option<Duration>,
    /// A single failure opened the circuit regardless of the threshold: the kernel may crash the process or the device.
    pub opened_at_once: bool,
}

impl Refusal {
    /// Whether the call may run nevertheless if no other kernel can run it: a call that may fail is better than one that is
    /// refused. Never on a lost device; after a crash only the reference kernel is trusted.
    pub(crate) fn yields_to_last_resort(&self, is_reference: bool) -> bool {
        self.scope != RefusalScope::Device && (is_reference || !self.opened_at_once)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Refusal { name, last_error, .. } = self;
        match (self.scope, self.retry_in) {
            (RefusalScope::Device, _) => write!(
                f,
                "the context of device {name} is lost ({last_error}): restart the process to use it again"
            ),
            (scope, Some(wait)) => {
                let what = scope.name();
                let plural = if self.failures == 1 { "" } else { "s" };
                write!(
                    f,
                    "the circuit of {what} {name} is open after {} failure{plural} ({last_error}); the next probe is in {:.1} s",
                    self.failures,
                    wait.as_secs_f64()
                )
            }
            (_, None) => write!(f, "the circuit of {name} is open ({last_error})"),
        }
    }
}

impl std::error::Error for Refusal {}

/// The permit for one call. Record the outcome; dropping it without one returns its probe.
#[derive(Debug)]
#[must_use = "run the permitted call and record its outcome"]
pub struct Permit<'h> {
    health: &'h Health,
    subject: Subject<'h>,
    kernel_probe: Option<u64>,
    backend_probe: Option<u64>,
    recorded: bool,
}

impl<'h> Permit<'h> {
    pub(super) fn new(
        health: &'h Health,
        subject: Subject<'h>,
        kernel_probe: Option<u64>,
        backend_probe: Option<u64>,
    ) -> Permit<'h> {
        Permit { health, subject, kernel_probe, backend_probe, recorded: false }
    }

    /// Whether the call is a probe.
    pub fn is_probe(&self) -> bool {
        self.kernel_probe.is_some() || self.backend_probe.is_some()
    }

    /// Records a success.
    pub fn succeeded(mut self) {
        self.recorded = true;
        self.health.record_success(&self.subject, self.kernel_probe, self.backend_probe);
    }

    /// Records a failure.
    pub fn failed(mut self, failure: Failure<'_>) {
        self.recorded = true;
        self.health.record_failure(&self.subject, failure, self.kernel_probe, self.backend_probe);
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        if !self.recorded && self.is_probe() {
            self.health.record_abandoned(&self.subject, self.kernel_probe, self.backend_probe);
        }
    }
}
