//! Element types that kernels load as f32 lanes, and the spans of a row that one vector covers.

use half::{bf16, f16};
use lz_core::DType;
use lz_core::element::{
    Element, F8E4M3, F8E5M2, f8_e4m3_to_f64, f8_e5m2_to_f64, f64_to_f8_e4m3, f64_to_f8_e5m2,
};

use super::Simd;
use super::minifloat::{E4M3, E5M2, decode, encode};

/// The elements of a row that one vector covers.
pub trait Span: Copy {
    /// Index of its first element.
    fn at(self) -> usize;
    /// Number of elements if fewer than `LANES` (the tail of a row).
    fn part(self) -> Option<usize>;
}

/// A full vector starting at this index.
#[derive(Debug, Clone, Copy)]
pub struct FullVector(pub usize);

/// The tail of a row: start index, and number of elements (fewer than `LANES`).
#[derive(Debug, Clone, Copy)]
pub struct Tail(pub usize, pub usize);

impl Span for FullVector {
    #[inline(always)]
    fn at(self) -> usize {
        self.0
    }
    #[inline(always)]
    fn part(self) -> Option<usize> {
        None
    }
}

impl Span for Tail {
    #[inline(always)]
    fn at(self) -> usize {
        self.0
    }
    #[inline(always)]
    fn part(self) -> Option<usize> {
        Some(self.1)
    }
}

/// A float type that is computed in f32: converted exactly on load, rounded once to nearest even on store.
pub trait Float: Element + PartialEq {
    /// Loads a vector.
    /// # Safety
    /// The elements of the span are readable from `row`.
    unsafe fn load<S: Simd>(simd: S, row: *const Self, span: impl Span) -> S::F32;

    /// Stores a vector.
    /// # Safety
    /// The elements of the span are writable from `row`.
    unsafe fn store<S: Simd>(simd: S, row: *mut Self, span: impl Span, value: S::F32);

    /// Stores a vector; full vectors with a non-temporal store.
    /// # Safety
    /// As [`Float::store`], and the address of a full vector is aligned to its size as stored.
    unsafe fn stream<S: Simd>(simd: S, row: *mut Self, span: impl Span, value: S::F32);

    /// Converts one element.
    fn to_f32(self) -> f32;

    /// Converts one element, rounding to nearest even.
    fn from_f32(value: f32) -> Self;
}

impl Float for f32 {
    #[inline(always)]
    unsafe fn load<S: Simd>(simd: S, row: *const f32, span: impl Span) -> S::F32 {
        // SAFETY: the caller guarantees the elements of the span.
        unsafe {
            match span.part() {
                None => simd.load(row.add(span.at())),
                Some(count) => simd.load_partial(row.add(span.at()), count),
            }
        }
    }
    #[inline(always)]
    unsafe fn store<S: Simd>(simd: S, row: *mut f32, span: impl Span, value: S::F32) {
        // SAFETY: the caller guarantees the elements of the span.
        unsafe {
            match span.part() {
                None => simd.store(row.add(span.at()), value),
                Some(count) => simd.store_partial(row.add(span.at()), value, count),
            }
        }
    }
    #[inline(always)]
    unsafe fn stream<S: Simd>(simd: S, row: *mut f32, span: impl Span, value: S::F32) {
        // SAFETY: the caller guarantees the elements of the span and the alignment of full vectors.
        unsafe {
            match span.part() {
                None => simd.stream(row.add(span.at()), value),
                Some(count) => simd.store_partial(row.add(span.at()), value, count),
            }
        }
    }
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
    #[inline(always)]
    fn from_f32(value: f32) -> f32 {
        value
    }
}

/// Maximum number of lanes of any instruction set.
pub(crate) const MAX_LANES: usize = 16;

macro_rules! half_floats {
    ($($half:ty: $load:ident, $store:ident, $stream:ident;)*) => {
        $(impl Float for $half {
            #[inline(always)]
            unsafe fn load<S: Simd>(simd: S, row: *const $half, span: impl Span) -> S::F32 {
                // SAFETY: the caller guarantees the elements of the span; a tail goes through a buffer of a
                // full vector.
                unsafe {
                    let from = row.add(span.at()).cast::<u16>();
                    match span.part() {
                        None => simd.$load(from),
                        Some(count) => {
                            let mut whole = [0u16; MAX_LANES];
                            std::ptr::copy_nonoverlapping(from, whole.as_mut_ptr(), count);
                            simd.$load(whole.as_ptr())
                        }
                    }
                }
            }
            #[inline(always)]
            unsafe fn store<S: Simd>(simd: S, row: *mut $half, span: impl Span, value: S::F32) {
                // SAFETY: the caller guarantees the elements of the span; a tail goes through a buffer of a
                // full vector.
                unsafe {
                    let to = row.add(span.at()).cast::<u16>();
                    match span.part() {
                        None => simd.$store(to, value),
                        Some(count) => {
                            let mut whole = [0u16; MAX_LANES];
                            simd.$store(whole.as_mut_ptr(), value);
                            std::ptr::copy_nonoverlapping(whole.as_ptr(), to, count);
                        }
                    }
                }
            }
            #[inline(always)]
            unsafe fn stream<S: Simd>(simd: S, row: *mut $half, span: impl Span, value: S::F32) {
                // SAFETY: the caller guarantees the elements of the span and the alignment of full vectors.
                unsafe {
                    match span.part() {
                        None => simd.$stream(row.add(span.at()).cast(), value),
                        Some(_) => Self::store(simd, row, span, value),
                    }
                }
            }
            #[inline(always)]
            fn to_f32(self) -> f32 {
                <$half>::to_f32(self)
            }
            #[inline(always)]
            fn from_f32(value: f32) -> $half {
                <$half>::from_f32(value)
            }
        })*
    };
}

half_floats! {
    f16: load_f16, store_f16, stream_f16;
    bf16: load_bf16, store_bf16, stream_bf16;
}

macro_rules! small_floats {
    ($($element:ty: $format:ty, $to:path, $from:path;)*) => {
        $(impl Float for $element {
            #[inline(always)]
            unsafe fn load<S: Simd>(simd: S, row: *const $element, span: impl Span) -> S::F32 {
                // SAFETY: the caller guarantees the elements of the span, which are bytes.
                unsafe { decode::<S, $format>(simd, load_bytes(simd, row.cast(), span)) }
            }
            #[inline(always)]
            unsafe fn store<S: Simd>(simd: S, row: *mut $element, span: impl Span, value: S::F32) {
                // SAFETY: the caller guarantees the elements of the span, which are bytes.
                unsafe { store_bytes(simd, row.cast(), span, encode::<S, $format>(simd, value)) }
            }
            #[inline(always)]
            unsafe fn stream<S: Simd>(simd: S, row: *mut $element, span: impl Span, value: S::F32) {
                // SAFETY: the caller guarantees the elements of the span.
                unsafe { Self::store(simd, row, span, value) }
            }
            #[inline(always)]
            fn to_f32(self) -> f32 {
                $to(self.0) as f32
            }
            #[inline(always)]
            fn from_f32(value: f32) -> $element {
                Self($from(f64::from(value)))
            }
        })*
    };
}

small_floats! {
    F8E4M3: E4M3, f8_e4m3_to_f64, f64_to_f8_e4m3;
    F8E5M2: E5M2, f8_e5m2_to_f64, f64_to_f8_e5m2;
}

/// Stores the low byte of each lane.
/// # Safety
/// The bytes of the span are writable from `row`.
#[inline(always)]
pub unsafe fn store_bytes<S: Simd>(simd: S, row: *mut u8, span: impl Span, value: S::I32) {
    // SAFETY: the caller guarantees the bytes of the span; a tail goes through a buffer of a full vector.
    unsafe {
        let to = row.add(span.at());
        match span.part() {
            None => simd.store_u8(to, value),
            Some(count) => {
                let mut whole = [0u8; MAX_LANES];
                simd.store_u8(whole.as_mut_ptr(), value);
                std::ptr::copy_nonoverlapping(whole.as_ptr(), to, count);
            }
        }
    }
}

/// Loads unsigned bytes; lanes past a tail are 0.
/// # Safety
/// The bytes of the span are readable from `row`.
#[inline(always)]
pub unsafe fn load_bytes<S: Simd>(simd: S, row: *const u8, span: impl Span) -> S::I32 {
    // SAFETY: the caller guarantees the bytes of the span; a tail goes through a buffer of a full vector.
    unsafe {
        let from = row.add(span.at());
        match span.part() {
            None => simd.load_u8(from),
            Some(count) => {
                let mut whole = [0u8; MAX_LANES];
                std::ptr::copy_nonoverlapping(from, whole.as_mut_ptr(), count);
                simd.load_u8(whole.as_ptr())
            }
        }
    }
}

/// Stores the low two bits of each lane, four lanes per byte, the first in the lowest bits; unused bits of the last byte are 0.
/// # Safety
/// The span starts at a multiple of 4, and its bytes are writable from `row`.
#[inline(always)]
pub unsafe fn store_quarters<S: Simd>(simd: S, row: *mut u8, span: impl Span, value: S::I32) {
    let mut whole = [0u8; MAX_LANES];
    // SAFETY: the buffer has space for all lanes; the caller guarantees the bytes of the span.
    unsafe {
        simd.store_u8(whole.as_mut_ptr(), value);
        let count = span.part().unwrap_or(S::LANES);
        whole[count..].fill(0);
        let to = row.add(span.at() / 4);
        for (byte, codes) in whole.as_chunks::<4>().0.iter().take(count.div_ceil(4)).enumerate() {
            let codes = u32::from_le_bytes(*codes) & 0x0303_0303;
            to.add(byte).write((codes | codes >> 6 | codes >> 12 | codes >> 18) as u8);
        }
    }
}

/// Loads unsigned 2-bit values, four per byte, the first in the lowest bits.
/// # Safety
/// The span starts at a multiple of 4, and its bytes are readable from `row`.
#[inline(always)]
pub unsafe fn load_quarters<S: Simd>(simd: S, row: *const u8, span: impl Span) -> S::I32 {
    let mut whole = [0u8; MAX_LANES];
    // SAFETY: the caller guarantees the bytes of the span; the buffer has all lanes.
    unsafe {
        let from = row.add(span.at() / 4);
        let count = span.part().unwrap_or(S::LANES);
        for (byte, codes) in whole.as_chunks_mut::<4>().0.iter_mut().take(count.div_ceil(4)).enumerate() {
            let stored = u32::from(from.add(byte).read());
            *codes = ((stored | stored << 6 | stored << 12 | stored << 18) & 0x0303_0303).to_le_bytes();
        }
        simd.load_u8(whole.as_ptr())
    }
}

/// Stores the low 16 bits of each lane.
/// # Safety
/// The 16-bit elements of the span are writable from `row`, which need not be aligned.
#[inline(always)]
pub unsafe fn store_u16<S: Simd>(simd: S, row: *mut u8, span: impl Span, value: S::I32) {
    let mut lanes = [0f32; MAX_LANES];
    // SAFETY: the buffer has space for all lanes; the caller guarantees the elements of the span.
    unsafe {
        simd.store(lanes.as_mut_ptr(), simd.bitcast_f32(value));
        let to = row.cast::<u16>().add(span.at());
        for (lane, bits) in lanes.iter().take(span.part().unwrap_or(S::LANES)).enumerate() {
            to.add(lane).write_unaligned(bits.to_bits() as u16);
        }
    }
}

/// Loads unsigned 16-bit values; lanes past a tail are 0.
/// # Safety
/// The 16-bit elements of the span are readable from `row`, which need not be aligned.
#[inline(always)]
pub unsafe fn load_u16<S: Simd>(simd: S, row: *const u8, span: impl Span) -> S::I32 {
    let mut lanes = [0f32; MAX_LANES];
    // SAFETY: the caller guarantees the elements of the span; the buffer has all lanes.
    unsafe {
        let from = row.cast::<u16>().add(span.at());
        for (lane, bits) in lanes.iter_mut().take(span.part().unwrap_or(S::LANES)).enumerate() {
            *bits = f32::from_bits(u32::from(from.add(lane).read_unaligned()));
        }
        simd.to_bits(simd.load(lanes.as_ptr()))
    }
}

/// Stores the low four bits of each lane, low nibble first; for an odd count the last high nibble is 0.
/// # Safety
/// The span starts at an even index, and its bytes are writable from `row`.
#[inline(always)]
pub unsafe fn store_nibbles<S: Simd>(simd: S, row: *mut u8, span: impl Span, value: S::I32) {
    // SAFETY: the caller guarantees the bytes of the span; a tail goes through a buffer of a full vector.
    unsafe {
        let to = row.add(span.at() / 2);
        match span.part() {
            None => simd.store_nibbles(to, value),
            Some(count) => {
                let mut whole = [0u8; MAX_LANES / 2];
                simd.store_nibbles(whole.as_mut_ptr(), value);
                if count % 2 == 1 {
                    whole[count / 2] &= 15;
                }
                std::ptr::copy_nonoverlapping(whole.as_ptr(), to, count.div_ceil(2));
            }
        }
    }
}

/// Loads unsigned 4-bit values, low nibble first.
/// # Safety
/// The span starts at an even index, and its bytes are readable from `row`.
#[inline(always)]
pub unsafe fn load_nibbles<S: Simd>(simd: S, row: *const u8, span: impl Span) -> S::I32 {
    // SAFETY: the caller guarantees the bytes of the span; a tail goes through a buffer of a full vector.
    unsafe {
        let from = row.add(span.at() / 2);
        match span.part() {
            None => simd.load_nibbles(from),
            Some(count) => {
                let mut whole = [0u8; MAX_LANES / 2];
                std::ptr::copy_nonoverlapping(from, whole.as_mut_ptr(), count.div_ceil(2));
                simd.load_nibbles(whole.as_ptr())
            }
        }
    }
}

/// A float type that is known only at run time. In memory-bound loops one branch per vector is cheaper than
/// monomorphizing every loop for every type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FloatKind {
    /// f32.
    F32,
    /// f16.
    F16,
    /// bf16.
    BF16,
}

impl FloatKind {
    /// Converts a dtype; `None` if it is not one of these.
    pub fn of(dtype: DType) -> Option<FloatKind> {
        match dtype {
            DType::F32 => Some(FloatKind::F32),
            DType::F16 => Some(FloatKind::F16),
            DType::BF16 => Some(FloatKind::BF16),
            _ => None,
        }
    }

    /// Size of an element in bytes.
    #[inline(always)]
    pub fn size(self) -> usize {
        if self == FloatKind::F32 { 4 } else { 2 }
    }

    /// As [`Float::load`].
    /// # Safety
    /// The elements of the span are readable from `row`, and of this type.
    #[inline(always)]
    pub unsafe fn load<S: Simd>(self, simd: S, row: *const u8, span: impl Span) -> S::F32 {
        // SAFETY: the caller guarantees the elements of the span.
        unsafe {
            match self {
                FloatKind::F32 => f32::load(simd, row.cast(), span),
                FloatKind::F16 => f16::load(simd, row.cast(), span),
                FloatKind::BF16 => bf16::load(simd, row.cast(), span),
            }
        }
    }

    /// As [`Float::store`].
    /// # Safety
    /// The elements of the span are writable from `row`, and of this type.
    #[inline(always)]
    pub unsafe fn store<S: Simd>(self, simd: S, row: *mut u8, span: impl Span, value: S::F32) {
        // SAFETY: the caller guarantees the elements of the span.
        unsafe {
            match self {
                FloatKind::F32 => f32::store(simd, row.cast(), span, value),
                FloatKind::F16 => f16::store(simd, row.cast(), span, value),
                FloatKind::BF16 => bf16::store(simd, row.cast(), span, value),
            }
        }
    }

    /// [`Float::stream`] if `stream`, otherwise [`Float::store`].
    /// # Safety
    /// The elements of the span are writable from `row`, and of this type; to stream, full vectors are
    /// aligned.
    #[inline(always)]
    pub unsafe fn put<S: Simd>(self, simd: S, row: *mut u8, span: impl Span, value: S::F32, stream: bool) {
        // SAFETY: the caller guarantees the elements of the span.
        unsafe {
            match (self, stream) {
                (_, false) => self.store(simd, row, span, value),
                (FloatKind::F32, true) => f32::stream(simd, row.cast(), span, value),
                (FloatKind::F16, true) => f16::stream(simd, row.cast(), span, value),
                (FloatKind::BF16, true) => bf16::stream(simd, row.cast(), span, value),
            }
        }
    }

    /// Reads one element.
    /// # Safety
    /// The element is readable at `index` from `row`, and of this type.
    pub unsafe fn get(self, row: *const u8, index: usize) -> f32 {
        // SAFETY: the caller guarantees the element.
        unsafe {
            match self {
                FloatKind::F32 => row.cast::<f32>().add(index).read(),
                FloatKind::F16 => row.cast::<f16>().add(index).read().to_f32(),
                FloatKind::BF16 => row.cast::<bf16>().add(index).read().to_f32(),
            }
        }
    }

    /// Writes one element, rounded to nearest even.
    /// # Safety
    /// The element is writable at `index` from `row`, and of this type.
    pub unsafe fn set(self, row: *mut u8, index: usize, value: f32) {
        // SAFETY: the caller guarantees the element.
        unsafe {
            match self {
                FloatKind::F32 => row.cast::<f32>().add(index).write(value),
                FloatKind::F16 => row.cast::<f16>().add(index).write(f16::from_f32(value)),
                FloatKind::BF16 => row.cast::<bf16>().add(index).write(bf16::from_f32(value)),
            }
        }
    }
}
