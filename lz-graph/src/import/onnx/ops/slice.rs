//! `Slice` and `Split`: views.

use super::super::op::{Handler, Op, Outputs, one};
use crate::dim::Dim;
use crate::error::GraphError;
use crate::graph::NodeId;

pub const OPERATORS: &[(&str, Handler)] = &[("Slice", slice), ("Split", split)];

/// Starts, ends, axes and steps.
type SliceArguments = (Vec<Dim>, Vec<Dim>, Vec<i64>, Vec<i64>);

/// The arguments of `Slice`: attributes before opset 10, inputs afterwards.
pub fn slice_arguments(op: &mut Op<'_>) -> Result<SliceArguments, GraphError> {
    let (starts, ends, axes, steps) = if op.opset < 10 {
        let list = |values: Option<Vec<i64>>| values.unwrap_or_default().into_iter().map(Dim::from).collect();
        (list(op.list("starts")?), list(op.list("ends")?), op.list("axes")?, None)
    } else {
        (op.sizes(1)?, op.sizes(2)?, op.numbers(3)?, op.numbers(4)?)
    };
    let axes = axes.unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = steps.unwrap_or_else(|| vec![1; starts.len()]);
    if ends.len() != starts.len() || axes.len() != starts.len() || steps.len() != starts.len() {
        return Err(op.error("starts, ends, axes and steps differ in length"));
    }
    Ok((starts, ends, axes, steps))
}

fn slice(op: &mut Op<'_>) -> Outputs {
    let mut x = op.x(0)?;
    let (starts, ends, axes, steps) = slice_arguments(op)?;
    for (((start, end), axis), step) in starts.into_iter().zip(ends).zip(axes).zip(steps) {
        let axis = op.build.axis(x, axis)?;
        x = match step {
            0 => return Err(op.error("a step of 0")),
            1.. => op.build.python_slice(x, axis, start, Some(end), step)?,
            _ => reversed(op, x, axis, [start, end], step)?,
        };
    }
    one(x)
}

/// A slice with a negative step: from `start` down to the element after `end`.
fn reversed(
    op: &mut Op<'_>,
    x: NodeId,
    axis: usize,
    [start, end]: [Dim; 2],
    step: i64,
) -> Result<NodeId, GraphError> {
    let size = op.build.shape(x)[axis].clone();
    let last = size.minus(&Dim::from(1));
    let clamp = |bound: Dim| {
        let bound = match bound.constant() {
            // Exporters write "to the start" as the smallest integer.
            Some(value) if value <= i64::from(i32::MIN) => return Dim::from(-1),
            Some(value) if value >= i64::from(i32::MAX) => return last.clone(),
            Some(value) if value < 0 => bound.plus(&size),
            _ => bound,
        };
        bound.larger(&Dim::from(-1)).smaller(&last)
    };
    let (start, end) = (clamp(start), clamp(end));
    let Some(stride) = step.checked_neg() else { return Err(op.error(format!("a step of {step}"))) };
    let span = start.minus(&end).larger(&Dim::from(0));
    let length = span.plus(&Dim::from(stride - 1)).floor_div(&Dim::from(stride));
    op.build.slice(x, axis, start, length, step)
}

/// Parts from an attribute before opset 13, from an input afterwards; equal parts if none are given.
fn split(op: &mut Op<'_>) -> Outputs {
    let x = op.x(0)?;
    let axis = op.axis(0, x)?;
    let size = op.build.shape(x)[axis].clone();
    let given = if op.opset < 13 {
        op.list("split")?.map(|parts| parts.into_iter().map(Dim::from).collect::<Vec<_>>())
    } else if op.has(1) {
        Some(op.sizes(1)?)
    } else {
        None
    };
    let count = op.int("num_outputs", op.output_count() as i64)?;
    let parts = match given {
        Some(parts) => parts,
        None => equal_parts(op, &size, count)?,
    };
    let total = parts.iter().fold(Dim::from(0), |sum, part| sum.plus(part));
    if parts.iter().any(|part| part.constant().is_some_and(|part| part < 0)) {
        return Err(op.error("a part of negative size"));
    }
    op.build.require_equal(total, size, "the parts of a dimension")?;
    let mut start = Dim::from(0);
    let mut outputs = Vec::new();
    for part in parts {
        outputs.push(op.build.slice(x, axis, start.clone(), part.clone(), 1)?.into());
        start = start.plus(&part);
    }
    Ok(outputs)
}

/// Equal parts; the last one is smaller if they do not divide the size.
fn equal_parts(op: &Op<'_>, size: &Dim, count: i64) -> Result<Vec<Dim>, GraphError> {
    if !(1..=4096).contains(&count) {
        return Err(op.error(format!("{count} parts, expected 1 to 4096")));
    }
    let divisor = Dim::from(count);
    let each = size.plus(&Dim::from(count - 1)).floor_div(&divisor);
    let mut parts = vec![each.clone(); count as usize - 1];
    parts.push(size.minus(&each.times(&Dim::from(count - 1))));
    Ok(parts)
}
