//! Output slots: memory of the caller, of the caller's allocator, or of the kernel.

use std::ffi::c_void;

use lz_core::check::replace_inputs;
use lz_core::tensor::{BUFFER_ALIGNMENT, Device, Dims, Layout, copy_elements};
use lz_core::{Arg, DType, Error, OperationInfo, Reason, ReasonCode, Tensor, TensorMut, TensorView};
use lz_plugin::abi::{self, Output, Text, Texts};

use crate::call::{CallSettings, refuse};

type Spec = Option<(Dims, DType)>;

/// Prepares the slot of a required output: validates the given tensor or allocates one, and writes its view.
///
/// # Safety
/// The memory of a given tensor, and memory from the allocator, is not accessed by others during the call.
#[inline(always)]
pub unsafe fn prepare(
    operation: &OperationInfo,
    name: &str,
    spec: impl FnOnce() -> Spec,
    slot: &mut Output,
    options: &CallSettings<'_>,
    follow: Device,
    view: &mut TensorMut<'_>,
) -> Result<(), Error> {
    if slot.state == abi::OUTPUT_GIVEN {
        // SAFETY: the caller's contract is the same.
        let described = unsafe { abi::tensor_mut(name, slot.given, view) };
        return described.map_err(|reason| refuse(operation, reason));
    }
    let Some(spec) = spec() else { return Err(lz_core::check::disagreement(operation)) };
    // SAFETY: the caller's contract is the same.
    unsafe { allocate(operation, name, spec, slot, options, follow, view) }
}

/// As [`prepare`], for an optional output; returns whether the call has it.
///
/// # Safety
/// As for [`prepare`].
#[inline(always)]
pub unsafe fn prepare_optional(
    operation: &OperationInfo,
    name: &str,
    spec: impl FnOnce() -> Spec,
    slot: &mut Output,
    options: &CallSettings<'_>,
    follow: Device,
    view: &mut TensorMut<'_>,
) -> Result<bool, Error> {
    let spec = if slot.state == abi::OUTPUT_GIVEN { None } else { spec() };
    if slot.state != abi::OUTPUT_GIVEN && spec.is_none() {
        absent(slot);
    }
    if slot.state == abi::OUTPUT_ABSENT {
        return Ok(false);
    }
    // SAFETY: the caller's contract is the same.
    unsafe { prepare(operation, name, || spec, slot, options, follow, view) }?;
    Ok(true)
}

/// Memory of their own for outputs in host memory that are inputs, if that is the only problem: the results are copied then.
#[cold]
pub fn apart(
    operation: &OperationInfo,
    error: &Error,
    args: &[Arg<'_>],
    outputs: &[TensorView<'_>],
) -> Result<Option<Vec<Tensor>>, Error> {
    if !outputs.iter().all(|output| output.device().is_host()) || !replace_inputs(error, args, outputs) {
        return Ok(None);
    }
    let like = |output: &TensorView<'_>| Tensor::zeros(output.shape(), output.dtype());
    outputs.iter().map(like).collect::<Result<_, _>>().map(Some).map_err(|reason| refuse(operation, reason))
}

/// Copies a result that was computed [apart].
#[cold]
pub fn copy_result(
    operation: &OperationInfo,
    result: Option<&Tensor>,
    output: &mut TensorMut<'_>,
) -> Result<(), Error> {
    let is_copied = result.is_some_and(|result| copy_elements(&result.view(), output));
    if is_copied { Ok(()) } else { Err(lz_core::check::disagreement(operation)) }
}

/// Marks an output as not produced by the call.
pub fn absent(slot: &mut Output) {
    slot.state = abi::OUTPUT_ABSENT;
}

unsafe fn allocate(
    operation: &OperationInfo,
    name: &str,
    (shape, dtype): (Dims, DType),
    slot: &mut Output,
    options: &CallSettings<'_>,
    follow: Device,
    view: &mut TensorMut<'_>,
) -> Result<(), Error> {
    let layout = Layout { shape, strides: shape.contiguous_strides(), dtype, device: follow };
    let bytes = layout.elements().and_then(|elements| elements.checked_mul(dtype.size() as i64));
    let bytes = bytes.and_then(|bytes| u64::try_from(bytes).ok());
    let memory = match (bytes, options.given.allocate) {
        // SAFETY: the caller's allocator is called with its context.
        (Some(bytes), Some(allocate)) => unsafe {
            allocate(
                options.given.context,
                bytes.max(1),
                BUFFER_ALIGNMENT as u64,
                follow.platform as u32,
                u32::from(follow.index),
            )
        },
        _ => std::ptr::null_mut(),
    };
    if memory.is_null() {
        let reason = Reason::new(ReasonCode::OutOfMemory).argument(name).message(format!(
            "{name}: the allocator could not allocate {} bytes on {follow}",
            bytes.map_or_else(|| "2^63 or more".to_owned(), |bytes| bytes.to_string())
        ));
        return Err(refuse(operation, reason));
    }
    let allocated = slot.tensor.write(abi::Tensor { data: memory, ..abi::Tensor::described(&layout) });
    slot.state = abi::OUTPUT_ALLOCATED;
    // SAFETY: newly allocated memory of that size.
    unsafe { allocated.describe(view.description()) }.map_err(|reason| refuse(operation, reason))
}

/// Transfers the ownership of a tensor that a kernel allocated.
pub fn hand_over_tensor(slot: &mut Output, tensor: Tensor) {
    let mut tensor = Box::new(tensor);
    slot.tensor.write(abi::Tensor::of_mut(&mut tensor.view_mut()));
    slot.owner = Box::into_raw(tensor).cast();
    slot.release = Some(release::<Tensor>);
    slot.state = abi::OUTPUT_OWNED;
}

/// Strings and their C representation.
struct OwnedTexts {
    #[expect(dead_code, reason = "owns the memory of `items`")]
    texts: Vec<String>,
    items: Vec<Text>,
}

/// Transfers the ownership of strings that a kernel produced.
pub fn hand_over_texts(slot: &mut Output, texts: Vec<String>) {
    let owned = Box::new(OwnedTexts { items: abi::text_items(&texts), texts });
    slot.texts = Texts { items: owned.items.as_ptr(), count: owned.items.len() };
    slot.owner = Box::into_raw(owned).cast();
    slot.release = Some(release::<OwnedTexts>);
    slot.state = abi::OUTPUT_OWNED;
}

unsafe extern "C" fn release<T>(owner: *mut c_void) {
    // SAFETY: created by `Box::into_raw` of this type above, and released once.
    drop(unsafe { Box::from_raw(owner.cast::<T>()) });
}
