//! Runs a kernel behind a C vtable and interprets its status codes.
//!
//! Generated code converts arguments and outputs; everything that does not depend on an operation is here.

use std::any::Any;
use std::ffi::{c_char, c_void};
use std::sync::Arc;

use lz_core::kernel::Severity;
use lz_core::{DType, KernelError, Reason, ReasonCode};

use crate::abi::{self, Dynamic, Run, Status, Text, TextsOutput, Versioned};

/// Capacity of the buffer for a kernel's error message.
const ERROR_CAPACITY: usize = 512;

/// `lz_<operation>_kernel`: the functions of one kernel of one operation.
#[repr(C)]
#[derive(Debug)]
pub struct Vtable<A, O> {
    /// Bytes of this structure.
    pub size: usize,
    /// The kernel's context pointer, passed as the first argument of every function.
    pub context: *mut c_void,
    /// Returns the workspace size of a call; null means no workspace.
    pub workspace: Option<unsafe extern "C" fn(*mut c_void, *const A, *mut u64) -> Status>,
    /// Runs a validated call.
    pub run: Option<unsafe extern "C" fn(*mut c_void, *const A, *const O, *mut Run) -> Status>,
    /// Called once, when the kernel is dropped; may be null.
    pub release: Option<unsafe extern "C" fn(*mut c_void)>,
}

impl<A, O> Clone for Vtable<A, O> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A, O> Copy for Vtable<A, O> {}

// SAFETY: `repr(C)`, begins with its size, and contains a pointer and optional function pointers.
unsafe impl<A, O> Versioned for Vtable<A, O> {}

/// A kernel behind the C ABI.
#[derive(Debug)]
pub struct Native<A, O> {
    vtable: Vtable<A, O>,
    run: unsafe extern "C" fn(*mut c_void, *const A, *const O, *mut Run) -> Status,
    /// Keeps the library loaded that contains the functions.
    #[expect(dead_code, reason = "held, not read")]
    owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: by the contract of `lz_plugin.h`, a kernel's functions may be called concurrently from any thread.
unsafe impl<A, O> Send for Native<A, O> {}
// SAFETY: as above.
unsafe impl<A, O> Sync for Native<A, O> {}

impl<A, O> Native<A, O> {
    /// Wraps a vtable; `owner` keeps its code loaded.
    ///
    /// # Safety
    /// The pointer is null or points to a vtable of this operation that fulfills the contract of `lz_plugin.h`; its functions stay
    /// callable as long as `owner` lives.
    pub unsafe fn new(
        vtable: *const Vtable<A, O>,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Result<Native<A, O>, Reason> {
        // SAFETY: forwarded to the caller.
        let vtable = unsafe { abi::read(vtable) }?;
        match vtable.run {
            Some(run) => Ok(Native { vtable, run, owner }),
            None => Err(Reason::new(ReasonCode::PluginSymbolMissing)
                .message("the function `run` of the kernel's vtable is null")),
        }
    }

    /// Runs a call with arguments in C layout.
    #[inline]
    pub fn invoke(&self, args: &A, out: &O, run: &mut lz_core::Run<'_>) -> Result<(), KernelError> {
        let mut bytes = 0u64;
        if let Some(workspace) = self.vtable.workspace {
            // SAFETY: the vtable fulfills its contract (`new`), and the arguments live for the call.
            let status = unsafe { workspace(self.vtable.context, args, &raw mut bytes) };
            if status != abi::OK {
                return Err(failure(status, &[]).before_writing());
            }
        }
        let stream = run.stream() as *mut c_void;
        let memory = if bytes == 0 { std::ptr::null_mut() } else { run.workspace(bytes)?.as_mut_ptr() };
        let mut error = [0u8; ERROR_CAPACITY];
        let mut c_run = Run {
            size: size_of::<Run>(),
            stream,
            workspace: memory.cast(),
            workspace_bytes: bytes,
            error: error.as_mut_ptr().cast::<c_char>(),
            error_capacity: ERROR_CAPACITY,
            make_tensor: Some(make_tensor),
            make_texts: Some(make_texts),
        };
        // SAFETY: as above; every pointer of `c_run` is valid until the function returns.
        let status = unsafe { (self.run)(self.vtable.context, args, out, &raw mut c_run) };
        if status == abi::OK { Ok(()) } else { Err(failure(status, &error)) }
    }
}

impl<A, O> Drop for Native<A, O> {
    fn drop(&mut self) {
        if let Some(release) = self.vtable.release {
            // SAFETY: called once, and no call is running, because this is the last owner.
            unsafe { release(self.vtable.context) };
        }
    }
}

/// Converts a status to an error. The message may lack a null terminator and may not be valid UTF-8.
#[cold]
fn failure(status: Status, error: &[u8]) -> KernelError {
    let end = error.iter().position(|&byte| byte == 0).unwrap_or(error.len());
    let text = String::from_utf8_lossy(error.get(..end).unwrap_or(error));
    let message_or =
        |default: &str| if text.is_empty() { default.to_owned() } else { text.clone().into_owned() };
    match status {
        abi::DECLINED => KernelError::declined(message_or("the kernel declined the call")),
        abi::OUT_OF_MEMORY => KernelError::because(
            Reason::new(ReasonCode::OutOfMemory).message(message_or("the kernel ran out of memory")),
        ),
        abi::BACKEND_LOST => {
            KernelError::failed(message_or("the kernel's backend is lost")).severity(Severity::Backend)
        }
        abi::DEVICE_LOST => KernelError::because(
            Reason::new(ReasonCode::DeviceLost).message(message_or("the kernel lost its device")),
        )
        .severity(Severity::Device),
        abi::FAILED => KernelError::failed(message_or("the kernel failed without an error message")),
        other => KernelError::failed(format!("{} (unknown status {other})", message_or("the kernel failed"))),
    }
}

/// The host's `make_tensor`.
unsafe extern "C" fn make_tensor(
    _run: *mut Run,
    output: *mut Dynamic,
    dtype: u8,
    rank: u32,
    shape: *const i64,
) -> Status {
    let Some(dtype) = DType::from_number(dtype) else { return abi::FAILED };
    if output.is_null() || rank as usize > lz_core::tensor::MAX_RANK || (shape.is_null() && rank > 0) {
        return abi::FAILED;
    }
    // SAFETY: by contract, `shape` has `rank` entries.
    let shape = if rank == 0 { &[] } else { unsafe { std::slice::from_raw_parts(shape, rank as usize) } };
    let Ok(mut tensor) = lz_core::Tensor::zeros(shape, dtype) else { return abi::OUT_OF_MEMORY };
    // SAFETY: by contract, an output of this call, so its slot was set by the host.
    unsafe {
        (*output).tensor = abi::Tensor::of_mut(&mut tensor.view_mut());
        *(*output).slot.cast::<Option<lz_core::Tensor>>() = Some(tensor);
    }
    abi::OK
}

/// The host's `make_texts`.
unsafe extern "C" fn make_texts(
    _run: *mut Run,
    output: *mut TextsOutput,
    items: *const Text,
    count: usize,
) -> Status {
    let batch = abi::Texts { items, count };
    // SAFETY: by contract, there are `count` texts.
    let Ok(texts) = (unsafe { abi::texts("texts", &raw const batch) }) else { return abi::FAILED };
    if output.is_null() {
        return abi::FAILED;
    }
    let texts: Vec<String> = texts.into_iter().map(str::to_owned).collect();
    // SAFETY: by contract, an output of this call, so its slot was set by the host.
    unsafe { *(*output).slot.cast::<Option<Vec<String>>>() = Some(texts) };
    abi::OK
}
