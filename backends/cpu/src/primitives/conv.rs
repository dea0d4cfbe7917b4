//! `primitive.conv2d`: blocked GEMM of the weights with the windows of the image, which are packed on the fly (implicit im2col);
//! one channel per group directly.

use std::ops::Range;

use lz_core::{KernelError, OutArg, Run, TensorView};
use lz_primitives::call::{Call, mismatch, output};
use lz_primitives::functions::ConvActivation;
use lz_primitives::reference::window::Window;

use super::conv_direct::{PackedKernels, Phases};
use super::matmul::{Matrix, pack};
use super::window::{self, Plane};
use crate::gemm::blocked::{GemmOperands, NC, gemm, nr, packed_bytes};
use crate::gemm::dots::all_finite;
use crate::simd::{Float, Simd, vectors, with_float};

/// Workspace: packed weights, or packed windows if they are fewer; the padded image and an offset per element of a kernel, if the
/// weights were packed ahead of the call.
pub(super) const WORKSPACE: &str = "max(min(1056, ceil_div(max(out_channels, 1), 96) * 96) \
    * ceil_div(max(group_channels * kernel_h * kernel_w, 1), 32) * 128, \
    4 * (group_channels * (height + pad_top + pad_bottom + stride_h) * (width + pad_left + pad_right + stride_w) \
    + 64 + group_channels * kernel_h * kernel_w))";

/// `primitive.conv2d`.
pub(super) fn conv2d<S: Simd>(
    s: S,
    call: Call<'_, '_>,
    outputs: &mut [OutArg<'_>],
    run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let (x, weight, bias, residual) =
        (call.tensor(0)?, call.tensor(1)?, call.optional(2)?, call.optional(3)?);
    let window = Window::read(call, 4)?;
    let (groups, activation) = (call.size(12)?, call.case::<ConvActivation>(13)?);
    let output = output(outputs, 0)?;
    let to = output.as_view();
    let problem = Problem::new(x, weight, bias, &to, window, groups, activation)?;
    if residual.is_some_and(|residual| residual.shape() != to.shape() || residual.dtype() != to.dtype()) {
        return Err(mismatch("the residual must have the shape and dtype of the output"));
    }
    if to.elements() == 0 {
        return Ok(());
    }
    if problem.channels == 1 && problem.group_outputs == 1 {
        return window::depthwise(s, x, weight, [bias, residual], &to, &problem);
    }
    let packed = run.prepared::<PackedKernels>(1).filter(|packed| packed.fits::<S>(&problem, groups));
    let workspace = run.workspace(match packed {
        Some(_) => Phases::new(&problem).workspace_bytes(&problem),
        None => problem.workspace_bytes(),
    })?;
    with_float!(Some(x.dtype()), T => {
        let stride = |view: &TensorView<'_>, axis: usize| view.strides()[axis] as isize;
        for image in 0..problem.batch {
            for group in 0..groups {
                let first = group * problem.group_outputs;
                let offset = |view: &TensorView<'_>, index: usize, channel: usize| {
                    index as isize * stride(view, 0) + channel as isize * stride(view, 1)
                };
                let conv = Conv::<S, T> {
                    s,
                    problem: &problem,
                    x: x.as_ptr().cast::<T>().wrapping_offset(offset(x, image, group * problem.channels)),
                    x_steps: [stride(x, 1), stride(x, 2), stride(x, 3)],
                    weight: Matrix {
                        start: weight
                            .as_ptr()
                            .cast::<T>()
                            .cast_mut()
                            .wrapping_offset(first as isize * stride(weight, 0)),
                        steps: [stride(weight, 0), 1],
                    },
                    kernel_steps: [stride(weight, 1), stride(weight, 2), stride(weight, 3)],
                    bias: bias.map(|bias| {
                        let step = stride(bias, 0);
                        (bias.as_ptr().cast::<T>().wrapping_offset(first as isize * step), step)
                    }),
                    to: to.as_ptr().cast::<T>().cast_mut().wrapping_offset(offset(&to, image, first)),
                    to_steps: [stride(&to, 1), stride(&to, 2), stride(&to, 3)],
                    residual: residual.map(|residual| Residual {
                        start: residual.as_ptr().cast::<T>().wrapping_offset(offset(residual, image, first)),
                        steps: [stride(residual, 1), stride(residual, 2), stride(residual, 3)],
                    }),
                };
                match packed {
                    Some(packed) => conv.run_direct(packed, workspace),
                    None => conv.run(workspace),
                }
            }
        }
        Ok(())
    })
}

/// The sizes of a convolution.
pub(super) struct Problem {
    pub batch: usize,
    /// Input channels of a group.
    pub channels: usize,
    /// Output channels of a group.
    pub group_outputs: usize,
    pub image: [usize; 2],
    pub kernel: [usize; 2],
    pub out: [usize; 2],
    pub window: Window,
    pub relu: bool,
    /// Whether the elements of a kernel are dense.
    dense_kernel: bool,
}

impl Problem {
    fn new(
        x: &TensorView<'_>,
        weight: &TensorView<'_>,
        bias: Option<&TensorView<'_>>,
        to: &TensorView<'_>,
        window: Window,
        groups: usize,
        activation: ConvActivation,
    ) -> Result<Problem, KernelError> {
        let size = |view: &TensorView<'_>| {
            <[i64; 4]>::try_from(view.shape()).map(|sizes| sizes.map(|size| size as usize))
        };
        let (Ok([batch, inputs, height, width]), Ok([outputs, channels, kernel_h, kernel_w]), Ok(out)) =
            (size(x), size(weight), size(to))
        else {
            return Err(mismatch("x, weight and the output must have four dimensions"));
        };
        let (image, kernel) = ([height, width], [kernel_h, kernel_w]);
        let fits = groups > 0
            && channels.checked_mul(groups) == Some(inputs)
            && outputs % groups == 0
            && out
                == [
                    batch,
                    outputs,
                    window::outputs(&window, 0, height, kernel_h),
                    window::outputs(&window, 1, width, kernel_w),
                ]
            && bias.is_none_or(|bias| bias.shape() == [outputs as i64] && bias.dtype() == x.dtype());
        if !fits || weight.dtype() != x.dtype() || to.dtype() != x.dtype() {
            return Err(mismatch("the sizes or dtypes of the convolution do not fit each other"));
        }
        let steps = weight.strides();
        let (row, plane) = (kernel_w as i64, (kernel_h * kernel_w) as i64);
        Ok(Problem {
            batch,
            channels,
            group_outputs: outputs / groups,
            image,
            kernel,
            out: [out[2], out[3]],
            window,
            relu: activation == ConvActivation::Relu,
            dense_kernel: (kernel_w == 1 || steps[3] == 1)
                && (kernel_h == 1 || steps[2] == row)
                && (channels == 1 || steps[1] == plane),
        })
    }

    fn pixels(&self) -> usize {
        self.out[0] * self.out[1]
    }

    pub fn depth(&self) -> usize {
        self.channels * self.kernel[0] * self.kernel[1]
    }

    /// Whether an element of the kernel meets rows (or columns) with this remainder modulo the stride.
    pub fn meets(&self, axis: usize, remainder: usize) -> bool {
        let (stride, dilation) = (self.window.stride[axis] as usize, self.window.dilation[axis] as usize);
        (0..self.kernel[axis]).any(|element| element * dilation % stride == remainder)
    }

    /// Few windows of many channels are the packed operand, because packing the weights would cost more.
    fn windows_are_packed(&self) -> bool {
        self.pixels() * 2 < self.group_outputs
    }

    fn workspace_bytes(&self) -> u64 {
        let rows = if self.windows_are_packed() { self.pixels() } else { self.group_outputs };
        packed_bytes(rows, self.depth())
    }
}

/// One image and group.
pub(super) struct Conv<'p, S, T> {
    pub s: S,
    pub problem: &'p Problem,
    pub x: *const T,
    /// Strides of channels, rows and columns.
    pub x_steps: [isize; 3],
    /// One row per output channel, dense if `dense_kernel`.
    weight: Matrix<T>,
    /// Strides of channels, rows and columns of a kernel.
    kernel_steps: [isize; 3],
    bias: Option<(*const T, isize)>,
    to: *mut T,
    pub to_steps: [isize; 3],
    residual: Option<Residual<T>>,
}

/// What is added to the outputs, and the strides of its channels, rows and columns.
#[derive(Clone, Copy)]
struct Residual<T> {
    start: *const T,
    steps: [isize; 3],
}

// SAFETY: tasks write disjoint outputs, and only read the others.
unsafe impl<S: Sync, T> Sync for Conv<'_, S, T> {}

impl<S: Simd, T: Float> Conv<'_, S, T> {
    fn run(&self, workspace: &mut [u8]) {
        let problem = self.problem;
        if problem.depth() == 0 {
            for channel in 0..problem.group_outputs {
                for pixel in 0..problem.pixels() {
                    // SAFETY: the pixel is inside the output.
                    unsafe { *self.target(channel, pixel) = self.finish(channel, pixel, 0.0) };
                }
            }
            return;
        }
        let (pixels, outputs, depth) = (problem.pixels(), problem.group_outputs, problem.depth());
        if problem.windows_are_packed() {
            gemm(self.s, [pixels, outputs, depth], workspace, &Turned(self));
        } else {
            gemm(self.s, [outputs, pixels, depth], workspace, self);
        }
    }

    /// Packs windows: step k is element (channel, row, column) of the kernel, `wide` pixels side by side.
    ///
    /// # Safety
    /// `count * depth.len()` elements are writable, and `count` is a multiple of `wide`.
    unsafe fn pack_windows(
        &self,
        first: usize,
        count: usize,
        wide: usize,
        depth: Range<usize>,
        to: *mut f32,
    ) {
        let [kernel_h, kernel_w] = self.problem.kernel;
        for panel in (0..count).step_by(wide) {
            let to = to.wrapping_add(panel * depth.len());
            let mut segments = [Segment::default(); NC];
            let segments = self.segments(first + panel, wide, &mut segments);
            let mut step = depth.start;
            let (mut channel, rest) = (step / (kernel_h * kernel_w), step % (kernel_h * kernel_w));
            let (mut i, mut j) = (rest / kernel_w, rest % kernel_w);
            while step < depth.end {
                let to = to.wrapping_add((step - depth.start) * wide);
                // SAFETY: the caller guarantees the destination.
                unsafe { self.pack_step(segments, channel, i, j, wide, to) };
                (step, j) = (step + 1, j + 1);
                if j == kernel_w {
                    (i, j) = (i + 1, 0);
                }
                if i == kernel_h {
                    (channel, i) = (channel + 1, 0);
                }
            }
        }
    }

    /// Pixels `first ..` of the output as parts of its rows.
    fn segments<'b>(&self, first: usize, wide: usize, buffer: &'b mut [Segment; NC]) -> &'b [Segment] {
        let width = self.problem.out[1];
        let (mut at, mut count) = (0, 0);
        let end = wide.min(self.problem.pixels().saturating_sub(first));
        while at < end {
            let (row, column) = ((first + at) / width, (first + at) % width);
            let len = (width - column).min(end - at);
            buffer[count] = Segment { at, row, column, len };
            (at, count) = (at + len, count + 1);
        }
        &buffer[..count]
    }

    #[inline(always)]
    unsafe fn pack_step(
        &self,
        segments: &[Segment],
        channel: usize,
        i: usize,
        j: usize,
        wide: usize,
        to: *mut f32,
    ) {
        let (s, window) = (self.s, &self.problem.window);
        let plane = self.x.wrapping_offset(self.x_steps[0] * channel as isize);
        let mut filled = 0;
        for segment in segments {
            filled = segment.at + segment.len;
            let to = to.wrapping_add(segment.at);
            let row = window::position(window, 0, segment.row, i);
            let inside = window::inside(window, 1, self.problem.image[1], j);
            let (low, high) = if (0..self.problem.image[0] as isize).contains(&row) {
                let clamp =
                    |end: usize| end.clamp(segment.column, segment.column + segment.len) - segment.column;
                (clamp(inside.start), clamp(inside.end))
            } else {
                (0, 0)
            };
            let column = window::position(window, 1, segment.column + low, j);
            let from = plane.wrapping_offset(row * self.x_steps[1] + column * self.x_steps[2]);
            let step = self.x_steps[2] * window.stride[1] as isize;
            // SAFETY: columns `low .. high` are inside the image; the caller guarantees the destination.
            unsafe {
                fill(to, low);
                copy(s, from, step, to.wrapping_add(low), high.saturating_sub(low));
                fill(to.wrapping_add(high.max(low)), segment.len - high.max(low));
            }
        }
        // SAFETY: the caller guarantees the destination.
        unsafe { fill(to.wrapping_add(filled), wide - filled) };
    }

    /// The bias of a channel.
    #[inline(always)]
    pub fn bias_of(&self, channel: usize) -> f32 {
        // SAFETY: the bias has an element per output channel.
        self.bias.map_or(0.0, |(start, step)| unsafe {
            (*start.wrapping_offset(step * channel as isize)).to_f32()
        })
    }

    /// Adds the bias of a channel and the residual, applies the activation and rounds. A sum that is not finite is computed again in f64,
    /// together with what is added to it, because an intermediate result may have overflowed in f32.
    #[inline(always)]
    pub fn finish(&self, channel: usize, pixel: usize, sum: f32) -> T {
        let (row, column) = (pixel / self.problem.out[1], pixel % self.problem.out[1]);
        let residual = self.residual_at(channel, row, column);
        // SAFETY: the residual has the shape of the output.
        let residual = residual.map_or(0.0, |residual| unsafe { (*residual).to_f32() });
        let bias = self.bias_of(channel);
        let value = if sum.is_finite() {
            sum + bias + residual
        } else {
            (self.exact(channel, pixel) + f64::from(bias) + f64::from(residual)) as f32
        };
        T::from_f32(if self.problem.relu && value < 0.0 { 0.0 } else { value })
    }

    /// The addend of an output pixel.
    #[inline(always)]
    pub fn residual_at(&self, channel: usize, row: usize, column: usize) -> Option<*const T> {
        let Residual { start, steps } = self.residual?;
        let offset = steps[0] * channel as isize + steps[1] * row as isize + steps[2] * column as isize;
        Some(start.wrapping_offset(offset))
    }

    /// Whether the pixels of an output row are next to each other, also in the residual.
    pub fn has_dense_rows(&self) -> bool {
        self.to_steps[2] == 1 && self.residual.is_none_or(|residual| residual.steps[2] == 1)
    }

    pub fn target(&self, channel: usize, pixel: usize) -> *mut T {
        self.target_at(channel, pixel / self.problem.out[1], pixel % self.problem.out[1])
    }

    /// An output pixel of a channel.
    #[inline(always)]
    pub fn target_at(&self, channel: usize, row: usize, column: usize) -> *mut T {
        self.to.wrapping_offset(
            self.to_steps[0] * channel as isize
                + self.to_steps[1] * row as isize
                + self.to_steps[2] * column as isize,
        )
    }

    /// One output in f64, without bias.
    #[cold]
    pub fn exact(&self, channel: usize, pixel: usize) -> f64 {
        let [kernel_h, kernel_w] = self.problem.kernel;
        let mut buffer = [Segment::default(); NC];
        let segments = self.segments(pixel, 1, &mut buffer);
        let mut sum = 0.0;
        for step in 0..self.problem.depth() {
            let (input, rest) = (step / (kernel_h * kernel_w), step % (kernel_h * kernel_w));
            let mut value = 0.0f32;
            // SAFETY: there is space for one pixel; the weight has `depth` elements per channel.
            unsafe {
                self.pack_step(segments, input, rest / kernel_w, rest % kernel_w, 1, &raw mut value);
                // Padding is skipped: it must not make a product NaN.
                if value != 0.0 || value.is_nan() || self.is_inside(pixel, rest) {
                    sum += f64::from(value) * f64::from(self.weight_at(channel, step));
                }
            }
        }
        sum
    }

    /// Element `step` of a kernel.
    ///
    /// # Safety
    /// The channel and the step are inside the weight.
    unsafe fn weight_at(&self, channel: usize, step: usize) -> f32 {
        let [kernel_h, kernel_w] = self.problem.kernel;
        let (input, rest) = (step / (kernel_h * kernel_w), step % (kernel_h * kernel_w));
        let index = [input, rest / kernel_w, rest % kernel_w];
        let offset: isize =
            index.iter().zip(&self.kernel_steps).map(|(&index, step)| index as isize * step).sum();
        // SAFETY: the caller guarantees the element.
        unsafe { (*self.weight.at(channel, 0).wrapping_offset(offset)).to_f32() }
    }

    /// Packs the kernels of output channels, side by side in panels of `wide`.
    ///
    /// # Safety
    /// `count * depth.len()` elements are writable, and `count` is a multiple of `wide`.
    unsafe fn pack_weights(
        &self,
        first: usize,
        count: usize,
        wide: usize,
        depth: Range<usize>,
        to: *mut f32,
    ) {
        let end = self.problem.group_outputs;
        if self.problem.dense_kernel {
            // SAFETY: the caller guarantees the destination; every kernel is dense.
            return unsafe { pack(self.s, &self.weight, first, end, count, wide, depth, to) };
        }
        for index in 0..count {
            let (panel, lane) = (index / wide * wide, index % wide);
            for (at, step) in depth.clone().enumerate() {
                // SAFETY: the caller guarantees the destination; the channel is inside the weight.
                unsafe {
                    let value = if first + index < end { self.weight_at(first + index, step) } else { 0.0 };
                    *to.add(panel * depth.len() + at * wide + lane) = value;
                }
            }
        }
    }

    fn is_inside(&self, pixel: usize, element: usize) -> bool {
        let problem = self.problem;
        let at = [pixel / problem.out[1], pixel % problem.out[1]];
        let element = [element / problem.kernel[1], element % problem.kernel[1]];
        (0..2).all(|axis| {
            let position = window::position(&problem.window, axis, at[axis], element[axis]);
            (0..problem.image[axis] as isize).contains(&position)
        })
    }
}

/// Pixels of one output row: index in the panel, row and first column of the output, length.
#[derive(Debug, Clone, Copy, Default)]
struct Segment {
    at: usize,
    row: usize,
    column: usize,
    len: usize,
}

#[inline(always)]
pub(super) unsafe fn fill(to: *mut f32, count: usize) {
    for index in 0..count {
        // SAFETY: the caller guarantees the destination.
        unsafe { *to.add(index) = 0.0 };
    }
}

#[inline(always)]
pub(super) unsafe fn copy<S: Simd, T: Float>(s: S, from: *const T, step: isize, to: *mut f32, count: usize) {
    if step == 1 {
        s.vectorize(|| {
            vectors!(S, count, |span| {
                // SAFETY: the caller guarantees both.
                unsafe { <f32 as Float>::store(s, to, span, T::load(s, from, span)) };
            });
        });
    } else {
        for index in 0..count {
            // SAFETY: the caller guarantees both.
            unsafe { *to.add(index) = (*from.wrapping_offset(step * index as isize)).to_f32() };
        }
    }
}

impl<S: Simd, T: Float> GemmOperands for Conv<'_, S, T> {
    unsafe fn pack_a(&self, rows: Range<usize>, depth: Range<usize>, to: *mut f32) {
        // SAFETY: the caller guarantees the destination.
        unsafe { self.pack_weights(rows.start, rows.len(), rows.len(), depth, to) };
    }

    unsafe fn pack_b(&self, block: usize, depth: Range<usize>, to: *mut f32) {
        // SAFETY: the caller guarantees the destination.
        unsafe { self.pack_windows(block * NC, NC, nr::<S>(), depth, to) };
    }

    unsafe fn epilogue(&self, row: usize, block: usize, from: *mut f32) {
        let columns = block * NC..((block + 1) * NC).min(self.problem.pixels());
        // SAFETY: the caller guarantees a block of NC elements.
        let sums = unsafe { std::slice::from_raw_parts_mut(from, columns.len()) };
        let width = self.problem.out[1] as isize;
        let dense_planes = self.problem.out[0] == 1
            || self.to_steps[1] == width && self.residual.is_none_or(|residual| residual.steps[1] == width);
        if !self.has_dense_rows() || !dense_planes || !all_finite(self.s, sums) {
            for (index, &sum) in sums.iter().enumerate() {
                let pixel = columns.start + index;
                // SAFETY: the pixel is inside the output, and tasks write disjoint pixels.
                unsafe { *self.target(row, pixel) = self.finish(row, pixel, sum) };
            }
            return;
        }
        let (s, to) = (self.s, self.target(row, 0).wrapping_add(columns.start));
        let bias = self.bias_of(row);
        let residual = self.residual_at(row, 0, 0).map(|start| start.wrapping_add(columns.start));
        let relu = self.problem.relu;
        s.vectorize(|| {
            let bias = s.splat(bias);
            vectors!(S, sums.len(), |span| {
                // SAFETY: sums, residual and outputs have this many elements.
                unsafe {
                    let mut value = s.add(<f32 as Float>::load(s, sums.as_ptr(), span), bias);
                    if let Some(residual) = residual {
                        value = s.add(value, T::load(s, residual, span));
                    }
                    // The maximum with NaN is the second operand.
                    let value = if relu { s.max(s.splat(0.0), value) } else { value };
                    T::store(s, to, span, value);
                }
            });
        });
    }
}

/// The transposed product: a row per pixel, a column per output channel.
struct Turned<'c, 'p, S, T>(&'c Conv<'p, S, T>);

impl<S: Simd, T: Float> GemmOperands for Turned<'_, '_, S, T> {
    unsafe fn pack_a(&self, rows: Range<usize>, depth: Range<usize>, to: *mut f32) {
        // SAFETY: the caller guarantees the destination.
        unsafe { self.0.pack_windows(rows.start, rows.len(), rows.len(), depth, to) };
    }

    unsafe fn pack_b(&self, block: usize, depth: Range<usize>, to: *mut f32) {
        // SAFETY: the caller guarantees the destination.
        unsafe { self.0.pack_weights(block * NC, NC, nr::<S>(), depth, to) };
    }

    unsafe fn epilogue(&self, row: usize, block: usize, from: *mut f32) {
        let conv = self.0;
        let columns = block * NC..((block + 1) * NC).min(conv.problem.group_outputs);
        // SAFETY: the caller guarantees a block of NC elements.
        let sums = unsafe { std::slice::from_raw_parts_mut(from, columns.len()) };
        for (index, &sum) in sums.iter().enumerate() {
            let channel = columns.start + index;
            // SAFETY: the channel is inside the output, and tasks write disjoint channels.
            unsafe { *conv.target(channel, row) = conv.finish(channel, row, sum) };
        }
    }
}

/// The plane of a channel.
pub(super) fn plane(view: &TensorView<'_>, image: usize, channel: usize) -> Plane {
    let size = view.dtype().size() as isize;
    let steps = view.strides();
    let offset = image as isize * steps[0] as isize + channel as isize * steps[1] as isize;
    Plane {
        start: view.as_ptr().cast_mut().wrapping_offset(offset * size),
        steps: [steps[2] as isize * size, steps[3] as isize * size],
        dtype: view.dtype(),
    }
}
