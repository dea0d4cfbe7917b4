//! Blocks of elements of any dtype as f32, f64 or i64, in buffers that stay in L1.

use half::{bf16, f16};
use lz_core::DType;
use lz_core::element::{load_f64, load_i64, store_f64, store_i64};

use crate::simd::{Float, FloatKind, Simd, vectors};

/// Elements of a block.
pub(crate) const BLOCK: usize = 256;

/// Memory of a block.
#[repr(align(64))]
pub(crate) struct Buffer<T>(pub [T; BLOCK]);

/// Elements of one dtype at equal distances, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Strided {
    pub start: *mut u8,
    pub stride: isize,
    pub dtype: DType,
}

impl Strided {
    /// The element at an index.
    #[inline(always)]
    pub fn at(self, index: usize) -> *mut u8 {
        self.start.wrapping_offset(self.stride * index as isize)
    }

    /// The elements from an index on.
    #[inline(always)]
    pub fn from(self, index: usize) -> Strided {
        Strided { start: self.at(index), ..self }
    }

    /// Whether neighbors are adjacent in memory.
    #[inline(always)]
    pub fn is_dense(self) -> bool {
        self.stride == self.dtype.size() as isize
    }

    /// The address of dense elements of this type.
    #[inline(always)]
    pub fn dense<T>(self, dtype: DType) -> Option<*mut T> {
        (self.dtype == dtype && self.is_dense()).then_some(self.start.cast())
    }

    /// Loads up to [`BLOCK`] elements of a 16- or 32-bit float type as f32; the result is the buffer or, for dense f32, the memory
    /// itself.
    ///
    /// # Safety
    /// `len <= BLOCK` elements are readable, and their dtype is f32, f16 or bf16.
    #[inline]
    pub unsafe fn load_f32<S: Simd>(self, s: S, len: usize, buffer: &mut Buffer<f32>) -> *const f32 {
        if let Some(direct) = self.dense::<f32>(DType::F32) {
            return direct;
        }
        // SAFETY: the caller guarantees the elements.
        unsafe { self.convert_f32(s, len, buffer) }
    }

    #[inline(never)]
    unsafe fn convert_f32<S: Simd>(self, s: S, len: usize, buffer: &mut Buffer<f32>) -> *const f32 {
        let to = buffer.0.as_mut_ptr();
        // SAFETY: the caller guarantees the elements; the buffer has a whole block.
        unsafe {
            if self.stride == 0 && len > 0 {
                buffer.0[..len].fill(self.one_f32(0));
            } else if self.is_dense() {
                match self.dtype {
                    DType::F16 => widen::<S, f16>(s, self.start.cast(), to, len),
                    _ => widen::<S, bf16>(s, self.start.cast(), to, len),
                }
            } else if self.dtype == DType::F32 {
                for (index, to) in buffer.0[..len].iter_mut().enumerate() {
                    *to = self.at(index).cast::<f32>().read();
                }
            } else {
                for (index, to) in buffer.0[..len].iter_mut().enumerate() {
                    *to = self.one_f32(index);
                }
            }
        }
        buffer.0.as_ptr()
    }

    /// One element as f32.
    ///
    /// # Safety
    /// The element is readable, and its dtype is f32, f16 or bf16.
    #[inline(always)]
    pub unsafe fn one_f32(self, index: usize) -> f32 {
        // SAFETY: the caller guarantees the element.
        unsafe {
            match self.dtype {
                DType::F32 => self.at(index).cast::<f32>().read(),
                DType::F16 => self.at(index).cast::<f16>().read().to_f32(),
                _ => self.at(index).cast::<bf16>().read().to_f32(),
            }
        }
    }

    /// Stores one element, rounded from f32.
    ///
    /// # Safety
    /// The element is writable, and its dtype is f32, f16 or bf16.
    #[inline(always)]
    pub unsafe fn set_f32(self, index: usize, value: f32) {
        // SAFETY: the caller guarantees the element.
        unsafe {
            match self.dtype {
                DType::F32 => self.at(index).cast::<f32>().write(value),
                DType::F16 => self.at(index).cast::<f16>().write(f16::from_f32(value)),
                _ => self.at(index).cast::<bf16>().write(bf16::from_f32(value)),
            }
        }
    }

    /// Stores elements of a 16- or 32-bit float type.
    ///
    /// # Safety
    /// `len` elements are writable and readable at `from`, and their dtype is f32, f16 or bf16.
    #[inline(never)]
    pub unsafe fn store_f32<S: Simd>(self, s: S, from: *const f32, len: usize) {
        // SAFETY: the caller guarantees the elements.
        unsafe {
            match (self.is_dense(), self.dtype) {
                (true, DType::F32) => narrow::<S, f32>(s, from, self.start.cast(), len),
                (true, DType::F16) => narrow::<S, f16>(s, from, self.start.cast(), len),
                (true, _) => narrow::<S, bf16>(s, from, self.start.cast(), len),
                (false, _) => (0..len).for_each(|index| self.set_f32(index, *from.add(index))),
            }
        }
    }

    /// Loads elements of any dtype as f64.
    ///
    /// # Safety
    /// `len <= BLOCK` elements are readable.
    pub unsafe fn load_f64(self, len: usize, buffer: &mut Buffer<f64>) {
        for (index, to) in buffer.0[..len].iter_mut().enumerate() {
            // SAFETY: the caller guarantees the elements.
            *to = unsafe { load_f64(self.dtype, self.at(index)) };
        }
    }

    /// Stores elements of any dtype, rounded from f64.
    ///
    /// # Safety
    /// `len <= BLOCK` elements are writable.
    pub unsafe fn store_f64(self, len: usize, buffer: &Buffer<f64>) {
        for (index, value) in buffer.0[..len].iter().enumerate() {
            // SAFETY: the caller guarantees the elements.
            unsafe { store_f64(self.dtype, self.at(index), *value) };
        }
    }

    /// Loads integers or bools as i64.
    ///
    /// # Safety
    /// `len <= BLOCK` elements are readable.
    pub unsafe fn load_i64(self, len: usize, buffer: &mut Buffer<i64>) {
        let buffer = &mut buffer.0[..len];
        // SAFETY: the caller guarantees the elements.
        unsafe {
            if self.stride == 0 && len > 0 {
                return buffer.fill(load_i64(self.dtype, self.start));
            }
            match self.dtype {
                DType::I64 => self.each::<i64>(buffer, |value| value),
                DType::I32 => self.each::<i32>(buffer, i64::from),
                DType::I16 => self.each::<i16>(buffer, i64::from),
                DType::I8 => self.each::<i8>(buffer, i64::from),
                DType::U8 => self.each::<u8>(buffer, i64::from),
                DType::Bool => self.each::<u8>(buffer, |value| i64::from(value != 0)),
                dtype => {
                    for (index, to) in buffer.iter_mut().enumerate() {
                        *to = load_i64(dtype, self.at(index));
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn each<T: Copy>(self, buffer: &mut [i64], convert: impl Fn(T) -> i64) {
        // SAFETY: the caller guarantees the elements, which are aligned.
        unsafe {
            if self.stride == size_of::<T>() as isize {
                let from = std::slice::from_raw_parts(self.start.cast::<T>().cast_const(), buffer.len());
                for (to, &from) in buffer.iter_mut().zip(from) {
                    *to = convert(from);
                }
            } else {
                for (index, to) in buffer.iter_mut().enumerate() {
                    *to = convert(self.at(index).cast::<T>().read());
                }
            }
        }
    }

    /// Stores integers: the low bits, or for bool whether a value differs from 0.
    ///
    /// # Safety
    /// `len <= BLOCK` elements are writable.
    pub unsafe fn store_i64(self, len: usize, buffer: &Buffer<i64>) {
        let buffer = &buffer.0[..len];
        // SAFETY: the caller guarantees the elements.
        unsafe {
            match self.dtype {
                DType::I64 => self.put::<i64>(buffer, |value| value),
                DType::I32 => self.put::<i32>(buffer, |value| value as i32),
                DType::I16 => self.put::<i16>(buffer, |value| value as i16),
                DType::I8 => self.put::<i8>(buffer, |value| value as i8),
                DType::U8 => self.put::<u8>(buffer, |value| value as u8),
                DType::Bool => self.put::<u8>(buffer, |value| u8::from(value != 0)),
                dtype => {
                    for (index, value) in buffer.iter().enumerate() {
                        store_i64(dtype, self.at(index), *value);
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn put<T: Copy>(self, buffer: &[i64], convert: impl Fn(i64) -> T) {
        // SAFETY: the caller guarantees the elements, which are aligned.
        unsafe {
            if self.stride == size_of::<T>() as isize {
                let to = std::slice::from_raw_parts_mut(self.start.cast::<T>(), buffer.len());
                for (to, &from) in to.iter_mut().zip(buffer) {
                    *to = convert(from);
                }
            } else {
                for (index, &from) in buffer.iter().enumerate() {
                    self.at(index).cast::<T>().write(convert(from));
                }
            }
        }
    }
}

/// Whether elements are computed in f32 lanes.
pub(crate) fn is_lanes(dtype: DType) -> bool {
    FloatKind::of(dtype).is_some()
}

unsafe fn widen<S: Simd, T: Float>(s: S, from: *const T, to: *mut f32, len: usize) {
    s.vectorize(|| {
        vectors!(S, len, |span| {
            // SAFETY: the caller guarantees both.
            unsafe { <f32 as Float>::store(s, to, span, T::load(s, from, span)) };
        });
    });
}

unsafe fn narrow<S: Simd, T: Float>(s: S, from: *const f32, to: *mut T, len: usize) {
    s.vectorize(|| {
        vectors!(S, len, |span| {
            // SAFETY: the caller guarantees both.
            unsafe { T::store(s, to, span, <f32 as Float>::load(s, from, span)) };
        });
    });
}
