//! Views and data movement that only depends on shapes.

use super::super::op::{Handler, Op, Outputs, one, tensor};
use crate::dim::Dim;
use crate::error::GraphError;
use crate::graph::NodeId;

pub const OPERATORS: &[(&str, Handler)] = &[
    ("Concat", concat),
    ("DepthToSpace", depth_to_space),
    ("Dropout", dropout),
    ("Expand", expand),
    ("Flatten", flatten),
    ("Identity", identity),
    ("Reshape", reshape),
    // Folded before handlers run, whatever the input is.
    ("Shape", |op| Err(op.error("the input is missing"))),
    ("Size", |op| Err(op.error("the input is missing"))),
    ("SpaceToDepth", space_to_depth),
    ("Squeeze", squeeze),
    ("Tile", tile),
    ("Transpose", transpose),
    ("Unsqueeze", unsqueeze),
];

fn identity(op: &mut Op<'_>) -> Outputs {
    match op.value(0) {
        Some(value) => Ok(vec![value]),
        None => Err(op.error("input 0 is missing")),
    }
}

/// The identity, as in inference; the mask is all true.
fn dropout(op: &mut Op<'_>) -> Outputs {
    let x = op.x(0)?;
    op.attribute("ratio");
    op.attribute("seed");
    if op.opset < 7 && !op.flag("is_test", false)? {
        return Err(op.error("training mode is not supported"));
    }
    op.ignore(1);
    if op.has(2) && op.scalar(2) != Some(0.0) {
        return Err(op.error("training mode is not supported"));
    }
    if !op.wants(1) {
        return one(x);
    }
    let shape = op.build.shape(x).to_vec();
    // The mask had the type of the data before opset 10.
    let dtype = if op.opset < 10 { op.build.dtype(x) } else { lz_core::DType::Bool };
    let mask = op.build.full(&shape, 1.0, dtype)?;
    Ok(vec![x.into(), mask.into()])
}

fn reshape(op: &mut Op<'_>) -> Outputs {
    let x = op.x(0)?;
    let mut shape = op.sizes(1)?;
    if !op.flag("allowzero", false)? {
        for (index, size) in shape.iter_mut().enumerate() {
            if size.is(0) {
                match op.build.shape(x).get(index) {
                    Some(own) => *size = own.clone(),
                    None => return Err(op.error(format!("size 0 of dimension {index} has no counterpart"))),
                }
            }
        }
    }
    one(op.build.reshape_inferring(x, shape)?)
}

fn flatten(op: &mut Op<'_>) -> Outputs {
    let x = op.x(0)?;
    let rank = op.build.rank(x);
    let axis = op.int("axis", 1)?;
    // The axis may be the rank, which leaves one column.
    let axis = op.build.axis_of_rank(axis, if axis < 0 { rank } else { rank + 1 })?;
    let shape = op.build.shape(x);
    let matrix = vec![Dim::product(&shape[..axis]), Dim::product(&shape[axis..])];
    one(op.build.reshape(x, matrix)?)
}

fn squeeze(op: &mut Op<'_>) -> Outputs {
    let x = op.x(0)?;
    let rank = op.build.rank(x);
    let axes = op.axes(13, 1, rank)?;
    let mut shape = Vec::new();
    for (index, size) in op.build.shape(x).to_vec().into_iter().enumerate() {
        match &axes {
            Some(axes) if axes.contains(&index) => {
                op.build.require_equal(size, Dim::from(1), "a dimension that is removed")?;
            }
            None if size.is(1) => {}
            None if size.constant().is_none() => {
                return Err(op.error(format!(
                    "whether dimension {index} of size {size} is removed depends on its size"
                )));
            }
            _ => shape.push(size),
        }
    }
    one(op.build.reshape(x, shape)?)
}

fn unsqueeze(op: &mut Op<'_>) -> Outputs {
    let x = op.x(0)?;
    let count = if op.opset < 13 { op.list("axes")? } else { op.numbers(1)? }.map_or(0, |axes| axes.len());
    let rank = op.build.rank(x).saturating_add(count);
    let mut axes = op.axes(13, 1, rank)?.unwrap_or_default();
    axes.sort_unstable();
    axes.dedup();
    if axes.len() != count {
        return Err(op.error("an axis is given twice"));
    }
    let mut shape = op.build.shape(x).to_vec();
    for axis in axes {
        shape.insert(axis, Dim::from(1));
    }
    one(op.build.reshape(x, shape)?)
}

fn transpose(op: &mut Op<'_>) -> Outputs {
    let x = op.x(0)?;
    let rank = op.build.rank(x);
    let order = match op.list("perm")? {
        Some(order) => {
            order.iter().map(|&axis| op.build.axis_of_rank(axis, rank)).collect::<Result<_, _>>()?
        }
        None => (0..rank).rev().collect::<Vec<_>>(),
    };
    one(op.build.permute(x, &order)?)
}

/// Broadcasting in both directions: a requested size of 1 keeps the tensor's.
fn expand(op: &mut Op<'_>) -> Outputs {
    let x = op.x(0)?;
    let requested = op.sizes(1)?;
    let own = op.build.shape(x).to_vec();
    let rank = own.len().max(requested.len());
    let size = |sizes: &[Dim], index: usize| {
        (index + sizes.len()).checked_sub(rank).map_or_else(|| Dim::from(1), |index| sizes[index].clone())
    };
    let shape: Vec<Dim> = (0..rank)
        .map(|index| {
            let (own, requested) = (size(&own, index), size(&requested, index));
            if requested.is(1) { own } else { requested }
        })
        .collect();
    one(op.build.expand(x, &shape)?)
}

fn tile(op: &mut Op<'_>) -> Outputs {
    let x = op.x(0)?;
    let repeats = op.sizes(1)?;
    let own = op.build.shape(x).to_vec();
    if repeats.len() != own.len() {
        return Err(op.error(format!("{} repeats for {} dimensions", repeats.len(), own.len())));
    }
    let mut result = x;
    for (axis, repeat) in repeats.iter().enumerate().filter(|(_, repeat)| !repeat.is(1)) {
        // A new dimension before the repeated one: views until the last reshape, which copies.
        let shape = op.build.shape(result).to_vec();
        let mut wide = shape.clone();
        wide.insert(axis, repeat.clone());
        let mut tiled = shape.clone();
        tiled[axis] = shape[axis].times(repeat);
        result = op.build.unsqueeze(result, axis)?;
        result = op.build.expand(result, &wide)?;
        result = op.build.reshape(result, tiled)?;
    }
    one(result)
}

fn concat(op: &mut Op<'_>) -> Outputs {
    let parts = (0..op.count()).map(|index| op.x(index)).collect::<Result<Vec<_>, _>>()?;
    let Some(&first) = parts.first() else { return Err(op.error("no inputs")) };
    let Some(axis) = op.attribute("axis") else { return Err(op.error("the attribute `axis` is missing")) };
    let Some(axis) = axis.as_int() else { return Err(op.error("the attribute `axis` is no integer")) };
    let axis = op.build.axis(first, axis)?;
    one(op.build.concat(&parts, axis)?)
}

/// Batch, channels, height, width, and the block size.
fn image(op: &mut Op<'_>) -> Result<(NodeId, [Dim; 4], Dim), GraphError> {
    let Some(value) = op.value(0) else { return Err(op.error("input 0 is missing")) };
    let x = tensor(op.build, value)?;
    let block = op.int("blocksize", 0)?;
    let Ok(shape) = <[Dim; 4]>::try_from(op.build.shape(x).to_vec()) else {
        return Err(op.error("the input must have four dimensions"));
    };
    if block < 1 {
        return Err(op.error(format!("blocksize is {block}, expected at least 1")));
    }
    Ok((x, shape, Dim::from(block)))
}

fn depth_to_space(op: &mut Op<'_>) -> Outputs {
    let (x, [n, c, h, w], block) = image(op)?;
    let inner = c.floor_div(&block.times(&block));
    let (split, order) = match op.text("mode", "DCR")? {
        "DCR" => (
            vec![n.clone(), block.clone(), block.clone(), inner.clone(), h.clone(), w.clone()],
            [0, 3, 4, 1, 5, 2],
        ),
        "CRD" => (
            vec![n.clone(), inner.clone(), block.clone(), block.clone(), h.clone(), w.clone()],
            [0, 1, 4, 2, 5, 3],
        ),
        other => return Err(op.error(format!("mode is `{other}`, expected DCR or CRD"))),
    };
    let split = op.build.reshape(x, split)?;
    let moved = op.build.permute(split, &order)?;
    one(op.build.reshape(moved, vec![n, inner, h.times(&block), w.times(&block)])?)
}

fn space_to_depth(op: &mut Op<'_>) -> Outputs {
    let (x, [n, c, h, w], block) = image(op)?;
    let (rows, columns) = (h.floor_div(&block), w.floor_div(&block));
    let split = vec![n.clone(), c.clone(), rows.clone(), block.clone(), columns.clone(), block.clone()];
    let split = op.build.reshape(x, split)?;
    let moved = op.build.permute(split, &[0, 3, 5, 1, 2, 4])?;
    one(op.build.reshape(moved, vec![n, c.times(&block).times(&block), rows, columns])?)
}
