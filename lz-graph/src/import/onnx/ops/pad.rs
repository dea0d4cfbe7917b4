//! `Pad` in all its modes, and `CenterCropPad`.

use lz_core::DType;

use super::super::op::{Handler, Op, Outputs, one};
use crate::dim::Dim;
use crate::error::GraphError;
use crate::graph::NodeId;

pub const OPERATORS: &[(&str, Handler)] = &[("CenterCropPad", center_crop_pad), ("Pad", pad)];

fn pad(op: &mut Op<'_>) -> Outputs {
    let x = op.x(0)?;
    let mode = op.text("mode", "constant")?;
    let rank = op.build.rank(x);
    let (pads, value) = if op.opset < 11 {
        let pads = op.list("pads")?.unwrap_or_default().into_iter().map(Dim::from).collect();
        (pads, Some(op.float("value", 0.0)?))
    } else {
        let value = if op.has(2) { op.scalar(2) } else { Some(0.0) };
        (op.sizes(1)?, value)
    };
    let axes: Vec<usize> = match op.numbers(3)? {
        Some(axes) => axes.iter().map(|&axis| op.build.axis(x, axis)).collect::<Result<_, _>>()?,
        None => (0..rank).collect(),
    };
    if pads.len() != 2 * axes.len() {
        return Err(op.error(format!("{} pads for {} dimensions", pads.len(), axes.len())));
    }
    let mut padding = vec![(Dim::from(0), Dim::from(0)); rank];
    for (index, &axis) in axes.iter().enumerate() {
        padding[axis] = (pads[index].clone(), pads[index + axes.len()].clone());
    }
    if mode == "constant" {
        let Some(value) = value else { return Err(op.error("the value of padding must be a constant")) };
        return one(op.build.pad(x, &padding, value)?);
    }
    let mut result = x;
    for (axis, (before, after)) in padding.iter().enumerate() {
        if !before.is(0) || !after.is(0) {
            let indices = indices(op, mode, op.build.shape(x)[axis].clone(), before, after)?;
            result = op.build.take(result, axis, indices)?;
        }
    }
    one(result)
}

/// The source of each element of a padded dimension.
fn indices(op: &mut Op<'_>, mode: &str, size: Dim, before: &Dim, after: &Dim) -> Result<NodeId, GraphError> {
    let start = before.times(&Dim::from(-1));
    let count = before.plus(&size).plus(after);
    let last = size.minus(&Dim::from(1));
    let positions = op.build.arange(start, 1, count, DType::I64)?;
    match mode {
        "edge" => {
            let positions = op.build.binary_size("minimum", positions, last, false)?;
            op.build.binary_size("maximum", positions, Dim::from(0), false)
        }
        "wrap" => op.build.binary_size("mod", positions, size, false),
        "reflect" => {
            let period = last.times(&Dim::from(2)).larger(&Dim::from(1));
            let phase = op.build.binary_size("mod", positions, period, false)?;
            let distance = op.build.binary_size("sub", phase, last.clone(), true)?;
            let distance = op.build.unary("absolute", distance)?;
            op.build.binary_size("sub", distance, last, true)
        }
        other => Err(op.error(format!("mode is `{other}`, expected constant, edge, reflect or wrap"))),
    }
}

/// Cuts or pads each dimension around its center.
fn center_crop_pad(op: &mut Op<'_>) -> Outputs {
    let x = op.x(0)?;
    let sizes = op.numbers(1)?.unwrap_or_default();
    let axes: Vec<usize> = match op.list("axes")? {
        Some(axes) => axes.iter().map(|&axis| op.build.axis(x, axis)).collect::<Result<_, _>>()?,
        None => (0..op.build.rank(x)).collect(),
    };
    if axes.len() != sizes.len() {
        return Err(op.error(format!("{} sizes for {} dimensions", sizes.len(), axes.len())));
    }
    let mut padding = vec![(Dim::from(0), Dim::from(0)); op.build.rank(x)];
    for (&axis, &size) in axes.iter().zip(&sizes) {
        let Some(own) = op.build.shape(x)[axis].constant() else {
            return Err(op.error(format!("whether dimension {axis} is cut or padded depends on its size")));
        };
        if !(0..1 << 40).contains(&size) {
            return Err(op.error(format!("a size of {size}")));
        }
        let missing = size - own;
        let before = if missing >= 0 { missing / 2 } else { -(-missing / 2) };
        padding[axis] = (Dim::from(before), Dim::from(missing - before));
    }
    one(op.build.pad(x, &padding, 0.0)?)
}
