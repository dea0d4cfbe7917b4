//! `primitive.reduce` and `primitive.reduce_int`.

use lz_core::{DType, KernelError, OutArg, Run};
use lz_primitives::call::{Call, mismatch, output};
use lz_primitives::functions::{ReduceFunction, ReduceIntFunction};
use lz_primitives::numbers;

use super::block::{BLOCK, Buffer, Strided, is_lanes};
use super::rows::RowRuns;
use crate::simd::{Float, Simd, Span, Work, vectors};

/// `primitive.reduce`.
pub(super) fn reduce<S: Simd>(
    s: S,
    call: Call<'_, '_>,
    outputs: &mut [OutArg<'_>],
    _run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let (x, function) = (call.tensor(0)?, call.case::<ReduceFunction>(1)?);
    let output = output(outputs, 0)?;
    if !x.dtype().is_float() || x.dtype() != output.dtype() {
        return Err(mismatch("x and the output must have the same float dtype"));
    }
    let rows = RowRuns::with_elements(x, output)?;
    let n = rows.n;
    if !is_lanes(x.dtype()) {
        rows.for_each(|to, row| {
            let values = |index: usize| {
                // SAFETY: the row has `n` elements.
                unsafe { row.at(index).cast::<f64>().read() }
            };
            let result = match function {
                ReduceFunction::Sum | ReduceFunction::Mean => (0..n).map(values).sum::<f64>(),
                ReduceFunction::SumSquares => (0..n).map(values).map(|x| x * x).sum(),
                ReduceFunction::Prod => (0..n).map(values).product(),
                ReduceFunction::Max => (0..n).map(values).fold(f64::NEG_INFINITY, numbers::maximum),
                ReduceFunction::Min => (0..n).map(values).fold(f64::INFINITY, numbers::minimum),
            };
            let result = if function == ReduceFunction::Mean { result / n as f64 } else { result };
            // SAFETY: the output has one element per row.
            unsafe { to.start.cast::<f64>().write(result) };
        });
        return Ok(());
    }
    let finish = |value: f32| if function == ReduceFunction::Mean { value / n as f32 } else { value };
    if rows.step().unsigned_abs() > rows.row_step().unsigned_abs() && rows.row_step() != 0 {
        // Rows are next to each other: one lane per row.
        rows.for_each_run(|to, from, len| {
            for first in (0..len).step_by(BLOCK) {
                let count = BLOCK.min(len - first);
                let columns = Columns { s, from: from.from(first), step: rows.step(), n, count, function };
                let mut sums = columns.run();
                for (row, sum) in sums.0[..count].iter_mut().enumerate() {
                    let at = Strided { start: from.at(first + row), stride: rows.step(), ..from };
                    *sum = if sum.is_finite() { finish(*sum) } else { exact(function, at, n, *sum) };
                }
                // SAFETY: the output has one element per row.
                unsafe { to.from(first).store_f32(s, sums.0.as_ptr(), count) };
            }
        });
        return Ok(());
    }
    rows.for_each(|to, row| {
        let mut result = initial(function);
        let mut buffer = Buffer([0f32; BLOCK]);
        let dense = row.dense::<f32>(DType::F32);
        let length = if dense.is_some() { n.max(1) } else { BLOCK };
        for first in (0..n).step_by(length) {
            let count = length.min(n - first);
            // SAFETY: the block is inside the row; only dense rows are longer than a block.
            let value = unsafe {
                let from = dense
                    .map_or_else(|| row.from(first).load_f32(s, count, &mut buffer), <*mut f32>::cast_const);
                reduce_dense(s, function, from, count)
            };
            result = combine(function, result, value);
        }
        let result = if result.is_finite() { finish(result) } else { exact(function, row, n, result) };
        // SAFETY: the output has one element per row.
        unsafe { to.set_f32(0, result) };
    });
    Ok(())
}

/// Recomputes a sum or product that is not finite in f64, because an intermediate result may have overflowed.
#[cold]
fn exact(function: ReduceFunction, row: Strided, n: usize, found: f32) -> f32 {
    // SAFETY: the row has `n` elements.
    let values = (0..n).map(|index| f64::from(unsafe { row.one_f32(index) }));
    match function {
        ReduceFunction::Max | ReduceFunction::Min => found,
        ReduceFunction::Sum => values.sum::<f64>() as f32,
        ReduceFunction::Mean => (values.sum::<f64>() / n as f64) as f32,
        ReduceFunction::SumSquares => values.map(|x| x * x).sum::<f64>() as f32,
        ReduceFunction::Prod => values.product::<f64>() as f32,
    }
}

fn initial(function: ReduceFunction) -> f32 {
    match function {
        ReduceFunction::Sum | ReduceFunction::Mean | ReduceFunction::SumSquares => 0.0,
        ReduceFunction::Prod => 1.0,
        ReduceFunction::Max => f32::NEG_INFINITY,
        ReduceFunction::Min => f32::INFINITY,
    }
}

#[inline(always)]
fn combine(function: ReduceFunction, a: f32, b: f32) -> f32 {
    match function {
        ReduceFunction::Sum | ReduceFunction::Mean | ReduceFunction::SumSquares => a + b,
        ReduceFunction::Prod => a * b,
        ReduceFunction::Max => {
            if a > b || a.is_nan() {
                a
            } else {
                b
            }
        }
        ReduceFunction::Min => {
            if a < b || a.is_nan() {
                a
            } else {
                b
            }
        }
    }
}

/// One step of a reduction on lanes. NaN stays.
#[inline(always)]
fn combine_lanes<S: Simd>(s: S, function: ReduceFunction, sum: S::F32, x: S::F32) -> S::F32 {
    match function {
        ReduceFunction::Sum | ReduceFunction::Mean => s.add(sum, x),
        ReduceFunction::SumSquares => s.fma(x, x, sum),
        ReduceFunction::Prod => s.mul(sum, x),
        ReduceFunction::Max => s.select(s.is_nan(sum), sum, s.max(sum, x)),
        ReduceFunction::Min => s.select(s.is_nan(sum), sum, s.min(sum, x)),
    }
}

/// The reduction of dense elements.
///
/// # Safety
/// `count` elements are readable.
pub(super) unsafe fn reduce_dense<S: Simd>(
    s: S,
    function: ReduceFunction,
    from: *const f32,
    count: usize,
) -> f32 {
    let mut lanes = [0f32; crate::simd::MAX_LANES];
    match function {
        ReduceFunction::Sum | ReduceFunction::Mean => s.perform(Dense::<S, 0>(s, from, count, &mut lanes)),
        ReduceFunction::SumSquares => s.perform(Dense::<S, 1>(s, from, count, &mut lanes)),
        ReduceFunction::Prod => s.perform(Dense::<S, 2>(s, from, count, &mut lanes)),
        ReduceFunction::Max => s.perform(Dense::<S, 3>(s, from, count, &mut lanes)),
        ReduceFunction::Min => s.perform(Dense::<S, 4>(s, from, count, &mut lanes)),
    }
    // Squares are already in the lanes.
    lanes[..S::LANES].iter().fold(initial(function), |sum, &lane| combine(function, sum, lane))
}

const fn function_of(number: u8) -> ReduceFunction {
    match number {
        0 => ReduceFunction::Sum,
        1 => ReduceFunction::SumSquares,
        2 => ReduceFunction::Prod,
        3 => ReduceFunction::Max,
        _ => ReduceFunction::Min,
    }
}

/// Reduces dense elements to one value per lane, with four accumulators to hide latency.
struct Dense<'l, S, const FUNCTION: u8>(S, *const f32, usize, &'l mut [f32; crate::simd::MAX_LANES]);

impl<S: Simd, const FUNCTION: u8> Work for Dense<'_, S, FUNCTION> {
    #[inline(always)]
    fn perform(self) {
        let (s, function) = (self.0, function_of(FUNCTION));
        let neutral = initial(function);
        let mut sums = [s.splat(neutral); 4];
        vectors!(S, self.2, |span, k of 4| {
            // SAFETY: the constructor guarantees the elements.
            let x = unsafe { <f32 as Float>::load(s, self.1, span) };
            // Lanes past the end of the row must not change the result.
            let x = match span.part() {
                Some(count) => s.add(s.keep_first(x, count), past(s, neutral, count)),
                None => x,
            };
            sums[k] = combine_lanes(s, function, sums[k], x);
        });
        let [a, b, c, d] = sums;
        let merge = if FUNCTION == 1 { ReduceFunction::Sum } else { function };
        let sum = combine_lanes(s, merge, combine_lanes(s, merge, a, b), combine_lanes(s, merge, c, d));
        // SAFETY: the buffer has a whole vector.
        unsafe { s.store(self.3.as_mut_ptr(), sum) };
    }
}

/// `value` in the lanes from `count` on, 0 before.
#[inline(always)]
fn past<S: Simd>(s: S, value: f32, count: usize) -> S::F32 {
    let inside = s.lt(s.to_f32(s.lane_indices()), s.splat(count as f32));
    s.select(inside, s.splat(0.0), s.splat(value))
}

/// Reduces rows that are next to each other: element i of row r is at `from + i * step + r * row stride`.
struct Columns<S> {
    s: S,
    from: Strided,
    step: isize,
    n: usize,
    count: usize,
    function: ReduceFunction,
}

impl<S: Simd> Columns<S> {
    fn run(&self) -> Buffer<f32> {
        let mut sums = Buffer([initial(self.function); BLOCK]);
        let mut buffer = Buffer([0f32; BLOCK]);
        for index in 0..self.n {
            let from =
                Strided { start: self.from.start.wrapping_offset(self.step * index as isize), ..self.from };
            // SAFETY: every row has element `index`.
            let values = unsafe { from.load_f32(self.s, self.count, &mut buffer) };
            self.add(sums.0.as_mut_ptr(), values);
        }
        sums
    }

    #[inline(never)]
    fn add(&self, sums: *mut f32, values: *const f32) {
        let (s, function) = (self.s, self.function);
        s.vectorize(|| {
            vectors!(S, self.count, |span| {
                // SAFETY: both have `count` elements.
                unsafe {
                    let sum = <f32 as Float>::load(s, sums, span);
                    let value = <f32 as Float>::load(s, values, span);
                    <f32 as Float>::store(s, sums, span, combine_lanes(s, function, sum, value));
                }
            });
        });
    }
}

/// `primitive.reduce_int`.
pub(super) fn reduce_int<S: Simd>(
    _s: S,
    call: Call<'_, '_>,
    outputs: &mut [OutArg<'_>],
    _run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let (x, function) = (call.tensor(0)?, call.case::<ReduceIntFunction>(1)?);
    let output = output(outputs, 0)?;
    if x.dtype().is_float() || output.dtype().is_float() {
        return Err(mismatch("x and the output must be integers or bools"));
    }
    let rows = RowRuns::with_elements(x, output)?;
    rows.for_each(|to, row| {
        let mut result = match function {
            ReduceIntFunction::Sum | ReduceIntFunction::Any => 0,
            ReduceIntFunction::Prod | ReduceIntFunction::All => 1,
            ReduceIntFunction::Max => i64::MIN,
            ReduceIntFunction::Min => i64::MAX,
        };
        let mut buffer = Buffer([0i64; BLOCK]);
        for first in (0..rows.n).step_by(BLOCK) {
            let count = BLOCK.min(rows.n - first);
            // SAFETY: the block is inside the row.
            unsafe { row.from(first).load_i64(count, &mut buffer) };
            let values = buffer.0[..count].iter().copied();
            result = match function {
                ReduceIntFunction::Sum => values.fold(result, i64::wrapping_add),
                ReduceIntFunction::Prod => values.fold(result, i64::wrapping_mul),
                ReduceIntFunction::Max => values.fold(result, i64::max),
                ReduceIntFunction::Min => values.fold(result, i64::min),
                ReduceIntFunction::Any => values.fold(result, |any, value| any | i64::from(value != 0)),
                ReduceIntFunction::All => values.fold(result, |all, value| all & i64::from(value != 0)),
            };
        }
        let mut one = Buffer([0i64; BLOCK]);
        one.0[0] = result;
        // SAFETY: the output has one element per row.
        unsafe { to.store_i64(1, &one) };
    });
    Ok(())
}
