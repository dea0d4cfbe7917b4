//! Gathering by index.

use super::super::op::{Handler, Op, Outputs, one};
use super::constant::positions;
use crate::dim::Dim;
use crate::error::GraphError;
use crate::graph::NodeId;

pub const OPERATORS: &[(&str, Handler)] =
    &[("Gather", gather), ("GatherElements", gather_elements), ("GatherND", gather_nd)];

/// A constant index without dimensions is a view.
fn gather(op: &mut Op<'_>) -> Outputs {
    let x = op.x(0)?;
    let axis = op.axis(0, x)?;
    if let Some(known) = op.known(1)
        && known.scalar
        && let Some(index) = known.dims[0].constant()
        && let Some(size) = op.build.shape(x)[axis].constant()
        && (-size..size).contains(&index)
    {
        return one(op.build.select(x, axis, Dim::from(index))?);
    }
    let indices = op.x(1)?;
    one(op.build.take(x, axis, indices)?)
}

fn gather_elements(op: &mut Op<'_>) -> Outputs {
    let (x, indices) = (op.x(0)?, op.x(1)?);
    let axis = op.axis(0, x)?;
    if op.build.rank(indices) != op.build.rank(x) {
        return Err(op.error("data and indices differ in their number of dimensions"));
    }
    one(op.build.take_along(x, axis, indices)?)
}

/// Index tuples as positions in the flattened dimensions that they address; negative ones count from the end.
pub fn linear_index(op: &mut Op<'_>, indices: NodeId, sizes: &[Dim]) -> Result<NodeId, GraphError> {
    let last = op.build.rank(indices) - 1;
    let parts = (0..sizes.len()).map(|position| op.build.select(indices, last, Dim::from(position as i64)));
    let parts = parts.collect::<Result<Vec<NodeId>, GraphError>>()?;
    op.build.linear_index(&parts, sizes)
}

/// The length of index tuples: the last dimension, which must be a number.
pub fn tuple_length(op: &Op<'_>, indices: NodeId, limit: usize) -> Result<usize, GraphError> {
    let last = op.build.shape(indices).last().and_then(Dim::constant);
    match last.and_then(|length| usize::try_from(length).ok()) {
        Some(length) if (1..=limit).contains(&length) => Ok(length),
        _ => Err(op.error(format!("the last dimension of the indices is {last:?}, expected 1 to {limit}"))),
    }
}

fn gather_nd(op: &mut Op<'_>) -> Outputs {
    let (x, indices) = (op.x(0)?, op.x(1)?);
    let batch = usize::try_from(op.int("batch_dims", 0)?).unwrap_or(usize::MAX);
    let (rank, index_rank) = (op.build.rank(x), op.build.rank(indices));
    if batch >= rank.min(index_rank) {
        return Err(op.error(format!("batch_dims is out of range for {rank} dimensions")));
    }
    let length = tuple_length(op, indices, rank - batch)?;
    let shape = op.build.shape(x).to_vec();
    let addressed = &shape[batch..batch + length];
    let rest = &shape[batch + length..];
    let mut linear = linear_index(op, indices, addressed)?;
    let (rows, batches) = (Dim::product(addressed), Dim::product(&shape[..batch]));
    if batch > 0 {
        // Each batch row addresses its own rows.
        let own = op.build.shape(linear).to_vec();
        let flat = vec![batches.clone(), Dim::product(&own[batch..])];
        let matrix = op.build.reshape(linear, flat)?;
        let offsets = positions(op, batches.clone(), 0, 2)?;
        let offsets = op.build.binary_size("mul", offsets, rows.clone(), false)?;
        let sum = op.build.binary("add", matrix, offsets)?;
        linear = op.build.reshape(sum, own)?;
    }
    let mut flat = vec![batches.times(&rows)];
    flat.extend_from_slice(rest);
    let source = op.build.reshape(x, flat)?;
    one(op.build.take(source, 0, linear)?)
}
