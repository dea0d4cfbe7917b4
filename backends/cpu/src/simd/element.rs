//! Element types that kernels load as f32 lanes, and the places of vectors in a row.

use half::{bf16, f16};
use lz_core::element::Element;

use super::Simd;

/// A place of one vector in a row.
pub trait Span: Copy {
    /// Index of its first element.
    fn at(self) -> usize;
    /// How many elements it covers, if fewer than a vector has lanes.
    fn part(self) -> Option<usize>;
}

/// A whole vector from this index.
#[derive(Debug, Clone, Copy)]
pub struct Whole(pub usize);

/// From this index, so many elements: fewer than a vector has lanes.
#[derive(Debug, Clone, Copy)]
pub struct Part(pub usize, pub usize);

impl Span for Whole {
    #[inline(always)]
    fn at(self) -> usize {
        self.0
    }
    #[inline(always)]
    fn part(self) -> Option<usize> {
        None
    }
}

impl Span for Part {
    #[inline(always)]
    fn at(self) -> usize {
        self.0
    }
    #[inline(always)]
    fn part(self) -> Option<usize> {
        Some(self.1)
    }
}

/// A float that is computed with as f32: converted exactly on load, rounded once to nearest even on store.
pub trait Float: Element + PartialEq {
    /// Loads a vector.
    /// # Safety
    /// The elements of the span are readable from `row`.
    unsafe fn load<S: Simd>(simd: S, row: *const Self, span: impl Span) -> S::F32;

    /// Stores a vector.
    /// # Safety
    /// The elements of the span are writable from `row`.
    unsafe fn store<S: Simd>(simd: S, row: *mut Self, span: impl Span, value: S::F32);

    /// Stores a vector past the caches, where it is a whole one.
    /// # Safety
    /// As [`Float::store`], and a whole vector's address is a multiple of its size in bytes as stored.
    unsafe fn stream<S: Simd>(simd: S, row: *mut Self, span: impl Span, value: S::F32);

    /// One element.
    fn to_f32(self) -> f32;

    /// One element, rounded to nearest even.
    fn from_f32(value: f32) -> Self;
}

impl Float for f32 {
    #[inline(always)]
    unsafe fn load<S: Simd>(simd: S, row: *const f32, span: impl Span) -> S::F32 {
        // SAFETY: the caller vouches for the elements of the span.
        unsafe {
            match span.part() {
                None => simd.load(row.add(span.at())),
                Some(count) => simd.load_part(row.add(span.at()), count),
            }
        }
    }
    #[inline(always)]
    unsafe fn store<S: Simd>(simd: S, row: *mut f32, span: impl Span, value: S::F32) {
        // SAFETY: the caller vouches for the elements of the span.
        unsafe {
            match span.part() {
                None => simd.store(row.add(span.at()), value),
                Some(count) => simd.store_part(row.add(span.at()), value, count),
            }
        }
    }
    #[inline(always)]
    unsafe fn stream<S: Simd>(simd: S, row: *mut f32, span: impl Span, value: S::F32) {
        // SAFETY: the caller vouches for the elements of the span and for the address of whole ones.
        unsafe {
            match span.part() {
                None => simd.stream(row.add(span.at()), value),
                Some(count) => simd.store_part(row.add(span.at()), value, count),
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

/// The largest number of lanes that any instruction set has.
const MOST_LANES: usize = 16;

macro_rules! half_floats {
    ($($half:ty: $load:ident, $store:ident, $stream:ident;)*) => {
        $(impl Float for $half {
            #[inline(always)]
            unsafe fn load<S: Simd>(simd: S, row: *const $half, span: impl Span) -> S::F32 {
                // SAFETY: the caller vouches for the elements of the span; a part goes through a whole vector of its own.
                unsafe {
                    let from = row.add(span.at()).cast::<u16>();
                    match span.part() {
                        None => simd.$load(from),
                        Some(count) => {
                            let mut whole = [0u16; MOST_LANES];
                            std::ptr::copy_nonoverlapping(from, whole.as_mut_ptr(), count);
                            simd.$load(whole.as_ptr())
                        }
                    }
                }
            }
            #[inline(always)]
            unsafe fn store<S: Simd>(simd: S, row: *mut $half, span: impl Span, value: S::F32) {
                // SAFETY: the caller vouches for the elements of the span; a part goes through a whole vector of its own.
                unsafe {
                    let to = row.add(span.at()).cast::<u16>();
                    match span.part() {
                        None => simd.$store(to, value),
                        Some(count) => {
                            let mut whole = [0u16; MOST_LANES];
                            simd.$store(whole.as_mut_ptr(), value);
                            std::ptr::copy_nonoverlapping(whole.as_ptr(), to, count);
                        }
                    }
                }
            }
            #[inline(always)]
            unsafe fn stream<S: Simd>(simd: S, row: *mut $half, span: impl Span, value: S::F32) {
                // SAFETY: the caller vouches for the elements of the span and for the address of whole ones.
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
