//! Iteration over operands of equal shape and any strides: dimensions are collapsed where all operands allow it, the innermost one
//! is a run, and runs are distributed over the thread pool.

use std::ops::Range;

use lz_core::tensor::MAX_RANK;
use lz_core::{KernelError, TensorMut, TensorView};
use lz_primitives::call::mismatch;

use crate::pool;
use crate::rows::{TASK_BYTES, should_parallelize};

/// Start, strides in elements (none for a scalar) and element size of an operand.
#[derive(Clone, Copy)]
pub(crate) struct Operand<'a> {
    start: *mut u8,
    strides: Option<&'a [i64]>,
    size: usize,
}

impl<'a> Operand<'a> {
    /// A tensor that is read, of the shape of the output.
    pub fn input(view: &'a TensorView<'_>, shape: &[i64]) -> Result<Operand<'a>, KernelError> {
        if view.shape() != shape {
            return Err(mismatch("inputs and outputs must have the same shape"));
        }
        Ok(Operand::of(view))
    }

    /// The rows of a tensor: each element stands for a row along the last dimension.
    pub fn rows(mut self) -> Operand<'a> {
        self.strides = self.strides.map(|strides| strides.split_last().map_or(strides, |(_, rows)| rows));
        self
    }

    /// The first `count` dimensions of a tensor.
    pub fn leading(mut self, count: usize) -> Operand<'a> {
        self.strides = self.strides.map(|strides| &strides[..count.min(strides.len())]);
        self
    }

    /// A tensor of any shape.
    pub fn of(view: &'a TensorView<'_>) -> Operand<'a> {
        Operand { start: view.as_ptr().cast_mut(), strides: Some(view.strides()), size: view.dtype().size() }
    }

    /// A tensor that is written.
    pub fn output(tensor: &'a mut TensorMut<'_>) -> Operand<'a> {
        let (start, size) = (tensor.as_mut_ptr(), tensor.dtype().size());
        Operand { start, strides: Some(tensor.strides()), size }
    }

    /// One element for all indices.
    pub fn scalar<T>(value: &'a T) -> Operand<'a> {
        Operand { start: std::ptr::from_ref(value).cast_mut().cast(), strides: None, size: size_of::<T>() }
    }
}

/// The runs of `N` operands. Strides are in bytes.
pub(crate) struct Runs<const N: usize> {
    /// Elements of a run.
    pub len: usize,
    /// Stride of each operand within a run.
    pub inner: [isize; N],
    starts: [*mut u8; N],
    rank: usize,
    sizes: [usize; MAX_RANK],
    steps: [[isize; N]; MAX_RANK],
    count: usize,
    /// Bytes per element of all operands together.
    traffic: usize,
}

// SAFETY: the memory is borrowed for as long as the operands; tasks write disjoint runs.
unsafe impl<const N: usize> Sync for Runs<N> {}

impl<const N: usize> Runs<N> {
    /// Of operands of this shape.
    #[inline]
    pub fn new(shape: &[i64], operands: [Operand<'_>; N]) -> Runs<N> {
        let mut runs = Runs {
            len: 1,
            inner: operands.map(|operand| operand.size as isize),
            starts: operands.map(|operand| operand.start),
            rank: 0,
            sizes: [0; MAX_RANK],
            steps: [[0; N]; MAX_RANK],
            count: 1,
            traffic: operands.iter().map(|operand| operand.size).sum(),
        };
        // From the last dimension to the first; a dimension joins the previous one if every operand continues it.
        let (mut sizes, mut steps, mut rank) = ([0usize; MAX_RANK], [[0isize; N]; MAX_RANK], 0);
        for dimension in (0..shape.len()).rev() {
            let size = shape[dimension] as usize;
            if size == 1 {
                continue;
            }
            let mut step = [0isize; N];
            for (step, operand) in step.iter_mut().zip(&operands) {
                *step = operand
                    .strides
                    .map_or(0, |strides| strides[dimension] as isize)
                    .wrapping_mul(operand.size as isize);
            }
            if rank > 0 {
                let (below, size_below) = (&steps[rank - 1], sizes[rank - 1]);
                if (0..N).all(|n| step[n] == below[n].wrapping_mul(size_below as isize)) {
                    sizes[rank - 1] = size_below * size;
                    continue;
                }
            }
            (sizes[rank], steps[rank], rank) = (size, step, rank + 1);
        }
        if rank > 0 {
            (runs.len, runs.inner, runs.rank) = (sizes[0], steps[0], rank - 1);
            for outer in 1..rank {
                // Stored from the first dimension to the last.
                (runs.sizes[rank - 1 - outer], runs.steps[rank - 1 - outer]) = (sizes[outer], steps[outer]);
                runs.count *= sizes[outer];
            }
        }
        runs
    }

    /// Runs `body` with the start of each operand and the number of elements, for every run or a part of it, on several threads
    /// if the operands are large.
    #[inline]
    pub fn for_each(&self, body: impl Fn([*mut u8; N], usize) + Sync) {
        if self.len == 0 || self.count == 0 {
            return;
        }
        let bytes = self.len.saturating_mul(self.traffic);
        if !should_parallelize(bytes.saturating_mul(self.count)) {
            if self.count == 1 {
                return body(self.starts, self.len);
            }
            return self.range(0..self.count, &body);
        }
        self.for_each_parallel(bytes, &body);
    }

    #[inline(never)]
    fn for_each_parallel(&self, bytes: usize, body: &(dyn Fn([*mut u8; N], usize) + Sync)) {
        let pieces = (bytes / TASK_BYTES).max(1);
        if pieces == 1 {
            let grain = (TASK_BYTES / bytes.max(1)).max(1);
            return pool::for_each(self.count.div_ceil(grain), &|task| {
                let start = task * grain;
                self.range(start..self.count.min(start + grain), &body);
            });
        }
        // Parts start at multiples of a cache line.
        let part = self.len.div_ceil(pieces).next_multiple_of(64);
        let pieces = self.len.div_ceil(part);
        pool::for_each(self.count * pieces, &|task| {
            let (run, first) = (task / pieces, task % pieces * part);
            let mut starts = self.starts_of(run).0;
            for (start, step) in starts.iter_mut().zip(&self.inner) {
                *start = start.wrapping_offset(step * first as isize);
            }
            body(starts, part.min(self.len - first));
        });
    }

    /// Start of each operand, and the index, of a run.
    fn starts_of(&self, run: usize) -> ([*mut u8; N], [usize; MAX_RANK]) {
        let (mut starts, mut index, mut rest) = (self.starts, [0; MAX_RANK], run);
        for dimension in (0..self.rank).rev() {
            index[dimension] = rest % self.sizes[dimension];
            rest /= self.sizes[dimension];
            for (start, step) in starts.iter_mut().zip(&self.steps[dimension]) {
                *start = start.wrapping_offset(step * index[dimension] as isize);
            }
        }
        (starts, index)
    }

    fn range(&self, runs: Range<usize>, body: &impl Fn([*mut u8; N], usize)) {
        let (mut starts, mut index) = self.starts_of(runs.start);
        for _ in runs {
            body(starts, self.len);
            for dimension in (0..self.rank).rev() {
                index[dimension] += 1;
                let back = index[dimension] == self.sizes[dimension];
                // At the end of a dimension, back to its start.
                let steps = if back { 1 - self.sizes[dimension] as isize } else { 1 };
                for (start, step) in starts.iter_mut().zip(&self.steps[dimension]) {
                    *start = start.wrapping_offset(step * steps);
                }
                if !back {
                    break;
                }
                index[dimension] = 0;
            }
        }
    }

    /// Sets the bytes per element that decide how many threads are used, where an element stands for a row.
    pub fn with_traffic(mut self, bytes: usize) -> Runs<N> {
        self.traffic = bytes;
        self
    }

    /// Runs `body` with the address of every element of each operand, on this thread.
    pub fn for_each_serial(&self, mut body: impl FnMut([*mut u8; N])) {
        for run in 0..self.count {
            let mut starts = self.starts_of(run).0;
            for _ in 0..self.len {
                body(starts);
                for (start, step) in starts.iter_mut().zip(&self.inner) {
                    *start = start.wrapping_offset(*step);
                }
            }
        }
    }

    /// Number of runs.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Start of each operand in a run.
    pub fn start(&self, run: usize) -> [*mut u8; N] {
        self.starts_of(run).0
    }

    /// Takes the outer dimension along which an operand has this stride out of the runs.
    pub fn tiled(&self, operand: usize, stride: isize) -> Option<Tiled<N>> {
        let dimension = (0..self.rank).find(|&dimension| self.steps[dimension][operand] == stride)?;
        let (rows, steps) = (self.sizes[dimension], self.steps[dimension]);
        let mut runs = Runs { rank: self.rank - 1, count: self.count / rows.max(1), ..*self };
        for after in dimension..self.rank - 1 {
            (runs.sizes[after], runs.steps[after]) = (self.sizes[after + 1], self.steps[after + 1]);
        }
        Some(Tiled { runs, rows, steps })
    }
}

/// Runs without one of their outer dimensions, which has this size and these strides.
pub(crate) struct Tiled<const N: usize> {
    pub runs: Runs<N>,
    pub rows: usize,
    pub steps: [isize; N],
}
