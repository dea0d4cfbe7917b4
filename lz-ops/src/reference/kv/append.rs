//! Reference of `kv.append`: token after token, each into its slot.

use lz_core::KernelError;
use lz_core::tensor::Indices;

use crate::{KvAppendCall, KvAppendLayout, KvAppendOut};

/// Runs the operation.
pub fn run(call: &KvAppendCall<'_>, mut out: KvAppendOut<'_>) -> Result<(), KernelError> {
    let page_size = call.axes.page_size;
    // Row-major order visits tokens in order, so that of two tokens with the same slot the later one wins.
    for index in Indices::new(call.k.shape()) {
        let [token, head, feature] = *index else { continue };
        let slot = call.slots.int_at(&[token]);
        if slot < 0 {
            continue;
        }
        let (page, slot_in_page) = (slot / page_size, slot % page_size);
        let target = match call.layout {
            KvAppendLayout::Nhd => [page, slot_in_page, head, feature],
            KvAppendLayout::Hnd => [page, head, slot_in_page, feature],
        };
        out.k_cache.set(&target, call.k.at(&index));
        out.v_cache.set(&target, call.v.at(&index));
    }
    Ok(())
}
