//! Every operation as a custom operation of ONNX Runtime, in the domain `layerzero`.
//!
//! ONNX Runtime loads a shared library that exports `RegisterCustomOps`. A library that links this crate exports it, and sets the
//! engine that runs the operations with [`use_engine`]. The list of operations comes from the schemas: [`catalog`] has the rules
//! by which an operation is expressed in ONNX, or refused.
//!
//! This crate never depends on bindings, and uses ONNX Runtime only through its published C ABI (`api`).

mod api;
mod attributes;
pub mod catalog;
mod compute;
mod custom_op;

use std::any::Any;
use std::ffi::CStr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, OnceLock, PoisonError};

use lz_engine::Engine;

use crate::api::{Api, ApiBase, CustomOpDomain, SessionOptions, Status};
use crate::custom_op::CustomOp;

/// The domain of the operations in ONNX models.
pub const DOMAIN: &CStr = c"layerzero";

/// Returns the engine that runs the operations.
pub type OpenEngine = fn() -> Result<Engine, String>;

static OPEN_ENGINE: OnceLock<OpenEngine> = OnceLock::new();

/// Sets the engine that runs the operations. The first call in a process counts.
pub fn use_engine(open: OpenEngine) {
    let _ = OPEN_ENGINE.set(open);
}

fn engine() -> Result<Engine, String> {
    let open = OPEN_ENGINE.get().ok_or("the library that was loaded has not set an engine")?;
    open()
}

/// The domain of each ONNX Runtime in this process, by the address of its functions. Sessions refer to it until the process ends.
static DOMAINS: Mutex<Vec<(Api, Domain)>> = Mutex::new(Vec::new());

#[derive(Clone, Copy)]
struct Domain(*mut CustomOpDomain);

// SAFETY: the domain is written once, before its address is shared; ONNX Runtime only reads it afterwards.
unsafe impl Send for Domain {}

/// The function that ONNX Runtime calls after it has loaded the library: adds the operations to the options of a session.
///
/// # Safety
/// `options` and `base` are valid pointers of ONNX Runtime.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn RegisterCustomOps(
    options: *mut SessionOptions,
    base: *const ApiBase,
) -> *mut Status {
    // SAFETY: the caller guarantees the pointer.
    let Some(api) = (unsafe { Api::of(base) }) else {
        // Without functions no status can be created. A null status means success, and a session without the operations
        // reports that they are not registered.
        eprintln!("layerzero: ONNX Runtime 1.16 or later is required");
        return std::ptr::null_mut();
    };
    guarded(api, || register(api, options))
}

fn register(api: Api, options: *mut SessionOptions) -> Result<(), String> {
    let engine = engine()?;
    let mut domains = DOMAINS.lock().unwrap_or_else(PoisonError::into_inner);
    let known = domains.iter().find(|(of, _)| *of == api).map(|(_, domain)| *domain);
    let domain = match known {
        Some(domain) => domain,
        None => {
            let domain = Domain(api.create_domain(DOMAIN)?);
            for variant in catalog::all().0 {
                // Sessions refer to the operation until the process ends.
                let op: &'static CustomOp = Box::leak(Box::new(CustomOp::new(api, engine.clone(), variant)));
                api.add_to_domain(domain.0, op.description())?;
            }
            domains.push((api, domain));
            domain
        }
    };
    api.add_domain(options, domain.0)
}

/// Runs `work`; an error or a panic becomes a status of ONNX Runtime.
fn guarded(api: Api, work: impl FnOnce() -> Result<(), String>) -> *mut Status {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => std::ptr::null_mut(),
        Ok(Err(message)) => api.failure(&message),
        Err(panic) => api.failure(&format!("bug in LayerZero: {}", panic_message(panic.as_ref()))),
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("panic")
}
