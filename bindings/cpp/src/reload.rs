//! Reload for C++: plugins that replace others, kernel versions side by side, watched policy files, readiness.

use std::ffi::c_void;
use std::path::Path;
use std::time::Duration;

use lz_core::device::Platform;
use lz_core::{Error, Reason, ReasonCode};
use lz_engine::reload::{Outcome, Reload};
use lz_worker::plugins::Install;

use crate::call::{Failure, guarded};
use crate::data;
use crate::engine::{Engine, Owner};

/// Loads other versions of registered kernels next to them.
pub fn engine_load_plugin_alongside(
    engine: &Engine,
    path: &str,
    plugin: &mut data::PluginInfo,
) -> *mut Failure {
    guarded(|| {
        // SAFETY: the configuration restricts which plugins may be loaded, and the caller requests this one.
        let loaded =
            unsafe { lz_worker::plugins::load_as(&engine.inner, Path::new(path), Install::Alongside) }?;
        plugin.backend = loaded.backend;
        plugin.kernels = loaded.kernels;
        plugin.runs_in = loaded.runs_in.unwrap_or_default();
        Ok(())
    })
}

/// Replaces the kernels of a backend by those of a new plugin.
pub fn engine_reload_plugin(
    engine: &Engine,
    path: &str,
    drain_seconds: f64,
    reload: &mut data::ReloadInfo,
) -> *mut Failure {
    guarded(|| {
        let patience = Duration::try_from_secs_f64(drain_seconds.max(0.0)).unwrap_or(Duration::MAX);
        let install = Install::Replace(patience);
        // SAFETY: as above.
        let loaded = unsafe { lz_worker::plugins::load_as(&engine.inner, Path::new(path), install) }?;
        let replacement = loaded.replacement.unwrap_or_default();
        *reload = data::ReloadInfo {
            backend: loaded.backend,
            version: loaded.version,
            kernels: loaded.kernels,
            runs_in: loaded.runs_in.unwrap_or_default(),
            replaced: replacement
                .replaced
                .into_iter()
                .flat_map(|(kernel, version)| [kernel, version])
                .collect(),
            compared_calls: replacement.trial.compared as u64,
            untried: replacement.trial.untried,
            unloaded: replacement.is_drained,
        };
        Ok(())
    })
}

/// The canaries.
pub fn engine_canaries(engine: &Engine) -> Vec<data::CanaryInfo> {
    let canaries = engine.inner.canaries().into_iter();
    canaries
        .map(|one| data::CanaryInfo {
            kernel: one.kernel,
            percent: one.percent,
            state: one.state.to_owned(),
            why: one.why,
            calls: one.totals.calls,
            compared: one.totals.compared,
            mismatches: one.totals.mismatches,
            errors: one.totals.errors,
            median_ns: one.median_ns,
            stable_median_ns: one.stable_median_ns,
            problem: one.problem,
        })
        .collect()
}

/// Routes all calls of a kernel to a version.
pub fn engine_promote_version(engine: &Engine, version: &str) -> *mut Failure {
    guarded(|| engine.inner.promote_version(version))
}

/// Routes no more calls to a version.
pub fn engine_roll_back_version(engine: &Engine, version: &str) -> *mut Failure {
    guarded(|| engine.inner.roll_back_version(version))
}

fn wrong(subject: &str, message: String) -> Error {
    let reasons = vec![Reason::new(ReasonCode::PolicyInvalid).message(message.clone())];
    Error::Configuration { subject: subject.to_owned(), message, reasons }
}

/// Whether calls can be served on these platforms.
pub fn engine_readiness(
    engine: &Engine,
    platforms: &[&str],
    readiness: &mut data::ReadinessInfo,
) -> *mut Failure {
    guarded(|| {
        let parsed = platforms.iter().map(|name| name.parse::<Platform>());
        let checked: Result<Vec<Platform>, _> = parsed.collect();
        let checked = checked.map_err(|error| wrong("platform", error.to_string()))?;
        let is_primitive = |name: &str| lz_primitives::all().iter().any(|primitive| primitive.name == name);
        let found = engine.inner.readiness_of(&checked, &|name| !is_primitive(name));
        readiness.ready = found.ready;
        let checks = found.checks.into_iter();
        readiness.checks = checks
            .map(|one| data::CheckInfo { name: one.name.to_owned(), ok: one.ok, detail: one.detail })
            .collect();
        Ok(())
    })
}

type Callback = unsafe extern "C" fn(*mut c_void, *const data::ConfigChange);

/// A watched policy file; empty until it is started.
#[derive(Debug, Default)]
pub struct WatchHandle {
    watch: Option<Reload>,
}

/// An empty handle.
pub fn watch_new() -> Box<WatchHandle> {
    Box::default()
}

/// Watches a policy file; the callback receives every outcome. The address 0 is no callback.
///
/// # Safety
/// `callback` is 0 or the address of a C function that takes `owner` and a change, on any thread, and does not throw.
/// `release` is as for [`Owner::new`].
pub unsafe fn watch_start(
    watch: &mut WatchHandle,
    engine: &Engine,
    path: &str,
    callback: usize,
    owner: usize,
    release: usize,
) -> *mut Failure {
    #[expect(clippy::disallowed_methods, reason = "converts an address to a function pointer")]
    // SAFETY: the caller guarantees the function; 0 is `None`.
    let callback = unsafe { std::mem::transmute::<usize, Option<Callback>>(callback) };
    // SAFETY: passed on.
    let owner = unsafe { Owner::new(owner, release) };
    guarded(move || {
        let started = engine.inner.watch_config(Path::new(path), move |outcome| {
            // The whole owner, which is released with this closure.
            let owner = &owner;
            let (state, message) = match outcome {
                Outcome::Applied => ("applied", String::new()),
                Outcome::Unchanged => ("unchanged", String::new()),
                Outcome::Refused(message) => ("refused", message),
                Outcome::Unreadable(message) => ("unreadable", message),
            };
            let change = data::ConfigChange { state: state.to_owned(), message };
            if let Some(callback) = callback {
                // SAFETY: by the contract of this function.
                unsafe { callback(owner.data, &raw const change) };
            }
        });
        watch.watch = Some(started.map_err(|error| wrong(path, error.to_string()))?);
        Ok(())
    })
}

/// Stops watching.
pub fn watch_stop(watch: &mut WatchHandle) {
    watch.watch = None;
}
