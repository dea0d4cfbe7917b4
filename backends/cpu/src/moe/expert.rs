//! The gated MLP of one expert over the tokens that chose it: gate and up projections in one pass, kept in f32,
//! then the down projection, which is weighted and added to the sums of the tokens.

use std::ops::Range;

use super::gating::Gating;
use crate::gemm::blocked::{GemmOperands, NC, gemm, nr};
use crate::gemm::dots::{dot_f64, dots_before, recompute_with_bias};
use crate::gemm::pack::transpose_rows;
use crate::mlp::grain;
use crate::rows::{Rows, for_each_range};
use crate::simd::{Float, Simd, vectors};

/// The weights of all experts, as rows.
#[derive(Clone, Copy)]
pub(super) struct Weights<'a, T> {
    pub gate_up: Rows<'a, T>,
    pub down: Rows<'a, T>,
    pub gate_up_bias: Option<Rows<'a, T>>,
    pub down_bias: Option<Rows<'a, T>>,
    /// Gate and up rows alternate.
    pub interleaved: bool,
    pub intermediate: usize,
    pub out_features: usize,
}

impl<'a, T: Float> Weights<'a, T> {
    /// Index of the gate row and of the up row of a feature, in its expert.
    pub(super) fn pair(&self, feature: usize) -> [usize; 2] {
        if self.interleaved { [2 * feature, 2 * feature + 1] } else { [feature, self.intermediate + feature] }
    }

    /// The gate row or up row (`half` 0 or 1) of a feature of an expert.
    pub(super) fn gate_or_up(&self, expert: usize, half: usize, feature: usize) -> &'a [T] {
        self.gate_up.row(2 * expert * self.intermediate + self.pair(feature)[half])
    }

    /// A row of the down projection of an expert.
    pub(super) fn down_row(&self, expert: usize, feature: usize) -> &'a [T] {
        self.down.row(expert * self.out_features + feature)
    }

    /// The bias of a gate or up feature.
    pub(super) fn bias(&self, expert: usize, half: usize, feature: usize) -> f32 {
        self.gate_up_bias.map_or(0.0, |bias| bias.row(expert)[self.pair(feature)[half]].to_f32())
    }
}

/// A matrix of f32 that tasks write in disjoint parts.
#[derive(Clone, Copy)]
pub(super) struct Matrix {
    pub start: *mut f32,
    pub width: usize,
}

// SAFETY: tasks write disjoint parts, and read only after all tasks finished.
unsafe impl Send for Matrix {}
// SAFETY: as above.
unsafe impl Sync for Matrix {}

impl Matrix {
    /// Address of a row.
    pub(super) fn row(self, row: usize) -> *mut f32 {
        self.start.wrapping_add(row * self.width)
    }

    /// # Safety
    /// The row exists, the columns are inside, and no other reference to these elements exists.
    pub(super) unsafe fn part<'m>(self, row: usize, columns: Range<usize>) -> &'m mut [f32] {
        let start = self.row(row).wrapping_add(columns.start);
        // SAFETY: guaranteed by the caller.
        unsafe { std::slice::from_raw_parts_mut(start, columns.len()) }
    }
}

/// One expert and its tokens.
pub(super) struct Expert<'a, S, T> {
    pub s: S,
    pub number: usize,
    pub x: Rows<'a, T>,
    /// The rows of `x` that chose the expert, and the weight of each.
    pub tokens: &'a [u32],
    pub factors: &'a [f32],
    pub weights: Weights<'a, T>,
    pub gating: Gating,
    /// One row per token of the expert.
    pub hidden: Matrix,
    /// One row per row of `x`.
    pub sums: Matrix,
}

/// Experts with at most this many tokens read their weights in place: packing them costs more than it saves.
const MAX_SKINNY_TOKENS: usize = 12;

/// The same if the products run on AMX tiles, which read the weights of more tokens in place.
pub(super) const MAX_SKINNY_BEFORE_TILES: usize = 2;

/// Columns of a skinny product that an epilogue gets at once.
const COLUMNS: usize = 16;

/// A column block of the first GEMM consists of gate columns, followed by as many up columns.
const GATE_COLUMNS: usize = NC / 2;

impl<'a, S: Simd, T: Float> Expert<'a, S, T> {
    /// Runs the expert. The workspace is large enough to pack the tokens for both GEMMs.
    pub(super) fn run(&self, packed: &mut [u8]) {
        if self.tokens.is_empty() || self.weights.out_features == 0 {
            return;
        }
        let count = self.tokens.len();
        #[cfg(target_arch = "x86_64")]
        if count > MAX_SKINNY_BEFORE_TILES && super::amx::run(self, packed) {
            return;
        }
        if count <= MAX_SKINNY_TOKENS {
            return self.run_skinny();
        }
        let (rows, depth) = (self.tokens.len(), self.x.width());
        let columns = self.weights.intermediate.div_ceil(GATE_COLUMNS) * NC;
        gemm(self.s, [rows, columns, depth], packed, &GateUp(self));
        gemm(self.s, [rows, self.weights.out_features, self.weights.intermediate], packed, &Down(self));
    }

    /// A token of the expert.
    pub(super) fn token(&self, row: usize) -> &'a [T] {
        self.x.row(self.tokens[row] as usize)
    }

    /// Skinny GEMMs: each task computes some columns of all tokens.
    fn run_skinny(&self) {
        let (s, count, weights, width) = (self.s, self.tokens.len(), &self.weights, self.x.width());
        let mut x: [&[T]; MAX_SKINNY_TOKENS] = [&[]; MAX_SKINNY_TOKENS];
        x.iter_mut().enumerate().take(count).for_each(|(row, x)| *x = self.token(row));
        for_each_columns(weights.intermediate, 2 * width * size_of::<T>(), |columns, next| {
            let mut sums = [[[0.0f32; COLUMNS]; 2]; MAX_SKINNY_TOKENS];
            let rows = |half: usize, columns: Range<usize>| {
                gather(columns, |feature| weights.gate_or_up(self.number, half, feature))
            };
            let (gates, ups) = (rows(0, columns.clone()), rows(1, columns.clone()));
            // Gates are followed by ups, and those by the next gates.
            for (half, rows, next) in [(0, &gates, &ups), (1, &ups, &rows(0, next))] {
                let take = &mut |row: usize, column: usize, sum| sums[row][half][column] = sum;
                // SAFETY: all rows have the width of x (validated).
                unsafe { dots_before(s, &x[..count], &rows[..columns.len()], next, width, take) };
            }
            for (row, [gates, ups]) in sums.iter_mut().enumerate().take(count) {
                // SAFETY: tasks have disjoint columns, which are inside the row.
                let to = unsafe { self.hidden.part(row, columns.clone()) };
                self.gate(row, columns.start, gates, ups, to);
            }
        });
        let width = weights.intermediate;
        let mut hidden: [&[f32]; MAX_SKINNY_TOKENS] = [&[]; MAX_SKINNY_TOKENS];
        for (row, hidden) in hidden.iter_mut().enumerate().take(count) {
            // SAFETY: all tasks that write it finished.
            *hidden = unsafe { self.hidden.part(row, 0..width) };
        }
        for_each_columns(weights.out_features, width * size_of::<T>(), |columns, next| {
            let mut sums = [[0.0f32; COLUMNS]; MAX_SKINNY_TOKENS];
            let rows = |columns| gather(columns, |feature| weights.down_row(self.number, feature));
            let (rows, next) = (&rows(columns.clone())[..columns.len()], &rows(next));
            let take = &mut |row: usize, column: usize, sum| sums[row][column] = sum;
            // SAFETY: hidden rows and rows of the down projection have `intermediate` elements.
            unsafe { dots_before(s, &hidden[..count], rows, next, width, take) };
            for (row, sums) in sums.iter().enumerate().take(count) {
                self.add(row, columns.clone(), sums);
            }
        });
    }

    /// Epilogue of the first GEMM: biases, activation and product of the features from `first` on.
    pub(super) fn gate(&self, row: usize, first: usize, gates: &mut [f32], ups: &mut [f32], to: &mut [f32]) {
        for (half, sums) in [&mut *gates, &mut *ups].into_iter().enumerate() {
            let sums = &mut sums[..to.len()];
            let bias = |index: usize| self.weights.bias(self.number, half, first + index);
            let done = recompute_with_bias(self.s, sums, bias, |index| {
                dot_f64(self.token(row), self.weights.gate_or_up(self.number, half, first + index))
            });
            if !done && self.weights.gate_up_bias.is_some() {
                for (index, sum) in sums.iter_mut().enumerate() {
                    *sum += bias(index);
                }
            }
        }
        self.gating.apply(self.s, gates, ups, to);
    }

    /// Epilogue of the second GEMM: bias, weight, and addition to the sums of a token.
    pub(super) fn add(&self, row: usize, columns: Range<usize>, from: &[f32]) {
        let (s, factor) = (self.s, self.factors[row]);
        let bias = self.weights.down_bias.map(|bias| &bias.row(self.number)[columns.clone()]);
        // SAFETY: an expert has each token once, and tasks have disjoint rows or columns, inside the row.
        let to = unsafe { self.sums.part(self.tokens[row] as usize, columns) };
        s.vectorize(|| {
            vectors!(S, to.len().min(from.len()), |span| {
                // SAFETY: sums, bias and outputs have this many elements.
                unsafe {
                    let mut value = <f32 as Float>::load(s, from.as_ptr(), span);
                    if let Some(bias) = bias {
                        value = s.add(value, T::load(s, bias.as_ptr(), span));
                    }
                    let sum = <f32 as Float>::load(s, to.as_ptr(), span);
                    <f32 as Float>::store(s, to.as_mut_ptr(), span, s.fma(value, s.splat(factor), sum));
                }
            });
        });
    }
}

/// Rows of up to [`COLUMNS`] columns; the others are empty.
fn gather<'a, T>(columns: Range<usize>, row: impl Fn(usize) -> &'a [T]) -> [&'a [T]; COLUMNS] {
    let mut rows: [&[T]; COLUMNS] = [&[]; COLUMNS];
    rows.iter_mut().zip(columns).for_each(|(to, column)| *to = row(column));
    rows
}

/// Runs `body` for groups of up to [`COLUMNS`] columns, and with the group that follows, distributed over the thread pool.
fn for_each_columns(count: usize, bytes: usize, body: impl Fn(Range<usize>, Range<usize>) + Sync) {
    let grain = grain(bytes).next_multiple_of(COLUMNS);
    for_each_range(count.div_ceil(grain), grain * bytes, &|tasks| {
        let end = (tasks.end * grain).min(count);
        for column in (tasks.start * grain..end).step_by(COLUMNS) {
            let next = end.min(column + COLUMNS);
            body(column..next, next..end.min(next + COLUMNS));
        }
    });
}

/// The first GEMM.
struct GateUp<'e, 'a, S, T>(&'e Expert<'a, S, T>);

impl<S: Simd, T: Float> GemmOperands for GateUp<'_, '_, S, T> {
    unsafe fn pack_a(&self, rows: Range<usize>, depth: Range<usize>, to: *mut f32) {
        let expert = self.0;
        let row = |index: usize| {
            let row = rows.start + index;
            (row < expert.tokens.len()).then(|| expert.token(row))
        };
        // SAFETY: the caller guarantees the destination; rows cover `depth`.
        unsafe { transpose_rows(expert.s, rows.len(), rows.len(), depth, row, to) };
    }

    unsafe fn pack_b(&self, block: usize, depth: Range<usize>, to: *mut f32) {
        let Expert { s, weights, number, .. } = self.0;
        let row = |index: usize| {
            let feature = block * GATE_COLUMNS + index % GATE_COLUMNS;
            (feature < weights.intermediate)
                .then(|| weights.gate_or_up(*number, index / GATE_COLUMNS, feature))
        };
        // SAFETY: the caller guarantees the destination; rows cover `depth`.
        unsafe { transpose_rows(*s, NC, nr::<S>(), depth, row, to) };
    }

    unsafe fn epilogue(&self, row: usize, block: usize, from: *mut f32) {
        let features = block * GATE_COLUMNS..((block + 1) * GATE_COLUMNS).min(self.0.weights.intermediate);
        // SAFETY: the caller guarantees a block of NC elements; the ups of the block follow its gates. Tasks have
        // disjoint rows or columns.
        let (gates, ups, to) = unsafe {
            (
                std::slice::from_raw_parts_mut(from, features.len()),
                std::slice::from_raw_parts_mut(from.add(GATE_COLUMNS), features.len()),
                self.0.hidden.part(row, features.clone()),
            )
        };
        self.0.gate(row, features.start, gates, ups, to);
    }
}

/// The second GEMM.
struct Down<'e, 'a, S, T>(&'e Expert<'a, S, T>);

impl<S: Simd, T: Float> GemmOperands for Down<'_, '_, S, T> {
    unsafe fn pack_a(&self, rows: Range<usize>, depth: Range<usize>, to: *mut f32) {
        let expert = self.0;
        let row = |index: usize| {
            let row = rows.start + index;
            // SAFETY: the first GEMM wrote all rows, and nothing writes them now.
            (row < expert.tokens.len())
                .then(|| unsafe { &*expert.hidden.part(row, 0..expert.weights.intermediate) })
        };
        // SAFETY: the caller guarantees the destination; rows cover `depth`.
        unsafe { transpose_rows(expert.s, rows.len(), rows.len(), depth, row, to) };
    }

    unsafe fn pack_b(&self, block: usize, depth: Range<usize>, to: *mut f32) {
        let Expert { s, weights, number, .. } = self.0;
        let row = |index: usize| {
            let feature = block * NC + index;
            (feature < weights.out_features).then(|| weights.down_row(*number, feature))
        };
        // SAFETY: the caller guarantees the destination; rows cover `depth`.
        unsafe { transpose_rows(*s, NC, nr::<S>(), depth, row, to) };
    }

    unsafe fn epilogue(&self, row: usize, block: usize, from: *mut f32) {
        let columns = block * NC..((block + 1) * NC).min(self.0.weights.out_features);
        // SAFETY: the caller guarantees a block of NC elements.
        let sums = unsafe { std::slice::from_raw_parts(from, columns.len()) };
        self.0.add(row, columns, sums);
    }
}
