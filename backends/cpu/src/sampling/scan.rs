//! One row of logits: its largest by blocks, its candidates as keys that sort as the schema says, and rough masses.

use crate::simd::{Float, Simd, exp, vectors};

/// Logits of a block.
pub(super) const BLOCK: usize = 256;

/// A candidate as a number: larger logits are smaller, lower indices come first among equals.
pub(super) type Key = u64;

/// The key of a logit that is not NaN.
#[inline(always)]
pub(super) fn key(logit: f32, token: usize) -> Key {
    // Both zeros are equal.
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

/// A row with the largest logit of each block, NaN left out.
pub(super) struct Scan<'r, S, T> {
    s: S,
    row: &'r [T],
    maxima: &'r [f32],
    /// The largest logit; -∞ if there is none.
    pub largest: f32,
}

impl<'r, S: Simd, T: Float> Scan<'r, S, T> {
    /// Reads the row once. `maxima` has a place for each block.
    pub(super) fn new(s: S, row: &'r [T], maxima: &'r mut [f32]) -> Scan<'r, S, T> {
        let mut largest = f32::NEG_INFINITY;
        for (block, most) in row.chunks(BLOCK).zip(&mut *maxima) {
            *most = largest_of(s, block);
            largest = largest.max(*most);
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

    /// The largest logits of the blocks.
    pub(super) fn maxima(&self) -> &[f32] {
        self.maxima
    }

    /// Writes the keys of all logits that are not below `least`, in order of the index, as far as there is room; gives their number.
    pub(super) fn candidates(&self, least: f32, keys: &mut [Key]) -> usize {
        let mut count = 0;
        for (number, (block, &most)) in self.row.chunks(BLOCK).zip(self.maxima).enumerate() {
            if most < least {
                continue;
            }
            for (place, value) in block.iter().enumerate() {
                let value = value.to_f32();
                if value >= least {
                    let Some(to) = keys.get_mut(count) else { return count };
                    *to = key(value, number * BLOCK + place);
                    count += 1;
                }
            }
        }
        count
    }

    /// About the sum of the weights of all logits below `bound`, within a part in ten thousand.
    pub(super) fn mass_below(&self, bound: f32, temperature: f32) -> f64 {
        let blocks = self.row.chunks(BLOCK);
        blocks.map(|block| f64::from(mass(self.s, block, [bound, self.largest, temperature]))).sum()
    }
}

#[inline(never)]
fn largest_of<S: Simd, T: Float>(s: S, block: &[T]) -> f32 {
    s.vectorize(|| {
        let mut most = [s.splat(f32::NEG_INFINITY); 4];
        vectors!(S, block.len(), |span, k of 4| {
            // SAFETY: spans stay inside the block.
            let value = unsafe { T::load(s, block.as_ptr(), span) };
            // A NaN gives way to the second operand. What a part does not have is 0, and must not count.
            let value = match crate::simd::Span::part(span) {
                Some(count) => {
                    let there = s.lt(s.to_f32(s.lane_indices()), s.splat(count as f32));
                    s.select(there, value, s.splat(f32::NEG_INFINITY))
                }
                None => value,
            };
            most[k] = s.max(value, most[k]);
        });
        s.largest(s.max(s.max(most[0], most[1]), s.max(most[2], most[3])))
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
            // Nothing is below a bound if it is NaN.
            sum = s.add(sum, s.select(s.lt(value, s.splat(bound)), weight, s.splat(0.0)));
        });
        s.sum(sum)
    })
}
