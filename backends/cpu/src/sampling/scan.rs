//! One row of logits: block maxima, candidates as sortable keys, and approximate masses.

use crate::simd::{Float, Simd, exp, vectors};

/// Logits per block.
pub(super) const BLOCK: usize = 256;

/// A candidate as an integer that sorts by descending logit, then by ascending token.
pub(super) type Key = u64;

/// The key of a logit that is not NaN.
#[inline(always)]
pub(super) fn key(logit: f32, token: usize) -> Key {
    // +0 and -0 are equal.
    let bits = (logit + 0.0).to_bits();
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    Key::from(!ascending) << 32 | token as u64
}

/// The logit of a key.
#[inline(always)]
pub(super) fn logit(key: Key) -> f32 {
    let ascending = !((key >> 32) as u32);
    f32::from_bits(if ascending >> 31 == 1 { ascending & !(1 << 31) } else { !ascending })
}

/// The token of a key.
#[inline(always)]
pub(super) fn token(key: Key) -> i32 {
    key as u32 as i32
}

/// A row with the maximum logit of each block, ignoring NaN.
pub(super) struct Scan<'r, S, T> {
    s: S,
    row: &'r [T],
    maxima: &'r [f32],
    /// The largest logit; -∞ if there is none.
    pub largest: f32,
}

impl<'r, S: Simd, T: Float> Scan<'r, S, T> {
    /// Reads the row once. `maxima` has an element per block.
    pub(super) fn new(s: S, row: &'r [T], maxima: &'r mut [f32]) -> Scan<'r, S, T> {
        let mut largest = f32::NEG_INFINITY;
        for (block, block_max) in row.chunks(BLOCK).zip(&mut *maxima) {
            *block_max = max_of_block(s, block);
            largest = largest.max(*block_max);
        }
        Scan { s, row, maxima, largest }
    }

    /// The logits.
    pub(super) fn row(&self) -> &'r [T] {
        self.row
    }

    /// The proof of the instructions.
    pub(super) fn simd(&self) -> S {
        self.s
    }

    /// Maximum logit of each block.
    pub(super) fn maxima(&self) -> &[f32] {
        self.maxima
    }

    /// Writes the keys of all logits not below `least`, in index order, as far as there is space; returns
    /// their number.
    pub(super) fn candidates(&self, least: f32, keys: &mut [Key]) -> usize {
        let mut count = 0;
        for (number, (block, &block_max)) in self.row.chunks(BLOCK).zip(self.maxima).enumerate() {
            if block_max < least {
                continue;
            }
            for (index, value) in block.iter().enumerate() {
                let value = value.to_f32();
                if value >= least {
                    let Some(to) = keys.get_mut(count) else { return count };
                    *to = key(value, number * BLOCK + index);
                    count += 1;
                }
            }
        }
        count
    }

    /// Approximate sum of the weights of all logits below `bound`, with a relative error of 1e-4.
    pub(super) fn mass_below(&self, bound: f32, temperature: f32) -> f64 {
        let blocks = self.row.chunks(BLOCK);
        blocks.map(|block| f64::from(mass(self.s, block, [bound, self.largest, temperature]))).sum()
    }
}

#[inline(never)]
fn max_of_block<S: Simd, T: Float>(s: S, block: &[T]) -> f32 {
    s.vectorize(|| {
        let mut block_max = [s.splat(f32::NEG_INFINITY); 4];
        vectors!(S, block.len(), |span, k of 4| {
            // SAFETY: spans stay inside the block.
            let value = unsafe { T::load(s, block.as_ptr(), span) };
            // `max` drops a NaN first operand. Lanes past a tail are 0, and must not count.
            let value = match crate::simd::Span::part(span) {
                Some(count) => {
                    let in_range = s.lt(s.to_f32(s.lane_indices()), s.splat(count as f32));
                    s.select(in_range, value, s.splat(f32::NEG_INFINITY))
                }
                None => value,
            };
            block_max[k] = s.max(value, block_max[k]);
        });
        s.largest(s.max(s.max(block_max[0], block_max[1]), s.max(block_max[2], block_max[3])))
    })
}

#[inline(never)]
fn mass<S: Simd, T: Float>(s: S, block: &[T], [bound, largest, temperature]: [f32; 3]) -> f32 {
    s.vectorize(|| {
        let mut sum = s.splat(0.0);
        vectors!(S, block.len(), |span| {
            // SAFETY: spans stay inside the block.
            let value = unsafe { T::load(s, block.as_ptr(), span) };
            let weight = exp(s, s.div(s.sub(value, s.splat(largest)), s.splat(temperature)));
            let weight = match crate::simd::Span::part(span) {
                Some(count) => s.keep_first(weight, count),
                None => weight,
            };
            // A NaN is never below the bound.
            sum = s.add(sum, s.select(s.lt(value, s.splat(bound)), weight, s.splat(0.0)));
        });
        s.sum(sum)
    })
}
