//! Tuning and the measurement database (PerfDB) as plain data for C++.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufWriter;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lz_core::{Context, Error, KernelEntry, KernelError, OperationInfo, Reason, ReasonCode, Run};
use lz_engine::Engine as Inner;
use lz_engine::tune::{Outcome, TuneOptions};
use lz_perfdb::{Change, DiffOptions, Filter, Mode, PerfDb, Side};

use crate::call::{Failure, guarded, reason};
use crate::data;
use crate::engine::Engine;

/// Measures all kernels that are valid for a call, and reports the outcome of each.
pub fn measure(
    engine: &Inner,
    operation: &'static OperationInfo,
    context: &Context,
    run_one: &mut dyn FnMut(&KernelEntry, &mut Run<'_>) -> Result<(), KernelError>,
    tuned: &mut data::Tuned,
) -> Result<(), Error> {
    let options = TuneOptions::of(engine);
    let found = engine.tune(operation, context, &options, run_one, &mut |_| ControlFlow::Continue(()))?;
    tuned.settled = found.settled;
    tuned.kept = found.kept == Some(Ok(()));
    tuned.kernels = found.kernels.into_iter().map(|(kernel, outcome)| measured(kernel, &outcome)).collect();
    Ok(())
}

fn measured(kernel: String, outcome: &Outcome) -> data::Measured {
    let mut one = data::Measured {
        kernel,
        state: outcome.state().to_owned(),
        median_ns: 0.0,
        p95_ns: 0.0,
        samples: 0,
        reasons: Vec::new(),
    };
    match outcome {
        Outcome::Measured(timing) => {
            (one.median_ns, one.p95_ns, one.samples) = (timing.median_ns, timing.p95_ns, timing.samples);
        }
        Outcome::Failed(why) => one.reasons.push(reason(why)),
        Outcome::Passed(whys) => one.reasons.extend(whys.iter().map(reason)),
        Outcome::Untouched => {}
    }
    one
}

#[cold]
fn refuse(subject: &str, message: String) -> Error {
    let reasons = vec![Reason::new(ReasonCode::PerfdbUnavailable).message(message.clone())];
    Error::Configuration { subject: subject.to_owned(), message, reasons }
}

fn database(engine: &Engine) -> Result<Arc<PerfDb>, Error> {
    engine.inner.perfdb().ok_or_else(|| {
        refuse("perfdb", "the engine has no measurement database; open one with open_perfdb".to_owned())
    })
}

/// Attaches a database file for measurements and health.
pub fn engine_open_perfdb(engine: &Engine, path: &str) -> *mut Failure {
    guarded(|| {
        let opened = PerfDb::open(path);
        if let Mode::Closed(why) = opened.db.status().mode {
            return Err(refuse(path, why.to_string()));
        }
        if engine.inner.attach_perfdb(Arc::new(opened.db), "") {
            return Ok(());
        }
        let known = engine.inner.perfdb().map(|db| db.path().display().to_string());
        Err(refuse(
            path,
            match known {
                Some(known) => format!("the engine already uses the measurement database {known}"),
                None => "the engine was opened without a measurement database; set `perfdb.path` in its configuration"
                    .to_owned(),
            },
        ))
    })
}

/// The database of an engine; the path is empty if there is none.
pub fn engine_perfdb(engine: &Engine) -> data::PerfDbInfo {
    let Some(db) = engine.inner.perfdb() else { return data::PerfDbInfo::default() };
    let status = db.status();
    let (state, why) = match status.mode {
        Mode::Writable => ("writable", status.last_failure.map(|why| why.to_string())),
        Mode::ReadOnly => ("read_only", status.last_failure.map(|why| why.to_string())),
        Mode::Closed(why) => ("closed", Some(why.to_string())),
    };
    data::PerfDbInfo {
        path: db.path().display().to_string(),
        state: state.to_owned(),
        why: why.unwrap_or_default(),
        measurements: db.count(&Filter::default()),
        dropped_writes: status.dropped_writes,
    }
}

/// Exports all measurements to a file, one JSON object per line.
pub fn engine_export_perfdb(engine: &Engine, path: &str, count: &mut u64) -> *mut Failure {
    guarded(|| {
        let db = database(engine)?;
        let file = File::create(path).map_err(|error| refuse(path, error.to_string()))?;
        let exported = db.export(&Filter::default(), &mut BufWriter::new(file));
        *count = exported.map_err(|error| refuse(path, error.to_string()))?.measurements as u64;
        Ok(())
    })
}

/// Imports measurements from such a file.
pub fn engine_import_perfdb(engine: &Engine, path: &str, count: &mut u64) -> *mut Failure {
    guarded(|| {
        let db = database(engine)?;
        let report = db.import_file(Path::new(path)).map_err(|why| refuse(path, why.to_string()))?;
        engine.inner.refresh_evidence();
        *count = report.stored as u64;
        Ok(())
    })
}

/// Compares the measurements of two databases, or of two environments (`FILE@torch=2.14`).
pub fn engine_diff_perfdb(
    engine: &Engine,
    before: &str,
    after: &str,
    threshold: f64,
    found: &mut data::PerfDbDifference,
) -> *mut Failure {
    guarded(|| {
        let side = |text: &str| Side::parse(text).map_err(|message| refuse(text, message));
        let options = DiffOptions { threshold, ..DiffOptions::default() };
        let difference = lz_perfdb::diff(&side(before)?, &side(after)?, options)
            .map_err(|error| refuse("perfdb", error.to_string()))?;
        (found.compared, found.slower) = (difference.compared as u64, difference.slower as u64);
        found.faster = difference.faster as u64;
        found.decisions_changed = difference.decisions_changed as u64;
        let registry = engine.inner.registry();
        found.calls = difference
            .calls
            .into_iter()
            .map(|call| data::CallDifference {
                sizes: registry
                    .operation(&call.operation)
                    .map(|operation| lz_serve::bucket_text(operation, &call.bucket))
                    .unwrap_or_default(),
                operation: call.operation,
                dtypes: call.dtypes,
                device: call.device,
                before: call.before,
                after: call.after,
                ratio: call.ratio,
                change: change(call.change),
                kernels: call.kernels.iter().map(kernel_difference).collect(),
            })
            .collect();
        Ok(())
    })
}

fn kernel_difference(kernel: &lz_perfdb::KernelDifference) -> data::KernelDifference {
    let time = |side: &Option<lz_perfdb::Measured>| side.as_ref().map_or(0.0, |one| one.median_ns);
    let samples = |side: &Option<lz_perfdb::Measured>| side.as_ref().map_or(0, |one| one.samples);
    data::KernelDifference {
        kernel: kernel.kernel.clone(),
        before_ns: time(&kernel.before),
        after_ns: time(&kernel.after),
        before_samples: samples(&kernel.before),
        after_samples: samples(&kernel.after),
        change: change(kernel.change),
    }
}

fn change(change: Change) -> String {
    match change {
        Change::None => "none",
        Change::Slower => "slower",
        Change::Faster => "faster",
    }
    .to_owned()
}

/// Merges databases into one; `count` receives the number of measurements.
pub fn merge_perfdb(into: &str, files: &[&str], count: &mut u64) -> *mut Failure {
    guarded(|| {
        let files: Vec<PathBuf> = files.iter().map(PathBuf::from).collect();
        let merged = lz_perfdb::merge(Path::new(into), &files, &BTreeMap::new());
        *count = merged.map_err(|error| refuse(into, error.to_string()))?.measurements as u64;
        Ok(())
    })
}
