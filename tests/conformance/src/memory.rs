//! Tensors that own memory in every layout a caller may use: contiguous, transposed, padded, stepped,
//! reversed or expanded, at any aligned address, with guard bytes on both sides and in the gaps.
//!
//! Independent of operations.

use std::cell::UnsafeCell;

use lz_core::DType;
use lz_core::device::Platform;
use lz_core::tensor::{Device, Dims, Indices, Layout, MAX_RANK, TensorMut, TensorView};

use crate::random::Random;

/// Guard bytes before the first and after the last element.
const GUARD: usize = 64;

/// Memory layout of the elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pattern {
    /// Dense row-major.
    Contiguous,
    /// Dense, with permuted dimensions.
    Transposed,
    /// Rows have padding between them.
    Padded,
    /// The last dimension has a stride above 1.
    Stepped,
    /// Some dimensions have a negative stride.
    Reversed,
    /// One dimension has stride 0.
    Expanded,
}

impl Pattern {
    /// Layouts of read-only inputs.
    pub const READ: [Pattern; 6] = [
        Pattern::Contiguous,
        Pattern::Transposed,
        Pattern::Padded,
        Pattern::Stepped,
        Pattern::Reversed,
        Pattern::Expanded,
    ];

    /// Layouts of tensors that are written, or whose values follow a rule.
    pub const WRITTEN: [Pattern; 5] =
        [Pattern::Contiguous, Pattern::Transposed, Pattern::Padded, Pattern::Stepped, Pattern::Reversed];
}

/// A tensor and its memory.
#[derive(Debug)]
pub struct OwnedTensor {
    /// Cells, because a borrowed call writes through pointers derived from shared references.
    buffer: Vec<UnsafeCell<u64>>,
    /// Offset of the 64-byte aligned window in the buffer, in bytes.
    origin: usize,
    /// Size of the window in bytes.
    window: usize,
    /// Offset of index 0 in the window.
    first: usize,
    layout: Layout,
    pattern: Pattern,
    /// An address that replaces the real one, for calls that must be rejected.
    address: Option<usize>,
}

impl OwnedTensor {
    /// Allocates; the sizes must be small, or one of them 0.
    pub fn new(random: &mut Random, shape: &[i64], dtype: DType, pattern: Pattern) -> OwnedTensor {
        let layout = drawn_layout(random, shape, dtype, pattern);
        // Not at a cache line in half of the cases, but always aligned for the dtype.
        let shift = if random.one_in(2) { 0 } else { random.below(64 / dtype.size()) * dtype.size() };
        OwnedTensor::with_layout(layout, pattern, shift)
    }

    /// Contiguous, at the start of a cache line.
    pub fn dense(shape: &[i64], dtype: DType) -> OwnedTensor {
        let layout = drawn_layout(&mut Random::new(0), shape, dtype, Pattern::Contiguous);
        OwnedTensor::with_layout(layout, Pattern::Contiguous, 0)
    }

    fn with_layout(layout: Layout, pattern: Pattern, shift: usize) -> OwnedTensor {
        let size = layout.dtype.size();
        let (lowest, highest) = layout.reach().unwrap_or((0, -1));
        let elements = usize::try_from(highest - lowest + 1).unwrap_or(0);
        let window = GUARD + shift + elements * size + GUARD;
        let first = GUARD + shift + lowest.unsigned_abs() as usize * size;
        let first = if elements == 0 { GUARD + shift } else { first };
        let (buffer, origin) = allocate(window);
        OwnedTensor { buffer, origin, window, first, layout, pattern, address: None }
    }

    /// Memory layout of its elements.
    pub fn pattern(&self) -> Pattern {
        self.pattern
    }

    /// Shape, strides, dtype and device.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The whole window, including guards and gaps.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the window is inside the buffer, which is initialized.
        unsafe { std::slice::from_raw_parts(self.buffer.as_ptr().cast::<u8>().add(self.origin), self.window) }
    }

    /// The whole window, mutable.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and the borrow is exclusive.
        unsafe {
            std::slice::from_raw_parts_mut(
                self.buffer.as_mut_ptr().cast::<u8>().add(self.origin),
                self.window,
            )
        }
    }

    fn pointer(&self) -> *mut u8 {
        match self.address {
            Some(address) => std::ptr::without_provenance_mut(address),
            None => self.buffer.as_ptr().cast::<u8>().cast_mut().wrapping_add(self.origin + self.first),
        }
    }

    /// As a read-only argument.
    pub fn view(&self) -> TensorView<'_> {
        // SAFETY: the window was allocated for the layout. A changed layout or address is unsound, or not on
        // the host, and rejected before anything is read.
        unsafe { TensorView::from_raw(self.pointer(), self.layout) }
    }

    /// As an argument that is written.
    pub fn view_mut(&mut self) -> TensorMut<'_> {
        // SAFETY: as in `view`, and the borrow is exclusive.
        unsafe { TensorMut::from_raw(self.pointer(), self.layout) }
    }

    /// Marks the memory as device memory. The host then never reads it.
    pub fn put_on_device(&mut self, index: u16) {
        self.layout.device = Device { platform: Platform::Cuda, index };
    }

    /// Changes the metadata; the result must be unsound, or rejected for another reason before it is read.
    pub fn relabel(&mut self, change: impl FnOnce(&mut Layout)) {
        change(&mut self.layout);
    }

    /// Replaces the address; the tensor must then be rejected.
    pub fn readdress(&mut self, address: usize) {
        self.address = Some(address);
    }

    /// The address of index 0.
    pub fn address(&self) -> usize {
        self.pointer() as usize
    }

    /// Whether everything that validation may read is inside the memory: unsound, empty and device tensors
    /// are never read.
    pub fn is_backed(&self) -> bool {
        let view = self.view();
        if !view.is_sound() || !self.layout.device.is_host() {
            return true;
        }
        let Some((start, end)) = view.address_range() else { return self.layout.shape.contains(&0) };
        let window = self.bytes().as_ptr() as u128;
        start >= window && end <= window + self.window as u128
    }

    /// A device tensor without memory: validation accepts it, nothing can read it.
    pub fn described(shape: &[i64], dtype: DType) -> Option<OwnedTensor> {
        let mut layout = Layout::contiguous(shape, dtype).ok()?;
        layout.device = Device { platform: Platform::Cuda, index: 0 };
        let (buffer, origin) = allocate(0);
        let address = Some(1 << 20);
        Some(OwnedTensor {
            buffer,
            origin,
            window: 0,
            first: 0,
            layout,
            pattern: Pattern::Contiguous,
            address,
        })
    }

    /// The first byte outside all elements that changed since `before`.
    pub fn stray_write(&self, before: &[u8]) -> Option<usize> {
        let now = self.bytes();
        if now == before {
            return None;
        }
        let mut inside = vec![false; self.window];
        let size = self.layout.dtype.size();
        for index in Indices::new(&self.layout.shape) {
            let offset = self.layout.offset(&index).unwrap_or(0) * size as isize;
            let start = self.first.wrapping_add_signed(offset);
            if let Some(bytes) = inside.get_mut(start..start + size) {
                bytes.fill(true);
            }
        }
        (0..self.window).find(|&index| !inside[index] && now[index] != before[index])
    }
}

impl Clone for OwnedTensor {
    fn clone(&self) -> OwnedTensor {
        let (buffer, origin) = allocate(self.window);
        let mut copy = OwnedTensor { buffer, origin, ..*self };
        copy.bytes_mut().copy_from_slice(self.bytes());
        copy
    }
}

fn allocate(window: usize) -> (Vec<UnsafeCell<u64>>, usize) {
    // Zeroed by the allocator, because tests of large tensors would otherwise take minutes in an unoptimized build.
    // SAFETY: all bits zero is a valid cell of an integer.
    let buffer = unsafe { Box::<[UnsafeCell<u64>]>::new_zeroed_slice(window.div_ceil(8) + 8).assume_init() }
        .into_vec();
    let origin = (buffer.as_ptr() as usize).next_multiple_of(64) - buffer.as_ptr() as usize;
    (buffer, origin)
}

fn drawn_layout(random: &mut Random, shape: &[i64], dtype: DType, pattern: Pattern) -> Layout {
    let shape = Dims::new(shape).unwrap_or(Dims::empty());
    let strides = strides(random, &shape, pattern);
    Layout { shape, strides, dtype, device: Device::HOST }
}

fn strides(random: &mut Random, shape: &Dims, pattern: Pattern) -> Dims {
    let rank = shape.len();
    let mut order: Vec<usize> = (0..rank).collect();
    if pattern == Pattern::Transposed {
        for index in (1..rank).rev() {
            order.swap(index, random.below(index + 1));
        }
        if order.is_sorted() && rank >= 2 {
            order.swap(rank - 2, rank - 1);
        }
    }
    let mut values = [1i64; MAX_RANK];
    let mut next = if pattern == Pattern::Stepped { 2 } else { 1 };
    for (index, &dimension) in order.iter().enumerate().rev() {
        values[dimension] = next;
        next = next.saturating_mul(shape[dimension].max(1));
        if pattern == Pattern::Padded && index + 1 == rank {
            next = next.saturating_add(random.between(1, 3));
        }
    }
    match pattern {
        Pattern::Reversed => {
            let reversed = random.below(rank.max(1));
            for (dimension, stride) in values.iter_mut().enumerate().take(rank) {
                if dimension == reversed || random.one_in(3) {
                    *stride = -*stride;
                }
            }
        }
        Pattern::Expanded => {
            if let Some(stride) = values.get_mut(random.below(rank.max(1))) {
                *stride = 0;
            }
        }
        _ => {}
    }
    Dims::new(&values[..rank]).unwrap_or(Dims::empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dense_tensors_start_at_a_cache_line() {
        for dtype in [DType::F32, DType::BF16, DType::I8] {
            for elements in [1, 64, 1000, 1 << 20] {
                let tensor = OwnedTensor::dense(&[elements], dtype);
                assert!(tensor.pointer().addr().is_multiple_of(64), "{elements} of {dtype}");
                assert!(tensor.clone().pointer().addr().is_multiple_of(64), "{elements} of {dtype}");
            }
        }
    }
}
