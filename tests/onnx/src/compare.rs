//! Whether a result is what the suite expects: the suite's own tolerances for ordinary floats, equality for all else.

use crate::tensor::{DataType, NamedTensor};
use std::fmt;

/// How a result differs from what is expected.
#[derive(Clone, Debug, PartialEq)]
pub enum Difference {
    /// Another element type.
    Type {
        /// What is expected.
        expected: DataType,
        /// What was found.
        found: DataType,
    },
    /// Another shape.
    Shape {
        /// What is expected.
        expected: Vec<usize>,
        /// What was found.
        found: Vec<usize>,
    },
    /// Other values.
    Values {
        /// How many elements differ.
        count: usize,
        /// How many there are.
        elements: usize,
        /// The place of the first that differs, in row-major order.
        place: usize,
        /// What is expected there.
        expected: f64,
        /// What was found there.
        found: f64,
    },
    /// The type has no numbers to compare.
    NotNumbers,
}

/// Relative and absolute tolerance for a type; nothing where values must be equal.
fn tolerance(data_type: DataType) -> Option<(f64, f64)> {
    match data_type {
        DataType::Float | DataType::Float16 | DataType::Double => Some((1e-3, 1e-7)),
        DataType::Bfloat16 => Some((2f64.powi(-6), 1e-7)),
        _ => None,
    }
}

/// Compares as numbers, so one NaN is like another and both zeros are alike: the suite itself answers either zero where a
/// format has two.
pub fn compare(expected: &NamedTensor, found: &NamedTensor) -> Result<(), Difference> {
    if expected.data_type != found.data_type {
        return Err(Difference::Type { expected: expected.data_type, found: found.data_type });
    }
    if expected.shape != found.shape {
        return Err(Difference::Shape { expected: expected.shape.clone(), found: found.shape.clone() });
    }
    let (Some(wanted), Some(given)) = (expected.to_f64(), found.to_f64()) else {
        return Err(Difference::NotNumbers);
    };
    let tolerance = tolerance(expected.data_type);
    let mut differing = wanted
        .iter()
        .zip(&given)
        .enumerate()
        .filter(|(_, (wanted, given))| !agrees(**wanted, **given, tolerance));
    let Some((place, (&expected, &found))) = differing.next() else { return Ok(()) };
    Err(Difference::Values { count: 1 + differing.count(), elements: wanted.len(), place, expected, found })
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
            Self::Values { count, elements, place, expected, found } => write!(
                formatter,
                "{count} of {elements} elements differ; element {place} is {found}, not {expected}"
            ),
            Self::NotNumbers => write!(formatter, "the type has no numbers to compare"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::TensorData;

    fn floats(values: &[f32]) -> NamedTensor {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let data = TensorData::Bytes(bytes);
        NamedTensor { name: String::new(), data_type: DataType::Float, shape: vec![values.len()], data }
    }

    fn codes(data_type: DataType, values: &[u8]) -> NamedTensor {
        let data = TensorData::Bytes(values.to_vec());
        NamedTensor { name: String::new(), data_type, shape: vec![values.len()], data }
    }

    #[test]
    fn floats_may_be_near_and_codes_may_not() {
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
