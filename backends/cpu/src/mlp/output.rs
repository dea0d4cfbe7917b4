//! The end of a linear layer: sums become outputs with bias, activation and rounding.

use std::ops::Range;

use lz_core::{KernelError, TensorMut, TensorView};

use super::activation::{Activation, WithActivation};
use crate::activation::Gate;
use crate::gemm::dots::recompute_with_optional_bias;
use crate::rows::{Rows, RowsMut};
use crate::simd::{Float, Simd, vectors};

/// The output of a linear layer, its bias and its activation.
pub(super) struct Output<'a, W> {
    pub bias: Option<Rows<'a, W>>,
    pub y: RowsMut<'a, W>,
    pub activation: Activation,
}

impl<'a, W: Float> Output<'a, W> {
    /// Of the tensors of a call.
    pub(super) fn new(
        y: &'a mut TensorMut<'_>,
        bias: Option<&'a TensorView<'_>>,
        activation: impl Into<Activation>,
    ) -> Result<Output<'a, W>, KernelError> {
        let bias = bias.map(Rows::new).transpose()?;
        Ok(Output { bias, y: RowsMut::new(y)?, activation: activation.into() })
    }

    /// The bias of some columns.
    pub(super) fn bias(&self, columns: Range<usize>) -> Option<&[W]> {
        self.bias.as_ref().map(|bias| &bias.row(0)[columns])
    }

    /// Adds the bias, applies the activation, rounds and writes some columns of a row. Sums that are not finite are computed again by
    /// `exact`, which has the index of the column.
    #[inline(always)]
    pub(super) fn write<S: Simd>(
        &self,
        s: S,
        row: usize,
        columns: Range<usize>,
        sums: &mut [f32],
        exact: impl Fn(usize) -> f64,
    ) {
        let sums = &mut sums[..columns.len()];
        let bias = self.bias(columns.clone());
        let bias = recompute_with_optional_bias(s, sums, bias, |index| exact(columns.start + index));
        self.store(s, row, columns, sums, bias);
    }

    /// As [`Output::write`], for sums that are not computed again. `bias` is added first.
    #[inline(always)]
    pub(super) fn store<S: Simd>(
        &self,
        s: S,
        row: usize,
        columns: Range<usize>,
        sums: &[f32],
        bias: Option<&[W]>,
    ) {
        // SAFETY: tasks write disjoint rows or columns, and these columns are inside the row.
        let to = unsafe { self.y.part(row, columns) };
        self.activation.with(Epilogue { s, sums, bias, to });
    }
}

/// Some columns of a row: bias, activation, conversion.
struct Epilogue<'w, S, W> {
    s: S,
    sums: &'w [f32],
    bias: Option<&'w [W]>,
    to: &'w mut [W],
}

impl<S: Simd, W: Float> WithActivation for Epilogue<'_, S, W> {
    #[inline(never)]
    fn run(self, activation: impl Gate) {
        let Epilogue { s, sums, bias, to } = self;
        let columns = to.len().min(sums.len());
        s.vectorize(|| {
            vectors!(S, columns, |span| {
                // SAFETY: sums, bias and outputs have this many elements.
                unsafe {
                    let mut value = <f32 as Float>::load(s, sums.as_ptr(), span);
                    if let Some(bias) = bias {
                        value = s.add(value, W::load(s, bias.as_ptr(), span));
                    }
                    W::store(s, to.as_mut_ptr(), span, activation.apply(s, [value]));
                }
            });
        });
    }
}
