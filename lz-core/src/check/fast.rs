//! Fast yes-or-no validation in small pieces that generated code combines. No allocation, no messages.

use lz_schema::DType;

use crate::tensor::{Device, Dims, TensorMut, TensorView, may_overlap};

/// An axis that no input has bound yet.
pub const UNBOUND: i64 = -1;

/// Binds an axis, or compares.
#[inline(always)]
#[must_use]
pub fn bind(axis: &mut i64, size: i64) -> bool {
    if *axis == UNBOUND {
        *axis = size;
        true
    } else {
        *axis == size
    }
}

/// Binds a pack, or compares; `bound` is whether it was bound before.
#[inline(always)]
#[must_use]
pub fn bind_pack(pack: &mut Dims, bound: &mut bool, sizes: &[i64]) -> bool {
    if *bound {
        **pack == *sizes
    } else {
        *bound = pack.become_copy(sizes);
        *bound
    }
}

/// Binds a dtype variable (0 if unbound, else the number of the dtype), or compares; `allowed` is a bit set of numbers.
#[inline(always)]
#[must_use]
pub fn bind_dtype(variable: &mut u8, allowed: u32, dtype: DType) -> bool {
    let number = dtype as u8;
    if *variable == 0 {
        *variable = number;
        allowed >> number & 1 == 1
    } else {
        *variable == number
    }
}

/// Whether a shape broadcasts to full sizes: aligned at the right, each dimension full or 1.
#[inline]
#[must_use]
pub fn broadcasts(shape: &[i64], sizes: &[i64]) -> bool {
    shape.len() <= sizes.len()
        && shape.iter().rev().zip(sizes.iter().rev()).all(|(&size, &full)| size == full || size == 1)
}

/// Whether a tensor is on the same device as the others; the first one determines the device.
#[inline(always)]
#[must_use]
pub fn same_device(device: &mut Option<Device>, view: &TensorView<'_>) -> bool {
    match *device {
        None => {
            *device = Some(view.device());
            true
        }
        Some(first) => first == view.device(),
    }
}

/// Whether the next size equals `size`; advances past it.
#[inline(always)]
#[must_use]
pub fn next_is(rest: &mut &[i64], size: Option<i64>) -> bool {
    match rest.split_first() {
        Some((&first, behind)) if Some(first) == size => {
            *rest = behind;
            true
        }
        _ => false,
    }
}

/// Whether the next sizes equal `sizes`; advances past them.
#[inline(always)]
#[must_use]
pub fn next_are(rest: &mut &[i64], sizes: &[i64]) -> bool {
    sizes.iter().all(|&size| next_is(rest, Some(size)))
}

/// Whether an output tensor has this dtype and non-overlapping elements.
#[inline(always)]
#[must_use]
pub fn output_fits(out: &TensorMut<'_>, dtype: DType) -> bool {
    out.is_sound() && out.dtype() == dtype && (out.is_contiguous() || !out.layout().overlaps_itself())
}

/// Whether a written tensor does not overlap another one.
#[inline(always)]
#[must_use]
pub fn disjoint(written: &TensorView<'_>, other: &TensorView<'_>) -> bool {
    !may_overlap(written, other)
}

/// Whether an output does not overlap an input and, if the schema requires it, is on the same device.
#[inline(always)]
#[must_use]
pub fn output_is_disjoint(output: &TensorMut<'_>, input: &TensorView<'_>, same_device: bool) -> bool {
    (!same_device || output.device() == input.device()) && disjoint(output.view(), input)
}
