//! Reloading of plugins under load: good ones, truncated ones, and ones that break the contract.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lz_core::ReasonCode;
use lz_engine::Engine;
use lz_plugin::loader::{self, Install, Trust};

use crate::counters::{self, Counter};
use crate::random::Random;

/// Faults of `tests/plugins/native/plugin.c`; the first is none. Each is compiled once, by the driver.
const FAULTS: &[&str] = &["", "VERSION", "SYMBOL", "NO_RUN", "INIT", "DESCRIPTOR", "OPERATION_VERSION"];

/// Reasons with which a broken plugin is refused.
const REFUSED: &[ReasonCode] = &[
    ReasonCode::PluginLoadFailed,
    ReasonCode::PluginVersionMismatch,
    ReasonCode::PluginSymbolMissing,
    ReasonCode::PluginInitFailed,
    ReasonCode::PluginPermission,
    ReasonCode::CapabilitiesSchemaMismatch,
    ReasonCode::CapabilitiesMissing,
];

/// Compiles the plugins; `false` without a C compiler.
pub fn compile(folder: &Path) -> bool {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let target = folder.join("plugins");
    if fs::create_dir_all(&target).is_err() {
        return false;
    }
    FAULTS.iter().all(|fault| {
        let mut command = Command::new("gcc");
        command.args(["-std=gnu11", "-shared", "-fPIC", "-O1"]);
        if !fault.is_empty() {
            command.arg(format!("-DFAULT_{fault}"));
        }
        command.arg("-I").arg(root.join("bindings/cpp/include"));
        command.arg("-I").arg(root.join("runtime/plugin/include"));
        command.arg(root.join("tests/plugins/native/plugin.c")).arg("-o").arg(file(folder, fault)).arg("-lm");
        command.status().is_ok_and(|status| status.success())
    })
}

fn file(folder: &Path, fault: &str) -> PathBuf {
    folder.join("plugins").join(format!("plugin-{fault}.so"))
}

/// Loads a plugin in place of the one that is loaded. A broken one is refused and changes nothing; the error says otherwise.
pub fn reload(engine: &Engine, folder: &Path, random: &mut Random) -> Result<(), String> {
    let fault = if random.once_in(2) { "" } else { *random.pick(FAULTS) };
    let Ok(mut bytes) = fs::read(file(folder, fault)) else { return Ok(()) };
    let mut is_broken = !fault.is_empty();
    if random.once_in(3) {
        bytes.truncate(random.below(bytes.len() as u64) as usize);
        is_broken = true;
    }
    // A new file each time: the dynamic loader does not load one twice.
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let (process, number) = (std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
    let path = folder.join("plugins").join(format!("next-{process}-{number}.so"));
    if fs::write(&path, &bytes).is_err() {
        fs::remove_file(&path).ok();
        return Ok(());
    }
    let before = engine.registry().kernels().count();
    let trust = Trust::directories([folder.join("plugins")]);
    // SAFETY: plugins of this repository.
    let outcome =
        unsafe { loader::load_as(engine, &path, &trust, Install::Replace(Duration::from_millis(500))) };
    fs::remove_file(&path).ok();
    match outcome {
        Ok(_) if is_broken => Err(format!("a broken plugin ({fault:?}, {} bytes) was loaded", bytes.len())),
        Ok(_) => {
            counters::add(Counter::PluginsLoaded);
            Ok(())
        }
        // A good plugin may fail its trial when another fault hits it.
        Err(_) if !is_broken => Ok(()),
        Err(error) if !REFUSED.iter().any(|code| error.has(*code)) => {
            Err(format!("a broken plugin ({fault:?}) was refused with {error}"))
        }
        Err(_) if engine.registry().kernels().count() < before => {
            Err(format!("a refused plugin ({fault:?}) removed kernels"))
        }
        Err(_) => {
            counters::add(Counter::PluginsRefused);
            Ok(())
        }
    }
}
