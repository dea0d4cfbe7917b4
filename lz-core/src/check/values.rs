//! Checks that read data: index, range, indptr and partition tensors, in host memory, and for `debug` in device memory.
//!
//! The `*_ok` functions are the fast checks of generated code; the `*_problem` functions report where and what.

use super::device_values::on_host;
pub use super::device_values::{
    DeviceReader, check_device_values, is_checked, set_device_reader, with_host_copy,
};
use crate::reason::{Reason, ReasonCode};
use crate::score_mod::ScoreMod;
use crate::tensor::{Dims, Indices, TensorView};

/// The sizes of a tensor with every broadcast dimension (stride 0) reduced to 1, so that a view of a few bytes cannot take unbounded
/// time. Indices into these sizes are valid indices into the tensor.
fn distinct(view: &TensorView<'_>) -> Dims {
    let mut sizes = Dims::empty();
    for (size, stride) in view.shape().iter().zip(view.strides()) {
        let fits = sizes.push(if *stride == 0 { (*size).min(1) } else { *size });
        debug_assert!(fits, "a view has no more dimensions than fit");
    }
    sizes
}

fn first(view: &TensorView<'_>, mut wrong: impl FnMut(i64) -> bool) -> Option<(Vec<i64>, i64)> {
    Indices::new(&distinct(view)).find_map(|index| {
        let value = view.int_at(&index);
        wrong(value).then(|| (index.to_vec(), value))
    })
}

fn all(view: &TensorView<'_>, right: impl Fn(i64) -> bool) -> bool {
    if let Some(values) = view.as_slice::<i32>() {
        return values.iter().all(|&value| right(i64::from(value)));
    }
    if let Some(values) = view.as_slice::<i64>() {
        return values.iter().all(|&value| right(value));
    }
    Indices::new(&distinct(view)).all(|index| right(view.int_at(&index)))
}

/// `0 <= v < end` for all.
#[inline]
pub fn index_ok(view: &TensorView<'_>, end: i64) -> bool {
    on_host(view, |view| all(view, |value| value >= 0 && value < end)).unwrap_or(true)
}

/// Where an index is out of range.
pub fn index_problem(view: &TensorView<'_>, end: i64) -> Option<Reason> {
    let (index, value) = first(view, |value| value < 0 || value >= end)?;
    Some(
        Reason::new(ReasonCode::IndexOutOfRange)
            .required(format!("0 <= index < {end}"))
            .found(format!("{index:?} = {value}"))
            .message(format!("{index:?} is {value}, but must be at least 0 and below {end}")),
    )
}

/// The type of a bound: `i64` for integer tensors, `f64` for float ones, so that 1.5 is not truncated to 1.
pub trait Bound: Copy + PartialOrd + std::fmt::Display {
    /// The element at an index.
    fn at(view: &TensorView<'_>, index: &[i64]) -> Self;

    /// Whether all elements satisfy a predicate.
    fn all(view: &TensorView<'_>, right: impl Fn(Self) -> bool) -> bool;
}

impl Bound for i64 {
    #[inline]
    fn at(view: &TensorView<'_>, index: &[i64]) -> i64 {
        view.int_at(index)
    }

    #[inline]
    fn all(view: &TensorView<'_>, right: impl Fn(i64) -> bool) -> bool {
        all(view, right)
    }
}

impl Bound for f64 {
    #[inline]
    fn at(view: &TensorView<'_>, index: &[i64]) -> f64 {
        view.at(index)
    }

    #[inline]
    fn all(view: &TensorView<'_>, right: impl Fn(f64) -> bool) -> bool {
        if let Some(values) = view.as_slice::<f32>() {
            return values.iter().all(|&value| right(f64::from(value)));
        }
        Indices::new(&distinct(view)).all(|index| right(view.at(&index)))
    }
}

/// `low <= v <= high` for all; a NaN is in no range.
#[inline]
pub fn range_ok<B: Bound>(view: &TensorView<'_>, low: B, high: B) -> bool {
    on_host(view, |view| B::all(view, |value| (low..=high).contains(&value))).unwrap_or(true)
}

/// Where a value is out of range.
pub fn range_problem<B: Bound>(view: &TensorView<'_>, low: B, high: B) -> Option<Reason> {
    let (index, value) = Indices::new(&distinct(view)).find_map(|index| {
        let value = B::at(view, &index);
        (!(low..=high).contains(&value)).then(|| (index.to_vec(), value))
    })?;
    Some(
        Reason::new(ReasonCode::ValueOutOfRange)
            .required(format!("{low} <= value <= {high}"))
            .found(format!("{index:?} = {value}"))
            .message(format!("{index:?} is {value}, but must be between {low} and {high}")),
    )
}

/// Starts at 0, is non-decreasing, ends at `total`.
#[inline]
pub fn indptr_ok(view: &TensorView<'_>, total: i64) -> bool {
    on_host(view, |view| indptr_problem(view, total).is_none()).unwrap_or(true)
}

/// Starts at 0, is non-decreasing, ends at most at `total`.
#[inline]
pub fn indptr_within_ok(view: &TensorView<'_>, total: i64) -> bool {
    on_host(view, |view| indptr_within_problem(view, total).is_none()).unwrap_or(true)
}

/// Where an indptr is wrong.
pub fn indptr_problem(view: &TensorView<'_>, total: i64) -> Option<Reason> {
    indptr_ending(view, total, true)
}

/// Where an indptr into a part of a buffer is wrong.
pub fn indptr_within_problem(view: &TensorView<'_>, total: i64) -> Option<Reason> {
    indptr_ending(view, total, false)
}

/// Where an indptr is wrong that ends exactly at `total`, or at most there.
fn indptr_ending(view: &TensorView<'_>, total: i64, exactly: bool) -> Option<Reason> {
    let most = if exactly { "" } else { "at most " };
    let reason = |found: String, message: String| {
        Some(
            Reason::new(ReasonCode::IndptrInvalid)
                .required(format!("0 first, non-decreasing, {most}{total} last"))
                .found(found)
                .message(message),
        )
    };
    let count = view.shape().first().copied().unwrap_or(0);
    if count == 0 {
        return reason("no entries".to_owned(), " has no entries, but needs at least one".to_owned());
    }
    let mut previous = view.int_at(&[0]);
    if previous != 0 {
        return reason(format!("[0] = {previous}"), format!("[0] is {previous}, but must be 0"));
    }
    for position in 1..distinct(view).first().copied().unwrap_or(0) {
        let value = view.int_at(&[position]);
        if value < previous {
            return reason(
                format!("[{position}] = {value} after {previous}"),
                format!("[{position}] is {value}, but must not be less than [{}] = {previous}", position - 1),
            );
        }
        previous = value;
    }
    let is_wrong = if exactly { previous != total } else { previous > total };
    if is_wrong {
        return reason(
            format!("[{}] = {previous}", count - 1),
            format!("[{}] is {previous}, but must be {most}{total}", count - 1),
        );
    }
    None
}

/// Non-negative; sums along the last dimension to `total`.
#[inline]
pub fn partition_ok(view: &TensorView<'_>, total: i64) -> bool {
    on_host(view, |view| partition_problem(view, total).is_none()).unwrap_or(true)
}

/// Where a partition is wrong.
pub fn partition_problem(view: &TensorView<'_>, total: i64) -> Option<Reason> {
    let &parts = view.shape().last()?;
    let sizes = distinct(view);
    let (&distinct_parts, rows) = sizes.split_last()?;
    for row in Indices::new(rows) {
        let mut index = row;
        if !index.push(0) {
            return None;
        }
        let mut sum = 0i64;
        for part in 0..distinct_parts {
            let mut element = row;
            if !element.push(part) {
                return None;
            }
            let value = view.int_at(&element);
            if value < 0 {
                return Some(
                    Reason::new(ReasonCode::PartitionInvalid)
                        .required("sizes of 0 or more")
                        .found(format!("{element:?} = {value}"))
                        .message(format!("{element:?} is {value}, but a size must not be negative")),
                );
            }
            sum = sum.saturating_add(value);
        }
        if distinct_parts != parts {
            sum = sum.saturating_mul(parts);
        }
        if sum != total {
            return Some(
                Reason::new(ReasonCode::PartitionInvalid)
                    .required(format!("a sum of {total}"))
                    .found(format!("{sum}"))
                    .message(format!(" row {row:?} sums to {sum}, but must sum to {total}")),
            );
        }
    }
    None
}

/// The text of a score expression with this many parameters.
#[inline]
pub fn score_mod_ok(view: &TensorView<'_>, parameters: i64) -> bool {
    on_host(view, |view| ScoreMod::of(view, parameters).is_ok()).unwrap_or(true)
}

/// Where a score expression is wrong.
pub fn score_mod_problem(view: &TensorView<'_>, parameters: i64) -> Option<Reason> {
    ScoreMod::of(view, parameters).err()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Layout;

    #[test]
    fn score_expressions_are_checked() {
        let view = |text: &'static str| {
            TensorView::from_slice(text.as_bytes(), &[text.len() as i64]).expect("a text")
        };
        assert!(score_mod_ok(&view("score + p0"), 1) && score_mod_problem(&view("score + p0"), 1).is_none());
        assert!(!score_mod_ok(&view("score + p1"), 1));
        let problem = score_mod_problem(&view("score + p1"), 1).expect("there is only p0");
        assert!(problem.to_string().contains("`p1`"), "{problem}");
    }

    #[test]
    fn float_ranges_are_compared_as_floats() {
        let view = |values: &'static [f32]| TensorView::from_slice(values, &[3]).expect("three values");
        assert!(range_ok(&view(&[0.0, 0.5, 1.0]), 0.0, 1.0));
        for wrong in [&[0.0, 1.5, 1.0], &[0.0, -0.5, 1.0], &[0.0, f32::NAN, 1.0]] {
            assert!(!range_ok(&view(wrong), 0.0, 1.0));
            let reason = range_problem(&view(wrong), 0.0, 1.0).expect("the second value is outside");
            assert!(reason.to_string().contains("[1] is"), "{reason}");
        }
    }

    /// One element broadcast to 2^40 entries: reading each entry would take hours.
    fn broadcast(value: &'static [i32; 1], rank: usize) -> TensorView<'static> {
        let mut layout =
            Layout::contiguous(&vec![1i64 << (40 / rank); rank], lz_schema::DType::I32).expect("a layout");
        layout.strides = Dims::empty();
        (0..rank).for_each(|_| assert!(layout.strides.push(0)));
        TensorView::from_slice_with(value, 0, layout).expect("every index leads to the one element")
    }

    #[test]
    fn broadcast_elements_are_read_once() {
        for rank in [1, 2, 4] {
            let view = broadcast(&[7], rank);
            assert!(index_ok(&view, 8) && index_problem(&view, 8).is_none());
            let reason = index_problem(&view, 7).expect("7 is no index into 7");
            assert!(reason.to_string().contains(&format!("{:?} is 7", vec![0; rank])), "{reason}");
            assert!(range_ok(&view, 7, 7) && !range_ok(&view, 0, 6));
            assert!(range_problem(&view, 0, 6).is_some());
        }
        let line = broadcast(&[0], 1);
        assert!(indptr_ok(&line, 0) && !indptr_ok(&line, 1));
        assert!(!indptr_ok(&broadcast(&[3], 1), 3), "it does not begin with 0");
        assert!(indptr_within_ok(&line, 0) && indptr_within_ok(&line, 1), "the rest of a buffer is not used");
        let parts = TensorView::from_slice(&[0i32, 2, 5], &[3]).expect("three values");
        assert!(indptr_within_ok(&parts, 5) && indptr_within_ok(&parts, 9) && !indptr_within_ok(&parts, 4));
        let parts = broadcast(&[2], 2);
        assert!(partition_ok(&parts, 2 << 20) && !partition_ok(&parts, 2));
        assert!(!partition_ok(&broadcast(&[-1], 2), -(1 << 20)));
    }

    #[test]
    fn integer_ranges_are_checked() {
        let view = TensorView::from_slice(&[0i32, 4, 9], &[3]).expect("three values");
        assert!(range_ok(&view, 0, 9) && range_problem(&view, 0, 9).is_none());
        assert!(!range_ok(&view, 0, 8) && range_problem(&view, 0, 8).is_some());
        assert!(index_ok(&view, 10) && !index_ok(&view, 9));
    }
}
