//! Whether two results are the same, as a schema's `equivalence` understands it.

use lz_core::DType;
use lz_core::element::largest_finite;
use lz_core::tensor::{Indices, TensorView};
use lz_schema::model::{Equivalence, Operation};

/// rtol and atol for a dtype; `None` means that every element must be equal.
pub fn tolerance(operation: &Operation, dtype: DType) -> Option<(f64, f64)> {
    match &operation.equivalence {
        Equivalence::Close(entries) => {
            entries.iter().find(|(entry, _, _)| *entry == dtype).map(|(_, rtol, atol)| (*rtol, *atol))
        }
        // Kernels of ours draw the same random numbers, so they agree exactly even where others are judged by distribution.
        Equivalence::Exact | Equivalence::Distribution(_) => None,
    }
}

/// The first place where two tensors differ, in words.
pub fn difference(operation: &Operation, found: &TensorView<'_>, wanted: &TensorView<'_>) -> Option<String> {
    if found.shape() != wanted.shape() || found.dtype() != wanted.dtype() {
        return Some(format!(
            "is {} {:?}, but should be {} {:?}",
            found.dtype(),
            found.shape(),
            wanted.dtype(),
            wanted.shape()
        ));
    }
    let dtype = found.dtype();
    let tolerance = tolerance(operation, dtype);
    Indices::new(found.shape()).find_map(|index| {
        let same = if dtype.is_float() && dtype != DType::F4E2M1x2 {
            floats_agree(found.at(&index), wanted.at(&index), tolerance, dtype)
        } else {
            raw(found, &index) == raw(wanted, &index)
        };
        (!same).then(|| format!("{index:?} is {:?}, but should be {:?}", found.at(&index), wanted.at(&index)))
    })
}

/// Whether two floats are the same within a tolerance: NaN agrees with NaN, an infinity with itself and with what rounds to it.
pub fn floats_agree(found: f64, wanted: f64, tolerance: Option<(f64, f64)>, dtype: DType) -> bool {
    if found.is_nan() || wanted.is_nan() {
        return found.is_nan() && wanted.is_nan();
    }
    let Some((rtol, atol)) = tolerance else {
        return found == wanted && found.is_sign_negative() == wanted.is_sign_negative();
    };
    if found == wanted {
        return true;
    }
    if found.is_infinite() || wanted.is_infinite() {
        let edge = largest_finite(dtype) * (1.0 - rtol);
        return found.signum() == wanted.signum() && found.abs() >= edge && wanted.abs() >= edge;
    }
    (found - wanted).abs() <= atol + rtol * wanted.abs()
}

/// The bits of an element that is no plain float: both numbers of a packed pair count.
fn raw(view: &TensorView<'_>, index: &[i64]) -> i64 {
    if view.dtype() != DType::F4E2M1x2 {
        return view.int_at(index);
    }
    let mut layout = *view.layout();
    layout.dtype = DType::U8;
    // SAFETY: the same memory and the same size of element, only read as bytes.
    unsafe { TensorView::from_raw(view.as_ptr(), layout) }.int_at(index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tolerances_are_those_of_the_schema_and_specials_agree_only_with_themselves() {
        let close = Some((1e-3, 1e-6));
        assert!(floats_agree(1.0005, 1.0, close, DType::F32));
        assert!(!floats_agree(1.01, 1.0, close, DType::F32));
        assert!(floats_agree(f64::NAN, f64::NAN, close, DType::F32));
        assert!(!floats_agree(f64::NAN, 1.0, close, DType::F32));
        assert!(!floats_agree(f64::INFINITY, f64::NEG_INFINITY, close, DType::F32));
        assert!(floats_agree(f64::INFINITY, 65504.0, close, DType::F16));
        assert!(!floats_agree(f64::INFINITY, 60000.0, close, DType::F16));
        assert!(!floats_agree(0.0, -0.0, None, DType::F32));
    }
}
