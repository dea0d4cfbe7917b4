//! How a worker's process ended, and how that is said.

use std::fmt;

/// How a process ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// By itself.
    Exited(i32),
    /// By a signal.
    Signalled(i32),
    /// Nobody knows: another part of this program waited for all of its children and took the status.
    Unknown,
    /// The system killed it for want of memory.
    KilledForMemory,
    /// We killed it: it had this many bytes of its own, above its limit.
    AboveLimit {
        /// What it had.
        bytes: u64,
        /// What it may have.
        limit: u64,
    },
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ending::Exited(code) => write!(f, "exit code {code}"),
            Ending::Signalled(signal) => {
                match signal_name(*signal) {
                    Some(name) => write!(f, "signal {signal} ({name})")?,
                    None => write!(f, "signal {signal}")?,
                }
                match signal_hint(*signal) {
                    Some(hint) => write!(f, ": {hint}"),
                    None => Ok(()),
                }
            }
            Ending::Unknown => f.write_str(
                "nobody knows how, because another part of this program waited for all child processes",
            ),
            Ending::KilledForMemory => {
                f.write_str("signal 9 (SIGKILL): killed by the system, which was out of memory for it")
            }
            Ending::AboveLimit { bytes, limit } => write!(
                f,
                "stopped with {} MiB of memory of its own, more than its limit of {} MiB",
                bytes >> 20,
                limit >> 20
            ),
        }
    }
}

/// The name of a signal, as the manual has it.
fn signal_name(signal: i32) -> Option<String> {
    let name = match signal {
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGILL => "SIGILL",
        libc::SIGTRAP => "SIGTRAP",
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGKILL => "SIGKILL",
        libc::SIGUSR1 => "SIGUSR1",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGUSR2 => "SIGUSR2",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGALRM => "SIGALRM",
        libc::SIGTERM => "SIGTERM",
        libc::SIGSTKFLT => "SIGSTKFLT",
        libc::SIGXCPU => "SIGXCPU",
        libc::SIGXFSZ => "SIGXFSZ",
        libc::SIGVTALRM => "SIGVTALRM",
        libc::SIGPROF => "SIGPROF",
        libc::SIGIO => "SIGIO",
        libc::SIGPWR => "SIGPWR",
        libc::SIGSYS => "SIGSYS",
        _ => {
            let first = libc::SIGRTMIN();
            return (first..=libc::SIGRTMAX())
                .contains(&signal)
                .then(|| format!("SIGRTMIN+{}", signal - first));
        }
    };
    Some(name.to_owned())
}

/// What a signal usually means.
fn signal_hint(signal: i32) -> Option<&'static str> {
    match signal {
        libc::SIGKILL => Some(
            "killed from outside, often by the system's OOM killer or a container's memory limit (see `dmesg`)",
        ),
        libc::SIGSEGV => Some("access to memory that is not there"),
        libc::SIGBUS => Some("access to memory behind the end of a file, or misaligned"),
        libc::SIGABRT => {
            Some("it called abort, as after a failed assertion or an exception that nobody caught")
        }
        libc::SIGILL => Some("an instruction that this processor does not have"),
        libc::SIGFPE => Some("an integer division by zero or overflow"),
        libc::SIGSYS => Some("a system call that is not allowed here"),
        libc::SIGXCPU => Some("above its limit of processor time"),
        libc::SIGXFSZ => Some("above its limit of file size"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_and_exit_codes_are_named() {
        for (ending, text) in [
            (Ending::Exited(3), "exit code 3"),
            (Ending::Signalled(11), "signal 11 (SIGSEGV): "),
            (Ending::Signalled(7), "signal 7 (SIGBUS): "),
            (Ending::Signalled(9), "OOM killer"),
            (Ending::Signalled(15), "signal 15 (SIGTERM)"),
            (Ending::Signalled(libc::SIGRTMIN() + 2), "(SIGRTMIN+2)"),
            (Ending::KilledForMemory, "signal 9 (SIGKILL)"),
        ] {
            assert!(ending.to_string().contains(text), "{text} in {ending}");
        }
    }
}
