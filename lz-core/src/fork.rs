//! Forks of a process whose threads hold locks. A forked child has only the thread that forked: a lock that another thread held stays
//! locked in the child forever. A fork therefore waits until no thread is in a [`Gate`]: the [`Mutex`] of this module is one, and
//! [`hold`] makes one of any other lock. If that takes too long, [`Gate::enter`] reports it in the child, which must not wait for the
//! locks behind the gate.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Once, PoisonError, TryLockError};
use std::thread::Thread;
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_micros(200);

/// Code that holds locks, and that a fork waits for.
#[derive(Debug)]
pub struct Gate {
    /// The position in [`GATES`].
    number: usize,
    /// How long a fork waits for the threads inside.
    max_wait: Duration,
    /// Number of threads inside.
    active: AtomicU32,
    /// Number of forks that wait or are in progress. While there is one, only threads that are inside of some gate enter.
    forking: AtomicU32,
    /// Whether this process was forked while another thread was inside.
    abandoned: AtomicBool,
}

/// Steps of work in the background, which take long but end.
pub static STEPS: Gate = Gate::new(0, Duration::from_secs(60));
/// Decisions and changes of an engine, which can take long if what they ask is slow.
pub static ENGINE: Gate = Gate::new(1, Duration::from_millis(500));
/// Uses of a database. A fork waits longer than a read or an attempt to write waits for other processes.
pub static DATABASE: Gate = Gate::new(2, Duration::from_millis(500));
/// Locks that are held only for a short time, and values that are made once.
static LOCKS: Gate = Gate::new(3, Duration::from_secs(2));

/// Outer gates first: a thread inside of one, or a thread of a pool that works for it, may enter a later one, so that one must still be
/// open while the fork waits for the first.
static GATES: [&Gate; 4] = [&STEPS, &ENGINE, &DATABASE, &LOCKS];

thread_local! {
    /// How often this thread is inside of each gate.
    static DEPTHS: [Cell<u32>; GATES.len()] = const { [const { Cell::new(0) }; GATES.len()] };
}

/// Presence inside of a gate, until it is dropped.
#[derive(Debug)]
pub struct Inside {
    gate: &'static Gate,
    /// Presence belongs to the thread.
    _not_send: std::marker::PhantomData<*const ()>,
}

impl Gate {
    const fn new(number: usize, max_wait: Duration) -> Gate {
        Gate {
            number,
            max_wait,
            active: AtomicU32::new(0),
            forking: AtomicU32::new(0),
            abandoned: AtomicBool::new(false),
        }
    }

    /// Waits for a fork in progress, unless this thread is inside of a gate already, for which the fork waits. `None` if another thread
    /// of the parent was inside when this process was forked, so that locks behind the gate may be locked forever.
    pub fn enter(&'static self) -> Option<Inside> {
        let inside = self.pass();
        (!self.abandoned.load(Ordering::SeqCst)).then_some(inside)
    }

    fn pass(&'static self) -> Inside {
        register();
        let (own, is_inside) = DEPTHS.with(|depths| {
            let own = depths[self.number].get();
            depths[self.number].set(own + 1);
            (own, depths.iter().map(Cell::get).sum::<u32>() > 1)
        });
        if own == 0 {
            self.active.fetch_add(1, Ordering::SeqCst);
            while !is_inside && self.is_closed() {
                self.active.fetch_sub(1, Ordering::SeqCst);
                while self.is_closed() {
                    std::thread::sleep(PAUSE);
                }
                self.active.fetch_add(1, Ordering::SeqCst);
            }
        }
        Inside { gate: self, _not_send: std::marker::PhantomData }
    }

    fn is_closed(&self) -> bool {
        self.forking.load(Ordering::SeqCst) != 0
    }

    /// Whether other threads than this one are inside.
    fn has_others(&self) -> bool {
        self.active.load(Ordering::SeqCst) != self.own()
    }

    /// How many threads are inside if only this one is left.
    fn own(&self) -> u32 {
        DEPTHS.with(|depths| depths[self.number].get()).min(1)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let left = DEPTHS.with(|depths| {
            let depth = &depths[self.gate.number];
            depth.set(depth.get().saturating_sub(1));
            depth.get()
        });
        if left == 0 {
            self.gate.active.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Lets forks wait until the result is dropped, for a short use of a lock or of a value that is made once.
pub fn hold() -> Inside {
    LOCKS.pass()
}

#[cfg(unix)]
fn register() {
    fn wait_while(max: Duration, condition: impl Fn() -> bool) {
        let start = Instant::now();
        while condition() && start.elapsed() < max {
            std::thread::sleep(PAUSE);
        }
    }
    extern "C" fn before() {
        for gate in GATES {
            gate.forking.fetch_add(1, Ordering::SeqCst);
            wait_while(gate.max_wait, || gate.has_others());
        }
        // A thread that was inside of a later gate may have entered an earlier one.
        wait_while(PAUSE * 10, || GATES.iter().any(|gate| gate.has_others()));
    }
    extern "C" fn in_parent() {
        for gate in GATES {
            gate.forking.fetch_sub(1, Ordering::SeqCst);
        }
    }
    extern "C" fn in_child() {
        for gate in GATES {
            if gate.has_others() {
                gate.abandoned.store(true, Ordering::SeqCst);
            }
            gate.active.store(gate.own(), Ordering::SeqCst);
            gate.forking.store(0, Ordering::SeqCst);
        }
    }
    static REGISTERED: Once = Once::new();
    // SAFETY: the handlers only sleep and modify atomics, which is permitted around the fork of a multithreaded process.
    REGISTERED.call_once(|| unsafe {
        libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child));
    });
}

#[cfg(not(unix))]
fn register() {}

/// A mutex that no forked child inherits locked, unless a thread holds it for longer than a fork waits. A panic does not poison it.
#[derive(Debug)]
pub struct Mutex<T: ?Sized> {
    gate: &'static Gate,
    value: std::sync::Mutex<T>,
}

/// Access to the value of a [`Mutex`].
#[derive(Debug)]
pub struct MutexGuard<'a, T: ?Sized> {
    // Unlocked before the gate is left: fields are dropped in order.
    value: std::sync::MutexGuard<'a, T>,
    _inside: Inside,
}

impl<T> Mutex<T> {
    /// A mutex with this value that is held for short times.
    pub const fn new(value: T) -> Mutex<T> {
        Mutex::behind(&LOCKS, value)
    }

    /// A mutex whose holders are inside of a gate.
    pub const fn behind(gate: &'static Gate, value: T) -> Mutex<T> {
        Mutex { gate, value: std::sync::Mutex::new(value) }
    }

    /// The value.
    pub fn into_inner(self) -> T {
        self.value.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits until no other thread has the value.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let inside = self.gate.pass();
        MutexGuard { value: self.value.lock().unwrap_or_else(PoisonError::into_inner), _inside: inside }
    }

    /// Access, unless another thread has it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let inside = self.gate.pass();
        let value = match self.value.try_lock() {
            Ok(value) => value,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(MutexGuard { value, _inside: inside })
    }

    /// The value, without waiting.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Default> Default for Mutex<T> {
    fn default() -> Mutex<T> {
        Mutex::new(T::default())
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

/// Wakes threads that wait for a change of the value of a [`Mutex`]. They do not have the lock when they wake, as a fork could not wait
/// for them then.
#[derive(Debug, Default)]
pub struct Condvar(Mutex<Vec<Thread>>);

impl Condvar {
    /// One for which no thread waits.
    pub const fn new() -> Condvar {
        Condvar(Mutex::new(Vec::new()))
    }

    /// Releases the lock, waits for a notification or until the time is over, and locks again. May return earlier.
    pub fn wait_timeout<'a, T>(
        &self,
        mutex: &'a Mutex<T>,
        guard: MutexGuard<'a, T>,
        time: Duration,
    ) -> MutexGuard<'a, T> {
        let thread = std::thread::current();
        self.0.lock().push(thread.clone());
        drop(guard);
        std::thread::park_timeout(time);
        self.0.lock().retain(|one| one.id() != thread.id());
        mutex.lock()
    }

    /// Wakes all threads that wait. Called with the lock or after its release.
    pub fn notify_all(&self) {
        std::mem::take(&mut *self.0.lock()).iter().for_each(Thread::unpark);
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use lz_test_support::in_child;

    /// Without the gate, a child inherits the locked mutex and waits forever.
    #[test]
    fn a_child_never_inherits_a_locked_mutex() {
        let (mutex, ends) = (Arc::new(Mutex::new(0)), Arc::new(AtomicBool::new(false)));
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (mutex, ends) = (Arc::clone(&mutex), Arc::clone(&ends));
                std::thread::spawn(move || {
                    while !ends.load(Ordering::Relaxed) {
                        let mut value = mutex.lock();
                        *value += 1;
                        std::thread::sleep(PAUSE);
                    }
                })
            })
            .collect();
        let all = (0..50).all(|_| in_child(|| *mutex.lock() >= 0));
        ends.store(true, Ordering::Relaxed);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(all);
    }

    #[test]
    fn a_thread_inside_of_a_gate_enters_another_while_a_fork_waits() {
        let (outer, inner) = (Mutex::new(0), Mutex::new(0));
        let is_held = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _outer = outer.lock();
                is_held.store(true, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(30));
                // The fork waits now.
                let _database = DATABASE.enter().unwrap();
                drop(inner.lock());
            });
            while !is_held.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            assert!(in_child(|| DATABASE.enter().is_some() && *inner.lock() + *outer.lock() == 0));
        });
    }

    #[test]
    fn notified_threads_wake_and_others_wait_until_their_time_is_over() {
        let (mutex, changed, woken) = (Mutex::new(false), Condvar::default(), AtomicUsize::new(0));
        let guard = changed.wait_timeout(&mutex, mutex.lock(), Duration::from_millis(1));
        assert!(!*guard && changed.0.lock().is_empty());
        drop(guard);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut guard = mutex.lock();
                    while !*guard {
                        guard = changed.wait_timeout(&mutex, guard, Duration::from_secs(60));
                    }
                    woken.fetch_add(1, Ordering::Relaxed);
                });
            }
            *mutex.lock() = true;
            changed.notify_all();
        });
        assert_eq!(woken.load(Ordering::Relaxed), 3);
    }
}
