//! Views: reshape, permute, slice, expand, and what is made of them.

use super::Builder;
use crate::dim::Dim;
use crate::error::GraphError;
use crate::graph::{NodeId, NodeKind, SizeCheck, View};

impl Builder {
    /// Other sizes; the number of elements must be the same.
    pub fn reshape(&mut self, x: NodeId, shape: Vec<Dim>) -> Result<NodeId, GraphError> {
        if self.shape(x) == shape.as_slice() {
            return Ok(x);
        }
        let (before, after) = (Dim::product(self.shape(x)), Dim::product(&shape));
        self.require_equal(before, after, "the number of elements of a reshape")?;
        let dtype = self.dtype(x);
        Ok(self.push(NodeKind::View(View::Reshape), &[x], shape, dtype))
    }

    /// Reshape as frameworks state it: -1 is inferred.
    pub fn reshape_inferring(&mut self, x: NodeId, mut shape: Vec<Dim>) -> Result<NodeId, GraphError> {
        let unknown: Vec<usize> = (0..shape.len()).filter(|&index| shape[index].is(-1)).collect();
        match unknown.as_slice() {
            [] => {}
            [one] => {
                let known = Dim::product(shape.iter().filter(|dim| !dim.is(-1)));
                if known.is(0) {
                    return Err(self.error("a size of -1 cannot be inferred next to a size of 0"));
                }
                shape[*one] = Dim::product(self.shape(x)).floor_div(&known);
            }
            _ => return Err(self.error("only one size of a reshape may be -1")),
        }
        self.reshape(x, shape)
    }

    /// Requires two sizes to be equal: now, or when the graph runs.
    pub fn require_equal(&mut self, left: Dim, right: Dim, because: &str) -> Result<(), GraphError> {
        match left.minus(&right).constant() {
            Some(0) => Ok(()),
            Some(_) => Err(self.error(format!("{because}: {left} differs from {right}"))),
            None => {
                let because = format!("{because} ({})", self.origin());
                self.graph_mut().checks.push(SizeCheck { left, right, because });
                Ok(())
            }
        }
    }

    /// Dimensions in another order.
    pub fn permute(&mut self, x: NodeId, permutation: &[usize]) -> Result<NodeId, GraphError> {
        let rank = self.rank(x);
        let mut seen = vec![false; rank];
        for &axis in permutation {
            match seen.get_mut(axis) {
                Some(slot) if !*slot => *slot = true,
                _ => {
                    return Err(self.error(format!("{permutation:?} is no permutation of {rank} dimensions")));
                }
            }
        }
        if permutation.len() != rank {
            return Err(self.error(format!("{permutation:?} is no permutation of {rank} dimensions")));
        }
        if permutation.iter().enumerate().all(|(index, &axis)| index == axis) {
            return Ok(x);
        }
        let shape = permutation.iter().map(|&axis| self.shape(x)[axis].clone()).collect();
        let dtype = self.dtype(x);
        Ok(self.push(NodeKind::View(View::Permute(permutation.to_vec())), &[x], shape, dtype))
    }

    /// Two dimensions exchanged.
    pub fn transpose(&mut self, x: NodeId, a: i64, b: i64) -> Result<NodeId, GraphError> {
        let (a, b) = (self.axis(x, a)?, self.axis(x, b)?);
        let mut permutation: Vec<usize> = (0..self.rank(x)).collect();
        permutation.swap(a, b);
        self.permute(x, &permutation)
    }

    /// A dimension as an index; negative ones count from the end.
    pub fn axis(&self, x: NodeId, axis: i64) -> Result<usize, GraphError> {
        self.axis_of_rank(axis, self.rank(x))
    }

    /// A dimension of a tensor with this rank as an index.
    pub fn axis_of_rank(&self, axis: i64, rank: usize) -> Result<usize, GraphError> {
        let index = if axis < 0 { axis + rank as i64 } else { axis };
        match usize::try_from(index) {
            Ok(index) if index < rank => Ok(index),
            _ => Err(self.error(format!("dimension {axis} is out of range for {rank} dimensions"))),
        }
    }

    /// Elements `start`, `start + step`, … of one dimension, `length` of them. All must be inside.
    pub fn slice(
        &mut self,
        x: NodeId,
        axis: usize,
        start: Dim,
        length: Dim,
        step: i64,
    ) -> Result<NodeId, GraphError> {
        if step == 0 {
            return Err(self.error("the step of a slice is 0"));
        }
        if start.is(0) && step == 1 && self.shape(x)[axis] == length {
            return Ok(x);
        }
        let mut shape = self.shape(x).to_vec();
        shape[axis] = length;
        let dtype = self.dtype(x);
        Ok(self.push(NodeKind::View(View::Slice { axis, start, step }), &[x], shape, dtype))
    }

    /// A slice as Python states it: negative bounds count from the end, and bounds outside are clamped. `step` is positive.
    pub fn python_slice(
        &mut self,
        x: NodeId,
        axis: usize,
        start: Dim,
        end: Option<Dim>,
        step: i64,
    ) -> Result<NodeId, GraphError> {
        if step < 1 {
            return Err(self.error(format!("a slice with step {step}")));
        }
        let size = self.shape(x)[axis].clone();
        let clamp = |bound: Dim| {
            let bound = match bound.constant() {
                Some(value) if value < 0 => bound.plus(&size),
                // Frameworks write "to the end" as the largest integer.
                Some(value) if value >= i64::from(i32::MAX) => return size.clone(),
                _ => bound,
            };
            bound.larger(&Dim::from(0)).smaller(&size)
        };
        let start = clamp(start);
        let end = end.map_or_else(|| size.clone(), clamp);
        let span = end.minus(&start).larger(&Dim::from(0));
        let step_dim = Dim::from(step);
        let length = span.plus(&Dim::from(step - 1)).floor_div(&step_dim);
        self.slice(x, axis, start, length, step)
    }

    /// One element of a dimension, which disappears. A negative index counts from the end.
    pub fn select(&mut self, x: NodeId, axis: usize, index: Dim) -> Result<NodeId, GraphError> {
        let index = match index.constant() {
            Some(value) if value < 0 => self.shape(x)[axis].plus(&index),
            _ => index,
        };
        let one = self.slice(x, axis, index, Dim::from(1), 1)?;
        self.squeeze(one, axis)
    }

    /// Without a dimension of size 1.
    pub fn squeeze(&mut self, x: NodeId, axis: usize) -> Result<NodeId, GraphError> {
        let mut shape = self.shape(x).to_vec();
        shape.remove(axis);
        self.reshape(x, shape)
    }

    /// With a new dimension of size 1 at this index.
    pub fn unsqueeze(&mut self, x: NodeId, axis: usize) -> Result<NodeId, GraphError> {
        let mut shape = self.shape(x).to_vec();
        if axis > shape.len() {
            return Err(
                self.error(format!("dimension {axis} is out of range for {} dimensions", shape.len()))
            );
        }
        shape.insert(axis, Dim::from(1));
        self.reshape(x, shape)
    }

    /// Repeats dimensions of size 1 and adds leading ones, up to `shape`.
    pub fn expand(&mut self, x: NodeId, shape: &[Dim]) -> Result<NodeId, GraphError> {
        if self.shape(x) == shape {
            return Ok(x);
        }
        let missing = shape.len().checked_sub(self.rank(x));
        let Some(missing) = missing else {
            return Err(self.error(format!("{:?} cannot be expanded to {shape:?}", self.shape(x))));
        };
        for (index, size) in shape[missing..].iter().enumerate() {
            let own = self.shape(x)[index].clone();
            if !own.is(1) {
                self.require_equal(own, size.clone(), "a dimension that is not expanded")?;
            }
        }
        let dtype = self.dtype(x);
        Ok(self.push(NodeKind::View(View::Expand), &[x], shape.to_vec(), dtype))
    }

    /// The common shape of tensors that are broadcast against each other.
    pub fn broadcast_shape(&mut self, nodes: &[NodeId]) -> Result<Vec<Dim>, GraphError> {
        let rank = nodes.iter().map(|node| self.rank(*node)).max().unwrap_or(0);
        let mut shape = vec![Dim::from(1); rank];
        for &node in nodes {
            let missing = rank - self.rank(node);
            for index in 0..self.rank(node) {
                let size = self.shape(node)[index].clone();
                let common = shape[missing + index].clone();
                if size.is(1) {
                    continue;
                }
                if common.is(1) {
                    shape[missing + index] = size;
                } else {
                    self.require_equal(size, common, "sizes that are broadcast against each other")?;
                }
            }
        }
        Ok(shape)
    }

    /// All of them with their common shape.
    pub fn broadcast(&mut self, nodes: &[NodeId]) -> Result<Vec<NodeId>, GraphError> {
        let shape = self.broadcast_shape(nodes)?;
        nodes.iter().map(|node| self.expand(*node, &shape)).collect()
    }
}
