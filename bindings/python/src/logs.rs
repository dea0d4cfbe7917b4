//! Log records for Python's `logging`.
//!
//! A record is queued by the thread that logs, which may not hold the interpreter lock, and is delivered by a Python thread
//! (`layerzero/_logging.py`): handlers can be slow and may call the engine. After `stop_logs`, which runs before the
//! interpreter shuts down, records go to stderr and nothing here touches Python.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use lz_core::fork::Mutex;
use lz_engine::log::{self, AREAS, Levels, Queue, Record, Severity};
use pyo3::prelude::*;

static QUEUE: Mutex<Option<Arc<Queue>>> = Mutex::new(None);

fn replace(queue: Option<Arc<Queue>>) -> Option<Arc<Queue>> {
    log::set_sink(queue.clone().map(|queue| Box::new(queue) as Box<dyn log::Sink>));
    std::mem::replace(&mut *QUEUE.lock(), queue)
}

fn current() -> Option<Arc<Queue>> {
    QUEUE.lock().clone()
}

/// Queues records from now on. In a forked child, the queue of the parent is abandoned: a thread that does not exist in the
/// child may hold its lock.
#[pyfunction]
fn start_logs() {
    std::mem::forget(replace(Some(Arc::default())));
    log::install();
}

/// Ends `wait_for_logs`; records go to stderr from now on.
#[pyfunction]
fn stop_logs() -> Vec<PyRecord> {
    let Some(queue) = replace(None) else { return Vec::new() };
    log::set_levels(None);
    queue.close();
    queue.take().into_iter().map(of).collect()
}

/// Area, level from 1 (error) to 5, text, fields, seconds since 1970.
type PyRecord = (&'static str, u8, String, Vec<(&'static str, String)>, f64);

fn of(record: Record) -> PyRecord {
    let text = record.to_string();
    let seconds = record.time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    (record.area, record.severity as u8, text, record.fields, seconds)
}

/// Waits until records are queued; `False` when the queue was closed, `None` after `seconds`.
#[pyfunction]
fn wait_for_logs(py: Python<'_>, seconds: f64) -> Option<bool> {
    let Some(queue) = current() else { return Some(false) };
    let patience = Duration::try_from_secs_f64(seconds).unwrap_or_default();
    py.detach(|| queue.wait(patience)).then_some(true).or_else(|| current().is_none().then_some(false))
}

/// Takes the queued records.
#[pyfunction]
fn take_logs() -> Vec<PyRecord> {
    current().map(|queue| queue.take().into_iter().map(of).collect()).unwrap_or_default()
}

fn numbers(levels: Levels) -> Vec<u32> {
    levels.by_area().iter().map(|level| *level as u32).collect()
}

/// The levels of `LAYERZERO_LOG`, or `None`; and those that settings require. In the order of `LOG_AREAS`.
#[pyfunction]
fn requested_log_levels() -> (Option<Vec<u32>>, Vec<u32>) {
    (log::from_environment().map(numbers), numbers(log::by_settings()))
}

/// Sets the levels by area: 0 for nothing, 1 for errors, to 5 for everything.
#[pyfunction]
fn set_log_levels(levels: Vec<(String, u8)>) {
    let severity = |number: u8| Severity::ALL.get(usize::from(number)).copied().unwrap_or(Severity::Trace);
    let all = levels.iter().fold(Levels::OFF, |all, (area, number)| all.with(area, severity(*number)));
    log::set_levels(Some(all));
}

/// Adds the functions.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("LOG_AREAS", AREAS.to_vec())?;
    module.add_function(wrap_pyfunction!(start_logs, module)?)?;
    module.add_function(wrap_pyfunction!(stop_logs, module)?)?;
    module.add_function(wrap_pyfunction!(wait_for_logs, module)?)?;
    module.add_function(wrap_pyfunction!(take_logs, module)?)?;
    module.add_function(wrap_pyfunction!(requested_log_levels, module)?)?;
    module.add_function(wrap_pyfunction!(set_log_levels, module)?)
}
