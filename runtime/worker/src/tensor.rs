//! Tensors in the arena, which are passed to the worker without a copy.

use std::sync::Arc;

use lz_core::tensor::Layout;
use lz_core::{DType, TensorMut, TensorView};

use crate::arena::{Arena, ArenaTensor};

/// A tensor in the arena.
#[derive(Debug)]
pub struct SharedTensor {
    arena: Arc<Arena>,
    arena_tensor: ArenaTensor,
    bytes: usize,
}

impl SharedTensor {
    pub(crate) fn new(arena: Arc<Arena>, shape: &[i64], dtype: DType) -> Option<SharedTensor> {
        let layout = Layout::contiguous(shape, dtype).ok()?;
        let bytes = usize::try_from(layout.elements()?.checked_mul(dtype.size() as i64)?).ok()?;
        let offset = arena.take(bytes)?;
        Some(SharedTensor { arena, arena_tensor: ArenaTensor { offset: offset as u64, layout }, bytes })
    }

    /// A read-only view.
    pub fn view(&self) -> TensorView<'_> {
        let data = self.arena.memory().at(self.arena_tensor.offset as usize, self.bytes);
        let data = data.unwrap_or(std::ptr::null_mut());
        // SAFETY: our block, which is released only on drop.
        unsafe { TensorView::from_raw(data, self.arena_tensor.layout) }
    }

    /// A mutable view.
    pub fn view_mut(&mut self) -> TensorMut<'_> {
        let data = self.arena.memory().at(self.arena_tensor.offset as usize, self.bytes);
        let data = data.unwrap_or(std::ptr::null_mut());
        // SAFETY: as above, and the borrow is exclusive.
        unsafe { TensorMut::from_raw(data, self.arena_tensor.layout) }
    }
}

impl Drop for SharedTensor {
    fn drop(&mut self) {
        self.arena.release(self.arena_tensor.offset as usize, self.bytes);
    }
}
