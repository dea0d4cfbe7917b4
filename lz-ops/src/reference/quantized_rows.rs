//! Rows that are rounded to a dtype and then quantized to int8 or FP8, as `quantize` does: shared by the norms with
//! quantized results.

use lz_core::tensor::{Dims, Tensor, TensorMut, TensorView};
use lz_core::{DType, KernelError};

use crate::reference::index::with;

/// Which elements share a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scaling {
    /// All rows.
    Tensor,
    /// A row.
    Row,
    /// This many adjacent elements of a row.
    Block(i64),
}

/// Where the codes and scales of a call are.
pub struct Quantized<'r, 'a, 'o> {
    /// Groups of elements.
    pub scaling: Scaling,
    /// Given scales.
    pub scale: Option<TensorView<'a>>,
    /// The codes.
    pub codes: &'r mut TensorMut<'o>,
    /// Computed scales.
    pub scale_out: Option<&'r mut TensorMut<'o>>,
}

impl Quantized<'_, '_, '_> {
    /// Quantizes one row, after each value is rounded to `dtype`.
    pub fn row(&mut self, row: Dims, values: &[f64], dtype: DType) -> Result<(), KernelError> {
        let mut rounded = Tensor::zeros(&[values.len() as i64], dtype)
            .map_err(|error| KernelError::failed(error.to_string()))?;
        let mut view = rounded.view_mut();
        for (i, value) in values.iter().enumerate() {
            view.set(&[i as i64], *value);
        }
        let value = |i: i64| rounded.view().at(&[i]) as f32;
        let hidden = values.len() as i64;
        let block = if let Scaling::Block(size) = self.scaling {
            size.clamp(1, hidden.max(1))
        } else {
            hidden.max(1)
        };
        for start in (0..hidden).step_by(block as usize) {
            let group = match self.scaling {
                Scaling::Tensor => Dims::empty(),
                Scaling::Row => row,
                Scaling::Block(_) => with(row, start / block),
            };
            let end = hidden.min(start + block);
            let scale = match (&self.scale, &mut self.scale_out) {
                (Some(given), _) => given.at(&group) as f32,
                (None, Some(computed)) => {
                    let largest = (start..end).map(|i| value(i).abs()).fold(0.0, largest);
                    let scale = scale_of(self.codes.dtype(), largest);
                    computed.set(&group, f64::from(scale));
                    scale
                }
                (None, None) => {
                    return Err(KernelError::failed(
                        "the call has neither `scale` nor an output for `scale_out`",
                    ));
                }
            };
            for i in start..end {
                let quotient = value(i) / scale;
                let index = with(row, i);
                if self.codes.dtype() == DType::I8 {
                    // The cast saturates and turns NaN to 0; the store saturates to eight bits.
                    self.codes.set_int(&index, quotient.round_ties_even() as i64);
                } else {
                    // Stores to both FP8 formats round to nearest even, saturate and keep NaN.
                    self.codes.set(&index, f64::from(quotient));
                }
            }
        }
        Ok(())
    }
}

/// The larger value; NaN if either is NaN.
fn largest(a: f32, b: f32) -> f32 {
    if a.is_nan() || b <= a { a } else { b }
}

/// The scale of a group with this absolute maximum.
fn scale_of(codes: DType, largest: f32) -> f32 {
    if largest == 0.0 {
        return 1.0;
    }
    if largest.is_nan() {
        return f32::NAN;
    }
    let divisor = match codes {
        DType::I8 => 127.0,
        DType::F8E4M3 => 448.0,
        _ => 57344.0,
    };
    (largest / divisor).max(f32::from_bits(1))
}
