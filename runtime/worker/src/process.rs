//! A worker process: spawned with its shared memory and watched until it terminates.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::fork;
use crate::options::WorkerOptions;
use crate::sandbox::SANDBOX_VARIABLE;
use crate::termination::Termination;

/// The environment variable with the file descriptor of the control memory.
pub const CONTROL_VARIABLE: &str = "LAYERZERO_WORKER_CONTROL";
/// The environment variable with the file descriptor of the arena.
pub const ARENA_VARIABLE: &str = "LAYERZERO_WORKER_ARENA";

/// Polling interval for the memory of a worker with a limit. A process that touches 10 GB/s grows by 50 MB per interval.
const MEMORY_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A watched process.
#[derive(Debug)]
pub struct Process {
    id: i32,
    /// The fork generation of the process that spawned it, which alone may kill it.
    generation: u64,
    killed: AtomicBool,
    /// Whether it was reaped; afterwards its process id may be reused.
    reaped: Mutex<bool>,
    termination: OnceLock<Termination>,
}

impl Process {
    /// Spawns a worker. `on_termination` is called once, on the watch thread.
    pub fn start(
        options: &WorkerOptions,
        control: RawFd,
        arena: RawFd,
        on_termination: impl FnOnce() + Send + 'static,
    ) -> io::Result<Arc<Process>> {
        let watch = Watch {
            limit: options.memory_limit,
            cgroup: options.cgroup.clone(),
            oom_kills: oom_kill_count(options.cgroup.as_deref()),
        };
        let mut command = command(options, control, arena)?;
        let (started, outcome) = mpsc::sync_channel(1);
        let generation = fork::generation();
        // The watch thread also spawns the worker: a worker is killed when the thread that spawned it exits (`PR_SET_PDEATHSIG`), and
        // the caller's thread may exit long before the process does.
        thread::Builder::new().name("lz-worker-watch".to_owned()).spawn(move || {
            let spawned = command.spawn().and_then(|child| {
                let id = i32::try_from(child.id()).map_err(io::Error::other)?;
                // Not reaped by std: the watch thread also polls its memory.
                Ok(Arc::new(Process {
                    id,
                    generation,
                    killed: AtomicBool::new(false),
                    reaped: Mutex::new(false),
                    termination: OnceLock::new(),
                }))
            });
            let process = spawned.as_ref().ok().map(Arc::clone);
            // The receiver is still waiting, so this cannot fail.
            let _ = started.send(spawned);
            if let Some(process) = process {
                process.termination.set(watch.wait_for_termination(&process)).ok();
                on_termination();
            }
        })?;
        outcome.recv().map_err(io::Error::other)?
    }

    /// Its process id.
    pub fn id(&self) -> i32 {
        self.id
    }

    /// How it terminated; `None` while it runs.
    pub fn termination(&self) -> Option<&Termination> {
        self.termination.get()
    }

    /// Kills it and waits until it has terminated, so that it writes nothing more. No effect in a forked child: the process belongs to
    /// the parent.
    pub fn kill(&self) {
        if self.generation != fork::generation() {
            return;
        }
        self.killed.store(true, Ordering::SeqCst);
        self.signal();
        let killed_at = Instant::now();
        while self.termination.get().is_none() && killed_at.elapsed() < Duration::from_secs(5) {
            thread::sleep(Duration::from_micros(200));
        }
    }

    /// Sends SIGKILL to it and its process group, unless it was reaped.
    fn signal(&self) {
        let reaped = self.reaped.lock().unwrap_or_else(PoisonError::into_inner);
        if !*reaped {
            // SAFETY: our child, not yet reaped, so the process id and group id are still its own.
            unsafe {
                libc::kill(self.id, libc::SIGKILL);
                libc::kill(-self.id, libc::SIGKILL);
            }
        }
    }
}

/// The command that spawns a worker.
fn command(options: &WorkerOptions, control: RawFd, arena: RawFd) -> io::Result<Command> {
    let mut command = Command::new(&options.program);
    command.args(&options.arguments).envs(options.environment.iter().map(|(name, value)| (name, value)));
    command.env(CONTROL_VARIABLE, control.to_string()).env(ARENA_VARIABLE, arena.to_string());
    command.env(SANDBOX_VARIABLE, options.sandbox.text());
    command.stdin(Stdio::null());
    // A separate process group: Ctrl-C in a terminal goes to the host, which then handles its worker.
    command.process_group(0);
    let group = match &options.cgroup {
        Some(folder) => Some(CString::new(folder.join("cgroup.procs").as_os_str().as_bytes())?),
        None => None,
    };
    let host = std::process::id();
    // SAFETY: only async-signal-safe calls between fork and exec.
    unsafe {
        command.pre_exec(move || {
            for descriptor in [control, arena] {
                if libc::fcntl(descriptor, libc::F_SETFD, 0) < 0 {
                    return Err(io::Error::last_os_error());
                }
            }
            if let Some(group) = &group {
                write_to(group, b"0")?;
            }
            // The OOM killer should choose the worker before its host.
            write_to(c"/proc/self/oom_score_adj", b"1000").ok();
            // A worker must not outlive its host, even if the host has just terminated.
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            if libc::getppid().cast_unsigned() != host {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            Ok(())
        });
    }
    Ok(command)
}

/// Writes bytes to a file using only system calls.
fn write_to(path: &std::ffi::CStr, bytes: &[u8]) -> io::Result<()> {
    // SAFETY: a null-terminated path and a valid slice; the descriptor is closed by its owner.
    unsafe {
        let descriptor = libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        let descriptor = OwnedFd::from_raw_fd(descriptor);
        let written = libc::write(descriptor.as_raw_fd(), bytes.as_ptr().cast(), bytes.len());
        if written < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// The watch parameters of a process.
#[derive(Debug)]
struct Watch {
    limit: Option<u64>,
    cgroup: Option<std::path::PathBuf>,
    /// The OOM kill count when it was spawned.
    oom_kills: u64,
}

impl Watch {
    /// Waits for termination, and kills the process if it exceeds its memory limit.
    fn wait_for_termination(&self, process: &Process) -> Termination {
        let id = process.id;
        let above = self.limit.and_then(|limit| {
            Some(Termination::MemoryLimitExceeded { bytes: wait_for_memory_limit(id, limit)?, limit })
        });
        if above.is_some() {
            process.signal();
        }
        let pid = id.cast_unsigned();
        // SAFETY: an all-zero `siginfo_t` is valid and filled in by the call; the process is not reaped.
        let wait = || unsafe {
            let mut information: libc::siginfo_t = std::mem::zeroed();
            libc::waitid(libc::P_PID, pid, &raw mut information, libc::WEXITED | libc::WNOWAIT)
        };
        while wait() != 0 {
            if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                // Other code in this process waited for all children and consumed the status.
                *process.reaped.lock().unwrap_or_else(PoisonError::into_inner) = true;
                return above.unwrap_or(Termination::Unknown);
            }
        }
        // Kill its process group: its descendants also have the shared memory.
        process.signal();
        let mut reaped = process.reaped.lock().unwrap_or_else(PoisonError::into_inner);
        let mut status = 0;
        // SAFETY: our terminated child and a valid pointer to the status.
        let waited = unsafe { libc::waitpid(id, &raw mut status, 0) };
        *reaped = true;
        drop(reaped);
        if above.is_some() || waited != id {
            return above.unwrap_or(Termination::Unknown);
        }
        if !libc::WIFSIGNALED(status) {
            return Termination::Exited(libc::WEXITSTATUS(status));
        }
        match libc::WTERMSIG(status) {
            libc::SIGKILL
                if !process.killed.load(Ordering::SeqCst)
                    && oom_kill_count(self.cgroup.as_deref()) > self.oom_kills =>
            {
                Termination::OomKilled
            }
            signal => Termination::Signaled(signal),
        }
    }
}

/// Polls a process until it terminates (`None`) or has more than `limit` bytes of private memory.
fn wait_for_memory_limit(id: i32, limit: u64) -> Option<u64> {
    // SAFETY: takes integers and returns a descriptor or -1.
    let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, id, 0) };
    let descriptor = RawFd::try_from(descriptor).ok().filter(|descriptor| *descriptor >= 0)?;
    // SAFETY: just created, with no other owner.
    let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
    let time = i32::try_from(MEMORY_POLL_INTERVAL.as_millis()).unwrap_or(1);
    loop {
        let mut waits = libc::pollfd { fd: descriptor.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid structure.
        if unsafe { libc::poll(&raw mut waits, 1, time) } > 0 {
            return None;
        }
        let bytes = private_memory(id)?;
        if bytes > limit {
            return Some(bytes);
        }
    }
}

/// Resident private memory: without mapped files and the shared memory for tensors.
fn private_memory(id: i32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{id}/statm")).ok()?;
    let mut pages = text.split_whitespace().skip(1).map(|number| number.parse::<u64>().unwrap_or(0));
    let (resident, shared) = (pages.next()?, pages.next()?);
    // SAFETY: has no memory effects.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    Some(resident.saturating_sub(shared) * u64::try_from(page).unwrap_or(4096))
}

/// The number of processes that the OOM killer has terminated: in the cgroup if there is one, otherwise system-wide.
fn oom_kill_count(cgroup: Option<&Path>) -> u64 {
    let files = match cgroup {
        // cgroup v2 and v1.
        Some(folder) => vec![folder.join("memory.events"), folder.join("memory.oom_control")],
        None => vec!["/proc/vmstat".into()],
    };
    let text = files.iter().find_map(|file| std::fs::read_to_string(file).ok()).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
    line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}
