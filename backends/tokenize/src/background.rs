//! Runs verifications on one background thread, so that they do not delay requests.
//!
//! The queue holds weak references: a tokenizer that is dropped is not verified, and one that is dropped during its verification is
//! verified no further than the current step. The thread ends when the queue is empty. It verifies one tokenizer at a time, which
//! bounds its memory.
//!
//! A fork waits until the thread is between two steps, when it holds no lock. The child has no such thread; its queue has the same
//! requests, and its first use of the queue starts a thread there. A process that exits does not wait for the thread.

use std::any::TypeId;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use lz_core::fork::{self, Condvar, Mutex, MutexGuard};
use lz_core::judgment;
use lz_ops::tokenizer::{Tokenizer, WeakTokenizer};

/// What is verified for a tokenizer. Must catch panics.
#[derive(Clone, Copy)]
pub struct Work {
    /// Identifies the work.
    pub id: TypeId,
    /// Does it; returns false if it was stopped because the tokenizer is not used any more.
    pub run: fn(&Tokenizer) -> bool,
}

#[derive(Clone)]
struct Job {
    tokenizer: WeakTokenizer,
    work: Work,
    /// Whether a thread waits for it. Such a job comes first and uses the thread pool.
    is_awaited: bool,
}

impl Job {
    fn is(&self, tokenizer: &WeakTokenizer, id: TypeId) -> bool {
        self.work.id == id && self.tokenizer.is_same(tokenizer)
    }
}

struct Queue {
    waiting: VecDeque<Job>,
    running: Option<Job>,
    /// The process in which the thread runs; a forked child does not have it.
    running_in: Option<u32>,
    /// Number of living [`PausedVerification`]s of this process: the thread starts no step.
    pauses: usize,
    /// The process that used the queue last.
    process: u32,
}

static QUEUE: Mutex<Queue> =
    Mutex::new(Queue { waiting: VecDeque::new(), running: None, running_in: None, pauses: 0, process: 0 });

/// Notified when a job has ended.
static ENDED: Condvar = Condvar::new();

/// Held by the thread during a step.
static STEP: Mutex<()> = Mutex::behind(&fork::STEPS, ());

/// The longest time until a thread that waits looks again.
const MAX_SLEEP: Duration = Duration::from_secs(60);

/// Keeps the background thread between two steps while it lives. Waiting for a verification meanwhile blocks.
pub struct PausedVerification(());

/// Waits for the end of the current step and starts no other one while the result lives: for tests, and for phases in which a process
/// needs all cores.
#[must_use]
pub fn pause() -> PausedVerification {
    queue().pauses += 1;
    drop(STEP.lock());
    PausedVerification(())
}

impl Drop for PausedVerification {
    fn drop(&mut self) {
        // A forked child has none of the pauses of its parent, but it has copies of the objects that end them.
        let mut queue = queue();
        queue.pauses = queue.pauses.saturating_sub(1);
    }
}

thread_local! {
    /// On the background thread: held during a step.
    static IN_STEP: RefCell<Option<MutexGuard<'static, ()>>> = const { RefCell::new(None) };
}

/// The queue of this process.
fn queue() -> MutexGuard<'static, Queue> {
    let mut queue = QUEUE.lock();
    let process = std::process::id();
    if queue.process != process {
        (queue.process, queue.running_in, queue.pauses) = (process, None, 0);
        if let Some(job) = queue.running.take() {
            queue.waiting.push_front(job);
        }
    }
    queue
}

/// Starts a step of the background thread.
fn enter_step() -> MutexGuard<'static, ()> {
    loop {
        let step = STEP.lock();
        if queue().pauses == 0 {
            return step;
        }
        drop(step);
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Requests work for a tokenizer, unless it is requested already.
pub fn request(tokenizer: &Tokenizer, work: Work) {
    let mut queue = queue();
    enqueue(&mut queue, tokenizer, work);
    start_thread(&mut queue);
}

fn enqueue(queue: &mut Queue, tokenizer: &Tokenizer, work: Work) {
    let weak = tokenizer.downgraded();
    if !queue.running.iter().chain(&queue.waiting).any(|job| job.is(&weak, work.id)) {
        queue.waiting.retain(|job| job.tokenizer.is_alive());
        queue.waiting.push_back(Job { tokenizer: weak, work, is_awaited: false });
    }
}

/// Requests work and waits for its end, at most until `deadline`. Returns whether it has ended.
pub fn wait(tokenizer: &Tokenizer, work: Work, deadline: Option<Instant>) -> bool {
    let weak = tokenizer.downgraded();
    let mut locked = queue();
    enqueue(&mut locked, tokenizer, work);
    start_thread(&mut locked);
    loop {
        if let Some(at) = locked.waiting.iter().position(|job| job.is(&weak, work.id)) {
            if let Some(mut job) = locked.waiting.remove(at) {
                if locked.running_in.is_none() {
                    // No thread could be started.
                    drop(locked);
                    (work.run)(tokenizer);
                    judgment::announce();
                    return true;
                }
                job.is_awaited = true;
                locked.waiting.push_front(job);
            }
        } else if !locked.running.as_ref().is_some_and(|job| job.is(&weak, work.id)) {
            return true;
        }
        locked = match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
            None => ENDED.wait_timeout(&QUEUE, locked, MAX_SLEEP),
            Some(Duration::ZERO) => return false,
            Some(left) => ENDED.wait_timeout(&QUEUE, locked, left),
        };
    }
}

/// Waits until no work is requested for a tokenizer, at most until `deadline`. Returns whether that is so.
pub fn wait_for_all(tokenizer: &Tokenizer, deadline: Option<Instant>) -> bool {
    let weak = tokenizer.downgraded();
    loop {
        let locked = queue();
        let mut jobs = locked.running.iter().chain(&locked.waiting);
        let Some(work) = jobs.find(|job| job.tokenizer.is_same(&weak)).map(|job| job.work) else {
            return true;
        };
        drop(locked);
        if !wait(tokenizer, work, deadline) {
            return false;
        }
    }
}

/// Whether work is requested for a tokenizer.
pub fn is_pending(tokenizer: &Tokenizer) -> bool {
    let weak = tokenizer.downgraded();
    let queue = queue();
    queue.running.iter().chain(&queue.waiting).any(|job| job.tokenizer.is_same(&weak))
}

/// The number of jobs of living tokenizers that have not ended.
pub fn pending() -> usize {
    let queue = queue();
    queue.running.iter().chain(&queue.waiting).filter(|job| job.tokenizer.is_alive()).count()
}

/// Called between two steps of a verification: lets a fork happen. Returns false if the tokenizer is not used any more, and the
/// verification should end.
pub fn next_step(tokenizer: &Tokenizer) -> bool {
    IN_STEP.with_borrow_mut(|in_step| {
        if in_step.take().is_some() {
            // A fork or a pause that waits comes first.
            *in_step = Some(enter_step());
        }
        in_step.is_none() || tokenizer.is_shared()
    })
}

fn start_thread(queue: &mut Queue) {
    if queue.running_in.is_some() || queue.waiting.is_empty() {
        return;
    }
    let thread = std::thread::Builder::new().name("lz-verification".to_owned());
    // Without a thread, `wait` does the work itself.
    queue.running_in = thread.spawn(work_off).is_ok().then_some(queue.process);
}

fn work_off() {
    loop {
        let mut locked = queue();
        locked.running = locked.waiting.pop_front();
        let Some(job) = locked.running.clone() else {
            locked.running_in = None;
            return;
        };
        drop(locked);
        IN_STEP.set(Some(enter_step()));
        let has_ended = job.tokenizer.upgrade().is_none_or(|tokenizer| {
            // 0 is no limit.
            let has_ended =
                lz_pool::with_threads(usize::from(!job.is_awaited), || (job.work.run)(&tokenizer));
            judgment::announce();
            has_ended
        });
        IN_STEP.set(None);
        let mut locked = queue();
        locked.running = None;
        // Another thread used the tokenizer again after the verification was stopped.
        if !has_ended && job.tokenizer.is_alive() {
            locked.waiting.push_back(job);
        }
        drop(locked);
        ENDED.notify_all();
    }
}
