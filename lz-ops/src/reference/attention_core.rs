//! What all attention references share: one row of scores becomes weights, and the weights average values.
//!
//! Nothing here knows an operation. Index tensors are read with their values clamped to what exists, so that a table that
//! nobody checked gives wrong numbers at worst; reading outside of a tensor gives NaN (see `TensorView::at`).

use std::ops::Range;

use lz_core::tensor::{Dims, Indices};
use lz_core::{DType, TensorMut, TensorView};

use crate::reference::index::join;

/// The softmax of one query over its keys.
#[derive(Debug, Clone, PartialEq)]
pub enum Row {
    /// No key takes part.
    Empty,
    /// A score is NaN or +∞.
    NotANumber,
    /// Every key that takes part, with exp(score - highest score).
    Weighted {
        /// Keys and their weights; a key that was listed twice is here twice.
        weights: Vec<(i64, f64)>,
        /// Sum of the weights.
        total: f64,
        /// Natural logarithm of the sum of the exponentials of the scores.
        lse: f64,
    },
}

impl Row {
    /// Scores every key. One whose score is -∞ takes no part, so callers hide a key by scoring it so.
    pub fn new(keys: impl IntoIterator<Item = i64>, score: impl Fn(i64) -> f64) -> Row {
        let mut scored: Vec<(i64, f64)> = keys.into_iter().map(|key| (key, score(key))).collect();
        scored.retain(|&(_, score)| score != f64::NEG_INFINITY);
        if scored.is_empty() {
            return Row::Empty;
        }
        if scored.iter().any(|&(_, score)| score.is_nan() || score == f64::INFINITY) {
            return Row::NotANumber;
        }
        let highest = scored.iter().fold(f64::NEG_INFINITY, |highest, &(_, score)| highest.max(score));
        let mut total = 0.0;
        for (_, score) in &mut scored {
            // In exact arithmetic no weight is zero: one that is too small for f64 must still carry an infinity or a NaN of its value.
            *score = (*score - highest).exp().max(f64::MIN_POSITIVE);
            total += *score;
        }
        Row::Weighted { weights: scored, total, lse: highest + total.ln() }
    }

    /// Natural logarithm of the sum of the exponentials of the scores.
    pub fn lse(&self) -> f64 {
        match self {
            Row::Empty => f64::NEG_INFINITY,
            Row::NotANumber => f64::NAN,
            Row::Weighted { lse, .. } => *lse,
        }
    }

    /// Weighted average of the values of the keys that take part; the values of others are never looked at.
    pub fn average(&self, value: impl Fn(i64) -> f64) -> f64 {
        match self {
            Row::Empty => 0.0,
            Row::NotANumber => f64::NAN,
            Row::Weighted { weights, total, .. } => {
                weights.iter().map(|&(key, weight)| weight * value(key)).sum::<f64>() / total
            }
        }
    }

    /// Writes the averages of all features behind the leading index `place`, and the lse there where it is wanted.
    pub fn write(
        &self,
        output: &mut TensorMut<'_>,
        lse: Option<&mut TensorMut<'_>>,
        place: &[i64],
        features: i64,
        value: impl Fn(i64, i64) -> f64,
    ) {
        for feature in 0..features {
            output.set(&join(&[place, &[feature]]), self.average(|key| value(key, feature)));
        }
        if let Some(lse) = lse {
            lse.set(place, self.lse());
        }
    }
}

/// All indices below the sizes, the last one fastest.
pub fn places<const N: usize>(sizes: [i64; N]) -> impl Iterator<Item = [i64; N]> {
    Indices::new(&sizes).map(|index| {
        let mut place = [0; N];
        for (target, &position) in place.iter_mut().zip(index.iter()) {
            *target = position;
        }
        place
    })
}

/// Features 0 … count - 1 of something, read once.
pub fn gather(count: i64, feature: impl Fn(i64) -> f64) -> Vec<f64> {
    (0..count).map(feature).collect()
}

/// Inner product of a gathered query with the features of a key.
pub fn dot(query: &[f64], key: impl Fn(i64) -> f64) -> f64 {
    query.iter().zip(0..).map(|(&query, feature)| query * key(feature)).sum()
}

/// The score bounded by a hyperbolic tangent; a cap of 0 means none.
pub fn capped(score: f64, soft_cap: f32) -> f64 {
    let soft_cap = f64::from(soft_cap);
    if soft_cap > 0.0 { soft_cap * (score / soft_cap).tanh() } else { score }
}

/// Whether causality or a window hides a key from a query that stands at `place` among the keys; a window of -1 hides nothing.
pub fn hidden(key: i64, place: i64, causal: bool, window_left: i64, window_right: i64) -> bool {
    (causal && key > place)
        || (window_left >= 0 && key < place - window_left)
        || (window_right >= 0 && key > place + window_right)
}

/// What ALiBi adds to a score; `distance` is the key's place less the query's. Nothing without slopes.
pub fn alibi(slopes: Option<TensorView<'_>>, batch: i64, head: i64, distance: i64) -> f64 {
    slopes.map_or(0.0, |slopes| slopes.at(&broadcast(&slopes, &[batch, head])) * distance as f64)
}

/// The score under a mask: a false bool hides the key, a float is added.
pub fn masked(score: f64, mask: Option<TensorView<'_>>, index: &[i64]) -> f64 {
    match mask {
        None => score,
        Some(mask) if mask.dtype() == DType::Bool => {
            if mask.int_at(&broadcast(&mask, index)) != 0 {
                score
            } else {
                f64::NEG_INFINITY
            }
        }
        Some(mask) => score + mask.at(&broadcast(&mask, index)),
    }
}

/// Where a broadcast tensor keeps what it says about `index`: dimensions align at the right, and one of size 1 has one place.
fn broadcast(view: &TensorView<'_>, index: &[i64]) -> Dims {
    let missing = index.len().saturating_sub(view.rank());
    let mut own = Dims::empty();
    for (&position, &size) in index.iter().skip(missing).zip(view.shape()) {
        // A shape has at most the rank that fits.
        let _fits = own.push(if size == 1 { 0 } else { position });
    }
    own
}

/// The key head that a query head reads.
pub fn key_head(head: i64, heads: i64, kv_heads: i64) -> i64 {
    head / (heads / kv_heads.max(1)).max(1)
}

/// Index of a head of a token: BSHD and NHD put the position before the head, BHSD and HND after it.
pub fn head_place(heads_first: bool, outer: i64, position: i64, head: i64) -> [i64; 3] {
    if heads_first { [outer, head, position] } else { [outer, position, head] }
}

/// Index of one feature of [`head_place`].
pub fn feature_place(heads_first: bool, outer: i64, position: i64, head: i64, feature: i64) -> [i64; 4] {
    let [outer, second, third] = head_place(heads_first, outer, position, head);
    [outer, second, third, feature]
}

/// Part `part` of what an indptr divides; never reaches beyond `total`.
pub fn span(indptr: &TensorView<'_>, part: i64, total: i64) -> Range<i64> {
    let total = total.max(0);
    let start = indptr.int_at(&[part]).clamp(0, total);
    start..indptr.int_at(&[part + 1]).clamp(start, total)
}

/// How many keys batch row `batch` has: what `lens` says, or all of them.
pub fn length(lens: Option<TensorView<'_>>, batch: i64, all: i64) -> i64 {
    lens.map_or(all, |lens| lens.int_at(&[batch]).clamp(0, all.max(0)))
}

/// The pages of one request.
#[derive(Debug)]
pub struct Pages<'a> {
    indices: TensorView<'a>,
    first: i64,
    page_size: i64,
    /// How many keys the request has.
    pub length: i64,
}

impl<'a> Pages<'a> {
    /// Of request `request` in a CSR page table.
    pub fn of(
        request: i64,
        indptr: &TensorView<'a>,
        indices: &TensorView<'a>,
        last_page_len: &TensorView<'a>,
        page_size: i64,
    ) -> Pages<'a> {
        let page_size = page_size.max(1);
        let listed = span(indptr, request, indices.elements());
        let full = (listed.end - listed.start - 1).max(0).saturating_mul(page_size);
        let length = if listed.is_empty() {
            0
        } else {
            full.saturating_add(last_page_len.int_at(&[request]).clamp(0, page_size))
        };
        // Nobody walks 2^61 keys; the bound lets callers add lengths without a thought of overflow.
        Pages { indices: *indices, first: listed.start, page_size, length: length.min(i64::MAX / 4) }
    }

    /// Page and place on it of a key.
    pub fn locate(&self, key: i64) -> (i64, i64) {
        (self.indices.int_at(&[self.first + key / self.page_size]), key % self.page_size)
    }
}

#[cfg(test)]
mod tests {
    use lz_core::element::Bool;

    use super::*;

    const NEVER: f64 = f64::NEG_INFINITY;

    fn row(scores: &[f64]) -> Row {
        Row::new(0..scores.len() as i64, |key| scores[key as usize])
    }

    #[test]
    fn two_equal_scores_share_evenly() {
        let row = row(&[1.0, 1.0, NEVER]);
        assert_eq!(row.average(|key| [3.0, 5.0, f64::NAN][key as usize]), 4.0);
        assert!((row.lse() - (1.0 + 2f64.ln())).abs() < 1e-15);
    }

    #[test]
    fn without_keys_a_row_is_zero() {
        for row in [row(&[]), row(&[NEVER, NEVER])] {
            assert_eq!(row, Row::Empty);
            assert_eq!(row.average(|_| f64::NAN), 0.0);
            assert_eq!(row.lse(), NEVER);
        }
    }

    #[test]
    fn nan_and_infinite_scores_make_the_row_nan() {
        for bad in [f64::NAN, f64::INFINITY] {
            let row = row(&[0.0, bad, NEVER]);
            assert!(row.average(|_| 1.0).is_nan() && row.lse().is_nan());
        }
    }

    #[test]
    fn huge_scores_do_not_overflow_and_tiny_weights_keep_infinities() {
        let row = row(&[1e30, -1e30]);
        assert_eq!(row.lse(), 1e30);
        assert_eq!(row.average(|key| [2.0, 1e38][key as usize]), 2.0);
        assert_eq!(row.average(|key| [2.0, f64::INFINITY][key as usize]), f64::INFINITY);
        assert!(row.average(|key| [2.0, f64::NAN][key as usize]).is_nan());
    }

    #[test]
    fn a_key_listed_twice_counts_twice() {
        let row = Row::new([0, 1, 1], |_| 0.0);
        assert!((row.average(|key| key as f64) - 2.0 / 3.0).abs() < 1e-15);
        assert!((row.lse() - 3f64.ln()).abs() < 1e-15);
    }

    #[test]
    fn windows_and_causality_hide_what_lies_outside() {
        let seen = |causal, left, right| -> Vec<i64> {
            (0..6).filter(|&key| !hidden(key, 3, causal, left, right)).collect()
        };
        assert_eq!(seen(false, -1, -1), [0, 1, 2, 3, 4, 5]);
        assert_eq!(seen(true, -1, -1), [0, 1, 2, 3]);
        assert_eq!(seen(false, 1, -1), [2, 3, 4, 5]);
        assert_eq!(seen(false, 0, 1), [3, 4]);
        assert_eq!(seen(true, 2, 1), [1, 2, 3]);
    }

    #[test]
    fn masks_of_any_rank_align_at_the_right() {
        let values = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0];
        let cases: [(&[i64], f64); 5] =
            [(&[], 1.0), (&[3], 3.0), (&[2, 1], 2.0), (&[2, 3], 6.0), (&[1, 1, 1, 3], 3.0)];
        for (shape, expected) in cases {
            let mask = TensorView::from_slice(&values, shape).unwrap();
            assert_eq!(masked(10.0, Some(mask), &[0, 0, 1, 2]), 10.0 + expected, "{shape:?}");
        }
        let seen = [Bool(1), Bool(0)];
        let mask = TensorView::from_slice(&seen, &[2]).unwrap();
        assert_eq!(masked(10.0, Some(mask), &[0, 0, 1, 0]), 10.0);
        assert_eq!(masked(f64::NAN, Some(mask), &[0, 0, 1, 1]), NEVER);
    }

    #[test]
    fn a_page_table_of_nonsense_stays_inside() {
        let tables: [[i32; 4]; 4] =
            [[0, 3, 1, 2], [-7, i32::MAX, i32::MIN, 5], [2, 2, 9, -1], [i32::MAX, i32::MAX, 0, 1]];
        let indices = [1i32, -4, 77];
        let (k, lens) = ([1.0f32; 8], [i32::MAX, i32::MIN, 0]);
        let k = TensorView::from_slice(&k, &[4, 2]).unwrap();
        let indices = TensorView::from_slice(&indices, &[3]).unwrap();
        let lens = TensorView::from_slice(&lens, &[3]).unwrap();
        for table in tables {
            let indptr = TensorView::from_slice(&table, &[4]).unwrap();
            for request in 0..3 {
                for page_size in [0, 2, i64::MAX] {
                    let pages = Pages::of(request, &indptr, &indices, &lens, page_size);
                    assert!(pages.length >= 0);
                    for key in 0..pages.length.min(8) {
                        let (page, place) = pages.locate(key);
                        let value = k.at(&[page, place]);
                        assert!(value == 1.0 || value.is_nan());
                    }
                }
            }
        }
    }

    #[test]
    fn the_length_of_a_request_counts_its_pages() {
        let (indptr, indices, last) = ([0i32, 2, 2, 3], [5i32, 3, 5], [1i32, 4, 0]);
        let indptr = TensorView::from_slice(&indptr, &[4]).unwrap();
        let indices = TensorView::from_slice(&indices, &[3]).unwrap();
        let last = TensorView::from_slice(&last, &[3]).unwrap();
        let pages: Vec<Pages<'_>> = (0..3).map(|b| Pages::of(b, &indptr, &indices, &last, 4)).collect();
        assert_eq!(pages.iter().map(|pages| pages.length).collect::<Vec<_>>(), [5, 0, 0]);
        assert_eq!([pages[0].locate(0), pages[0].locate(3), pages[0].locate(4)], [(5, 0), (5, 3), (3, 0)]);
    }

    #[test]
    fn query_heads_share_key_heads_in_order() {
        assert_eq!((0..6).map(|head| key_head(head, 6, 2)).collect::<Vec<_>>(), [0, 0, 0, 1, 1, 1]);
        assert_eq!((0..3).map(|head| key_head(head, 3, 3)).collect::<Vec<_>>(), [0, 1, 2]);
    }
}
