//! A bounded queue of records, for a reader that cannot run on the thread that logs: Python's `logging` needs the
//! interpreter lock, and its handlers may call the engine.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use super::{Record, Severity, Sink};
use lz_core::fork::{Condvar, Mutex};

/// Records that wait for the reader.
const CAPACITY: usize = 4096;

/// Records that queues of this process have dropped and not reported yet.
static DROPPED: AtomicU64 = AtomicU64::new(0);

/// The number of records that were dropped and not reported yet.
pub(crate) fn dropped() -> u64 {
    DROPPED.load(Ordering::Relaxed)
}

/// A bounded queue. When it is full, new records are dropped and counted.
#[derive(Debug, Default)]
pub struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    records: VecDeque<Record>,
    dropped: u64,
    closed: bool,
}

impl Queue {
    /// Takes all waiting records; with a count of dropped ones if there are any.
    pub fn take(&self) -> Vec<Record> {
        let mut state = self.state.lock();
        let mut records: Vec<Record> = state.records.drain(..).collect();
        let dropped = std::mem::take(&mut state.dropped);
        DROPPED.fetch_sub(dropped, Ordering::Relaxed);
        if dropped > 0 {
            records.push(Record {
                area: "log",
                severity: Severity::Warn,
                message: "log records were dropped: they arrived faster than they were delivered".to_owned(),
                fields: vec![("dropped", dropped.to_string())],
                time: SystemTime::now(),
            });
        }
        records
    }

    /// Waits until there are records; `false` after `patience`, or when the queue is closed.
    pub fn wait(&self, patience: Duration) -> bool {
        let end = Instant::now() + patience;
        let mut state = self.state.lock();
        while state.records.is_empty() && !state.closed {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self.changed.wait_timeout(&self.state, state, left);
        }
        !state.closed
    }

    /// Ends the reader: [`Queue::wait`] returns at once.
    pub fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_all();
    }
}

impl Sink for std::sync::Arc<Queue> {
    fn record(&self, record: Record) {
        let mut state = self.state.lock();
        if state.records.len() < CAPACITY {
            state.records.push_back(record);
            drop(state);
            self.changed.notify_all();
        } else {
            state.dropped += 1;
            DROPPED.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn record(number: usize) -> Record {
        let (message, fields) = (number.to_string(), Vec::new());
        Record { area: "select", severity: Severity::Info, message, fields, time: SystemTime::UNIX_EPOCH }
    }

    #[test]
    fn a_full_queue_drops_new_records_and_counts_them() {
        let queue = Arc::new(Queue::default());
        (0..CAPACITY + 3).for_each(|number| queue.record(record(number)));
        let records = queue.take();
        assert_eq!((records.len(), records[0].message.as_str()), (CAPACITY + 1, "0"));
        assert_eq!(records[CAPACITY].fields, [("dropped", "3".to_owned())]);
        assert!(queue.take().is_empty());
    }

    #[test]
    fn waiting_ends_with_a_record_and_when_the_queue_is_closed() {
        let queue = Arc::new(Queue::default());
        assert!(!queue.wait(Duration::from_millis(1)));
        let reader = {
            let queue = Arc::clone(&queue);
            std::thread::spawn(move || queue.wait(Duration::from_secs(60)))
        };
        queue.record(record(1));
        assert!(reader.join().unwrap());
        queue.close();
        assert!(!queue.wait(Duration::from_secs(60)));
    }
}
