//! A worker's process: started with its memory, watched until it ends, and how it ended.

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

use crate::ending::Ending;
use crate::fork;
use crate::options::WorkerOptions;

/// The variable that tells a worker the descriptor through which it is controlled.
pub const CONTROL_VARIABLE: &str = "LAYERZERO_WORKER_CONTROL";
/// The variable that tells a worker the descriptor behind which tensors lie.
pub const ARENA_VARIABLE: &str = "LAYERZERO_WORKER_ARENA";

/// How often the memory of a worker with a limit is looked at. A process that touches 10 GB/s gains 50 MB in between.
const LOOK_AT_MEMORY: Duration = Duration::from_millis(5);

/// A process that is watched.
#[derive(Debug)]
pub struct Process {
    id: i32,
    /// The process that started it, which alone may kill it.
    generation: u64,
    killed: AtomicBool,
    /// Whether it was waited for, after which its number may be another process's.
    reaped: Mutex<bool>,
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
        let watch = Watch {
            limit: options.memory_limit,
            cgroup: options.cgroup.clone(),
            kills: kernel_kills(options.cgroup.as_deref()),
        };
        let mut command = command(options, control, arena)?;
        let (started, outcome) = mpsc::sync_channel(1);
        let generation = fork::generation();
        // The thread that watches a worker also starts it: a worker is killed when the thread that started it ends
        // (`PR_SET_PDEATHSIG`), and the caller's thread may end long before the process does.
        thread::Builder::new().name("lz-worker-watch".to_owned()).spawn(move || {
            let spawned = command.spawn().and_then(|child| {
                let id = i32::try_from(child.id()).map_err(io::Error::other)?;
                // `child` is not waited for by std: whoever waits must also look at its memory.
                Ok(Arc::new(Process {
                    id,
                    generation,
                    killed: AtomicBool::new(false),
                    reaped: Mutex::new(false),
                    ending: OnceLock::new(),
                }))
            });
            let process = spawned.as_ref().ok().map(Arc::clone);
            // Whoever asked waits for it.
            let _ = started.send(spawned);
            if let Some(process) = process {
                process.ending.set(watch.until_it_ends(&process)).ok();
                ended();
            }
        })?;
        outcome.recv().map_err(io::Error::other)?
    }

    /// Its number.
    pub fn id(&self) -> i32 {
        self.id
    }

    /// How it ended; `None` while it runs.
    pub fn ending(&self) -> Option<&Ending> {
        self.ending.get()
    }

    /// Kills it and waits until it is gone, so that it writes nothing more. In a forked child nothing is done: the process
    /// belongs to the parent.
    pub fn kill(&self) {
        if self.generation != fork::generation() {
            return;
        }
        self.killed.store(true, Ordering::SeqCst);
        self.signal();
        let patience = Instant::now();
        while self.ending.get().is_none() && patience.elapsed() < Duration::from_secs(5) {
            thread::sleep(Duration::from_micros(200));
        }
    }

    /// Kills it with everything in its process group, unless it was waited for already.
    fn signal(&self) {
        let reaped = self.reaped.lock().unwrap_or_else(PoisonError::into_inner);
        if !*reaped {
            // SAFETY: our child, not yet waited for, so the number is still its own and that of its group.
            unsafe {
                libc::kill(self.id, libc::SIGKILL);
                libc::kill(-self.id, libc::SIGKILL);
            }
        }
    }
}

/// What starts a worker.
fn command(options: &WorkerOptions, control: RawFd, arena: RawFd) -> io::Result<Command> {
    let mut command = Command::new(&options.program);
    command.args(&options.arguments).envs(options.environment.iter().map(|(name, value)| (name, value)));
    command.env(CONTROL_VARIABLE, control.to_string()).env(ARENA_VARIABLE, arena.to_string());
    command.stdin(Stdio::null());
    // A group of its own: Ctrl-C in a terminal is for the host, which then decides about its worker.
    command.process_group(0);
    let group = match &options.cgroup {
        Some(folder) => Some(CString::new(folder.join("cgroup.procs").as_os_str().as_bytes())?),
        None => None,
    };
    let host = std::process::id();
    // SAFETY: only calls that are safe between fork and exec: descriptors, files, a signal.
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
            // When the system runs out of memory, it takes the worker before its host.
            write_to(c"/proc/self/oom_score_adj", b"1000").ok();
            // A worker does not outlive its host, not even one that ended a moment ago.
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            if libc::getppid().cast_unsigned() != host {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            Ok(())
        });
    }
    Ok(command)
}

/// Writes a few bytes to a file, with nothing but system calls.
fn write_to(path: &std::ffi::CStr, bytes: &[u8]) -> io::Result<()> {
    // SAFETY: a terminated path and bytes that are there; the descriptor is closed by its owner.
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

/// What is known of a process before it runs.
#[derive(Debug)]
struct Watch {
    limit: Option<u64>,
    cgroup: Option<std::path::PathBuf>,
    /// How many processes the system had killed for want of memory when it started.
    kills: u64,
}

impl Watch {
    /// Waits for the end, and brings it about when the process has more memory than it may.
    fn until_it_ends(&self, process: &Process) -> Ending {
        let id = process.id;
        let above =
            self.limit.and_then(|limit| Some(Ending::AboveLimit { bytes: outgrown(id, limit)?, limit }));
        if above.is_some() {
            process.signal();
        }
        let pid = id.cast_unsigned();
        // SAFETY: zeroes are a value of this structure, which the call fills in; the process stays to be waited for.
        let wait = || unsafe {
            let mut information: libc::siginfo_t = std::mem::zeroed();
            libc::waitid(libc::P_PID, pid, &raw mut information, libc::WEXITED | libc::WNOWAIT)
        };
        while wait() != 0 {
            if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                // Another part of this program waits for all of its children and took the status.
                *process.reaped.lock().unwrap_or_else(PoisonError::into_inner) = true;
                return above.unwrap_or(Ending::Unknown);
            }
        }
        // What it started in its group ends with it: its descendants have the shared memory as well.
        process.signal();
        let mut reaped = process.reaped.lock().unwrap_or_else(PoisonError::into_inner);
        let mut status = 0;
        // SAFETY: our child, which has ended; the place is ours.
        let waited = unsafe { libc::waitpid(id, &raw mut status, 0) };
        *reaped = true;
        drop(reaped);
        if above.is_some() || waited != id {
            return above.unwrap_or(Ending::Unknown);
        }
        if !libc::WIFSIGNALED(status) {
            return Ending::Exited(libc::WEXITSTATUS(status));
        }
        match libc::WTERMSIG(status) {
            libc::SIGKILL
                if !process.killed.load(Ordering::SeqCst)
                    && kernel_kills(self.cgroup.as_deref()) > self.kills =>
            {
                Ending::KilledForMemory
            }
            signal => Ending::Signalled(signal),
        }
    }
}

/// Looks at a process until it ends (`None`) or has more than `limit` bytes of its own.
fn outgrown(id: i32, limit: u64) -> Option<u64> {
    // SAFETY: it takes numbers and gives a descriptor or -1.
    let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, id, 0) };
    let descriptor = RawFd::try_from(descriptor).ok().filter(|descriptor| *descriptor >= 0)?;
    // SAFETY: just made, and owned by nobody else.
    let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
    let time = i32::try_from(LOOK_AT_MEMORY.as_millis()).unwrap_or(1);
    loop {
        let mut waits = libc::pollfd { fd: descriptor.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure, which is there.
        if unsafe { libc::poll(&raw mut waits, 1, time) } > 0 {
            return None;
        }
        let bytes = own_memory(id)?;
        if bytes > limit {
            return Some(bytes);
        }
    }
}

/// Resident memory that nobody shares with the process: neither files nor the memory that tensors cross through.
fn own_memory(id: i32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{id}/statm")).ok()?;
    let mut pages = text.split_whitespace().skip(1).map(|number| number.parse::<u64>().unwrap_or(0));
    let (resident, shared) = (pages.next()?, pages.next()?);
    // SAFETY: it only returns a number.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    Some(resident.saturating_sub(shared) * u64::try_from(page).unwrap_or(4096))
}

/// How many processes the system has killed for want of memory: in a control group if there is one, otherwise at all.
fn kernel_kills(cgroup: Option<&Path>) -> u64 {
    let files = match cgroup {
        // The two versions of control groups.
        Some(folder) => vec![folder.join("memory.events"), folder.join("memory.oom_control")],
        None => vec!["/proc/vmstat".into()],
    };
    let text = files.iter().find_map(|file| std::fs::read_to_string(file).ok()).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
    line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}
