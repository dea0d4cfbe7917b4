//! Places for results: the caller's own, memory of the caller's allocator, or what a kernel made.

use std::ffi::c_void;

use lz_core::tensor::{BUFFER_ALIGNMENT, Dims, Layout, Place};
use lz_core::{DType, Error, OperationInfo, Reason, ReasonCode, Tensor, TensorMut};
use lz_plugin::abi::{self, Output, Text, Texts};

use crate::call::{CallSettings, refuse};

type Spec = Option<(Dims, DType)>;

/// The place of a result that every call has, described where its view stays.
///
/// # Safety
/// A given tensor describes memory that is nobody else's for the time of the call, and so does what the allocator gives.
#[inline(always)]
pub unsafe fn place(
    operation: &OperationInfo,
    name: &str,
    spec: impl FnOnce() -> Spec,
    slot: &mut Output,
    options: &CallSettings<'_>,
    follow: Place,
    view: &mut TensorMut<'_>,
) -> Result<(), Error> {
    if slot.state == abi::OUTPUT_GIVEN {
        // SAFETY: passed on.
        let described = unsafe { abi::tensor_mut(name, slot.given, view) };
        return described.map_err(|reason| refuse(operation, reason));
    }
    let Some(spec) = spec() else { return Err(lz_core::check::disagreement(operation)) };
    // SAFETY: passed on.
    unsafe { allocate(operation, name, spec, slot, options, follow, view) }
}

/// The place of a result that some calls do not have; says whether this one has it.
///
/// # Safety
/// As for [`place`].
#[inline(always)]
pub unsafe fn optional_place(
    operation: &OperationInfo,
    name: &str,
    spec: impl FnOnce() -> Spec,
    slot: &mut Output,
    options: &CallSettings<'_>,
    follow: Place,
    view: &mut TensorMut<'_>,
) -> Result<bool, Error> {
    let spec = if slot.state == abi::OUTPUT_GIVEN { None } else { spec() };
    if slot.state != abi::OUTPUT_GIVEN && spec.is_none() {
        absent(slot);
    }
    if slot.state == abi::OUTPUT_ABSENT {
        return Ok(false);
    }
    // SAFETY: passed on.
    unsafe { place(operation, name, || spec, slot, options, follow, view) }?;
    Ok(true)
}

/// Says that the call does not produce it.
pub fn absent(slot: &mut Output) {
    slot.state = abi::OUTPUT_ABSENT;
}

unsafe fn allocate(
    operation: &OperationInfo,
    name: &str,
    (shape, dtype): (Dims, DType),
    slot: &mut Output,
    options: &CallSettings<'_>,
    follow: Place,
    view: &mut TensorMut<'_>,
) -> Result<(), Error> {
    let layout = Layout { shape, strides: shape.contiguous_strides(), dtype, place: follow };
    let bytes = layout.elements().and_then(|elements| elements.checked_mul(dtype.size() as i64));
    let bytes = bytes.and_then(|bytes| u64::try_from(bytes).ok());
    let memory = match (bytes, options.given.allocate) {
        // SAFETY: the caller's allocator, with the context that came with it.
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
            "{name}: the allocator has no {} bytes on {follow}",
            bytes.map_or_else(|| "2^63 or more".to_owned(), |bytes| bytes.to_string())
        ));
        return Err(refuse(operation, reason));
    }
    let made = slot.tensor.write(abi::Tensor { data: memory, ..abi::Tensor::described(&layout) });
    slot.state = abi::OUTPUT_ALLOCATED;
    // SAFETY: fresh memory of that many bytes.
    unsafe { made.describe(view.description()) }.map_err(|reason| refuse(operation, reason))
}

/// Hands a tensor over that a kernel made.
pub fn hand_over_tensor(slot: &mut Output, tensor: Tensor) {
    let mut tensor = Box::new(tensor);
    slot.tensor.write(abi::Tensor::of_mut(&mut tensor.view_mut()));
    slot.owner = Box::into_raw(tensor).cast();
    slot.release = Some(release::<Tensor>);
    slot.state = abi::OUTPUT_OWNED;
}

/// Strings and where each one is.
struct HeldTexts {
    #[expect(dead_code, reason = "held, not read")]
    texts: Vec<String>,
    items: Vec<Text>,
}

/// Hands strings over that a kernel made.
pub fn hand_over_texts(slot: &mut Output, texts: Vec<String>) {
    let held = Box::new(HeldTexts { items: abi::text_items(&texts), texts });
    slot.texts = Texts { items: held.items.as_ptr(), count: held.items.len() };
    slot.owner = Box::into_raw(held).cast();
    slot.release = Some(release::<HeldTexts>);
    slot.state = abi::OUTPUT_OWNED;
}

unsafe extern "C" fn release<T>(owner: *mut c_void) {
    // SAFETY: made by `Box::into_raw` of this type above, and given back once.
    drop(unsafe { Box::from_raw(owner.cast::<T>()) });
}
