//! Comparison of results by a schema's `equivalence`.

use lz_schema::DType;
use lz_schema::model::{Equivalence, Operation};

use crate::element::largest_finite;
use crate::tensor::{Indices, TensorView};

/// rtol and atol for a dtype; `None` means exact equality.
pub fn tolerance(operation: &Operation, dtype: DType) -> Option<(f64, f64)> {
    match &operation.equivalence {
        Equivalence::Close(entries) => {
            entries.iter().find(|(entry, _, _)| *entry == dtype).map(|(_, rtol, atol)| (*rtol, *atol))
        }
        // All kernels of this repository draw the same random numbers, so they agree exactly, even where
        // others are compared by distribution.
        Equivalence::Exact | Equivalence::Distribution(_) => None,
    }
}

/// The first difference of two tensors, as text.
pub fn difference(
    operation: &Operation,
    found: &TensorView<'_>,
    expected: &TensorView<'_>,
) -> Option<String> {
    if found.shape() != expected.shape() || found.dtype() != expected.dtype() {
        return Some(format!(
            "is {} {:?}, but should be {} {:?}",
            found.dtype(),
            found.shape(),
            expected.dtype(),
            expected.shape()
        ));
    }
    let dtype = found.dtype();
    let tolerance = tolerance(operation, dtype);
    Indices::new(found.shape()).find_map(|index| {
        let same = if dtype.is_float() && dtype != DType::F4E2M1x2 {
            floats_agree(found.at(&index), expected.at(&index), tolerance, dtype)
        } else {
            let (found, expected) = (raw(found, &index), raw(expected, &index));
            found == expected || tolerance.is_some_and(|tolerance| integers_agree(found, expected, tolerance))
        };
        (!same)
            .then(|| format!("{index:?} is {:?}, but should be {:?}", found.at(&index), expected.at(&index)))
    })
}

/// Whether two floats are equal within a tolerance: NaN equals NaN, an infinity equals itself and values that
/// round to it.
pub fn floats_agree(found: f64, expected: f64, tolerance: Option<(f64, f64)>, dtype: DType) -> bool {
    if found.is_nan() || expected.is_nan() {
        return found.is_nan() && expected.is_nan();
    }
    let Some((rtol, atol)) = tolerance else {
        return found == expected && found.is_sign_negative() == expected.is_sign_negative();
    };
    if found == expected {
        return true;
    }
    if found.is_infinite() || expected.is_infinite() {
        let edge = largest_finite(dtype) * (1.0 - rtol);
        return found.signum() == expected.signum() && found.abs() >= edge && expected.abs() >= edge;
    }
    (found - expected).abs() <= atol + rtol * expected.abs()
}

/// Whether two integers are equal within a tolerance. Codes of quantized results differ by a step where the value before rounding is
/// close to a tie.
fn integers_agree(found: i64, expected: i64, (rtol, atol): (f64, f64)) -> bool {
    found.abs_diff(expected) as f64 <= atol + rtol * expected.unsigned_abs() as f64
}

/// The bits of an element that is not a plain float: both values of a packed pair count.
fn raw(view: &TensorView<'_>, index: &[i64]) -> i64 {
    if view.dtype() != DType::F4E2M1x2 {
        return view.int_at(index);
    }
    let mut layout = *view.layout();
    layout.dtype = DType::U8;
    // SAFETY: the same memory and element size, reinterpreted as bytes.
    unsafe { TensorView::from_raw(view.as_ptr(), layout) }.int_at(index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tolerances_follow_the_schema_and_special_values_equal_only_themselves() {
        let close = Some((1e-3, 1e-6));
        assert!(floats_agree(1.0005, 1.0, close, DType::F32));
        assert!(!floats_agree(1.01, 1.0, close, DType::F32));
        assert!(floats_agree(f64::NAN, f64::NAN, close, DType::F32));
        assert!(!floats_agree(f64::NAN, 1.0, close, DType::F32));
        assert!(!floats_agree(f64::INFINITY, f64::NEG_INFINITY, close, DType::F32));
        assert!(floats_agree(f64::INFINITY, 65504.0, close, DType::F16));
        assert!(!floats_agree(f64::INFINITY, 60000.0, close, DType::F16));
        assert!(!floats_agree(0.0, -0.0, None, DType::F32));
        assert!(integers_agree(-127, -126, (0.0, 1.0)));
        assert!(!integers_agree(-127, -125, (0.0, 1.0)));
        assert!(!integers_agree(i64::MIN, i64::MAX, (0.0, 1.0)));
    }
}
