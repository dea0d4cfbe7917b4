//! Tensors that lie in the memory that both processes see: they cross without a copy.

use std::sync::Arc;

use lz_core::tensor::Layout;
use lz_core::{DType, TensorMut, TensorView};

use crate::arena::Arena;
use crate::message::Placed;

/// A tensor in the shared memory.
#[derive(Debug)]
pub struct SharedTensor {
    arena: Arc<Arena>,
    placed: Placed,
    bytes: usize,
}

impl SharedTensor {
    pub(crate) fn new(arena: Arc<Arena>, shape: &[i64], dtype: DType) -> Option<SharedTensor> {
        let layout = Layout::contiguous(shape, dtype).ok()?;
        let bytes = usize::try_from(layout.elements()?.checked_mul(dtype.size() as i64)?).ok()?;
        let offset = arena.take(bytes)?;
        Some(SharedTensor { arena, placed: Placed { offset: offset as u64, layout }, bytes })
    }

    /// To read.
    pub fn view(&self) -> TensorView<'_> {
        let data = self.arena.memory().at(self.placed.offset as usize, self.bytes);
        let data = data.unwrap_or(std::ptr::null_mut());
        // SAFETY: a block of our own, which lives as long as we do.
        unsafe { TensorView::from_raw(data, self.placed.layout) }
    }

    /// To write.
    pub fn view_mut(&mut self) -> TensorMut<'_> {
        let data = self.arena.memory().at(self.placed.offset as usize, self.bytes);
        let data = data.unwrap_or(std::ptr::null_mut());
        // SAFETY: as above, and the borrow is exclusive.
        unsafe { TensorMut::from_raw(data, self.placed.layout) }
    }
}

impl Drop for SharedTensor {
    fn drop(&mut self) {
        self.arena.give_back(self.placed.offset as usize, self.bytes);
    }
}
