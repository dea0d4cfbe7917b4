//! Whether an engine can serve calls: one check for each part that a call depends on.
//!
//! A check passes or says what is wrong. Nothing here changes the engine.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::engine::Engine;
use crate::evidence::system_memory;
use crate::health::DegradationLevel;
use crate::log;
use crate::registry::{BackendState, Registry};
use crate::selection::devices::{detected, host};
use crate::selection::snapshot::Snapshot;
use lz_core::built_in::BUILT_IN_BACKENDS;
use lz_core::device::{DeviceSpec, Platform};
use lz_core::kernel::KernelEntry;
use lz_core::operation::OperationInfo;

/// Whether calls can be served, with each check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Readiness {
    /// Whether all checks passed.
    pub ready: bool,
    /// The platforms that were checked.
    pub platforms: Vec<String>,
    /// The checks.
    pub checks: Vec<Check>,
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Its name.
    pub name: &'static str,
    /// Whether it passed.
    pub ok: bool,
    /// What was found.
    pub detail: String,
}

impl Readiness {
    /// The check with this name.
    pub fn check(&self, name: &str) -> Option<&Check> {
        self.checks.iter().find(|check| check.name == name)
    }
}

/// A check that passes if there are no problems.
fn check(name: &'static str, problems: &[String], otherwise: impl Into<String>) -> Check {
    let ok = problems.is_empty();
    Check { name, ok, detail: if ok { otherwise.into() } else { problems.join("; ") } }
}

impl Engine {
    /// Whether calls can be served on these platforms.
    pub fn readiness(&self, platforms: &[Platform]) -> Readiness {
        self.readiness_of(platforms, &|_| true)
    }

    /// Whether calls of some operations can be served on these platforms.
    pub fn readiness_of(&self, platforms: &[Platform], is_served: &dyn Fn(&str) -> bool) -> Readiness {
        let snapshot = self.snapshot();
        let checks = vec![
            kernels(&snapshot.registry, platforms, is_served),
            health(&snapshot),
            backends(&snapshot.registry),
            self.circuits_check(),
            self.dispatch_tables_check(),
            compilation(&snapshot),
            handles(&snapshot.registry),
            capture(&snapshot, platforms, is_served),
            memory(&snapshot, platforms),
            self.perfdb_check(),
            self.telemetry_check(),
            versions(&snapshot),
        ];
        Readiness {
            ready: checks.iter().all(|check| check.ok),
            platforms: platforms.iter().map(ToString::to_string).collect(),
            checks,
        }
    }

    fn circuits_check(&self) -> Check {
        let health = self.health();
        let open = health.circuits().iter().filter(|circuit| circuit.refuses()).count();
        let tracked = health.summary().tracked;
        let detail = format!("{open} open of {tracked}; see lz health show");
        Check { name: "circuits", ok: open == 0, detail }
    }

    /// A table that was built for other kernels is not used.
    fn dispatch_tables_check(&self) -> Check {
        let tables = self.dispatch_tables();
        let stale = tables.iter().filter_map(|one| Some(format!("{}: {}", one.path, one.stale.as_ref()?)));
        let stale: Vec<String> = stale.collect();
        check("dispatch_table", &stale, format!("{} loaded", tables.len()))
    }

    fn perfdb_check(&self) -> Check {
        let Some(db) = self.perfdb() else { return check("perfdb", &[], "no database") };
        let (path, status) = (db.path().display(), db.status());
        match status.mode {
            lz_perfdb::Mode::Writable => check("perfdb", &[], format!("{path}: writable")),
            lz_perfdb::Mode::ReadOnly => check("perfdb", &[], format!("{path}: read-only")),
            lz_perfdb::Mode::Closed(why) => check("perfdb", &[format!("{path}: {why}")], ""),
        }
    }

    /// Records that were dropped are missing where an operator looks for them.
    fn telemetry_check(&self) -> Check {
        let dropped = log::dropped();
        let problems: Vec<String> =
            (dropped > 0).then(|| format!("{dropped} log records were dropped")).into_iter().collect();
        let recording = self.snapshot().observation.recorder.is_some();
        let otherwise = if recording { "a recording is in progress" } else { "no log record was dropped" };
        check("telemetry", &problems, otherwise)
    }
}

fn kernels(registry: &Registry, platforms: &[Platform], is_served: &dyn Fn(&str) -> bool) -> Check {
    let without = |platform: &Platform| {
        let mut names = registry.operations_without_kernel(*platform);
        names.retain(|name| is_served(name));
        names.sort_unstable();
        (!names.is_empty()).then(|| format!("no kernel on {platform}: {}", names.join(", ")))
    };
    let problems: Vec<String> = platforms.iter().filter_map(without).collect();
    let names: Vec<String> = platforms.iter().map(ToString::to_string).collect();
    check("kernels", &problems, format!("every operation has a kernel on {}", names.join(" and ")))
}

fn health(snapshot: &Snapshot) -> Check {
    let level = snapshot.level;
    Check { name: "health", ok: level == DegradationLevel::Full, detail: format!("{level:?}") }
}

fn backends(registry: &Registry) -> Check {
    let disabled = |(name, state): (&str, &BackendState)| match state {
        BackendState::Available => None,
        BackendState::Disabled(reason) => Some(format!("{name}: {reason}")),
    };
    let all = registry.backends().map(|(name, backend)| (name, &backend.state));
    let problems: Vec<String> = all.filter_map(disabled).collect();
    check("backends", &problems, "all registered backends are available")
}

/// Kernels that wait for their compilation are not selected yet; those whose compilation failed are not selected at all.
fn compilation(snapshot: &Snapshot) -> Check {
    let Some(jit) = &snapshot.jit else {
        return check("compilation", &[], "no kernel compiles on first use");
    };
    let state = jit.compilation_state();
    let mut problems = Vec::new();
    if state.waiting > 0 {
        problems.push(format!("{} kernels wait for their compilation", state.waiting));
    }
    if state.failed > 0 {
        problems.push(format!("{} kernels could not be compiled", state.failed));
    }
    problems.extend(state.manifest_problem.map(|problem| format!("shape manifest: {problem}")));
    check("compilation", &problems, format!("{} kernels compiled", state.compiled))
}

/// Kernels that wait for the verification of a handle are not selected yet.
fn handles(registry: &Registry) -> Check {
    let mut pending: Vec<String> =
        registry.kernels().filter_map(|entry| entry.judge.as_ref()?.pending()).collect();
    pending.sort_unstable();
    pending.dedup();
    check("handles", &pending, "no verification of a tokenizer is running")
}

/// With `graph_strict_mode` a capture needs kernels that passed a trial capture.
fn capture(snapshot: &Snapshot, platforms: &[Platform], is_served: &dyn Fn(&str) -> bool) -> Check {
    let (registry, policy) = (&snapshot.registry, &snapshot.policy);
    let captures: Vec<Platform> =
        platforms.iter().copied().filter(|platform| *platform != Platform::Cpu).collect();
    if captures.is_empty() {
        return check("capture", &[], "no platform with graph capture is checked");
    }
    let is_safe = |entry: &KernelEntry| {
        entry.spec.cuda_graph_safe || policy.default_graph_safe.value && !entry.spec.cuda_graph_unsafe
    };
    let mut unsafe_operations: BTreeSet<&str> = BTreeSet::new();
    for platform in &captures {
        let lacks = |operation: &&'static OperationInfo| {
            let mut own = registry.kernels_of(operation).filter(|entry| entry.spec.platform == *platform);
            let first = own.next();
            is_served(&operation.name) && first.is_some_and(|first| !is_safe(first) && !own.any(is_safe))
        };
        unsafe_operations
            .extend(registry.operations().filter(lacks).map(|operation| operation.name.as_ref()));
    }
    let names: Vec<&str> = unsafe_operations.into_iter().collect();
    let found = format!("operations without a graph-safe kernel: {}", names.join(", "));
    if !policy.graph_strict_mode.value {
        let none = "every operation has a graph-safe kernel".to_owned();
        return check("capture", &[], if names.is_empty() { none } else { found });
    }
    let mut problems = Vec::new();
    if !names.is_empty() {
        problems.push(found);
    }
    if !snapshot.warm.has_captures() {
        problems.push("no kernel has passed a trial capture; call lz.verify_capture".to_owned());
    }
    check("capture", &problems, "kernels have passed a trial capture")
}

/// Free memory against `memory_headroom_mb`, where free memory is probed.
fn memory(snapshot: &Snapshot, platforms: &[Platform]) -> Check {
    let probe = match &snapshot.memory {
        Some(probe) => probe.as_ref(),
        None if snapshot.policy.probe_memory.value => system_memory(),
        None => return check("memory", &[], "free memory is not probed; set memory.probe"),
    };
    let Some(headroom) = snapshot.policy.memory_headroom.value else {
        return check("memory", &[], "memory_headroom_mb sets no limit");
    };
    let mut devices: Vec<&DeviceSpec> = Vec::new();
    for platform in platforms {
        match platform {
            Platform::Cpu => devices.push(host()),
            other => devices.extend(detected().devices.iter().filter(|device| device.platform() == *other)),
        }
    }
    let mebibytes = |bytes: u64| bytes >> 20;
    let mut found = Vec::new();
    let mut problems = Vec::new();
    for device in devices {
        let free = [probe.free_bytes(device), probe.largest_block(device)].into_iter().flatten().min();
        let Some(free) = free else { continue };
        let text = format!("{} has {} MiB free", device.name, mebibytes(free));
        if free < headroom {
            problems.push(format!("{text}, less than memory_headroom_mb ({})", mebibytes(headroom)));
        } else {
            found.push(text);
        }
    }
    check("memory", &problems, found.join("; "))
}

/// The kernels of a backend have one version, except for versions that are registered side by side. Built-in backends are
/// built together, and some wrap several libraries, each with its version.
fn versions(snapshot: &Snapshot) -> Check {
    let registry = &snapshot.registry;
    let mut by_backend: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let is_checked = |entry: &&KernelEntry| {
        entry.version_of.is_none() && !BUILT_IN_BACKENDS.contains(&entry.spec.backend.as_str())
    };
    for entry in registry.kernels().filter(is_checked) {
        by_backend.entry(&entry.spec.backend).or_default().insert(&entry.spec.version);
    }
    let several = by_backend.iter().filter(|(_, versions)| versions.len() > 1).map(|(backend, versions)| {
        let versions: Vec<&str> = versions.iter().copied().collect();
        format!("backend {backend} has kernels of the versions {}", versions.join(" and "))
    });
    let problems: Vec<String> = several.collect();
    let shared = registry.kernels().filter(|entry| entry.version_of.is_some()).map(|entry| {
        let share = snapshot.rollouts.share(&snapshot.policy, &entry.spec.id);
        format!("{} gets {} % of calls", entry.spec.id, share.percent)
    });
    let shared: Vec<String> = shared.collect();
    let agree = "the kernels of each backend have one version".to_owned();
    check("versions", &problems, if shared.is_empty() { agree } else { shared.join("; ") })
}
