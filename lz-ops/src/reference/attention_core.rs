//! Shared by all attention references: softmax of one row of scores, and the weighted average of values.
//!
//! Independent of the operation. Values of index tensors are clamped to valid ranges, so that an unvalidated
//! page table gives wrong results at worst; reading outside a tensor gives NaN (see `TensorView::at`).

use std::ops::Range;
use std::sync::Arc;

use lz_core::score_mod::{ScoreMod, Values, slot};
use lz_core::tensor::{Dims, Indices};
use lz_core::{DType, KernelError, TensorMut, TensorView};

use crate::reference::index::join;

/// The softmax of one query over its keys.
#[derive(Debug, Clone, PartialEq)]
pub enum Row {
    /// No visible key.
    Empty,
    /// A score is NaN or +∞.
    NotANumber,
    /// Every visible key, with exp(score - maximum score).
    Weighted {
        /// Keys and their weights; a key that is listed twice appears twice.
        weights: Vec<(i64, f64)>,
        /// Sum of the weights.
        sum_exp: f64,
        /// Log-sum-exp of the scores.
        lse: f64,
    },
}

impl Row {
    /// Computes the scores of all keys. A key with score -∞ is masked out.
    pub fn new(keys: impl IntoIterator<Item = i64>, score: impl Fn(i64) -> f64) -> Row {
        Row::with_sink(keys, None, score)
    }

    /// As [`Row::new`], with a score that has no value; -∞ means none.
    pub fn with_sink(
        keys: impl IntoIterator<Item = i64>,
        sink: Option<f64>,
        score: impl Fn(i64) -> f64,
    ) -> Row {
        let mut scored: Vec<(i64, f64)> = keys.into_iter().map(|key| (key, score(key))).collect();
        scored.retain(|&(_, score)| score != f64::NEG_INFINITY);
        let sink = sink.filter(|sink| *sink != f64::NEG_INFINITY);
        if scored.is_empty() && sink.is_none() {
            return Row::Empty;
        }
        let mut scores = scored.iter().map(|&(_, score)| score).chain(sink);
        if scores.clone().any(|score| score.is_nan() || score == f64::INFINITY) {
            return Row::NotANumber;
        }
        let max_score = scores.by_ref().fold(f64::NEG_INFINITY, f64::max);
        let mut sum_exp = sink.map_or(0.0, |sink| (sink - max_score).exp());
        for (_, score) in &mut scored {
            // In exact arithmetic no weight is zero: one that underflows f64 must still propagate an infinity
            // or NaN of its value.
            *score = (*score - max_score).exp().max(f64::MIN_POSITIVE);
            sum_exp += *score;
        }
        Row::Weighted { weights: scored, sum_exp, lse: max_score + sum_exp.ln() }
    }

    /// Log-sum-exp of the scores.
    pub fn lse(&self) -> f64 {
        match self {
            Row::Empty => f64::NEG_INFINITY,
            Row::NotANumber => f64::NAN,
            Row::Weighted { lse, .. } => *lse,
        }
    }

    /// Weighted average of the values of the visible keys; values of other keys are never read.
    pub fn average(&self, value: impl Fn(i64) -> f64) -> f64 {
        match self {
            Row::Empty => 0.0,
            Row::NotANumber => f64::NAN,
            Row::Weighted { weights, sum_exp, .. } => {
                weights.iter().map(|&(key, weight)| weight * value(key)).sum::<f64>() / sum_exp
            }
        }
    }

    /// Writes the averages of all features at the leading index `index`, and the log-sum-exp, if requested.
    pub fn write(
        &self,
        output: &mut TensorMut<'_>,
        lse: Option<&mut TensorMut<'_>>,
        index: &[i64],
        features: i64,
        value: impl Fn(i64, i64) -> f64,
    ) {
        for feature in 0..features {
            output.set(&join(&[index, &[feature]]), self.average(|key| value(key, feature)));
        }
        if let Some(lse) = lse {
            lse.set(index, self.lse());
        }
    }
}

/// All index tuples below the sizes, the last one fastest.
pub fn index_tuples<const N: usize>(sizes: [i64; N]) -> impl Iterator<Item = [i64; N]> {
    Indices::new(&sizes).map(|index| {
        let mut tuple = [0; N];
        for (target, &position) in tuple.iter_mut().zip(index.iter()) {
            *target = position;
        }
        tuple
    })
}

/// Reads features 0 … count - 1 once.
pub fn gather(count: i64, feature: impl Fn(i64) -> f64) -> Vec<f64> {
    (0..count).map(feature).collect()
}

/// Dot product of a gathered query with the features of a key.
pub fn dot(query: &[f64], key: impl Fn(i64) -> f64) -> f64 {
    query.iter().zip(0..).map(|(&query, feature)| query * key(feature)).sum()
}

/// The sink of a query head, if there are sinks.
pub fn sink(sinks: Option<TensorView<'_>>, head: i64) -> Option<f64> {
    sinks.map(|sinks| sinks.at(&[head]))
}

/// The factor of a key head: one for all heads or one per head; 1 without scales.
pub fn head_scale(scales: Option<TensorView<'_>>, head: i64) -> f64 {
    scales.map_or(1.0, |scales| scales.at(&broadcast(&scales, &[head])))
}

/// Soft cap: bounds the score with tanh; a cap of 0 means none.
pub fn soft_capped(score: f64, soft_cap: f32) -> f64 {
    let soft_cap = f64::from(soft_cap);
    if soft_cap > 0.0 { soft_cap * (score / soft_cap).tanh() } else { score }
}

/// Whether causality or a window masks a key from a query at `position`; a window of -1 is unlimited.
pub fn is_masked_out(key: i64, position: i64, causal: bool, window_left: i64, window_right: i64) -> bool {
    (causal && key > position)
        || (window_left >= 0 && key < position - window_left)
        || (window_right >= 0 && key > position + window_right)
}

/// ALiBi bias of a score; `distance` is the key's position minus the query's. 0 without slopes.
pub fn alibi(slopes: Option<TensorView<'_>>, batch: i64, head: i64, distance: i64) -> f64 {
    slopes.map_or(0.0, |slopes| slopes.at(&broadcast(&slopes, &[batch, head])) * distance as f64)
}

/// The score expression of a call, with its parameters.
pub struct Modifier<'a> {
    expression: Option<Arc<ScoreMod>>,
    parameters: Option<TensorView<'a>>,
}

/// Where a score is: batch row, query head, index and position of the query.
#[derive(Debug, Clone, Copy)]
pub struct ScoreIndex {
    /// Batch row.
    pub batch: i64,
    /// Query head.
    pub head: i64,
    /// Index of the query.
    pub query: i64,
    /// Position of the query among the keys.
    pub position: i64,
}

impl<'a> Modifier<'a> {
    /// Of the inputs of a checked call.
    pub fn new(
        text: Option<TensorView<'_>>,
        parameters: Option<TensorView<'a>>,
    ) -> Result<Modifier<'a>, KernelError> {
        let count = parameters.map_or(0, |parameters| parameters.shape().last().copied().unwrap_or(0));
        let expression = text.map(|text| ScoreMod::of(&text, count)).transpose();
        Ok(Modifier { expression: expression.map_err(KernelError::because)?, parameters })
    }

    /// The score of a key; unchanged without an expression.
    pub fn apply(&self, score: f64, index: ScoreIndex, key: i64) -> f64 {
        let Some(expression) = &self.expression else { return score };
        let mut values: Values = [f64::NAN; slot::COUNT];
        values[slot::SCORE] = score;
        values[slot::KV_INDEX] = key as f64;
        values[slot::Q_INDEX] = index.query as f64;
        values[slot::Q_POSITION] = index.position as f64;
        values[slot::HEAD] = index.head as f64;
        values[slot::BATCH] = index.batch as f64;
        values[slot::INFINITY] = f64::INFINITY;
        if let Some(parameters) = self.parameters {
            for (number, value) in (0..).zip(&mut values[slot::PARAMETERS..]) {
                *value = parameters.at(&[index.batch, index.head, number]);
            }
        }
        expression.evaluate(&values)
    }
}

/// The score under a mask: a false bool masks the key out, a float is added.
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

/// Index into a broadcast tensor: dimensions are right-aligned, and those of size 1 have index 0.
fn broadcast(view: &TensorView<'_>, index: &[i64]) -> Dims {
    let missing = index.len().saturating_sub(view.rank());
    let mut own = Dims::empty();
    for (&position, &size) in index.iter().skip(missing).zip(view.shape()) {
        // A view never has more dimensions than `Dims` can hold.
        let _fits = own.push(if size == 1 { 0 } else { position });
    }
    own
}

/// The KV head of a query head.
pub fn kv_head(head: i64, heads: i64, kv_heads: i64) -> i64 {
    head / (heads / kv_heads.max(1)).max(1)
}

/// Index of a head of a token: BSHD and NHD have the position before the head, BHSD and HND after it.
pub fn head_index(heads_first: bool, outer: i64, position: i64, head: i64) -> [i64; 3] {
    if heads_first { [outer, head, position] } else { [outer, position, head] }
}

/// Index of one feature of [`head_index`].
pub fn feature_index(heads_first: bool, outer: i64, position: i64, head: i64, feature: i64) -> [i64; 4] {
    let [outer, second, third] = head_index(heads_first, outer, position, head);
    [outer, second, third, feature]
}

/// Part `part` of an indptr, clamped to `sum_exp`.
pub fn span(indptr: &TensorView<'_>, part: i64, sum_exp: i64) -> Range<i64> {
    let sum_exp = sum_exp.max(0);
    let start = indptr.int_at(&[part]).clamp(0, sum_exp);
    start..indptr.int_at(&[part + 1]).clamp(start, sum_exp)
}

/// Number of keys of batch row `batch`: from `lens`, or all.
pub fn length(lens: Option<TensorView<'_>>, batch: i64, all: i64) -> i64 {
    lens.map_or(all, |lens| lens.int_at(&[batch]).clamp(0, all.max(0)))
}

/// The page table of one request.
#[derive(Debug)]
pub struct PageTable<'a> {
    indices: TensorView<'a>,
    first: i64,
    page_size: i64,
    /// Number of keys of the request.
    pub length: i64,
}

impl<'a> PageTable<'a> {
    /// Of request `request` in a CSR page table.
    pub fn of(
        request: i64,
        indptr: &TensorView<'a>,
        indices: &TensorView<'a>,
        last_page_len: &TensorView<'a>,
        page_size: i64,
    ) -> PageTable<'a> {
        let page_size = page_size.max(1);
        let listed = span(indptr, request, indices.elements());
        let full = (listed.end - listed.start - 1).max(0).saturating_mul(page_size);
        let length = if listed.is_empty() {
            0
        } else {
            full.saturating_add(last_page_len.int_at(&[request]).clamp(0, page_size))
        };
        // The limit lets callers add lengths without overflow.
        PageTable { indices: *indices, first: listed.start, page_size, length: length.min(i64::MAX / 4) }
    }

    /// Page of a key, and its slot in the page.
    pub fn locate(&self, key: i64) -> (i64, i64) {
        (self.indices.int_at(&[self.first + key / self.page_size]), key % self.page_size)
    }
}

#[cfg(test)]
mod tests {
    use lz_core::element::Bool;

    use super::*;

    const MASKED: f64 = f64::NEG_INFINITY;

    fn row(scores: &[f64]) -> Row {
        Row::new(0..scores.len() as i64, |key| scores[key as usize])
    }

    #[test]
    fn equal_scores_have_equal_weights() {
        let row = row(&[1.0, 1.0, MASKED]);
        assert_eq!(row.average(|key| [3.0, 5.0, f64::NAN][key as usize]), 4.0);
        assert!((row.lse() - (1.0 + 2f64.ln())).abs() < 1e-15);
    }

    #[test]
    fn rows_without_keys_are_zero() {
        for row in [row(&[]), row(&[MASKED, MASKED])] {
            assert_eq!(row, Row::Empty);
            assert_eq!(row.average(|_| f64::NAN), 0.0);
            assert_eq!(row.lse(), MASKED);
        }
    }

    #[test]
    fn nan_and_infinite_scores_make_the_row_nan() {
        for bad in [f64::NAN, f64::INFINITY] {
            let row = row(&[0.0, bad, MASKED]);
            assert!(row.average(|_| 1.0).is_nan() && row.lse().is_nan());
        }
    }

    #[test]
    fn large_scores_do_not_overflow_and_tiny_weights_propagate_infinities() {
        let row = row(&[1e30, -1e30]);
        assert_eq!(row.lse(), 1e30);
        assert_eq!(row.average(|key| [2.0, 1e38][key as usize]), 2.0);
        assert_eq!(row.average(|key| [2.0, f64::INFINITY][key as usize]), f64::INFINITY);
        assert!(row.average(|key| [2.0, f64::NAN][key as usize]).is_nan());
    }

    #[test]
    fn a_sink_takes_weight_and_has_no_value() {
        let row = Row::with_sink([0, 1], Some(2f64.ln()), |_| 0.0);
        assert!((row.average(|key| [3.0, 5.0][key as usize]) - 2.0).abs() < 1e-15);
        assert!((row.lse() - 4f64.ln()).abs() < 1e-15);
        let alone = Row::with_sink([], Some(0.5), |_| 0.0);
        assert_eq!((alone.average(|_| f64::NAN), alone.lse()), (0.0, 0.5));
        assert_eq!(Row::with_sink([0], Some(MASKED), |_| 0.0), Row::new([0], |_| 0.0));
        assert_eq!(Row::with_sink([0], Some(f64::NAN), |_| 0.0), Row::NotANumber);
        assert_eq!(Row::with_sink([], Some(f64::INFINITY), |_| 0.0), Row::NotANumber);
    }

    #[test]
    fn a_key_listed_twice_counts_twice() {
        let row = Row::new([0, 1, 1], |_| 0.0);
        assert!((row.average(|key| key as f64) - 2.0 / 3.0).abs() < 1e-15);
        assert!((row.lse() - 3f64.ln()).abs() < 1e-15);
    }

    #[test]
    fn windows_and_causality_mask_keys() {
        let seen = |causal, left, right| -> Vec<i64> {
            (0..6).filter(|&key| !is_masked_out(key, 3, causal, left, right)).collect()
        };
        assert_eq!(seen(false, -1, -1), [0, 1, 2, 3, 4, 5]);
        assert_eq!(seen(true, -1, -1), [0, 1, 2, 3]);
        assert_eq!(seen(false, 1, -1), [2, 3, 4, 5]);
        assert_eq!(seen(false, 0, 1), [3, 4]);
        assert_eq!(seen(true, 2, 1), [1, 2, 3]);
    }

    #[test]
    fn masks_of_any_rank_are_right_aligned() {
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
        assert_eq!(masked(f64::NAN, Some(mask), &[0, 0, 1, 1]), MASKED);
    }

    #[test]
    fn invalid_page_tables_stay_inside_the_cache() {
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
                    let pages = PageTable::of(request, &indptr, &indices, &lens, page_size);
                    assert!(pages.length >= 0);
                    for key in 0..pages.length.min(8) {
                        let (page, slot) = pages.locate(key);
                        let value = k.at(&[page, slot]);
                        assert!(value == 1.0 || value.is_nan());
                    }
                }
            }
        }
    }

    #[test]
    fn request_length_follows_its_pages() {
        let (indptr, indices, last) = ([0i32, 2, 2, 3], [5i32, 3, 5], [1i32, 4, 0]);
        let indptr = TensorView::from_slice(&indptr, &[4]).unwrap();
        let indices = TensorView::from_slice(&indices, &[3]).unwrap();
        let last = TensorView::from_slice(&last, &[3]).unwrap();
        let pages: Vec<PageTable<'_>> =
            (0..3).map(|b| PageTable::of(b, &indptr, &indices, &last, 4)).collect();
        assert_eq!(pages.iter().map(|pages| pages.length).collect::<Vec<_>>(), [5, 0, 0]);
        assert_eq!([pages[0].locate(0), pages[0].locate(3), pages[0].locate(4)], [(5, 0), (5, 3), (3, 0)]);
    }

    #[test]
    fn query_heads_share_key_heads_in_order() {
        assert_eq!((0..6).map(|head| kv_head(head, 6, 2)).collect::<Vec<_>>(), [0, 0, 0, 1, 1, 1]);
        assert_eq!((0..3).map(|head| kv_head(head, 3, 3)).collect::<Vec<_>>(), [0, 1, 2]);
    }
}
