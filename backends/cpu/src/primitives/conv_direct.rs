//! Convolution with weights that are packed ahead of the call.
//!
//! The image is copied once, padded, with its phases apart: one image per remainder of row and column modulo the strides. Then the
//! pixels that one element of the kernel meets are consecutive, also across output rows, so the GEMM reads its second operand in place,
//! at one offset per element of the kernel. Columns between the end of an output row and the start of the next are computed and dropped.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::Arc;

use lz_core::kernel::{Prepare, PreparedInput};
use lz_core::tensor::Pages;
use lz_core::{Arg, DType, KernelError, Reason, ReasonCode, TensorView};
use lz_primitives::call::Call;

use super::conv::{Conv, Problem};
use crate::gemm::dots::all_finite;
use crate::gemm::pack::transpose_rows;
use crate::isa::require;
use crate::pool;
use crate::rows::{Rows, Shape, for_each_range};
use crate::simd::{Float, Simd, vectors};

/// Index of `groups` among the arguments.
const GROUPS: usize = 12;

/// Readable elements behind the image: a tile may begin at its last pixel.
const SLACK: usize = 64;

/// Maximum columns of a tile.
const MAX_NR: usize = 48;

/// Maximum rows of a tile.
const MAX_MR: usize = 8;

/// Weights up to this size stay in L2 while tasks go over the pixels; larger ones are shared out between the tasks.
const MAX_RESIDENT_BYTES: usize = 600 << 10;

/// Convolutions of fewer multiply-adds run on the caller's thread.
const MIN_PARALLEL_MACS: usize = 1 << 19;

/// Rows of a tile: output channels.
const fn mr<S: Simd>() -> usize {
    if S::LANES >= 16 { MAX_MR } else { 6 }
}

/// Columns of a tile, in vectors: pixels.
const fn nr_vectors<S: Simd>() -> usize {
    if S::LANES >= 16 { 3 } else { 2 }
}

/// Kernels of f32, packed: MR output channels after MR output channels, and within them element after element of the kernel.
#[derive(Debug)]
pub(super) struct PackedKernels {
    data: Pages,
    outputs: usize,
    depth: usize,
    rows: usize,
}

impl PackedKernels {
    /// Whether it is the packed form, for `S`, of this convolution's weight.
    pub(super) fn fits<S: Simd>(&self, problem: &Problem, groups: usize) -> bool {
        let sizes = (problem.group_outputs, problem.depth(), mr::<S>());
        groups == 1 && (self.outputs, self.depth, self.rows) == sizes
    }

    fn panel(&self, index: usize) -> *const f32 {
        self.data.as_ptr().cast::<f32>().wrapping_add(index * self.rows * self.depth)
    }
}

/// Packs the weights of convolutions.
#[derive(Debug)]
pub(super) struct PackKernels<S>(pub std::marker::PhantomData<S>);

impl<S: Simd> Prepare for PackKernels<S> {
    fn layout(&self) -> &'static str {
        match S::LANES {
            16 => "convolution panels of 8",
            8 => "convolution panels of 6",
            _ => "convolution panels of scalars",
        }
    }

    fn inputs(&self, args: &[Arg<'_>]) -> &'static [usize] {
        let call = Call::new(args);
        let (Some(Arg::Tensor(x)), Some(Arg::Tensor(weight))) = (args.first(), args.get(1)) else {
            return &[];
        };
        let dense = weight.is_contiguous() && weight.elements() > 0;
        let single = matches!(call.size(GROUPS), Ok(1)) && S::LANES > 1;
        if dense && single && x.dtype() == DType::F32 { &[1] } else { &[] }
    }

    fn prepare(&self, input: &TensorView<'_>) -> Result<PreparedInput, KernelError> {
        let s = require::<S>()?;
        let weight = Rows::<f32>::shaped(input, Shape::Trailing(3))?;
        let (outputs, depth, rows) = (weight.count(), weight.width(), mr::<S>());
        let panels = outputs.div_ceil(rows);
        let bytes = panels * rows * depth * size_of::<f32>();
        let mut data = Pages::zeroed(bytes).ok_or_else(|| {
            let detail = format!("{bytes} bytes of packed weights");
            KernelError::because(Reason::new(ReasonCode::OutOfMemory).message(detail))
        })?;
        let start = data.as_mut_ptr().cast::<f32>();
        for panel in 0..panels {
            let first = panel * rows;
            let row = |index: usize| (first + index < outputs).then(|| weight.row(first + index));
            // SAFETY: every panel has `rows * depth` elements.
            unsafe { transpose_rows(s, rows, rows, 0..depth, row, start.wrapping_add(first * depth)) };
        }
        Ok(Arc::new(PackedKernels { data, outputs, depth, rows }))
    }
}

/// The copied image: planes of `rows x columns`, one per channel and phase.
#[derive(Clone, Copy)]
pub(super) struct Phases {
    stride: [usize; 2],
    rows: usize,
    columns: usize,
}

impl Phases {
    pub(super) fn new(problem: &Problem) -> Phases {
        let window = &problem.window;
        let stride = window.stride.map(|stride| stride as usize);
        let padded = [0, 1]
            .map(|axis| problem.image[axis] + window.before[axis] as usize + window.after[axis] as usize);
        Phases { stride, rows: padded[0].div_ceil(stride[0]), columns: padded[1].div_ceil(stride[1]) }
    }

    fn plane(&self) -> usize {
        self.rows * self.columns
    }

    fn image(&self, channels: usize) -> usize {
        channels * self.stride[0] * self.stride[1] * self.plane()
    }

    /// Bytes of the copied image and of one offset per element of a kernel.
    pub(super) fn workspace_bytes(&self, problem: &Problem) -> u64 {
        let elements = self.image(problem.channels) + SLACK + problem.depth();
        (elements * size_of::<f32>()) as u64
    }

    /// Output pixels, with the columns that are dropped.
    fn positions(&self, problem: &Problem) -> usize {
        (problem.out[0] - 1) * self.columns + problem.out[1]
    }
}

/// Part of an output row inside a tile: first column of the tile, output pixel, length.
#[derive(Clone, Copy, Default)]
struct Segment {
    at: usize,
    row: usize,
    column: usize,
    len: usize,
}

#[repr(align(64))]
struct Tile(MaybeUninit<[f32; MAX_MR * MAX_NR]>);

/// The operands of one image.
struct Direct<'c, 'p, S, T> {
    conv: &'c Conv<'p, S, T>,
    weights: &'c PackedKernels,
    phases: Phases,
    image: *const f32,
    /// Per element of a kernel the offset of the pixel that the first output meets.
    offsets: &'c [u32],
}

// SAFETY: tasks write disjoint outputs, and only read the others.
unsafe impl<S: Sync, T> Sync for Direct<'_, '_, S, T> {}

impl<S: Simd, T: Float> Conv<'_, S, T> {
    /// Runs one image with packed weights, which fit the problem.
    ///
    /// # Panics
    /// When the workspace is smaller than [`Phases::workspace_bytes`].
    pub(super) fn run_direct(&self, weights: &PackedKernels, workspace: &mut [u8]) {
        let (problem, phases) = (self.problem, Phases::new(self.problem));
        assert!(
            workspace.len() as u64 >= phases.workspace_bytes(problem),
            "workspace too small for the image"
        );
        let elements = phases.image(problem.channels);
        let start = workspace.as_mut_ptr().cast::<f32>();
        let image = Image(start);
        let plane_bytes = problem.image[0] * problem.image[1] * 2 * size_of::<f32>();
        for_each_range(problem.channels, plane_bytes, &|channels| {
            for channel in channels {
                // SAFETY: only this task writes the phases of this channel.
                unsafe {
                    self.copy_channel(&phases, channel, image.at(elements / problem.channels * channel))
                };
            }
        });
        // SAFETY: the workspace has space for the image, the slack and the offsets, is aligned for f32, and was initialized.
        let offsets = unsafe {
            std::slice::from_raw_parts_mut(start.add(elements), SLACK).fill(0.0);
            std::slice::from_raw_parts_mut(start.add(elements + SLACK).cast::<u32>(), problem.depth())
        };
        fill_offsets(problem, &phases, offsets);
        let direct = Direct { conv: self, weights, phases, image: start, offsets };
        direct.run();
    }

    /// Copies the phases of one channel, padded.
    ///
    /// # Safety
    /// All phases of a channel are writable at `to`.
    unsafe fn copy_channel(&self, phases: &Phases, channel: usize, to: *mut f32) {
        let problem = self.problem;
        let [before_rows, before_columns] = problem.window.before.map(|before| before as isize);
        let plane = self.x.wrapping_offset(self.x_steps[0] * channel as isize);
        let mut to = to;
        for phase in 0..phases.stride[0] * phases.stride[1] {
            let (row_phase, column_phase) = (phase / phases.stride[1], phase % phases.stride[1]);
            if !problem.meets(0, row_phase) || !problem.meets(1, column_phase) {
                to = to.wrapping_add(phases.plane());
                continue;
            }
            // Columns of the phase that are inside the image.
            let step = phases.stride[1];
            let inside = |bound: isize| {
                let distance = (bound + before_columns - column_phase as isize).max(0) as usize;
                distance.div_ceil(step).min(phases.columns)
            };
            let (first, end) = (inside(0), inside(problem.image[1] as isize));
            for row in 0..phases.rows {
                let from_row = (row_phase + row * phases.stride[0]) as isize - before_rows;
                // SAFETY: the caller guarantees the destination; the elements read are inside the image.
                unsafe {
                    if (0..problem.image[0] as isize).contains(&from_row) && first < end {
                        let column = (column_phase + first * step) as isize - before_columns;
                        let from =
                            plane.wrapping_offset(self.x_steps[1] * from_row + self.x_steps[2] * column);
                        super::conv::fill(to, first);
                        let distance = self.x_steps[2] * step as isize;
                        super::conv::copy(self.s, from, distance, to.add(first), end - first);
                        super::conv::fill(to.add(end), phases.columns - end);
                    } else {
                        super::conv::fill(to, phases.columns);
                    }
                    to = to.add(phases.columns);
                }
            }
        }
    }
}

/// The image while it is copied.
struct Image(*mut f32);

// SAFETY: tasks write disjoint channels.
unsafe impl Sync for Image {}

impl Image {
    fn at(&self, offset: usize) -> *mut f32 {
        self.0.wrapping_add(offset)
    }
}

fn fill_offsets(problem: &Problem, phases: &Phases, offsets: &mut [u32]) {
    let [kernel_h, kernel_w] = problem.kernel;
    let [stride_h, stride_w] = phases.stride;
    let dilation = problem.window.dilation.map(|dilation| dilation as usize);
    for (step, offset) in offsets.iter_mut().enumerate() {
        let (channel, rest) = (step / (kernel_h * kernel_w), step % (kernel_h * kernel_w));
        let (i, j) = (rest / kernel_w * dilation[0], rest % kernel_w * dilation[1]);
        let plane = (channel * stride_h + i % stride_h) * stride_w + j % stride_w;
        *offset = (plane * phases.plane() + i / stride_h * phases.columns + j / stride_w) as u32;
    }
}

impl<S: Simd, T: Float> Direct<'_, '_, S, T> {
    fn run(&self) {
        let problem = self.conv.problem;
        let positions = self.phases.positions(problem);
        let wide = nr_vectors::<S>() * S::LANES;
        let (tiles, panels) = (positions.div_ceil(wide), problem.group_outputs.div_ceil(mr::<S>()));
        let parallel = problem.group_outputs * problem.depth() * positions >= MIN_PARALLEL_MACS;
        let resident = problem.group_outputs * problem.depth() * size_of::<f32>() <= MAX_RESIDENT_BYTES;
        // Only here, so that it is compiled once.
        let tile = |panel: usize, tile: usize| self.tile(panel, tile * wide, positions);
        let tile: &(dyn Fn(usize, usize) + Sync) = &tile;
        if resident {
            pool::for_each_if(parallel, tiles, &|index| (0..panels).for_each(|panel| tile(panel, index)));
        } else {
            pool::for_each_if(parallel, panels, &|panel| (0..tiles).for_each(|index| tile(panel, index)));
        }
    }

    /// MR output channels of the pixels from `first` on.
    fn tile(&self, panel: usize, first: usize, positions: usize) {
        let wide = nr_vectors::<S>() * S::LANES;
        let count = wide.min(positions - first);
        let mut sums = Tile(MaybeUninit::uninit());
        let sums = sums.0.as_mut_ptr().cast::<f32>();
        let at = Operands {
            a: self.weights.panel(panel),
            image: self.image.wrapping_add(first),
            offsets: self.offsets,
            to: sums,
        };
        // SAFETY: the panel has MR elements per offset, and NR elements are readable at every offset.
        unsafe {
            match count.div_ceil(S::LANES) {
                1 => at.multiply::<S, 1>(self.conv.s),
                3 if const { nr_vectors::<S>() == 3 } => at.multiply::<S, 3>(self.conv.s),
                _ => at.multiply::<S, 2>(self.conv.s),
            }
        }
        let mut buffer = [Segment::default(); MAX_NR];
        let segments = self.segments(first, count, &mut buffer);
        let channels = panel * mr::<S>()..self.conv.problem.group_outputs.min((panel + 1) * mr::<S>());
        // SAFETY: the first `count` elements of every row are initialized.
        unsafe { self.write(channels, segments, sums, count) };
    }

    /// The parts of output rows among these positions.
    fn segments<'b>(&self, first: usize, count: usize, buffer: &'b mut [Segment; MAX_NR]) -> &'b [Segment] {
        let (columns, width) = (self.phases.columns, self.conv.problem.out[1]);
        let (mut at, mut found) = (0, 0);
        while at < count {
            let (row, column) = ((first + at) / columns, (first + at) % columns);
            if column < width {
                let len = (width - column).min(count - at);
                buffer[found] = Segment { at, row, column, len };
                found += 1;
            }
            at += columns - column;
        }
        &buffer[..found]
    }

    /// Epilogue of a tile: bias, residual, activation, rounding.
    ///
    /// # Safety
    /// `count` sums of every channel are readable, [`MAX_NR`] apart.
    unsafe fn write(&self, channels: Range<usize>, segments: &[Segment], sums: *const f32, count: usize) {
        let (conv, s) = (self.conv, self.conv.s);
        let row = |index: usize| {
            // SAFETY: the caller guarantees the sums.
            unsafe { std::slice::from_raw_parts(sums.add(index * MAX_NR), count) }
        };
        let finite = (0..channels.len()).all(|index| all_finite(s, row(index)));
        if !finite || !conv.has_dense_rows() {
            for (index, channel) in channels.enumerate() {
                segments.iter().for_each(|segment| self.write_slowly(channel, segment, row(index)));
            }
            return;
        }
        let relu = conv.problem.relu;
        s.vectorize(|| {
            for (index, channel) in channels.enumerate() {
                let bias = s.splat(conv.bias_of(channel));
                for segment in segments {
                    let to = conv.target_at(channel, segment.row, segment.column);
                    let residual = conv.residual_at(channel, segment.row, segment.column);
                    let from = sums.wrapping_add(index * MAX_NR + segment.at);
                    vectors!(S, segment.len, |span| {
                        // SAFETY: sums and the rest of the output row have this many elements, and so has the residual's.
                        unsafe {
                            let mut value = s.add(<f32 as Float>::load(s, from, span), bias);
                            if let Some(residual) = residual {
                                value = s.add(value, T::load(s, residual, span));
                            }
                            // The maximum with NaN is the second operand.
                            let value = if relu { s.max(s.splat(0.0), value) } else { value };
                            T::store(s, to, span, value);
                        }
                    });
                }
            }
        });
    }

    /// Pixels that are not dense, or sums of which some are not finite.
    #[cold]
    fn write_slowly(&self, channel: usize, segment: &Segment, sums: &[f32]) {
        let conv = self.conv;
        let pixel = segment.row * conv.problem.out[1] + segment.column;
        for (index, &sum) in sums[segment.at..segment.at + segment.len].iter().enumerate() {
            // SAFETY: the pixel is inside the output, and tasks write disjoint pixels.
            unsafe { *conv.target(channel, pixel + index) = conv.finish(channel, pixel + index, sum) };
        }
    }
}

/// One tile: packed weights, the image at the tile's first pixel, and the result.
#[derive(Clone, Copy)]
struct Operands<'c> {
    a: *const f32,
    image: *const f32,
    offsets: &'c [u32],
    to: *mut f32,
}

impl Operands<'_> {
    /// # Safety
    /// The operands and the result are valid for MR rows and `NV` vectors.
    unsafe fn multiply<S: Simd, const NV: usize>(self, s: S) {
        // SAFETY: the caller guarantees the operands.
        unsafe {
            if const { S::LANES >= 16 } { self.tile::<S, MAX_MR, NV>(s) } else { self.tile::<S, 6, NV>(s) }
        }
    }

    #[inline(never)]
    unsafe fn tile<S: Simd, const MR: usize, const NV: usize>(self, s: S) {
        s.vectorize(|| {
            // SAFETY: the caller guarantees the operands.
            unsafe {
                let mut sums = [[s.splat(0.0); NV]; MR];
                let mut a = self.a;
                for &offset in self.offsets {
                    let b = self.image.add(offset as usize);
                    let mut pixels = [s.splat(0.0); NV];
                    for (n, pixels) in pixels.iter_mut().enumerate() {
                        *pixels = s.load(b.add(n * S::LANES));
                    }
                    for (m, sums) in sums.iter_mut().enumerate() {
                        let weight = s.splat(*a.add(m));
                        for (sum, &pixels) in sums.iter_mut().zip(&pixels) {
                            *sum = s.fma(weight, pixels, *sum);
                        }
                    }
                    a = a.add(MR);
                }
                for (m, sums) in sums.iter().enumerate() {
                    for (n, &sum) in sums.iter().enumerate() {
                        s.store(self.to.add(m * MAX_NR + n * S::LANES), sum);
                    }
                }
            }
        });
    }
}
