//! The recurrence `S ← diag(a) S + k δᵀ`, `o = scale Sᵀ q + skip v`, with `δ = f (v - Sᵀ k)` (delta rule) or `δ = f v`.
//!
//! A block of columns of S depends on no other column, so a task keeps one in L1 while it reads all positions. One
//! pass over the block per position applies the previous update, and sums `Sᵀ k` and `Sᵀ q` of the decayed state; the
//! output needs no second pass, because `(S + k δᵀ)ᵀ q = Sᵀ q + (k · q) δ`.

use std::ops::Range;

use lz_core::KernelError;

use crate::gemm::dots::all_finite;
use crate::memory::FirstError;
use crate::pool;
use crate::rows::{Rows, RowsMut, should_parallelize};
use crate::simd::{Float, Simd, exp, vectors};

/// Vectors of columns of a block.
const VECTORS: usize = 4;

/// Columns of a block with the widest vectors.
const MAX_COLUMNS: usize = VECTORS * crate::simd::MAX_LANES;

/// Blocks that run at once; each has its own scratch memory.
const SLOTS: usize = 64;

/// Results are recomputed in f64 if rounding errors may have grown by this factor: with keys that are not normalized, or
/// decays above 1.
const MAX_GROWTH: f32 = 64.0;

/// Elements of scratch memory for some blocks of states with this many rows. Kernels declare it as
/// `min(blocks, 64) * (69 * key_dim + 256)`.
pub(super) fn scratch_elements(blocks: usize, key_dim: usize) -> usize {
    blocks.min(SLOTS) * (69 * key_dim + 4 * MAX_COLUMNS)
}

/// Query and key of a position of a key head, and products of them.
#[derive(Clone, Copy)]
pub(super) struct Prepared {
    pub start: *mut f32,
    pub key_dim: usize,
}

// SAFETY: rows are written by one task each, and read only after all tasks finished.
unsafe impl Send for Prepared {}
// SAFETY: as above.
unsafe impl Sync for Prepared {}

impl Prepared {
    /// Elements of a row: q, k, q·k and k·k.
    pub(super) fn width(key_dim: usize) -> usize {
        2 * key_dim + 2
    }

    /// # Safety
    /// The row exists, and no other reference to it is written.
    pub(super) unsafe fn row<'p>(self, row: usize) -> &'p mut [f32] {
        let width = Prepared::width(self.key_dim);
        // SAFETY: guaranteed by the caller.
        unsafe { std::slice::from_raw_parts_mut(self.start.wrapping_add(row * width), width) }
    }
}

/// A position of one head in f64, for blocks that f32 cannot represent.
pub(super) struct ExactPosition {
    pub q: Vec<f64>,
    pub k: Vec<f64>,
    pub decay: Vec<f64>,
    pub factor: f64,
}

/// Where states come from and go to.
pub(super) struct States<'a> {
    pub initial: Option<Rows<'a, f32>>,
    pub last: Option<&'a RowsMut<'a, f32>>,
    /// The state is read from `last`.
    pub in_place: bool,
    /// Tensors have a row per value feature instead of one per key feature.
    pub transposed: bool,
    /// Key and value features.
    pub dims: [usize; 2],
}

impl States<'_> {
    /// Reads some columns of row `i` of the state of a head.
    ///
    /// # Safety
    /// No other task writes them.
    pub(super) unsafe fn load(&self, head: usize, i: usize, columns: Range<usize>, to: &mut [f32]) {
        let [key_dim, value_dim] = self.dims;
        match (self.initial, self.last) {
            (Some(state), _) if self.transposed => {
                for (to, column) in to.iter_mut().zip(columns) {
                    *to = state.row(head * value_dim + column)[i];
                }
            }
            (Some(state), _) => to.copy_from_slice(&state.row(head * key_dim + i)[columns]),
            (None, Some(state)) if self.in_place => {
                // SAFETY: guaranteed by the caller.
                to.copy_from_slice(unsafe { state.part(head * key_dim + i, columns) });
            }
            _ => to.fill(0.0),
        }
    }

    /// Writes some columns of row `i` of the state of a head, if it is requested.
    ///
    /// # Safety
    /// No other reference to them exists.
    pub(super) unsafe fn store(&self, head: usize, i: usize, columns: Range<usize>, from: &[f32]) {
        let [key_dim, value_dim] = self.dims;
        let Some(state) = self.last else { return };
        // SAFETY: guaranteed by the caller.
        unsafe {
            if self.transposed {
                for (&from, column) in from.iter().zip(columns) {
                    state.part(head * value_dim + column, i..i + 1)[0] = from;
                }
            } else {
                state.part(head * key_dim + i, columns).copy_from_slice(from);
            }
        }
    }
}

/// Logarithms of the decays of a position, by row of `v`.
#[derive(Clone, Copy)]
pub(super) enum LogDecay<'a> {
    /// One for all rows of the state.
    One(&'a (dyn Fn(usize) -> f32 + Sync)),
    /// One for each row of the state.
    Each(Rows<'a, f32>),
}

/// One call.
pub(super) struct Recurrence<'a, S, T> {
    pub s: S,
    /// Batch, positions, heads and key heads.
    pub sizes: [usize; 4],
    pub key_dim: usize,
    pub value_dim: usize,
    /// Rows by batch row, position and key head.
    pub prepared: Prepared,
    pub log_decay: LogDecay<'a>,
    /// Whether the change is relative to what the state predicts.
    pub delta_rule: bool,
    /// The factor f, by row of `v`.
    pub factor: &'a (dyn Fn(usize) -> f32 + Sync),
    pub v: Rows<'a, T>,
    pub y: &'a RowsMut<'a, T>,
    pub states: States<'a>,
    pub scale: f32,
    /// Factor of the value that is added to the output, for each head.
    pub skip: Option<&'a [f32]>,
    /// A position of a head in f64, by rows of `prepared` and `v`.
    pub exact: &'a (dyn Fn(usize, usize) -> Result<ExactPosition, KernelError> + Sync),
}

/// Scratch memory of a block.
struct Scratch {
    state: *mut f32,
    /// Decays of this position and of the previous one.
    decays: [*mut f32; 2],
    decayed_k: *mut f32,
    decayed_q: *mut f32,
    zeros: *mut f32,
    change: *mut f32,
    sums: *mut f32,
    out: *mut f32,
}

#[derive(Clone, Copy)]
struct Memory(*mut f32);

// SAFETY: every slot is used by one task at a time.
unsafe impl Sync for Memory {}

impl Memory {
    fn slot(self, slot: usize, key_dim: usize) -> Scratch {
        let start = self.0.wrapping_add(slot * scratch_elements(1, key_dim));
        let rows = |number: usize| start.wrapping_add((MAX_COLUMNS + number) * key_dim);
        Scratch {
            state: start,
            decays: [rows(0), rows(1)],
            decayed_k: rows(2),
            decayed_q: rows(3),
            zeros: rows(4),
            change: rows(5),
            sums: rows(5).wrapping_add(MAX_COLUMNS),
            out: rows(5).wrapping_add(3 * MAX_COLUMNS),
        }
    }
}

/// One block of columns of the state of a head.
pub(super) struct Block {
    pub b: usize,
    pub h: usize,
    pub first: usize,
    pub count: usize,
}

impl<S: Simd, T: Float> Recurrence<'_, S, T> {
    /// Runs the call. `scratch` has [`scratch_elements`] for all blocks.
    pub(super) fn run(&self, scratch: *mut f32) -> Result<(), KernelError> {
        let [batch, seq, heads, _] = self.sizes;
        let columns = VECTORS * S::LANES;
        let parts = self.value_dim.div_ceil(columns);
        let blocks = batch * heads * parts;
        let slots = blocks.min(SLOTS);
        let memory = Memory(scratch);
        let error = FirstError::default();
        let task = |slot: usize| {
            let scratch = memory.slot(slot, self.key_dim);
            for block in slot * blocks / slots..(slot + 1) * blocks / slots {
                let (head, first) = (block / parts, block % parts * columns);
                let count = columns.min(self.value_dim - first);
                let block = Block { b: head / heads, h: head % heads, first, count };
                if !self.run_block(&scratch, &block) {
                    error.keep(super::exact::run_block(self, &block));
                }
            }
        };
        let bytes = (seq + 1) * blocks * self.key_dim * columns * size_of::<f32>();
        pool::for_each_if(should_parallelize(bytes), slots, &task);
        error.into_result()
    }

    /// Row of `v`.
    pub(super) fn position(&self, block: &Block, t: usize) -> usize {
        (block.b * self.sizes[1] + t) * self.sizes[2] + block.h
    }

    /// Row of `prepared`.
    pub(super) fn key_position(&self, block: &Block, t: usize) -> usize {
        let [_, seq, heads, key_heads] = self.sizes;
        (block.b * seq + t) * key_heads + block.h / (heads / key_heads)
    }

    /// Number of the block's head.
    pub(super) fn head(&self, block: &Block) -> usize {
        block.b * self.sizes[2] + block.h
    }

    /// Factor of the value that is added to the output.
    pub(super) fn skip_factor(&self, block: &Block) -> f32 {
        self.skip.map_or(0.0, |skip| skip[block.h])
    }

    /// Runs a block in f32; `false` if a result is not finite or not accurate enough. Then the state is not written.
    fn run_block(&self, scratch: &Scratch, block: &Block) -> bool {
        let (s, rows, columns) = (self.s, self.key_dim, VECTORS * S::LANES);
        let inside = block.first..block.first + block.count;
        // SAFETY: the scratch memory has these elements and belongs to this task; prepared rows are not written any
        // more; the block's elements of values, outputs and states belong to this task.
        unsafe {
            let slice = |start: *mut f32, count: usize| std::slice::from_raw_parts_mut(start, count);
            let state = slice(scratch.state, rows * columns);
            for (i, row) in state.chunks_mut(columns).enumerate() {
                self.states.load(self.head(block), i, inside.clone(), &mut row[..block.count]);
                row[block.count..].fill(0.0);
            }
            slice(scratch.zeros, rows).fill(0.0);
            slice(scratch.decays[1], rows).fill(1.0);
            slice(scratch.change, columns).fill(0.0);
            let (mut growth, mut finite) = (1.0f32, true);
            let mut previous_k = scratch.zeros.cast_const();
            let [mut decay, mut previous_decay] = scratch.decays;
            for t in 0..self.sizes[1] {
                let prepared = self.prepared.row(self.key_position(block, t));
                let (q, k, products) = (&prepared[..rows], &prepared[rows..2 * rows], &prepared[2 * rows..]);
                let position = self.position(block, t);
                let factor = (self.factor)(position);
                let largest = self.decay(position, slice(decay, rows));
                let change = if self.delta_rule { (factor * products[1]).abs() } else { 1.0 };
                growth *= largest.max(1.0) * change.max(1.0);
                multiply(s, k, slice(decay, rows), slice(scratch.decayed_k, rows));
                multiply(s, q, slice(decay, rows), slice(scratch.decayed_q, rows));
                update_and_sum(
                    s,
                    scratch.state,
                    rows,
                    [previous_decay, previous_k.cast_mut(), scratch.decayed_k, scratch.decayed_q],
                    scratch.change,
                    scratch.sums,
                );
                let v = &self.v.row(position)[inside.clone()];
                let out = slice(scratch.out, columns);
                let sums = slice(scratch.sums, 2 * columns);
                let factors = [factor, products[0], self.skip_factor(block)];
                self.finish(v, factors, sums, slice(scratch.change, columns), out);
                finite &= all_finite(s, &out[..block.count]);
                let to = self.y.part(position, inside.clone());
                s.vectorize(|| {
                    vectors!(S, to.len(), |span| {
                        T::store(s, to.as_mut_ptr(), span, <f32 as Float>::load(s, out.as_ptr(), span));
                    });
                });
                previous_k = k.as_ptr();
                (decay, previous_decay) = (previous_decay, decay);
            }
            let last = [previous_decay, previous_k.cast_mut(), scratch.zeros, scratch.zeros];
            update_and_sum(s, scratch.state, rows, last, scratch.change, scratch.sums);
            // NaN is not below the bound.
            let accurate = growth < MAX_GROWTH;
            if !(finite && accurate && all_finite(s, state)) {
                return false;
            }
            for (i, row) in state.chunks(columns).enumerate() {
                self.states.store(self.head(block), i, inside.clone(), &row[..block.count]);
            }
            true
        }
    }

    /// Writes the decays of a position; returns the largest.
    fn decay(&self, position: usize, to: &mut [f32]) -> f32 {
        let s = self.s;
        let gates = match self.log_decay {
            LogDecay::One(gate) => {
                let decay = f64::from(gate(position)).exp() as f32;
                to.fill(decay);
                return decay;
            }
            LogDecay::Each(gates) => gates.row(position),
        };
        s.vectorize(|| {
            vectors!(S, to.len(), |span| {
                // SAFETY: there is a gate for every row of the state.
                unsafe {
                    let gate = <f32 as Float>::load(s, gates.as_ptr(), span);
                    <f32 as Float>::store(s, to.as_mut_ptr(), span, exp(s, gate));
                }
            });
        });
        to.iter()
            .copied()
            .fold(0.0, |largest, decay| if decay > largest || decay.is_nan() { decay } else { largest })
    }

    /// The change of the state and the output of a position, from the sums `Sᵀ k` and `Sᵀ q`.
    fn finish(&self, v: &[T], factors: [f32; 3], sums: &[f32], change: &mut [f32], out: &mut [f32]) {
        let (s, columns, [factor, qk, skip]) = (self.s, VECTORS * S::LANES, factors);
        let (by_k, by_q) = sums.split_at(columns);
        let predicts = if self.delta_rule { 1.0 } else { 0.0 };
        s.vectorize(|| {
            vectors!(S, v.len(), |span| {
                // SAFETY: all have at least as many elements as v.
                unsafe {
                    let value = T::load(s, v.as_ptr(), span);
                    let predicted = s.mul(<f32 as Float>::load(s, by_k.as_ptr(), span), s.splat(predicts));
                    let r = s.mul(s.splat(factor), s.sub(value, predicted));
                    <f32 as Float>::store(s, change.as_mut_ptr(), span, r);
                    let o = s.fma(s.splat(qk), r, <f32 as Float>::load(s, by_q.as_ptr(), span));
                    let o = s.fma(value, s.splat(skip), s.mul(s.splat(self.scale), o));
                    <f32 as Float>::store(s, out.as_mut_ptr(), span, o);
                }
            });
        });
    }
}

/// `to = a * b`.
fn multiply<S: Simd>(s: S, a: &[f32], b: &[f32], to: &mut [f32]) {
    s.vectorize(|| {
        vectors!(S, to.len(), |span| {
            // SAFETY: all have as many elements.
            unsafe {
                let product = s.mul(
                    <f32 as Float>::load(s, a.as_ptr(), span),
                    <f32 as Float>::load(s, b.as_ptr(), span),
                );
                <f32 as Float>::store(s, to.as_mut_ptr(), span, product);
            }
        });
    });
}

/// Applies `S ← diag(decay) S + k changeᵀ`, and sums the columns of the result, weighted by `by_k` and `by_q`.
///
/// # Safety
/// The state has `rows` rows of VECTORS vectors, the four vectors `rows` elements, `change` one row and `sums` two.
#[inline(never)]
unsafe fn update_and_sum<S: Simd>(
    s: S,
    state: *mut f32,
    rows: usize,
    [decay, k, by_k, by_q]: [*mut f32; 4],
    change: *const f32,
    sums: *mut f32,
) {
    s.vectorize(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let mut changes = [s.splat(0.0); VECTORS];
            for (n, value) in changes.iter_mut().enumerate() {
                *value = s.load(change.add(n * S::LANES));
            }
            let mut sums_k = [s.splat(0.0); VECTORS];
            let mut sums_q = [s.splat(0.0); VECTORS];
            for i in 0..rows {
                let (a, k) = (s.splat(*decay.add(i)), s.splat(*k.add(i)));
                let (by_k, by_q) = (s.splat(*by_k.add(i)), s.splat(*by_q.add(i)));
                let row = state.add(i * VECTORS * S::LANES);
                for (n, ((&change, sum_k), sum_q)) in
                    changes.iter().zip(&mut sums_k).zip(&mut sums_q).enumerate()
                {
                    let at = row.add(n * S::LANES);
                    let value = s.fma(k, change, s.mul(a, s.load(at)));
                    s.store(at, value);
                    *sum_k = s.fma(by_k, value, *sum_k);
                    *sum_q = s.fma(by_q, value, *sum_q);
                }
            }
            for (n, &sum) in sums_k.iter().chain(&sums_q).enumerate() {
                s.store(sums.add(n * S::LANES), sum);
            }
        }
    });
}
