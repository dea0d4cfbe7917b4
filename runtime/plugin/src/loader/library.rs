//! A loaded library: its symbols, its versions, and its kernels as a registry takes them.

use std::any::Any;
use std::ffi::{CStr, c_char, c_void};
use std::path::Path;
use std::sync::Arc;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use lz_core::descriptor::{self, Catalogue, Descriptor};
use lz_core::{Error, KernelEntry, OperationInfo, Reason, ReasonCode};
use lz_engine::Engine;

use super::refusal;
use super::trust::Checked;
use crate::abi::{self, Status, Versioned};

/// Bytes that a plugin has to say why it does not start.
const ERROR_CAPACITY: usize = 512;
/// The most kernels that a plugin may have; more is a number that was never set.
const MOST_KERNELS: usize = 4096;

/// `lz_host`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Host {
    /// Bytes of this structure.
    pub size: usize,
    /// The version of the ABI.
    pub abi_version: u32,
    /// The version of LayerZero.
    pub version: *const c_char,
    /// Where the plugin says why it does not start.
    pub error: *mut c_char,
    /// Bytes there.
    pub error_capacity: usize,
}

/// `lz_plugin`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct PluginRecord {
    /// Bytes that the host has room for.
    pub size: usize,
    /// The descriptor's JSON.
    pub descriptor: *const c_char,
    /// Its kernels.
    pub kernels: *const KernelRecord,
    /// How many.
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
    /// As the descriptor calls it.
    pub id: *const c_char,
    /// The operation's name.
    pub operation: *const c_char,
    /// The version of the operation that it was built for.
    pub operation_version: u32,
    /// The table of its functions.
    pub vtable: *const c_void,
}

// SAFETY: `repr(C)`, begins with its size, and holds pointers and numbers.
unsafe impl Versioned for KernelRecord {}

type Init = unsafe extern "C" fn(*const Host, *mut PluginRecord) -> Status;

/// A plugin that has started. Dropped when the last of its kernels goes, so never while a call runs.
#[derive(Debug)]
pub struct Plugin {
    record: PluginRecord,
    /// Closed after `teardown`.
    #[expect(dead_code, reason = "held, not read")]
    library: Library,
}

// SAFETY: the contract of `lz_plugin.h`: its functions may be called from any thread.
unsafe impl Send for Plugin {}
// SAFETY: as above.
unsafe impl Sync for Plugin {}

impl Drop for Plugin {
    fn drop(&mut self) {
        if let Some(teardown) = self.record.teardown {
            // SAFETY: the contract: once, after the last call; the library is still there.
            unsafe { teardown() };
        }
    }
}

impl Plugin {
    /// Opens a library and starts it.
    ///
    /// # Safety
    /// Its code runs: static initialisers, then `lz_plugin_init`.
    pub unsafe fn open(checked: &Checked) -> Result<Arc<Plugin>, Reason> {
        let failed =
            |error: libloading::Error| Reason::new(ReasonCode::PluginLoadFailed).message(error.to_string());
        // SAFETY: passed on. Its symbols stay its own (`RTLD_LOCAL`), so two plugins may use the same names.
        let library =
            unsafe { Library::open(Some(checked.path()), RTLD_NOW | RTLD_LOCAL) }.map_err(failed)?;
        // SAFETY: the ABI says that this is a number.
        let version = unsafe { library.get::<*const u32>(b"lz_plugin_abi\0") };
        // SAFETY: as above; a symbol that was found has an address.
        let version = version.map(|symbol| unsafe { **symbol }).map_err(|_| missing("lz_plugin_abi"))?;
        if version >> 16 != abi::ABI_MAJOR {
            return Err(Reason::new(ReasonCode::PluginVersionMismatch)
                .required(format!("version {}.x of the plugin interface", abi::ABI_MAJOR))
                .found(format!("version {}.{}", version >> 16, version & 0xffff)));
        }
        // SAFETY: the ABI says that this is a function of this type.
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
        // SAFETY: the plugin keeps the ABI's contract; both structures live for the call.
        let status = unsafe { init(&raw const host, &raw mut record) };
        if status != abi::OK {
            let end = error.iter().position(|&byte| byte == 0).unwrap_or(ERROR_CAPACITY);
            let said = String::from_utf8_lossy(error.get(..end).unwrap_or_default()).into_owned();
            let said = if said.is_empty() { format!("status {status}") } else { said };
            return Err(Reason::new(ReasonCode::PluginInitFailed).message(said));
        }
        Ok(Arc::new(Plugin { record, library }))
    }

    /// The descriptor's JSON as the plugin gave it.
    ///
    /// # Safety
    /// The plugin keeps the contract of `lz_plugin.h`.
    pub unsafe fn descriptor(&self) -> Option<&str> {
        // SAFETY: the contract: a terminated text, or null.
        unsafe { text(self.record.descriptor) }
    }

    /// Its descriptor and its kernels, as a registry takes them.
    ///
    /// # Safety
    /// The plugin keeps the contract of `lz_plugin.h`.
    pub unsafe fn kernels(
        self: &Arc<Plugin>,
        engine: &Engine,
        path: &Path,
    ) -> Result<(Descriptor, Vec<KernelEntry>), Error> {
        let refuse = |reason: Reason| refusal(path, reason);
        // SAFETY: passed on.
        let json = unsafe { self.descriptor() }
            .ok_or_else(|| refuse(broken("it gave no descriptor, or one that is not UTF-8")))?;
        let registry = engine.registry();
        let catalogue = Catalogue::new(registry.operations().map(OperationInfo::schema));
        let descriptor = descriptor::read(&path.display().to_string(), json, &catalogue)?;
        if self.record.kernel_count > MOST_KERNELS
            || (self.record.kernels.is_null() && self.record.kernel_count > 0)
        {
            return Err(refuse(broken("its list of kernels is not right")));
        }
        let mut entries: Vec<KernelEntry> = Vec::new();
        for at in 0..self.record.kernel_count {
            // SAFETY: the contract: that many records, each of the size that it states.
            let entry = unsafe { self.kernel(&descriptor, &registry, at) }.map_err(refuse)?;
            entries.push(entry);
        }
        let given = |id: &str, operation: &str| {
            entries.iter().any(|entry| entry.spec.id == id && entry.spec.operation == operation)
        };
        if let Some(spec) = descriptor.kernels.iter().find(|spec| !given(&spec.id, &spec.operation)) {
            let message =
                format!("the descriptor's kernel {} of {} has no functions", spec.id, spec.operation);
            return Err(refuse(Reason::new(ReasonCode::PluginSymbolMissing).message(message)));
        }
        Ok((descriptor, entries))
    }

    unsafe fn kernel(
        self: &Arc<Plugin>,
        descriptor: &Descriptor,
        registry: &lz_engine::registry::Registry,
        at: usize,
    ) -> Result<KernelEntry, Reason> {
        // The stride between records is what the plugin's header said, which the first record states.
        // SAFETY: the contract: the first record is there, with its size.
        let stride = unsafe { self.record.kernels.cast::<usize>().read() };
        if stride < std::mem::offset_of!(KernelRecord, vtable) + size_of::<usize>() {
            return Err(broken("its records of kernels are too small"));
        }
        // SAFETY: the contract: `kernel_count` records of that size.
        let record = unsafe { abi::read(self.record.kernels.byte_add(stride * at)) }?;
        // SAFETY: the contract: terminated texts.
        let (id, operation) = unsafe { (text(record.id), text(record.operation)) };
        let (Some(id), Some(operation)) = (id, operation) else {
            return Err(broken("a kernel has no name, or one that is not UTF-8"));
        };
        let known = registry
            .operation(operation)
            .ok_or_else(|| Reason::new(ReasonCode::OperationUnknown).found(operation))?;
        if known.version != record.operation_version {
            return Err(Reason::new(ReasonCode::PluginVersionMismatch)
                .required(format!("version {} of {operation}", known.version))
                .found(format!("{id} for version {}", record.operation_version)));
        }
        let spec = descriptor.kernels.iter().find(|spec| spec.id == id && spec.operation == operation);
        let spec = spec.ok_or_else(|| {
            Reason::new(ReasonCode::CapabilitiesMissing)
                .message(format!("the descriptor has no kernel {id} of {operation}"))
        })?;
        let owner: Arc<dyn Any + Send + Sync> = Arc::<Plugin>::clone(self);
        // SAFETY: the contract: a table of that operation; the plugin stays loaded as long as its owner.
        let entry = unsafe { crate::generated::entry(spec.clone(), record.vtable, owner) }?;
        entry.ok_or_else(|| Reason::new(ReasonCode::OperationUnknown).found(operation))
    }
}

fn missing(symbol: &str) -> Reason {
    Reason::new(ReasonCode::PluginSymbolMissing).message(format!("the plugin does not export {symbol}"))
}

fn broken(message: &str) -> Reason {
    Reason::new(ReasonCode::PluginInitFailed).message(message)
}

/// A terminated UTF-8 text, if it is there.
unsafe fn text<'a>(text: *const c_char) -> Option<&'a str> {
    if text.is_null() {
        return None;
    }
    // SAFETY: the caller vouches for a terminated text.
    unsafe { CStr::from_ptr(text) }.to_str().ok()
}
