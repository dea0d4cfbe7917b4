//! Log records: every `tracing` event of LayerZero has a target `lz::<area>`, and reaches one sink of the process.
//!
//! The sink is stderr by default; the bindings replace it. A Rust program that has its own `tracing` subscriber does not
//! call [`install`] and receives the same events. An event whose level is disabled costs one load and one comparison.
//! Nothing here depends on the engine.

mod filter;
mod layer;
mod queue;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::Write as _;
use std::sync::{Arc, Once};
use std::time::SystemTime;

use arc_swap::ArcSwapOption;
use lz_core::fork::Mutex;
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};

pub use filter::{AREAS, Levels, Severity};
pub use queue::Queue;
pub(crate) use queue::dropped;

/// The environment variable with the levels: `info,select=debug`.
pub const VARIABLE: &str = "LAYERZERO_LOG";

/// One log record.
#[derive(Debug, Clone)]
pub struct Record {
    /// The area, one of [`AREAS`].
    pub area: &'static str,
    /// The level.
    pub severity: Severity,
    /// The sentence.
    pub message: String,
    /// The fields, each with its name.
    pub fields: Vec<(&'static str, String)>,
    /// When it was recorded.
    pub time: SystemTime,
}

impl fmt::Display for Record {
    /// The message, then the fields: `kernel failed; used fallback (operation=norm.rms, kernel=x)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        for (number, (name, value)) in self.fields.iter().enumerate() {
            write!(f, "{}{name}={value}", if number == 0 { " (" } else { ", " })?;
        }
        f.write_str(if self.fields.is_empty() { "" } else { ")" })
    }
}

/// The receiver of log records. It is called on any thread, possibly while a lock of the engine is held: it must not call
/// the engine.
pub trait Sink: Send + Sync {
    /// Receives one record.
    fn record(&self, record: Record);
}

/// Writes one line per record to stderr.
struct Stderr;

impl Sink for Stderr {
    fn record(&self, record: Record) {
        let line = format!("layerzero {} {}: {record}\n", record.severity, record.area);
        // A closed stderr is not an error of the program.
        let _ = std::io::stderr().lock().write_all(line.as_bytes());
    }
}

/// The sink; `None` for stderr. In an `Arc` of its own, because the pointer of a swap must be thin.
static SINK: ArcSwapOption<Box<dyn Sink>> = ArcSwapOption::const_empty();

/// The levels of the sink, and the levels that engines require by their settings.
static REQUESTED: Mutex<Requested> = Mutex::new(Requested { sink: None, engines: BTreeMap::new() });

struct Requested {
    sink: Option<Levels>,
    engines: BTreeMap<u64, Levels>,
}

impl Requested {
    fn by_settings(&self) -> Levels {
        self.engines.values().fold(Levels::OFF, |all, one| all.max(*one))
    }

    fn apply(&self) {
        let sink = self.sink.unwrap_or_else(|| from_environment().unwrap_or(Levels::DEFAULT));
        layer::enable(sink.max(self.by_settings()));
    }
}

fn change(change: impl FnOnce(&mut Requested)) {
    let mut requested = REQUESTED.lock();
    change(&mut requested);
    requested.apply();
}

/// Installs the subscriber of this process, unless the program has installed its own. Repeated calls have no effect.
pub fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let subscriber = tracing_subscriber::registry().with(layer::Records.with_filter(layer::Enabled));
        // A program that has its own subscriber keeps it.
        let _ = tracing::subscriber::set_global_default(subscriber);
        change(|_| {});
    });
}

/// Replaces the sink; `None` restores stderr.
pub fn set_sink(sink: Option<Box<dyn Sink>>) {
    SINK.store(sink.map(Arc::new));
}

/// Sets the levels that the sink accepts; `None` restores those of `LAYERZERO_LOG`, or warnings and errors.
pub fn set_levels(levels: Option<Levels>) {
    change(|requested| requested.sink = levels);
}

/// The levels of `LAYERZERO_LOG`; `None` if it is not set or invalid, which opening an engine reports.
pub fn from_environment() -> Option<Levels> {
    std::env::var(VARIABLE).ok().filter(|text| !text.trim().is_empty())?.parse().ok()
}

/// The levels that settings of engines (`verbose`, `log_selections`) require.
pub fn by_settings() -> Levels {
    REQUESTED.lock().by_settings()
}

/// Sets the levels that an engine requires by its settings.
pub(crate) fn require(engine: u64, levels: Levels) {
    let known = REQUESTED.lock().engines.get(&engine).copied();
    if known.unwrap_or(Levels::OFF) != levels {
        change(|requested| {
            if levels == Levels::OFF {
                requested.engines.remove(&engine);
            } else {
                requested.engines.insert(engine, levels);
            }
        });
    }
}

/// Logs a warning about settings or environment variables; see [`crate::EngineBuilder::warn`].
pub fn warn_about_settings(warning: &str) {
    tracing::warn!(target: "lz::config", "{warning}");
}

/// Logs a warning about settings, unless this process has logged the same before.
pub(crate) fn warn_once(warning: &str) {
    static KNOWN: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    if KNOWN.lock().insert(warning.to_owned()) {
        warn_about_settings(warning);
    }
}

fn deliver(record: Record) {
    match SINK.load_full() {
        Some(sink) => sink.record(record),
        None => Stderr.record(record),
    }
}
