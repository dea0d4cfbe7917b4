//! `primitive.softmax`.

use lz_core::{DType, KernelError, OutArg, Run};
use lz_primitives::call::{Call, mismatch, output};

use super::block::{BLOCK, Buffer, Strided, is_lanes};
use super::rows::RowRuns;
use crate::simd::{Float, Simd, Work, exp, vectors};

/// `primitive.softmax`.
pub(super) fn softmax<S: Simd>(
    s: S,
    call: Call<'_, '_>,
    outputs: &mut [OutArg<'_>],
    _run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let (x, log) = (call.tensor(0)?, call.flag(1)?);
    let output = output(outputs, 0)?;
    if x.shape() != output.shape() || x.dtype() != output.dtype() || !x.dtype().is_float() {
        return Err(mismatch("x and the output must have the same shape and float dtype"));
    }
    let lanes = is_lanes(x.dtype());
    let rows = RowRuns::with_rows(x, output)?;
    let n = rows.n;
    rows.for_each(|to, from| {
        // SAFETY: both rows have `n` elements of this dtype.
        unsafe {
            if lanes {
                Row { s, from, to, n }.run(log);
            } else {
                row_f64(from, to, n, log);
            }
        }
    });
    Ok(())
}

unsafe fn row_f64(from: Strided, to: Strided, n: usize, log: bool) {
    // SAFETY: the caller guarantees the elements.
    let at = |index: usize| unsafe { from.at(index).cast::<f64>().read() };
    let largest = (0..n).map(at).fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = (0..n).map(|index| (at(index) - largest).exp()).sum();
    for index in 0..n {
        let shifted = at(index) - largest;
        let value = if log { shifted - sum.ln() } else { shifted.exp() / sum };
        // SAFETY: the caller guarantees the elements.
        unsafe { to.at(index).cast::<f64>().write(value) };
    }
}

/// One row.
struct Row<S> {
    s: S,
    from: Strided,
    to: Strided,
    n: usize,
}

impl<S: Simd> Row<S> {
    /// # Safety
    /// Both rows have `n` elements of a 16- or 32-bit float type.
    unsafe fn run(&self, log: bool) {
        let s = self.s;
        let mut largest = f32::NEG_INFINITY;
        // SAFETY: the caller guarantees the rows; blocks are inside them.
        unsafe {
            self.blocks(|_, from, count| {
                // The maximum of a row with NaN does not matter: its sum is NaN.
                let mut value = f32::NEG_INFINITY;
                s.perform(Largest { s, from, count, largest: &mut value });
                largest = if value > largest { value } else { largest };
            });
            let mut sum = 0.0f32;
            if log {
                self.blocks(|_, from, count| {
                    let mut total = 0.0;
                    s.perform(Exponentials { s, from, to: None, count, largest, sum: &mut total });
                    sum += total;
                });
                let (shift, offset) = (largest, -sum.ln());
                return self.finish(|from, to, count| {
                    s.perform(Affine { s, from, to, count, shift, factor: 1.0, offset });
                });
            }
            if let (Some(from), Some(to)) =
                (self.from.dense::<f32>(DType::F32), self.to.dense::<f32>(DType::F32))
            {
                let count = self.n;
                s.perform(Exponentials { s, from, to: Some(to), count, largest, sum: &mut sum });
                let factor = 1.0 / sum;
                return s.perform(Affine { s, from: to, to, count, shift: 0.0, factor, offset: 0.0 });
            }
            self.blocks(|_, from, count| {
                let mut total = 0.0;
                s.perform(Exponentials { s, from, to: None, count, largest, sum: &mut total });
                sum += total;
            });
            let factor = 1.0 / sum;
            self.finish(|from, to, count| {
                let mut total = 0.0;
                s.perform(Exponentials { s, from, to: Some(to), count, largest, sum: &mut total });
                s.perform(Affine { s, from: to, to, count, shift: 0.0, factor, offset: 0.0 });
            });
        }
    }

    /// Runs `body` with the index, the address and the length of every block of the input.
    unsafe fn blocks(&self, mut body: impl FnMut(usize, *const f32, usize)) {
        if let Some(dense) = self.from.dense::<f32>(DType::F32) {
            return body(0, dense, self.n);
        }
        let mut buffer = Buffer([0f32; BLOCK]);
        for first in (0..self.n).step_by(BLOCK) {
            let count = BLOCK.min(self.n - first);
            // SAFETY: the block is inside the row.
            let from = unsafe { self.from.from(first).load_f32(self.s, count, &mut buffer) };
            body(first, from, count);
        }
    }

    /// Computes every block of the output.
    unsafe fn finish(&self, body: impl Fn(*const f32, *mut f32, usize)) {
        let (mut input, mut result) = (Buffer([0f32; BLOCK]), Buffer([0f32; BLOCK]));
        for first in (0..self.n).step_by(BLOCK) {
            let count = BLOCK.min(self.n - first);
            // SAFETY: the block is inside both rows.
            unsafe {
                let from = self.from.from(first).load_f32(self.s, count, &mut input);
                body(from, result.0.as_mut_ptr(), count);
                self.to.from(first).store_f32(self.s, result.0.as_ptr(), count);
            }
        }
    }
}

/// The largest element that is not NaN.
struct Largest<'a, S> {
    s: S,
    from: *const f32,
    count: usize,
    largest: &'a mut f32,
}

impl<S: Simd> Work for Largest<'_, S> {
    #[inline(always)]
    fn perform(self) {
        let s = self.s;
        let mut sums = [s.splat(f32::NEG_INFINITY); 4];
        let whole = self.count / S::LANES * S::LANES;
        for at in (0..whole).step_by(S::LANES) {
            let sum = &mut sums[at / S::LANES % 4];
            // SAFETY: the constructor guarantees the elements. The maximum with NaN is the second operand.
            *sum = unsafe { s.max(s.load(self.from.add(at)), *sum) };
        }
        let mut largest = s.largest(s.max(s.max(sums[0], sums[1]), s.max(sums[2], sums[3])));
        for at in whole..self.count {
            // SAFETY: the constructor guarantees the elements.
            largest = largest.max(unsafe { *self.from.add(at) });
        }
        *self.largest = largest;
    }
}

/// `exp(x - largest)` and its sum.
struct Exponentials<'a, S> {
    s: S,
    from: *const f32,
    to: Option<*mut f32>,
    count: usize,
    largest: f32,
    sum: &'a mut f32,
}

impl<S: Simd> Work for Exponentials<'_, S> {
    #[inline(always)]
    fn perform(self) {
        let s = self.s;
        let largest = s.splat(self.largest);
        let mut sums = [s.splat(0.0); 2];
        let mut tail = s.splat(0.0);
        let (whole, rest) = (self.count / S::LANES * S::LANES, self.count % S::LANES);
        for at in (0..whole).step_by(S::LANES) {
            // SAFETY: the constructor guarantees the elements.
            unsafe {
                let value = exp(s, s.sub(s.load(self.from.add(at)), largest));
                if let Some(to) = self.to {
                    s.store(to.add(at), value);
                }
                let sum = &mut sums[at / S::LANES % 2];
                *sum = s.add(*sum, value);
            }
        }
        if rest > 0 {
            // SAFETY: the constructor guarantees the elements.
            unsafe {
                let value = exp(s, s.sub(s.load_partial(self.from.add(whole), rest), largest));
                if let Some(to) = self.to {
                    s.store_partial(to.add(whole), value, rest);
                }
                tail = s.keep_first(value, rest);
            }
        }
        *self.sum = s.sum(s.add(s.add(sums[0], sums[1]), tail));
    }
}

/// `(x - shift) * factor + offset`.
struct Affine<S> {
    s: S,
    from: *const f32,
    to: *mut f32,
    count: usize,
    shift: f32,
    factor: f32,
    offset: f32,
}

impl<S: Simd> Work for Affine<S> {
    #[inline(always)]
    fn perform(self) {
        let s = self.s;
        let (shift, factor, offset) = (s.splat(self.shift), s.splat(self.factor), s.splat(self.offset));
        vectors!(S, self.count, |span| {
            // SAFETY: the constructor guarantees the elements.
            unsafe {
                let x = <f32 as Float>::load(s, self.from, span);
                <f32 as Float>::store(s, self.to, span, s.fma(s.sub(x, shift), factor, offset));
            }
        });
    }
}
