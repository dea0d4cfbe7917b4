//! Compares results with expected outputs: the suite's tolerances for ordinary floats, equality for all other
//! types.

use crate::tensor::{DataType, NamedTensor, ToF64};
use std::fmt;

/// How a result differs from the expected one.
#[derive(Clone, Debug, PartialEq)]
pub enum Difference {
    /// Different element type.
    Type {
        /// Expected.
        expected: DataType,
        /// Found.
        found: DataType,
    },
    /// Different shape.
    Shape {
        /// Expected.
        expected: Vec<usize>,
        /// Found.
        found: Vec<usize>,
    },
    /// Different values.
    Values {
        /// Number of differing elements.
        count: usize,
        /// Number of elements.
        elements: usize,
        /// Index of the first difference, in row-major order.
        index: usize,
        /// Expected value there.
        expected: f64,
        /// Found value there.
        found: f64,
    },
    /// The type is not numeric.
    NotNumeric,
}

/// Relative and absolute tolerance for a type; `None` if values must be equal.
fn tolerance(data_type: DataType) -> Option<(f64, f64)> {
    match data_type {
        DataType::Float | DataType::Float16 | DataType::Double => Some((1e-3, 1e-7)),
        DataType::Bfloat16 => Some((2f64.powi(-6), 1e-7)),
        _ => None,
    }
}

/// Compares numerically: NaN equals NaN, and both zeros are equal, because the suite itself returns either
/// zero.
pub fn compare(expected: &NamedTensor, found: &NamedTensor) -> Result<(), Difference> {
    if expected.data_type != found.data_type {
        return Err(Difference::Type { expected: expected.data_type, found: found.data_type });
    }
    if expected.shape != found.shape {
        return Err(Difference::Shape { expected: expected.shape.clone(), found: found.shape.clone() });
    }
    let (Some(expected_values), Some(found_values)) = (expected.to_f64(), found.to_f64()) else {
        return Err(Difference::NotNumeric);
    };
    let tolerance = tolerance(expected.data_type);
    let mut differing =
        expected_values.iter().zip(&found_values).enumerate().filter(
            |(_, (expected_values, found_values))| !agrees(**expected_values, **found_values, tolerance),
        );
    let Some((index, (&expected, &found))) = differing.next() else { return Ok(()) };
    Err(Difference::Values {
        count: 1 + differing.count(),
        elements: expected_values.len(),
        index,
        expected,
        found,
    })
}

fn agrees(expected: f64, found: f64, tolerance: Option<(f64, f64)>) -> bool {
    if expected.is_nan() || found.is_nan() {
        return expected.is_nan() && found.is_nan();
    }
    match tolerance {
        Some((relative, absolute)) if expected.is_finite() && found.is_finite() => {
            (expected - found).abs() <= absolute + relative * expected.abs()
        }
        _ => expected == found,
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Type { expected, found } => {
                write!(formatter, "the type is {found:?}, not {expected:?}")
            }
            Self::Shape { expected, found } => {
                write!(formatter, "the shape is {found:?}, not {expected:?}")
            }
            Self::Values { count, elements, index, expected, found } => write!(
                formatter,
                "{count} of {elements} elements differ; element {index} is {found}, not {expected}"
            ),
            Self::NotNumeric => write!(formatter, "the type is not numeric"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::TensorData;

    fn floats(values: &[f32]) -> NamedTensor {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let data = TensorData::Bytes(bytes.into());
        NamedTensor { name: String::new(), data_type: DataType::Float, shape: vec![values.len()], data }
    }

    fn codes(data_type: DataType, values: &[u8]) -> NamedTensor {
        let data = TensorData::Bytes(values.to_vec().into());
        NamedTensor { name: String::new(), data_type, shape: vec![values.len()], data }
    }

    #[test]
    fn floats_have_a_tolerance_and_codes_do_not() {
        let check = |expected: &[f32], found: &[f32]| compare(&floats(expected), &floats(found));
        assert_eq!(check(&[1.0, 0.0, -2.0], &[1.0009, 9e-8, -2.001]), Ok(()));
        assert_eq!(check(&[f32::NAN, f32::INFINITY], &[-f32::NAN, f32::INFINITY]), Ok(()));
        let far = check(&[1.0, 1.0, 1.0], &[1.0, 1.002, f32::NAN]).unwrap_err();
        assert_eq!(far.to_string(), "2 of 3 elements differ; element 1 is 1.0019999742507935, not 1");
        assert!(check(&[f32::INFINITY], &[f32::MAX]).is_err());
        assert!(check(&[f32::MAX], &[f32::INFINITY]).is_err());
        assert!(check(&[0.0], &[2e-7]).is_err());
        assert!(check(&[1.0], &[1.0, 1.0]).is_err());

        let e4m3 = DataType::Float8E4M3fn;
        assert_eq!(compare(&codes(e4m3, &[0x7f, 0x80, 0x38]), &codes(e4m3, &[0xff, 0x00, 0x38])), Ok(()));
        assert!(compare(&codes(e4m3, &[0x38]), &codes(e4m3, &[0x39])).is_err());
        assert!(compare(&codes(e4m3, &[0x38]), &codes(DataType::Float8E5M2, &[0x38])).is_err());
    }
}
