//! The structures of `lz_plugin.h` that no operation owns, and how they become the engine's types and back.
//!
//! Memory from outside enters here. Metadata of any quality may come in: numbers are checked, pointers are the other side's
//! word, and every function that takes one is `unsafe` and says what must hold.

use std::ffi::{c_char, c_void};
use std::mem::MaybeUninit;

use lz_core::device::Platform;
use lz_core::tensor::{Layout, MAX_RANK, Place};
use lz_core::{DType, Handle, KernelError, Reason, ReasonCode, TensorMut, TensorView};
use lz_ops::tokenizer;

/// Changes of this number break the ABI.
pub const ABI_MAJOR: u32 = 1;
/// Changes of this number only add to it.
pub const ABI_MINOR: u32 = 0;

/// The result of a function behind the ABI.
pub type Status = i32;

/// It worked.
pub const OK: Status = 0;
/// It failed for this call.
pub const FAILED: Status = 1;
/// It declines this call; nothing was written.
pub const DECLINED: Status = 2;
/// There was not enough memory.
pub const OUT_OF_MEMORY: Status = 3;
/// The whole backend should not be used for a while.
pub const BACKEND_LOST: Status = 4;
/// The device's context is lost.
pub const DEVICE_LOST: Status = 5;

/// `lz_tensor`: a borrowed tensor.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Tensor {
    /// Address of the element at index 0.
    pub data: *mut c_void,
    /// Sizes; the first `rank` count.
    pub shape: [i64; MAX_RANK],
    /// Strides in elements; the first `rank` count.
    pub strides: [i64; MAX_RANK],
    /// Number of dimensions.
    pub rank: u32,
    /// Number of the dtype.
    pub dtype: u8,
    /// Number of the platform.
    pub platform: u8,
    /// Number of the device.
    pub device: u16,
}

impl Tensor {
    /// No tensor.
    pub const NONE: Tensor = Tensor {
        data: std::ptr::null_mut(),
        shape: [0; MAX_RANK],
        strides: [0; MAX_RANK],
        rank: 0,
        dtype: 0,
        platform: 0,
        device: 0,
    };

    /// A description without memory.
    #[inline]
    pub fn described(layout: &Layout) -> Tensor {
        let mut tensor = Tensor {
            rank: layout.shape.len() as u32,
            dtype: layout.dtype as u8,
            platform: layout.place.platform as u8,
            device: layout.place.index,
            ..Tensor::NONE
        };
        tensor.shape[..layout.shape.len()].copy_from_slice(&layout.shape);
        tensor.strides[..layout.strides.len()].copy_from_slice(&layout.strides);
        tensor
    }

    /// A tensor that is read.
    #[inline]
    pub fn of(view: &TensorView<'_>) -> Tensor {
        Tensor { data: view.as_ptr().cast_mut().cast(), ..Tensor::described(view.layout()) }
    }

    /// A tensor that is written.
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
                .required("the number of a dtype")
                .found(self.dtype.to_string());
        }
        Reason::new(ReasonCode::DeviceAbsent)
            .required("the number of a platform")
            .found(self.platform.to_string())
    }

    /// Describes it where the view stays.
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
        let place = Place { platform, index: self.device };
        // SAFETY: passed on.
        unsafe { view.describe(self.data.cast_const().cast(), rank, (dtype, place), dimension) };
        Ok(())
    }
}

/// `lz_text`: UTF-8, not terminated.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Text {
    /// The bytes.
    pub data: *const c_char,
    /// How many.
    pub size: usize,
}

/// `lz_texts`: a batch of strings.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Texts {
    /// The strings.
    pub items: *const Text,
    /// How many.
    pub count: usize,
}

impl Texts {
    /// No strings.
    pub const NONE: Texts = Texts { items: std::ptr::null(), count: 0 };
}

/// The strings of a batch as [`Text`]s.
pub fn text_items<T: AsRef<str>>(texts: &[T]) -> Vec<Text> {
    let item = |text: &T| Text { data: text.as_ref().as_ptr().cast(), size: text.as_ref().len() };
    texts.iter().map(item).collect()
}

/// `lz_tokenizer`: a tokenizer of the host, and what it was made from.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Tokenizer {
    /// Bytes of this structure.
    pub size: usize,
    /// The host's own.
    pub handle: *const c_void,
    /// SHA-256 of everything that can change a result.
    pub digest: [u8; 32],
    /// The `tokenizer.json`.
    pub json: *const c_char,
    /// Its bytes.
    pub json_size: usize,
}

impl Tokenizer {
    /// Of a handle; an error if it is not a tokenizer of ours.
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

/// `lz_dynamic`: a tensor whose size the kernel finds out.
#[repr(C)]
#[derive(Debug)]
pub struct Dynamic {
    /// What `make_tensor` made.
    pub tensor: Tensor,
    /// The host's own: a `*mut Option<lz_core::Tensor>`.
    pub slot: *mut c_void,
}

impl Dynamic {
    /// Of the place where the kernel's tensor goes.
    pub fn of(slot: &mut Option<lz_core::Tensor>) -> Dynamic {
        Dynamic { tensor: Tensor::NONE, slot: std::ptr::from_mut(slot).cast() }
    }
}

/// `lz_texts_output`: strings that the kernel makes.
#[repr(C)]
#[derive(Debug)]
pub struct TextsOutput {
    /// The host's own: a `*mut Option<Vec<String>>`.
    pub slot: *mut c_void,
}

impl TextsOutput {
    /// Of the place where the kernel's strings go.
    pub fn of(slot: &mut Option<Vec<String>>) -> TextsOutput {
        TextsOutput { slot: std::ptr::from_mut(slot).cast() }
    }
}

/// `lz_run`: what a running kernel may use.
#[repr(C)]
#[derive(Debug)]
pub struct Run {
    /// Bytes of this structure.
    pub size: usize,
    /// The caller's stream on its device.
    pub stream: *mut c_void,
    /// As many bytes as the kernel's `workspace` asked for, 64-byte aligned.
    pub workspace: *mut c_void,
    /// How many that are.
    pub workspace_bytes: u64,
    /// Where the kernel says what went wrong.
    pub error: *mut c_char,
    /// Bytes there, the terminator included.
    pub error_capacity: usize,
    /// Allocates a tensor whose size the kernel found out.
    pub make_tensor: Option<unsafe extern "C" fn(*mut Run, *mut Dynamic, u8, u32, *const i64) -> Status>,
    /// Hands over strings.
    pub make_texts: Option<unsafe extern "C" fn(*mut Run, *mut TextsOutput, *const Text, usize) -> Status>,
}

/// `lz_output`: where a caller wants a result, and how it gets it.
#[repr(C)]
#[derive(Debug)]
pub struct Output {
    /// One of the states below.
    pub state: u32,
    /// The caller's tensor, if it gives one.
    pub given: *const Tensor,
    /// Keeps what was made alive; null where the caller owns it.
    pub owner: *mut c_void,
    /// Lets it go.
    pub release: Option<unsafe extern "C" fn(*mut c_void)>,
    /// Strings that were made.
    pub texts: Texts,
    /// The tensor that was made. Callers need not write it, which is most of what a place for a result would cost.
    pub tensor: MaybeUninit<Tensor>,
}

/// The caller wants it made.
pub const OUTPUT_WANTED: u32 = 0;
/// The caller gives the tensor.
pub const OUTPUT_GIVEN: u32 = 1;
/// The call does not produce it.
pub const OUTPUT_ABSENT: u32 = 2;
/// Memory of the caller's allocator holds it.
pub const OUTPUT_ALLOCATED: u32 = 3;
/// `owner` holds it.
pub const OUTPUT_OWNED: u32 = 4;

/// `lz_call_options`: how a call is made.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CallOptions {
    /// Bytes of this structure.
    pub size: usize,
    /// The stream on the tensors' device.
    pub stream: *mut c_void,
    /// For `allocate`.
    pub context: *mut c_void,
    /// Memory for results: context, bytes, alignment, platform, device. Null where there is none.
    pub allocate: Option<unsafe extern "C" fn(*mut c_void, u64, u64, u32, u32) -> *mut c_void>,
}

/// Whether a param was given.
#[inline]
pub fn is_given(given: u64, param: u32) -> bool {
    given >> param & 1 == 1
}

#[cold]
fn missing(argument: &str) -> Reason {
    Reason::new(ReasonCode::MissingArgument).argument(argument).required("a value").found("nothing")
}

/// A tensor that must be there, described where its view stays.
///
/// # Safety
/// The pointer is null or names an `lz_tensor` for which [`Tensor::describe`] is safe.
#[inline(always)]
pub unsafe fn tensor(argument: &str, tensor: *const Tensor, view: &mut TensorView<'_>) -> Result<(), Reason> {
    if tensor.is_null() {
        return Err(missing(argument));
    }
    // SAFETY: not null, and the caller vouches for it.
    unsafe { (*tensor).describe(view) }.map_err(|reason| reason.argument(argument))
}

/// A tensor that may be there.
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
    // SAFETY: passed on.
    unsafe { tensor(argument, from, view.insert(TensorView::empty())) }
}

/// A tensor that must be there and is changed in place.
///
/// # Safety
/// As for [`tensor`], and what is described may be written.
#[inline(always)]
pub unsafe fn tensor_mut(
    argument: &str,
    from: *const Tensor,
    place: &mut TensorMut<'_>,
) -> Result<(), Reason> {
    // SAFETY: passed on.
    unsafe { tensor(argument, from, place.description()) }
}

/// A tensor that may be there and is changed in place.
///
/// # Safety
/// As for [`tensor_mut`].
#[inline(always)]
pub unsafe fn optional_tensor_mut(
    argument: &str,
    from: *const Tensor,
    place: &mut Option<TensorMut<'_>>,
) -> Result<(), Reason> {
    if from.is_null() {
        return Ok(());
    }
    // SAFETY: passed on.
    unsafe { tensor_mut(argument, from, place.insert(TensorMut::empty())) }
}

/// A batch of strings.
///
/// # Safety
/// The pointer is null or names an `lz_texts` whose strings stay as they are for `'a`.
pub unsafe fn texts<'a>(argument: &str, texts: *const Texts) -> Result<Vec<&'a str>, Reason> {
    if texts.is_null() {
        return Err(missing(argument));
    }
    // SAFETY: not null, and the caller vouches for it.
    let Texts { items, count } = unsafe { *texts };
    let mut found = Vec::with_capacity(count);
    for at in 0..count {
        // SAFETY: the caller vouches for `count` items.
        let Text { data, size } = unsafe { *items.add(at) };
        // SAFETY: the caller vouches for `size` bytes; an empty text may have no address.
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
/// The pointer is null or names an `lz_tokenizer` whose handle is a [`tokenizer::Tokenizer`] that lives for `'a`.
pub unsafe fn tokenizer<'a>(argument: &str, tokenizer: *const Tokenizer) -> Result<&'a dyn Handle, Reason> {
    // SAFETY: null is checked; otherwise the caller vouches for it.
    let handle = if tokenizer.is_null() { std::ptr::null() } else { unsafe { (*tokenizer).handle } };
    if handle.is_null() {
        return Err(missing(argument));
    }
    // SAFETY: as above.
    Ok(unsafe { &*handle.cast::<tokenizer::Tokenizer>() })
}

/// The case of an enum, from its number.
pub fn case<T>(argument: &str, case: Option<T>, number: u32, names: &[&str]) -> Result<T, Reason> {
    case.ok_or_else(|| {
        Reason::new(ReasonCode::ParamOutOfRange)
            .argument(argument)
            .required(format!("the number of one of {}", names.join(", ")))
            .found(number.to_string())
    })
}

/// The address of what is there, or null.
pub fn pointer<T>(value: Option<&T>) -> *const T {
    value.map_or(std::ptr::null(), std::ptr::from_ref)
}

/// The address of what is there, or null.
pub fn pointer_mut<T>(value: Option<&mut T>) -> *mut T {
    value.map_or(std::ptr::null_mut(), std::ptr::from_mut)
}

/// Structures that begin with their own size in bytes, so that one side may know more fields than the other.
///
/// # Safety
/// `repr(C)`; the first field is the size as a `usize`; zero bytes are a value of every other field and mean "not said".
pub unsafe trait Versioned: Copy {}

/// A structure as far as both sides know it: the other side's own where that has everything, or else a copy, kept in `room`, in
/// which what the other side does not know is zero.
///
/// # Safety
/// The pointer is null or names a structure that has as many bytes as its first field says and stays as it is while it is
/// borrowed.
#[inline]
pub unsafe fn borrow<T: Versioned>(structure: *const T, room: &mut Option<T>) -> Result<&T, Reason> {
    // SAFETY: null is checked; otherwise the caller vouches for the first field.
    let size = if structure.is_null() { 0 } else { unsafe { structure.cast::<usize>().read() } };
    if size >= size_of::<T>() {
        // SAFETY: at least as many bytes as our own structure has, and `Versioned` says that any of them are values.
        return Ok(unsafe { &*structure });
    }
    if size < size_of::<usize>() {
        return Err(unsized_structure(size));
    }
    let mut copy = MaybeUninit::<T>::zeroed();
    // SAFETY: the caller vouches for `size` bytes, and the copy has room for more.
    unsafe {
        std::ptr::copy_nonoverlapping(structure.cast::<u8>(), copy.as_mut_ptr().cast::<u8>(), size);
    }
    // SAFETY: zeroes or the other side's values; `Versioned` says that both are values.
    Ok(room.insert(unsafe { copy.assume_init() }))
}

#[cold]
fn unsized_structure(size: usize) -> Reason {
    Reason::new(ReasonCode::BackendAbiMismatch)
        .required("a structure that says its size")
        .found(format!("{size} bytes"))
}

/// The same as a copy.
///
/// # Safety
/// As for [`borrow`], for the time of this call.
pub unsafe fn read<T: Versioned>(structure: *const T) -> Result<T, Reason> {
    let mut room = None;
    // SAFETY: passed on.
    unsafe { borrow(structure, &mut room) }.copied()
}

// SAFETY: `repr(C)`, begins with its size, and holds pointers, numbers and optional functions.
unsafe impl Versioned for CallOptions {}

#[cfg(feature = "cxx")]
mod bridged {
    //! The structures as types that a cxx bridge may name.

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
    fn a_structure_that_has_everything_is_borrowed_and_a_shorter_one_is_filled_up() {
        for size in [size_of::<CallOptions>(), size_of::<CallOptions>() + 8] {
            let (given, mut room) = (options(size), None);
            // SAFETY: at least as many bytes are there as are looked at.
            let found = unsafe { borrow(&raw const given, &mut room) }.unwrap();
            assert!(std::ptr::eq(found, &raw const given));
        }
        let (given, mut room) = (options(2 * size_of::<usize>()), None);
        // SAFETY: as many bytes as it says are there.
        let found = unsafe { borrow(&raw const given, &mut room) }.unwrap();
        assert_eq!(found.stream, given.stream);
        assert!(found.context.is_null());
    }

    #[test]
    fn a_structure_without_a_size_is_refused() {
        let (given, mut room) = (options(3), None);
        for structure in [std::ptr::null(), &raw const given] {
            // SAFETY: null, or there.
            let refusal = unsafe { borrow(structure, &mut room) }.unwrap_err();
            assert_eq!(refusal.code, ReasonCode::BackendAbiMismatch);
        }
    }
}
