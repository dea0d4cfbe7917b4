//! Reference of `rope.append`: each pair of features is rotated in f64 and rounded; then token after token is written into its slot.

use lz_core::KernelError;
use lz_core::tensor::{Indices, Tensor, TensorView};

use crate::{RopeAppendCall, RopeAppendLayout, RopeAppendOut};

/// Runs the operation.
pub fn run(call: &RopeAppendCall<'_>, mut out: RopeAppendOut<'_>) -> Result<(), KernelError> {
    let page_size = call.axes.page_size;
    for index in Indices::new(call.q.shape()) {
        let [token, head, feature] = *index else { continue };
        out.output.set(&index, rotated(call, &call.q, token, head, feature));
    }
    // One key, rounded to the dtype of k before it is rounded to that of the cache.
    let mut key =
        Tensor::zeros(&[1], call.k.dtype()).map_err(|error| KernelError::failed(error.to_string()))?;
    for index in Indices::new(call.k.shape()) {
        let [token, head, feature] = *index else { continue };
        let slot = call.slots.int_at(&[token]);
        if slot < 0 {
            continue;
        }
        let (page, slot_in_page) = (slot / page_size, slot % page_size);
        let target = match call.layout {
            RopeAppendLayout::Nhd => [page, slot_in_page, head, feature],
            RopeAppendLayout::Hnd => [page, head, slot_in_page, feature],
        };
        key.view_mut().set(&[0], rotated(call, &call.k, token, head, feature));
        out.k_cache.set(&target, key.view().at(&[0]));
        out.v_cache.set(&target, call.v.at(&index));
    }
    Ok(())
}

/// One feature of a head of a token, rotated by the angle of its position and frequency.
fn rotated(call: &RopeAppendCall<'_>, x: &TensorView<'_>, token: i64, head: i64, feature: i64) -> f64 {
    let half = call.axes.half_rotary;
    let value = x.at(&[token, head, feature]);
    if feature >= 2 * half {
        return value;
    }
    // The frequency of the feature, whether it is the second of its pair, and the distance of the other one.
    let (frequency, second, step) = if call.interleaved {
        (feature / 2, feature % 2 == 1, 1)
    } else {
        (feature % half, feature >= half, half)
    };
    let other = x.at(&[token, head, if second { feature - step } else { feature + step }]);
    let position = call.positions.int_at(&[token]);
    let (cos, sin) = (call.cos.at(&[position, frequency]), call.sin.at(&[position, frequency]));
    if second { value * cos + other * sin } else { value * cos - other * sin }
}
