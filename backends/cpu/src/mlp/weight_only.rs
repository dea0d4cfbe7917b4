//! `mlp.linear.weight_only`: few rows read the integers directly from memory, many rows use the blocked GEMM
//! with dequantizing B packing.

use std::marker::PhantomData;
use std::ops::Range;

use lz_core::{KernelError, Run};
use lz_ops::{
    MlpLinearWeightOnlyCall, MlpLinearWeightOnlyFormat as Format,
    MlpLinearWeightOnlyGranularity as Granularity, MlpLinearWeightOnlyKernel, MlpLinearWeightOnlyOut,
    MlpLinearWeightOnlyWeightLayout as Layout,
};

use super::output::Output;
use super::packed_words::{PackedWords, PanelBuffer, ROWS, STEP, WORDS};
use super::unpacked;
use crate::gemm::blocked::{GemmOperands, NC, gemm, nr, packed_bytes};
use crate::gemm::dots::MAX_SKINNY_ROWS;
use crate::gemm::pack::transpose_rows;
use crate::isa::require;
use crate::rows::{Rows, Shape, for_each_range};
use crate::simd::{Float, Simd, prefetch, vectors, with_float};

/// Dense rows of any float type, weights of either format and layout.
#[derive(Debug)]
pub(crate) struct LinearWeightOnly<S>(pub PhantomData<S>);

#[lz_macros::kernel(
    id = "cpu.mlp.linear.weight_only",
    operation = "mlp.linear.weight_only",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16]),
    quant_formats("int8", "int4"),
    strides = last_dense,
    deterministic,
    workspace = "(24 if rows <= 8 else ceil_div(ceil_div(rows, ceil_div(rows, 1056)), 96) * 96) * ceil_div(in_features, 32) * 128"
)]
impl<S: Simd> MlpLinearWeightOnlyKernel for LinearWeightOnly<S> {
    fn run(
        &self,
        call: &MlpLinearWeightOnlyCall<'_>,
        mut out: MlpLinearWeightOnlyOut<'_>,
        run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let s = require::<S>()?;
        with_float!(call.dtype_t, T => match call.format {
            Format::Int8 => layer::<S, T, 8>(s, call, &mut out, run),
            Format::Int4 => layer::<S, T, 4>(s, call, &mut out, run),
        })
    }
}

fn layer<S: Simd, T: Float, const BITS: u32>(
    s: S,
    call: &MlpLinearWeightOnlyCall<'_>,
    out: &mut MlpLinearWeightOnlyOut<'_>,
    run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let (rows, depth) = (call.axes.rows as usize, call.axes.in_features as usize);
    let (shape, block) = match call.granularity {
        // Longer than any row, and a whole number of words.
        Granularity::Channel => (Shape::Elements, depth.next_multiple_of(8).max(8)),
        Granularity::Block => (Shape::Last, call.block_size as usize),
    };
    let layer = Layer::<S, T, BITS> {
        s,
        x: Rows::new(&call.x)?,
        words: PackedWords::new(
            &call.weight,
            call.weight_layout == Layout::Panels,
            call.axes.out_features as usize,
            call.stored as usize,
        )?,
        scale: Rows::shaped(&call.scale, shape)?,
        zero_point: call.zero_point.as_ref().map(|view| Rows::shaped(view, shape)).transpose()?,
        out: Output::new(&mut out.output, call.bias.as_ref(), call.activation)?,
        depth,
        block,
    };
    let skinny_rows = if rows <= MAX_SKINNY_ROWS { rows } else { 0 };
    let width = depth.next_multiple_of(8);
    // For few rows it holds the rows as f32, for many rows packed A.
    let workspace = run.workspace(packed_bytes(rows, depth))?;
    if rows == 0 || layer.words.rows == 0 {
    } else if skinny_rows > 0 && block.is_multiple_of(per_word::<BITS>()) {
        layer.run_skinny(workspace.as_mut_ptr().cast(), width);
    } else {
        gemm(s, [rows, layer.words.rows, depth], workspace, &layer);
    }
    Ok(())
}

/// Inputs per word.
const fn per_word<const BITS: u32>() -> usize {
    32 / BITS as usize
}

/// Dequantizes input number `index` of each word to f32.
#[inline(always)]
fn input<S: Simd, const BITS: u32>(s: S, word: S::I32, index: usize) -> S::F32 {
    if BITS == 4 {
        return s.signed_nibble(word, index as u32);
    }
    let above = 32 - BITS - BITS * index as u32;
    s.to_f32(s.shr_i32(s.shl_i32(word, above), 32 - BITS))
}

/// Like [`input`], but scaled by the power of two [`input_scale`] where that is cheaper.
#[inline(always)]
fn scaled_input<S: Simd, const BITS: u32>(s: S, word: S::I32, index: usize) -> S::F32 {
    if BITS == 8 { s.to_f32(s.high_byte(word, index as u32)) } else { input::<S, BITS>(s, word, index) }
}

/// Scale of [`scaled_input`].
const fn input_scale<const BITS: u32>() -> f32 {
    if BITS == 8 { (1 << 24) as f32 } else { 1.0 }
}

/// Prefetch distance in bytes of a panel: the hardware prefetcher stops at page boundaries.
const AHEAD: usize = 2048;

struct Layer<'a, S, T, const BITS: u32> {
    s: S,
    x: Rows<'a, T>,
    words: PackedWords<'a>,
    scale: Rows<'a, f32>,
    zero_point: Option<Rows<'a, i32>>,
    out: Output<'a, T>,
    /// K.
    depth: usize,
    /// Inputs that share a scale.
    block: usize,
}

/// Addresses of the scales and zero points of every row of a panel.
struct GroupPointers {
    scales: [*const f32; ROWS],
    zero_points: Option<[*const i32; ROWS]>,
    /// Valid rows of the panel.
    rows: usize,
}

/// Scales and zero points of one group, for every row of a panel.
#[repr(align(64))]
struct Group {
    scales: [f32; ROWS],
    zero_points: [f32; ROWS],
}

impl GroupPointers {
    /// Loads a group; 0 for missing rows.
    ///
    /// # Safety
    /// Every row has this group.
    #[inline(always)]
    unsafe fn group(&self, group: usize) -> Group {
        let mut found = Group { scales: [0.0; ROWS], zero_points: [0.0; ROWS] };
        // SAFETY: the caller guarantees the group.
        unsafe {
            for (to, from) in found.scales.iter_mut().zip(&self.scales[..self.rows]) {
                *to = *from.add(group);
            }
            if let Some(starts) = &self.zero_points {
                for (to, from) in found.zero_points.iter_mut().zip(&starts[..self.rows]) {
                    *to = *from.add(group) as f32;
                }
            }
        }
        found
    }
}

impl<S: Simd, T: Float, const BITS: u32> Layer<'_, S, T, BITS> {
    /// Skinny GEMM: every panel of the weight is read once, by one task. `x` has space for the rows as f32.
    fn run_skinny(&self, x: *mut f32, width: usize) {
        let (s, rows) = (self.s, self.x.count());
        for row in 0..rows {
            let from = self.x.row(row);
            s.vectorize(|| {
                // SAFETY: `x` has space for the rows; the padding is 0.
                unsafe {
                    let to = x.add(row * width);
                    std::ptr::write_bytes(to.add(self.depth), 0, width - self.depth);
                    vectors!(S, from.len(), |span| {
                        <f32 as Float>::store(s, to, span, T::load(s, from.as_ptr(), span));
                    });
                }
            });
        }
        let x = F32Rows { start: x, width };
        let use_unpacked = rows <= unpacked::MAX_ROWS
            && self.words.is_row_major()
            && unpacked::supports(self.block, self.depth);
        for_each_range(self.words.panels(), ROWS * self.words.stored, &|panels| {
            // Only the part that is needed is written.
            let mut buffer = PanelBuffer([0; STEP * WORDS]);
            for panel in panels {
                let mut totals = [[0.0f32; ROWS]; MAX_SKINNY_ROWS];
                if use_unpacked {
                    self.sum_unpacked(&x, panel, &mut totals);
                } else {
                    self.sum_panel(&x, panel, &mut buffer, &mut totals);
                }
                let columns = panel * ROWS..((panel + 1) * ROWS).min(self.words.rows);
                for (row, totals) in totals.iter_mut().enumerate().take(rows) {
                    self.write(row, columns.clone(), totals);
                }
            }
        });
    }

    fn sum_unpacked(&self, x: &F32Rows, panel: usize, totals: &mut [[f32; ROWS]; MAX_SKINNY_ROWS]) {
        let starts = self.starts(panel);
        let rows = self.x.count();
        for lane in (0..starts.rows).step_by(unpacked::NR) {
            // Missing rows repeat the last one, and their results are ignored.
            let columns = std::array::from_fn(|number| {
                let lane = (lane + number).min(starts.rows - 1);
                unpacked::Column {
                    bytes: self.words.row(panel * ROWS + lane),
                    scales: starts.scales[lane],
                    zero_points: starts.zero_points.map(|starts| starts[lane]),
                }
            });
            let (depth, block) = (self.depth, self.block);
            let inputs = |row: usize| unpacked::Inputs {
                start: x.start.wrapping_add(row * x.width),
                stride: x.width,
                depth,
                block,
            };
            let mut take = |row: usize, sums: [f32; unpacked::NR]| {
                let count = unpacked::NR.min(starts.rows - lane);
                totals[row][lane..lane + count].copy_from_slice(&sums[..count]);
            };
            // SAFETY: the f32 rows contain their inputs, and the rows of the weight their integers, scales
            // and zero points.
            unsafe {
                if rows == unpacked::MAX_ROWS {
                    let sums = unpacked::sum::<S, BITS, { unpacked::MAX_ROWS }>(self.s, inputs(0), columns);
                    sums.into_iter().enumerate().for_each(|(row, sums)| take(row, sums));
                } else {
                    for row in 0..rows {
                        let [sums] = unpacked::sum::<S, BITS, 1>(self.s, inputs(row), columns);
                        take(row, sums);
                    }
                }
            }
        }
    }

    fn sum_panel(
        &self,
        x: &F32Rows,
        panel: usize,
        buffer: &mut PanelBuffer,
        totals: &mut [[f32; ROWS]; MAX_SKINNY_ROWS],
    ) {
        let (per_word, count, rows) = (per_word::<BITS>(), self.words.count(), self.x.count());
        let group_words = self.block / per_word;
        let starts = self.starts(panel);
        let mut first = 0;
        while first < count {
            let end = count.min(first + self.words.max_words());
            // SAFETY: the words are inside the rows, and at most `max_words` of them.
            let at = unsafe { self.words.panel(self.s, panel, first..end, buffer) };
            let mut word = first;
            while word < end {
                let group = word / group_words;
                let until = end.min((group + 1) * group_words);
                // SAFETY: the words of this group are inside the rows.
                let scales = unsafe { starts.group(group) };
                let mut row = 0;
                while row < rows {
                    let tile_rows = match rows - row {
                        8.. => 8,
                        remaining => remaining.min(4),
                    };
                    // SAFETY: the words exist, and the f32 rows contain their inputs.
                    unsafe {
                        let words = at.add((word - first) * STEP);
                        let from = x.start.add(row * x.width + word * per_word);
                        let totals = totals.as_mut_ptr().add(row);
                        let job = Tile { words, count: until - word, x: from, width: x.width, totals };
                        match tile_rows {
                            1 => job.sum::<S, BITS, 1, 4>(self.s, &scales),
                            2 => job.sum::<S, BITS, 2, 4>(self.s, &scales),
                            3 => job.sum::<S, BITS, 3, 2>(self.s, &scales),
                            4 => job.sum::<S, BITS, 4, 2>(self.s, &scales),
                            // As many accumulators as fit in registers.
                            _ if const { S::LANES >= 16 } => job.sum::<S, BITS, 8, 2>(self.s, &scales),
                            _ => job.sum::<S, BITS, 8, 1>(self.s, &scales),
                        }
                    }
                    row += tile_rows;
                }
                word = until;
            }
            first = end;
        }
    }

    fn starts(&self, panel: usize) -> GroupPointers {
        let first = panel * ROWS;
        let rows = self.words.rows.saturating_sub(first).min(ROWS);
        let mut scales = [std::ptr::null(); ROWS];
        for (lane, start) in scales[..rows].iter_mut().enumerate() {
            *start = self.scale.row(first + lane).as_ptr();
        }
        let zero_points = self.zero_point.as_ref().map(|zero_points| {
            let mut starts = [std::ptr::null(); ROWS];
            for (lane, start) in starts[..rows].iter_mut().enumerate() {
                *start = zero_points.row(first + lane).as_ptr();
            }
            starts
        });
        GroupPointers { scales, zero_points, rows }
    }

    /// Epilogue: adds the bias, applies the activation, rounds and writes some columns of a row.
    fn write(&self, row: usize, columns: Range<usize>, sums: &mut [f32]) {
        self.out.write(self.s, row, columns, sums, |column| self.sum_f64(row, column));
    }

    /// Dot product in f64, for sums that overflow f32.
    #[cold]
    #[inline(never)]
    fn sum_f64(&self, row: usize, column: usize) -> f64 {
        let mut sum = 0.0;
        for (i, x) in self.x.row(row).iter().enumerate() {
            let value = if BITS == 8 {
                self.words.byte(column, i) as i8
            } else {
                let byte = self.words.byte(column, i / 2);
                (byte << (4 * (1 - i % 2))) as i8 >> 4
            };
            let group = i / self.block;
            let zero_point = self.zero_point.as_ref().map_or(0, |zero_points| zero_points.row(column)[group]);
            let weight = (i64::from(value) - i64::from(zero_point)) as f64;
            sum += f64::from(x.to_f32()) * (weight * f64::from(self.scale.row(column)[group]));
        }
        sum
    }
}

/// Rows as f32, with their stride.
struct F32Rows {
    start: *const f32,
    width: usize,
}

// SAFETY: it is only read after it was written.
unsafe impl Sync for F32Rows {}

/// Some words of a panel, and the matching inputs of a few rows.
struct Tile {
    words: *const u8,
    count: usize,
    x: *const f32,
    width: usize,
    totals: *mut [f32; ROWS],
}

impl Tile {
    /// Adds the products of `MR` rows, in `SUMS` independent accumulators each.
    ///
    /// # Safety
    /// All words and inputs are readable, and the totals of the rows are writable.
    #[inline(never)]
    unsafe fn sum<S: Simd, const BITS: u32, const MR: usize, const SUMS: usize>(self, s: S, group: &Group) {
        let Tile { words, count, x, width, totals } = self;
        s.vectorize(|| {
            for first in (0..ROWS).step_by(S::LANES) {
                // SAFETY: the caller guarantees words, inputs and totals; a vector is a part of a panel.
                unsafe {
                    let zero_points =
                        s.mul(s.load(group.zero_points.as_ptr().add(first)), s.splat(input_scale::<BITS>()));
                    let mut sums = [[s.splat(0.0); SUMS]; MR];
                    for number in 0..count {
                        let words = words.add(number * STEP);
                        prefetch(words.wrapping_add(AHEAD));
                        let word = s.to_bits(s.load(words.cast::<f32>().add(first)));
                        let x = x.add(number * per_word::<BITS>());
                        for index in 0..per_word::<BITS>() {
                            let weight = s.sub(scaled_input::<S, BITS>(s, word, index), zero_points);
                            for (row, sums) in sums.iter_mut().enumerate() {
                                let factor = s.splat(*x.add(row * width + index));
                                let sum = &mut sums[index % SUMS];
                                *sum = s.fma(factor, weight, *sum);
                            }
                        }
                    }
                    let scales = s.load(group.scales.as_ptr().add(first));
                    let inverse_scale = s.splat(1.0 / input_scale::<BITS>());
                    for (row, sums) in sums.iter().enumerate() {
                        let mut sum = sums[0];
                        for &other in &sums[1..] {
                            sum = s.add(sum, other);
                        }
                        sum = s.mul(sum, inverse_scale);
                        let to = totals.add(row).cast::<f32>().add(first);
                        s.store(to, s.fma(sum, scales, s.load(to)));
                    }
                }
            }
        });
    }
}

impl<S: Simd, T: Float, const BITS: u32> GemmOperands for Layer<'_, S, T, BITS> {
    unsafe fn pack_a(&self, rows: Range<usize>, depth: Range<usize>, to: *mut f32) {
        let row =
            |index: usize| (rows.start + index < self.x.count()).then(|| self.x.row(rows.start + index));
        // SAFETY: the caller guarantees the destination; rows cover `depth`.
        unsafe { transpose_rows(self.s, rows.len(), rows.len(), depth, row, to) };
    }

    unsafe fn pack_b(&self, block: usize, depth: Range<usize>, to: *mut f32) {
        let wide = nr::<S>();
        let words = depth.start / per_word::<BITS>()..depth.end.div_ceil(per_word::<BITS>());
        let mut buffer = PanelBuffer([0; STEP * WORDS]);
        for number in 0..NC / ROWS {
            let rows = block * (NC / ROWS) + number;
            // SAFETY: steps come in whole words, and at most as many as the buffer holds.
            let at = unsafe { self.words.panel(self.s, rows, words.clone(), &mut buffer) };
            let starts = self.starts(rows);
            let mut step = 0;
            while step < depth.len() {
                let group = (depth.start + step) / self.block;
                let end = depth.len().min(((group + 1) * self.block).saturating_sub(depth.start));
                // SAFETY: these steps are inside the rows.
                let scales = unsafe { starts.group(group) };
                for first in (0..ROWS).step_by(S::LANES) {
                    let column = number * ROWS + first;
                    // SAFETY: the caller guarantees the destination; the words of these steps exist.
                    unsafe {
                        let to = to.add(column / wide * wide * depth.len() + column % wide);
                        let words = at.cast::<f32>().add(first);
                        dequantize::<S, BITS>(self.s, words, step..end, &scales, first, to, wide);
                    }
                }
                step = end;
            }
        }
    }

    unsafe fn epilogue(&self, row: usize, block: usize, from: *mut f32) {
        let columns = block * NC..((block + 1) * NC).min(self.words.rows);
        // SAFETY: the caller guarantees a block of NC elements.
        let sums = unsafe { std::slice::from_raw_parts_mut(from, columns.len()) };
        self.write(row, columns, sums);
    }
}

/// Dequantizes steps of one vector of rows to f32, with stride `stride`.
///
/// # Safety
/// The words of the steps are readable, and the vectors of all steps are writable.
#[inline(never)]
unsafe fn dequantize<S: Simd, const BITS: u32>(
    s: S,
    words: *const f32,
    steps: Range<usize>,
    group: &Group,
    first: usize,
    to: *mut f32,
    stride: usize,
) {
    let per_word = per_word::<BITS>();
    s.vectorize(|| {
        // SAFETY: the caller guarantees words and destination.
        unsafe {
            let scales = s.load(group.scales.as_ptr().add(first));
            let zero_points = s.load(group.zero_points.as_ptr().add(first));
            let mut step = steps.start;
            while step < steps.end {
                let word = s.to_bits(s.load(words.add(step / per_word * ROWS)));
                let index = step % per_word;
                let count = (steps.end - step).min(per_word - index);
                for index in index..index + count {
                    let value = s.mul(s.sub(input::<S, BITS>(s, word, index), zero_points), scales);
                    s.store(to.add(step * stride), value);
                    step += 1;
                }
            }
        }
    });
}
