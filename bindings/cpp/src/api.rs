//! The functions of the bridge that do not call operations.

use std::path::Path;
use std::sync::Arc;

use lz_core::{Error, TensorView, statistic};
use lz_engine::policy::layer::SettingInput;
use lz_plugin::abi::{self, ABI_MAJOR, ABI_MINOR};

use crate::call::{Failure, guarded};
use crate::data;
use crate::engine::{Engine, Owner, Scope};

/// The ABI version of the library; headers compare it with theirs.
pub fn abi_version() -> u32 {
    ABI_MAJOR << 16 | ABI_MINOR
}

/// The version of LayerZero.
pub fn version() -> String {
    env!("CARGO_PKG_VERSION").to_owned()
}

/// Registers the built-in kernels; returns the backends whose kernels were rejected.
fn register_built_in(engine: &lz_engine::Engine) -> Vec<(String, Error)> {
    let backends = [
        ("reference", lz_ops::reference_kernels::kernels()),
        ("cpu", lz_cpu::kernels()),
        ("primitives", lz_primitives::reference_kernels()),
        ("cpu primitives", lz_cpu::primitive_kernels()),
        ("tokenize", lz_tokenize::kernels()),
    ];
    let register = |(name, kernels): (&str, _)| Some((name.to_owned(), engine.register(kernels).err()?));
    backends.into_iter().filter_map(register).collect()
}

/// Creates an engine with all built-in kernels.
pub fn engine_new() -> Box<Engine> {
    lz_engine::log::install();
    let inner = lz_engine::Engine::new();
    lz_engine::verify::install(&inner);
    let problems = Arc::new(register_built_in(&inner));
    Box::new(Engine { inner, problems })
}

/// Replaces an engine by one configured by a policy file, the environment and stored measurements. An empty `config` means the
/// file named by the environment, or `layerzero.yaml` if it exists.
pub fn engine_open(engine: &mut Engine, config: &str) -> *mut Failure {
    lz_engine::log::install();
    guarded(|| {
        let builder = lz_engine::Engine::builder().from_environment().operations(lz_ops::OPERATIONS);
        let builder = builder.operations(lz_primitives::all().iter().copied());
        let builder = builder.warn(lz_engine::log::warn_about_settings);
        let builder = if config.is_empty() { builder } else { builder.config(config) };
        let opened = builder.open()?;
        lz_engine::tune::BackgroundTuner::install(&opened);
        lz_engine::verify::install(&opened);
        let mut problems = register_built_in(&opened);
        // SAFETY: the configuration lists the plugins to load and restricts which may be loaded.
        for (path, outcome) in unsafe { lz_worker::plugins::load_all(&opened) } {
            // The audit log has a line about it.
            problems.extend(outcome.err().map(|error| (path.display().to_string(), error)));
        }
        *engine = Engine { inner: opened, problems: Arc::new(problems) };
        Ok(())
    })
}

/// Creates an engine with only the reference kernels.
pub fn engine_reference() -> Box<Engine> {
    lz_engine::log::install();
    let inner = lz_engine::Engine::new();
    let rejected = inner.register(lz_ops::reference_kernels::kernels()).err();
    let problems = Arc::new(rejected.map(|error| ("reference".to_owned(), error)).into_iter().collect());
    Box::new(Engine { inner, problems })
}

/// The backends and plugins that did not load, and why.
pub fn engine_problems(engine: &Engine) -> Vec<data::LoadProblem> {
    let problems = engine.problems.iter();
    problems
        .map(|(name, error)| data::LoadProblem {
            name: name.clone(),
            message: error.to_string(),
            reasons: error.reasons().into_iter().map(crate::call::reason).collect(),
        })
        .collect()
}

/// Returns another handle of the same engine.
pub fn engine_share(engine: &Engine) -> Box<Engine> {
    Box::new(engine.clone())
}

/// A counter that is incremented by every change that can affect a decision.
pub fn engine_generation(engine: &Engine) -> u64 {
    engine.inner.generation()
}

/// The number of calls that ran a fallback kernel after a failure.
pub fn engine_fallbacks(engine: &Engine) -> u64 {
    engine.inner.fallbacks()
}

/// Names of the operations except the primitives of graphs, which have no function of their own.
pub fn engine_operations(engine: &Engine) -> Vec<String> {
    let is_primitive = |name: &str| lz_primitives::all().iter().any(|primitive| primitive.name == name);
    let registry = engine.inner.registry();
    let names = registry.operations().map(|operation| operation.name.to_string());
    names.filter(|name| !is_primitive(name)).collect()
}

/// All kernels.
pub fn engine_kernels(engine: &Engine) -> Vec<data::KernelInfo> {
    let registry = engine.inner.registry();
    registry
        .kernels()
        .map(|entry| data::KernelInfo {
            id: entry.spec.id.clone(),
            operation: entry.spec.operation.clone(),
            backend: entry.spec.backend.clone(),
            version: entry.spec.version.clone(),
        })
        .collect()
}

/// The statistic that a param of an operation takes, measured on a tensor.
///
/// # Safety
/// `tensor` is the address of an `lz_tensor` that describes valid memory during the call.
pub unsafe fn engine_statistic(
    engine: &Engine,
    operation: &str,
    param: &str,
    tensor: usize,
    value: &mut i64,
) -> *mut Failure {
    guarded(|| {
        let info = engine.inner.registry().find_operation(operation)?;
        let mut view = TensorView::empty();
        // SAFETY: promised by the caller.
        let described = unsafe { abi::tensor(param, tensor as *const abi::Tensor, &mut view) };
        let measured = described.and_then(|()| statistic::of_param(info.schema(), param, &view));
        *value = measured.map_err(|reason| Error::Validation {
            operation: info.name.to_string(),
            reasons: vec![reason],
        })?;
        Ok(())
    })
}

/// All configuration values, each with its source.
pub fn engine_config(engine: &Engine) -> Vec<data::ConfigEntry> {
    let entries = engine.inner.config().into_iter();
    entries
        .map(|entry| data::ConfigEntry {
            key: entry.key,
            value: entry.value,
            source: entry.source.to_string(),
        })
        .collect()
}

fn configure(engine: &Engine, key: &str, value: SettingInput) -> Result<(), Error> {
    engine.inner.configure([(key.to_owned(), value)])
}

/// Sets one value, parsed as the type of the setting.
pub fn engine_configure(engine: &Engine, key: &str, value: &str) -> *mut Failure {
    guarded(|| {
        let given = match value {
            "true" => SettingInput::Bool(true),
            "false" => SettingInput::Bool(false),
            text => match (text.parse::<i64>(), text.parse::<f64>()) {
                (Ok(number), _) => SettingInput::Int(number),
                (_, Ok(number)) => SettingInput::Float(number),
                _ => SettingInput::Text(text.to_owned()),
            },
        };
        configure(engine, key, given)
    })
}

/// Sets a list.
pub fn engine_configure_list(engine: &Engine, key: &str, values: &[&str]) -> *mut Failure {
    guarded(|| {
        let values = values.iter().map(|&value| value.to_owned()).collect();
        configure(engine, key, SettingInput::Texts(values))
    })
}

/// Loads a policy file; an invalid file changes nothing.
pub fn engine_load_config(engine: &Engine, path: &str) -> *mut Failure {
    guarded(|| engine.inner.load_config(Path::new(path)))
}

/// Loads a plugin into this process or into a worker process.
pub fn engine_load_plugin(engine: &Engine, path: &str, plugin: &mut data::PluginInfo) -> *mut Failure {
    guarded(|| {
        // SAFETY: the configuration restricts which plugins may be loaded, and the caller requests this one.
        let loaded = unsafe { lz_worker::plugins::load(&engine.inner, Path::new(path)) }?;
        plugin.backend = loaded.backend;
        plugin.kernels = loaded.kernels;
        plugin.runs_in = loaded.runs_in.unwrap_or_default();
        Ok(())
    })
}

/// Locks an operation or alias to a kernel.
pub fn engine_lock(engine: &Engine, operation: &str, kernel: &str) -> *mut Failure {
    guarded(|| engine.inner.lock(operation, kernel))
}

/// Removes a lock.
pub fn engine_unlock(engine: &Engine, operation: &str) -> *mut Failure {
    guarded(|| engine.inner.unlock(operation))
}

/// Creates an inactive scope.
pub fn scope_new() -> Box<Scope> {
    Box::default()
}

/// Prefers backends or kernels for this thread's calls until the scope ends.
pub fn engine_prefer(engine: &Engine, patterns: &[&str], scope: &mut Scope) -> *mut Failure {
    guarded(|| {
        let patterns: Vec<String> = patterns.iter().map(|&pattern| pattern.to_owned()).collect();
        scope.scope = Some(engine.inner.prefer(&patterns)?);
        Ok(())
    })
}

/// Runs only reference kernels for this thread's calls until the scope ends.
pub fn engine_disabled(engine: &Engine, scope: &mut Scope) -> *mut Failure {
    guarded(|| {
        scope.scope = Some(engine.inner.disabled()?);
        Ok(())
    })
}

/// Registers kernels implemented in C++. `release` is called with `owner` when the last of them is dropped.
///
/// # Safety
/// As for `Engine::register` and [`Owner::new`].
pub unsafe fn engine_register(
    engine: &Engine,
    descriptor: &str,
    kernels: &[data::KernelRecord],
    owner: usize,
    release: usize,
) -> *mut Failure {
    // SAFETY: passed on.
    let owner = unsafe { Owner::new(owner, release) };
    // SAFETY: passed on.
    guarded(|| unsafe { engine.register(descriptor, kernels, Arc::new(owner)) })
}

/// Removes a backend and its kernels.
pub fn engine_unregister(engine: &Engine, backend: &str) -> bool {
    engine.inner.unregister_backend(backend)
}

/// Removes the kernels with this id, of one operation unless its name is empty.
pub fn engine_unregister_kernel(engine: &Engine, kernel: &str, operation: &str) -> *mut Failure {
    guarded(|| engine.inner.unregister_kernel(kernel, (!operation.is_empty()).then_some(operation)))
}

/// Loads a dispatch table.
pub fn engine_load_table(engine: &Engine, path: &str) -> *mut Failure {
    guarded(|| engine.inner.load_dispatch_table(Path::new(path)).map(drop))
}

/// Unloads all dispatch tables.
pub fn engine_unload_tables(engine: &Engine) {
    engine.inner.unload_dispatch_tables();
}

/// The loaded dispatch tables.
pub fn engine_tables(engine: &Engine) -> Vec<data::TableInfo> {
    let tables = engine.inner.dispatch_tables().into_iter();
    tables
        .map(|table| data::TableInfo {
            path: table.path,
            operations: table.operations,
            stale: table.stale.unwrap_or_default(),
        })
        .collect()
}
