//! The layer of `tracing-subscriber` that turns events into records, and its filter.

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::SystemTime;

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Filter, Layer};

use super::filter::{AREAS, Levels, Severity};
use super::{Record, deliver};

/// The enabled levels, in the order of [`AREAS`].
static ENABLED: [AtomicU8; AREAS.len()] = [const { AtomicU8::new(Severity::Off as u8) }; AREAS.len()];

/// Enables levels. Call sites cache whether they are enabled, so they are evaluated again.
pub(super) fn enable(levels: Levels) {
    for (slot, severity) in ENABLED.iter().zip(levels.by_area()) {
        slot.store(*severity as u8, Ordering::Relaxed);
    }
    tracing::callsite::rebuild_interest_cache();
}

/// The area of a target, by its index; `None` for events of other libraries.
fn area(metadata: &Metadata<'_>) -> Option<usize> {
    let name = metadata.target().strip_prefix("lz::")?;
    AREAS.iter().position(|area| *area == name)
}

fn severity(level: Level) -> Severity {
    match level {
        Level::ERROR => Severity::Error,
        Level::WARN => Severity::Warn,
        Level::INFO => Severity::Info,
        Level::DEBUG => Severity::Debug,
        Level::TRACE => Severity::Trace,
    }
}

fn is_enabled(metadata: &Metadata<'_>) -> bool {
    let enabled = area(metadata).and_then(|area| ENABLED.get(area)).map(|slot| slot.load(Ordering::Relaxed));
    metadata.is_event() && enabled.is_some_and(|enabled| severity(*metadata.level()) as u8 <= enabled)
}

/// Accepts the enabled events of LayerZero.
pub(super) struct Enabled;

impl<S: Subscriber> Filter<S> for Enabled {
    fn enabled(&self, metadata: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        is_enabled(metadata)
    }

    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        if is_enabled(metadata) { Interest::always() } else { Interest::never() }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        let most = ENABLED.iter().map(|slot| slot.load(Ordering::Relaxed)).max().unwrap_or(0);
        let filters = [
            LevelFilter::OFF,
            LevelFilter::ERROR,
            LevelFilter::WARN,
            LevelFilter::INFO,
            LevelFilter::DEBUG,
            LevelFilter::TRACE,
        ];
        filters.get(usize::from(most)).copied()
    }
}

/// Turns events into records.
pub(super) struct Records;

impl<S: Subscriber> Layer<S> for Records {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let Some(area) = area(event.metadata()).and_then(|area| AREAS.get(area)) else { return };
        let mut record = Record {
            area,
            severity: severity(*event.metadata().level()),
            message: String::new(),
            fields: Vec::new(),
            time: SystemTime::now(),
        };
        event.record(&mut Reader(&mut record));
        deliver(record);
    }
}

struct Reader<'a>(&'a mut Record);

impl Reader<'_> {
    fn field(&mut self, field: &Field, value: String) {
        if field.name() == "message" {
            self.0.message = value;
        } else {
            self.0.fields.push((field.name(), value));
        }
    }
}

impl Visit for Reader<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.field(field, format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.field(field, value.to_owned());
    }
}
