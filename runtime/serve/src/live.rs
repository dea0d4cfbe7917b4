//! Live data: one event per second with all metrics.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::stream::{self, Stream};
use lz_engine::Engine;
use lz_engine::telemetry::ObserveOptions;
use tokio::time::{self, MissedTickBehavior};

use crate::data::{self, Source};

/// Time between two events.
const INTERVAL: Duration = Duration::from_secs(1);

/// While a page is open, one in this many calls is timed. Threads add their cache hits to the shared counters at the same time, so
/// that the page does not lag behind them.
const TIME_EVERY: u32 = 64;

/// The open live connections of one server.
#[derive(Debug, Clone, Default)]
pub struct Watchers(Arc<Mutex<usize>>);

/// One live connection; calls are sampled while there is one.
struct Watcher {
    watchers: Watchers,
    engine: Engine,
}

impl Watcher {
    fn new(watchers: &Watchers, engine: &Engine) -> Watcher {
        let mut count = watchers.0.lock().unwrap_or_else(PoisonError::into_inner);
        *count += 1;
        if *count == 1 {
            engine.observe(ObserveOptions { time_every: TIME_EVERY, ..ObserveOptions::default() });
        }
        Watcher { watchers: watchers.clone(), engine: engine.clone() }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let mut count = self.watchers.0.lock().unwrap_or_else(PoisonError::into_inner);
        *count -= 1;
        if *count == 0 {
            self.engine.observe(ObserveOptions::default());
        }
    }
}

/// The stream of one connection; it ends when the browser disconnects or the server closes.
pub fn events(
    source: Source,
    watchers: &Watchers,
) -> Sse<impl Stream<Item = Result<Event, Infallible>> + use<>> {
    let watcher = Watcher::new(watchers, source.engine());
    let mut ticks = time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let stream = stream::unfold((source, ticks, watcher), |(source, mut ticks, watcher)| async {
        ticks.tick().await;
        let event = Event::default().event("metrics").data(data::metrics(&source).to_string());
        Some((Ok(event), (source, ticks, watcher)))
    });
    Sse::new(stream).keep_alive(KeepAlive::default())
}
