//! An owned host buffer.

use std::alloc::{Layout as AllocLayout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use lz_schema::DType;

use super::layout::Layout;
use super::view::{TensorMut, TensorView};
use crate::element::Element;
use crate::reason::{Reason, ReasonCode};

/// Alignment of owned buffers: a cache line, which is also the width of the widest vector register.
pub const BUFFER_ALIGNMENT: usize = 64;

/// An owned, dense, zero-initialized host tensor.
#[derive(Debug)]
pub struct Tensor {
    data: NonNull<u8>,
    allocation: Option<AllocLayout>,
    layout: Layout,
}

// SAFETY: the buffer is owned and plain bytes.
unsafe impl Send for Tensor {}
// SAFETY: shared references only read.
unsafe impl Sync for Tensor {}

impl Tensor {
    /// Allocates zeros. Memory that the system does not have is an error: the size of a tensor comes from the caller.
    pub fn zeros(shape: &[i64], dtype: DType) -> Result<Tensor, Reason> {
        let layout = Layout::contiguous(shape, dtype)?;
        let bytes = layout.elements().unwrap_or(0) as usize * dtype.size();
        if bytes == 0 {
            let data = NonNull::new(std::ptr::without_provenance_mut(BUFFER_ALIGNMENT))
                .unwrap_or(NonNull::dangling());
            return Ok(Tensor { data, allocation: None, layout });
        }
        let Ok(allocation) = AllocLayout::from_size_align(bytes, BUFFER_ALIGNMENT) else {
            return Err(Reason::new(ReasonCode::SizeOverflow).found(format!("{bytes} bytes")));
        };
        // SAFETY: the size is not zero.
        let Some(data) = NonNull::new(unsafe { alloc_zeroed(allocation) }) else {
            let text = format!("{bytes} bytes for shape {shape:?} of {}", dtype.long_name());
            let message = format!("out of memory: {text} cannot be allocated");
            return Err(Reason::new(ReasonCode::OutOfMemory).required(text).message(message));
        };
        Ok(Tensor { data, allocation: Some(allocation), layout })
    }

    /// Copies a slice.
    pub fn from_slice<T: Element>(data: &[T], shape: &[i64]) -> Result<Tensor, Reason> {
        TensorView::from_slice(data, shape)?;
        let mut tensor = Tensor::zeros(shape, T::DTYPE)?;
        if let Some(target) = tensor.view_mut().as_slice_mut::<T>() {
            target.copy_from_slice(&data[..target.len()]);
        }
        Ok(tensor)
    }

    /// Takes ownership of a vector's memory, if its length is that of the shape.
    pub fn from_vec<T: Element>(data: Vec<T>, shape: &[i64]) -> Result<Tensor, Reason> {
        TensorView::from_slice(&data, shape)?;
        let layout = Layout::contiguous(shape, T::DTYPE)?;
        let data = data.into_boxed_slice();
        let size = size_of_val::<[T]>(&data);
        if size == 0 || layout.elements() != Some(data.len() as i64) {
            return Tensor::from_slice(&data, shape);
        }
        let Ok(allocation) = AllocLayout::from_size_align(size, align_of::<T>()) else {
            return Err(Reason::new(ReasonCode::SizeOverflow).found(format!("{size} bytes")));
        };
        let data = NonNull::from(Box::leak(data)).cast::<u8>();
        Ok(Tensor { data, allocation: Some(allocation), layout })
    }

    /// Borrows it.
    #[inline]
    pub fn view(&self) -> TensorView<'_> {
        // SAFETY: the buffer is owned, initialized and has the size of its dense layout.
        unsafe { TensorView::from_raw(self.data.as_ptr(), self.layout) }
    }

    /// Borrows it for writing.
    #[inline]
    pub fn view_mut(&mut self) -> TensorMut<'_> {
        // SAFETY: as above, and borrowed exclusively.
        unsafe { TensorMut::from_raw(self.data.as_ptr(), self.layout) }
    }

    /// Sizes.
    pub fn shape(&self) -> &[i64] {
        &self.layout.shape
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.layout.dtype
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        let length = self.allocation.map_or(0, |allocation| allocation.size());
        // SAFETY: the allocation has that many initialized bytes (none without an allocation).
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), length) }
    }

    /// Its bytes, writable.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let length = self.allocation.map_or(0, |allocation| allocation.size());
        // SAFETY: as in `bytes`, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr(), length) }
    }
}

impl Clone for Tensor {
    fn clone(&self) -> Tensor {
        // These sizes were allocated before, so they are sound; an allocation failure aborts as usual.
        match Tensor::zeros(&self.layout.shape, self.layout.dtype) {
            Ok(mut copy) => {
                copy.bytes_mut().copy_from_slice(self.bytes());
                copy
            }
            Err(reason) => unreachable!("an allocated tensor has a sound layout: {reason}"),
        }
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        if let Some(allocation) = self.allocation {
            // SAFETY: allocated with this layout in `zeros`, or by the box whose ownership `from_vec` took; freed once.
            unsafe { dealloc(self.data.as_ptr(), allocation) }
        }
    }
}
