//! A recording of selections and kernel runs in the trace event format that Chrome and Perfetto read.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lz_core::fork::Mutex;
use serde_json::{Value, json};

/// Events of one recording; later ones are dropped and counted.
const MAX_EVENTS: usize = 1 << 20;

/// A recording in progress.
#[derive(Debug)]
pub struct Recorder {
    start: Instant,
    events: Mutex<Vec<Event>>,
    dropped: AtomicU64,
}

#[derive(Debug)]
struct Event {
    name: String,
    category: &'static str,
    thread: u64,
    start: Duration,
    duration: Duration,
    arguments: Vec<(&'static str, String)>,
}

impl Default for Recorder {
    fn default() -> Self {
        Recorder { start: Instant::now(), events: Mutex::default(), dropped: AtomicU64::new(0) }
    }
}

impl Recorder {
    /// Adds an event that ends now.
    pub(super) fn add(
        &self,
        category: &'static str,
        name: String,
        start: Instant,
        arguments: Vec<(&'static str, String)>,
    ) {
        let event = Event {
            name,
            category,
            thread: thread_number(),
            start: start.saturating_duration_since(self.start),
            duration: start.elapsed(),
            arguments,
        };
        let mut events = self.events.lock();
        if events.len() < MAX_EVENTS {
            events.push(event);
        } else {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The recording as a JSON document.
    pub fn json(&self) -> String {
        let microseconds = |time: Duration| time.as_nanos() as f64 / 1e3;
        let process = std::process::id();
        let event = |event: &Event| {
            let arguments: serde_json::Map<String, Value> =
                event.arguments.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
            json!({
                "name": event.name,
                "cat": event.category,
                "ph": "X",
                "ts": microseconds(event.start),
                "dur": microseconds(event.duration),
                "pid": process,
                "tid": event.thread,
                "args": arguments,
            })
        };
        let events = self.events.lock();
        let name = json!({"name": "process_name", "ph": "M", "pid": process, "tid": 0, "args": {"name": "LayerZero"}});
        let all: Vec<Value> = std::iter::once(name).chain(events.iter().map(event)).collect();
        let dropped = self.dropped.load(Ordering::Relaxed);
        json!({"displayTimeUnit": "ns", "otherData": {"dropped_events": dropped}, "traceEvents": all})
            .to_string()
    }
}

/// A small number for the calling thread; thread ids of the system are reused.
fn thread_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local!(static NUMBER: u64 = NEXT.fetch_add(1, Ordering::Relaxed));
    NUMBER.with(|number| *number)
}
