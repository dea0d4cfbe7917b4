//! The engine handle for C++: kernels and policy overlays.

use std::any::Any;
use std::ffi::c_void;
use std::sync::Arc;

use lz_core::{Error, KernelEntry, Reason, ReasonCode, descriptor};
use lz_engine::PolicyScope;

use crate::data;

/// An engine handle. Clones refer to the same engine.
#[derive(Debug, Clone)]
pub struct Engine {
    pub(crate) inner: lz_engine::Engine,
    /// The backends and plugins that did not load, each with its error.
    pub(crate) problems: Arc<Vec<(String, Error)>>,
}

/// A policy overlay for this thread's calls, which is removed on drop; initially empty.
#[derive(Debug, Default)]
pub struct Scope {
    pub(crate) scope: Option<PolicyScope>,
}

/// The C++ object that owns the kernels; released when the last kernel is dropped.
#[derive(Debug)]
pub struct Owner {
    pub(crate) data: *mut c_void,
    release: Option<unsafe extern "C" fn(*mut c_void)>,
}

// SAFETY: by the contract of `Owner::new`, it may be released on any thread.
unsafe impl Send for Owner {}
// SAFETY: shared references do not access it.
unsafe impl Sync for Owner {}

impl Owner {
    /// Creates an owner from two addresses.
    ///
    /// # Safety
    /// `release` is 0 or the address of a C function that takes `owner`, once, on any thread.
    pub unsafe fn new(owner: usize, release: usize) -> Owner {
        #[expect(
            clippy::disallowed_methods,
            reason = "the only conversion from an address to a function pointer"
        )]
        // SAFETY: the caller guarantees the function; 0 is `None`.
        let release =
            unsafe { std::mem::transmute::<usize, Option<unsafe extern "C" fn(*mut c_void)>>(release) };
        Owner { data: owner as *mut c_void, release }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: by the contract of `new`; called once.
            unsafe { release(self.data) };
        }
    }
}

impl Engine {
    /// Registers kernels implemented in C++ according to a descriptor: all or none.
    ///
    /// # Safety
    /// Each record's address is a vtable of its operation, as described in `lz_plugin.h`, valid as long as `owner`.
    pub(crate) unsafe fn register(
        &self,
        descriptor: &str,
        kernels: &[data::KernelRecord],
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Result<(), Error> {
        let registry = self.inner.registry();
        let catalog = descriptor::Catalog::new(registry.operations().map(lz_core::OperationInfo::schema));
        let subject = "a descriptor registered from C++";
        let descriptor = descriptor::read(subject, descriptor, &catalog)?;
        let mut entries: Vec<KernelEntry> = Vec::new();
        let to_error = |reason: Reason| Error::Configuration {
            subject: subject.to_owned(),
            message: reason.sentence(),
            reasons: vec![reason],
        };
        for record in kernels {
            let spec = descriptor
                .kernels
                .iter()
                .find(|spec| spec.id == record.id && spec.operation == record.operation)
                .ok_or_else(|| {
                    to_error(Reason::new(ReasonCode::CapabilitiesMissing).message(format!(
                        "the descriptor does not list kernel {} of operation {}",
                        record.id, record.operation
                    )))
                })?;
            let vtable = record.vtable as *const c_void;
            // SAFETY: the caller's contract is the same.
            let entry = unsafe { lz_plugin::generated::entry(spec.clone(), vtable, Arc::clone(&owner)) };
            let entry = entry.map_err(to_error)?.ok_or_else(|| {
                to_error(Reason::new(ReasonCode::OperationUnknown).found(record.operation.clone()))
            })?;
            entries.push(entry);
        }
        let registered = |id: &str, operation: &str| {
            entries.iter().any(|entry| entry.spec.id == id && entry.spec.operation == operation)
        };
        if let Some(spec) = descriptor.kernels.iter().find(|spec| !registered(&spec.id, &spec.operation)) {
            return Err(to_error(Reason::new(ReasonCode::CapabilitiesSchemaMismatch).message(format!(
                "the descriptor lists kernel {} of operation {}, but it was not passed",
                spec.id, spec.operation
            ))));
        }
        self.inner.register(entries)
    }
}
