//! Scattering by index.

use super::super::op::{Handler, Op, Outputs, one};
use super::constant::positions;
use super::gather::{linear_index, tuple_length};
use crate::dim::Dim;
use crate::error::GraphError;
use crate::graph::NodeId;

pub const OPERATORS: &[(&str, Handler)] =
    &[("Scatter", scatter_elements), ("ScatterElements", scatter_elements), ("ScatterND", scatter_nd)];

fn reduction(op: &mut Op<'_>) -> Result<&'static str, GraphError> {
    Ok(match op.text("reduction", "none")? {
        "none" => "none",
        "add" => "add",
        "mul" => "mul",
        "max" => "maximum",
        "min" => "minimum",
        other => return Err(op.error(format!("reduction is `{other}`, expected none, add, mul, max or min"))),
    })
}

fn scatter_elements(op: &mut Op<'_>) -> Outputs {
    let (x, indices, updates) = (op.x(0)?, op.x(1)?, op.x(2)?);
    let axis = op.axis(0, x)?;
    let reduction = reduction(op)?;
    let shape = op.build.shape(x).to_vec();
    let index_shape = op.build.shape(indices).to_vec();
    if index_shape.len() != shape.len() {
        return Err(op.error("data and indices differ in their number of dimensions"));
    }
    let params = [("reduction", reduction.into())];
    let last = shape.len() as i64 - 1;
    if (0..shape.len()).all(|other| other == axis || shape[other] == index_shape[other]) {
        let indices = op.build.transpose(indices, axis as i64, last)?;
        let updates = op.build.transpose(updates, axis as i64, last)?;
        return one(op.build.along(x, axis, |build, rows| {
            build.call("primitive.scatter_elements", &[Some(rows), Some(indices), Some(updates)], &params)
        })?);
    }
    // Indices that cover only a part of the other dimensions address the flattened tensor.
    let linear = flat_positions(op, &shape, axis, indices)?;
    let flat = |dims: &[Dim]| vec![Dim::product(dims)];
    let source = op.build.reshape(x, flat(&shape))?;
    let linear = op.build.reshape(linear, flat(&index_shape))?;
    let updates = op.build.reshape(updates, flat(&index_shape))?;
    let inputs = [Some(source), Some(linear), Some(updates)];
    let result = op.build.call("primitive.scatter_elements", &inputs, &params)?;
    one(op.build.reshape(result, shape)?)
}

/// Positions in the flattened tensor: the index along `axis`, the element's own position along the others.
fn flat_positions(
    op: &mut Op<'_>,
    shape: &[Dim],
    axis: usize,
    indices: NodeId,
) -> Result<NodeId, GraphError> {
    let index_shape = op.build.shape(indices).to_vec();
    let mut parts = Vec::with_capacity(shape.len());
    for (dim, size) in index_shape.iter().enumerate() {
        parts.push(if dim == axis { indices } else { positions(op, size.clone(), dim, shape.len())? });
    }
    op.build.linear_index(&parts, shape)
}

fn scatter_nd(op: &mut Op<'_>) -> Outputs {
    let (x, indices, updates) = (op.x(0)?, op.x(1)?, op.x(2)?);
    let reduction = reduction(op)?;
    let shape = op.build.shape(x).to_vec();
    if op.build.rank(indices) == 0 {
        return Err(op.error("indices without dimensions"));
    }
    let length = tuple_length(op, indices, shape.len())?;
    let linear = linear_index(op, indices, &shape[..length])?;
    let count = Dim::product(op.build.shape(linear));
    let (rows, inner) = (Dim::product(&shape[..length]), Dim::product(&shape[length..]));
    let source = op.build.reshape(x, vec![Dim::from(1), rows, inner.clone()])?;
    let linear = op.build.reshape(linear, vec![count.clone()])?;
    let updates = op.build.reshape(updates, vec![Dim::from(1), count, inner])?;
    let inputs = [Some(source), Some(linear), Some(updates)];
    let result = op.build.call("primitive.scatter", &inputs, &[("reduction", reduction.into())])?;
    one(op.build.reshape(result, shape)?)
}
