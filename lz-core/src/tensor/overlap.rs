//! Memory overlap of two tensors.

use super::view::TensorView;

/// Whether a write through one tensor may change another.
///
/// Exact for tensors with disjoint address ranges, and for interleaved tensors with the same largest stride (columns of one matrix);
/// otherwise intersecting address ranges count as overlap.
#[inline]
pub fn may_overlap(a: &TensorView<'_>, b: &TensorView<'_>) -> bool {
    if a.device() != b.device() {
        return false;
    }
    // Nearly all tensors are dense: compare two intervals.
    let ((a_start, a_end), (b_start, b_end)) = (a.dense_range(), b.dense_range());
    if a_start != a_end && b_start != b_end {
        return a_start < b_end && b_start < a_end;
    }
    reaches_overlap(a, b)
}

/// The case of tensors with gaps.
#[inline(never)]
fn reaches_overlap(a: &TensorView<'_>, b: &TensorView<'_>) -> bool {
    let (Some((a_start, a_end)), Some((b_start, b_end))) = (a.address_range(), b.address_range()) else {
        return false;
    };
    if a_end <= b_start || b_end <= a_start {
        return false;
    }
    let (Some((pitch_a, width_a)), Some((pitch_b, width_b))) = (pitch(a), pitch(b)) else { return true };
    if pitch_a != pitch_b || width_a > pitch_a || width_b > pitch_b {
        return true;
    }
    // Both are bands of the same pitch: compare the bands modulo the pitch.
    let distance = (b_start as i128 - a_start as i128).rem_euclid(pitch_a as i128) as u128;
    !(distance >= width_a && distance + width_b <= pitch_a)
}

/// The largest stride in bytes and the extent of the other dimensions, for layouts with positive strides.
fn pitch(view: &TensorView<'_>) -> Option<(u128, u128)> {
    let size = view.dtype().size() as u128;
    let dims = || view.shape().iter().zip(view.strides()).filter(|(size, _)| **size > 1);
    let largest = dims().map(|(_, stride)| *stride).max()?;
    if dims().any(|(_, stride)| *stride <= 0) {
        return None;
    }
    let mut width = size;
    let mut seen = false;
    for (&count, &stride) in dims() {
        if stride == largest && !seen {
            seen = true;
            continue;
        }
        width = width.checked_add((count as u128 - 1).checked_mul(stride as u128)?.checked_mul(size)?)?;
    }
    Some((largest as u128 * size, width))
}
