//! `RMSNormalization` and `LayerNormalization`: the dimensions from `axis` on are flattened.

use super::arguments::Arguments;
use super::tensors::{float_as, named, sizes};
use super::{MapError, MappedCall, MappedOutput, unsupported};
use crate::tensor::NamedTensor;
use lz_core::Tensor;
use lz_ops::{NormLayer, NormRms};

/// Shared by both.
struct Rows {
    x: Tensor,
    /// Elements of a row.
    hidden: i64,
    /// The shape of the node's first output.
    shape: Vec<usize>,
    /// Shape of a statistic: every dimension from `axis` on is 1.
    reduced: Vec<usize>,
    eps: f32,
}

impl Rows {
    fn read(arguments: &Arguments<'_>) -> Result<Self, MapError> {
        let input = arguments.input(0)?;
        let shape = input.shape.clone();
        let axis = arguments.axis(-1, shape.len())?;
        // Type of intermediate results; ours are exact, which is within the tolerance of f32.
        if arguments.int("stash_type", 1)? != 1 {
            return Err(unsupported("intermediate results of another type than f32"));
        }
        let hidden: i64 = shape.iter().skip(axis).map(|&size| size as i64).product();
        let mut rows = sizes(&shape);
        rows.truncate(axis);
        rows.push(hidden);
        let reduced =
            shape.iter().enumerate().map(|(dim, &size)| if dim < axis { size } else { 1 }).collect();
        let eps = arguments.float("epsilon")?.unwrap_or(1e-5);
        Ok(Self { x: float_as(input, &rows)?, hidden, shape, reduced, eps })
    }

    /// A weight or bias: one value per element of a row.
    fn features(&self, named: &NamedTensor) -> Result<Tensor, MapError> {
        if named.element_count() as i64 != self.hidden {
            return Err(unsupported(format!("`{}` is broadcast over a row", named.name)));
        }
        float_as(named, &[self.hidden])
    }
}

/// `RMSNormalization` maps to `norm.rms`.
pub fn rms_normalization(arguments: &Arguments<'_>) -> Result<Vec<MappedCall>, MapError> {
    arguments.only(&["axis", "epsilon", "stash_type"], 2)?;
    let rows = Rows::read(arguments)?;
    let weight = rows.features(arguments.input(1)?)?;
    Ok(vec![MappedCall::new("norm.rms", move |engine| {
        let call = NormRms::new(rows.x.view()).weight(weight.view()).eps(rows.eps);
        let result = lz_ops::norm_rms(engine, call)?;
        Ok(vec![MappedOutput { output: 0, tensor: named(&result.output, &rows.shape)? }])
    })])
}

/// `LayerNormalization` maps to `norm.layer`, including its statistics.
pub fn layer_normalization(arguments: &Arguments<'_>) -> Result<Vec<MappedCall>, MapError> {
    arguments.only(&["axis", "epsilon", "stash_type"], 3)?;
    let rows = Rows::read(arguments)?;
    let weight = rows.features(arguments.input(1)?)?;
    let bias = arguments.optional(2).map(|bias| rows.features(bias)).transpose()?;
    let return_stats = arguments.has_output(1) || arguments.has_output(2);
    Ok(vec![MappedCall::new("norm.layer", move |engine| {
        let mut call =
            NormLayer::new(rows.x.view()).weight(weight.view()).eps(rows.eps).return_stats(return_stats);
        call.bias = bias.as_ref().map(Tensor::view);
        let result = lz_ops::norm_layer(engine, call)?;
        let mut produced = vec![MappedOutput { output: 0, tensor: named(&result.output, &rows.shape)? }];
        for (output, statistic) in [(1, result.mean), (2, result.inv_std)] {
            if let Some(statistic) = statistic {
                produced.push(MappedOutput { output, tensor: named(&statistic, &rows.reduced)? });
            }
        }
        Ok(produced)
    })])
}
