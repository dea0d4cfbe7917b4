//! A kernel that is a table of C functions: how it is called, and what its answers mean.
//!
//! Generated code lays out arguments and outputs; everything that does not depend on an operation is here.

use std::any::Any;
use std::ffi::{c_char, c_void};
use std::sync::Arc;

use lz_core::kernel::Severity;
use lz_core::{DType, KernelError, Reason, ReasonCode};

use crate::abi::{self, Dynamic, Run, Status, Text, TextsOutput, Versioned};

/// Bytes that a kernel has for its error message.
const ERROR_CAPACITY: usize = 512;

/// `lz_<operation>_kernel`: the functions of one kernel of one operation.
#[repr(C)]
#[derive(Debug)]
pub struct Vtable<A, O> {
    /// Bytes of this structure.
    pub size: usize,
    /// The kernel's own, first argument of every function.
    pub context: *mut c_void,
    /// How much scratch memory a call needs; absent means none.
    pub workspace: Option<unsafe extern "C" fn(*mut c_void, *const A, *mut u64) -> Status>,
    /// Runs a checked call.
    pub run: Option<unsafe extern "C" fn(*mut c_void, *const A, *const O, *mut Run) -> Status>,
    /// Called once, when the kernel is no longer needed; may be absent.
    pub release: Option<unsafe extern "C" fn(*mut c_void)>,
}

impl<A, O> Clone for Vtable<A, O> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A, O> Copy for Vtable<A, O> {}

// SAFETY: `repr(C)`, begins with its size, and holds a pointer and optional functions.
unsafe impl<A, O> Versioned for Vtable<A, O> {}

/// A kernel behind the ABI.
#[derive(Debug)]
pub struct Native<A, O> {
    vtable: Vtable<A, O>,
    run: unsafe extern "C" fn(*mut c_void, *const A, *const O, *mut Run) -> Status,
    /// Keeps the code alive that the functions are in.
    #[expect(dead_code, reason = "held, not read")]
    owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the contract of `lz_plugin.h` says that a kernel's functions may be called from any thread, several at once.
unsafe impl<A, O> Send for Native<A, O> {}
// SAFETY: as above.
unsafe impl<A, O> Sync for Native<A, O> {}

impl<A, O> Native<A, O> {
    /// Of a table; `owner` keeps the code alive.
    ///
    /// # Safety
    /// The pointer is null or names a table of this operation that keeps the contract of `lz_plugin.h`; its functions stay
    /// callable as long as `owner` lives.
    pub unsafe fn new(
        vtable: *const Vtable<A, O>,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Result<Native<A, O>, Reason> {
        // SAFETY: passed on.
        let vtable = unsafe { abi::read(vtable) }?;
        match vtable.run {
            Some(run) => Ok(Native { vtable, run, owner }),
            None => Err(Reason::new(ReasonCode::PluginSymbolMissing)
                .message("a kernel's table has no function `run`")),
        }
    }

    /// Runs a call that was laid out for C.
    #[inline]
    pub fn invoke(&self, args: &A, out: &O, run: &mut lz_core::Run<'_>) -> Result<(), KernelError> {
        let mut bytes = 0u64;
        if let Some(workspace) = self.vtable.workspace {
            // SAFETY: the table keeps its contract (`new`), and the arguments live for the call.
            let status = unsafe { workspace(self.vtable.context, args, &raw mut bytes) };
            if status != abi::OK {
                return Err(failure(status, &[]).before_writing());
            }
        }
        let stream = run.stream() as *mut c_void;
        let memory = if bytes == 0 { std::ptr::null_mut() } else { run.workspace(bytes)?.as_mut_ptr() };
        let mut error = [0u8; ERROR_CAPACITY];
        let mut lent = Run {
            size: size_of::<Run>(),
            stream,
            workspace: memory.cast(),
            workspace_bytes: bytes,
            error: error.as_mut_ptr().cast::<c_char>(),
            error_capacity: ERROR_CAPACITY,
            make_tensor: Some(make_tensor),
            make_texts: Some(make_texts),
        };
        // SAFETY: as above; every pointer of `lent` is good until the function returns.
        let status = unsafe { (self.run)(self.vtable.context, args, out, &raw mut lent) };
        if status == abi::OK { Ok(()) } else { Err(failure(status, &error)) }
    }
}

impl<A, O> Drop for Native<A, O> {
    fn drop(&mut self) {
        if let Some(release) = self.vtable.release {
            // SAFETY: the table keeps its contract: once, and nothing runs any more, since this is the last owner.
            unsafe { release(self.vtable.context) };
        }
    }
}

/// What a status means. The message may lack its terminator and be anything but UTF-8.
#[cold]
fn failure(status: Status, error: &[u8]) -> KernelError {
    let end = error.iter().position(|&byte| byte == 0).unwrap_or(error.len());
    let text = String::from_utf8_lossy(error.get(..end).unwrap_or(error));
    let said =
        |otherwise: &str| if text.is_empty() { otherwise.to_owned() } else { text.clone().into_owned() };
    match status {
        abi::DECLINED => KernelError::declined(said("the kernel declined the call")),
        abi::OUT_OF_MEMORY => KernelError::because(
            Reason::new(ReasonCode::OutOfMemory).message(said("the kernel ran out of memory")),
        ),
        abi::BACKEND_LOST => {
            KernelError::failed(said("the kernel's backend is lost")).severity(Severity::Backend)
        }
        abi::DEVICE_LOST => KernelError::because(
            Reason::new(ReasonCode::DeviceLost).message(said("the kernel lost its device")),
        )
        .severity(Severity::Device),
        abi::FAILED => KernelError::failed(said("the kernel failed and did not say why")),
        other => KernelError::failed(format!("{} (unknown status {other})", said("the kernel failed"))),
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
    // SAFETY: the contract: `rank` sizes are there.
    let shape = if rank == 0 { &[] } else { unsafe { std::slice::from_raw_parts(shape, rank as usize) } };
    let Ok(mut made) = lz_core::Tensor::zeros(shape, dtype) else { return abi::OUT_OF_MEMORY };
    // SAFETY: the contract: an output that the host gave for this call, so its slot is the host's.
    unsafe {
        (*output).tensor = abi::Tensor::of_mut(&mut made.view_mut());
        *(*output).slot.cast::<Option<lz_core::Tensor>>() = Some(made);
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
    // SAFETY: the contract: `count` texts are there.
    let Ok(texts) = (unsafe { abi::texts("texts", &raw const batch) }) else { return abi::FAILED };
    if output.is_null() {
        return abi::FAILED;
    }
    let texts: Vec<String> = texts.into_iter().map(str::to_owned).collect();
    // SAFETY: the contract: an output that the host gave for this call, so its slot is the host's.
    unsafe { *(*output).slot.cast::<Option<Vec<String>>>() = Some(texts) };
    abi::OK
}
