//! Attribution of a failure: whose fault it is and how far the damage goes. Circuit breakers count by these two.

use std::fmt;

use crate::reason::{ReasonCategory, ReasonCode};

/// Whose fault a failure is. Only the kernel's own failures open its circuit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cause {
    /// The caller: wrong arguments, or an interruption of the program.
    Caller,
    /// A limited resource is used up: memory, slots, time in a queue. The same call may succeed later.
    Capacity,
    /// Something that the kernel depends on: a file, a library, another process, a mode of the caller's library.
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
                // A refusal by a circuit: the kernel did not run.
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

/// How far the damage of a failure goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// This call only; another kernel may try.
    Call,
    /// The whole backend should not be used for a while.
    Backend,
    /// The device's context is lost; nothing can run there again in this process.
    Device,
}
