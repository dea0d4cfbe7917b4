//! `mlp.linear.weight_only`: a few rows take the integers straight from memory, many rows go through the blocked product.

use std::marker::PhantomData;
use std::ops::Range;

use lz_core::{KernelError, Run};
use lz_ops::{
    MlpLinearWeightOnlyActivation as Named, MlpLinearWeightOnlyCall, MlpLinearWeightOnlyFormat as Format,
    MlpLinearWeightOnlyGranularity as Granularity, MlpLinearWeightOnlyKernel, MlpLinearWeightOnlyOut,
    MlpLinearWeightOnlyWeightLayout as Layout,
};

use super::activation::Activation;
use super::linear::Write;
use super::straight;
use super::words::{ROWS, Room, STEP, WORDS, Words};
use crate::gemm::blocked::{GemmOperands, NC, gemm, nr, packed_bytes};
use crate::gemm::dots::{MAX_SKINNY_ROWS, recompute_non_finite};
use crate::gemm::pack::transpose_rows;
use crate::isa::require;
use crate::rows::{Rows, RowsMut, Shape, for_each_range};
use crate::simd::{Float, Simd, prefetch, vectors, with_float};

/// Rows that are dense, of any float type, with weights of either format and layout.
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
        // Longer than any row, and in whole words.
        Granularity::Channel => (Shape::Elements, depth.next_multiple_of(8).max(8)),
        Granularity::Block => (Shape::Last, call.block_size as usize),
    };
    let layer = Layer::<S, T, BITS> {
        s,
        x: Rows::new(&call.x)?,
        words: Words::new(
            &call.weight,
            call.weight_layout == Layout::Panels,
            call.axes.out_features as usize,
            call.stored as usize,
        )?,
        scale: Rows::shaped(&call.scale, shape)?,
        zero_point: call.zero_point.as_ref().map(|view| Rows::shaped(view, shape)).transpose()?,
        bias: call.bias.as_ref().map(Rows::new).transpose()?,
        y: RowsMut::new(&mut out.output)?,
        activation: match call.activation {
            Named::None => Activation::None,
            Named::Relu => Activation::Relu,
            Named::Silu => Activation::Silu,
            Named::Gelu => Activation::Gelu,
            Named::GeluTanh => Activation::GeluTanh,
        },
        depth,
        block,
    };
    let few = if rows <= MAX_SKINNY_ROWS { rows } else { 0 };
    let width = depth.next_multiple_of(8);
    // Few rows lie there as they are, more of them in panels.
    let workspace = run.workspace(packed_bytes(rows, depth))?;
    if rows == 0 || layer.words.rows == 0 {
    } else if few > 0 && block.is_multiple_of(per_word::<BITS>()) {
        layer.stream(workspace.as_mut_ptr().cast(), width);
    } else {
        gemm(s, [rows, layer.words.rows, depth], workspace, &layer);
    }
    Ok(())
}

/// Inputs in a word.
const fn per_word<const BITS: u32>() -> usize {
    32 / BITS as usize
}

/// The inputs number `place` of words, as numbers.
#[inline(always)]
fn input<S: Simd, const BITS: u32>(s: S, word: S::I32, place: usize) -> S::F32 {
    if BITS == 4 {
        return s.signed_nibble(word, place as u32);
    }
    let above = 32 - BITS - BITS * place as u32;
    s.to_f32(s.shr_i32(s.shl_i32(word, above), 32 - BITS))
}

/// The inputs number `place` of words, as numbers that are [`larger`] by a power of two, where that is less work.
#[inline(always)]
fn larger_input<S: Simd, const BITS: u32>(s: S, word: S::I32, place: usize) -> S::F32 {
    if BITS == 8 { s.to_f32(s.high_byte(word, place as u32)) } else { input::<S, BITS>(s, word, place) }
}

/// By how much.
const fn larger<const BITS: u32>() -> f32 {
    if BITS == 8 { (1 << 24) as f32 } else { 1.0 }
}

/// So many bytes of a panel are asked for before they are needed: processors do not guess beyond a page.
const AHEAD: usize = 2048;

struct Layer<'a, S, T, const BITS: u32> {
    s: S,
    x: Rows<'a, T>,
    words: Words<'a>,
    scale: Rows<'a, f32>,
    zero_point: Option<Rows<'a, i32>>,
    bias: Option<Rows<'a, T>>,
    y: RowsMut<'a, T>,
    activation: Activation,
    /// Inputs.
    depth: usize,
    /// Inputs that share a scale.
    block: usize,
}

/// Where the scales and zero points of every row of a panel begin.
struct Starts {
    scales: [*const f32; ROWS],
    zero_points: Option<[*const i32; ROWS]>,
    /// Rows that are there.
    rows: usize,
}

/// Scales and zero points of a group of every row of a panel.
#[repr(align(64))]
struct Group {
    scales: [f32; ROWS],
    zero_points: [f32; ROWS],
}

impl Starts {
    /// A group; 0 for rows that are not there.
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
    /// A few rows: every panel of the weight is read once, by one task. `x` has room for the rows as f32.
    fn stream(&self, x: *mut f32, width: usize) {
        let (s, rows) = (self.s, self.x.count());
        for row in 0..rows {
            let from = self.x.row(row);
            s.vectorize(|| {
                // SAFETY: there is room for the rows; what fills them up is 0.
                unsafe {
                    let to = x.add(row * width);
                    std::ptr::write_bytes(to.add(self.depth), 0, width - self.depth);
                    vectors!(S, from.len(), |span| {
                        <f32 as Float>::store(s, to, span, T::load(s, from.as_ptr(), span));
                    });
                }
            });
        }
        let x = Wide { start: x, width };
        let straight =
            rows <= straight::FEWEST && self.words.in_rows() && straight::takes(self.block, self.depth);
        for_each_range(self.words.panels(), ROWS * self.words.stored, |panels| {
            // Only its part that is needed is written.
            let mut room = Room([0; STEP * WORDS]);
            for panel in panels {
                let mut totals = [[0.0f32; ROWS]; MAX_SKINNY_ROWS];
                if straight {
                    self.sum_straight(&x, panel, &mut totals);
                } else {
                    self.sum_panel(&x, panel, &mut room, &mut totals);
                }
                let columns = panel * ROWS..((panel + 1) * ROWS).min(self.words.rows);
                for (row, totals) in totals.iter_mut().enumerate().take(rows) {
                    self.write(row, columns.clone(), totals);
                }
            }
        });
    }

    fn sum_straight(&self, x: &Wide, panel: usize, totals: &mut [[f32; ROWS]; MAX_SKINNY_ROWS]) {
        let starts = self.starts(panel);
        let rows = self.x.count();
        for lane in (0..starts.rows).step_by(straight::NC) {
            // Of rows that are not there the last one is taken again, and what comes of it left.
            let columns = std::array::from_fn(|number| {
                let lane = (lane + number).min(starts.rows - 1);
                straight::Column {
                    bytes: self.words.row(panel * ROWS + lane),
                    scales: starts.scales[lane],
                    zero_points: starts.zero_points.map(|starts| starts[lane]),
                }
            });
            let (depth, block) = (self.depth, self.block);
            let inputs = |row: usize| straight::Inputs {
                start: x.start.wrapping_add(row * x.width),
                apart: x.width,
                depth,
                block,
            };
            let mut take = |row: usize, sums: [f32; straight::NC]| {
                let count = straight::NC.min(starts.rows - lane);
                totals[row][lane..lane + count].copy_from_slice(&sums[..count]);
            };
            // SAFETY: the rows as f32 have their inputs, and the rows of the weight their integers, scales and zero points.
            unsafe {
                if rows == straight::FEWEST {
                    let sums = straight::sum::<S, BITS, { straight::FEWEST }>(self.s, inputs(0), columns);
                    sums.into_iter().enumerate().for_each(|(row, sums)| take(row, sums));
                } else {
                    for row in 0..rows {
                        let [sums] = straight::sum::<S, BITS, 1>(self.s, inputs(row), columns);
                        take(row, sums);
                    }
                }
            }
        }
    }

    fn sum_panel(
        &self,
        x: &Wide,
        panel: usize,
        room: &mut Room,
        totals: &mut [[f32; ROWS]; MAX_SKINNY_ROWS],
    ) {
        let (per_word, count, rows) = (per_word::<BITS>(), self.words.count(), self.x.count());
        let group_words = self.block / per_word;
        let starts = self.starts(panel);
        let mut first = 0;
        while first < count {
            let end = count.min(first + self.words.at_once());
            // SAFETY: these are words of the rows, as many as can be had at once.
            let at = unsafe { self.words.panel(self.s, panel, first..end, room) };
            let mut word = first;
            while word < end {
                let group = word / group_words;
                let until = end.min((group + 1) * group_words);
                // SAFETY: the words of this group are words of the rows.
                let scales = unsafe { starts.group(group) };
                let mut row = 0;
                while row < rows {
                    let at_once = match rows - row {
                        8.. => 8,
                        left => left.min(4),
                    };
                    // SAFETY: the words are there, and the rows as f32 have their inputs.
                    unsafe {
                        let words = at.add((word - first) * STEP);
                        let from = x.start.add(row * x.width + word * per_word);
                        let totals = totals.as_mut_ptr().add(row);
                        let job = Tile { words, count: until - word, x: from, width: x.width, totals };
                        match at_once {
                            1 => job.sum::<S, BITS, 1, 4>(self.s, &scales),
                            2 => job.sum::<S, BITS, 2, 4>(self.s, &scales),
                            3 => job.sum::<S, BITS, 3, 2>(self.s, &scales),
                            4 => job.sum::<S, BITS, 4, 2>(self.s, &scales),
                            // As many sums as the registers hold.
                            _ if S::LANES >= 16 => job.sum::<S, BITS, 8, 2>(self.s, &scales),
                            _ => job.sum::<S, BITS, 8, 1>(self.s, &scales),
                        }
                    }
                    row += at_once;
                }
                word = until;
            }
            first = end;
        }
    }

    fn starts(&self, panel: usize) -> Starts {
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
        Starts { scales, zero_points, rows }
    }

    /// Adds the bias, activates, rounds and writes some columns of a row from their sums.
    fn write(&self, row: usize, columns: Range<usize>, sums: &mut [f32]) {
        let sums = &mut sums[..columns.len()];
        recompute_non_finite(self.s, sums, |place| self.sum_widely(row, columns.start + place));
        let bias = self.bias.as_ref().map(|bias| &bias.row(0)[columns.clone()]);
        // SAFETY: every task writes rows or columns of its own, and these columns are inside the row.
        let to = unsafe { self.y.part(row, columns) };
        self.activation.with(Write { s: self.s, sums, bias, to });
    }

    /// A sum in f64, for one that f32 cannot hold.
    #[cold]
    #[inline(never)]
    fn sum_widely(&self, row: usize, column: usize) -> f64 {
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

/// Rows as f32, so far apart.
struct Wide {
    start: *const f32,
    width: usize,
}

// SAFETY: it is only read once it was written.
unsafe impl Sync for Wide {}

/// Some words of a panel, and the inputs of a few rows that belong to them.
struct Tile {
    words: *const u8,
    count: usize,
    x: *const f32,
    width: usize,
    totals: *mut [f32; ROWS],
}

impl Tile {
    /// Adds the products of `MR` rows, in `SUMS` sums each.
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
                        s.mul(s.load(group.zero_points.as_ptr().add(first)), s.splat(larger::<BITS>()));
                    let mut sums = [[s.splat(0.0); SUMS]; MR];
                    for number in 0..count {
                        let words = words.add(number * STEP);
                        prefetch(words.wrapping_add(AHEAD));
                        let word = s.to_bits(s.load(words.cast::<f32>().add(first)));
                        let x = x.add(number * per_word::<BITS>());
                        for place in 0..per_word::<BITS>() {
                            let weight = s.sub(larger_input::<S, BITS>(s, word, place), zero_points);
                            for (row, sums) in sums.iter_mut().enumerate() {
                                let factor = s.splat(*x.add(row * width + place));
                                let sum = &mut sums[place % SUMS];
                                *sum = s.fma(factor, weight, *sum);
                            }
                        }
                    }
                    let scales = s.load(group.scales.as_ptr().add(first));
                    let smaller = s.splat(1.0 / larger::<BITS>());
                    for (row, sums) in sums.iter().enumerate() {
                        let mut sum = sums[0];
                        for &other in &sums[1..] {
                            sum = s.add(sum, other);
                        }
                        sum = s.mul(sum, smaller);
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
            |place: usize| (rows.start + place < self.x.count()).then(|| self.x.row(rows.start + place));
        // SAFETY: the caller guarantees the place; rows have the steps.
        unsafe { transpose_rows(self.s, rows.len(), rows.len(), depth, row, to) };
    }

    unsafe fn pack_b(&self, block: usize, depth: Range<usize>, to: *mut f32) {
        let wide = nr::<S>();
        let words = depth.start / per_word::<BITS>()..depth.end.div_ceil(per_word::<BITS>());
        let mut room = Room([0; STEP * WORDS]);
        for number in 0..NC / ROWS {
            let rows = block * (NC / ROWS) + number;
            // SAFETY: steps come in whole words, and fewer than there is room for.
            let at = unsafe { self.words.panel(self.s, rows, words.clone(), &mut room) };
            let starts = self.starts(rows);
            let mut step = 0;
            while step < depth.len() {
                let group = (depth.start + step) / self.block;
                let end = depth.len().min(((group + 1) * self.block).saturating_sub(depth.start));
                // SAFETY: these are steps of the rows.
                let scales = unsafe { starts.group(group) };
                for first in (0..ROWS).step_by(S::LANES) {
                    let column = number * ROWS + first;
                    // SAFETY: the caller guarantees the place; the words of these steps are there.
                    unsafe {
                        let to = to.add(column / wide * wide * depth.len() + column % wide);
                        let words = at.cast::<f32>().add(first);
                        expand::<S, BITS>(self.s, words, step..end, &scales, first, to, wide);
                    }
                }
                step = end;
            }
        }
    }

    unsafe fn epilogue(&self, row: usize, block: usize, from: *mut f32) {
        let columns = block * NC..((block + 1) * NC).min(self.words.rows);
        // SAFETY: the caller guarantees a block of numbers.
        let sums = unsafe { std::slice::from_raw_parts_mut(from, columns.len()) };
        self.write(row, columns, sums);
    }
}

/// Writes steps of one vector of rows as numbers, `between` apart.
///
/// # Safety
/// The words of the steps are readable, and so many vectors are writable.
#[inline(never)]
unsafe fn expand<S: Simd, const BITS: u32>(
    s: S,
    words: *const f32,
    steps: Range<usize>,
    group: &Group,
    first: usize,
    to: *mut f32,
    between: usize,
) {
    let per_word = per_word::<BITS>();
    s.vectorize(|| {
        // SAFETY: the caller guarantees words and places.
        unsafe {
            let scales = s.load(group.scales.as_ptr().add(first));
            let zero_points = s.load(group.zero_points.as_ptr().add(first));
            let mut step = steps.start;
            while step < steps.end {
                let word = s.to_bits(s.load(words.add(step / per_word * ROWS)));
                let place = step % per_word;
                let count = (steps.end - step).min(per_word - place);
                for place in place..place + count {
                    let value = s.mul(s.sub(input::<S, BITS>(s, word, place), zero_points), scales);
                    s.store(to.add(step * between), value);
                    step += 1;
                }
            }
        }
    });
}
