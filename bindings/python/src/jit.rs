//! JIT compilation of Python kernels: backend compilers, the background compilation queue, and compiling
//! ahead of time.
//!
//! A backend's own function compiles, on a thread that no call waits for.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::Duration;

use lz_core::kernel::{Compile, CompileRequest, Compiled};
use lz_core::{Context, KernelError, OperationInfo};
use lz_engine::Engine;
use lz_engine::jit::{JitConfig, JitQueue, WarmupItem, WarmupReport};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::call::failure_of;
use crate::engine::engine;
use crate::inspect::{context, operation};

/// A backend's compile function: called with the kernel id, the operation and the call's fields as strings;
/// it returns the names of the artifacts.
pub struct Compiler {
    /// The function.
    pub function: Py<PyAny>,
}

impl Compile for Compiler {
    fn compile(&self, request: &CompileRequest<'_>) -> Result<Compiled, KernelError> {
        Python::attach(|py| {
            let call = || {
                let fields = PyDict::new(py);
                for (name, value) in request.call() {
                    fields.set_item(name, value)?;
                }
                let arguments = (&request.spec.id, &*request.operation.name, fields);
                self.function.bind(py).call1(arguments)?.extract::<Vec<String>>()
            };
            match call() {
                Ok(artifacts) => Ok(Compiled { artifacts }),
                Err(error) => Err(failure_of(py, &error)),
            }
        })
    }
}

static QUEUE: Mutex<Option<JitQueue>> = Mutex::new(None);

/// Starts the queue once there is a kernel to compile, unless it runs already.
pub fn ensure_queue(engine: &Engine) {
    let mut queue = QUEUE.lock().unwrap_or_else(PoisonError::into_inner);
    if queue.is_none() {
        let config = JitConfig::of(|key| engine.setting(key));
        *queue = Some(JitQueue::start(engine, "", config));
    }
}

/// Starts a new queue in a forked child, where the parent's threads do not exist.
#[pyfunction]
fn restart_compiling_after_fork() {
    // A thread of the parent held the lock while forking: the child has no background compilation then.
    let Ok(mut queue) = QUEUE.try_lock() else { return };
    if let Some(inherited) = queue.take() {
        // Not dropped: a thread of the parent may have been changing it.
        std::mem::forget(inherited);
        let Ok(engine) = engine() else { return };
        let config = JitConfig::of(|key| engine.setting(key));
        *queue = Some(JitQueue::start(engine, "", config));
    }
}

/// Stops the background queue after the current compilation, and writes the manifest. The next backend that
/// compiles restarts it.
#[pyfunction]
fn stop_compiling(py: Python<'_>) {
    let queue = QUEUE.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(queue) = queue {
        py.detach(|| queue.stop());
    }
}

/// StreamSynchronizer until the background queue is empty, up to this many seconds; returns whether it is.
#[pyfunction]
fn wait_for_compilations(py: Python<'_>, seconds: f64) -> bool {
    let timeout = Duration::try_from_secs_f64(seconds).unwrap_or_default();
    py.detach(|| {
        let queue = QUEUE.lock().unwrap_or_else(PoisonError::into_inner);
        queue.as_ref().is_none_or(|queue| queue.wait_until_idle(timeout))
    })
}

/// Counters and manifest of the background queue, as JSON; nothing if none runs.
#[pyfunction]
fn compilations() -> Option<String> {
    let queue = QUEUE.lock().unwrap_or_else(PoisonError::into_inner);
    let queue = queue.as_ref()?;
    let counters = queue.counters();
    let manifest: Vec<_> = queue.manifest().entries().cloned().collect();
    let report = serde_json::json!({
        "wanted": counters.wanted,
        "waiting": queue.waiting(),
        "compiled": counters.compiled,
        "failed": counters.failed,
        "dropped": counters.dropped,
        "impossible": counters.impossible,
        "manifest": manifest,
    });
    Some(report.to_string())
}

/// Compiled kernels with their artifacts, the number that were warm already, and failed kernels with the
/// reason.
type Warmed = (Vec<(String, Vec<String>)>, usize, Vec<(String, String)>);

/// Compiles every kernel that these calls could use once it is compiled, several at a time. `on_progress` is
/// called after each; an exception from it, or a signal, cancels the rest.
#[pyfunction]
#[pyo3(signature = (calls, workers, on_progress = None))]
fn compile_cold<'py>(
    py: Python<'py>,
    calls: Vec<(String, Bound<'py, PyTuple>, Bound<'py, PyDict>)>,
    workers: usize,
    on_progress: Option<&Bound<'py, PyAny>>,
) -> PyResult<Warmed> {
    let mut contexts: Vec<(&'static OperationInfo, Context)> = Vec::new();
    for (name, arguments, keywords) in &calls {
        let info = operation(name)?;
        contexts.push((info, context(py, info, arguments, Some(keywords))?));
    }
    let engine = engine()?;
    let items = engine.cold_kernels(&contexts);
    let (next, stop) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let (send, receive) = mpsc::channel::<WarmupReport>();
    // The GIL is released while waiting, which requires the receiver to be `Sync`.
    let receive = Mutex::new(receive);
    let next_report = || receive.lock().unwrap_or_else(PoisonError::into_inner).recv();
    let mut all = WarmupReport::default();
    std::thread::scope(|scope| {
        for _ in 0..workers.clamp(1, 64).min(items.len()) {
            let (send, next, stop, items) = (send.clone(), &next, &stop, &items);
            scope.spawn(move || {
                while let Some(item) = take(items, next, stop) {
                    let one = std::slice::from_ref(item);
                    let report = engine.warmup(one, &mut |_| ControlFlow::Continue(()));
                    if send.send(report).is_err() {
                        return;
                    }
                }
            });
        }
        drop(send);
        let mut done = 0;
        while let Ok(report) = py.detach(next_report) {
            done += 1;
            let name = report.compiled.first().map(|(item, _)| item.kernel.clone());
            let name = name.or_else(|| report.failed.first().map(|(kernel, _)| kernel.clone()));
            all.compiled.extend(report.compiled);
            all.failed.extend(report.failed);
            all.already_warm += report.already_warm;
            let outcome = on_progress.map(|on_progress| on_progress.call1((done, items.len(), name)));
            if outcome.is_some_and(|outcome| outcome.is_err()) || py.check_signals().is_err() {
                stop.store(1, Ordering::Relaxed);
            }
        }
    });
    let failed = all.failed.into_iter().map(|(kernel, reason)| (kernel, reason.sentence())).collect();
    let compiled = all.compiled.into_iter().map(|(item, artifacts)| (item.kernel, artifacts)).collect();
    Ok((compiled, all.already_warm, failed))
}

fn take<'i>(items: &'i [WarmupItem], next: &AtomicUsize, stop: &AtomicUsize) -> Option<&'i WarmupItem> {
    if stop.load(Ordering::Relaxed) != 0 {
        return None;
    }
    items.get(next.fetch_add(1, Ordering::Relaxed))
}

/// Records that a kernel has been compiled for calls like this one.
#[pyfunction]
fn mark_warm<'py>(
    py: Python<'py>,
    kernel: &str,
    operation_name: &str,
    arguments: &Bound<'py, PyTuple>,
    keywords: &Bound<'py, PyDict>,
) -> PyResult<()> {
    let info = operation(operation_name)?;
    let context = context(py, info, arguments, Some(keywords))?;
    engine()?.mark_warm(kernel, info, &context);
    Ok(())
}

/// The explanation of a call on a well-known device that need not be present, as JSON.
#[pyfunction]
fn explain_on<'py>(
    py: Python<'py>,
    preset: &str,
    operation_name: &str,
    arguments: &Bound<'py, PyTuple>,
    keywords: &Bound<'py, PyDict>,
) -> PyResult<String> {
    let wrong = |error: &dyn std::fmt::Display| PyValueError::new_err(error.to_string());
    let device = lz_device::preset(preset).map_err(|error| wrong(&error))?;
    let info = operation(operation_name)?;
    let context = context(py, info, arguments, Some(keywords))?;
    let explanation = engine()?.with_device(device).explain(info, &context);
    serde_json::to_string(&explanation).map_err(|error| wrong(&error))
}

/// Adds the functions.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(stop_compiling, module)?)?;
    module.add_function(wrap_pyfunction!(restart_compiling_after_fork, module)?)?;
    module.add_function(wrap_pyfunction!(wait_for_compilations, module)?)?;
    module.add_function(wrap_pyfunction!(compilations, module)?)?;
    module.add_function(wrap_pyfunction!(compile_cold, module)?)?;
    module.add_function(wrap_pyfunction!(mark_warm, module)?)?;
    module.add_function(wrap_pyfunction!(explain_on, module)?)
}
