//! Data movement: concatenation, gathering, counting, selection of the largest.

use lz_core::{DType, Tensor};

use super::Builder;
use crate::dim::Dim;
use crate::error::GraphError;
use crate::graph::{NodeId, NodeKind};

impl Builder {
    /// All of them, one after the other along a dimension.
    pub fn concat(&mut self, parts: &[NodeId], axis: usize) -> Result<NodeId, GraphError> {
        let Some(&first) = parts.first() else {
            return Err(self.error("nothing to concatenate"));
        };
        if parts.len() == 1 {
            return Ok(first);
        }
        let dtype = self.dtype(first);
        let mut shape = self.shape(first).to_vec();
        if axis >= shape.len() {
            return Err(
                self.error(format!("dimension {axis} is out of range for {} dimensions", shape.len()))
            );
        }
        for &part in &parts[1..] {
            if self.rank(part) != shape.len() || self.dtype(part) != dtype {
                return Err(self.error("tensors of different rank or dtype are concatenated"));
            }
            for index in 0..shape.len() {
                let size = self.shape(part)[index].clone();
                if index == axis {
                    shape[axis] = shape[axis].plus(&size);
                } else {
                    self.require_equal(size, shape[index].clone(), "sizes of concatenated tensors")?;
                }
            }
        }
        Ok(self.push(NodeKind::Concat(axis), parts, shape, dtype))
    }

    /// Constant padding: `before` and `after` per dimension; negative padding cuts.
    pub fn pad(&mut self, x: NodeId, padding: &[(Dim, Dim)], value: f64) -> Result<NodeId, GraphError> {
        let mut result = x;
        for (axis, (before, after)) in padding.iter().enumerate() {
            result = self.cut(result, axis, before, after)?;
            let dtype = self.dtype(result);
            let mut parts = Vec::new();
            for (size, is_first) in [(before, true), (after, false)] {
                if size.constant().is_some_and(|size| size <= 0) {
                    continue;
                }
                let mut shape = self.shape(result).to_vec();
                shape[axis] = size.larger(&Dim::from(0));
                let fill = self.full(&shape, value, dtype)?;
                parts.push((fill, is_first));
            }
            if !parts.is_empty() {
                let first = parts.iter().filter(|(_, first)| *first).map(|(fill, _)| *fill);
                let last = parts.iter().filter(|(_, first)| !*first).map(|(fill, _)| *fill);
                let all: Vec<NodeId> = first.chain([result]).chain(last).collect();
                result = self.concat(&all, axis)?;
            }
        }
        Ok(result)
    }

    /// Removes what negative padding cuts off.
    fn cut(&mut self, x: NodeId, axis: usize, before: &Dim, after: &Dim) -> Result<NodeId, GraphError> {
        let removed = |dim: &Dim| dim.constant().filter(|size| *size < 0).map_or(0, |size| -size);
        let (start, end) = (removed(before), removed(after));
        if start == 0 && end == 0 {
            return Ok(x);
        }
        let length = self.shape(x)[axis].minus(&Dim::from(start + end));
        self.slice(x, axis, Dim::from(start), length, 1)
    }

    /// A tensor of equal elements.
    pub fn full(&mut self, shape: &[Dim], value: f64, dtype: DType) -> Result<NodeId, GraphError> {
        let scalar = self.scalar(value, dtype)?;
        self.expand(scalar, shape)
    }

    /// `start`, `start + step`, …, `count` of them.
    pub fn arange(&mut self, start: Dim, step: i64, count: Dim, dtype: DType) -> Result<NodeId, GraphError> {
        let zero = Tensor::zeros(&[1], dtype).map_err(|reason| self.error(reason.to_string()))?;
        let zero = self.owned(zero);
        let numbers = self.call("primitive.arange", &[Some(zero)], &[("count", count.into())])?;
        // Start and step may be any integer, which the params of type f64 could not state.
        let scaled =
            if step == 1 { numbers } else { self.binary_size_or_scalar("mul", numbers, Dim::from(step))? };
        if start.is(0) { Ok(scaled) } else { self.binary_size_or_scalar("add", scaled, start) }
    }

    fn binary_size_or_scalar(&mut self, function: &str, x: NodeId, value: Dim) -> Result<NodeId, GraphError> {
        if super::math::is_float(self.dtype(x)) {
            let Some(value) = value.constant() else {
                return Err(self.error("a float range whose start depends on sizes"));
            };
            return self.binary_scalar(function, x, value as f64, false);
        }
        self.binary_size(function, x, value, false)
    }

    /// Slices of one dimension at `indices`, whose dimensions take the place of that dimension.
    pub fn take(&mut self, x: NodeId, axis: usize, indices: NodeId) -> Result<NodeId, GraphError> {
        let axis = self.axis(x, axis as i64)?;
        let shape = self.shape(x).to_vec();
        let (outer, inner) = (Dim::product(&shape[..axis]), Dim::product(&shape[axis + 1..]));
        let source = self.reshape(x, vec![outer, shape[axis].clone(), inner])?;
        let count = Dim::product(self.shape(indices));
        let flat = self.reshape(indices, vec![count])?;
        let flat = if matches!(self.dtype(flat), DType::I32 | DType::I64) {
            flat
        } else {
            self.cast(flat, DType::I64)?
        };
        let taken = self.call("primitive.gather", &[Some(source), Some(flat)], &[])?;
        let result = [&shape[..axis], self.shape(indices), &shape[axis + 1..]].concat();
        self.reshape(taken, result)
    }

    /// Positions in the flattened dimensions `sizes`, from one tensor of indices per dimension; they broadcast, and negative ones count
    /// from the end.
    ///
    /// Each index is looked up in a table of its dimension's positions, so that an index outside its dimension is refused at run time and
    /// never addresses another row.
    pub fn linear_index(&mut self, indices: &[NodeId], sizes: &[Dim]) -> Result<NodeId, GraphError> {
        let mut stride = Dim::from(1);
        let mut total: Option<NodeId> = None;
        for (&index, size) in indices.iter().zip(sizes).rev() {
            let numbers = self.arange(Dim::from(0), 1, size.clone(), DType::I64)?;
            let table =
                if stride.is(1) { numbers } else { self.binary_size("mul", numbers, stride.clone(), false)? };
            let offset = self.take(table, 0, index)?;
            total = Some(match total {
                None => offset,
                Some(total) => self.binary("add", offset, total)?,
            });
            stride = stride.times(size);
        }
        total.ok_or_else(|| self.error("an index without elements"))
    }

    /// One element per index along a dimension, the other positions being the index's own (torch's `gather`).
    pub fn take_along(&mut self, x: NodeId, axis: usize, indices: NodeId) -> Result<NodeId, GraphError> {
        let axis = self.axis(x, axis as i64)?;
        if self.rank(indices) != self.rank(x) {
            let (found, expected) = (self.rank(indices), self.rank(x));
            return Err(self.error(format!("indices have {found} dimensions, expected {expected}")));
        }
        let mut source = x;
        for other in (0..self.rank(x)).filter(|other| *other != axis) {
            let length = self.shape(indices)[other].clone();
            if self.shape(source)[other] != length {
                source = self.slice(source, other, Dim::from(0), length, 1)?;
            }
        }
        let last = self.rank(x) - 1;
        let indices = self.transpose(indices, axis as i64, last as i64)?;
        self.along(source, axis, |build, rows| {
            build.call("primitive.gather_elements", &[Some(rows), Some(indices)], &[])
        })
    }

    /// The `k` largest or smallest elements along a dimension, and their indices.
    pub fn topk(
        &mut self,
        x: NodeId,
        axis: usize,
        k: Dim,
        largest: bool,
        sorted: bool,
    ) -> Result<(NodeId, NodeId), GraphError> {
        let last = self.rank(x).saturating_sub(1) as i64;
        let rows = self.transpose(x, axis as i64, last)?;
        let params = [("k", k.into()), ("largest", largest.into()), ("sorted", sorted.into())];
        let values = self.call("primitive.topk", &[Some(rows)], &params)?;
        let indices = self.projection(values, 1)?;
        Ok((self.transpose(values, axis as i64, last)?, self.transpose(indices, axis as i64, last)?))
    }
}
