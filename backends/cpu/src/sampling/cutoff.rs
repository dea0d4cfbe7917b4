//! Cutoff of top-k and top-p: finds the last kept key, without sorting the row where the result is certain.

use super::choose;
use super::scan::{Key, Scan, logit, token};
use crate::simd::{Float, Simd};

/// Scratch memory of a row: keys, their weights, and two values per block.
pub(super) struct RowScratch<'m> {
    pub keys: &'m mut [Key],
    pub weights: &'m mut [f64],
    pub maxima: &'m mut [f32],
    pub sorted: &'m mut [f32],
}

impl<'m> RowScratch<'m> {
    /// Bytes per row.
    pub(super) const fn bytes(vocab: usize) -> usize {
        vocab * 16 + vocab.div_ceil(super::scan::BLOCK) * 8
    }

    /// The part of a workspace that belongs to a slot.
    ///
    /// # Safety
    /// `start` is aligned for u64 and has [`RowScratch::bytes`] for each slot up to this one; no other
    /// reference to this slot exists.
    pub(super) unsafe fn slot(start: *mut u8, slot: usize, vocab: usize) -> RowScratch<'m> {
        let blocks = vocab.div_ceil(super::scan::BLOCK);
        // SAFETY: the caller guarantees the bytes; they are contiguous, and any bits are valid values of
        // these types.
        unsafe {
            let start = start.add(slot * RowScratch::bytes(vocab));
            let (weights, maxima) = (start.add(vocab * 8), start.add(vocab * 16).cast::<f32>());
            RowScratch {
                keys: std::slice::from_raw_parts_mut(start.cast(), vocab),
                weights: std::slice::from_raw_parts_mut(weights.cast(), vocab),
                maxima: std::slice::from_raw_parts_mut(maxima, blocks),
                sorted: std::slice::from_raw_parts_mut(maxima.add(blocks), blocks),
            }
        }
    }
}

/// The weight of a candidate, bit-identical to the reference.
#[inline(always)]
pub(super) fn weight(key: Key, largest: f32, temperature: f64) -> f64 {
    let (logit, largest) = (f64::from(logit(key)), f64::from(largest));
    if largest == f64::INFINITY {
        f64::from(u8::from(logit == f64::INFINITY))
    } else if logit == f64::NEG_INFINITY {
        0.0
    } else {
        ((logit - largest) / temperature).exp()
    }
}

/// Moves the first `k` candidates, in any order, to the front of the keys; returns their number.
pub(super) fn first<S: Simd, T: Float>(
    scan: &Scan<'_, S, T>,
    k: usize,
    keys: &mut [Key],
    sorted: &mut [f32],
) -> usize {
    let blocks = scan.maxima();
    let mut least = f32::NEG_INFINITY;
    if k > 0 && k <= blocks.len() / 2 {
        // k blocks have a logit of at least this value, so the first k candidates do too.
        let sorted = &mut sorted[..blocks.len()];
        sorted.copy_from_slice(blocks);
        least = *sorted.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a)).1;
    }
    let count = scan.candidates(least, keys);
    if k > 0 && k < count {
        keys[..count].select_nth_unstable(k - 1);
    }
    count.min(k)
}

/// How many of the sorted candidates are needed to reach the share `p` of their total weight.
pub(super) fn prefix(sorted: &[Key], p: f64, weight: impl Fn(Key) -> f64) -> usize {
    let all: f64 = sorted.iter().map(|&key| weight(key)).sum();
    let mut sum = 0.0;
    for (position, &key) in sorted.iter().enumerate() {
        sum += weight(key);
        if sum >= p * all {
            return position + 1;
        }
    }
    sorted.len()
}

/// The last candidate needed to reach a sum between `least` and `most`; `None` if the bounds leave it
/// undecided.
pub(super) fn last_to_reach(
    mut keys: &mut [Key],
    [least, most]: [f64; 2],
    weight: impl Fn(Key) -> f64,
) -> Option<Key> {
    const SORT_LIMIT: usize = 32;
    let mut before = 0.0;
    while keys.len() > SORT_LIMIT {
        let middle = keys.len() / 2;
        keys.select_nth_unstable(middle);
        let (front, rest) = keys.split_at_mut(middle);
        let sum = before + front.iter().map(|&key| weight(key)).sum::<f64>();
        if sum > most {
            keys = front;
        } else if sum < least {
            (before, keys) = (sum, rest);
        } else {
            return None;
        }
    }
    keys.sort_unstable();
    for &mut key in keys {
        before += weight(key);
        if before > most {
            return Some(key);
        }
        if before >= least {
            return None;
        }
    }
    None
}

/// Draws among the candidates up to a key. Rewrites the keys in index order.
pub(super) fn draw<S: Simd, T: Float>(
    scan: &Scan<'_, S, T>,
    last: Key,
    temperature: f64,
    u: f64,
    keys: &mut [Key],
    weights: &mut [f64],
) -> i32 {
    let found = scan.candidates(logit(last), keys);
    let mut count = 0;
    for index in 0..found {
        let key = keys[index];
        if key <= last {
            keys[count] = key;
            weights[count] = weight(key, scan.largest, temperature);
            count += 1;
        }
    }
    let tokens = keys[..count].iter().map(|&key| token(key));
    choose(tokens.zip(weights[..count].iter().copied()), u)
}
