//! A worker's process: started with its memory, watched until it ends, and how it ended.

use std::io;
use std::os::fd::RawFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use crate::host::WorkerOptions;

/// The variable that tells a worker the descriptor through which it is controlled.
pub const CONTROL_VARIABLE: &str = "LAYERZERO_WORKER_CONTROL";
/// The variable that tells a worker the descriptor behind which tensors lie.
pub const ARENA_VARIABLE: &str = "LAYERZERO_WORKER_ARENA";

/// How a process ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// By itself.
    Exited(i32),
    /// By a signal.
    Signalled(i32),
    /// For want of memory.
    OutOfMemory,
}

/// A process that is watched.
#[derive(Debug)]
pub struct Process {
    id: i32,
    killed: AtomicBool,
    ending: OnceLock<Ending>,
}

impl Process {
    /// Starts a worker; `ended` is called once it has ended, on a thread of its own.
    pub fn start(
        options: &WorkerOptions,
        control: RawFd,
        arena: RawFd,
        ended: impl FnOnce() + Send + 'static,
    ) -> io::Result<Arc<Process>> {
        let kills_before = kernel_kills();
        let mut command = Command::new(&options.program);
        command.args(&options.arguments).envs(options.environment.iter().map(|(name, value)| (name, value)));
        command.env(CONTROL_VARIABLE, control.to_string()).env(ARENA_VARIABLE, arena.to_string());
        command.stdin(Stdio::null());
        let limit = options.memory_limit;
        // SAFETY: only calls that are safe between fork and exec: descriptors, a limit, a signal.
        unsafe {
            command.pre_exec(move || {
                for descriptor in [control, arena] {
                    if libc::fcntl(descriptor, libc::F_SETFD, 0) < 0 {
                        return Err(io::Error::last_os_error());
                    }
                }
                if let Some(bytes) = limit {
                    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
                    if libc::setrlimit(libc::RLIMIT_AS, &raw const limit) != 0 {
                        return Err(io::Error::last_os_error());
                    }
                }
                // A worker does not outlive its host.
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let child = command.spawn()?;
        let id = i32::try_from(child.id()).map_err(io::Error::other)?;
        let process = Arc::new(Process { id, killed: AtomicBool::new(false), ending: OnceLock::new() });
        let watched = Arc::clone(&process);
        thread::Builder::new().name("lz-worker-watch".to_owned()).spawn(move || {
            // `child` is not waited for by std: its resource usage says whether memory was the problem.
            let _child = child;
            let ending = wait(watched.id, limit, kills_before, &watched.killed);
            watched.ending.set(ending).ok();
            ended();
        })?;
        Ok(process)
    }

    /// Its number.
    pub fn id(&self) -> i32 {
        self.id
    }

    /// How it ended; `None` while it runs.
    pub fn ending(&self) -> Option<&Ending> {
        self.ending.get()
    }

    /// Kills it and waits until it is gone, so that it writes nothing more.
    pub fn kill(&self) {
        if self.ending.get().is_none() {
            self.killed.store(true, Ordering::SeqCst);
            // SAFETY: our child, not yet waited for, so the number is still its own.
            unsafe { libc::kill(self.id, libc::SIGKILL) };
        }
        let patience = Instant::now();
        while self.ending.get().is_none() && patience.elapsed() < Duration::from_secs(5) {
            thread::sleep(Duration::from_micros(200));
        }
    }
}

fn wait(id: i32, limit: Option<u64>, kills_before: u64, killed: &AtomicBool) -> Ending {
    let mut status = 0;
    // SAFETY: zeroes are a value of this structure, and the call fills it in.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    loop {
        // SAFETY: our child; both places are ours.
        let waited = unsafe { libc::wait4(id, &raw mut status, 0, &raw mut usage) };
        if waited == id {
            break;
        }
        if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return Ending::Exited(-1);
        }
    }
    let peak = u64::try_from(usage.ru_maxrss).unwrap_or(0) * 1024;
    let near_limit = limit.is_some_and(|limit| peak > limit / 10 * 7);
    if libc::WIFSIGNALED(status) {
        let signal = libc::WTERMSIG(status);
        let by_kernel =
            signal == libc::SIGKILL && !killed.load(Ordering::SeqCst) && kernel_kills() > kills_before;
        if by_kernel || (near_limit && !killed.load(Ordering::SeqCst)) {
            return Ending::OutOfMemory;
        }
        return Ending::Signalled(signal);
    }
    if near_limit { Ending::OutOfMemory } else { Ending::Exited(libc::WEXITSTATUS(status)) }
}

/// How many processes the system has killed for want of memory.
fn kernel_kills() -> u64 {
    let text = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
    line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}
