//! The common structures of `lz_plugin.h` and their conversion to and from the engine's types.
//!
//! This is an FFI boundary. Metadata is untrusted: numbers are validated. Pointers cannot be validated: every function that takes one is
//! `unsafe` and documents its requirements.

use std::ffi::{c_char, c_void};
use std::mem::MaybeUninit;

use lz_core::device::Platform;
use lz_core::tensor::{Device, Layout, MAX_RANK};
use lz_core::{DType, Handle, KernelError, Reason, ReasonCode, TensorMut, TensorView};
use lz_ops::tokenizer;

/// Major ABI version; incremented by incompatible changes.
pub const ABI_MAJOR: u32 = 1;
/// Minor ABI version; incremented by compatible additions.
pub const ABI_MINOR: u32 = 0;

/// The status code of a function behind the ABI.
pub type Status = i32;

/// Success.
pub const OK: Status = 0;
/// The call failed.
pub const FAILED: Status = 1;
/// The kernel declined the call; no output was written.
pub const DECLINED: Status = 2;
/// Out of memory.
pub const OUT_OF_MEMORY: Status = 3;
/// The whole backend is temporarily unusable.
pub const BACKEND_LOST: Status = 4;
/// The device context is lost.
pub const DEVICE_LOST: Status = 5;

/// `lz_tensor`: a borrowed tensor.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Tensor {
    /// Address of the element at index 0.
    pub data: *mut c_void,
    /// Sizes; only the first `rank` are used.
    pub shape: [i64; MAX_RANK],
    /// Strides in elements; only the first `rank` are used.
    pub strides: [i64; MAX_RANK],
    /// Number of dimensions.
    pub rank: u32,
    /// Dtype number.
    pub dtype: u8,
    /// Platform number.
    pub platform: u8,
    /// Device index.
    pub device: u16,
}

impl Tensor {
    /// An empty tensor structure.
    pub const NONE: Tensor = Tensor {
        data: std::ptr::null_mut(),
        shape: [0; MAX_RANK],
        strides: [0; MAX_RANK],
        rank: 0,
        dtype: 0,
        platform: 0,
        device: 0,
    };

    /// The structure of a layout, without an address.
    #[inline]
    pub fn described(layout: &Layout) -> Tensor {
        let mut tensor = Tensor {
            rank: layout.shape.len() as u32,
            dtype: layout.dtype as u8,
            platform: layout.device.platform as u8,
            device: layout.device.index,
            ..Tensor::NONE
        };
        tensor.shape[..layout.shape.len()].copy_from_slice(&layout.shape);
        tensor.strides[..layout.strides.len()].copy_from_slice(&layout.strides);
        tensor
    }

    /// The structure of a tensor that is read.
    #[inline]
    pub fn of(view: &TensorView<'_>) -> Tensor {
        Tensor { data: view.as_ptr().cast_mut().cast(), ..Tensor::described(view.layout()) }
    }

    /// The structure of a tensor that is written.
    #[inline]
    pub fn of_mut(tensor: &mut TensorMut<'_>) -> Tensor {
        Tensor { data: tensor.as_mut_ptr().cast(), ..Tensor::described(tensor.layout()) }
    }

    #[cold]
    fn problem(&self) -> Reason {
        if self.rank as usize > MAX_RANK {
            return Reason::new(ReasonCode::RankMismatch)
                .required(format!("at most {MAX_RANK} dimensions"))
                .found(format!("{} dimensions", self.rank));
        }
        if DType::from_number(self.dtype).is_none() {
            return Reason::new(ReasonCode::DtypeUnsupported)
                .required("a dtype number of lz_plugin.h")
                .found(self.dtype.to_string());
        }
        Reason::new(ReasonCode::DeviceAbsent)
            .required("a platform number of lz_plugin.h")
            .found(self.platform.to_string())
    }

    /// Initializes a view in place.
    ///
    /// # Safety
    /// As for [`TensorView::from_raw`].
    #[inline(always)]
    pub unsafe fn describe(&self, view: &mut TensorView<'_>) -> Result<(), Reason> {
        let rank = self.rank as usize;
        let platform = Platform::ALL.get(usize::from(self.platform));
        let (Some(dtype), Some(&platform), true) =
            (DType::from_number(self.dtype), platform, rank <= MAX_RANK)
        else {
            return Err(self.problem());
        };
        let dimension = |at: usize| (self.shape[at % MAX_RANK], self.strides[at % MAX_RANK]);
        let device = Device { platform, index: self.device };
        // SAFETY: forwarded to the caller.
        unsafe { view.describe(self.data.cast_const().cast(), rank, (dtype, device), dimension) };
        Ok(())
    }
}

/// `lz_text`: a UTF-8 string without null terminator.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Text {
    /// The bytes.
    pub data: *const c_char,
    /// Length in bytes.
    pub size: usize,
}

/// `lz_texts`: a batch of strings.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Texts {
    /// The strings.
    pub items: *const Text,
    /// Number of strings.
    pub count: usize,
}

impl Texts {
    /// An empty batch.
    pub const NONE: Texts = Texts { items: std::ptr::null(), count: 0 };
}

/// The strings of a batch as [`Text`]s.
pub fn text_items<T: AsRef<str>>(texts: &[T]) -> Vec<Text> {
    let item = |text: &T| Text { data: text.as_ref().as_ptr().cast(), size: text.as_ref().len() };
    texts.iter().map(item).collect()
}

/// `lz_tokenizer`: a tokenizer of the host with its definition.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Tokenizer {
    /// Bytes of this structure.
    pub size: usize,
    /// Opaque handle of the host.
    pub handle: *const c_void,
    /// SHA-256 of everything that can change a result.
    pub digest: [u8; 32],
    /// The `tokenizer.json`.
    pub json: *const c_char,
    /// Length of `json` in bytes.
    pub json_size: usize,
}

impl Tokenizer {
    /// The structure of a handle; an error if it is not an `lz_ops::tokenizer::Tokenizer`.
    pub fn of(handle: &dyn Handle) -> Result<Tokenizer, KernelError> {
        let tokenizer = tokenizer::Tokenizer::from_handle(handle)?;
        Ok(Tokenizer {
            size: size_of::<Tokenizer>(),
            handle: std::ptr::from_ref(tokenizer).cast(),
            digest: handle.digest(),
            json: tokenizer.json().as_ptr().cast(),
            json_size: tokenizer.json().len(),
        })
    }
}

/// `lz_dynamic`: an output tensor whose size the kernel determines.
#[repr(C)]
#[derive(Debug)]
pub struct Dynamic {
    /// The tensor that `make_tensor` allocated.
    pub tensor: Tensor,
    /// Opaque pointer of the host: a `*mut Option<lz_core::Tensor>`.
    pub slot: *mut c_void,
}

impl Dynamic {
    /// From the output slot for the tensor.
    pub fn of(slot: &mut Option<lz_core::Tensor>) -> Dynamic {
        Dynamic { tensor: Tensor::NONE, slot: std::ptr::from_mut(slot).cast() }
    }
}

/// `lz_texts_output`: strings that the kernel produces.
#[repr(C)]
#[derive(Debug)]
pub struct TextsOutput {
    /// Opaque pointer of the host: a `*mut Option<Vec<String>>`.
    pub slot: *mut c_void,
}

impl TextsOutput {
    /// From the output slot for the strings.
    pub fn of(slot: &mut Option<Vec<String>>) -> TextsOutput {
        TextsOutput { slot: std::ptr::from_mut(slot).cast() }
    }
}

/// `lz_run`: the resources of a running kernel.
#[repr(C)]
#[derive(Debug)]
pub struct Run {
    /// Bytes of this structure.
    pub size: usize,
    /// The caller's stream on its device.
    pub stream: *mut c_void,
    /// Workspace of the size that the kernel's `workspace` function returned, 64-byte aligned.
    pub workspace: *mut c_void,
    /// Bytes of the workspace.
    pub workspace_bytes: u64,
    /// Buffer for an error message.
    pub error: *mut c_char,
    /// Capacity of the buffer, including the null terminator.
    pub error_capacity: usize,
    /// Allocates an output tensor whose size the kernel determined.
    pub make_tensor: Option<unsafe extern "C" fn(*mut Run, *mut Dynamic, u8, u32, *const i64) -> Status>,
    /// Sets an output of strings.
    pub make_texts: Option<unsafe extern "C" fn(*mut Run, *mut TextsOutput, *const Text, usize) -> Status>,
}

/// `lz_output`: an output slot of a caller.
#[repr(C)]
#[derive(Debug)]
pub struct Output {
    /// One of the `OUTPUT_` states.
    pub state: u32,
    /// The caller's tensor for `OUTPUT_GIVEN`.
    pub given: *const Tensor,
    /// Owner of the result; null if the caller owns it.
    pub owner: *mut c_void,
    /// Releases `owner`.
    pub release: Option<unsafe extern "C" fn(*mut c_void)>,
    /// The resulting strings.
    pub texts: Texts,
    /// The resulting tensor. Callers need not initialize it, which would be most of the cost of an output slot.
    pub tensor: MaybeUninit<Tensor>,
}

/// The caller requests the output and LayerZero allocates it.
pub const OUTPUT_WANTED: u32 = 0;
/// The caller supplies the tensor.
pub const OUTPUT_GIVEN: u32 = 1;
/// The call does not produce the output.
pub const OUTPUT_ABSENT: u32 = 2;
/// The output is in memory of the caller's allocator.
pub const OUTPUT_ALLOCATED: u32 = 3;
/// The output is owned by `owner`.
pub const OUTPUT_OWNED: u32 = 4;

/// `lz_call_options`: options of a call.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CallOptions {
    /// Bytes of this structure.
    pub size: usize,
    /// The stream on the tensors' device.
    pub stream: *mut c_void,
    /// First argument of `allocate`.
    pub context: *mut c_void,
    /// Allocates memory for outputs: context, bytes, alignment, platform, device. Returns null on failure.
    pub allocate: Option<unsafe extern "C" fn(*mut c_void, u64, u64, u32, u32) -> *mut c_void>,
}

/// Whether a param has a value.
#[inline]
pub fn is_given(given: u64, param: u32) -> bool {
    given >> param & 1 == 1
}

#[cold]
fn missing(argument: &str) -> Reason {
    Reason::new(ReasonCode::MissingArgument).argument(argument).required("a value").found("nothing")
}

/// Initializes the view of a required tensor.
///
/// # Safety
/// The pointer is null or points to an `lz_tensor` for which [`Tensor::describe`] is safe.
#[inline(always)]
pub unsafe fn tensor(argument: &str, tensor: *const Tensor, view: &mut TensorView<'_>) -> Result<(), Reason> {
    if tensor.is_null() {
        return Err(missing(argument));
    }
    // SAFETY: not null, and valid by the caller's guarantee.
    unsafe { (*tensor).describe(view) }.map_err(|reason| reason.argument(argument))
}

/// Initializes the view of an optional tensor.
///
/// # Safety
/// As for [`tensor`].
#[inline(always)]
pub unsafe fn optional_tensor(
    argument: &str,
    from: *const Tensor,
    view: &mut Option<TensorView<'_>>,
) -> Result<(), Reason> {
    if from.is_null() {
        return Ok(());
    }
    // SAFETY: forwarded to the caller.
    unsafe { tensor(argument, from, view.insert(TensorView::empty())) }
}

/// Initializes a required tensor that is modified in place.
///
/// # Safety
/// As for [`tensor`], and the tensor may be written.
#[inline(always)]
pub unsafe fn tensor_mut(argument: &str, from: *const Tensor, to: &mut TensorMut<'_>) -> Result<(), Reason> {
    // SAFETY: forwarded to the caller.
    unsafe { tensor(argument, from, to.description()) }
}

/// Initializes an optional tensor that is modified in place.
///
/// # Safety
/// As for [`tensor_mut`].
#[inline(always)]
pub unsafe fn optional_tensor_mut(
    argument: &str,
    from: *const Tensor,
    to: &mut Option<TensorMut<'_>>,
) -> Result<(), Reason> {
    if from.is_null() {
        return Ok(());
    }
    // SAFETY: forwarded to the caller.
    unsafe { tensor_mut(argument, from, to.insert(TensorMut::empty())) }
}

/// A batch of strings.
///
/// # Safety
/// The pointer is null or points to an `lz_texts` whose strings are not modified for `'a`.
pub unsafe fn texts<'a>(argument: &str, texts: *const Texts) -> Result<Vec<&'a str>, Reason> {
    if texts.is_null() {
        return Err(missing(argument));
    }
    // SAFETY: not null, and valid by the caller's guarantee.
    let Texts { items, count } = unsafe { *texts };
    let mut found = Vec::with_capacity(count);
    for at in 0..count {
        // SAFETY: the caller guarantees `count` items.
        let Text { data, size } = unsafe { *items.add(at) };
        // SAFETY: the caller guarantees `size` bytes; the address of an empty text may be null.
        let bytes = if size == 0 { &[] } else { unsafe { std::slice::from_raw_parts(data.cast(), size) } };
        found.push(std::str::from_utf8(bytes).map_err(|error| {
            Reason::new(ReasonCode::TextInvalidUtf8)
                .argument(argument)
                .required("UTF-8")
                .found(format!("text {at}: {error}"))
        })?);
    }
    Ok(found)
}

/// A tokenizer.
///
/// # Safety
/// The pointer is null or points to an `lz_tokenizer` whose handle is a [`tokenizer::Tokenizer`] that lives for `'a`.
pub unsafe fn tokenizer<'a>(argument: &str, tokenizer: *const Tokenizer) -> Result<&'a dyn Handle, Reason> {
    // SAFETY: not null, and valid by the caller's guarantee.
    let handle = if tokenizer.is_null() { std::ptr::null() } else { unsafe { (*tokenizer).handle } };
    if handle.is_null() {
        return Err(missing(argument));
    }
    // SAFETY: as above.
    Ok(unsafe { &*handle.cast::<tokenizer::Tokenizer>() })
}

/// Validates the case of an enum.
pub fn case<T>(argument: &str, case: Option<T>, number: u32, names: &[&str]) -> Result<T, Reason> {
    case.ok_or_else(|| {
        Reason::new(ReasonCode::ParamOutOfRange)
            .argument(argument)
            .required(format!("the number of one of {}", names.join(", ")))
            .found(number.to_string())
    })
}

/// The address of a value, or null.
pub fn pointer<T>(value: Option<&T>) -> *const T {
    value.map_or(std::ptr::null(), std::ptr::from_ref)
}

/// The address of a value, or null.
pub fn pointer_mut<T>(value: Option<&mut T>) -> *mut T {
    value.map_or(std::ptr::null_mut(), std::ptr::from_mut)
}

/// Structures that begin with their own size in bytes, so that the two sides may have different minor versions.
///
/// # Safety
/// `repr(C)`; the first field is the size as a `usize`; all-zero bytes are valid for every other field and mean "not set".
pub unsafe trait Versioned: Copy {}

/// Borrows a structure of the other side. If the other side's version has fewer fields, returns a copy in `storage` with the missing
/// fields zeroed.
///
/// # Safety
/// The pointer is null or points to a structure of the size in its first field that is not modified while it is borrowed.
#[inline]
pub unsafe fn borrow<T: Versioned>(structure: *const T, storage: &mut Option<T>) -> Result<&T, Reason> {
    // SAFETY: not null, and the caller guarantees the first field.
    let size = if structure.is_null() { 0 } else { unsafe { structure.cast::<usize>().read() } };
    if size >= size_of::<T>() {
        // SAFETY: at least as many bytes as this version of the structure has.
        return Ok(unsafe { &*structure });
    }
    if size < size_of::<usize>() {
        return Err(unsized_structure(size));
    }
    let mut copy = MaybeUninit::<T>::zeroed();
    // SAFETY: the caller guarantees `size` bytes, and the copy is larger.
    unsafe {
        std::ptr::copy_nonoverlapping(structure.cast::<u8>(), copy.as_mut_ptr().cast::<u8>(), size);
    }
    // SAFETY: zeros or values of the other side; both are valid by `Versioned`.
    Ok(storage.insert(unsafe { copy.assume_init() }))
}

#[cold]
fn unsized_structure(size: usize) -> Reason {
    Reason::new(ReasonCode::BackendAbiMismatch)
        .required("a structure whose first field is its size in bytes")
        .found(format!("size {size}"))
}

/// Like [`borrow`], but returns a copy.
///
/// # Safety
/// As for [`borrow`], for the time of this call.
pub unsafe fn read<T: Versioned>(structure: *const T) -> Result<T, Reason> {
    let mut storage = None;
    // SAFETY: forwarded to the caller.
    unsafe { borrow(structure, &mut storage) }.copied()
}

// SAFETY: `repr(C)`, begins with its size, and contains pointers, integers and optional function pointers.
unsafe impl Versioned for CallOptions {}

#[cfg(feature = "cxx")]
mod bridged {
    //! The structures as extern types of a cxx bridge.

    // SAFETY: the C structure of that name in `lz_plugin.h` has the same fields.
    unsafe impl cxx::ExternType for super::Output {
        type Id = cxx::type_id!("lz_output");
        type Kind = cxx::kind::Trivial;
    }

    // SAFETY: as above.
    unsafe impl cxx::ExternType for super::CallOptions {
        type Id = cxx::type_id!("lz_call_options");
        type Kind = cxx::kind::Trivial;
    }

    // SAFETY: as above.
    unsafe impl cxx::ExternType for super::Tokenizer {
        type Id = cxx::type_id!("lz_tokenizer");
        type Kind = cxx::kind::Trivial;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(size: usize) -> CallOptions {
        CallOptions {
            size,
            stream: std::ptr::dangling_mut(),
            context: std::ptr::dangling_mut(),
            allocate: None,
        }
    }

    #[test]
    fn a_complete_structure_is_borrowed_and_a_shorter_one_is_copied_and_zero_extended() {
        for size in [size_of::<CallOptions>(), size_of::<CallOptions>() + 8] {
            let (given, mut storage) = (options(size), None);
            // SAFETY: at least as many bytes as are accessed.
            let found = unsafe { borrow(&raw const given, &mut storage) }.unwrap();
            assert!(std::ptr::eq(found, &raw const given));
        }
        let (given, mut storage) = (options(2 * size_of::<usize>()), None);
        // SAFETY: the structure has the stated size.
        let found = unsafe { borrow(&raw const given, &mut storage) }.unwrap();
        assert_eq!(found.stream, given.stream);
        assert!(found.context.is_null());
    }

    #[test]
    fn a_structure_without_a_valid_size_is_rejected() {
        let (given, mut storage) = (options(3), None);
        for structure in [std::ptr::null(), &raw const given] {
            // SAFETY: null or valid.
            let refusal = unsafe { borrow(structure, &mut storage) }.unwrap_err();
            assert_eq!(refusal.code, ReasonCode::BackendAbiMismatch);
        }
    }
}
