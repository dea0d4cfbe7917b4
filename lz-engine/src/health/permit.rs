//! What a call says about itself before and after it runs.

use std::fmt;
use std::time::Duration;

use super::Health;
use lz_core::failure::{Cause, Severity};
use lz_core::kernel::KernelError;

/// What is about to be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subject<'a> {
    /// The kernel.
    pub kernel: &'a str,
    /// Its version: a new version starts with a clean record.
    pub kernel_version: &'a str,
    /// The context bucket, so that one bad shape does not condemn the kernel.
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
    /// Whose fault it is: only [`Cause::Kernel`] counts against the kernel.
    pub cause: Cause,
    /// How far the damage goes.
    pub severity: Severity,
    /// The kernel was tried out with nothing at stake: one failure is enough to leave it alone for a while.
    pub trial: bool,
    /// The text that is kept.
    pub message: &'a str,
}

impl<'a> Failure<'a> {
    /// A failure of the kernel in one call.
    pub fn of_kernel(message: &'a str) -> Failure<'a> {
        Failure { cause: Cause::Kernel, severity: Severity::Call, trial: false, message }
    }

    /// What an error says, with the text that is kept of it.
    pub fn of(error: &KernelError, message: &'a str) -> Failure<'a> {
        Failure { cause: error.cause, severity: error.severity, trial: false, message }
    }

    /// Says that the kernel was tried out with nothing at stake.
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

/// Whose circuit refused.
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

/// Why a call may not be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Whose circuit refused.
    pub scope: RefusalScope,
    /// The kernel, backend or device.
    pub name: String,
    /// Failures that are not forgiven.
    pub failures: u32,
    /// The text of the latest error.
    pub last_error: String,
    /// How long until asking again makes sense; `None` when time does not help.
    pub retry_in: Option<Duration>,
    /// One failure opened the circuit, whatever the threshold is: the kernel may take the process or the device down.
    pub opened_at_once: bool,
}

impl Refusal {
    /// Whether a call that nothing else can run may be made all the same. An open circuit protects from wasted calls while
    /// there is another kernel; without one, a call that may fail is better than one that is refused. A lost device stays
    /// lost, and only a reference is trusted not to take the process down again.
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
                "the context of device {name} is lost ({last_error}): nothing can run on it until the process is restarted"
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

/// The right to make one call. Say how it went; a permit that is dropped says nothing and gives its probe back.
#[derive(Debug)]
#[must_use = "the call that it permits should be made, and its outcome told"]
pub struct Permit<'h> {
    health: &'h Health,
    subject: Subject<'h>,
    kernel_probe: Option<u64>,
    backend_probe: Option<u64>,
    settled: bool,
}

impl<'h> Permit<'h> {
    pub(super) fn new(
        health: &'h Health,
        subject: Subject<'h>,
        kernel_probe: Option<u64>,
        backend_probe: Option<u64>,
    ) -> Permit<'h> {
        Permit { health, subject, kernel_probe, backend_probe, settled: false }
    }

    /// Whether the outcome of this call decides about a circuit.
    pub fn is_probe(&self) -> bool {
        self.kernel_probe.is_some() || self.backend_probe.is_some()
    }

    /// The call went well.
    pub fn succeeded(mut self) {
        self.settled = true;
        self.health.settle_success(&self.subject, self.kernel_probe, self.backend_probe);
    }

    /// The call failed.
    pub fn failed(mut self, failure: Failure<'_>) {
        self.settled = true;
        self.health.settle_failure(&self.subject, failure, self.kernel_probe, self.backend_probe);
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        if !self.settled && self.is_probe() {
            self.health.settle_abandoned(&self.subject, self.kernel_probe, self.backend_probe);
        }
    }
}
