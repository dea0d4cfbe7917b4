//! `mlp.linear.int8`: int8 GEMM, accumulated in i32, block by block.
//!
//! One task computes one block of the result, on AMX tiles if available. If the dot-product instruction
//! requires an unsigned operand A (VNNI), its bytes are offset by 128, and the offset is corrected with the
//! column sums, which zero points need as well. Everything before the scales is exact.

use std::marker::PhantomData;
use std::ops::Range;

use lz_core::{DType, KernelError, Run};
use lz_ops::{
    MlpLinearInt8Call, MlpLinearInt8Kernel, MlpLinearInt8Out, MlpLinearInt8OutputDtype as OutputDtype,
    MlpLinearInt8WeightLayout as Layout, MlpLinearInt8XGranularity as Granularity,
};

use super::output::Output;
use super::packed_words::{PackedWords, PanelBuffer, ROWS, STEP, WORD, WORDS};
use crate::gemm::{MAX_MR, NR_VECTORS, for_each_rows, mr as tile_rows};
use crate::isa::{require, require_amx_int8};
use crate::pool;
use crate::rows::{Rows, Shape};
use crate::simd::{Float, Simd, Work, with_float};

/// Dense rows, weights of either layout. The limit on in_features keeps sums within i32.
#[derive(Debug)]
pub(crate) struct LinearInt8<S>(pub PhantomData<S>);

#[lz_macros::kernel(
    id = "cpu.mlp.linear.int8",
    operation = "mlp.linear.int8",
    backend = "cpu",
    priority = 60,
    strides = last_dense,
    limits("in_features <= 65536" => AXIS_LIMIT),
    deterministic,
    batch_invariant = true
)]
impl<S: Simd> MlpLinearInt8Kernel for LinearInt8<S> {
    fn run(
        &self,
        call: &MlpLinearInt8Call<'_>,
        mut out: MlpLinearInt8Out<'_>,
        _run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let s = require::<S>()?;
        require_amx_int8::<S>()?;
        let dtype = match call.output_dtype {
            OutputDtype::F32 => DType::F32,
            OutputDtype::F16 => DType::F16,
            OutputDtype::Bf16 => DType::BF16,
        };
        with_float!(Some(dtype), T => layer::<S, T>(s, call, &mut out))
    }
}

fn layer<S: Simd, T: Float>(
    s: S,
    call: &MlpLinearInt8Call<'_>,
    out: &mut MlpLinearInt8Out<'_>,
) -> Result<(), KernelError> {
    let (columns, depth) = (call.axes.out_features as usize, call.axes.in_features as usize);
    let zero_point = call.x_zero_point.as_ref();
    let layer = Layer::<S, T> {
        s,
        x: Rows::new(&call.x)?,
        words: PackedWords::new(&call.weight, call.weight_layout == Layout::Panels, columns, depth)?,
        x_scale: Rows::shaped(&call.x_scale, Shape::Elements)?,
        x_zero_point: zero_point.map(|view| Rows::shaped(view, Shape::Elements)).transpose()?,
        shared: call.x_granularity == Granularity::Tensor,
        scale: Rows::new(&call.weight_scale)?,
        out: Output::new(&mut out.output, call.bias.as_ref(), call.activation)?,
    };
    if call.axes.rows > 0 && columns > 0 {
        layer.run();
    }
    Ok(())
}

/// NC: columns of a block, in whole panels.
const NC: usize = PANELS * ROWS;
const PANELS: usize = 4;

/// Maximum MC; a multiple of every MR, so it is even.
const MAX_MC: usize = 8 * MAX_MR;

/// KC: inputs that are multiplied at once.
const KC: usize = WORDS * WORD;

/// Rows of A that are prepared at once: two tiles, or a few micro-tiles.
const A_ROWS: usize = 32;

/// Words of a tile.
const TILE_WORDS: usize = 16;

/// Layers with fewer multiply-adds run on the caller's thread.
const MIN_PARALLEL_MACS: usize = 1 << 20;

struct Layer<'a, S, T> {
    s: S,
    x: Rows<'a, i8>,
    words: PackedWords<'a>,
    x_scale: Rows<'a, f32>,
    x_zero_point: Option<Rows<'a, i32>>,
    /// Whether all rows share a scale.
    shared: bool,
    scale: Rows<'a, f32>,
    out: Output<'a, T>,
}

/// Working set of a task.
#[repr(align(64))]
struct Block {
    sums: [i32; MAX_MC * NC],
    columns: [i32; NC],
    a: [u8; A_ROWS * KC],
    panel_buffers: [PanelBuffer; PANELS],
}

impl<S: Simd, T: Float> Layer<'_, S, T> {
    fn run(&self) {
        let (rows, columns) = (self.x.count(), self.words.rows);
        let row_blocks = rows.div_ceil(MAX_MC);
        // Blocks of equal height in whole micro-tiles, to avoid a short last block.
        let mc = rows.div_ceil(row_blocks).next_multiple_of(tile_rows::<S>());
        let tasks = row_blocks * columns.div_ceil(NC);
        let task = |number: usize| {
            let (block, first) = (number / row_blocks, number % row_blocks * mc);
            self.one_block(first.min(rows)..rows.min(first + mc), block);
        };
        pool::for_each_if(rows * columns * self.words.stored >= MIN_PARALLEL_MACS, tasks, &task);
    }

    #[inline(never)]
    fn one_block(&self, rows: Range<usize>, number: usize) {
        let s = self.s;
        let mut block = Block {
            sums: [0; MAX_MC * NC],
            columns: [0; NC],
            a: [0; A_ROWS * KC],
            panel_buffers: [const { PanelBuffer([0; STEP * WORDS]) }; PANELS],
        };
        let even = rows.len().next_multiple_of(2);
        let column_sums = S::BYTE_OFFSET != 0 || self.x_zero_point.is_some();
        for first in (0..self.words.count()).step_by(WORDS) {
            let words = first..self.words.count().min(first + WORDS);
            let mut panels = [std::ptr::null(); PANELS];
            for (index, (panel, buffer)) in panels.iter_mut().zip(&mut block.panel_buffers).enumerate() {
                // SAFETY: the words are inside the rows, and at most as many as the buffer holds.
                *panel = unsafe { self.words.panel(s, number * PANELS + index, words.clone(), buffer) };
                if const { S::TILES } && !words.len().is_multiple_of(TILE_WORDS) {
                    *panel = pad_to_tiles(*panel, words.len(), buffer);
                }
            }
            let inputs = first * WORD..self.words.stored.min(words.end * WORD);
            if column_sums {
                // SAFETY: the panels contain the words.
                unsafe { add_column_sums(s, panels, inputs.len(), &mut block.columns) };
            }
            let rows_at_once = if S::TILES { A_ROWS } else { tile_rows::<S>() };
            for row in (0..even).step_by(rows_at_once) {
                let count = if S::TILES { A_ROWS } else { tile_rows::<S>().min(even - row) };
                for index in 0..count {
                    let from = rows.start + row + index;
                    let to = &mut block.a[index * KC..(index + 1) * KC];
                    let x = if from < rows.end { &self.x.row(from)[inputs.clone()] } else { &[] };
                    pack_a_row::<S>(s, x, to);
                }
                let sums = &mut block.sums[row * NC..(row + count) * NC];
                // SAFETY: the panels contain the words (padded to whole tiles for AMX), and rows of A have as
                // many.
                unsafe {
                    if const { S::TILES } {
                        multiply_amx(words.len().div_ceil(TILE_WORDS), &block.a, panels, sums);
                    } else {
                        multiply_rows(s, count, words.len(), &block.a, panels, sums);
                    }
                }
            }
        }
        let columns = number * NC..((number + 1) * NC).min(self.words.rows);
        for (index, row) in rows.enumerate() {
            self.write(row, columns.clone(), &block.sums[index * NC..], &block.columns);
        }
    }

    /// Epilogue: scales the sums of a row, adds the bias, applies the activation, rounds and writes.
    fn write(&self, row: usize, columns: Range<usize>, sums: &[i32], column_sums: &[i32]) {
        let group = if self.shared { 0 } else { row };
        let x_scale = f64::from(self.x_scale.row(group)[0]);
        let zero_point = self.x_zero_point.as_ref().map_or(0, |rows| i64::from(rows.row(group)[0]));
        let offset = zero_point + i64::from(S::BYTE_OFFSET);
        let scales = &self.scale.row(0)[columns.clone()];
        let bias = self.out.bias(columns.clone());
        let mut values = [0.0f32; NC];
        for (index, (value, &scale)) in values.iter_mut().zip(scales).enumerate() {
            let sum = i64::from(sums[index]) - offset * i64::from(column_sums[index]);
            let bias = bias.map_or(0.0, |bias| f64::from(bias[index].to_f32()));
            *value = (sum as f64 * (x_scale * f64::from(scale)) + bias) as f32;
        }
        self.out.store(self.s, row, columns, &values, None);
    }
}

/// Copies the words of a panel into the buffer, padded with 0 to whole tiles.
fn pad_to_tiles(panel: *const u8, words: usize, buffer: &mut PanelBuffer) -> *const u8 {
    let to = buffer.0.as_mut_ptr();
    // SAFETY: the panel contains the words, and the buffer holds whole tiles; the panel may already be in the
    // buffer.
    unsafe {
        std::ptr::copy(panel, to, words * STEP);
        let rest = words.next_multiple_of(TILE_WORDS) - words;
        std::ptr::write_bytes(to.add(words * STEP), 0, rest * STEP);
    }
    to
}

/// Adds the products of two tiles of rows with every panel (AMX).
///
/// # Safety
/// The panels and the rows have `steps` tiles, and there are sums for all rows; the processor has AMX-INT8.
#[cfg(target_arch = "x86_64")]
unsafe fn multiply_amx(steps: usize, a: &[u8; A_ROWS * KC], panels: [*const u8; PANELS], sums: &mut [i32]) {
    use crate::simd::amx::{ROW, SIDE, Tiles, TilesA, TilesC};
    let (from, to) = (a.as_ptr(), sums.as_mut_ptr().cast::<f32>());
    // SAFETY: the caller guarantees operands, sums and instructions.
    unsafe {
        let tiles = Tiles::new();
        for (pair, panels) in panels.chunks_exact(2).enumerate() {
            let to = to.add(pair * 2 * ROWS);
            let below = to.add(SIDE * NC);
            tiles.multiply_bytes(
                TilesA { tiles: [from, from.add(SIDE * KC)], row: KC, step: ROW },
                [panels[0], panels[1]],
                steps,
                TilesC {
                    tiles: [[to, to.add(ROWS)], [below, below.add(ROWS)]],
                    row: NC * size_of::<i32>(),
                    add: true,
                },
            );
        }
    }
}

/// No AMX on this target.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn multiply_amx(_: usize, _: &[u8; A_ROWS * KC], _: [*const u8; PANELS], _: &mut [i32]) {}

/// Packs a row of A: adds the byte offset of the dot-product instruction, and pads with 0.
#[inline(never)]
fn pack_a_row<S: Simd>(s: S, from: &[i8], to: &mut [u8]) {
    let (bytes, rest) = to.split_at_mut(from.len().min(to.len()));
    s.vectorize(|| {
        for (to, from) in bytes.iter_mut().zip(from) {
            *to = (*from as u8).wrapping_add(S::BYTE_OFFSET);
        }
        rest.fill(0);
    });
}

/// Adds the bytes of each column, without the padding.
///
/// # Safety
/// The panels contain the words of `inputs` inputs.
#[inline(never)]
unsafe fn add_column_sums<S: Simd>(s: S, panels: [*const u8; PANELS], inputs: usize, sums: &mut [i32; NC]) {
    const ONES: i32 = 0x0101_0101;
    s.vectorize(|| {
        for first in (0..NC).step_by(S::LANES) {
            // SAFETY: the caller guarantees the words; a vector is a part of a panel.
            unsafe {
                let from = panels[first / ROWS].cast::<f32>().add(first % ROWS);
                let to = sums.as_mut_ptr().cast::<f32>().add(first);
                let mut sum = s.to_bits(s.load(to));
                let whole = inputs / WORD;
                for word in 0..whole {
                    let bytes = s.to_bits(s.load(from.add(word * ROWS)));
                    sum = s.dot_bytes(sum, s.splat_i32(ONES), bytes);
                }
                let rest = inputs % WORD;
                if rest > 0 {
                    let bytes = s.to_bits(s.load(from.add(whole * ROWS)));
                    // The first bytes of a word are its lowest.
                    let ones = i32::from_le(ONES & ((1 << (8 * rest)) - 1));
                    sum = s.dot_bytes(sum, s.splat_i32(ones), bytes);
                }
                s.store(to, s.bitcast_f32(sum));
            }
        }
    });
}

/// Adds the products of a few rows with every panel.
///
/// # Safety
/// The panels and the rows contain the words, and there are sums for `count` rows, an even number of at most
/// [`tile_rows`].
#[inline(never)]
unsafe fn multiply_rows<S: Simd>(
    s: S,
    count: usize,
    words: usize,
    a: &[u8; A_ROWS * KC],
    panels: [*const u8; PANELS],
    sums: &mut [i32],
) {
    s.perform(MultiplyRows { s, count, words, a: a.as_ptr(), panels, sums: sums.as_mut_ptr() });
}

/// Body of [`multiply_rows`]; large, because it contains a micro-kernel for every number of rows.
struct MultiplyRows<S> {
    s: S,
    count: usize,
    words: usize,
    a: *const u8,
    panels: [*const u8; PANELS],
    sums: *mut i32,
}

impl<S: Simd> Work for MultiplyRows<S> {
    #[inline(always)]
    fn perform(self) {
        for_each_rows!(S, self.count, |row, MR| {
            for column in (0..NC).step_by(NR_VECTORS * S::LANES) {
                // SAFETY: the creator guarantees operands and sums.
                unsafe {
                    let (a, to) = (self.a.add(row * KC), self.sums.add(row * NC + column));
                    add_tile::<S, MR, NR_VECTORS>(self.s, a, self.panels, column, self.words, to);
                }
            }
        });
    }
}

#[inline(always)]
unsafe fn add_tile<S: Simd, const MR: usize, const NV: usize>(
    s: S,
    a: *const u8,
    panels: [*const u8; PANELS],
    column: usize,
    words: usize,
    to: *mut i32,
) {
    // SAFETY: the caller guarantees operands and sums.
    unsafe {
        let mut from = [std::ptr::null::<f32>(); NV];
        for (n, from) in from.iter_mut().enumerate() {
            let column = column + n * S::LANES;
            *from = panels[column / ROWS].cast::<f32>().add(column % ROWS);
        }
        let mut sums = [[s.splat_i32(0); NV]; MR];
        for (m, sums) in sums.iter_mut().enumerate() {
            for (n, sum) in sums.iter_mut().enumerate() {
                *sum = s.to_bits(s.load(to.add(m * NC + n * S::LANES).cast()));
            }
        }
        for word in 0..words {
            let mut b = [s.splat_i32(0); NV];
            for (b, from) in b.iter_mut().zip(&from) {
                *b = s.to_bits(s.load(from.add(word * ROWS)));
            }
            for (m, sums) in sums.iter_mut().enumerate() {
                let bytes = s.splat_i32(a.add(m * KC + word * WORD).cast::<i32>().read_unaligned());
                for (sum, &b) in sums.iter_mut().zip(&b) {
                    *sum = s.dot_bytes(*sum, bytes, b);
                }
            }
        }
        for (m, sums) in sums.iter().enumerate() {
            for (n, &sum) in sums.iter().enumerate() {
                s.store(to.add(m * NC + n * S::LANES).cast(), s.bitcast_f32(sum));
            }
        }
    }
}
