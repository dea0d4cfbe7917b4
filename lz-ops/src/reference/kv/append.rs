//! `kv.append`, plainly: token after token, each into its slot.

use lz_core::KernelError;
use lz_core::tensor::Indices;

use crate::{KvAppendCall, KvAppendLayout, KvAppendOut};

/// Runs it.
pub fn run(call: &KvAppendCall<'_>, mut out: KvAppendOut<'_>) -> Result<(), KernelError> {
    let page_size = call.axes.page_size;
    // Row-major order goes through the tokens in their order, so that of two tokens with one slot the later one stays.
    for index in Indices::new(call.k.shape()) {
        let [token, head, feature] = *index else { continue };
        let slot = call.slots.int_at(&[token]);
        if slot < 0 {
            continue;
        }
        let (page, place) = (slot / page_size, slot % page_size);
        let target = match call.layout {
            KvAppendLayout::Nhd => [page, place, head, feature],
            KvAppendLayout::Hnd => [page, head, place, feature],
        };
        out.k_cache.set(&target, call.k.at(&index));
        out.v_cache.set(&target, call.v.at(&index));
    }
    Ok(())
}
