//! Rows along the last dimension, of any strides, for reductions and the like.

use lz_core::{DType, KernelError, TensorMut, TensorView};
use lz_primitives::call::mismatch;

use super::block::Strided;
use super::runs::{Operand, Runs};

/// Runs over the rows of an input and of an output with as many rows.
pub(super) struct RowRuns {
    runs: Runs<2>,
    /// Elements of an input row.
    pub n: usize,
    from: (isize, DType),
    to: (isize, DType),
}

fn step(view: &TensorView<'_>) -> isize {
    view.strides().last().map_or(0, |step| *step as isize * view.dtype().size() as isize)
}

impl RowRuns {
    /// Of an output that has a row per input row.
    pub fn with_rows(x: &TensorView<'_>, output: &mut TensorMut<'_>) -> Result<RowRuns, KernelError> {
        let (n, rows) = split(x)?;
        let to = (step(&output.as_view()), output.dtype());
        if output.shape().split_last().is_none_or(|(_, leading)| leading != rows) {
            return Err(mismatch("the output must have the rows of x"));
        }
        let operands = [Operand::output(output).rows(), Operand::of(x).rows()];
        Ok(RowRuns::new(x, n, rows, to, operands))
    }

    /// Of an output that has an element per input row.
    pub fn with_elements(x: &TensorView<'_>, output: &mut TensorMut<'_>) -> Result<RowRuns, KernelError> {
        let (n, rows) = split(x)?;
        if output.shape() != rows {
            return Err(mismatch("the output must have one element per row of x"));
        }
        let to = (0, output.dtype());
        let operands = [Operand::output(output), Operand::of(x).rows()];
        Ok(RowRuns::new(x, n, rows, to, operands))
    }

    fn new(
        x: &TensorView<'_>,
        n: usize,
        rows: &[i64],
        to: (isize, DType),
        operands: [Operand<'_>; 2],
    ) -> RowRuns {
        let traffic = 2 * n.max(1) * x.dtype().size();
        RowRuns { runs: Runs::new(rows, operands).with_traffic(traffic), n, from: (step(x), x.dtype()), to }
    }

    /// Runs `body` with every output and input row.
    pub fn for_each(&self, body: impl Fn(Strided, Strided) + Sync) {
        self.for_each_run(|to, from, len| {
            for row in 0..len {
                let at = |rows: Strided, (stride, dtype): (isize, DType)| Strided {
                    start: rows.at(row),
                    stride,
                    dtype,
                };
                body(at(to, self.to), at(from, self.from));
            }
        });
    }

    /// Runs `body` with runs of rows: their first elements in output and input, and their number.
    pub fn for_each_run(&self, body: impl Fn(Strided, Strided, usize) + Sync) {
        self.runs.for_each(|[to, from], len| {
            let to = Strided { start: to, stride: self.runs.inner[0], dtype: self.to.1 };
            let from = Strided { start: from, stride: self.runs.inner[1], dtype: self.from.1 };
            body(to, from, len);
        });
    }

    /// Distance between elements of an input row, in bytes.
    pub fn step(&self) -> isize {
        self.from.0
    }

    /// Distance between input rows of a run, in bytes.
    pub fn row_step(&self) -> isize {
        self.runs.inner[1]
    }
}

fn split<'v>(x: &'v TensorView<'_>) -> Result<(usize, &'v [i64]), KernelError> {
    match x.shape().split_last() {
        Some((&n, rows)) => Ok((n as usize, rows)),
        None => Err(mismatch("x must have at least one dimension")),
    }
}
