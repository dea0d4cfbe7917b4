//! Kernels in Python that compile: their compilers, the queue that compiles in the background, and compiling beforehand.
//!
//! Nothing here compiles: a backend's own function does, on a thread that no call waits for.

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

/// A backend's function that compiles: called with the kernel's id, the operation and the call's fields as texts; it gives the
/// names of what it made.
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

/// Starts the queue, once there is something to compile and unless it runs already.
pub fn ensure_queue(engine: &Engine) {
    let mut queue = QUEUE.lock().unwrap_or_else(PoisonError::into_inner);
    if queue.is_none() {
        let config = JitConfig::of(|key| engine.setting(key));
        *queue = Some(JitQueue::start(engine, "", config));
    }
}

/// Starts a queue in the child of a fork, where the threads of the parent's are not.
#[pyfunction]
fn restart_compiling_after_fork() {
    // Locked by a thread of the parent's that waited for it: then the child has no background compilation.
    let Ok(mut queue) = QUEUE.try_lock() else { return };
    if let Some(inherited) = queue.take() {
        // Not dropped: a thread of the parent's may have been in the middle of changing it.
        std::mem::forget(inherited);
        let Ok(engine) = engine() else { return };
        let config = JitConfig::of(|key| engine.setting(key));
        *queue = Some(JitQueue::start(engine, "", config));
    }
}

/// Ends the background queue after what it compiles now, and writes the manifest. The next backend that compiles starts it anew.
#[pyfunction]
fn stop_compiling(py: Python<'_>) {
    let queue = QUEUE.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(queue) = queue {
        py.detach(|| queue.stop());
    }
}

/// Waits until nothing is left to compile in the background, at most so many seconds; says whether that is so.
#[pyfunction]
fn wait_for_compilations(py: Python<'_>, seconds: f64) -> bool {
    let most = Duration::try_from_secs_f64(seconds).unwrap_or_default();
    py.detach(|| {
        let queue = QUEUE.lock().unwrap_or_else(PoisonError::into_inner);
        queue.as_ref().is_none_or(|queue| queue.wait_until_idle(most))
    })
}

/// What the background queue has done and what it knows, as JSON; nothing where none runs.
#[pyfunction]
fn compilations() -> Option<String> {
    let queue = QUEUE.lock().unwrap_or_else(PoisonError::into_inner);
    let queue = queue.as_ref()?;
    let counters = queue.counters();
    let manifest: Vec<_> = queue.manifest().entries().cloned().collect();
    let told = serde_json::json!({
        "wanted": counters.wanted,
        "waiting": queue.waiting(),
        "compiled": counters.compiled,
        "failed": counters.failed,
        "dropped": counters.dropped,
        "impossible": counters.impossible,
        "manifest": manifest,
    });
    Some(told.to_string())
}

/// Kernels that were compiled with what that left behind, how many were warm already, and those that failed with why.
type Warmed = (Vec<(String, Vec<String>)>, usize, Vec<(String, String)>);

/// Compiles every kernel that only has to be compiled to be possible for these calls, several at a time. `told` hears of each that
/// is done; an exception of it, and a signal, call the rest off.
#[pyfunction]
#[pyo3(signature = (calls, workers, told = None))]
fn compile_cold<'py>(
    py: Python<'py>,
    calls: Vec<(String, Bound<'py, PyTuple>, Bound<'py, PyDict>)>,
    workers: usize,
    told: Option<&Bound<'py, PyAny>>,
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
    // The interpreter is let go while nothing is done, which only what threads may share survives.
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
            let heard = told.map(|told| told.call1((done, items.len(), name)));
            if heard.is_some_and(|heard| heard.is_err()) || py.check_signals().is_err() {
                stop.store(1, Ordering::Relaxed);
            }
        }
    });
    let failed = all.failed.into_iter().map(|(kernel, reason)| (kernel, reason.sentence())).collect();
    let compiled = all.compiled.into_iter().map(|(item, made)| (item.kernel, made)).collect();
    Ok((compiled, all.already_warm, failed))
}

fn take<'i>(items: &'i [WarmupItem], next: &AtomicUsize, stop: &AtomicUsize) -> Option<&'i WarmupItem> {
    if stop.load(Ordering::Relaxed) != 0 {
        return None;
    }
    items.get(next.fetch_add(1, Ordering::Relaxed))
}

/// Says that a kernel has been compiled for calls like this one.
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

/// What would be chosen for a call on a well-known device that need not be here, as JSON.
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
