//! A loaded shared library: its symbols, ABI version and kernels.

use std::any::Any;
use std::ffi::{CStr, c_char, c_void};
use std::path::Path;
use std::sync::Arc;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use lz_core::descriptor::{self, Catalog, Descriptor};
use lz_core::fork::Mutex;
use lz_core::{Error, KernelEntry, OperationInfo, Reason, ReasonCode};
use lz_engine::Engine;

use super::refusal;
use super::trust::CheckedFile;
use crate::abi::{self, Status, Versioned};

/// Capacity of the buffer for a plugin's initialization error.
const ERROR_CAPACITY: usize = 512;
/// Maximum number of kernels of a plugin; a larger count is an uninitialized field.
const MAX_KERNELS: usize = 4096;

/// Maximum bytes of a kernel record; a larger one is an uninitialized field.
const MAX_RECORD_BYTES: usize = 4096;

/// `lz_host`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Host {
    /// Bytes of this structure.
    pub size: usize,
    /// The ABI version.
    pub abi_version: u32,
    /// The version of LayerZero.
    pub version: *const c_char,
    /// Buffer for the plugin's initialization error.
    pub error: *mut c_char,
    /// Capacity of the buffer.
    pub error_capacity: usize,
}

/// `lz_plugin`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct PluginRecord {
    /// Bytes of this structure in the host.
    pub size: usize,
    /// The JSON of the capability descriptor.
    pub descriptor: *const c_char,
    /// The kernels.
    pub kernels: *const KernelRecord,
    /// Number of kernels.
    pub kernel_count: usize,
    /// Called once, after the last call.
    pub teardown: Option<unsafe extern "C" fn()>,
}

/// `lz_kernel`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct KernelRecord {
    /// Bytes of this structure.
    pub size: usize,
    /// The kernel id in the descriptor.
    pub id: *const c_char,
    /// The name of the operation.
    pub operation: *const c_char,
    /// The version of the operation that the kernel was built for.
    pub operation_version: u32,
    /// The vtable.
    pub vtable: *const c_void,
}

// SAFETY: `repr(C)`, begins with its size, and contains pointers and integers.
unsafe impl Versioned for KernelRecord {}

type Init = unsafe extern "C" fn(*const Host, *mut PluginRecord) -> Status;

/// The files of all loaded plugins: device, inode and hash.
static LOADED: Mutex<Vec<(u64, u64, String)>> = Mutex::new(Vec::new());

/// The file of a loaded plugin, until it is dropped.
#[derive(Debug)]
struct LoadedFile {
    key: (u64, u64, String),
}

impl LoadedFile {
    /// The dynamic loader identifies libraries by inode: a file that is loaded is not loaded again, and one that was
    /// overwritten has damaged the code that runs. With `must_be_new` a second instance is refused too.
    fn new(checked: &CheckedFile, sha256: &str, must_be_new: bool) -> Result<LoadedFile, Reason> {
        let (device, inode) = checked.identity();
        let mut loaded = LOADED.lock();
        let refused = |message: &str| Err(Reason::new(ReasonCode::PluginLoadFailed).message(message));
        for (_, _, known) in loaded.iter().filter(|known| (known.0, known.1) == (device, inode)) {
            if known != sha256 {
                return refused(
                    "the file was overwritten while it is loaded; write the new version to another file and rename that file",
                );
            }
            if must_be_new {
                return refused("this file is loaded already; replace it by a file with the new version");
            }
        }
        let key = (device, inode, sha256.to_owned());
        loaded.push(key.clone());
        Ok(LoadedFile { key })
    }
}

impl Drop for LoadedFile {
    fn drop(&mut self) {
        let mut loaded = LOADED.lock();
        if let Some(position) = loaded.iter().position(|known| *known == self.key) {
            loaded.swap_remove(position);
        }
    }
}

/// An initialized plugin. Dropped with the last of its kernels, so never while a call runs.
#[derive(Debug)]
pub struct Plugin {
    record: PluginRecord,
    /// Closed after `teardown`.
    #[expect(dead_code, reason = "held, not read")]
    library: Library,
    #[expect(dead_code, reason = "held, not read")]
    loaded: LoadedFile,
}

// SAFETY: by the contract of `lz_plugin.h`, its functions may be called from any thread.
unsafe impl Send for Plugin {}
// SAFETY: as above.
unsafe impl Sync for Plugin {}

impl Drop for Plugin {
    fn drop(&mut self) {
        if let Some(teardown) = self.record.teardown {
            // SAFETY: called once, after the last call, while the library is still loaded.
            unsafe { teardown() };
        }
    }
}

impl Plugin {
    /// Loads a library (`dlopen`) and initializes it. With `must_be_new`, a file that is loaded already is refused.
    ///
    /// # Safety
    /// Its code runs: static initializers, then `lz_plugin_init`.
    pub unsafe fn open(
        checked: &CheckedFile,
        sha256: &str,
        must_be_new: bool,
    ) -> Result<Arc<Plugin>, Reason> {
        let loaded = LoadedFile::new(checked, sha256, must_be_new)?;
        let failed =
            |error: libloading::Error| Reason::new(ReasonCode::PluginLoadFailed).message(error.to_string());
        // SAFETY: forwarded to the caller. With `RTLD_LOCAL`, two plugins may use the same symbol names.
        let library =
            unsafe { Library::open(Some(checked.path()), RTLD_NOW | RTLD_LOCAL) }.map_err(failed)?;
        // SAFETY: by the ABI, this symbol is a `uint32_t`.
        let version = unsafe { library.get::<*const u32>(b"lz_plugin_abi\0") };
        // SAFETY: as above; a resolved symbol has an address.
        let version = version.map(|symbol| unsafe { **symbol }).map_err(|_| missing("lz_plugin_abi"))?;
        if version >> 16 != abi::ABI_MAJOR {
            return Err(Reason::new(ReasonCode::PluginVersionMismatch)
                .required(format!(
                    "ABI version {}.x; rebuild the plugin with the current lz_plugin.h",
                    abi::ABI_MAJOR
                ))
                .found(format!("ABI version {}.{}", version >> 16, version & 0xffff)));
        }
        // SAFETY: by the ABI, this symbol is a function of this type.
        let init = unsafe { library.get::<Init>(b"lz_plugin_init\0") };
        let init = *init.map_err(|_| missing("lz_plugin_init"))?;
        let mut record = PluginRecord {
            size: size_of::<PluginRecord>(),
            descriptor: std::ptr::null(),
            kernels: std::ptr::null(),
            kernel_count: 0,
            teardown: None,
        };
        let mut error = [0u8; ERROR_CAPACITY];
        let host = Host {
            size: size_of::<Host>(),
            abi_version: abi::ABI_MAJOR << 16 | abi::ABI_MINOR,
            version: concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast(),
            error: error.as_mut_ptr().cast(),
            error_capacity: ERROR_CAPACITY,
        };
        // SAFETY: the plugin fulfills the contract of the ABI; both structures live for the call.
        let status = unsafe { init(&raw const host, &raw mut record) };
        if status != abi::OK {
            let end = error.iter().position(|&byte| byte == 0).unwrap_or(ERROR_CAPACITY);
            let message = String::from_utf8_lossy(error.get(..end).unwrap_or_default()).into_owned();
            let message = if message.is_empty() {
                format!("`lz_plugin_init` returned status {status} without an error message")
            } else {
                message
            };
            return Err(Reason::new(ReasonCode::PluginInitFailed).message(message));
        }
        Ok(Arc::new(Plugin { record, library, loaded }))
    }

    /// The JSON of the plugin's capability descriptor.
    ///
    /// # Safety
    /// The plugin fulfills the contract of `lz_plugin.h`.
    pub unsafe fn descriptor(&self) -> Option<&str> {
        // SAFETY: by contract, a null-terminated string, or null.
        unsafe { text(self.record.descriptor) }
    }

    /// Its descriptor and its kernels, for the registry.
    ///
    /// # Safety
    /// The plugin fulfills the contract of `lz_plugin.h`.
    pub unsafe fn kernels(
        self: &Arc<Plugin>,
        engine: &Engine,
        path: &Path,
    ) -> Result<(Descriptor, Vec<KernelEntry>), Error> {
        let owner: Arc<dyn Any + Send + Sync> = Arc::<Plugin>::clone(self);
        // SAFETY: forwarded to the caller; the plugin stays loaded as long as `owner` lives.
        unsafe { kernels_of(&self.record, &owner, engine, path) }
    }
}

/// The descriptor and the kernels that a plugin's record states. `owner` keeps the record's memory and functions alive.
///
/// # Safety
/// The record fulfills the contract of `lz_plugin.h`: its pointers are null or valid, and there are as many kernel records, each of the
/// size in its first field, as it states.
pub unsafe fn kernels_of(
    record: &PluginRecord,
    owner: &Arc<dyn Any + Send + Sync>,
    engine: &Engine,
    path: &Path,
) -> Result<(Descriptor, Vec<KernelEntry>), Error> {
    let refuse = |reason: Reason| refusal(path, reason);
    // SAFETY: by contract, a null-terminated string, or null.
    let json = unsafe { text(record.descriptor) }
        .ok_or_else(|| refuse(invalid("`lz_plugin.descriptor` is null or not UTF-8")))?;
    let registry = engine.registry();
    let catalog = Catalog::new(registry.operations().map(OperationInfo::schema));
    let descriptor = descriptor::read(&path.display().to_string(), json, &catalog)?;
    if record.kernel_count > MAX_KERNELS || (record.kernels.is_null() && record.kernel_count > 0) {
        return Err(refuse(invalid(&format!(
            "`lz_plugin.kernels` is null or `kernel_count` ({}) exceeds the limit of {MAX_KERNELS}",
            record.kernel_count
        ))));
    }
    let mut entries: Vec<KernelEntry> = Vec::new();
    for at in 0..record.kernel_count {
        // SAFETY: by contract, there are `kernel_count` records, each of the size in its first field.
        let entry = unsafe { kernel(record, owner, &descriptor, &registry, at) }.map_err(refuse)?;
        entries.push(entry);
    }
    let provided = |id: &str, operation: &str| {
        entries.iter().any(|entry| entry.spec.id == id && entry.spec.operation == operation)
    };
    if let Some(spec) = descriptor.kernels.iter().find(|spec| !provided(&spec.id, &spec.operation)) {
        let message = format!(
            "kernel {} of {} is in the descriptor but not in `lz_plugin.kernels`",
            spec.id, spec.operation
        );
        return Err(refuse(Reason::new(ReasonCode::PluginSymbolMissing).message(message)));
    }
    Ok((descriptor, entries))
}

unsafe fn kernel(
    plugin: &PluginRecord,
    owner: &Arc<dyn Any + Send + Sync>,
    descriptor: &Descriptor,
    registry: &lz_engine::registry::Registry,
    at: usize,
) -> Result<KernelEntry, Reason> {
    // The stride is the record size in the plugin's version of the header, from the first record.
    // SAFETY: by contract, there is a first record that begins with its size.
    let stride = unsafe { plugin.kernels.cast::<usize>().read() };
    if stride < std::mem::offset_of!(KernelRecord, vtable) + size_of::<usize>() || stride > MAX_RECORD_BYTES {
        return Err(invalid(&format!(
            "`lz_kernel.size` is {stride}, which is not the size of an `lz_kernel`"
        )));
    }
    // SAFETY: by contract, there are `kernel_count` records of that size.
    let record = unsafe { abi::read(plugin.kernels.byte_add(stride * at)) }?;
    // SAFETY: by contract, null-terminated strings.
    let (id, operation) = unsafe { (text(record.id), text(record.operation)) };
    let (Some(id), Some(operation)) = (id, operation) else {
        return Err(invalid(&format!("`id` or `operation` of kernel {at} is null or not UTF-8")));
    };
    let info = registry
        .operation(operation)
        .ok_or_else(|| Reason::new(ReasonCode::OperationUnknown).found(operation))?;
    if info.version != record.operation_version {
        return Err(Reason::new(ReasonCode::PluginVersionMismatch)
            .required(format!("version {} of {operation}", info.version))
            .found(format!("kernel {id} built for version {}", record.operation_version)));
    }
    let spec = descriptor.kernels.iter().find(|spec| spec.id == id && spec.operation == operation);
    let spec = spec.ok_or_else(|| {
        Reason::new(ReasonCode::CapabilitiesMissing).message(format!(
            "kernel {id} of {operation} is in `lz_plugin.kernels` but not in the descriptor"
        ))
    })?;
    // SAFETY: by contract, a vtable of that operation; its functions stay callable as long as `owner` lives.
    let entry = unsafe { crate::generated::entry(spec.clone(), record.vtable, Arc::clone(owner)) }?;
    entry.ok_or_else(|| Reason::new(ReasonCode::OperationUnknown).found(operation))
}

fn missing(symbol: &str) -> Reason {
    Reason::new(ReasonCode::PluginSymbolMissing)
        .message(format!("the plugin does not export the symbol `{symbol}`"))
}

fn invalid(message: &str) -> Reason {
    Reason::new(ReasonCode::PluginInitFailed).message(message)
}

/// A null-terminated UTF-8 string; `None` if it is null or not UTF-8.
unsafe fn text<'a>(text: *const c_char) -> Option<&'a str> {
    if text.is_null() {
        return None;
    }
    // SAFETY: the caller guarantees a null-terminated string.
    unsafe { CStr::from_ptr(text) }.to_str().ok()
}
