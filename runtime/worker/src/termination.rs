//! How a worker process terminated, with readable names for signals.

use std::fmt;

/// How a process terminated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Termination {
    /// It exited with this code.
    Exited(i32),
    /// It was terminated by this signal.
    Signaled(i32),
    /// Unknown: other code in this process waited for all children and consumed the exit status.
    Unknown,
    /// The kernel's OOM killer terminated it.
    OomKilled,
    /// The host killed it because its private memory exceeded the limit.
    MemoryLimitExceeded {
        /// Bytes of private memory that it had.
        bytes: u64,
        /// The limit in bytes.
        limit: u64,
    },
}

impl fmt::Display for Termination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Termination::Exited(code) => write!(f, "exit code {code}"),
            Termination::Signaled(signal) => {
                match signal_name(*signal) {
                    Some(name) => write!(f, "signal {signal} ({name})")?,
                    None => write!(f, "signal {signal}")?,
                }
                match signal_hint(*signal) {
                    Some(hint) => write!(f, ": {hint}"),
                    None => Ok(()),
                }
            }
            Termination::Unknown => f.write_str(
                "unknown exit status, because other code in this process waited for all child processes",
            ),
            Termination::OomKilled => {
                f.write_str("signal 9 (SIGKILL): killed by the system's OOM killer; out of memory")
            }
            Termination::MemoryLimitExceeded { bytes, limit } => write!(
                f,
                "stopped by the host: it used {} MiB of private memory, more than its limit of {} MiB (`worker.memory_limit_mb`)",
                bytes >> 20,
                limit >> 20
            ),
        }
    }
}

/// The name of a signal.
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
            "killed by another process, often the system's OOM killer or a container's memory limit (see `dmesg`)",
        ),
        libc::SIGSEGV => Some("invalid memory access"),
        libc::SIGBUS => Some("access beyond the end of a mapped file, or misaligned access"),
        libc::SIGABRT => {
            Some("it called abort, for example after a failed assertion or an uncaught exception")
        }
        libc::SIGILL => Some("illegal instruction for this CPU"),
        libc::SIGFPE => Some("integer division by zero or overflow"),
        libc::SIGSYS => Some("system call not permitted"),
        libc::SIGXCPU => Some("CPU time limit exceeded"),
        libc::SIGXFSZ => Some("file size limit exceeded"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_and_exit_codes_are_named() {
        for (termination, text) in [
            (Termination::Exited(3), "exit code 3"),
            (Termination::Signaled(11), "signal 11 (SIGSEGV): "),
            (Termination::Signaled(7), "signal 7 (SIGBUS): "),
            (Termination::Signaled(9), "OOM killer"),
            (Termination::Signaled(15), "signal 15 (SIGTERM)"),
            (Termination::Signaled(libc::SIGRTMIN() + 2), "(SIGRTMIN+2)"),
            (Termination::OomKilled, "signal 9 (SIGKILL)"),
        ] {
            assert!(termination.to_string().contains(text), "{text} in {termination}");
        }
    }
}
