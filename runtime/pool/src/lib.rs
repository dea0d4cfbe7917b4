//! One thread pool for every kernel.
//!
//! [`for_each`] distributes the tasks of a call over the caller's thread and the pool's workers. The
//! partition of a call into tasks must not depend on the number of threads; then its results do not either. A
//! call runs on the caller's thread alone if it is nested in another one (no oversubscription), if the pool
//! is busy with another call, or if the thread limit is one. Workers spin for a few microseconds, then sleep.
//! A forked child has no workers and starts its own on first use. Nothing here depends on an operation.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use lz_core::device::DeviceDetail;
use lz_device::detect_cpu;

/// How long an idle worker spins for the next call before it sleeps.
const SPIN_DURATION: Duration = Duration::from_micros(30);

/// Environment variable that limits the number of threads.
pub const THREADS_VARIABLE: &str = "LAYERZERO_THREADS";

/// Thread count requested by [`set_threads`]; 0 if unset.
static REQUESTED_THREADS: AtomicUsize = AtomicUsize::new(0);

/// This process's pool, created on first use. Pools are never freed: a worker may access its pool at any
/// time.
static POOL: AtomicPtr<Pool> = AtomicPtr::new(std::ptr::null_mut());

thread_local! {
    /// Whether this thread is currently running a task.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
    /// Thread limit set by [`with_threads`] for calls of this thread; 0 is none.
    static LIMIT: Cell<usize> = const { Cell::new(0) };
}

/// Sets the number of threads that calls may use, including the caller's; 0 restores the default.
///
/// The default is `LAYERZERO_THREADS`, else `OMP_NUM_THREADS`, else the number of physical cores allowed by
/// affinity and cgroup.
pub fn set_threads(threads: usize) {
    REQUESTED_THREADS.store(threads, Ordering::Relaxed);
}

/// Number of threads that a call of this thread may use, including itself.
pub fn threads() -> usize {
    if INSIDE.get() {
        return 1;
    }
    let threads = match REQUESTED_THREADS.load(Ordering::Relaxed) {
        0 => default_threads(),
        requested => requested,
    };
    match LIMIT.get() {
        0 => threads,
        limit => threads.min(limit),
    }
}

/// Runs `body` with calls of this thread limited to `threads` threads.
pub fn with_threads<R>(threads: usize, body: impl FnOnce() -> R) -> R {
    struct Restore(usize);
    impl Drop for Restore {
        fn drop(&mut self) {
            LIMIT.set(self.0);
        }
    }
    let _restore = Restore(LIMIT.replace(threads));
    body()
}

fn default_threads() -> usize {
    static DEFAULT: OnceLock<usize> = OnceLock::new();
    *DEFAULT.get_or_init(|| {
        let named = |name| std::env::var(name).ok()?.trim().parse::<usize>().ok().filter(|&count| count > 0);
        let cores = || match detect_cpu().detail {
            DeviceDetail::Cpu(cpu) => cpu.cores.max(1) as usize,
            _ => 1,
        };
        named(THREADS_VARIABLE).or_else(|| named("OMP_NUM_THREADS")).unwrap_or_else(cores)
    })
}

/// Runs `body` for each task of `0..tasks`, on this thread and on workers. Returns when all are done; a panic
/// of a task resumes here.
///
/// Not generic over `body`: each kernel would otherwise be compiled once for each of the loops below.
pub fn for_each(tasks: usize, body: &(dyn Fn(usize) + Sync)) {
    let threads = threads().min(tasks);
    if threads <= 1 {
        (0..tasks).for_each(body);
    } else if !run_shared(tasks, threads, body) {
        // As on the pool: nested calls stay on this thread, even if the pool becomes free in the meantime.
        let _inside = TaskGuard::enter();
        (0..tasks).for_each(body);
    }
}

/// As [`for_each`] if `parallel`, otherwise on this thread alone.
#[inline(never)]
pub fn for_each_if(parallel: bool, tasks: usize, body: &(dyn Fn(usize) + Sync)) {
    if parallel { for_each(tasks, body) } else { (0..tasks).for_each(body) }
}

/// Marks this thread as running tasks until dropped, also by a panic.
struct TaskGuard;

impl TaskGuard {
    fn enter() -> TaskGuard {
        INSIDE.set(true);
        TaskGuard
    }
}

impl Drop for TaskGuard {
    fn drop(&mut self) {
        INSIDE.set(false);
    }
}

/// A call on the pool, on the stack of its caller.
struct Job<'a> {
    body: &'a (dyn Fn(usize) + Sync),
    tasks: usize,
    next: AtomicUsize,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

impl Job<'_> {
    fn work(&self) {
        let inside = TaskGuard::enter();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            loop {
                let task = self.next.fetch_add(1, Ordering::Relaxed);
                if task >= self.tasks {
                    return;
                }
                (self.body)(task);
            }
        }));
        drop(inside);
        if let Err(payload) = outcome {
            // After a panic no further task is started.
            self.next.store(self.tasks, Ordering::Relaxed);
            lock(&self.panic).get_or_insert(payload);
        }
    }
}

struct Pool {
    /// Held by the call that uses the workers.
    exclusive: Mutex<()>,
    state: Mutex<State>,
    /// Incremented with every job, so that spinning workers see one without taking the lock.
    posted: AtomicU64,
    /// Workers that are running the current job.
    inside: AtomicUsize,
    wake: Condvar,
}

struct State {
    /// The current job; valid while it is set, and until every worker that took it has left.
    job: Option<*const Job<'static>>,
    /// How many more workers may take it.
    seats: usize,
    workers: usize,
    asleep: usize,
}

// SAFETY: the pointer to a job is used only between taking and releasing a seat, while the job's caller
// waits.
unsafe impl Send for State {}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn pool() -> &'static Pool {
    let mut pool = POOL.load(Ordering::Acquire);
    if pool.is_null() {
        static FORKS: OnceLock<()> = OnceLock::new();
        FORKS.get_or_init(reset_after_fork);
        let fresh = Box::into_raw(Box::new(Pool {
            exclusive: Mutex::new(()),
            state: Mutex::new(State { job: None, seats: 0, workers: 0, asleep: 0 }),
            posted: AtomicU64::new(0),
            inside: AtomicUsize::new(0),
            wake: Condvar::new(),
        }));
        let won = POOL.compare_exchange(std::ptr::null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire);
        pool = match won {
            Ok(_) => fresh,
            Err(other) => {
                // SAFETY: no other thread has seen the new pool.
                drop(unsafe { Box::from_raw(fresh) });
                other
            }
        };
    }
    // SAFETY: pools are never freed.
    unsafe { &*pool }
}

/// A forked child starts without a pool: it has neither the workers nor their locks.
fn reset_after_fork() {
    #[cfg(unix)]
    {
        extern "C" fn reset() {
            POOL.store(std::ptr::null_mut(), Ordering::Release);
        }
        // SAFETY: the handler only stores to an atomic, which is async-signal-safe.
        unsafe { libc::pthread_atfork(None, None, Some(reset)) };
    }
}

/// Runs a job on the pool; `false` if another call uses it.
fn run_shared(tasks: usize, threads: usize, body: &(dyn Fn(usize) + Sync)) -> bool {
    let pool = pool();
    let _exclusive = match pool.exclusive.try_lock() {
        Ok(exclusive) => exclusive,
        // A task of a previous call panicked, which was propagated to its caller; the pool is intact.
        Err(TryLockError::Poisoned(exclusive)) => exclusive.into_inner(),
        Err(TryLockError::WouldBlock) => return false,
    };
    let job = Job { body, tasks, next: AtomicUsize::new(0), panic: Mutex::new(None) };
    let asleep = {
        let mut state = lock(&pool.state);
        while state.workers + 1 < threads && spawn_worker(pool) {
            state.workers += 1;
        }
        // Erases only the lifetime; see the wait below.
        state.job = Some((&raw const job).cast());
        state.seats = threads - 1;
        pool.posted.fetch_add(1, Ordering::Release);
        state.asleep
    };
    // Wakes as many as needed; spinning workers have already seen the job.
    for _ in 0..asleep.min(threads - 1) {
        pool.wake.notify_one();
    }
    job.work();
    lock(&pool.state).job = None;
    // From here no worker can take the job; those that took it must leave before it is dropped.
    let mut spins = 0u32;
    while pool.inside.load(Ordering::Acquire) != 0 {
        spins += 1;
        if spins < 2_000 { std::hint::spin_loop() } else { std::thread::yield_now() }
    }
    if let Some(payload) = lock(&job.panic).take() {
        resume_unwind(payload);
    }
    true
}

fn spawn_worker(pool: &'static Pool) -> bool {
    let name = "layerzero-cpu".to_owned();
    std::thread::Builder::new().name(name).spawn(move || worker(pool)).is_ok()
}

fn worker(pool: &'static Pool) {
    let mut seen = 0;
    loop {
        seen = wait(pool, seen);
        let job = {
            let mut state = lock(&pool.state);
            match state.job {
                Some(job) if state.seats > 0 => {
                    state.seats -= 1;
                    pool.inside.fetch_add(1, Ordering::Relaxed);
                    job
                }
                _ => continue,
            }
        };
        // SAFETY: a seat was taken while the job was set, and its caller waits until `inside` is 0 again.
        unsafe { (*job).work() };
        pool.inside.fetch_sub(1, Ordering::Release);
    }
}

/// Waits until a job newer than `seen` is posted: spins first, then sleeps.
fn wait(pool: &Pool, seen: u64) -> u64 {
    let begin = Instant::now();
    loop {
        for _ in 0..64 {
            let posted = pool.posted.load(Ordering::Acquire);
            if posted != seen {
                return posted;
            }
            std::hint::spin_loop();
        }
        if begin.elapsed() > SPIN_DURATION {
            break;
        }
    }
    let mut state = lock(&pool.state);
    state.asleep += 1;
    while pool.posted.load(Ordering::Acquire) == seen {
        state = pool.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
    }
    state.asleep -= 1;
    pool.posted.load(Ordering::Acquire)
}

#[cfg(test)]
mod tests;
