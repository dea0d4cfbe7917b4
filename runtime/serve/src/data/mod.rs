//! What the page shows, as JSON. Every function reads the engine once; nothing is cached.

mod bucket;
mod health;
mod lockfile;
mod measurements;
mod operation;

use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use lz_engine::Engine;
use lz_engine::telemetry::BOUNDS_NS;
use lz_perfdb::{Filter, Mode, Options, PerfDb};
use serde_json::{Value, json};

pub use bucket::bucket_text;
pub use health::{health, readiness};
pub use lockfile::{Lockfiles, diff};
pub use operation::{ExplainRequest, explain, operation, operations};

/// What is served: an engine, its measurements, and lockfiles to compare.
#[derive(Debug, Clone)]
pub struct Source {
    engine: Engine,
    perfdb: Option<Arc<PerfDb>>,
    lockfiles: Arc<Lockfiles>,
}

impl Source {
    /// An engine with its own measurements.
    pub fn new(engine: Engine) -> Source {
        Source { engine, perfdb: None, lockfiles: Arc::default() }
    }

    /// Shows the measurements of this file, which is not modified, instead of the engine's.
    pub fn with_perfdb(self, path: &Path) -> io::Result<Source> {
        let opened = PerfDb::open_with(path, Options { read_only: true, ..Options::default() });
        if let Mode::Closed(reason) = opened.db.status().mode {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("{}: {reason}", path.display())));
        }
        Ok(Source { perfdb: Some(Arc::new(opened.db)), ..self })
    }

    /// Shows the differences between these lockfiles; without `found`, between one and the recorded decisions of the engine.
    pub fn with_lockfiles(self, expected: &Path, found: Option<&Path>) -> io::Result<Source> {
        let lockfiles = Lockfiles::read(expected, found)?;
        Ok(Source { lockfiles: Arc::new(lockfiles), ..self })
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    fn perfdb(&self) -> Option<Arc<PerfDb>> {
        self.perfdb.clone().or_else(|| self.engine.perfdb())
    }
}

/// The process, its devices and its database.
pub fn overview(source: &Source) -> Value {
    let engine = &source.engine;
    let registry = engine.registry();
    let backends = registry.backends().map(|(name, backend)| {
        let reason = match &backend.state {
            lz_engine::registry::BackendState::Available => None,
            lz_engine::registry::BackendState::Disabled(reason) => Some(reason.sentence()),
        };
        let kernels = registry.kernels().filter(|entry| entry.spec.backend == name).count();
        json!({"name": name, "version": backend.version, "kernels": kernels, "disabled": reason})
    });
    let backends: Vec<Value> = backends.collect();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "program": crate::registration::program(),
        "time": lz_perfdb::unix_now(),
        "operations": registry.operations().count(),
        "kernels": registry.kernels().count(),
        "backends": backends,
        "devices": devices(),
        "presets": lz_device::PRESETS,
        "perfdb": perfdb(source),
    })
}

/// Detection takes long on some machines, and devices do not change.
fn devices() -> &'static Value {
    static DEVICES: OnceLock<Value> = OnceLock::new();
    DEVICES.get_or_init(|| {
        let found = lz_device::discover();
        let device = |device: &lz_core::device::DeviceSpec| {
            json!({
                "name": device.name,
                "place": format!("{}:{}", device.platform(), device.index),
                "uuid": device.uuid,
                "signature": device.hardware_signature(),
                "memory_bytes": device.memory_bytes(),
            })
        };
        found.devices.iter().map(device).collect()
    })
}

fn perfdb(source: &Source) -> Value {
    let Some(db) = source.perfdb() else { return Value::Null };
    let status = db.status();
    let (state, why) = match status.mode {
        Mode::Writable => ("writable", status.last_failure.map(|why| why.to_string())),
        Mode::ReadOnly => ("read_only", status.last_failure.map(|why| why.to_string())),
        Mode::Closed(why) => ("closed", Some(why.to_string())),
    };
    json!({
        "path": db.path().display().to_string(),
        "state": state,
        "why": why,
        "measurements": db.count(&Filter::default()),
    })
}

/// All metrics of the engine at one moment. The fields of [`lz_engine::telemetry::MetricsSnapshot`] are passed on by their names, so
/// that a new metric needs no change here.
pub fn metrics(source: &Source) -> Value {
    let engine = &source.engine;
    let milliseconds = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let summary = engine.health().summary();
    json!({
        "time": milliseconds.as_secs_f64(),
        "metrics": serde_json::to_value(engine.metrics()).unwrap_or_default(),
        "bounds_ns": BOUNDS_NS,
        "level": format!("{:?}", summary.level),
        "score": summary.score,
        "circuits_open": engine.health().circuits().iter().filter(|circuit| circuit.refuses()).count(),
        "generation": engine.generation(),
    })
}

/// The metrics for Prometheus.
pub fn metrics_text(source: &Source) -> String {
    source.engine.metrics_text()
}

/// Every setting with its source.
pub fn policy(source: &Source) -> Value {
    let doc = |key: &str| {
        let setting = lz_schema::policy::SETTINGS.iter().find(|setting| setting.key == key);
        setting.map(|setting| setting.doc)
    };
    let entries = source.engine.config().into_iter().map(|entry| {
        json!({
            "key": entry.key,
            "value": entry.value,
            "source": entry.source.to_string(),
            "doc": doc(&entry.key),
        })
    });
    json!({"entries": entries.collect::<Vec<Value>>()})
}

/// The running servers of this user, each with its own overview where it answers.
pub fn processes() -> Value {
    let of = |process: crate::registration::Process| {
        let read = |path: &str| -> Option<Value> {
            serde_json::from_str(&crate::probe::get(&process.url, path).ok()?).ok()
        };
        json!({
            "pid": process.pid,
            "program": process.program,
            "since": process.since,
            "url": process.url,
            "own": process.pid == std::process::id(),
            "overview": read("api/overview"),
            "metrics": read("api/metrics"),
        })
    };
    json!({"processes": crate::registration::processes().into_iter().map(of).collect::<Vec<Value>>()})
}

pub use lockfile::configured;
pub use measurements::measurements;
