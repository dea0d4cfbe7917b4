//! The engine that C++ holds: kernels, and the layers of its policy.

use std::any::Any;
use std::ffi::c_void;
use std::sync::Arc;

use lz_core::{Error, KernelEntry, Reason, ReasonCode, descriptor};
use lz_engine::PolicyScope;

use crate::generated::bridge::ffi;

/// An engine. Clones share it.
#[derive(Debug, Clone)]
pub struct Engine {
    pub(crate) inner: lz_engine::Engine,
}

/// Something laid over the policy for this thread's calls until it is dropped; empty until then.
#[derive(Debug, Default)]
pub struct Scope {
    pub(crate) scope: Option<PolicyScope>,
}

/// What C++ keeps for its kernels, given back when the last of them goes.
#[derive(Debug)]
pub struct Owner {
    data: *mut c_void,
    release: Option<unsafe extern "C" fn(*mut c_void)>,
}

// SAFETY: the contract of `Owner::new`: it may be released on any thread.
unsafe impl Send for Owner {}
// SAFETY: a shared reference does nothing with it.
unsafe impl Sync for Owner {}

impl Owner {
    /// Of two addresses.
    ///
    /// # Safety
    /// `release` is 0 or the address of a C function that takes `owner`, once, on any thread.
    pub unsafe fn new(owner: usize, release: usize) -> Owner {
        #[expect(clippy::disallowed_methods, reason = "an address becomes a function in no other way")]
        // SAFETY: the caller vouches for the function; 0 is `None`.
        let release =
            unsafe { std::mem::transmute::<usize, Option<unsafe extern "C" fn(*mut c_void)>>(release) };
        Owner { data: owner as *mut c_void, release }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: the contract of `new`; dropped once.
            unsafe { release(self.data) };
        }
    }
}

impl Engine {
    /// Registers kernels that C++ brings, as a descriptor describes them: all or none.
    ///
    /// # Safety
    /// Each record's address is a table of its operation, as `lz_plugin.h` describes it, as long as `owner` lives.
    pub(crate) unsafe fn register(
        &self,
        descriptor: &str,
        kernels: &[ffi::KernelRecord],
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Result<(), Error> {
        let registry = self.inner.registry();
        let catalogue = descriptor::Catalogue::new(registry.operations().map(lz_core::OperationInfo::schema));
        let subject = "a descriptor given in C++";
        let descriptor = descriptor::read(subject, descriptor, &catalogue)?;
        let mut entries: Vec<KernelEntry> = Vec::new();
        let refuse = |reason: Reason| Error::Configuration {
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
                    refuse(Reason::new(ReasonCode::CapabilitiesMissing).message(format!(
                        "the descriptor has no kernel {} of {}",
                        record.id, record.operation
                    )))
                })?;
            let vtable = record.vtable as *const c_void;
            // SAFETY: passed on.
            let entry = unsafe { lz_plugin::generated::entry(spec.clone(), vtable, Arc::clone(&owner)) };
            let entry = entry.map_err(refuse)?.ok_or_else(|| {
                refuse(Reason::new(ReasonCode::OperationUnknown).found(record.operation.clone()))
            })?;
            entries.push(entry);
        }
        let given = |id: &str, operation: &str| {
            entries.iter().any(|entry| entry.spec.id == id && entry.spec.operation == operation)
        };
        if let Some(spec) = descriptor.kernels.iter().find(|spec| !given(&spec.id, &spec.operation)) {
            return Err(refuse(Reason::new(ReasonCode::CapabilitiesSchemaMismatch).message(format!(
                "the descriptor's kernel {} of {} was not given",
                spec.id, spec.operation
            ))));
        }
        self.inner.register(entries)
    }
}
