//! The functions of the bridge that are not calls of operations.

use std::path::Path;
use std::sync::Arc;

use lz_core::{Error, Reason, ReasonCode};
use lz_engine::policy::layer::Given;
use lz_ops::tokenizer;
use lz_plugin::abi::{ABI_MAJOR, ABI_MINOR, Tokenizer};

use crate::call::{Failure, guarded};
use crate::engine::{Engine, Owner, Scope};
use crate::generated::bridge::ffi;

/// The version of the ABI; headers compare it with their own.
pub fn abi_version() -> u32 {
    ABI_MAJOR << 16 | ABI_MINOR
}

/// The version of LayerZero.
pub fn version() -> String {
    env!("CARGO_PKG_VERSION").to_owned()
}

/// An engine with every kernel that is built in.
pub fn engine_new() -> Box<Engine> {
    let inner = lz_ops::reference_engine();
    // The lists of our own backends are tested to register; should one not, the references remain and `kernels` shows it.
    inner.register(lz_cpu::kernels()).ok();
    inner.register(lz_tokenize::kernels()).ok();
    Box::new(Engine { inner })
}

/// Replaces an engine by one as its operator set it up: a file, the environment, measurements. An empty name means the file
/// that the environment names, or `layerzero.yaml` if it is there.
pub fn engine_open(engine: &mut Engine, config: &str) -> *mut Failure {
    guarded(|| {
        let builder = lz_engine::Engine::builder().from_environment().operations(lz_ops::OPERATIONS);
        let builder = if config.is_empty() { builder } else { builder.config(config) };
        let opened = builder.open()?;
        opened.register(lz_ops::reference_kernels::kernels())?;
        opened.register(lz_cpu::kernels())?;
        opened.register(lz_tokenize::kernels())?;
        // SAFETY: the operator lists what is loaded and says what may be.
        for (path, outcome) in unsafe { lz_worker::plugins::load_all(&opened) } {
            if let Err(error) = outcome {
                eprintln!("layerzero: plugins.load: {} was refused: {error}", path.display());
            }
        }
        engine.inner = opened;
        Ok(())
    })
}

/// An engine with the references alone.
pub fn engine_reference() -> Box<Engine> {
    Box::new(Engine { inner: lz_ops::reference_engine() })
}

/// The same engine once more.
pub fn engine_share(engine: &Engine) -> Box<Engine> {
    Box::new(engine.clone())
}

/// Moves with every change that a decision can depend on.
pub fn engine_generation(engine: &Engine) -> u64 {
    engine.inner.generation()
}

/// How often a kernel failed and another one did its work.
pub fn engine_fallbacks(engine: &Engine) -> u64 {
    engine.inner.fallbacks()
}

/// Names of the operations.
pub fn engine_operations(engine: &Engine) -> Vec<String> {
    engine.inner.registry().operations().map(|operation| operation.name.to_string()).collect()
}

/// Every kernel.
pub fn engine_kernels(engine: &Engine) -> Vec<ffi::KernelInfo> {
    let registry = engine.inner.registry();
    registry
        .kernels()
        .map(|entry| ffi::KernelInfo {
            id: entry.spec.id.clone(),
            operation: entry.spec.operation.clone(),
            backend: entry.spec.backend.clone(),
            version: entry.spec.version.clone(),
        })
        .collect()
}

/// Every value of the configuration with where it came from.
pub fn engine_config(engine: &Engine) -> Vec<ffi::ConfigEntry> {
    let entries = engine.inner.config().into_iter();
    entries
        .map(|entry| ffi::ConfigEntry {
            key: entry.key,
            value: entry.value,
            source: entry.source.to_string(),
        })
        .collect()
}

fn configure(engine: &Engine, key: &str, value: Given) -> Result<(), Error> {
    engine.inner.configure([(key.to_owned(), value)])
}

/// Sets one value; the text is read as the setting's type.
pub fn engine_configure(engine: &Engine, key: &str, value: &str) -> *mut Failure {
    guarded(|| {
        let given = match value {
            "true" => Given::Bool(true),
            "false" => Given::Bool(false),
            text => match (text.parse::<i64>(), text.parse::<f64>()) {
                (Ok(number), _) => Given::Int(number),
                (_, Ok(number)) => Given::Float(number),
                _ => Given::Text(text.to_owned()),
            },
        };
        configure(engine, key, given)
    })
}

/// Sets a list.
pub fn engine_configure_list(engine: &Engine, key: &str, values: &[&str]) -> *mut Failure {
    guarded(|| {
        let values = values.iter().map(|&value| value.to_owned()).collect();
        configure(engine, key, Given::Texts(values))
    })
}

/// Reads a policy file; a wrong one changes nothing.
pub fn engine_load_config(engine: &Engine, path: &str) -> *mut Failure {
    guarded(|| engine.inner.load_config(Path::new(path)))
}

/// Loads a plugin that the operator trusts, into this process or into a worker.
pub fn engine_load_plugin(engine: &Engine, path: &str, plugin: &mut ffi::PluginInfo) -> *mut Failure {
    guarded(|| {
        // SAFETY: the operator's settings say what may be loaded, and the caller asks for it.
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

/// Ends a lock.
pub fn engine_unlock(engine: &Engine, operation: &str) -> *mut Failure {
    guarded(|| engine.inner.unlock(operation))
}

/// A scope that does nothing yet.
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

/// Runs references only for this thread's calls until the scope ends.
pub fn engine_disabled(engine: &Engine, scope: &mut Scope) -> *mut Failure {
    guarded(|| {
        scope.scope = Some(engine.inner.disabled()?);
        Ok(())
    })
}

/// Registers kernels that C++ brings; `release` is called with `owner` when none of them is needed any more.
///
/// # Safety
/// As for [`Engine::register`] and [`Owner::new`].
pub unsafe fn engine_register(
    engine: &Engine,
    descriptor: &str,
    kernels: &[ffi::KernelRecord],
    owner: usize,
    release: usize,
) -> *mut Failure {
    // SAFETY: passed on.
    let owner = unsafe { Owner::new(owner, release) };
    // SAFETY: passed on.
    guarded(|| unsafe { engine.register(descriptor, kernels, Arc::new(owner)) })
}

/// Takes a backend and its kernels away.
pub fn engine_unregister(engine: &Engine, backend: &str) {
    engine.inner.unregister_backend(backend);
}

/// A tokenizer that C++ holds; empty until it is read.
#[derive(Debug, Default)]
pub struct TokenizerHandle {
    tokenizer: Option<tokenizer::Tokenizer>,
}

/// An empty handle.
pub fn tokenizer_new() -> Box<TokenizerHandle> {
    Box::default()
}

fn tokenizer_error(error: &tokenizer::TokenizerError) -> Error {
    Error::Configuration {
        subject: "a tokenizer".to_owned(),
        message: error.to_string(),
        reasons: vec![Reason::new(ReasonCode::TokenizerIdMismatch).message(error.to_string())],
    }
}

/// Reads a `tokenizer.json`, or a SentencePiece model if the file's name ends in `.model`. With `whole_texts`, truncation and padding
/// that it states are ignored instead of refused.
pub fn tokenizer_load(handle: &mut TokenizerHandle, path: &str, whole_texts: bool) -> *mut Failure {
    let read = if whole_texts {
        tokenizer::Tokenizer::whole_texts_from_file
    } else {
        tokenizer::Tokenizer::from_file
    };
    guarded(|| {
        handle.tokenizer = Some(read(path).map_err(|error| tokenizer_error(&error))?);
        Ok(())
    })
}

/// Reads the content of a `tokenizer.json`, as [`tokenizer_load`] does.
pub fn tokenizer_parse(handle: &mut TokenizerHandle, json: &[u8], whole_texts: bool) -> *mut Failure {
    let read = if whole_texts { tokenizer::Tokenizer::whole_texts } else { tokenizer::Tokenizer::from_json };
    guarded(|| {
        handle.tokenizer = Some(read(json).map_err(|error| tokenizer_error(&error))?);
        Ok(())
    })
}

/// Makes the tokenizer that encodes special tokens in a text as plain text.
pub fn tokenizer_split_special(handle: &TokenizerHandle, into: &mut TokenizerHandle) -> *mut Failure {
    guarded(|| {
        let made = handle.tokenizer.as_ref().map(tokenizer::Tokenizer::splitting_special_tokens).transpose();
        into.tokenizer = made.map_err(|error| tokenizer_error(&error))?;
        Ok(())
    })
}

/// Describes a tokenizer as it crosses; it stays good as long as the handle.
///
/// # Safety
/// The pointer names an `lz_tokenizer` that may be written.
pub unsafe fn tokenizer_describe(handle: &TokenizerHandle, description: *mut Tokenizer) {
    let Some(read) = &handle.tokenizer else { return };
    if let Ok(made) = Tokenizer::of(read) {
        // SAFETY: the caller vouches for it.
        unsafe { description.write(made) };
    }
}

/// Lets a dispatch table decide.
pub fn engine_load_table(engine: &Engine, path: &str) -> *mut Failure {
    guarded(|| engine.inner.load_dispatch_table(Path::new(path)).map(drop))
}

/// Goes on without dispatch tables.
pub fn engine_unload_tables(engine: &Engine) {
    engine.inner.unload_dispatch_tables();
}

/// The dispatch tables that were loaded.
pub fn engine_tables(engine: &Engine) -> Vec<ffi::TableInfo> {
    let tables = engine.inner.dispatch_tables().into_iter();
    tables
        .map(|table| ffi::TableInfo {
            path: table.path,
            operations: table.operations,
            stale: table.stale.unwrap_or_default(),
        })
        .collect()
}
