//! Steps of the fast check. Each returns `None` where the call is invalid, so that a generated check is a list of `?`.

use lz_schema::DType;

use crate::check::fast;
use crate::tensor::{Device, Dims, TensorMut, TensorView};

/// A tensor argument: required or optional, read or written.
pub trait Input {
    /// The tensor, if the caller passed one.
    fn given(&self) -> Option<&TensorView<'_>>;
}

impl Input for TensorView<'_> {
    #[inline(always)]
    fn given(&self) -> Option<&TensorView<'_>> {
        Some(self)
    }
}

impl Input for TensorMut<'_> {
    #[inline(always)]
    fn given(&self) -> Option<&TensorView<'_>> {
        Some(self.view())
    }
}

impl<T: Input> Input for Option<T> {
    #[inline(always)]
    fn given(&self) -> Option<&TensorView<'_>> {
        self.as_ref().and_then(T::given)
    }
}

impl<T: Input> Input for &T {
    #[inline(always)]
    fn given(&self) -> Option<&TensorView<'_>> {
        T::given(self)
    }
}

/// `Some` if the condition is true.
#[inline(always)]
pub fn holds(condition: bool) -> Option<()> {
    if condition { Some(()) } else { None }
}

/// Two axes have one size: binds one that is unbound, or compares.
#[inline(always)]
pub fn same_size(left: &mut i64, right: &mut i64) -> Option<()> {
    if *left == fast::UNBOUND {
        *left = *right;
    }
    holds(fast::bind(right, *left))
}

/// The words of a context without those at these positions, which ascend.
#[inline(always)]
pub fn without<const ALL: usize, const REMOVED: usize, const KEPT: usize>(
    words: [u64; ALL],
    removed: [usize; REMOVED],
) -> [u64; KEPT] {
    const { assert!(ALL == KEPT + REMOVED) };
    std::array::from_fn(|position| {
        words[removed.iter().fold(position, |at, gap| at + usize::from(at >= *gap))]
    })
}

/// The view, if its metadata is sound.
#[inline(always)]
pub fn sound<'v, 't>(view: &'v TensorView<'t>) -> Option<&'v TensorView<'t>> {
    if view.is_sound() { Some(view) } else { None }
}

/// A bit for the number of each dtype.
pub const fn dtype_set(dtypes: &[DType]) -> u32 {
    let mut set = 0;
    let mut index = 0;
    while index < dtypes.len() {
        set |= 1 << dtypes[index] as u32;
        index += 1;
    }
    set
}

/// Binds a dtype variable to the view's dtype, or compares the two; `allowed` is a [`dtype_set`].
#[inline(always)]
pub fn bind_dtype(variable: &mut u8, allowed: u32, view: &TensorView<'_>) -> Option<()> {
    holds(fast::bind_dtype(variable, allowed, view.dtype()))
}

/// The view has this dtype.
#[inline(always)]
pub fn has_dtype(view: &TensorView<'_>, dtype: DType) -> Option<()> {
    holds(view.dtype() as u8 == dtype as u8)
}

/// The view has at most this many dimensions.
#[inline(always)]
pub fn rank_at_most(view: &TensorView<'_>, rank: usize) -> Option<()> {
    holds(view.rank() <= rank)
}

/// The view broadcasts to these sizes.
#[inline(always)]
pub fn broadcasts(view: &TensorView<'_>, sizes: &[i64]) -> Option<()> {
    holds(fast::broadcasts(view.shape(), sizes))
}

/// The number of elements of a pack; 0 if no input has bound it. `None` if the number overflows.
#[inline(always)]
pub fn pack_size(pack: &Dims, bound: bool) -> Option<i64> {
    if bound { pack.product() } else { Some(0) }
}

/// The last dimension is dense.
#[inline(always)]
pub fn last_dense(input: &impl Input) -> Option<()> {
    holds(input.given().is_none_or(TensorView::last_is_dense))
}

/// The tensor is dense and row-major.
#[inline(always)]
pub fn contiguous(input: &impl Input) -> Option<()> {
    holds(input.given().is_none_or(TensorView::is_contiguous))
}

/// The tensor is in host memory.
#[inline(always)]
pub fn on_host(input: &impl Input) -> Option<()> {
    holds(input.given().is_none_or(|view| view.device().is_host()))
}

/// The tensor is on the device of the others; the first tensor determines it.
#[inline(always)]
pub fn on_same_device(device: &mut Option<Device>, input: &impl Input) -> Option<()> {
    holds(input.given().is_none_or(|view| fast::same_device(device, view)))
}

/// The tensor can be written element by element: no two indices share memory.
#[inline(always)]
pub fn writes_are_disjoint(written: &impl Input) -> Option<()> {
    holds(written.given().is_none_or(|view| !view.layout().overlaps_itself()))
}

/// Two tensors share no memory.
#[inline(always)]
#[must_use]
pub fn disjoint(written: &impl Input, other: &impl Input) -> bool {
    match (written.given(), other.given()) {
        (Some(written), Some(other)) => fast::disjoint(written, other),
        _ => true,
    }
}

/// An output shares no memory with an input and, where the schema requires it, is on the same device.
#[inline(always)]
#[must_use]
pub fn output_is_disjoint(output: &TensorMut<'_>, input: &impl Input, same_device: bool) -> bool {
    input.given().is_none_or(|view| fast::output_is_disjoint(output, view, same_device))
}

/// The stride class of a tensor; 0 if it is absent.
#[inline(always)]
pub fn stride_class(input: &impl Input) -> u64 {
    input.given().map_or(0, TensorView::stride_class)
}

/// The number of a dtype; 0 if it is unknown.
#[inline(always)]
pub fn dtype_bits(dtype: Option<DType>) -> u64 {
    dtype.map_or(0, |dtype| dtype as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_axes_are_bound_by_either() {
        let same = |mut left: i64, mut right: i64| same_size(&mut left, &mut right).map(|()| (left, right));
        assert_eq!(same(4, 4), Some((4, 4)));
        assert_eq!(same(4, fast::UNBOUND), Some((4, 4)));
        assert_eq!(same(fast::UNBOUND, 4), Some((4, 4)));
        assert_eq!(same(fast::UNBOUND, fast::UNBOUND), Some((fast::UNBOUND, fast::UNBOUND)));
        assert_eq!(same(4, 2), None);
    }

    #[test]
    fn removed_words_leave_the_order() {
        assert_eq!(without([0, 1, 2, 3, 4], [2]), [0, 1, 3, 4]);
        assert_eq!(without([0, 1, 2, 3, 4], [0, 1, 4]), [2, 3]);
        assert_eq!(without([0, 1], []), [0, 1]);
    }
}
