//! Arithmetic: elementwise functions with broadcasting, reductions, products.

use lz_core::DType;

use super::{Builder, ParamValue};
use crate::dim::Dim;
use crate::error::GraphError;
use crate::graph::NodeId;

/// Whether elements are floating-point numbers.
pub fn is_float(dtype: DType) -> bool {
    matches!(dtype, DType::F64 | DType::F32 | DType::F16 | DType::BF16)
}

impl Builder {
    /// A function of one tensor (`primitive.unary`, `primitive.unary_int`).
    pub fn unary(&mut self, function: &str, x: NodeId) -> Result<NodeId, GraphError> {
        let operation = if is_float(self.dtype(x)) { "primitive.unary" } else { "primitive.unary_int" };
        self.call(operation, &[Some(x)], &[("function", function.into())])
    }

    /// An activation with its constants (`primitive.activation`).
    pub fn activation(
        &mut self,
        function: &str,
        x: NodeId,
        constants: Option<(f64, f64)>,
    ) -> Result<NodeId, GraphError> {
        let mut params = vec![("function", ParamValue::from(function))];
        if let Some((alpha, beta)) = constants {
            params.extend([("alpha", alpha.into()), ("beta", beta.into())]);
        }
        self.call("primitive.activation", &[Some(x)], &params)
    }

    /// A function of two tensors of one dtype, broadcast against each other. A constant with one element becomes a param.
    pub fn binary(&mut self, function: &str, a: NodeId, b: NodeId) -> Result<NodeId, GraphError> {
        let shape = self.broadcast_shape(&[a, b])?;
        for (x, other, reversed) in [(a, b, false), (b, a, true)] {
            if self.shape(x) == shape.as_slice()
                && let Some(value) = self.exact_scalar(other)
            {
                return self.binary_scalar(function, x, value, reversed);
            }
        }
        let (a, b) = (self.expand(a, &shape)?, self.expand(b, &shape)?);
        let operation = if is_float(self.dtype(a)) { "primitive.binary" } else { "primitive.binary_int" };
        self.call(operation, &[Some(a), Some(b)], &[("function", function.into())])
    }

    /// The value of a constant with one element, if a param of type f64 represents it exactly.
    fn exact_scalar(&self, id: NodeId) -> Option<f64> {
        let value = self.graph().scalar(id)?;
        (is_float(self.dtype(id)) || value.abs() < 9e15).then_some(value)
    }

    /// A function of a tensor and a number; `reversed` if the number is the first operand.
    pub fn binary_scalar(
        &mut self,
        function: &str,
        x: NodeId,
        value: f64,
        reversed: bool,
    ) -> Result<NodeId, GraphError> {
        let params = |value| {
            [("function", function.into()), ("value", value), ("reversed", ParamValue::Bool(reversed))]
        };
        if is_float(self.dtype(x)) {
            self.call("primitive.binary_scalar", &[Some(x)], &params(ParamValue::Float(value)))
        } else {
            self.call("primitive.binary_int_scalar", &[Some(x)], &params(ParamValue::from(value as i64)))
        }
    }

    /// A function of an int tensor and a number that depends on sizes.
    pub fn binary_size(
        &mut self,
        function: &str,
        x: NodeId,
        value: Dim,
        reversed: bool,
    ) -> Result<NodeId, GraphError> {
        let params = [("function", function.into()), ("value", value.into()), ("reversed", reversed.into())];
        self.call("primitive.binary_int_scalar", &[Some(x)], &params)
    }

    /// A comparison, broadcast.
    pub fn compare(&mut self, function: &str, a: NodeId, b: NodeId) -> Result<NodeId, GraphError> {
        let shape = self.broadcast_shape(&[a, b])?;
        if self.shape(a) == shape.as_slice()
            && let Some(value) = self.exact_scalar(b)
        {
            return self.compare_scalar(function, a, value);
        }
        let (a, b) = (self.expand(a, &shape)?, self.expand(b, &shape)?);
        self.call("primitive.compare", &[Some(a), Some(b)], &[("function", function.into())])
    }

    /// A comparison with a number.
    pub fn compare_scalar(&mut self, function: &str, x: NodeId, value: f64) -> Result<NodeId, GraphError> {
        let params = [("function", function.into()), ("value", value.into())];
        self.call("primitive.compare_scalar", &[Some(x)], &params)
    }

    /// `a` where the condition holds, else `b`; broadcast.
    pub fn select_where(&mut self, condition: NodeId, a: NodeId, b: NodeId) -> Result<NodeId, GraphError> {
        let all = self.broadcast(&[condition, a, b])?;
        self.call("primitive.where", &[Some(all[0]), Some(all[1]), Some(all[2])], &[])
    }

    /// Another dtype; nothing if it is the same.
    pub fn cast(&mut self, x: NodeId, to: DType) -> Result<NodeId, GraphError> {
        if self.dtype(x) == to {
            return Ok(x);
        }
        self.call("primitive.cast", &[Some(x)], &[("to", to.name().into())])
    }

    /// The dimensions `axes` moved to the end and merged into one: `[rows..., n]`.
    fn rows_of(&mut self, x: NodeId, axes: &[usize]) -> Result<NodeId, GraphError> {
        let rank = self.rank(x);
        let kept = (0..rank).filter(|axis| !axes.contains(axis));
        let order: Vec<usize> = kept.clone().chain(axes.iter().copied()).collect();
        let moved = self.permute(x, &order)?;
        if axes.len() == 1 {
            return Ok(moved);
        }
        let mut shape: Vec<Dim> = kept.map(|axis| self.shape(x)[axis].clone()).collect();
        shape.push(Dim::product(axes.iter().map(|&axis| &self.shape(x)[axis])));
        self.reshape(moved, shape)
    }

    /// Restores reduced dimensions as dimensions of size 1.
    fn keep_dims(&mut self, reduced: NodeId, axes: &[usize], rank: usize) -> Result<NodeId, GraphError> {
        let mut kept = self.shape(reduced).to_vec().into_iter();
        let shape = (0..rank)
            .map(|axis| if axes.contains(&axis) { Dim::from(1) } else { kept.next().unwrap_or_default() })
            .collect();
        self.reshape(reduced, shape)
    }

    /// A reduction over some dimensions (all of them if none is named).
    pub fn reduce(
        &mut self,
        function: &str,
        x: NodeId,
        axes: &[usize],
        keep_dims: bool,
    ) -> Result<NodeId, GraphError> {
        let rank = self.rank(x);
        let mut axes: Vec<usize> = if axes.is_empty() { (0..rank).collect() } else { axes.to_vec() };
        axes.sort_unstable();
        axes.dedup();
        let rows = if rank == 0 { self.reshape(x, vec![Dim::from(1)])? } else { self.rows_of(x, &axes)? };
        let operation = if is_float(self.dtype(x)) { "primitive.reduce" } else { "primitive.reduce_int" };
        let reduced = self.call(operation, &[Some(rows)], &[("function", function.into())])?;
        if keep_dims && rank > 0 { self.keep_dims(reduced, &axes, rank) } else { Ok(reduced) }
    }

    /// The index of the largest or smallest element along a dimension.
    pub fn arg_reduce(
        &mut self,
        function: &str,
        x: NodeId,
        axis: usize,
        keep_dims: bool,
        last: bool,
    ) -> Result<NodeId, GraphError> {
        let rank = self.rank(x);
        let rows = self.rows_of(x, &[axis])?;
        let params = [("function", function.into()), ("last", last.into())];
        let reduced = self.call("primitive.arg_reduce", &[Some(rows)], &params)?;
        if keep_dims { self.keep_dims(reduced, &[axis], rank) } else { Ok(reduced) }
    }

    /// Runs a function of rows along another dimension than the last one.
    pub fn along(
        &mut self,
        x: NodeId,
        axis: usize,
        rows: impl FnOnce(&mut Builder, NodeId) -> Result<NodeId, GraphError>,
    ) -> Result<NodeId, GraphError> {
        let last = self.rank(x).saturating_sub(1);
        let mut order: Vec<usize> = (0..self.rank(x)).collect();
        if axis < last {
            order.swap(axis, last);
        }
        let swapped = self.permute(x, &order)?;
        let result = rows(self, swapped)?;
        self.permute(result, &order)
    }

    /// Softmax or log-softmax along a dimension.
    pub fn softmax(&mut self, x: NodeId, axis: usize, log: bool) -> Result<NodeId, GraphError> {
        self.along(x, axis, |build, rows| {
            build.call("primitive.softmax", &[Some(rows)], &[("log", log.into())])
        })
    }

    /// Running sums along a dimension.
    pub fn cumsum(
        &mut self,
        x: NodeId,
        axis: usize,
        exclusive: bool,
        reverse: bool,
    ) -> Result<NodeId, GraphError> {
        let params = [("exclusive", exclusive.into()), ("reverse", reverse.into())];
        self.along(x, axis, |build, rows| build.call("primitive.cumsum", &[Some(rows)], &params))
    }

    /// A matrix product as numpy and torch define it: vectors are promoted, leading dimensions are broadcast.
    pub fn matmul(&mut self, a: NodeId, b: NodeId) -> Result<NodeId, GraphError> {
        let (rank_a, rank_b) = (self.rank(a), self.rank(b));
        if rank_a == 0 || rank_b == 0 {
            return Err(self.error("a factor of a matrix product has no dimensions"));
        }
        let left = if rank_a == 1 { self.unsqueeze(a, 0)? } else { a };
        let right = if rank_b == 1 { self.unsqueeze(b, 1)? } else { b };
        let product = self.matrix_product(left, right)?;
        let mut shape = self.shape(product).to_vec();
        if rank_b == 1 {
            shape.pop();
        }
        if rank_a == 1 {
            shape.remove(shape.len() - 1 - usize::from(rank_b != 1));
        }
        self.reshape(product, shape)
    }

    /// A product of two stacks of matrices.
    fn matrix_product(&mut self, a: NodeId, b: NodeId) -> Result<NodeId, GraphError> {
        let split = |shape: &[Dim]| {
            let (batch, matrix) = shape.split_at(shape.len() - 2);
            (batch.to_vec(), matrix.to_vec())
        };
        let ((batch_a, matrix_a), (batch_b, matrix_b)) = (split(self.shape(a)), split(self.shape(b)));
        // A stack times one matrix is one product of all rows.
        if batch_b.is_empty() && !batch_a.is_empty() {
            let rows = Dim::product(batch_a.iter().chain(&matrix_a[..1]));
            let flat = self.reshape(a, vec![rows, matrix_a[1].clone()])?;
            let product = self.call("primitive.matmul", &[Some(flat), Some(b)], &[])?;
            let mut shape = self.shape(a).to_vec();
            shape.pop();
            shape.push(matrix_b[1].clone());
            return self.reshape(product, shape);
        }
        let batch = self.broadcast_batch(&batch_a, &batch_b)?;
        let with = |batch: &[Dim], matrix: &[Dim]| [batch, matrix].concat();
        let a = self.expand(a, &with(&batch, &matrix_a))?;
        let b = self.expand(b, &with(&batch, &matrix_b))?;
        self.call("primitive.matmul", &[Some(a), Some(b)], &[])
    }

    fn broadcast_batch(&mut self, a: &[Dim], b: &[Dim]) -> Result<Vec<Dim>, GraphError> {
        let rank = a.len().max(b.len());
        let size = |dims: &[Dim], index: usize| {
            (index + dims.len()).checked_sub(rank).map_or_else(|| Dim::from(1), |own| dims[own].clone())
        };
        let mut batch = Vec::with_capacity(rank);
        for index in 0..rank {
            let (left, right) = (size(a, index), size(b, index));
            if left.is(1) {
                batch.push(right);
            } else {
                if !right.is(1) {
                    self.require_equal(left.clone(), right, "the batches of a matrix product")?;
                }
                batch.push(left);
            }
        }
        Ok(batch)
    }

    /// A linear layer (`mlp.linear`), or its parts if the dtype has none.
    pub fn linear(&mut self, x: NodeId, weight: NodeId, bias: Option<NodeId>) -> Result<NodeId, GraphError> {
        let plain = matches!(self.dtype(x), DType::F32 | DType::F16 | DType::BF16)
            && self.rank(x) >= 1
            && self.rank(weight) == 2
            && bias.is_none_or(|bias| self.rank(bias) == 1);
        if plain {
            return self.call("mlp.linear", &[Some(x), Some(weight), bias], &[]);
        }
        let transposed = if self.rank(weight) == 2 { self.transpose(weight, 0, 1)? } else { weight };
        let product = self.matmul(x, transposed)?;
        match bias {
            Some(bias) => self.binary("add", product, bias),
            None => Ok(product),
        }
    }
}
