//! Top-p for flat distributions, where a large part of the vocabulary is kept: every weight is computed once,
//! vectorized, and the cutoff is found from sums over buckets of logits and blocks of tokens. The error of
//! the sums is bounded; `None` is returned where it could change the result.

use super::cutoff::last_to_reach;
use super::scan::{BLOCK, Key, Scan, key, logit, token};
use crate::simd::{Float, Simd};

/// Relative error bound of a sum, from summation order and weights.
const SUM_ERROR: f64 = 1e-11;

/// Buckets of logits, from the largest down; the last one has the rest.
const BUCKETS: usize = 2048;

/// Range of exponents that the buckets cover.
const EXPONENT_RANGE: f32 = 32.0;

/// The weights of a row, in index order.
pub(super) struct RowWeights<'w> {
    weights: &'w [f64],
    total: f64,
}

impl<'w> RowWeights<'w> {
    /// Computes the weights. The largest logit is finite.
    pub(super) fn new<S: Simd, T: Float>(
        scan: &Scan<'_, S, T>,
        temperature: f32,
        weights: &'w mut [f64],
    ) -> RowWeights<'w> {
        let (largest, factor) = (f64::from(scan.largest), 1.0 / f64::from(temperature));
        let mut total = 0.0;
        for (row, weights) in scan.row().chunks(BLOCK).zip(weights.chunks_mut(BLOCK)) {
            total += compute_weights(scan.simd(), row, [largest, factor], weights);
        }
        RowWeights { weights, total }
    }

    /// The last candidate that is kept for a share `p` below 1; `None` if the sums are not accurate enough.
    pub(super) fn last<S: Simd, T: Float>(
        &self,
        scan: &Scan<'_, S, T>,
        p: f64,
        temperature: f32,
        keys: &mut [Key],
    ) -> Option<Key> {
        let bucketing = [scan.largest, BUCKETS as f32 / (EXPONENT_RANGE * temperature)];
        let mut buckets = [0u16; BLOCK];
        let mut masses = [0.0f64; BUCKETS];
        for (row, weights) in scan.row().chunks(BLOCK).zip(self.weights.chunks(BLOCK)) {
            bucket_indices(scan.simd(), row, bucketing, &mut buckets);
            for (&bucket, weight) in buckets.iter().zip(weights) {
                masses[usize::from(bucket) % BUCKETS] += weight;
            }
        }
        let target_mass = p * self.total;
        let (mut before, mut reached) = (0.0, BUCKETS - 1);
        for (number, mass) in masses.iter().enumerate() {
            if before + mass > target_mass {
                reached = number;
                break;
            }
            before += mass;
        }
        let mut count = 0;
        for (block, row) in scan.row().chunks(BLOCK).enumerate() {
            bucket_indices(scan.simd(), row, bucketing, &mut buckets);
            for (inside, (&bucket, value)) in buckets.iter().zip(row).enumerate() {
                let value = value.to_f32();
                if usize::from(bucket) == reached
                    && !value.is_nan()
                    && let Some(to) = keys.get_mut(count)
                {
                    *to = key(value, block * BLOCK + inside);
                    count += 1;
                }
            }
        }
        let slack = self.total * SUM_ERROR;
        let bounds = [target_mass - before - slack, target_mass - before + slack];
        // It must also be certain that the previous bucket did not reach the target.
        if bounds[0] <= 0.0 && reached > 0 {
            return None;
        }
        last_to_reach(&mut keys[..count], bounds, |key| self.weights[token(key) as usize])
    }

    /// The token that `u` draws among the candidates up to a key; `None` if the sums are not accurate enough.
    pub(super) fn draw<S: Simd, T: Float>(&self, scan: &Scan<'_, S, T>, last: Key, u: f64) -> Option<i32> {
        let kept = |number: usize, row: &[T], weights: &[f64]| -> f64 {
            let tied = (token(last) as usize + 1).saturating_sub(number * BLOCK);
            kept_mass(scan.simd(), row, weights, logit(last), tied)
        };
        let blocks = || scan.row().chunks(BLOCK).zip(self.weights.chunks(BLOCK)).enumerate();
        let total: f64 = blocks().map(|(number, (row, weights))| kept(number, row, weights)).sum();
        let (target, slack) = (u * total, total * SUM_ERROR);
        let mut sum = 0.0;
        for (number, (row, weights)) in blocks() {
            let mass = kept(number, row, weights);
            if sum + mass <= target - slack {
                sum += mass;
                continue;
            }
            for (inside, (value, weight)) in row.iter().zip(weights).enumerate() {
                let (index, value) = (number * BLOCK + inside, value.to_f32());
                if value.is_nan() || key(value, index) > last {
                    continue;
                }
                sum += weight;
                if sum > target + slack {
                    return Some(index as i32);
                }
                if sum >= target - slack {
                    return None;
                }
            }
        }
        None
    }
}

/// Bucket indices of some logits. Monotonic: larger logits never get a larger index, because every step
/// rounds monotonically. NaN is in the last bucket.
#[inline(never)]
fn bucket_indices<S: Simd, T: Float>(
    s: S,
    row: &[T],
    [largest, factor]: [f32; 2],
    buckets: &mut [u16; BLOCK],
) {
    s.vectorize(|| {
        for (to, value) in buckets.iter_mut().zip(row) {
            *to = ((largest - value.to_f32()) * factor).min((BUCKETS - 1) as f32) as i32 as u16;
        }
    });
}

/// Writes the weights of some logits and returns their sum. NaN and -∞ get a negligible weight.
#[inline(never)]
fn compute_weights<S: Simd, T: Float>(
    s: S,
    row: &[T],
    [largest, factor]: [f64; 2],
    weights: &mut [f64],
) -> f64 {
    s.vectorize(|| {
        let mut numbers = [0.0f32; BLOCK];
        for (to, from) in numbers.iter_mut().zip(row) {
            *to = from.to_f32();
        }
        for (weight, &number) in weights.iter_mut().zip(&numbers) {
            *weight = exp((f64::from(number) - largest) * factor);
        }
        let mut sums = [0.0f64; 8];
        let mut eights = weights.chunks_exact(8);
        for eight in &mut eights {
            for (sum, weight) in sums.iter_mut().zip(eight) {
                *sum += weight;
            }
        }
        sums.iter().sum::<f64>() + eights.remainder().iter().sum::<f64>()
    })
}

/// `e^x` for x up to 0, within a few ulps; nearly 0 below -708 and for NaN. Branch-free, so that loops are
/// vectorized.
#[inline(always)]
pub fn exp(x: f64) -> f64 {
    /// Added to a value below 2^51, it leaves the nearest integer in the low mantissa bits.
    const ROUND_SHIFT: f64 = 6_755_399_441_055_744.0;
    let x = if x > -708.0 { x } else { -708.0 };
    let shifted = x * std::f64::consts::LOG2_E + ROUND_SHIFT;
    let whole = shifted - ROUND_SHIFT;
    // ln 2 split in two constants, so that the first product is exact.
    let rest = x - whole * 0.693_147_180_369_123_8 - whole * 1.908_214_929_270_587_7e-10;
    let mut sum = 1.0 / 6_227_020_800.0;
    for coefficient in [
        1.0 / 479_001_600.0,
        1.0 / 39_916_800.0,
        1.0 / 3_628_800.0,
        1.0 / 362_880.0,
        1.0 / 40_320.0,
        1.0 / 5_040.0,
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
        1.0,
        1.0,
    ] {
        sum = sum * rest + coefficient;
    }
    let power = f64::from_bits(shifted.to_bits().wrapping_add(1023) << 52);
    sum * power
}

/// Sum of the kept weights of a block: logits above `least`, and of equal ones the first `tied` tokens.
#[inline(never)]
fn kept_mass<S: Simd, T: Float>(s: S, row: &[T], weights: &[f64], least: f32, tied: usize) -> f64 {
    s.vectorize(|| {
        let mut sums = [0.0f64; 8];
        for (index, (value, weight)) in row.iter().zip(weights).enumerate() {
            let value = value.to_f32();
            let kept = value > least || (value == least && index < tied);
            sums[index % 8] += if kept { *weight } else { 0.0 };
        }
        sums.iter().sum()
    })
}
