//! Constants in mapped files.

use std::sync::Arc;

use lz_core::TensorView;
use lz_core::tensor::Layout;
use lz_files::MappedFile;

use crate::graph::{ConstantData, SharedMemory};

/// A constant inside a mapped file.
#[derive(Debug)]
struct MappedConstant {
    file: Arc<MappedFile>,
    offset: usize,
    bytes: usize,
    layout: Layout,
}

impl SharedMemory for MappedConstant {
    fn view(&self) -> TensorView<'_> {
        let address = self.file.bytes()[self.offset..].as_ptr();
        // SAFETY: `constant` checked that the elements lie inside the mapping, which lives as long as `self.file`.
        unsafe { TensorView::from_raw(address, self.layout) }
    }

    fn discard(&self) {
        self.file.discard(self.offset..self.offset + self.bytes);
    }
}

/// A view of mapped memory whose elements are `bytes` bytes from `offset` on, in any order; `None` if they are not inside the file, not
/// aligned, or none.
pub fn constant(file: &Arc<MappedFile>, offset: usize, bytes: usize, layout: Layout) -> Option<ConstantData> {
    let size = layout.dtype.size();
    let own = usize::try_from(layout.elements()?).ok()?.checked_mul(size)?;
    let start = file.bytes().get(offset..offset.checked_add(bytes)?)?.as_ptr();
    let fits = own == bytes && bytes > 0 && (start as usize).is_multiple_of(size);
    fits.then(|| ConstantData::Shared(Arc::new(MappedConstant { file: file.clone(), offset, bytes, layout })))
}
