//! One pool of threads for every kernel.
//!
//! [`for_each`] hands out the tasks of a call to whoever is free: the caller itself and the pool's workers. How a call is cut
//! into tasks must not depend on the number of threads; then its results do not either. A call stays on the caller's thread
//! when it comes from inside another one (no oversubscription), when the pool is busy with somebody else's call, and when
//! one thread is all that is allowed. Workers wait actively for a few microseconds, then sleep. A process that was forked
//! has no workers: it starts its own when it first needs them. Nothing here knows an operation.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use lz_core::device::DeviceDetail;
use lz_device::detect_cpu;

/// How long a worker waits actively after a call for the next one, before it sleeps.
const AWAKE: Duration = Duration::from_micros(30);

/// The name of the variable that limits the number of threads.
pub const THREADS_VARIABLE: &str = "LAYERZERO_THREADS";

/// Threads that [`set_threads`] asked for; 0 until then.
static WANTED: AtomicUsize = AtomicUsize::new(0);

/// This process's pool, once there is one. Pools are never freed: a worker may look at its own at any time.
static POOL: AtomicPtr<Pool> = AtomicPtr::new(std::ptr::null_mut());

thread_local! {
    /// Whether this thread runs a task just now.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
    /// The limit that [`with_threads`] set for calls of this thread; 0 is none.
    static LIMIT: Cell<usize> = const { Cell::new(0) };
}

/// How many threads calls may use from now on, the caller's own included; 0 goes back to the default.
///
/// The default is `LAYERZERO_THREADS`, else `OMP_NUM_THREADS`, else the physical cores that affinity and the control group leave.
pub fn set_threads(threads: usize) {
    WANTED.store(threads, Ordering::Relaxed);
}

/// How many threads a call of this thread may use, its own included.
pub fn threads() -> usize {
    if INSIDE.get() {
        return 1;
    }
    let threads = match WANTED.load(Ordering::Relaxed) {
        0 => default_threads(),
        wanted => wanted,
    };
    match LIMIT.get() {
        0 => threads,
        limit => threads.min(limit),
    }
}

/// Runs `body` with calls of this thread limited to so many threads.
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

/// Runs `body` for each task of `0..tasks`, on this thread and on workers. Returns when all are done; a panic of one goes on here.
pub fn for_each(tasks: usize, body: &(impl Fn(usize) + Sync)) {
    let threads = threads().min(tasks);
    if threads <= 1 {
        (0..tasks).for_each(body);
    } else if !run_shared(tasks, threads, body) {
        // As on the pool: what its tasks call stays here too, even if the pool is free again by then.
        let _inside = Inside::enter();
        (0..tasks).for_each(body);
    }
}

/// This thread runs tasks until it is dropped, by a panic too.
struct Inside;

impl Inside {
    fn enter() -> Inside {
        INSIDE.set(true);
        Inside
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(false);
    }
}

/// The work of a call on the pool, on the stack of its caller.
struct Job<'a> {
    body: &'a (dyn Fn(usize) + Sync),
    tasks: usize,
    next: AtomicUsize,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

impl Job<'_> {
    fn work(&self) {
        let inside = Inside::enter();
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
            // Nobody needs to start another task of a call that has failed.
            self.next.store(self.tasks, Ordering::Relaxed);
            lock(&self.panic).get_or_insert(payload);
        }
    }
}

struct Pool {
    /// Held by the call that has the workers.
    turn: Mutex<()>,
    state: Mutex<State>,
    /// Grows with every job, so that workers that wait actively see one without the lock.
    posted: AtomicU64,
    /// Workers that are inside the present job.
    inside: AtomicUsize,
    wake: Condvar,
}

struct State {
    /// The present job; valid while it is here, and while a worker that took it has not left.
    job: Option<*const Job<'static>>,
    /// How many more workers may take it.
    seats: usize,
    workers: usize,
    asleep: usize,
}

// SAFETY: the pointer to a job is used only between taking a seat and leaving it, while the job's caller waits.
unsafe impl Send for State {}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn pool() -> &'static Pool {
    let mut pool = POOL.load(Ordering::Acquire);
    if pool.is_null() {
        static FORKS: OnceLock<()> = OnceLock::new();
        FORKS.get_or_init(forget_after_fork);
        let fresh = Box::into_raw(Box::new(Pool {
            turn: Mutex::new(()),
            state: Mutex::new(State { job: None, seats: 0, workers: 0, asleep: 0 }),
            posted: AtomicU64::new(0),
            inside: AtomicUsize::new(0),
            wake: Condvar::new(),
        }));
        let won = POOL.compare_exchange(std::ptr::null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire);
        pool = match won {
            Ok(_) => fresh,
            Err(other) => {
                // SAFETY: nobody else has seen the fresh one.
                drop(unsafe { Box::from_raw(fresh) });
                other
            }
        };
    }
    // SAFETY: pools are never freed.
    unsafe { &*pool }
}

/// A forked child starts without a pool: the workers and whatever locks they held stayed behind.
fn forget_after_fork() {
    #[cfg(unix)]
    {
        extern "C" fn forget() {
            POOL.store(std::ptr::null_mut(), Ordering::Release);
        }
        // SAFETY: the handler only stores to an atomic, which is allowed in a child of a process with threads.
        unsafe { libc::pthread_atfork(None, None, Some(forget)) };
    }
}

/// Runs a job on the pool; `false` if somebody else has it.
fn run_shared(tasks: usize, threads: usize, body: &(dyn Fn(usize) + Sync)) -> bool {
    let pool = pool();
    let _turn = match pool.turn.try_lock() {
        Ok(turn) => turn,
        // A task of the call before panicked, which went on to its caller; the pool is whole.
        Err(TryLockError::Poisoned(turn)) => turn.into_inner(),
        Err(TryLockError::WouldBlock) => return false,
    };
    let job = Job { body, tasks, next: AtomicUsize::new(0), panic: Mutex::new(None) };
    let asleep = {
        let mut state = lock(&pool.state);
        while state.workers + 1 < threads && start_worker(pool) {
            state.workers += 1;
        }
        // Only the lifetime is forgotten; see the wait below.
        state.job = Some((&raw const job).cast());
        state.seats = threads - 1;
        pool.posted.fetch_add(1, Ordering::Release);
        state.asleep
    };
    // As many as are needed; those that wait actively have seen it already.
    for _ in 0..asleep.min(threads - 1) {
        pool.wake.notify_one();
    }
    job.work();
    lock(&pool.state).job = None;
    // From here no worker can take the job; those that have must leave before it goes away.
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

fn start_worker(pool: &'static Pool) -> bool {
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
        // SAFETY: a seat was taken while the job was there, and its caller waits until `inside` is 0 again.
        unsafe { (*job).work() };
        pool.inside.fetch_sub(1, Ordering::Release);
    }
}

/// Waits until something newer than `seen` was posted: actively at first, then asleep.
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
        if begin.elapsed() > AWAKE {
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
