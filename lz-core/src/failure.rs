//! Attribution of a failure: its cause and the extent of the damage. Circuit breakers count by these two.

use std::fmt;

use crate::reason::{ReasonCategory, ReasonCode};

/// The cause of a failure. Only the kernel's own failures open its circuit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cause {
    /// The caller: invalid arguments, or an interrupted program.
    Caller,
    /// A limited resource is exhausted: memory, slots, queue time. The same call may succeed later.
    Capacity,
    /// A dependency of the kernel: a file, a library, another process, a mode of the caller's library.
    Environment,
    /// The kernel.
    Kernel,
}

impl Cause {
    /// All causes.
    pub const ALL: [Cause; 4] = [Cause::Caller, Cause::Capacity, Cause::Environment, Cause::Kernel];

    /// The lower-case name.
    pub const fn name(self) -> &'static str {
        match self {
            Cause::Caller => "caller",
            Cause::Capacity => "capacity",
            Cause::Environment => "environment",
            Cause::Kernel => "kernel",
        }
    }

    /// The usual cause of failures with this code.
    pub fn of(code: ReasonCode) -> Cause {
        match code {
            ReasonCode::CallInterrupted => Cause::Caller,
            ReasonCode::OutOfMemory | ReasonCode::CapacityExceeded => Cause::Capacity,
            ReasonCode::EnvironmentFailed | ReasonCode::KernelDeclined | ReasonCode::WorkerUnavailable => {
                Cause::Environment
            }
            _ => match code.category() {
                ReasonCategory::Validation => Cause::Caller,
                // Refused by a circuit: the kernel did not run.
                ReasonCategory::Health => Cause::Environment,
                _ => Cause::Kernel,
            },
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The extent of the damage of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// This call only; a fallback may run.
    Call,
    /// The whole backend should not be used for a while.
    Backend,
    /// The device context is lost; no kernel can run there again in this process.
    Device,
}
