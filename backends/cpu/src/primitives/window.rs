//! Windows over image planes: `primitive.pool2d`, and convolutions with one channel per group.

use std::ops::Range;

use lz_core::{DType, KernelError, OutArg, Run, TensorView};
use lz_primitives::call::{Call, mismatch, output};
use lz_primitives::functions::PoolFunction;
use lz_primitives::reference::window::Window;

use super::block::{BLOCK, Buffer, Strided, is_lanes};
use super::conv::{Problem, plane};
use crate::rows::for_each_range;
use crate::simd::{Float, Simd, vectors};

/// Position in the image of an element of a window; may be outside.
#[inline(always)]
pub(super) fn position(window: &Window, axis: usize, output: usize, element: usize) -> isize {
    (output as i64 * window.stride[axis] + element as i64 * window.dilation[axis] - window.before[axis])
        as isize
}

/// Outputs along an axis whose window element `element` is inside an image of this size.
#[inline(always)]
pub(super) fn inside(window: &Window, axis: usize, size: usize, element: usize) -> Range<usize> {
    let (stride, offset) =
        (window.stride[axis], element as i64 * window.dilation[axis] - window.before[axis]);
    // The first output with a position of at least 0, and the first one with a position of at least `size`.
    let first = |bound: i64| {
        let distance = (bound - offset).max(0) as usize;
        // Divisions by a constant are much faster.
        match stride {
            1 => distance,
            2 => distance.div_ceil(2),
            stride => distance.div_ceil(stride as usize),
        }
    };
    first(0)..first(size as i64)
}

/// Number of outputs along an axis; 0 if a window does not fit.
pub(super) fn outputs(window: &Window, axis: usize, size: usize, kernel: usize) -> usize {
    let padded = size as i64 + window.before[axis] + window.after[axis];
    match padded - window.dilation[axis] * (kernel as i64 - 1) - 1 {
        rest @ 0.. => (rest / window.stride[axis]) as usize + 1,
        _ => 0,
    }
}

/// One channel of an image; strides of rows and columns are in bytes.
#[derive(Clone, Copy)]
pub(super) struct Plane {
    pub start: *mut u8,
    pub steps: [isize; 2],
    pub dtype: DType,
}

// SAFETY: tasks write disjoint planes, and only read others.
unsafe impl Sync for Plane {}

impl Plane {
    fn at(self, row: isize, column: isize) -> *mut u8 {
        self.start.wrapping_offset(self.steps[0] * row + self.steps[1] * column)
    }
}

/// What is accumulated over a window.
#[derive(Clone, Copy)]
enum Accumulate {
    Max,
    Sum,
    /// Sum weighted by this plane of the kernel.
    Weighted(Plane),
}

/// Accumulates the windows of one output row, block by block, and passes each block to `finish`.
///
/// # Safety
/// The planes have the sizes of the problem.
unsafe fn row<S: Simd>(
    s: S,
    (from, image): (Plane, [usize; 2]),
    (window, kernel): (&Window, [usize; 2]),
    accumulate: Accumulate,
    (y, width): (usize, usize),
    finish: impl Fn(usize, &mut [f32]),
) {
    let initial = if matches!(accumulate, Accumulate::Max) { f32::NEG_INFINITY } else { 0.0 };
    let (mut sums, mut buffer) = (Buffer([0f32; BLOCK]), Buffer([0f32; BLOCK]));
    for first in (0..width).step_by(BLOCK) {
        let count = BLOCK.min(width - first);
        sums.0[..count].fill(initial);
        for i in 0..kernel[0] {
            let line = position(window, 0, y, i);
            if !(0..image[0] as isize).contains(&line) {
                continue;
            }
            for j in 0..kernel[1] {
                let columns = inside(window, 1, image[1], j);
                let (low, high) = (columns.start.max(first), columns.end.min(first + count));
                if low >= high {
                    continue;
                }
                let stride = from.steps[1] * window.stride[1] as isize;
                let start = from.at(line, position(window, 1, low, j));
                let values = Strided { start, stride, dtype: from.dtype };
                // SAFETY: columns `low .. high` are inside the image, and fit into a block.
                unsafe {
                    let values = values.load_f32(s, high - low, &mut buffer);
                    let sums = sums.0.as_mut_ptr().add(low - first);
                    match accumulate {
                        Accumulate::Max => add::<S, true>(s, sums, values, 1.0, high - low),
                        Accumulate::Sum => add::<S, false>(s, sums, values, 1.0, high - low),
                        Accumulate::Weighted(kernel) => {
                            let weight = Strided {
                                start: kernel.at(i as isize, j as isize),
                                stride: 0,
                                dtype: kernel.dtype,
                            };
                            add::<S, false>(s, sums, values, weight.one_f32(0), high - low);
                        }
                    }
                }
            }
        }
        finish(first, &mut sums.0[..count]);
    }
}

/// Adds weighted values, or takes the maximum.
#[inline(never)]
unsafe fn add<S: Simd, const MAX: bool>(s: S, sums: *mut f32, values: *const f32, weight: f32, count: usize) {
    s.vectorize(|| {
        let weight = s.splat(weight);
        vectors!(S, count, |span| {
            // SAFETY: the caller guarantees both.
            unsafe {
                let (sum, value) =
                    (<f32 as Float>::load(s, sums, span), <f32 as Float>::load(s, values, span));
                let result = if MAX {
                    // The maximum with NaN is the second operand.
                    s.select(s.is_nan(sum), sum, s.max(sum, value))
                } else {
                    s.fma(value, weight, sum)
                };
                <f32 as Float>::store(s, sums, span, result);
            }
        });
    });
}

/// A convolution with one input and one output channel per group.
pub(super) fn depthwise<S: Simd>(
    s: S,
    x: &TensorView<'_>,
    weight: &TensorView<'_>,
    [bias, residual]: [Option<&TensorView<'_>>; 2],
    to: &TensorView<'_>,
    problem: &Problem,
) -> Result<(), KernelError> {
    if !is_lanes(x.dtype()) {
        return Err(mismatch("tensors must be f32, f16 or bf16"));
    }
    let channels = x.shape()[1] as usize;
    let [height, width] = problem.out;
    let bytes = 4 * height * width * problem.kernel[0] * problem.kernel[1];
    for_each_range(problem.batch * channels, bytes, &|planes| {
        for index in planes {
            let (image, channel) = (index / channels, index % channels);
            let (from, target) = (plane(x, image, channel), plane(to, image, channel));
            let kernel = plane(weight, channel, 0);
            let bias = bias.map_or(0.0, |bias| bias.at(&[channel as i64]) as f32);
            let residual = residual.map(|residual| plane(residual, image, channel));
            for y in 0..height {
                let finish = |first: usize, sums: &mut [f32]| {
                    let residual = residual.map(|plane| Strided {
                        start: plane.at(y as isize, first as isize),
                        stride: plane.steps[1],
                        dtype: plane.dtype,
                    });
                    for (offset, sum) in sums.iter_mut().enumerate() {
                        if !sum.is_finite() {
                            let shape = (&problem.window, problem.kernel, problem.image);
                            *sum = exact(from, Some(kernel), shape, [y, first + offset]) as f32;
                        }
                        // SAFETY: the residual has the shape of the output.
                        *sum += bias + residual.as_ref().map_or(0.0, |row| unsafe { row.one_f32(offset) });
                        if problem.relu && *sum < 0.0 {
                            *sum = 0.0;
                        }
                    }
                    let start = target.at(y as isize, first as isize);
                    let row = Strided { start, stride: target.steps[1], dtype: target.dtype };
                    // SAFETY: the block is inside the output row, and planes are disjoint.
                    unsafe { row.store_f32(s, sums.as_ptr(), sums.len()) };
                };
                let shape = (&problem.window, problem.kernel);
                // SAFETY: the planes have the sizes of the problem.
                unsafe {
                    row(s, (from, problem.image), shape, Accumulate::Weighted(kernel), (y, width), finish)
                };
            }
        }
    });
    Ok(())
}

/// The sum of one window in f64, weighted by a kernel.
#[cold]
fn exact(
    from: Plane,
    weights: Option<Plane>,
    (window, kernel, image): (&Window, [usize; 2], [usize; 2]),
    at: [usize; 2],
) -> f64 {
    let one = |plane: Plane, row, column| {
        let element = Strided { start: plane.at(row, column), stride: 0, dtype: plane.dtype };
        // SAFETY: the element is inside the plane.
        f64::from(unsafe { element.one_f32(0) })
    };
    let inside = |position: isize, size: usize| (0..size as isize).contains(&position);
    let mut sum = 0.0;
    for i in 0..kernel[0] {
        for j in 0..kernel[1] {
            let (row, column) = (position(window, 0, at[0], i), position(window, 1, at[1], j));
            if inside(row, image[0]) && inside(column, image[1]) {
                let weight = weights.map_or(1.0, |weights| one(weights, i as isize, j as isize));
                sum += one(from, row, column) * weight;
            }
        }
    }
    sum
}

/// `primitive.pool2d`.
pub(super) fn pool2d<S: Simd>(
    s: S,
    call: Call<'_, '_>,
    outputs_of_call: &mut [OutArg<'_>],
    _run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let (x, function) = (call.tensor(0)?, call.case::<PoolFunction>(1)?);
    let (kernel, window) = ([call.size(2)?, call.size(3)?], Window::read(call, 4)?);
    let (extra, include) = ([call.int(12)?, call.int(13)?], call.flag(14)?);
    let output = output(outputs_of_call, 0)?;
    let to = output.as_view();
    let (&[batch, channels, height, width], &[out_batch, out_channels, out_h, out_w]) =
        (x.shape(), to.shape())
    else {
        return Err(mismatch("x and the output must have four dimensions"));
    };
    let (image, out) = ([height as usize, width as usize], [out_h as usize, out_w as usize]);
    if [batch, channels] != [out_batch, out_channels]
        || (0..2).any(|axis| out[axis] != outputs(&window, axis, image[axis], kernel[axis]))
        || x.dtype() != to.dtype()
        || !is_lanes(x.dtype())
    {
        return Err(mismatch("the sizes or dtypes of x and the output do not fit the windows"));
    }
    // Elements of a window that an average counts, along an axis.
    let counted = |axis: usize, output: usize| {
        let end = image[axis] as i64 + window.after[axis] - extra[axis];
        (0..kernel[axis])
            .filter(|&element| {
                let position = position(&window, axis, output, element) as i64;
                if include { position < end } else { (0..image[axis] as i64).contains(&position) }
            })
            .count() as f32
    };
    let accumulate = if function == PoolFunction::Max { Accumulate::Max } else { Accumulate::Sum };
    let (channels, planes) = (channels as usize, batch as usize * channels as usize);
    for_each_range(planes, 4 * (out[0] * out[1] * kernel[0] * kernel[1]).max(1), &|range| {
        for index in range {
            let (from, target) = (
                plane(x, index / channels, index % channels),
                plane(&to, index / channels, index % channels),
            );
            for y in 0..out[0] {
                let rows = if function == PoolFunction::Avg { counted(0, y) } else { 1.0 };
                let finish = |first: usize, sums: &mut [f32]| {
                    if function == PoolFunction::Avg {
                        for (offset, sum) in sums.iter_mut().enumerate() {
                            let count = rows * counted(1, first + offset);
                            *sum = if sum.is_finite() {
                                *sum / count
                            } else {
                                let at = [y, first + offset];
                                (exact(from, None, (&window, kernel, image), at) / f64::from(count)) as f32
                            };
                        }
                    }
                    let start = target.at(y as isize, first as isize);
                    let row = Strided { start, stride: target.steps[1], dtype: target.dtype };
                    // SAFETY: the block is inside the output row, and planes are disjoint.
                    unsafe { row.store_f32(s, sums.as_ptr(), sums.len()) };
                };
                // SAFETY: the planes have these sizes.
                unsafe { row(s, (from, image), (&window, kernel), accumulate, (y, out[1]), finish) };
            }
        }
    });
    Ok(())
}
